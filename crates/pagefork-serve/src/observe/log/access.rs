//! The access log: a line for each request.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Method, Uri, Version};

use crate::handler::failure::{FailureKind, Severity};
use crate::handler::lock::lock;
use crate::observe::log::time::Clock;
use crate::observe::log::{Health, Log, LogOutput, obeys};

/// Lines are written when they have this many bytes.
const BUFFER_MAX: usize = 32 * 1024;

/// Bytes that are buffered while writing fails; further lines are lost.
const KEPT_MAX: usize = 1024 * 1024;

/// The format of the access log's lines. [`LogOutput`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// The Common Log Format, and at the end the seconds that the request took, its id, and
    /// its outcome: `-`, the kind of failure that it was answered with, or that kind after
    /// `broken:` if the response is not complete.
    #[default]
    Common,
    /// An object in JSON.
    Json,
}

/// The access log. Lines are buffered; [`AccessLog::flush`] is called from time to time.
pub(crate) struct AccessLog {
    format: AccessFormat,
    state: Mutex<AccessState>,
    /// Where a failure to write lines is reported.
    log: Arc<Log>,
}

struct AccessState {
    buffer: Vec<u8>,
    output: LogOutput,
    clock: Clock,
    health: Health,
    /// Lines that are lost since the last one that was written.
    lost: u64,
}

/// The contents of a line.
pub(crate) struct AccessRecord<'a> {
    pub(crate) remote: &'a str,
    /// `None` if the head is malformed.
    pub(crate) request: Option<(&'a Method, &'a Uri, Version)>,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) time: Duration,
    pub(crate) id: &'a HeaderValue,
    pub(crate) outcome: RequestOutcome,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// Its handler's response was complete.
    Complete,
    /// The response says why there is no other.
    Refused(FailureKind),
    /// There is no response, or only the beginning of one.
    Broken(FailureKind),
}

impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestOutcome::Complete => f.write_str("-"),
            RequestOutcome::Refused(kind) => f.write_str(kind.name()),
            RequestOutcome::Broken(kind) => write!(f, "broken:{}", kind.name()),
        }
    }
}

impl AccessLog {
    pub(crate) fn new(format: AccessFormat, output: LogOutput, log: Arc<Log>) -> AccessLog {
        let (buffer, clock, health) = (Vec::new(), Clock::default(), Health::default());
        let state = AccessState { buffer, output, clock, health, lost: 0 };
        AccessLog { format, state: Mutex::new(state), log }
    }

    pub(crate) fn write(&self, access: &AccessRecord<'_>) {
        let mut state = lock(&self.state);
        if state.buffer.len() >= KEPT_MAX {
            state.lost += 1;
            return;
        }
        let AccessState { buffer, clock, .. } = &mut *state;
        self.format.line(buffer, clock, access);
        if state.buffer.len() >= BUFFER_MAX && state.health.0.is_none() {
            self.flush_state(&mut state);
        }
    }

    /// Writes the buffered lines.
    pub(crate) fn flush(&self) {
        self.flush_state(&mut lock(&self.state));
    }

    /// Opens the log's file again by its name.
    pub(crate) fn reopen(&self) {
        let mut state = lock(&self.state);
        self.flush_state(&mut state);
        if let Err(error) = state.output.reopen() {
            self.log.error(&format!("the access log goes on in its old file: {error}"));
        }
    }

    fn flush_state(&self, state: &mut AccessState) {
        let AccessState { buffer, output, health, lost, .. } = state;
        if buffer.is_empty() {
            return;
        }
        let result = output.write_from(buffer);
        let changed = health.note(&result);
        match result {
            Err(error) if changed => self.log.error(&format!(
                "the access log cannot be written: {error}; up to {KEPT_MAX} bytes of it are \
                 kept, further lines are lost"
            )),
            Err(_) => {}
            Ok(()) if changed => {
                let lost = std::mem::take(lost);
                let text = format!("the access log is written again; {lost} lines are lost");
                self.log.write(Severity::Warning, &text);
            }
            Ok(()) => {}
        }
    }
}

impl AccessFormat {
    fn line(self, buffer: &mut Vec<u8>, clock: &mut Clock, access: &AccessRecord<'_>) {
        use std::io::Write;
        let AccessRecord { remote, status, sent, outcome, .. } = access;
        let id = String::from_utf8_lossy(access.id.as_bytes());
        let seconds = access.time.as_secs_f64();
        let now = SystemTime::now();
        // Writing to memory does not fail.
        let _ = match self {
            AccessFormat::Common => {
                let request = match access.request {
                    Some((method, uri, version)) => {
                        Cow::Owned(format!("{method} {} {version:?}", Escaped(uri)))
                    }
                    None => Cow::Borrowed("-"),
                };
                writeln!(
                    buffer,
                    "{remote} - - [{}] \"{request}\" {status} {sent} {seconds:.6} {id} {outcome}",
                    clock.common(now),
                )
            }
            AccessFormat::Json => {
                let request = access.request.map_or(String::new(), |(method, uri, version)| {
                    let uri = Escaped(uri);
                    format!(
                        ",\"method\":\"{method}\",\"uri\":\"{uri}\",\"version\":\"{version:?}\""
                    )
                });
                let (failure, broken) = match outcome {
                    RequestOutcome::Complete => ("null".to_owned(), false),
                    RequestOutcome::Refused(kind) => (format!("\"{}\"", kind.name()), false),
                    RequestOutcome::Broken(kind) => (format!("\"{}\"", kind.name()), true),
                };
                writeln!(
                    buffer,
                    "{{\"time\":\"{}\",\"remote\":\"{remote}\"{request},\"status\":{status},\
                     \"sent\":{sent},\"seconds\":{seconds:.6},\"id\":\"{id}\",\
                     \"failure\":{failure},\"broken\":{broken}}}",
                    clock.iso(now),
                )
            }
        };
    }
}

/// A target as it was sent, with characters escaped that would end a quoted string or that a
/// terminal would obey.
struct Escaped<'a>(&'a Uri);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.0.path_and_query() {
            Some(target) => target.as_str(),
            None => self.0.authority().map_or("*", |authority| authority.as_str()),
        };
        let unfit = |c: char| c == '"' || c == '\\' || obeys(c);
        for part in target.split_inclusive(unfit) {
            let clean = part.strip_suffix(unfit).unwrap_or(part);
            f.write_str(clean)?;
            part[clean.len()..].bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_cannot_end_the_string_it_is_in() {
        let uri: Uri = r#"/a"b?c\d"#.parse().unwrap_or_else(|_| Uri::from_static("/a%22b?c%5Cd"));
        let text = Escaped(&uri).to_string();
        assert!(!text.contains(['"', '\\']), "{text}");
    }

    #[test]
    fn a_terminal_that_shows_a_target_does_not_obey_it() {
        let uri: Uri = "/a\u{9b}31m?\u{85}\u{e4}".parse().unwrap();
        assert_eq!(Escaped(&uri).to_string(), "/a%C2%9B31m?%C2%85\u{e4}");
        // Nor does it show the rest of the line in another order.
        let uri: Uri = "/\u{202e}a\u{2028}".parse().unwrap();
        assert_eq!(Escaped(&uri).to_string(), "/%E2%80%AEa%E2%80%A8");
    }
}
