//! The rule that says when a request is handled, and on which thread.
//!
//! ```text
//!                        request
//!                           |
//!                           v                    no
//!       fewer handlers run than processors? -----------> queue
//!                           | yes                          | no handler began for `patience`:
//!                           |<-----------------------------+ the running ones are slow, and
//!                           v                                as many more may run
//!       body complete, and no slow handler
//!       among the last DETACHED requests?
//!             | yes                     | no
//!             v                         v
//!          inline                   detached
//!   on a thread that drives     on a thread that
//!   an event loop               drives none
//!             |                         ^
//!             +-------------------------+
//!               slow: another thread drives
//!               the event loop from now on
//! ```
//!
//! A handler is *slow* when it waits for its client, or when it takes `patience` (2 ms by
//! default). The monitor looks twice within this time, so half of it counts.
//!
//! Inline saves a change of threads, and the thread that ran last has warm slots and caches. But
//! while a handler runs inline, the other connections of its event loop wait; so handlers run
//! detached for a while after a slow one. A handler that only looks slow because another process
//! had the processor is not slow: see [`usage`](crate::threads::usage).
//!
//! A handler that waits for its client does not count as running. For each slow one that ends,
//! one less of the additional handlers may run.

use std::time::{Duration, Instant};

/// This many requests are handled detached after a slow handler.
pub(crate) const DETACHED: u32 = 32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleLimits {
    /// How many handlers run at once, unless they are slow.
    pub(crate) running: usize,
    /// How many there may be at all.
    pub(crate) busy: usize,
    /// How many requests may wait beyond those.
    pub(crate) queued: usize,
    /// Handlers that take this long are slow.
    pub(crate) patience: Duration,
}

/// Counts handlers, and decides about the next one.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) limits: ScheduleLimits,
    /// Handlers that have begun and not ended.
    pub(crate) busy: usize,
    /// Those of them that do not wait for a client. Below zero for a moment when one thread of a
    /// handler begins to wait before another has said that it goes on.
    pub(crate) running: isize,
    /// How many more than usual may run, because some are slow.
    additional: usize,
    /// How many requests are still to be handled detached.
    pub(crate) detached: u32,
    last_begun: Instant,
}

impl Schedule {
    pub(crate) fn new(limits: ScheduleLimits) -> Schedule {
        let (busy, running, additional, detached) = (0, 0, 0, 0);
        Schedule { limits, busy, running, additional, detached, last_begun: Instant::now() }
    }

    /// Whether another handler may run.
    pub(crate) fn has_room(&self) -> bool {
        let running_max = self.limits.running + self.additional;
        self.running < running_max as isize && self.busy < self.limits.busy
    }

    /// Whether a request may wait beside those that do.
    pub(crate) fn may_queue(&self, queued: usize) -> bool {
        self.busy + queued < self.limits.busy + self.limits.queued
    }

    /// Whether a request is handled inline. To be asked once for each.
    pub(crate) fn is_inline(&mut self, may_wait: bool) -> bool {
        let was_slow = self.detached > 0;
        self.detached = self.detached.saturating_sub(1);
        !was_slow && !may_wait
    }

    pub(crate) fn begin(&mut self) {
        self.busy += 1;
        self.running += 1;
        self.last_begun = Instant::now();
    }

    /// A handler has ended after this time, without the time that it waited for its client.
    pub(crate) fn end(&mut self, taken: Duration, is_slow: bool) {
        if taken >= self.limits.patience {
            self.additional = self.additional.saturating_sub(1);
        }
        if is_slow {
            self.slow();
        }
        self.busy -= 1;
        self.running -= 1;
    }

    /// A handler is slow: the next ones run detached.
    pub(crate) fn slow(&mut self) {
        self.detached = DETACHED;
    }

    /// Lets more handlers run if none began within the patience. To be asked while requests wait.
    pub(crate) fn relieve(&mut self) -> bool {
        let is_stuck = self.last_begun.elapsed() >= self.limits.patience;
        if is_stuck {
            self.additional = (self.additional + self.limits.running).min(self.limits.busy);
        }
        is_stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(patience: Duration) -> Schedule {
        Schedule::new(ScheduleLimits { running: 2, busy: 6, queued: 1, patience })
    }

    #[test]
    fn handlers_run_on_all_processors_and_beyond_when_they_are_slow() {
        let mut schedule = schedule(Duration::ZERO);
        (0..2).for_each(|_| schedule.begin());
        assert!(!schedule.has_room() && schedule.may_queue(4) && !schedule.may_queue(5));
        assert!(schedule.relieve() && schedule.has_room());
        (0..2).for_each(|_| schedule.begin());
        assert!(!schedule.has_room());
        assert!(schedule.relieve() && schedule.has_room());
        (0..2).for_each(|_| schedule.begin());
        assert!(!schedule.has_room());
        // Each slow one that ends takes an additional place with it.
        for left in (0..6).rev() {
            schedule.end(Duration::from_secs(1), true);
            assert_eq!(schedule.has_room(), left < 2, "{left}");
        }
        assert!(!self::schedule(Duration::MAX).relieve(), "handlers begin often enough");
    }

    #[test]
    fn requests_are_handled_inline_until_a_handler_is_slow() {
        let mut schedule = schedule(Duration::from_millis(2));
        assert!(schedule.is_inline(false) && !schedule.is_inline(true));
        schedule.begin();
        schedule.end(Duration::from_secs(1), false);
        assert!(schedule.is_inline(false), "it was not slow by itself");
        schedule.slow();
        assert!((0..DETACHED).all(|_| !schedule.is_inline(false)));
        assert!(schedule.is_inline(false));
    }
}
