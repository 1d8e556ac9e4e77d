//! Whether it costs less to discard all pages than to find those that were written, where the page
//! map is read for that.
//!
//! Without PAGEMAP_SCAN (kernels before 6.7, and where it is refused) a search reads an entry for each page that can have been written, which
//! takes longer the larger a slot is, however little a run wrote. A reset that discards all looks for
//! nothing, but the next run takes page faults also for what it only reads. How many those are nothing
//! says beforehand: so it is tried for a window, and both are measured.

use std::time::Instant;

use crate::os::faults::{Faults, ThreadId, fault_ns};
use crate::os::times;
use crate::strategy::dirty_set::with_measured;
use crate::strategy::tuning::WINDOW;

/// What requests take by either way.
#[derive(Debug, Default)]
pub(super) struct BlindCosts {
    search: WayCosts,
    discard: WayCosts,
    /// The faults of the thread that ended the window before this one.
    began: Option<Faults>,
    /// The thread of the last reset, and whether that has changed in this window.
    thread: Option<ThreadId>,
    has_changed: bool,
}

#[derive(Debug, Default)]
struct WayCosts {
    /// A reset, in nanoseconds.
    reset: Option<u32>,
    /// Page faults in the last window, unless threads took turns.
    faults: Option<u64>,
}

/// What a request's reset and page faults take, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Compared {
    pub(super) search_ns: u64,
    pub(super) discard_ns: u64,
}

impl BlindCosts {
    /// Notes a reset, which began then.
    pub(super) fn note(&mut self, is_blind: bool, begun: Instant) {
        let thread = Some(ThreadId::current());
        self.has_changed |= self.thread.is_some_and(|_| self.thread != thread);
        self.thread = thread;
        let way = if is_blind { &mut self.discard } else { &mut self.search };
        way.reset = Some(match times::fixed() {
            Some(times) if is_blind => times.discard_all,
            Some(times) => times.search_all,
            None => with_measured(way.reset, begun),
        });
    }

    /// Ends a window in which all resets were of one kind.
    pub(super) fn end_window(&mut self, is_blind: bool) {
        let now = Faults::now().ok();
        let faults = match (self.began, now) {
            // Of other threads it is not known what they took.
            (Some(began), Some(now)) if !self.has_changed => now.since(began),
            _ => None,
        };
        (self.began, self.has_changed) = (now, false);
        let way = if is_blind { &mut self.discard } else { &mut self.search };
        way.faults = faults;
    }

    /// Whether a search is measured, so that the other way can be compared with it.
    pub(super) fn knows_search(&self) -> bool {
        self.search.cost().is_some()
    }

    /// Both ways, if both are measured.
    pub(super) fn compared(&self) -> Option<Compared> {
        let (search_ns, discard_ns) = (self.search.cost()?, self.discard.cost()?);
        Some(Compared { search_ns, discard_ns })
    }
}

impl WayCosts {
    fn cost(&self) -> Option<u64> {
        // Most pages that are written are read first: that is two faults.
        let faults = self.faults? * u64::from(fault_ns() / 2) / u64::from(WINDOW);
        Some(u64::from(self.reset?) + faults)
    }
}

impl Compared {
    /// Whether to discard all saves more than what measuring is off by.
    pub(super) fn discards(self) -> bool {
        self.discard_ns + self.discard_ns / 8 < self.search_ns
    }

    /// Whether to search saves more than that.
    pub(super) fn searches(self) -> bool {
        self.search_ns + self.search_ns / 8 < self.discard_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_chosen_has_to_save_an_eighth() {
        let compared = |search_ns, discard_ns| Compared { search_ns, discard_ns };
        assert!(compared(25_000, 9000).discards() && compared(4000, 9000).searches());
        for close in [compared(10_000, 9000), compared(9000, 10_000)] {
            assert!(!close.discards() && !close.searches());
        }
    }

    #[test]
    fn what_is_not_measured_is_not_compared() {
        let mut costs = BlindCosts::default();
        costs.note(false, Instant::now());
        assert!(!costs.knows_search() && costs.compared().is_none());
        // The first window has no beginning.
        costs.end_window(false);
        assert!(!costs.knows_search());
        costs.end_window(false);
        assert!(costs.knows_search() && costs.compared().is_none());
        costs.note(true, Instant::now());
        costs.end_window(true);
        let Compared { search_ns, discard_ns } = costs.compared().unwrap();
        assert!(search_ns > 0 && discard_ns > 0);
    }

    #[test]
    fn windows_that_threads_share_are_not_counted() {
        let mut costs = BlindCosts::default();
        costs.note(false, Instant::now());
        costs.end_window(false);
        std::thread::scope(|scope| _ = scope.spawn(|| costs.note(false, Instant::now())).join());
        costs.note(false, Instant::now());
        costs.end_window(false);
        assert!(!costs.knows_search());
        costs.note(false, Instant::now());
        costs.end_window(false);
        assert!(costs.knows_search());
    }
}
