//! A descriptor that becomes readable when it is raised: an eventfd.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;

use crate::os::error::Call;
use crate::os::sys::{CallFailure, attempt};

/// Something that other threads poll for, raised in a signal handler perhaps.
#[derive(Debug)]
pub(crate) struct SignalFile(OwnedFd);

impl SignalFile {
    pub(crate) fn new() -> Result<Self, CallFailure> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        attempt(Call::MakeSignal, 0, || rustix::event::eventfd(0, flags)).map(Self)
    }

    /// Makes it readable.
    pub(crate) fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the bytes are borrowed. It fails only where it was raised 2^64 times, and is
        // readable then.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Ends that.
    pub(crate) fn clear(&self) {
        // If it was not raised, there is nothing to read.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for SignalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
