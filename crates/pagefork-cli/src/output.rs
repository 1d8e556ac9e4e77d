//! Standard output and standard error.

use std::fmt;
use std::io::{ErrorKind, Write};

/// Writes to standard output. A reader that is gone is no error: it has seen what it wanted.
///
/// # Errors
/// Why it cannot be written, for instance to a full disk.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), String> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes a line of the command's own to standard error. A failure is ignored: there is no
/// other place to report it, and the exit code still tells the outcome.
pub(crate) fn say(text: impl fmt::Display) {
    line(format_args!("pagefork: {text}"));
}

/// As [`say`], without the command's name.
pub(crate) fn line(text: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
