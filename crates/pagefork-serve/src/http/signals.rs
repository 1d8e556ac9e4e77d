//! Signals that end the server or reopen its logs, without handlers: a handler would run on
//! whatever stack is there, a guest's included.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// SIGTERM, SIGINT and SIGHUP, waited for.
///
/// Made before the process has other threads: they are blocked in the calling
/// thread and in those that it starts from then on.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals and opens a descriptor that tells of them.
    ///
    /// # Errors
    ///
    /// If the process may have no further descriptor.
    pub fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.add(Signal::SIGHUP);
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for one of them; gives its name, such as `SIGHUP`.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn wait(&self) -> io::Result<&'static str> {
        loop {
            if let Some(found) = self.0.read_signal()? {
                let signal = i32::try_from(found.ssi_signo).ok().map(Signal::try_from);
                return Ok(match signal {
                    Some(Ok(signal)) => signal.as_str(),
                    _ => "a signal",
                });
            }
        }
    }
}
