//! The variables of a CGI program.

use std::fmt::Write;
use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, Method, Uri, Version, header};

use crate::cgi::is_of_the_connection;
use crate::handler::failure::{Failure, FailureKind};
use crate::handler::request::Request;

/// Variables that a program gets on request.
///
/// # Examples
///
/// See [`ProgramOptions`](crate::ProgramOptions).
#[derive(Clone, Copy, Debug, Default)]
pub struct VariableOptions {
    /// Pass the field `Authorization`, which may hold a password.
    pub authorization: bool,
}

/// Calls `set` with each variable of a request: its name, and its value in parts.
///
/// `HTTP_PROXY` is never among them: programs take that for the address of a
/// proxy (CVE-2016-5385). Fields of the connection are left out too, and so are fields whose
/// variable would have the name of another field's.
///
/// # Errors
///
/// If the path cannot be a variable, and errors of `set`.
///
/// # Examples
///
/// A target's path is decoded, its query is not: for `/a%20b?c%20d`, `PATH_INFO`
/// is `/a b` and `QUERY_STRING` is `c%20d`.
///
/// ```
/// use pagefork_serve::cgi::{VariableOptions, variables};
/// use pagefork_serve::{Failure, Request};
///
/// /// All variables of a request, as text.
/// fn environment(request: &Request) -> Result<Vec<String>, Failure> {
///     let mut all = Vec::new();
///     variables(request, VariableOptions::default(), |name, value| {
///         let (name, value) = (String::from_utf8_lossy(name), value.concat());
///         all.push(format!("{name}={}", String::from_utf8_lossy(&value)));
///         Ok(())
///     })?;
///     Ok(all)
/// }
/// ```
pub fn variables(
    request: &Request,
    options: VariableOptions,
    mut set: impl FnMut(&[u8], &[&[u8]]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let head = &request.head;
    let mut one = |name: &str, value: &[u8]| set(name.as_bytes(), &[value]);
    one("GATEWAY_INTERFACE", b"CGI/1.1")?;
    one("SERVER_SOFTWARE", concat!("pagefork/", env!("CARGO_PKG_VERSION")).as_bytes())?;
    one("SERVER_PROTOCOL", protocol(head.version).as_bytes())?;
    one("REQUEST_METHOD", head.method.as_str().as_bytes())?;
    one("REQUEST_SCHEME", b"http")?;
    one("SCRIPT_NAME", b"")?;
    let (path, query) = target(&head.uri);
    one("PATH_INFO", &decoded(path)?)?;
    one("QUERY_STRING", query.as_bytes())?;
    let uri = head.uri.path_and_query().map_or(path, |uri| uri.as_str());
    one("REQUEST_URI", uri.as_bytes())?;

    let mut text = TextBuffer::default();
    one("SERVER_NAME", text.server_name(&head.uri, &head.headers, request.local))?;
    one("SERVER_ADDR", text.show(request.local.ip()))?;
    one("SERVER_PORT", text.show(request.local.port()))?;
    one("REMOTE_ADDR", text.show(request.remote.ip()))?;
    one("REMOTE_HOST", text.show(request.remote.ip()))?;
    one("REMOTE_PORT", text.show(request.remote.port()))?;

    if let Some(ty) = head.headers.get(header::CONTENT_TYPE) {
        one("CONTENT_TYPE", ty.as_bytes())?;
    }
    // A request without a body has no size either, unless it said so itself.
    let said = head.headers.contains_key(header::CONTENT_LENGTH);
    match request.body_size {
        Some(size) if size > 0 || said || head.method == Method::POST => {
            one("CONTENT_LENGTH", text.show(size))?;
        }
        _ => {}
    }
    fields(&head.headers, options, set)
}

/// Calls `set` with each field of the request that programs may see.
fn fields(
    headers: &HeaderMap,
    options: VariableOptions,
    mut set: impl FnMut(&[u8], &[&[u8]]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let connection: Vec<&str> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let mut variable = Vec::with_capacity(32);
    let mut parts: Vec<&[u8]> = Vec::new();
    for name in headers.keys() {
        let text = name.as_str();
        let hidden = is_hidden(name) && !(options.authorization && name == header::AUTHORIZATION);
        let named = connection.iter().any(|other| other.eq_ignore_ascii_case(text));
        let ambiguous = !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if hidden || named || ambiguous {
            continue;
        }
        variable.clear();
        variable.extend_from_slice(b"HTTP_");
        variable.extend(text.bytes().map(|byte| match byte {
            b'-' => b'_',
            other => other.to_ascii_uppercase(),
        }));
        let separator: &[u8] = if name == header::COOKIE { b"; " } else { b", " };
        parts.clear();
        for value in headers.get_all(name) {
            if !parts.is_empty() {
                parts.push(separator);
            }
            parts.push(value.as_bytes());
        }
        set(&variable, &parts)?;
    }
    Ok(())
}

/// Fields that are variables of their own, that are about the connection, or that
/// programs must not see.
fn is_hidden(name: &HeaderName) -> bool {
    const OTHERS: [&str; 6] =
        ["authorization", "content-length", "content-type", "expect", "http2-settings", "proxy"];
    is_of_the_connection(name) || OTHERS.contains(&name.as_str())
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        _ => "HTTP/1.1",
    }
}

/// Path and query; the target `*` has neither.
fn target(uri: &Uri) -> (&str, &str) {
    match uri.path() {
        "*" => ("", ""),
        path => (path, uri.query().unwrap_or_default()),
    }
}

/// Decodes the escapes of a path.
fn decoded(path: &str) -> Result<Vec<u8>, Failure> {
    let bad = |why: &str| Failure::new(FailureKind::BadRequest, format!("the path {path:?} {why}"));
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(bad("has a percent sign without two hexadecimal digits"));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &after[2..];
    }
    match bytes.contains(&0) {
        true => Err(bad("stands for a NUL, which no variable can hold")),
        false => Ok(bytes),
    }
}

/// A buffer for numbers and addresses as text.
#[derive(Default)]
struct TextBuffer(String);

impl TextBuffer {
    fn show(&mut self, value: impl std::fmt::Display) -> &[u8] {
        self.0.clear();
        // Writing to memory does not fail.
        let _ = write!(self.0, "{value}");
        self.0.as_bytes()
    }

    /// The name by which the client calls this server, or its address if that is no name.
    fn server_name(&mut self, uri: &Uri, headers: &HeaderMap, local: SocketAddr) -> &[u8] {
        let host = match uri.host() {
            Some(host) => Some(host),
            None => headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(without_port),
        };
        let fit = |host: &&str| {
            let fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
            !host.is_empty() && host.bytes().all(fit)
        };
        match host.filter(fit) {
            Some(host) => self.show(host),
            None => self.show(local.ip()),
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        // Colons in brackets are of an address.
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        for (path, bytes) in
            [("/", &b"/"[..]), ("/a%20b%2Fc", b"/a b/c"), ("/%c3%A4", b"/\xc3\xa4"), ("", b"")]
        {
            assert_eq!(decoded(path).unwrap(), bytes);
        }
        for bad in ["/%", "/%1", "/%g0", "/a%00b"] {
            assert_eq!(decoded(bad).unwrap_err().kind(), FailureKind::BadRequest);
        }
    }

    #[test]
    fn a_port_is_no_part_of_a_name() {
        for (host, name) in
            [("a.b:80", "a.b"), ("a.b", "a.b"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")]
        {
            assert_eq!(without_port(host), name);
        }
    }
}
