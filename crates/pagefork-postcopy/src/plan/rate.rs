//! How many groups a round trip brings, and whether they still become more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What comes in a round trip.
///
/// A sender begins with few bytes on their way and doubles them in each round trip, as long as it has enough
/// to send. Meanwhile what is asked for waits although the network could take more: only that no more comes says that
/// it cannot (Cardwell et al. 2016, BBR, ends its start in the same way).
#[derive(Debug, Default)]
pub(crate) struct GroupRate {
    /// When the round trip has begun that is looked at, and how many groups have come since.
    span: Option<(Instant, u32)>,
    /// What the last ones have brought.
    recent: VecDeque<f64>,
    /// The most that one has brought.
    most: f64,
    /// How many have brought no more than those before them.
    steady: u32,
}

impl GroupRate {
    /// More came if there are so many times the most before, at least: a sender that begins doubles it.
    const MORE: f64 = 1.25;
    /// Round trips that bring no more, after which none will.
    const STEADY: u32 = 3;
    /// Round trips that are recent. What was lost has to come again, which takes some of them.
    const RECENT: usize = 8;
    /// Groups are counted for this time, at least: of a shorter one, it says little when they were looked at.
    const SPAN_MIN: Duration = Duration::from_millis(2);

    /// A group has come, and none sooner than `round_trip` after its question. Time counts from the first one of
    /// the background on: before that nothing keeps the network busy. Returns what a round trip
    /// has brought, when one is over.
    pub(crate) fn came(
        &mut self,
        round_trip: Duration,
        is_background: bool,
        now: Instant,
    ) -> Option<f64> {
        let Some((began, count)) = &mut self.span else {
            self.span = is_background.then_some((now, 0));
            return None;
        };
        *count += 1;
        let span = now.saturating_duration_since(*began);
        if span < round_trip.max(Self::SPAN_MIN) {
            return None;
        }
        let brought = f64::from(*count) * round_trip.div_duration_f64(span);
        self.span = Some((now, 0));
        self.steady = if brought < self.most * Self::MORE { self.steady + 1 } else { 0 };
        self.most = self.most.max(brought);
        if self.recent.len() == Self::RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(brought);
        Some(brought)
    }

    /// The most that one of the last round trips has brought.
    pub(crate) fn most_of_late(&self) -> f64 {
        self.recent.iter().copied().fold(0.0, f64::max)
    }

    /// Whether round trips bring no more than those before them.
    pub(crate) fn is_steady(&self) -> bool {
        self.steady >= Self::STEADY
    }
}
