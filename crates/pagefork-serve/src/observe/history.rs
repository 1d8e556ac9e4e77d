use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::observe::metrics::{Buckets, Metrics};

/// How often a sample is taken.
pub(crate) const STEP: Duration = Duration::from_secs(2);

/// Samples that are kept: those of five minutes.
const COUNT_MAX: usize = 150;

/// What was counted in the last minutes, step by step, for the status page.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<State>);

#[derive(Debug, Default)]
struct State {
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
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
            if state.samples.len() == COUNT_MAX {
                state.samples.pop_front();
            }
            state.samples.push_back(sample);
        }
    }

    /// The last one last.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.samples.iter().copied().collect()
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
        metrics.count_failure(crate::handler::failure::FailureKind::Trap);
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
        assert_eq!(history.samples().len(), COUNT_MAX);
    }
}
