//! How many groups the background may have asked for at once: enough to keep the network and both
//! nodes busy, and so few that what a guest waits for does not stand behind them.

use std::time::{Duration, Instant};

use crate::plan::rate::GroupRate;

/// The window of the background.
///
/// The shortest time that an answer has ever taken is that of the network alone. What the quickest
/// answer of a round takes longer has been spent behind groups that were asked for before the
/// round: so time and window together say how many groups wait. (Those of one round also wait for
/// each other, as they are asked for together. That says nothing: Copa, Arun and Balakrishnan 2018,
/// looks at the least delay of a round for the same reason.) By that it grows and shrinks slowly, so that
/// few wait; and as long as a guest waits behind them, with each group that comes before its own.
///
/// As long as round trips bring more and more, though, groups wait for a sender that begins slowly: the window
/// is as large then as such a sender needs it, and shrinks for nobody. And it never shrinks below what round trips
/// have brought of late: what waits longer than that waits for something else, for datagrams that were lost.
#[derive(Debug)]
pub(crate) struct BackgroundWindow {
    /// Groups.
    size: f64,
    size_max: f64,
    /// How many groups come in a round trip.
    rate: GroupRate,
    /// Whether they may still become more.
    is_starting: bool,
    /// The shortest time from a question to its answer.
    shortest: Option<Duration>,
    /// The same of this round, and how many answers of it have come.
    quickest: Option<Duration>,
    answers: u32,
    /// How many groups have waited behind others, as the last round tells.
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
    /// By how much it grows and shrinks with a group that comes.
    const STEP: f64 = 0.25;
    /// What a local network needs: as many are asked for at first, at least.
    const FIRST_MIN: f64 = 8.0;
    /// And so many at most, whatever a round trip takes.
    const FIRST_MAX: f64 = 64.0;
    /// Of a farther peer, one is asked for at first for each such part of a round trip: half of what a
    /// line of 1 Gbit/s brings.
    const FIRST_EACH: Duration = Duration::from_micros(250);
    /// As long as round trips bring more, so many groups are asked for, for each one that the last has brought: a
    /// sender that doubles what is on its way has done so by the time that this is known, does so again
    /// before questions are there, and questions go when half of those before are answered.
    const AHEAD: f64 = 8.0;
    /// How long one group at a time is enough after memory was short.
    const SHORT: Duration = Duration::from_secs(2);

