//! How many groups the background may have asked for at once: enough to keep the network and both
//! nodes busy, and so few that what a guest waits for does not stand behind them.

use std::time::{Duration, Instant};

/// The window of the background.
///
/// The shortest time that an answer has ever taken is that of the network alone. What an answer
/// takes longer, it has waited somewhere behind others: so time and window together say how many
/// groups wait. The window grows as long as these are few, and shrinks when they are many; a fault
/// halves it, since who waits for that group is behind them, too.
#[derive(Debug)]
pub(crate) struct BackgroundWindow {
    /// Groups.
    size: f64,
    size_max: f64,
    /// The shortest time from a question to its answer.
    shortest: Option<Duration>,
    /// How many groups have waited behind others, as the last answer tells.
    waiting: f64,
    /// Memory is short until then.
    short_until: Option<Instant>,
    /// Whether it is being filled: questions go together, so it is not before half of it is free.
    is_filling: bool,
}

impl BackgroundWindow {
    /// Below so many groups that wait behind others, the window grows: both nodes have work.
    const WAITING_MIN: f64 = 3.0;
    /// Above so many, it shrinks.
    const WAITING_MAX: f64 = 6.0;
    /// How long one group at a time is enough after memory was short.
    const SHORT: Duration = Duration::from_secs(2);

    pub(crate) fn new(size_max: u32) -> Self {
        let size_max = f64::from(size_max.max(1));
        // Before anything is known, what a local network needs.
        Self {
            size: size_max.min(8.0),
            size_max,
            shortest: None,
            waiting: 0.0,
            short_until: None,
            is_filling: true,
        }
    }

    /// Whether another group may be asked for when `asked` have no answer yet.
    pub(crate) fn has_room(&mut self, asked: u32) -> bool {
        let size = self.size as u32;
        self.is_filling = asked <= size / 2 || self.is_filling && asked < size;
        self.is_filling && asked < size
    }

    /// A guest waits.
    pub(crate) fn fault(&mut self) {
        if self.waiting >= Self::WAITING_MIN {
            self.size = (self.size / 2.0).max(1.0);
        }
    }

    /// Memory is short.
    pub(crate) fn pressure(&mut self, now: Instant) {
        self.size = 1.0;
        self.short_until = Some(now + Self::SHORT);
    }

    /// A group has come, `took` after it was asked for.
    pub(crate) fn answered(&mut self, took: Duration, is_background: bool, now: Instant) {
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        if self.short_until.is_some_and(|until| now < until) || !is_background {
            return;
        }
        let behind = took.saturating_sub(shortest).as_secs_f64();
        self.waiting = self.size * behind / took.as_secs_f64().max(1e-9);
        if self.waiting < Self::WAITING_MIN {
            self.size = (self.size + 1.0).min(self.size_max);
        } else if self.waiting > Self::WAITING_MAX {
            // By one group in each round.
            self.size = (self.size - 1.0 / self.size).max(1.0);
        }
    }

    /// What was asked for is lost: the next peer may be nearer or farther.
    pub(crate) fn forget(&mut self) {
        self.shortest = None;
        self.waiting = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks a peer that answers one group after the other, each in `service`, behind a network of
    /// `round_trip`, for `rounds` answers. Gives the window, and how many groups wait at the peer.
    fn settle(round_trip: Duration, service: Duration, rounds: u32) -> (f64, f64) {
        let mut window = BackgroundWindow::new(256);
        let now = Instant::now();
        for _ in 0..rounds {
            // More than what the network holds waits.
            let in_network = round_trip.as_secs_f64() / service.as_secs_f64();
            let waiting = (window.size - in_network).max(1.0);
            window.answered(round_trip + service.mul_f64(waiting), true, now);
            // The first of a round has waited for nothing.
            window.answered(round_trip + service, false, now);
        }
        let in_network = round_trip.as_secs_f64() / service.as_secs_f64();
        (window.size, (window.size - in_network).max(0.0))
    }

    #[test]
    fn it_is_as_large_as_the_network_needs_and_little_waits() {
        let [near, far] = [100, 10_000].map(Duration::from_micros);
        let service = Duration::from_micros(130);
        let (near, waiting_near) = settle(near, service, 10_000);
        let (far, waiting_far) = settle(far, service, 10_000);
        assert!(near < 12.0 && waiting_near < 10.0, "{near} {waiting_near}");
        assert!(far > 75.0 && waiting_far < 10.0, "{far} {waiting_far}");
    }

    /// How many groups are asked for when it lets no more be.
    fn fill(window: &mut BackgroundWindow, mut asked: u32) -> u32 {
        while window.has_room(asked) {
            asked += 1;
        }
        asked
    }

    #[test]
    fn it_shrinks_at_faults_behind_others_and_stays_small_while_memory_is_short() {
        let mut window = BackgroundWindow::new(64);
        let (now, took) = (Instant::now(), Duration::from_millis(1));
        (0..100).for_each(|_| window.answered(took, true, now));
        assert_eq!(fill(&mut window, 0), 64);
        assert_eq!(fill(&mut window, 33), 33, "half of it is free first");
        assert_eq!(fill(&mut window, 32), 64);
        window.fault();
        assert_eq!(fill(&mut window, 0), 64, "nothing waits behind others");
        window.answered(3 * took, true, now);
        window.fault();
        assert_eq!(fill(&mut window, 0), 31);
        window.pressure(now);
        (0..100).for_each(|_| window.answered(took, true, now));
        assert_eq!(fill(&mut window, 0), 1);
        window.answered(took, true, now + BackgroundWindow::SHORT);
        assert_eq!(fill(&mut window, 0), 2);
    }

    #[test]
    fn groups_that_wait_behind_others_are_noticed() {
        let mut window = BackgroundWindow::new(64);
        let now = Instant::now();
        window.answered(Duration::from_micros(100), false, now);
        let before = window.size;
        window.answered(Duration::from_millis(5), true, now);
        assert!(window.size < before);
        window.forget();
        window.answered(Duration::from_millis(5), true, now);
        assert!(window.size > before - 0.5, "the next peer is as far as that");
    }
}
