//! An engine's epochs: a number that goes up, and the bell that wakes the thread which looks at it.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// How often an engine's epoch has been advanced, and how many deadlines wait for that.
#[derive(Debug, Default)]
pub(crate) struct EpochClock {
    now: AtomicU64,
    watched: AtomicUsize,
}

impl EpochClock {
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// Goes on to the next epoch. Async-signal-safe.
    pub(crate) fn advance(&self) {
        // Before the look at who waits: who begins to wait after that sees the new epoch.
        self.now.fetch_add(1, Ordering::SeqCst);
        if self.watched.load(Ordering::SeqCst) > 0 {
            ring();
        }
    }

    /// Notes one more deadline: to be said before the epoch is looked at.
    pub(crate) fn add_watched(&self) {
        self.watched.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn remove_watched(&self) {
        self.watched.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts what [`ring`] was called for.
static BELL: AtomicU32 = AtomicU32::new(0);

/// Wakes the thread that waits for deadlines. Async-signal-safe: an addition and a system call,
/// which leaves `errno` alone.
pub(crate) fn ring() {
    BELL.fetch_add(1, Ordering::SeqCst);
    let _ = futex::wake(&BELL, futex::Flags::PRIVATE, 1);
}

/// How often the bell has rung.
pub(crate) fn rung() -> u32 {
    BELL.load(Ordering::SeqCst)
}

/// Waits until the bell has rung more often than `rung`, or a time has passed; sometimes shorter.
pub(crate) fn wait(rung: u32, at_most: Option<Duration>) {
    let at_most = at_most.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    // Whatever it was that ended the wait, the caller looks again.
    let _ = futex::wait(&BELL, futex::Flags::PRIVATE, rung, at_most.as_ref());
}
