//! The last failures, and what was counted in the last minutes, for the status page.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use crate::handler::failure::FailureKind;
use crate::handler::lock::lock;
use crate::observe::metrics::{Buckets, Metrics};

/// How often a sample is taken.
pub(crate) const STEP: Duration = Duration::from_secs(2);

/// Samples that are kept: those of five minutes.
const SAMPLES_MAX: usize = 150;

/// Failures that are kept.
const FAILURES_MAX: usize = 20;

/// Characters of a failure's text that are kept.
const TEXT_MAX: usize = 300;

/// What was counted in the last minutes, step by step.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<HistoryState>);

#[derive(Debug, Default)]
struct HistoryState {
    samples: VecDeque<Sample>,
    /// When the last sample was taken, and what had been counted then.
    last: Option<(Instant, Totals)>,
}

#[derive(Clone, Debug, Default)]
struct Totals {
    requests: u64,
    failures: u64,
    times: Buckets,
}

/// What was counted within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// How long the step was.
    pub(crate) ms: u64,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Half of its requests took at most this long; `None` if there were none.
    pub(crate) half_ns: Option<u64>,
    /// Of a hundred of its requests 99 took at most this long.
    pub(crate) most_ns: Option<u64>,
    pub(crate) resident_bytes: u64,
}

impl History {
    /// Takes a sample.
    pub(crate) fn add(&self, metrics: &Metrics, resident_bytes: u64, now: Instant) {
        let totals = Totals {
            requests: metrics.statuses().map(|(_, count)| count).sum(),
            failures: metrics.failures().map(|(_, count)| count).sum(),
            times: metrics.request.counts(),
        };
        let mut state = lock(&self.0);
        if let Some((then, before)) = state.last.replace((now, totals.clone())) {
            let times = totals.times.since(&before.times);
            let sample = Sample {
                ms: u64::try_from((now - then).as_millis()).unwrap_or(u64::MAX),
                requests: totals.requests.saturating_sub(before.requests),
                failures: totals.failures.saturating_sub(before.failures),
                half_ns: times.quantile(50),
                most_ns: times.quantile(99),
                resident_bytes,
            };
            if state.samples.len() == SAMPLES_MAX {
                state.samples.pop_front();
            }
            state.samples.push_back(sample);
        }
    }

    /// The samples in the order of time.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let state = lock(&self.0);
        state.samples.iter().copied().collect()
    }
}

/// The last failures, the latest first.
#[derive(Debug, Default)]
pub(crate) struct FailureHistory(Mutex<VecDeque<RecentFailure>>);

#[derive(Clone, Debug)]
pub(crate) struct RecentFailure {
    pub(crate) when: SystemTime,
    pub(crate) kind: FailureKind,
    pub(crate) id: String,
    /// What the log says of it, cut.
    pub(crate) text: String,
}

impl FailureHistory {
    pub(crate) fn add(&self, kind: FailureKind, id: String, text: &str) {
        let text = text.chars().take(TEXT_MAX).collect();
        let failure = RecentFailure { when: SystemTime::now(), kind, id, text };
        let mut all = lock(&self.0);
        all.truncate(FAILURES_MAX - 1);
        all.push_front(failure);
    }

    pub(crate) fn all(&self) -> Vec<RecentFailure> {
        let all = lock(&self.0);
        all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_was_counted_within_its_step() {
        let (history, metrics, begun) = (History::default(), Metrics::default(), Instant::now());
        metrics.count_status(200);
        history.add(&metrics, 1, begun);
        assert_eq!(history.samples(), []);
        for ns in [100, 200, 900] {
            metrics.count_status(200);
            metrics.request.observe(Duration::from_nanos(ns));
        }
        metrics.count_failure(FailureKind::Trap);
        history.add(&metrics, 2, begun + Duration::from_secs(1));
        history.add(&metrics, 3, begun + Duration::from_secs(3));
        let first = Sample {
            ms: 1000,
            requests: 3,
            failures: 1,
            half_ns: Some(250),
            most_ns: Some(1000),
            resident_bytes: 2,
        };
        let nothing = Sample {
            ms: 2000,
            requests: 0,
            failures: 0,
            half_ns: None,
            most_ns: None,
            resident_bytes: 3,
        };
        assert_eq!(history.samples(), [first, nothing]);
        for step in 0..1000 {
            history.add(&metrics, 3, begun + Duration::from_secs(4 + step));
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
    }

    #[test]
    fn the_last_failures_are_kept_and_cut() {
        let failures = FailureHistory::default();
        for number in 0..100 {
            failures.add(FailureKind::Trap, number.to_string(), &"\u{e4}".repeat(1000));
        }
        let all = failures.all();
        assert_eq!((all.len(), &*all[0].id, &*all[19].id), (20, "99", "80"));
        assert_eq!(all[0].text.chars().count(), TEXT_MAX);
    }
}
