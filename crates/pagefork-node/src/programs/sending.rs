//! The last changes of a program on their way, while the next ones are hashed.

use std::collections::VecDeque;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use pagefork_image::StoredImage;

use super::client::NodeLink;
use super::wire::{ClientRequest, LAST_CHANGES_MAX};

/// Bytes of changes that one message carries at most, and that are offered to the network at once.
const PART: usize = 64 << 10;

/// With so many parts waiting, who hashes sends them: there is no processor for the thread that should.
const WAITING_MAX: usize = 3;

/// Sends what has changed since the state before, ahead of the word that it is there; of more than is taken
/// so, nothing, and the target fetches it. The connection has carried about as much by then as it is to carry when the
/// program rests: it knows how much the network takes at once, and need not find out then, in a round trip each
/// time it doubles that.
///
/// # Errors
/// If it cannot be read.
pub(super) fn send_state(link: &mut NodeLink, state: &StoredImage) -> Result<(), String> {
    let Some(file) = state.chain().tip().file() else { return Ok(()) };
    let failed = |error: std::io::Error| format!("what was sent ahead cannot be read: {error}");
    let size = file.metadata().map_err(failed)?.len();
    if size > LAST_CHANGES_MAX as u64 {
        return Ok(());
    }
    // The first ones are the last, as of all changes.
    let later = (0..size).step_by(PART).skip(1);
    for at in later.chain([0]) {
        let mut bytes = vec![0; PART.min((size - at) as usize)];
        file.read_exact_at(&mut bytes, at).map_err(failed)?;
        link.push(&ClientRequest::LastChanges { at, bytes });
        // What is not sent now is sent with what follows.
        let _ = link.turn_out();
    }
    Ok(())
}

/// A thread that encrypts and sends what it is shown, as far as there is a processor for it.
pub(super) struct ChangesSending {
    shared: Arc<SharedChanges>,
    /// Until it is waited for.
    thread: Option<JoinHandle<()>>,
    cutter: Cutter,
}

/// Cuts what it is shown into parts for messages.
#[derive(Default)]
struct Cutter {
    /// What no message has yet, and where it begins.
    waiting: Vec<u8>,
    start: u64,
    /// Behind the last byte of all that was shown.
    most: u64,
}

impl Cutter {
    /// Gives what can be sent now.
    fn show(&mut self, place: u64, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        self.most = self.most.max(place + bytes.len() as u64);
        let is_too_much = self.most > LAST_CHANGES_MAX as u64;
        let follows = place == self.start + self.waiting.len() as u64;
        let mut ready = if follows && !is_too_much { Vec::new() } else { self.take() };
        if is_too_much {
            return ready;
        }
        if self.waiting.is_empty() {
            self.start = place;
        }
        self.waiting.extend_from_slice(bytes);
        // Nothing follows what is at the beginning.
        if self.waiting.len() >= PART || place == 0 {
            ready.append(&mut self.take());
        }
        ready
    }

    fn take(&mut self) -> Vec<(u64, Vec<u8>)> {
        let (start, length) = (self.start, self.waiting.len());
        self.start += length as u64;
        // Most often it is one part, which need not be copied.
        if (1..=PART).contains(&length) {
            return vec![(start, mem::replace(&mut self.waiting, Vec::with_capacity(PART)))];
        }
        let parts = (start..).step_by(PART).zip(self.waiting.chunks(PART));
        let parts = parts.map(|(at, bytes)| (at, bytes.to_vec())).collect();
        self.waiting.clear();
        parts
    }
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

    /// Nothing follows.
    fn end(&self) {
        self.parts().is_over = true;
        self.changed.notify_one();
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
        Ok(Self { shared, thread: Some(thread), cutter: Cutter::default() })
    }

    /// Sends a part of what goes along with the hand-over, unless it is too much for that: then what is
    /// the last of all parts stays here, too, and the target fetches the image.
    pub(super) fn show(&mut self, place: u64, part: &[u8]) {
        let ready = self.cutter.show(place, part);
        if ready.is_empty() {
            return;
        }
        let mut shared = self.shared.parts();
        shared.all.extend(ready);
        let are_many = shared.all.len() > WAITING_MAX;
        drop(shared);
        self.shared.changed.notify_one();
        if are_many && let Ok(mut link) = self.shared.link.try_lock() {
            self.shared.send(&mut link);
        }
    }

    /// Whether it sends nothing more, though it was not ended: the connection is known to be lost, or its thread
    /// has panicked.
    pub(super) fn is_lost(&self) -> bool {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        has_ended || self.shared.link.try_lock().is_ok_and(|link| link.duplex.is_lost())
    }

    /// Gives the connection back, with what it has not sent yet; `None` if it is lost.
    pub(super) fn end(mut self) -> Option<NodeLink> {
        // Nobody has to wait for a processor for what is left.
        if let Ok(mut link) = self.shared.link.try_lock() {
            self.shared.send(&mut link);
        }
        self.shared.end();
        self.thread.take()?.join().ok()?;
        let shared = Arc::clone(&self.shared);
        drop(self);
        let shared = Arc::into_inner(shared)?;
        Some(shared.link.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ChangesSending {
    /// Who hashes may have panicked: the thread ends, and with it the connection.
    fn drop(&mut self) {
        self.shared.end();
    }
}

#[cfg(test)]
mod threads;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown group by group behind `start`, then what lies before, then the beginning.
    fn cut(start: u64, groups: u64) -> Vec<(u64, Vec<u8>)> {
        const GROUP: u64 = 16 << 10;
        let bytes = |place: u64, length: u64| -> Vec<u8> {
            (place..place + length).map(|at| (at / 7) as u8).collect()
        };
        let mut cutter = Cutter::default();
        let places = (0..groups).map(|group| (start + group * GROUP, GROUP));
        let shown = places.chain([(128, start - 128), (0, 128)]);
        let parts: Vec<_> =
            shown.flat_map(|(place, length)| cutter.show(place, &bytes(place, length))).collect();
        for (at, part) in &parts {
            assert!(*part == bytes(*at, part.len() as u64), "{start}, {groups}, at {at}");
            assert!(at + part.len() as u64 <= LAST_CHANGES_MAX as u64 && part.len() <= PART);
        }
        parts
    }

    #[test]
    fn parts_are_whole_and_the_beginning_is_the_last() {
        for (start, groups) in [(4096, 1), (4096, 4), (0x13000, 7), (0x13000, 1000)] {
            let parts = cut(start, groups);
            let length: usize = parts.iter().map(|(_, part)| part.len()).sum();
            assert_eq!(length as u64, start + groups * (16 << 10));
            assert_eq!(parts.last().unwrap().0, 0);
        }
    }

    #[test]
    fn of_too_much_the_beginning_stays_away_and_nothing_is_at_another_place() {
        for remainder in 0..4 {
            let parts = cut(4096 + remainder * (16 << 10), 1030);
            assert!(parts.len() > 250 && parts.iter().all(|(at, _)| *at != 0));
        }
    }
}
