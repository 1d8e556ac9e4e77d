//! How calls wait, and what ends their waits.
//!
//! No call blocks in the host where an interrupt, a timeout or a request to suspend the guest
//! cannot reach it. Host calls do not wait; only `poll` does, for a short time. A large transfer
//! is split into parts.
//!
//! A wait whose guest is to be suspended is *put off*: the call ends with nothing consumed and
//! nothing written, the guest is suspended before it, and it is made again later.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagefork::Interruption;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno as Host, retry_on_intr};

use crate::base::errno::{Errno, Result};

/// Most bytes that one host call transfers. Between calls, the guest can be stopped.
pub(crate) const PART_SIZE: usize = 16 << 20;

/// How long to wait between two checks whether the guest must stop.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What the engine says of one call of a guest: when it must stop, and whether the guest can be
/// suspended before the call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineStops<'a> {
    pub(crate) interruption: Interruption<'a>,
    pub(crate) can_suspend: bool,
}

/// Tells whether the guest must stop what it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopCheck<'a> {
    engine: EngineStops<'a>,
    embedder: &'a InterruptCheck,
}

impl StopCheck<'_> {
    /// How long to wait before the next check; `None` if nothing can stop the guest.
    pub(crate) fn interval(self) -> Option<Duration> {
        let is_possible = self.engine.interruption.is_possible() || self.embedder.check.is_some();
        is_possible.then_some(CHECK_INTERVAL)
    }

    /// Fails with [`Errno::Intr`] if the guest must stop.
    pub(crate) fn check(self) -> Result {
        let asks = |check: &Arc<dyn Fn() -> bool + Send + Sync>| check();
        match self.engine.interruption.is_requested()
            || self.embedder.check.as_ref().is_some_and(asks)
        {
            true => Err(Errno::Intr),
            false => Ok(()),
        }
    }

    /// Fails if a call that waits, and has done nothing yet, must not go on: because the guest
    /// must stop, or is to be suspended before the call.
    pub(crate) fn check_wait(self) -> Result {
        self.check()?;
        let EngineStops { interruption, can_suspend } = self.engine;
        match can_suspend && interruption.is_suspension_requested() {
            true => Err(self.put_off()),
            false => Ok(()),
        }
    }

    /// Notes that the call is to be made later, and returns the error with which it ends now.
    pub(crate) fn put_off(self) -> Errno {
        self.embedder.is_put_off.store(true, Ordering::Relaxed);
        Errno::Again
    }
}

/// A function of the embedder that tells whether a guest that waits must stop, and whether the
/// last call was put off.
#[derive(Default)]
pub(crate) struct InterruptCheck {
    check: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    is_put_off: AtomicBool,
}

impl InterruptCheck {
    pub(crate) fn new(interrupted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        InterruptCheck { check: Some(Arc::new(interrupted)), is_put_off: AtomicBool::new(false) }
    }

    /// The check of one call: this one, and that of the engine.
    pub(crate) fn and<'a>(&'a self, engine: EngineStops<'a>) -> StopCheck<'a> {
        StopCheck { engine, embedder: self }
    }

    /// Whether the call that is made was [put off](StopCheck::put_off).
    pub(crate) fn is_put_off(&self) -> bool {
        self.is_put_off.load(Ordering::Relaxed)
    }

    /// Whether a call was [put off](StopCheck::put_off) since this was last asked. One that has
    /// transferred something before ends with that, and is not made again.
    pub(crate) fn take_put_off(&mut self) -> bool {
        std::mem::take(self.is_put_off.get_mut())
    }
}

impl fmt::Debug for InterruptCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InterruptCheck({})", if self.check.is_some() { "set" } else { "none" })
    }
}

/// What a call does while it has nothing to read, or no room to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocking<'a> {
    /// Whether it waits. If not, it fails with [`Errno::Again`].
    pub(crate) waits: bool,
    pub(crate) stop: StopCheck<'a>,
}

