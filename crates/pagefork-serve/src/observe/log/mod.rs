//! The log, and the access log with its line for each request.

mod access;
pub(crate) mod time;

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use http::HeaderValue;

use crate::handler::failure::Severity;
use crate::handler::lock::lock;

pub use access::AccessFormat;
pub(crate) use access::{AccessLog, AccessRecord, RequestOutcome};

/// Bytes of a record's text; the rest is left out.
const TEXT_MAX: usize = 8 * 1024;

/// Where the lines of a log go: a file, or any writer.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{AccessFormat, LogOutput, ServerConfig};
///
/// let mut config = ServerConfig::new(([127, 0, 0, 1], 0).into());
/// # let directory = std::env::temp_dir();
/// config.log(LogOutput::file(directory.join("pagefork-doc.log"))?);
/// config.access_log(AccessFormat::Json, Box::new(std::io::stdout()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct LogOutput {
    writer: Box<dyn Write + Send + Sync>,
    /// The file's name, if there is one, to open it again.
    path: Option<PathBuf>,
}

impl LogOutput {
    /// Appends to a file, which is made if there is none. A server that reopens its logs
    /// goes on in the file that has this name then.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    ///
    /// # Examples
    ///
    /// See [`LogOutput`].
    pub fn file(path: impl AsRef<Path>) -> io::Result<LogOutput> {
        let path = path.as_ref();
        Ok(LogOutput { writer: Box::new(append(path)?), path: Some(path.to_owned()) })
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.writer = Box::new(append(path)?);
        }
        Ok(())
    }

    /// Writes bytes, and removes those that were written.
    fn write_from(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == bytes.len() {
                break self.writer.flush();
            }
            match self.writer.write(&bytes[written..]) {
                Ok(0) => break Err(ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        bytes.drain(..written);
        result
    }
}

impl<W: Write + Send + Sync + 'static> From<Box<W>> for LogOutput {
    fn from(writer: Box<W>) -> LogOutput {
        LogOutput { writer, path: None }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Whether an output could be written lately.
#[derive(Default)]
struct Health(Option<ErrorKind>);

impl Health {
    /// Notes how a write ended; says whether that is news.
    fn note(&mut self, result: &io::Result<()>) -> bool {
        let now = result.as_ref().err().map(io::Error::kind);
        std::mem::replace(&mut self.0, now) != now
    }
}

/// A record of the log: one line with time, severity and text.
///
/// Characters that a terminal would obey are escaped. A text of several lines becomes one line,
/// with ` | ` between its parts. Long texts are cut.
///
/// # Examples
///
/// ```
/// use pagefork_serve::{Severity, record};
///
/// let line = record(Severity::Info, "two\nlines \u{1b}[31m");
/// assert!(line.ends_with("Z info two | lines \\u{1b}[31m\n"));
/// ```
pub fn record(severity: Severity, text: &str) -> String {
    let mut line = time::precise(SystemTime::now());
    let _ = write!(line, " {} ", severity.name());
    let start = line.len();
    for (index, part) in text.lines().enumerate() {
        if index > 0 {
            line.push_str(" | ");
        }
        for c in part.trim_start().chars() {
            if line.len() - start >= TEXT_MAX {
                line.push_str("... (the rest is left out)\n");
                return line;
            }
            match obeys(c) {
                true => line.extend(c.escape_default()),
                false => line.push(c),
            }
        }
    }
    line.push('\n');
    line
}

/// Whether a terminal or a reader may take a character for a command: controls, ends of lines,
/// and what changes the direction of text.
fn obeys(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The log of what goes wrong and of what programs write to standard error.
pub(crate) struct Log(Mutex<LogState>);

struct LogState {
    output: LogOutput,
    health: Health,
    /// Whether only the beginning of the last record could be written.
    is_torn: bool,
}

impl Log {
    pub(crate) fn new(output: LogOutput) -> Log {
        Log(Mutex::new(LogState { output, health: Health::default(), is_torn: false }))
    }

    /// Writes a record about a request.
    pub(crate) fn request(&self, severity: Severity, id: &HeaderValue, text: &str) {
        self.write(severity, &format!("[{}] {text}", String::from_utf8_lossy(id.as_bytes())));
    }

    /// Writes a record about a failure of the server itself.
    pub(crate) fn error(&self, text: &str) {
        self.write(Severity::Error, text);
    }

    /// Opens the log's file again by its name.
    pub(crate) fn reopen(&self) {
        let mut state = lock(&self.0);
        let reopened = state.output.reopen();
        drop(state);
        if let Err(error) = reopened {
            self.error(&format!("the log goes on in its old file: {error}"));
        }
    }

    pub(crate) fn write(&self, severity: Severity, text: &str) {
        let mut line = record(severity, text);
        let mut state = lock(&self.0);
        let LogState { output, health, is_torn } = &mut *state;
        if *is_torn {
            line.insert(0, '\n');
        }
        let size = line.len();
        let mut bytes = line.into_bytes();
        let result = output.write_from(&mut bytes);
        if bytes.len() < size {
            *is_torn = !bytes.is_empty();
        }
        // Only for a file: any other log is standard error itself.
        if health.note(&result)
            && output.path.is_some()
            && let Err(error) = result
        {
            let text = format!("the log cannot be written: {error}; its records are lost");
            let _ = io::stderr().write_all(record(Severity::Error, &text).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_record_is_one_line_that_commands_nothing() {
        let line = record(Severity::Error, "a\r\n  b\u{9b}31m\u{202e}c\u{e4}\td\n");
        let (_, text) = line.split_once(" error ").unwrap();
        assert_eq!(text, "a | b\\u{9b}31m\\u{202e}c\u{e4}\\td\n");
        let time = line.split(' ').next().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
    }

    #[test]
    fn a_record_is_bounded() {
        let line = record(Severity::Error, &"\u{1b}".repeat(100_000));
        assert!(line.len() < TEXT_MAX + 200 && line.ends_with("left out)\n"));
    }

    #[test]
    fn a_record_begins_a_line_after_one_that_broke_off() {
        /// A disk that is full from its tenth byte on, until it is not.
        struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);
        impl Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let (written, size_max) = &mut *self.0.lock().unwrap();
                let count = bytes.len().min(*size_max - written.len());
                written.extend(&bytes[..count]);
                if count == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(count) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let disk = Arc::new(Mutex::new((Vec::new(), 10)));
        let log = Log::new(Box::new(Disk(Arc::clone(&disk))).into());
        log.error("breaks off");
        log.error("is lost");
        disk.lock().unwrap().1 = 1000;
        log.error("is whole");
        log.error("too");
        let text = String::from_utf8(disk.lock().unwrap().0.clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!((lines.len(), lines[0].len()), (3, 10), "{text}");
        assert!(lines[1].ends_with("Z error is whole") && lines[2].ends_with("Z error too"));
    }

    #[test]
    fn what_was_written_is_not_written_again() {
        /// Takes three bytes a time, and fails now and then.
        struct Full(u32);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 % 3 {
                    0 => Err(ErrorKind::StorageFull.into()),
                    _ => Ok(bytes.len().min(3)),
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut output = LogOutput::from(Box::new(Full(0)));
        let mut bytes = b"abcdefghij".to_vec();
        assert!(output.write_from(&mut bytes).is_err());
        assert_eq!(bytes, b"ghij");
        assert!(output.write_from(&mut bytes).is_ok() && bytes.is_empty());
    }
}
