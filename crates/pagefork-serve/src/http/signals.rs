//! Signals that end the server or reopen its logs, without handlers: a handler could
//! run on the stack of a guest.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Waits for SIGTERM, SIGINT and SIGHUP.
///
/// To be made before the process has other threads: the signals are blocked in the calling
/// thread and in those that it starts from then on.
///
/// # Examples
///
/// ```
/// let signals = pagefork_serve::Signals::block()?;
/// // Then start a server, whose logs SIGHUP reopens, and which other signals stop.
/// # use nix::sys::signal::{Signal, raise};
/// # raise(Signal::SIGHUP)?;
/// while signals.wait()? == "SIGHUP" {
///     println!("reopen the logs");
/// #   raise(Signal::SIGTERM)?;
/// }
/// println!("stop the server");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals and opens a descriptor that tells of them.
    ///
    /// # Errors
    ///
    /// If the process may have no further descriptor.
    ///
    /// # Examples
    ///
    /// See [`Signals`].
    pub fn block() -> io::Result<Signals> {
        let mut set = SigSet::empty();
        set.add(Signal::SIGTERM);
        set.add(Signal::SIGINT);
        set.add(Signal::SIGHUP);
        set.thread_block()?;
        Ok(Signals(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for a signal; gives its name, such as `SIGHUP`.
    ///
    /// # Errors
    ///
    /// None that is known.
    ///
    /// # Examples
    ///
    /// See [`Signals`].
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