impl Blocking<'_> {
    /// Calls `ready` until it returns `true`. It may wait for at most the time it is given.
    pub(crate) fn wait_until(
        self,
        mut ready: impl FnMut(Option<Duration>) -> Result<bool>,
    ) -> Result {
        if !self.waits {
            return if ready(Some(Duration::ZERO))? { Ok(()) } else { Err(Errno::Again) };
        }
        while !ready(self.stop.interval())? {
            self.stop.check_wait()?;
        }
        Ok(())
    }

    /// Waits until a host descriptor is ready for one of `wanted`, has failed, or is at its
    /// end.
    pub(crate) fn wait_for(self, host: BorrowedFd<'_>, wanted: PollFlags) -> Result {
        self.wait_until(|timeout| {
            let mut fds = [PollFd::from_borrowed_fd(host, wanted)];
            let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
            match poll(&mut fds, timeout.as_ref()) {
                Ok(count) => Ok(count > 0),
                Err(Host::INTR) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Repeats a host call that does not block until it has an effect.
    pub(crate) fn until_ready<R>(
        self,
        host: BorrowedFd<'_>,
        wanted: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<R>,
    ) -> Result<R> {
        loop {
            match retry_on_intr(&mut call) {
                Err(Host::AGAIN) => {}
                result => return Ok(result?),
            }
            self.wait_for(host, wanted)?;
            // Another process that shares the descriptor may take the data each time.
            if self.waits {
                self.stop.check_wait()?;
            }
        }
    }

    /// Writes all slices by a host call that does not block, or as much as there is room for
    /// if this call does not wait.
    pub(crate) fn write_all(
        self,
        host: BorrowedFd<'_>,
        slices: &mut [IoSlice<'_>],
        mut write: impl FnMut(&[IoSlice<'_>]) -> rustix::io::Result<usize>,
    ) -> Result<usize> {
        write_parts(slices, |part, total| {
            if total > 0 {
                self.stop.check_wait()?;
            }
            self.until_ready(host, PollFlags::OUT, || write(part))
        })
    }
}

/// Writes slices part by part, until all are written or `write` writes nothing. `write` also
/// gets the number of bytes written before. Returns their number at the end.
///
/// An error after the first bytes is not reported: the next call finds it again.
pub(crate) fn write_parts(
    mut slices: &mut [IoSlice<'_>],
    mut write: impl FnMut(&[IoSlice<'_>], usize) -> Result<usize>,
) -> Result<usize> {
    let mut total = 0;
    while !slices.is_empty() {
        match with_part(slices, PART_SIZE, |part| write(part, total)) {
            Ok(0) => break,
            Ok(size) => {
                total += size;
                IoSlice::advance_slices(&mut slices, size);
            }
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(total)
}

/// Calls `f` with the first of the slices: at most `size_max` bytes, and at least one slice.
pub(crate) fn with_part<R>(
    slices: &[IoSlice<'_>],
    size_max: usize,
    f: impl FnOnce(&[IoSlice<'_>]) -> R,
) -> R {
    let mut size = 0;
    let fits = |slice: &&IoSlice<'_>| {
        size += slice.len();
        size <= size_max
    };
    match slices.iter().take_while(fits).count() {
        0 if !slices.is_empty() => f(&[IoSlice::new(&slices[0][..size_max])]),
        count => f(&slices[..count]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_slices_are_as_large_as_fits() {
        let slices = [b"ab", b"cd", b"ef"].map(|bytes| IoSlice::new(bytes));
        let part = |size_max| {
            with_part(&slices, size_max, |part| part.iter().flat_map(|s| s.to_vec()).collect())
        };
        let expected = ["a", "ab", "ab", "abcd", "abcd", "abcdef", "abcdef"];
        for (size_max, expected) in (1..).zip(expected) {
            let bytes: Vec<u8> = part(size_max);
            assert_eq!(bytes, expected.as_bytes());
        }
    }
}