    /// One for a peer to which a round trip takes so long.
    pub(crate) fn new(size_max: u32, round_trip: Duration) -> Self {
        let size_max = f64::from(size_max.max(1));
        let first = round_trip.div_duration_f64(Self::FIRST_EACH);
        Self {
            size: first.clamp(Self::FIRST_MIN, Self::FIRST_MAX).min(size_max),
            size_max,
            rate: GroupRate::default(),
            is_starting: true,
            shortest: None,
            quickest: None,
            answers: 0,
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

    /// Memory is short.
    pub(crate) fn pressure(&mut self, now: Instant) {
        self.size = 1.0;
        self.is_starting = false;
        self.short_until = Some(now + Self::SHORT);
    }

    /// A group has come, `took` after it was asked for; `is_before_fault`, if a guest waits for another one.
    pub(crate) fn answered(
        &mut self,
        took: Duration,
        is_background: bool,
        is_before_fault: bool,
        now: Instant,
    ) {
        let shortest = self.shortest.map_or(took, |shortest| shortest.min(took));
        self.shortest = Some(shortest);
        if self.short_until.is_some_and(|until| now < until) {
            return;
        }
        if let Some(brought) = self.rate.came(shortest, is_background, now) {
            self.look_at_start(brought);
        }
        if !is_background {
            return;
        }
        let quickest = self.quickest.map_or(took, |quickest| quickest.min(took));
        self.quickest = Some(quickest);
        self.answers += 1;
        if f64::from(self.answers) >= self.size / 2.0 {
            let behind = quickest.saturating_sub(shortest).as_secs_f64();
            self.waiting = self.size * behind / quickest.as_secs_f64().max(1e-9);
            self.begin_round();
        }
        let is_few = self.waiting < Self::WAITING_MIN;
        let mut step = match is_few {
            true if self.is_starting => 1.0,
            true => Self::STEP,
            false if self.is_starting => 0.0,
            false if self.waiting > Self::WAITING_MAX => -Self::STEP,
            false => 0.0,
        };
        if is_before_fault && !is_few && !self.is_starting {
            step -= Self::STEP;
        }
        // Half of it is under way when questions go.
        let floor = self.size.min(2.0 * self.rate.most_of_late());
        self.size = (self.size + step).max(floor).clamp(1.0, self.size_max);
    }

    /// A round trip is over, and has brought so many groups.
    fn look_at_start(&mut self, brought: f64) {
        if !self.is_starting {
            return;
        }
        if self.rate.is_steady() {
            self.size = self.size.min(2.0 * (self.rate.most_of_late() + Self::WAITING_MAX));
            self.is_starting = false;
        } else {
            self.size = self.size.max(brought * Self::AHEAD).min(self.size_max);
        }
    }

    /// What was asked for is lost: the next peer may be nearer or farther.
    pub(crate) fn forget(&mut self) {
        self.rate = GroupRate::default();
        self.is_starting = true;
        self.shortest = None;
        self.waiting = 0.0;
        self.begin_round();
    }

    fn begin_round(&mut self) {
        self.quickest = None;
        self.answers = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const NEAR: Duration = Duration::from_micros(100);
    const FAR: Duration = Duration::from_millis(10);

    /// A peer that answers one group after the other, each in `service`, behind a network of `round_trip`.
    struct Peer {
        round_trip: Duration,
        service: Duration,
        window: BackgroundWindow,
        now: Instant,
        /// When groups were asked for, and when they come.
        asked: VecDeque<(Instant, Instant)>,
        is_before_fault: bool,
    }

    impl Peer {
        fn new(round_trip: Duration, service: Duration) -> Self {
            let window = BackgroundWindow::new(240, round_trip);
            let (now, asked) = (Instant::now(), VecDeque::new());
            Self { round_trip, service, window, now, asked, is_before_fault: false }
        }

        /// Asks for as many as it may. Gives how many are under way.
        fn ask(&mut self) -> usize {
            while self.window.has_room(self.asked.len() as u32) {
                let at_peer = self.now + self.round_trip;
                let last = self.asked.back().map_or(at_peer, |(_, comes)| at_peer.max(*comes));
                self.asked.push_back((self.now, last + self.service));
            }
            self.asked.len()
        }

        /// Lets so many groups come, and asks for others. Gives the most that were under way.
        fn answer(&mut self, groups: usize) -> usize {
            let mut most = self.ask();
            for _ in 0..groups {
                let (asked, comes) = self.asked.pop_front().unwrap();
                self.now = self.now.max(comes);
                self.window.answered(comes - asked, true, self.is_before_fault, self.now);
                most = most.max(self.ask());
            }
            most
        }

        /// How many groups the network holds.
        fn in_network(&self) -> f64 {
            self.round_trip.div_duration_f64(self.service)
        }
    }

    #[test]
    fn it_is_as_large_as_the_network_needs_and_little_waits() {
        for (round_trip, service) in [(NEAR, 130), (NEAR, 50), (FAR, 130), (FAR / 2, 50)] {
            let mut peer = Peer::new(round_trip, Duration::from_micros(service));
            peer.answer(3000);
            // The half that is under way when questions go is as much as the network holds, and some.
            let waiting = peer.window.size / 2.0 - peer.in_network();
            let few = 12.0 + peer.in_network() / 4.0;
            assert!(waiting < few, "{round_trip:?}, {service} us: {waiting} groups wait");
            // As quick as the peer can be.
            let began = peer.now;
            peer.answer(1000);
            assert!(peer.now - began < peer.service * 1050, "{round_trip:?}, {service} us");
        }
    }

    /// Groups that are asked for together come one after the other. They have waited for each other, and
    /// that is no reason to ask for fewer: between two rounds the peer has nothing to do.
    #[test]
    fn a_far_peer_is_asked_for_twice_as_much_in_each_round_until_it_is_busy() {
        let mut peer = Peer::new(FAR, Duration::from_micros(60));
        let began = peer.now;
        peer.answer(600);
        let took = peer.now - began;
        // 40 in the first round trip, and then as many as the peer can.
        assert!(took < FAR * 4 + peer.service * 600, "{took:?}");
        let mut near = Peer::new(NEAR, Duration::from_micros(60));
        let most = near.answer(600);
        assert!(most <= 32, "{most} groups of a near one");
    }

    /// A sender that begins with few groups on their way, and doubles them in each round trip as long as it
    /// has enough to send, on a line that takes `service` for each.
    struct Sender {
        round_trip: Duration,
        service: Duration,
        window: BackgroundWindow,
        now: Instant,
        /// How many it may have on their way.
        may: f64,
        /// Questions on their way: when they went, and when they are there.
        asked: VecDeque<(Instant, Instant)>,
        /// Groups on their way: when they were asked for, and when they come.
        sent: VecDeque<(Instant, Instant)>,
        /// When it learns that groups have come, and whether it had all sent that it might.
        known: VecDeque<(Instant, bool)>,
        is_before_fault: bool,
    }

    impl Sender {
        fn new(round_trip: Duration, service: Duration) -> Self {
            Self {
                round_trip,
                service,
                window: BackgroundWindow::new(240, round_trip),
                now: Instant::now(),
                may: 4.0,
                asked: VecDeque::new(),
                sent: VecDeque::new(),
                known: VecDeque::new(),
                is_before_fault: false,
            }
        }

        /// What it has on its way until it learns that it has come.
        fn on_its_way(&self) -> f64 {
            (self.sent.len() + self.known.len()) as f64
        }

        /// Lets so many groups come. Gives the time that takes.
        fn answer(&mut self, groups: usize) -> Duration {
            let (began, mut left) = (self.now, groups);
            let mut line = self.now;
            while left > 0 {
                while self.window.has_room((self.asked.len() + self.sent.len()) as u32) {
                    self.asked.push_back((self.now, self.now + self.round_trip / 2));
                }
                while let Some((asked, there)) = self.asked.front().copied()
                    && there <= self.now
                    && self.on_its_way() < self.may
                {
                    self.asked.pop_front();
                    line = line.max(self.now) + self.service;
                    self.sent.push_back((asked, line + self.round_trip / 2));
                }
                let next = [
                    self.asked.front().map(|(_, there)| *there).filter(|at| *at > self.now),
                    self.sent.front().map(|(_, comes)| *comes),
                    self.known.front().map(|(at, _)| *at),
                ];
                self.now = next.into_iter().flatten().min().unwrap();
                while self.known.front().is_some_and(|(at, _)| *at <= self.now) {
                    let (_, was_all) = self.known.pop_front().unwrap();
                    self.may += f64::from(u8::from(was_all));
                }
                while self.sent.front().is_some_and(|(_, comes)| *comes <= self.now) {
                    let is_all = self.on_its_way() >= self.may - 1.0;
                    let (asked, _) = self.sent.pop_front().unwrap();
                    self.known.push_back((self.now + self.round_trip / 2, is_all));
                    let is_before = self.is_before_fault;
                    self.window.answered(self.now - asked, true, is_before, self.now);
                    left = left.saturating_sub(1);
                }
            }
            self.now - began
        }
    }

    #[test]
    fn a_sender_that_begins_slowly_is_never_short_of_questions() {
        for (round_trip, service) in [(FAR, 60), (FAR, 200), (FAR * 3, 200), (FAR, 1000)] {
            let mut sender = Sender::new(round_trip, Duration::from_micros(service));
            let network = round_trip.div_duration_f64(sender.service);
            // It doubles 4 groups until all of them are in the network.
            let doublings = (network / 4.0).log2().ceil().max(0.0) as u32;
            let took = sender.answer(600);
            let floor = sender.service * 600 + round_trip * doublings;
            assert!(took <= floor, "{round_trip:?}, {service} us: {took:?}");
            // And then, few wait.
            sender.answer(3000);
            let waiting = sender.window.size / 2.0 - network;
            assert!(waiting < 12.0, "{round_trip:?}, {service} us: {waiting} groups wait");
        }
    }

    /// What was lost comes again some round trips later, and what came meanwhile is given out behind it. So
    /// much waits long, and not behind others.
    #[test]
    fn what_was_lost_does_not_make_it_smaller_than_the_network() {
        for service in [60, 200] {
            let mut sender = Sender::new(FAR, Duration::from_micros(service));
            sender.is_before_fault = true;
            sender.answer(2000);
            let mut took = Duration::ZERO;
            for _ in 0..8 {
                let again = sender.now + FAR * 3;
                sender.sent.iter_mut().for_each(|(_, comes)| *comes = again.max(*comes));
                took += sender.answer(200);
            }
            let floor = sender.service * 200 + FAR * 3;
            assert!(took < floor * 8, "{service} us: {took:?}");
        }
    }

    #[test]
    fn it_shrinks_while_somebody_waits_behind_others() {
        let mut peer = Peer::new(NEAR, Duration::from_micros(60));
        peer.answer(3000);
        let before = peer.window.size;
        peer.is_before_fault = true;
        peer.answer(40);
        assert!(peer.window.size <= before - 1.0, "{} of {before}", peer.window.size);
        // Nothing has waited yet: there is no reason to.
        let mut peer = Peer::new(FAR, Duration::from_micros(60));
        peer.is_before_fault = true;
        let before = peer.window.size;
        peer.answer(40);
        assert_eq!(peer.window.size, before + 40.0);
    }

    #[test]
    fn it_stays_small_while_memory_is_short() {
        let mut peer = Peer::new(NEAR, Duration::from_micros(60));
        peer.answer(100);
        peer.window.pressure(peer.now);
        peer.answer(100);
        assert_eq!(peer.window.size, 1.0);
        peer.now += BackgroundWindow::SHORT;
        peer.answer(100);
        assert!(peer.window.size > 4.0);
    }

    #[test]
    fn questions_go_together() {
        let mut window = BackgroundWindow::new(64, FAR * 2);
        assert_eq!((0..100).take_while(|asked| window.has_room(*asked)).count(), 64);
        assert!(!window.has_room(33), "half of it is free first");
        assert!((32..64).all(|asked| window.has_room(asked)));
    }

    #[test]
    fn another_peer_may_be_farther() {
        let mut peer = Peer::new(NEAR, Duration::from_micros(60));
        peer.answer(3000);
        let before = peer.window.size;
        (peer.round_trip, peer.asked) = (FAR, VecDeque::new());
        peer.window.forget();
        peer.answer(120);
        assert!(peer.window.size > 5.0 * before, "{} after {before}", peer.window.size);
    }
}
