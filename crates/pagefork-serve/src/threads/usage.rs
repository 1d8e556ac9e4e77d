//! The processor time of a thread: tells slow handlers from those that lost the processor.

use std::ffi::c_long;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::time::{ClockId, clock_gettime};

/// The processor time of a thread so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadUsage {
    time: Duration,
    /// How often the kernel gave its processor to another thread.
    lost: c_long,
}

impl ThreadUsage {
    pub(crate) fn of_this_thread() -> ThreadUsage {
        ThreadUsage {
            // Not from `getrusage`, whose value is as old as the last tick: up to 4 ms.
            time: clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default(),
            // Without a count the thread never lost its processor, so any long time is its own.
            lost: getrusage(UsageWho::RUSAGE_THREAD)
                .map_or(0, |usage| usage.involuntary_context_switches()),
        }
    }

    /// Whether the work since `before`, which took at least `long`, would have taken as long on a
    /// processor of its own: the thread computed for as long, or it never lost its processor.
    pub(crate) fn is_long(self, before: ThreadUsage, long: Duration) -> bool {
        self.lost == before.lost || self.time.saturating_sub(before.time) >= long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_computes_or_waits_is_long() {
        let long = Duration::from_millis(1);
        let before = ThreadUsage { time: Duration::from_millis(5), lost: 3 };
        let computed = ThreadUsage { time: Duration::from_millis(6), lost: 4 };
        let waited = before;
        let lost_the_processor = ThreadUsage { time: Duration::from_micros(5900), lost: 4 };
        assert!(computed.is_long(before, long) && waited.is_long(before, long));
        assert!(!lost_the_processor.is_long(before, long));
    }

    #[test]
    fn what_a_thread_computes_is_seen_at_once() {
        let start = ThreadUsage::of_this_thread();
        let mut last = start;
        let mut large = 0;
        for _ in 0..100 {
            let mut now = last;
            while now.time == last.time {
                now = ThreadUsage::of_this_thread();
            }
            // A host may take its time now and then, but a tick is as long always.
            large += usize::from(now.time - last.time > Duration::from_micros(500));
            last = now;
        }
        assert!(large < 50, "{large} steps of 100 are as long as a tick");
        assert!(last.is_long(start, last.time - start.time));
    }
}
