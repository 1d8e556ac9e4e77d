//! Waiting for descriptors, and what has come when that is over.

use std::io;
use std::time::{Duration, Instant};

use pagefork_postcopy::Lane;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

/// What has come over a connection.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    /// On [`Lane::Control`], which every connection has.
    pub(crate) bytes: Vec<u8>,
    /// On other lanes. Only who gets pages has them, and only over QUIC.
    pub(crate) others: Vec<(Lane, Vec<u8>)>,
    /// Whether the peer has ended its side.
    pub(crate) is_over: bool,
}

impl Arrived {
    /// Whether nothing has come.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.others.is_empty()
    }
}

/// Waits until one of these is ready, or the time has come.
pub(crate) fn wait_for(all: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    // A millisecond more, so that the time has come when it ends.
    wait_at_most(all, until.map(|until| until + Duration::from_millis(1)))
}

/// Waits until one of these is ready, or the time has nearly come.
pub(crate) fn wait_at_most(all: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    match poll(all, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// An error that says the same.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// The peer has been silent for as long as it may be.
pub(crate) fn overdue() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the peer has been silent for too long")
}
