//! Counters, and histograms of times.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::handler::failure::FailureKind;

/// All counts of a server. They are read while they change, so sums need not agree exactly.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// Connections that are open.
    pub(crate) connections: EventCount,
    /// Connections there have been.
    pub(crate) connections_total: EventCount,
    /// Requests that have begun and whose responses have not ended.
    pub(crate) in_flight: EventCount,
    /// Responses by the first digit of their status, from 1 on.
    statuses: [EventCount; 5],
    /// Failures by kind, as in [`FailureKind::ALL`].
    failures: [EventCount; FailureKind::ALL.len()],
    /// Bytes of bodies.
    pub(crate) received: EventCount,
    /// Bytes of bodies.
    pub(crate) sent: EventCount,
    /// From a request's head to its last byte.
    pub(crate) request: Histogram,
    /// How long requests waited for a thread.
    pub(crate) wait: Histogram,
    /// Making instances.
    pub(crate) spawn: Histogram,
    /// Running them.
    pub(crate) run: Histogram,
}

impl Metrics {
    pub(crate) fn count_status(&self, status: u16) {
        if let Some(counter) = self.statuses.get(usize::from(status / 100).wrapping_sub(1)) {
            counter.add(1);
        }
    }

    pub(crate) fn count_failure(&self, kind: FailureKind) {
        self.failures[kind as usize].add(1);
    }

    /// Each first digit of statuses, and how many there were.
    pub(crate) fn statuses(&self) -> impl Iterator<Item = (usize, u64)> {
        (1..).zip(self.statuses.iter().map(EventCount::get))
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FailureKind::ALL
            .iter()
            .map(|kind| kind.name())
            .zip(self.failures.iter().map(EventCount::get))
    }
}

/// A count of what has happened, or of what there is now.
#[derive(Debug, Default)]
pub(crate) struct EventCount(AtomicU64);

impl EventCount {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes away what was added before.
    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Buckets of a histogram; the last one holds all longer times.
const BUCKETS: usize = 29;

/// The end of the first bucket; each further one ends at twice the time.
const FIRST_NS: u64 = 250;

/// How often times of each order of magnitude occurred, from 250 ns to 33 s by
/// powers of two.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [EventCount; BUCKETS],
    pub(crate) sum_ns: EventCount,
}

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let index = (0..BUCKETS - 1).find(|index| ns <= FIRST_NS << index).unwrap_or(BUCKETS - 1);
        self.buckets[index].add(1);
        self.sum_ns.add(ns);
    }

    /// The end of each bucket in nanoseconds, `None` for the last, and how many
    /// times it holds.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let end = |index| (index < BUCKETS - 1).then(|| FIRST_NS << index);
        (0..).map(end).zip(self.buckets.iter().map(EventCount::get))
    }

    /// How many times each bucket holds now.
    pub(crate) fn counts(&self) -> Buckets {
        Buckets(std::array::from_fn(|index| self.buckets[index].get()))
    }
}

/// How many times the buckets of a histogram held at a moment, or between two.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets([u64; BUCKETS]);

impl Buckets {
    /// What has come since an earlier moment.
    pub(crate) fn since(&self, earlier: &Buckets) -> Buckets {
        let since = |index: usize| self.0[index].saturating_sub(earlier.0[index]);
        Buckets(std::array::from_fn(since))
    }

    /// The end of the bucket in which this percentage of the times is complete. Times beyond
    /// the last but one count as its end.
    pub(crate) fn quantile(&self, percent: u64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let wanted = (total * percent).div_ceil(100);
        let mut seen = 0;
        let index = self.0.iter().position(|count| {
            seen += count;
            total > 0 && seen >= wanted
        })?;
        Some(FIRST_NS << index.min(BUCKETS - 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_the_bucket_that_ends_at_or_after_them() {
        let histogram = Histogram::default();
        for ns in [0, 250, 251, 500, 1000, u64::MAX] {
            histogram.observe(Duration::from_nanos(ns));
        }
        let counts: Vec<_> = histogram.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(Some(250), 2), (Some(500), 2), (Some(1000), 1), (None, 1)]);
        assert_eq!(histogram.buckets().count(), BUCKETS);
    }

    #[test]
    fn statuses_and_failures_are_told_apart() {
        let metrics = Metrics::default();
        for status in [200, 204, 404, 999, 0] {
            metrics.count_status(status);
        }
        assert_eq!(
            metrics.statuses().collect::<Vec<_>>(),
            [(1, 0), (2, 2), (3, 0), (4, 1), (5, 0)]
        );
        metrics.count_failure(FailureKind::Trap);
        assert!(metrics.failures().all(|(name, count)| count == u64::from(name == "trap")));
    }
}
