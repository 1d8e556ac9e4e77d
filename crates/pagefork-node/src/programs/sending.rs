//! The last changes of a program on their way, while the next ones are hashed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::client::NodeLink;
use super::wire::{ClientRequest, LAST_CHANGES_MAX};

/// Bytes of changes that one message carries at most, and that are offered to the network at once.
const PART: usize = 64 << 10;

/// With so many parts waiting, who hashes sends them: there is no processor for the thread that should.
const WAITING_MAX: usize = 3;

/// A thread that encrypts and sends what it is shown, as far as there is a processor for it.
pub(super) struct ChangesSending {
    shared: Arc<SharedChanges>,
    thread: JoinHandle<()>,
    /// What no message has yet.
    waiting: Vec<u8>,
    /// Behind the last byte that was shown.
    end: u64,
    /// Behind the last byte of all.
    most: u64,
}

/// What both threads have. The link is locked before the parts: who has it sends them in their order.
struct SharedChanges {
    link: Mutex<NodeLink>,
    parts: Mutex<Parts>,
    changed: Condvar,
}

#[derive(Default)]
struct Parts {
    all: VecDeque<(u64, Vec<u8>)>,
    /// Nothing follows.
    is_over: bool,
}

impl SharedChanges {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what there is.
    fn send(&self, link: &mut NodeLink) {
        loop {
            // The other thread adds to them meanwhile.
            let Some((at, bytes)) = self.parts().all.pop_front() else { return };
            link.push(&ClientRequest::LastChanges { at, bytes });
            // What is not sent now is sent with what follows.
            let _ = link.turn_out();
        }
    }

    fn send_until_over(&self) {
        loop {
            let waits = |parts: &mut Parts| parts.all.is_empty() && !parts.is_over;
            let parts = self.changed.wait_while(self.parts(), waits);
            let parts = parts.unwrap_or_else(PoisonError::into_inner);
            if parts.all.is_empty() {
                return;
            }
            drop(parts);
            self.send(&mut self.link.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl ChangesSending {
    /// Begins, before there is anything to be sent.
    ///
    /// # Errors
    /// If the system refuses a thread. Then the connection is closed.
    pub(super) fn begin(link: NodeLink) -> Result<Self, String> {
        let (link, parts, changed) = (Mutex::new(link), Mutex::default(), Condvar::new());
        let shared = Arc::new(SharedChanges { link, parts, changed });
        let sends = Arc::clone(&shared);
        let thread = thread::Builder::new().name("pagefork-changes".to_owned());
        let thread = thread.spawn(move || sends.send_until_over());
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { shared, thread, waiting: Vec::new(), end: 0, most: 0 })
    }

    /// Sends a part of what goes along with the hand-over, unless it is too much for that: then what is
    /// the last of all parts stays here, too, and the target fetches the image.
    pub(super) fn show(&mut self, place: u64, part: &[u8]) {
        if place != self.end {
            self.send_waiting();
        }
        self.end = place + part.len() as u64;
        self.most = self.most.max(self.end);
        if self.most > LAST_CHANGES_MAX as u64 {
            return;
        }
        self.waiting.extend_from_slice(part);
        // Nothing follows what is at the beginning.
        if self.waiting.len() >= PART || place == 0 {
            self.send_waiting();
        }
    }

    fn send_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.end - self.waiting.len() as u64;
        let parts = (at..).step_by(PART).zip(self.waiting.chunks(PART));
        let mut shared = self.shared.parts();
        shared.all.extend(parts.map(|(at, bytes)| (at, bytes.to_vec())));
        let are_many = shared.all.len() > WAITING_MAX;
        drop(shared);
        self.waiting.clear();
        self.shared.changed.notify_one();
        if are_many && let Ok(mut link) = self.shared.link.try_lock() {
            self.shared.send(&mut link);
        }
    }

    /// Gives the connection back, with what it has not sent yet; `None` if it is lost.
    pub(super) fn end(self) -> Option<NodeLink> {
        let Self { shared, thread, .. } = self;
        // Nobody has to wait for a processor for what is left.
        if let Ok(mut link) = shared.link.try_lock() {
            shared.send(&mut link);
        }
        shared.parts().is_over = true;
        shared.changed.notify_one();
        thread.join().ok()?;
        let shared = Arc::into_inner(shared)?;
        Some(shared.link.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
