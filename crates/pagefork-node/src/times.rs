//! Where the time goes while pages come.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Where the time of those went who waited for groups, all together. What is missing to what they
/// have waited is what it takes until the thread that fetches knows of them, and they of what came.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_node::WaitTimes;
///
/// let (network, server) = (Duration::from_micros(80), Duration::from_micros(20));
/// let times = WaitTimes { groups: 1, network, server, ..WaitTimes::default() };
/// assert_eq!(times.sum(), Duration::from_micros(100));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WaitTimes {
    /// Groups that were asked for because somebody waited, or had been asked for before that.
    pub groups: u64,
    /// From the question to the answer, but for what the memory node took.
    pub network: Duration,
    /// What the memory node took, as it says: until it had read the group.
    pub server: Duration,
    /// Decrypting, decompressing, proving, planning, and putting other groups in their places.
    pub handle: Duration,
    /// Putting these groups in their places, until who waits for them can go on.
    pub install: Duration,
}

impl WaitTimes {
    /// All of it.
    pub fn sum(&self) -> Duration {
        self.network + self.server + self.handle + self.install
    }

    /// What remains of the time that those have waited, by their own clocks and all together: until the thread that
    /// fetches knew of them, and they of what came. No moment of a wait is in two parts: each begins where the one
    /// before it ends, the first of them behind the beginning of the wait, and the last ends before who waits can
    /// go on.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_node::WaitTimes;
    ///
    /// let us = Duration::from_micros;
    /// let times = WaitTimes { groups: 1, network: us(80), install: us(9), ..WaitTimes::default() };
    /// assert_eq!(times.rest_of(us(100)), us(11));
    /// ```
    pub fn rest_of(self, waited: Duration) -> Duration {
        waited.saturating_sub(self.sum())
    }
}

/// What the thread that fetches has taken of a processor, and the memory node for it.
///
/// # Examples
///
/// ```
/// use pagefork_node::FetchTimes;
///
/// assert!(FetchTimes::default().network.is_zero());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchTimes {
    /// Sending, receiving, decrypting.
    pub network: Duration,
    /// Decompressing, proving, planning.
    pub handle: Duration,
    /// Putting groups in their places.
    pub install: Duration,
    /// What the memory node's thread for the connection has taken there, as it says: reading, compressing,
    /// encrypting, sending, until it had read the last group that came.
    pub server: Duration,
}

/// How far a fetch was at a moment. [`FetchReport`](crate::FetchReport) has them.
///
/// # Examples
///
/// ```
/// use pagefork_node::FetchReport;
///
/// let report = FetchReport::default();
/// assert!(report.timeline.iter().all(|moment| moment.groups > 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchMoment {
    /// Since pages were first asked for.
    pub at: Duration,
    /// Groups that had come.
    pub groups: u64,
    /// Of these, how many somebody has waited for.
    pub waits: u64,
}

/// How far it was when: few moments, whatever it takes.
#[derive(Debug)]
pub(crate) struct Timeline {
    began: Instant,
    interval: Duration,
    moments: Vec<FetchMoment>,
}

impl Timeline {
    const MOMENTS_MAX: usize = 32;

    pub(crate) fn new(began: Instant) -> Self {
        Self { began, interval: Duration::from_millis(1), moments: Vec::new() }
    }

    /// So many have come now.
    pub(crate) fn note(&mut self, now: Instant, groups: u64, waits: u64) {
        let at = now.saturating_duration_since(self.began);
        let is_due = |last: &FetchMoment| at >= last.at + self.interval && groups > last.groups;
        if groups == 0 || !self.moments.last().is_none_or(is_due) {
            return;
        }
        self.moments.push(FetchMoment { at, groups, waits });
        if self.moments.len() > Self::MOMENTS_MAX {
            // Every second one is left, and from now on they are farther apart.
            let mut is_kept = false;
            self.moments.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.interval *= 2;
        }
    }

    /// All moments, of which this is the last.
    pub(crate) fn end(&self, now: Instant, groups: u64, waits: u64) -> Vec<FetchMoment> {
        let mut moments = self.moments.clone();
        let at = now.saturating_duration_since(self.began);
        let is_said = moments.last().is_some_and(|last| last.groups == groups);
        if groups > 0 && !is_said {
            moments.push(FetchMoment { at, groups, waits });
        }
        moments
    }
}

/// What this thread has taken of a processor.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_few_moments_from_the_first_to_the_last() {
        let began = Instant::now();
        let mut timeline = Timeline::new(began);
        timeline.note(began, 0, 0);
        for at in 1..=10_000 {
            let now = began + Duration::from_micros(300 * at);
            timeline.note(now, at, at / 10);
        }
        let end = began + Duration::from_secs(4);
        let moments = timeline.end(end, 10_001, 1000);
        assert!((10..=34).contains(&moments.len()), "{}", moments.len());
        assert_eq!(moments[0].groups, 1);
        let last = FetchMoment { at: Duration::from_secs(4), groups: 10_001, waits: 1000 };
        assert_eq!(moments.last(), Some(&last));
        assert!(moments.is_sorted_by(|a, b| a.at < b.at && a.groups < b.groups));
        assert_eq!(Timeline::new(began).end(end, 0, 0), []);
    }
}
