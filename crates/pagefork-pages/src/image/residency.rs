//! Which groups of pages of an incomplete image are here.
//!
//! ```text
//!              begin                   finish
//!   absent ----------------> arriving ---------> present
//!     |  ^------- give up -------'                  .
//!     |                                             . for good
//!     '----- poison --------> poisoned              .
//! ```
//!
//! A word for each group, with a bit beside its state that says whether a thread sleeps until it
//! changes. What is asked for lies in a map of bits, which one reader empties. Nothing here takes a
//! lock or allocates, so a signal handler may do all of it. The file's holes are never asked what
//! is here: this table alone says it.

use std::time::Instant;

use crate::os::word::{self, AtomicU32, AtomicU64, Ordering};

const ABSENT: u32 = 0;
const ARRIVING: u32 = 1;
const PRESENT: u32 = 2;
const POISONED: u32 = 3;
const STATE: u32 = 3;

/// A thread sleeps until the state changes.
const AWAITED: u32 = 4;

/// Which groups are here, and which are asked for.
#[derive(Debug)]
pub(crate) struct Residency {
    /// Invariant: a state, and perhaps [`AWAITED`].
    groups: Box<[AtomicU32]>,
    /// A bit for each group that is asked for.
    wanted: Box<[AtomicU64]>,
    present: AtomicU64,
    poisoned: AtomicU64,
    /// 1 once all that is absent, or becomes so, is poisoned.
    is_ended: AtomicU32,
}

/// What a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    /// It is not here, or not all of it.
    Absent,
    /// It is here.
    Present,
    /// It will never be.
    Poisoned,
}

/// Why nobody may go on as if a group were here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missed {
    /// It will never be.
    Poisoned,
    /// It did not come in time.
    Overdue,
}

/// The right of one thread to put a group in its place. If it is given up, the group is absent as
/// before.
pub(crate) struct Arrival<'a> {
    residency: &'a Residency,
    group: u64,
}

impl Residency {
    /// Of an image of which nothing is here.
    pub(crate) fn new(count: u64) -> Self {
        let groups = (0..count).map(|_| AtomicU32::new(ABSENT)).collect();
        let wanted = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let (present, poisoned) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { groups, wanted, present, poisoned, is_ended: AtomicU32::new(0) }
    }

    /// Number of groups.
    pub(crate) fn count(&self) -> u64 {
        self.groups.len() as u64
    }

    /// Number of those that are here.
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Acquire)
    }

    /// Number of those that will never be.
    pub(crate) fn poisoned(&self) -> u64 {
        self.poisoned.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self, group: u64) -> Presence {
        match self.word(group).load(Ordering::Acquire) & STATE {
            PRESENT => Presence::Present,
            POISONED => Presence::Poisoned,
            _ => Presence::Absent,
        }
    }

    fn word(&self, group: u64) -> &AtomicU32 {
        &self.groups[group as usize]
    }

    /// The right to bring a group; `None` unless it is absent and no other thread brings it.
    pub(crate) fn begin(&self, group: u64) -> Option<Arrival<'_>> {
        let was_absent = self.exchange(group, ARRIVING);
        was_absent.then(|| Arrival { residency: self, group })
    }

    /// Says that what is absent will never be here. A group that arrives right now may be, or else
    /// is poisoned when its arrival is given up.
    pub(crate) fn end(&self) {
        self.is_ended.fetch_or(1, Ordering::AcqRel);
        (0..self.count()).for_each(|group| self.poison(group));
    }

    fn poison(&self, group: u64) {
        if self.exchange(group, POISONED) {
            self.poisoned.fetch_add(1, Ordering::AcqRel);
            self.rouse(group);
        }
    }

    /// Changes the state of a group that is absent.
    fn exchange(&self, group: u64, state: u32) -> bool {
        let changed = |word: u32| (word & STATE == ABSENT).then_some(word & AWAITED | state);
        self.word(group).fetch_update(Ordering::AcqRel, Ordering::Acquire, changed).is_ok()
    }

    /// Wakes who waits for a group, whose state has changed.
    fn rouse(&self, group: u64) {
        let word = self.word(group);
        if word.fetch_and(!AWAITED, Ordering::AcqRel) & AWAITED != 0 {
            word::wake(word);
        }
    }

    /// Asks for a group. `false`: that was asked, and nobody has looked since.
    pub(crate) fn want(&self, group: u64) -> bool {
        let bit = 1 << (group % 64);
        let before = self.wanted[(group / 64) as usize].fetch_or(bit, Ordering::AcqRel);
        before & bit == 0
    }

    /// Calls `take` for each group that was asked for since the last time and is absent.
    pub(crate) fn take_wanted(&self, mut take: impl FnMut(u64)) {
        for (word, first) in self.wanted.iter().zip((0..).step_by(64)) {
            if word.load(Ordering::Acquire) == 0 {
                continue;
            }
            let bits = word.swap(0, Ordering::AcqRel);
            let groups = (0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| first + bit);
            groups.filter(|group| self.state(*group) == Presence::Absent).for_each(&mut take);
        }
    }

    /// Waits until a group is here.
    ///
    /// # Errors
    /// If it is poisoned, or was not here at the deadline.
    pub(crate) fn wait(&self, group: u64, deadline: Instant) -> Result<(), Missed> {
        let word = self.word(group);
        loop {
            let seen = word.load(Ordering::Acquire);
            match seen & STATE {
                PRESENT => return Ok(()),
                POISONED => return Err(Missed::Poisoned),
                _ => {}
            }
            let awaited = seen | AWAITED;
            let is_noted = seen == awaited
                || word
                    .compare_exchange(seen, awaited, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok();
            if is_noted && !word::wait(word, awaited, deadline) {
                return match self.state(group) {
                    Presence::Present => Ok(()),
                    Presence::Poisoned => Err(Missed::Poisoned),
                    Presence::Absent => Err(Missed::Overdue),
                };
            }
        }
    }
}

impl Arrival<'_> {
    /// Says that all of the group is in its place. Returns how many groups are here then.
    pub(crate) fn finish(self) -> u64 {
        let Self { residency, group } = self;
        std::mem::forget(self);
        // First counted, so that who sees the last group come sees them all.
        let present = residency.present.fetch_add(1, Ordering::AcqRel) + 1;
        residency.leave(group, PRESENT);
        present
    }
}

impl Residency {
    /// Ends the arrival of a group.
    fn leave(&self, group: u64, state: u32) {
        let word = self.word(group);
        if word.swap(state, Ordering::AcqRel) & AWAITED != 0 {
            word::wake(word);
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        // Who sleeps looks again, and goes on waiting.
        self.residency.leave(self.group, ABSENT);
        // Not only read: either this sees that it is the end, or the end sees what is absent.
        if self.residency.is_ended.fetch_or(0, Ordering::AcqRel) != 0 {
            self.residency.poison(self.group);
        }
    }
}
