//! Pages that a thread fetches, from outside.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{FetchReport, PageSink};
use crate::base::NodeError;

/// Whether a thread has done all it does.
#[derive(Debug, Default)]
pub(super) struct Ended {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    pub(super) fn set(&self) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for it, as long as `limit` at most. Returns whether it has.
    fn wait(&self, limit: Duration) -> bool {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(has_ended, limit, |has_ended| !*has_ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Pages that are being fetched. Dropped, it stops, and nothing more comes: who waits for a page is
/// told that it is given up. [`RemoteImage`](crate::RemoteImage) has an example.
#[derive(Debug)]
pub struct PageFetch {
    pub(super) thread: Option<JoinHandle<(FetchReport, Result<(), NodeError>)>>,
    /// Whether the thread has done all it does.
    pub(super) ended: Arc<Ended>,
    pub(super) stop: Arc<OwnedFd>,
    pub(super) sink: Arc<dyn PageSink>,
}

impl PageFetch {
    /// Waits until all pages are here.
    ///
    /// # Errors
    /// Why they will not come: [`NodeError::Lost`] if the peer is gone for too long,
    /// [`NodeError::Protocol`] if it does not keep to the protocol, [`NodeError::Refused`] if it does
    /// not have the image any more.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`](crate::RemoteImage).
    pub fn join(mut self) -> Result<FetchReport, NodeError> {
        let (report, fetched) = self.end();
        fetched.map(|()| report)
    }

    /// Stops it, and says what has come. A node that is being connected to is waited for first, as
    /// long as [`PageTimes`](crate::PageTimes) say.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`](crate::RemoteImage); who needs no report drops it.
    pub fn stop(mut self) -> FetchReport {
        self.raise();
        self.end().0
    }

    /// As [`PageFetch::stop`], and waits no longer than `limit`: `None` if it has not ended by then. It
    /// ends all the same.
    ///
    /// # Examples
    ///
    /// See [`ComingImage::stop_within`](crate::ComingImage::stop_within), which does it.
    pub fn stop_within(self, limit: Duration) -> Option<FetchReport> {
        self.raise();
        match self.ended.wait(limit) {
            true => Some(self.stop()),
            false => None,
        }
    }

    /// Whether nothing more comes: all is here, or it has failed.
    ///
    /// # Examples
    ///
    /// See [`RemoteImage`](crate::RemoteImage).
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for that, as long as `limit` at most, and returns whether it is so.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.ended.wait(limit)
    }

    fn raise(&self) {
        // It cannot be full: nobody else writes it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }

    fn end(&mut self) -> (FetchReport, Result<(), NodeError>) {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => (FetchReport::default(), Err(NodeError::Stopped)),
        }
    }
}

impl Drop for PageFetch {
    /// The thread ends by itself: it may be in a system call that waits for a peer.
    fn drop(&mut self) {
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            self.raise();
            self.sink.give_up(&NodeError::Stopped);
        }
    }
}
