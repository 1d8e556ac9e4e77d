//! How calls wait, and what ends their waits.
//!
//! No call blocks in the host where an interrupt or a timeout does not reach it: the host's
//! descriptors are asked without waiting, and what waits is `poll`, for a moment at a time.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pagefork::Interruption;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno as Host, retry_on_intr};

use crate::abi::Errno;

/// What may want a guest back that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch<'a> {
    engine: Interruption<'a>,
    embedder: Option<&'a InterruptCheck>,
}

impl<'a> Watch<'a> {
    /// How long to wait between two questions.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

    /// Nothing ever wants the guest back.
    #[cfg(test)]
    pub(crate) const NONE: Self = Watch { engine: Interruption::NEVER, embedder: None };

    pub(crate) fn new(engine: Interruption<'a>, embedder: Option<&'a InterruptCheck>) -> Self {
        Watch { engine, embedder }
    }

    /// How long to wait before the next question; `None` if the answer cannot change.
    pub(crate) fn interval(self) -> Option<Duration> {
        (self.engine.is_possible() || self.embedder.is_some()).then_some(Self::INTERVAL)
    }

    /// Fails with [`Errno::Intr`] if the guest is to stop waiting.
    pub(crate) fn check(self) -> Result<(), Errno> {
        match self.engine.is_requested() || self.embedder.is_some_and(|check| check.0()) {
            true => Err(Errno::Intr),
            false => Ok(()),
        }
    }
}

/// Asks the embedder whether a guest that waits is to stop waiting.
#[derive(Clone)]
pub(crate) struct InterruptCheck(Arc<dyn Fn() -> bool + Send + Sync>);

impl InterruptCheck {
    pub(crate) fn new(interrupted: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        InterruptCheck(Arc::new(interrupted))
    }
}

impl fmt::Debug for InterruptCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InterruptCheck")
    }
}

/// What a call does while there is nothing for it to do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocking<'a> {
    /// Fail with [`Errno::Again`].
    Never,
    /// Wait, unless the guest is wanted back.
    Until(Watch<'a>),
}

impl<'a> Blocking<'a> {
    pub(crate) fn new(nonblock: bool, watch: Watch<'a>) -> Self {
        if nonblock { Blocking::Never } else { Blocking::Until(watch) }
    }

    /// Calls `ready`, which waits for at most the time it is given, until it
    /// says so.
    pub(crate) fn wait_until(
        self,
        mut ready: impl FnMut(Option<Duration>) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        match self {
            Blocking::Never if ready(Some(Duration::ZERO))? => Ok(()),
            Blocking::Never => Err(Errno::Again),
            Blocking::Until(watch) => {
                while !ready(watch.interval())? {
                    watch.check()?;
                }
                Ok(())
            }
        }
    }

    /// Waits until a host descriptor is ready for one of `wanted`, has failed, or is at its
    /// end.
    pub(crate) fn wait_for(self, host: BorrowedFd<'_>, wanted: PollFlags) -> Result<(), Errno> {
        self.wait_until(|timeout| {
            let mut fds = [PollFd::from_borrowed_fd(host, wanted)];
            let timeout = timeout.map(timespec);
            match poll(&mut fds, timeout.as_ref()) {
                Ok(count) => Ok(count > 0),
                Err(Host::INTR) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Makes a system call that does not block, as often as it takes until
    /// there is something for it to do.
    pub(crate) fn until_ready<R>(
        self,
        host: BorrowedFd<'_>,
        wanted: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<R>,
    ) -> Result<R, Errno> {
        loop {
            match retry_on_intr(&mut call) {
                Err(Host::AGAIN) => {}
                result => return Ok(result?),
            }
            self.wait_for(host, wanted)?;
            // Somebody else who shares the descriptor may take what there is, each time.
            if let Blocking::Until(watch) = self {
                watch.check()?;
            }
        }
    }

    /// Writes the slices by a call that does not block: all of them, or as much as there is
    /// room for without waiting. An error after the first bytes is left for the next call
    /// to meet again.
    pub(crate) fn write_all(
        self,
        host: BorrowedFd<'_>,
        mut slices: &mut [IoSlice<'_>],
        mut write: impl FnMut(&[IoSlice<'_>]) -> rustix::io::Result<usize>,
    ) -> Result<usize, Errno> {
        let mut total = 0;
        while !slices.is_empty() {
            match self.until_ready(host, PollFlags::OUT, || write(slices)) {
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
}

/// A duration as the host wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
