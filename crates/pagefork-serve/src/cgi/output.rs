//! The output of a CGI program, which becomes a response.

use std::mem;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::cgi::is_of_the_connection;
use crate::handler::failure::{Failure, FailureKind, GivenUp};
use crate::handler::response::{ResponseWriter, number};

/// Largest head of a program's response, in bytes.
const HEAD_MAX: usize = 64 * 1024;

/// Most fields in the head.
const FIELDS_MAX: usize = 256;

/// The standard output of a CGI program: a head, and then a body that is sent as it comes.
///
/// # Examples
///
/// ```
/// use pagefork_serve::cgi::{CgiOutput, Redirect};
/// use pagefork_serve::{Failure, Handler, Request, ResponseWriter};
///
/// /// Answers each request like a CGI program that writes this.
/// struct Script(&'static str);
///
/// impl Handler for Script {
///     fn handle(&self, _: Request, response: &ResponseWriter) -> Result<(), Failure> {
///         let mut output = CgiOutput::new(response.clone());
///         // A write fails when the client has gone.
///         let _ = output.write(self.0.as_bytes());
///         match output.end()? {
///             Some(Redirect { target }) => println!("not followed here: a redirect to {target}"),
///             None => {}
///         }
///         Ok(())
///     }
/// }
///
/// let _handler = Script("Content-Type: text/plain\n\nhello");
/// ```
#[derive(Debug)]
pub struct CgiOutput {
    response: ResponseWriter,
    stage: OutputStage,
}

#[derive(Debug)]
enum OutputStage {
    /// The part of the head that has come.
    Head(Vec<u8>),
    Body,
    /// A redirect to a path of this server, if no body follows.
    Redirect(Redirect),
    Bad(Failure),
}

/// A redirect of the request to another path of the program.
///
/// # Examples
///
/// See [`CgiOutput`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Path and query.
    pub target: String,
}

impl CgiOutput {
    /// Sends a program's output to `response`.
    ///
    /// # Examples
    ///
    /// See [`CgiOutput`].
    pub fn new(response: ResponseWriter) -> CgiOutput {
        CgiOutput { response, stage: OutputStage::Head(Vec::new()) }
    }

    /// Takes a part of the output. [`CgiOutput::end`] reports output that is malformed.
    ///
    /// # Errors
    ///
    /// If the request was given up.
    ///
    /// # Examples
    ///
    /// See [`CgiOutput`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), GivenUp> {
        match &mut self.stage {
            OutputStage::Body => self.response.write(bytes),
            OutputStage::Bad(_) => Ok(()),
            OutputStage::Redirect(_) => {
                if !bytes.is_empty() {
                    self.stage = bad("a redirect to a path of this server has no body");
                }
                Ok(())
            }
            OutputStage::Head(head) => {
                // What came before cannot hold the end, but for its last bytes.
                let from = head.len().saturating_sub(3);
                // However much is written, no more is copied than a head may have.
                let room = (HEAD_MAX + 1).saturating_sub(head.len()).min(bytes.len());
                let (bytes, rest) = bytes.split_at(room);
                head.extend_from_slice(bytes);
                let Some(end) = end_of_head(head, from) else {
                    if head.len() > HEAD_MAX {
                        self.stage = bad(&format!("its head is longer than {HEAD_MAX} bytes"));
                    }
                    return Ok(());
                };
                let head = mem::take(head);
                self.stage = match parse(&head[..end]) {
                    Err(stage) => stage,
                    Ok((status, headers)) => {
                        self.response.start(status, headers);
                        OutputStage::Body
                    }
                };
                let body = [&head[end..], rest];
                body.into_iter()
                    .filter(|part| !part.is_empty())
                    .try_for_each(|part| self.write(part))
            }
        }
    }

    /// Ends the output. Gives the redirect, if there is one.
    ///
    /// # Errors
    ///
    /// If there is no response, or a malformed one.
    ///
    /// # Examples
    ///
    /// See [`CgiOutput`].
    pub fn end(&mut self) -> Result<Option<Redirect>, Failure> {
        match mem::replace(&mut self.stage, OutputStage::Body) {
            OutputStage::Body => Ok(None),
            OutputStage::Redirect(redirect) => Ok(Some(redirect)),
            OutputStage::Bad(failure) => Err(failure),
            OutputStage::Head(head) if head.is_empty() => {
                Err(Failure::new(FailureKind::NoResponse, "it wrote nothing to standard output"))
            }
            OutputStage::Head(head) => Err(match parse(&head) {
                Err(OutputStage::Bad(failure)) => failure,
                _ => Failure::new(
                    FailureKind::NoResponse,
                    "the head of its response ends without an empty line",
                ),
            }),
        }
    }
}

