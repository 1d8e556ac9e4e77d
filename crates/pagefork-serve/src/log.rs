//! The log, and the access log: a line a request.

use std::fmt;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderValue, Method, Uri, Version};

/// Bytes of the access log that are kept before they are written.
const BUFFER_MAX: usize = 32 * 1024;

/// Where lines go.
pub type Output = Box<dyn Write + Send + Sync>;

/// What a line of the access log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFormat {
    /// The Common Log Format, with the seconds that the request took and its id
    /// at the end.
    #[default]
    Common,
    /// An object in JSON.
    Json,
}

/// The log of what goes wrong and of what programs write to standard error.
pub(crate) struct Log(Mutex<Output>);

impl Log {
    pub(crate) fn new(output: Output) -> Log {
        Log(Mutex::new(output))
    }

    /// A line about a request.
    pub(crate) fn request(&self, id: &HeaderValue, text: &str) {
        self.line(&format!("[{}] {text}", String::from_utf8_lossy(id.as_bytes())));
    }

    pub(crate) fn line(&self, text: &str) {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop the server.
        let _ = output.write_all(format!("pagefork: {text}\n").as_bytes());
        let _ = output.flush();
    }
}

/// The access log. Lines are written when there are many, and when
/// [`AccessLog::flush`] is called from time to time.
pub(crate) struct AccessLog {
    format: AccessFormat,
    state: Mutex<AccessState>,
}

struct AccessState {
    buffer: Vec<u8>,
    output: Output,
    clock: Clock,
}

/// What a line tells.
pub(crate) struct Access<'a> {
    pub(crate) remote: &'a str,
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) version: Version,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) time: Duration,
    pub(crate) id: &'a HeaderValue,
}

impl AccessLog {
    pub(crate) fn new(format: AccessFormat, output: Output) -> AccessLog {
        let (buffer, clock) = (Vec::new(), Clock::default());
        AccessLog { format, state: Mutex::new(AccessState { buffer, output, clock }) }
    }

    pub(crate) fn write(&self, access: &Access<'_>) {
        let mut state = self.lock();
        let AccessState { buffer, clock, .. } = &mut *state;
        let Access { remote, method, version, status, sent, .. } = access;
        let uri = Escaped(access.uri);
        let id = String::from_utf8_lossy(access.id.as_bytes());
        let seconds = access.time.as_secs_f64();
        let now = SystemTime::now();
        // Writing to memory does not fail.
        let _ = match self.format {
            AccessFormat::Common => writeln!(
                buffer,
                "{remote} - - [{}] \"{method} {uri} {version:?}\" {status} {sent} {seconds:.6} {id}",
                clock.common(now),
            ),
            AccessFormat::Json => writeln!(
                buffer,
                "{{\"time\":\"{}\",\"remote\":\"{remote}\",\"method\":\"{method}\",\
                 \"uri\":\"{uri}\",\"version\":\"{version:?}\",\"status\":{status},\
                 \"sent\":{sent},\"seconds\":{seconds:.6},\"id\":\"{id}\"}}",
                clock.iso(now),
            ),
        };
        if state.buffer.len() >= BUFFER_MAX {
            state.flush();
        }
    }

    pub(crate) fn flush(&self) {
        self.lock().flush();
    }

    fn lock(&self) -> MutexGuard<'_, AccessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AccessState {
    fn flush(&mut self) {
        if !self.buffer.is_empty() {
            let _ = self.output.write_all(&self.buffer);
            let _ = self.output.flush();
            self.buffer.clear();
        }
    }
}

/// A target as it was sent, without what would end a quoted string.
struct Escaped<'a>(&'a Uri);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match self.0.path_and_query() {
            Some(target) => target.as_str(),
            None => self.0.authority().map_or("*", |authority| authority.as_str()),
        };
        let unfit = |c: char| c == '"' || c == '\\' || c.is_control();
        for part in target.split_inclusive(unfit) {
            let clean = part.strip_suffix(unfit).unwrap_or(part);
            f.write_str(clean)?;
            part[clean.len()..].bytes().try_for_each(|byte| write!(f, "%{byte:02X}"))?;
        }
        Ok(())
    }
}

/// The time as text, which changes once a second.
#[derive(Default)]
struct Clock {
    second: u64,
    text: String,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Clock {
    fn common(&mut self, now: SystemTime) -> &str {
        self.text(now, |date| {
            let month = MONTHS[date.month as usize - 1];
            let Date { year, day, hour, minute, second, .. } = date;
            format!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
        })
    }

    fn iso(&mut self, now: SystemTime) -> &str {
        self.text(now, |Date { year, month, day, hour, minute, second }| {
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
        })
    }

    fn text(&mut self, now: SystemTime, format: impl FnOnce(Date) -> String) -> &str {
        let second = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text = format(Date::new(second));
        }
        &self.text
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Date {
    /// The date of a second since 1970, in the Gregorian calendar.
    fn new(seconds: u64) -> Date {
        const DAYS_OF_400_YEARS: u64 = 146_097;
        let (days, rest) = (seconds / 86_400, seconds % 86_400);
        let leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let mut year = 1970 + days / DAYS_OF_400_YEARS * 400;
        let mut day = days % DAYS_OF_400_YEARS;
        while day >= 365 + u64::from(leap(year)) {
            day -= 365 + u64::from(leap(year));
            year += 1;
        }
        let february = 28 + u64::from(leap(year));
        let mut month = 1;
        for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Date { year, month, day: day + 1, hour, minute, second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (16_725_225_599, "2499-12-31T23:59:59Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(Clock::default().iso(time), text);
        }
        let time = UNIX_EPOCH + Duration::from_secs(951_782_400);
        assert_eq!(Clock::default().common(time), "29/Feb/2000:00:00:00 +0000");
    }

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
    }
}