fn bad(why: &str) -> OutputStage {
    OutputStage::Bad(Failure::new(FailureKind::BadResponse, why))
}

/// The end of the head, after its empty line. The search begins at `from`.
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    let mut line = match from {
        0 => 0,
        // The line that is under way at `from`.
        from => bytes[..from].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
    };
    while let Some(length) = bytes[line..].iter().position(|byte| *byte == b'\n') {
        let end = line + length + 1;
        if matches!(&bytes[line..end], b"\n" | b"\r\n") {
            return Some(end);
        }
        line = end;
    }
    None
}

/// Reads a head. If it begins no response, gives the stage that follows.
fn parse(head: &[u8]) -> Result<(StatusCode, HeaderMap), OutputStage> {
    let (mut status, mut location, mut typed) = (None, None, false);
    let mut headers = HeaderMap::with_capacity(8);
    let mut count = 0;
    for line in head.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        count += 1;
        if count > FIELDS_MAX {
            return Err(bad(&format!("its head has more than {FIELDS_MAX} fields")));
        }
        let (name, value) = field(line, count == 1)?;
        match &name {
            _ if name == "status" => {
                if status.replace(status_code(&value)?).is_some() {
                    return Err(bad("it has two fields `Status`"));
                }
            }
            &header::LOCATION => {
                if location.replace(value).is_some() {
                    return Err(bad("it has two fields `Location`"));
                }
            }
            &header::CONTENT_TYPE | &header::CONTENT_LENGTH => {
                if name == header::CONTENT_LENGTH && number(&value).is_none() {
                    return Err(bad("its `Content-Length` is no number"));
                }
                typed |= name == header::CONTENT_TYPE;
                if headers.insert(&name, value).is_some() {
                    return Err(bad(&format!("it has two fields `{name}`")));
                }
            }
            name if is_of_the_connection(name) => {}
            _ => {
                headers.append(name, value);
            }
        }
    }
    let Some(location) = location else {
        if status.is_none() && !typed {
            return Err(bad("its head has neither `Content-Type` nor `Location` nor `Status`"));
        }
        return Ok((status.unwrap_or(StatusCode::OK), headers));
    };
    let local = location.as_bytes().starts_with(b"/") && !location.as_bytes().starts_with(b"//");
    if local && status.is_none() && count == 1 {
        let target = location.to_str().map_err(|_| bad("its `Location` is no path"))?;
        return Err(OutputStage::Redirect(Redirect { target: target.to_owned() }));
    }
    headers.insert(header::LOCATION, location);
    Ok((status.unwrap_or(StatusCode::FOUND), headers))
}

/// A line of a head.
fn field(line: &[u8], first: bool) -> Result<(HeaderName, HeaderValue), OutputStage> {
    let shown = || {
        let start = &line[..line.len().min(80)];
        String::from_utf8_lossy(start).escape_debug().to_string()
    };
    if first && line.starts_with(b"HTTP/") {
        return Err(bad(
            "it begins with a status line (`HTTP/...`), as scripts with non-parsed headers do, \
             which are not supported: write `Status: 200` instead",
        ));
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Err(bad(&format!("a line of its head has no colon: \"{}\"", shown())));
    };
    let name = HeaderName::from_bytes(&line[..colon])
        .map_err(|_| bad(&format!("the name of a field is malformed: \"{}\"", shown())))?;
    // Refuses everything by which a field could become two.
    let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii())
        .map_err(|_| bad(&format!("the value of a field is malformed: \"{}\"", shown())))?;
    Ok((name, value))
}

/// Reads three digits, and perhaps words.
fn status_code(value: &HeaderValue) -> Result<StatusCode, OutputStage> {
    let text = value.as_bytes();
    let digits = text.get(..3).filter(|_| matches!(text.get(3), None | Some(b' ')));
    let code = digits.and_then(|digits| StatusCode::from_bytes(digits).ok());
    code.filter(|code| (200..600).contains(&code.as_u16()))
        .ok_or_else(|| bad("its `Status` is none: three digits from 200 to 599, and perhaps words"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_after_its_empty_line() {
        for (text, end) in [
            ("a: b\n\nc", Some(6)),
            ("a: b\r\n\r\nc", Some(8)),
            ("a: b\r\n\nc", Some(7)),
            ("\n", Some(1)),
            ("a: b\n", None),
            ("a: b\n\r", None),
            ("", None),
        ] {
            assert_eq!(end_of_head(text.as_bytes(), 0), end, "{text:?}");
            // However it is cut into pieces.
            for cut in 0..text.len() {
                let from = cut.saturating_sub(3);
                if end_of_head(&text.as_bytes()[..cut], 0).is_none() {
                    assert_eq!(end_of_head(text.as_bytes(), from), end, "{text:?} cut at {cut}");
                }
            }
        }
    }

    fn failure(head: &str) -> String {
        match parse(head.as_bytes()) {
            Err(OutputStage::Bad(failure)) => failure.detail().to_owned(),
            other => panic!("{head:?} is {other:?}"),
        }
    }

    #[test]
    fn heads_are_responses() {
        let status =
            |head: &str| parse(head.as_bytes()).map(|(status, _)| status.as_u16()).unwrap();
        assert_eq!(status("Content-Type: text/plain\n\n"), 200);
        assert_eq!(status("Status: 404 Not Found\n\n"), 404);
        assert_eq!(status("Location: http://a/b\n\n"), 302);
        assert_eq!(status("Status: 301\nLocation: http://a/b\n\n"), 301);
        assert_eq!(status("Status: 303 See Other\nLocation: /b\n\n"), 303);
        assert_eq!(status("Location: //other/b\n\n"), 302);
        assert!(matches!(
            parse(b"Location: /b?c\n\n"),
            Err(OutputStage::Redirect(Redirect { target })) if target == "/b?c"
        ));
    }

    #[test]
    fn fields_of_the_connection_are_dropped_and_others_kept() {
        let head = b"Status: 200\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: close\r\n\
                     Transfer-Encoding: chunked\r\nX-Other:  spaced \r\n\r\n";
        let (_, headers) = parse(head).unwrap();
        assert_eq!(headers.get_all("set-cookie").iter().count(), 2);
        assert_eq!(headers["x-other"], "spaced");
        assert!(!headers.contains_key("connection") && !headers.contains_key("transfer-encoding"));
        assert!(!headers.contains_key("status"));
    }

    #[test]
    fn malformed_heads_are_named() {
        for (head, expected) in [
            ("X-Other: 1\n\n", "neither"),
            ("HTTP/1.1 200 OK\n\n", "non-parsed"),
            ("Hello\n\n", "no colon"),
            ("a b: c\n\n", "name of a field"),
            (": c\n\n", "name of a field"),
            ("Content-Type: a\rX: b\n\n", "value of a field"),
            ("Content-Type: a\0\n\n", "value of a field"),
            ("Status: 99\n\n", "three digits"),
            ("Status: 100\n\n", "three digits"),
            ("Status: 2000\n\n", "three digits"),
            ("Status: 200\nStatus: 200\n\n", "two fields"),
            ("Content-Type: a\nContent-Type: b\n\n", "two fields"),
            ("Location: /a\nLocation: /b\n\n", "two fields"),
            ("Content-Type: a\nContent-Length: x\n\n", "no number"),
            ("Content-Type: a\nContent-Length: +5\n\n", "no number"),
            ("Content-Type: a\nContent-Length:\n\n", "no number"),
            (&format!("Status: 200\n{}\n", "a: b\n".repeat(256)), "more than"),
        ] {
            assert!(failure(head).contains(expected), "{head:?}: {}", failure(head));
        }
    }
}
