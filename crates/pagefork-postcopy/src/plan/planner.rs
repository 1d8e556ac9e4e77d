//! All layers of one image together: which group next, and what came of it.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::plan::guess::StrideLayer;
use crate::plan::layer::{ListLayer, PlanCounts, PlanLayer};
use crate::plan::window::BackgroundWindow;

/// What to ask for besides what guests wait for.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::FetchPlan;
///
/// // What earlier runs have touched, and then the rest; no guesses.
/// let recorded = vec![0..3, 17..18];
/// let plan = FetchPlan { recorded, stride: false, ..FetchPlan::default() };
/// assert!(plan.background);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchPlan {
    /// Whether the memory node may send along what every instance touches.
    pub certain: bool,
    /// Groups that earlier runs have touched, in their order; see [`PlanReport::recorded`].
    pub recorded: Vec<Range<u64>>,
    /// Whether to guess from the distances of faults.
    pub stride: bool,
    /// Whether to ask for all other groups, too.
    pub background: bool,
    /// How many groups the background asks for at once, at most. It asks for fewer where that is
    /// enough to keep network and nodes busy, while guests wait behind others, and while memory is short.
    pub background_window: u32,
    /// Whether nothing is asked for but what guests wait for until
    /// [`RunningInput::Begin`](crate::RunningInput::Begin).
    pub held: bool,
}

impl Default for FetchPlan {
    /// Every layer that needs no knowledge of the image, with a window of 240 groups at most.
    fn default() -> Self {
        Self {
            certain: true,
            recorded: Vec::new(),
            stride: true,
            background: true,
            background_window: 240,
            held: false,
        }
    }
}

/// What came of a plan.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::{PlanLayer, PlanReport};
///
/// let report = PlanReport::default();
/// assert_eq!(report.counts(PlanLayer::Stride).asked, 0);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlanReport {
    counts: [PlanCounts; PlanLayer::ALL.len()],
    /// The groups that guests have waited for, or are known to have touched, in order: what
    /// [`FetchPlan::recorded`] is for the next run.
    pub recorded: Vec<Range<u64>>,
    /// Of the groups that were asked for, those that did not travel: other images of this node had their
    /// contents.
    pub here: u64,
}

impl PlanReport {
    /// What a layer came to.
    pub fn counts(&self, layer: PlanLayer) -> PlanCounts {
        self.counts[layer as usize]
    }

    fn of(&mut self, layer: PlanLayer) -> &mut PlanCounts {
        &mut self.counts[layer as usize]
    }
}

/// How far a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GroupState {
    Absent,
    /// A guest waits, and it is about to be asked for.
    Queued,
    Asked {
        layer: PlanLayer,
        is_met: bool,
    },
    Present {
        layer: PlanLayer,
        is_used: bool,
    },
    /// It came from elsewhere.
    Given,
}

impl GroupState {
    /// Whether a guest waits for it.
    fn is_waited(self) -> bool {
        match self {
            Self::Queued => true,
            Self::Asked { layer, is_met } => is_met || layer == PlanLayer::Fault,
            Self::Absent | Self::Present { .. } | Self::Given => false,
        }
    }
}

/// The groups of an image, which of them to ask for, and what came of it.
#[derive(Debug)]
pub(crate) struct Planner {
    plan: FetchPlan,
    states: Vec<GroupState>,
    present: u64,
    urgent: VecDeque<u64>,
    /// Groups of layers whose answers were lost.
    again: VecDeque<(u64, PlanLayer)>,
    recorded: ListLayer,
    stride: StrideLayer,
    guesses: VecDeque<u64>,
    background: ListLayer,
    window: BackgroundWindow,
    background_asked: u32,
    /// Whether the background waits until it is known what is here.
    looks_here: bool,
    /// Groups that guests wait for.
    waited: u32,
    report: PlanReport,
}

impl Planner {
    /// Guesses that are kept at once: older ones are of no use any more.
    const GUESSES_MAX: usize = 64;

    /// One for an image of so many groups, of a peer to which a round trip takes so long.
    pub(crate) fn new(plan: FetchPlan, groups: u64, round_trip: Duration) -> Self {
        let background = if plan.background { vec![0..groups] } else { Vec::new() };
        Self {
            states: vec![GroupState::Absent; groups as usize],
            present: 0,
            urgent: VecDeque::new(),
            again: VecDeque::new(),
            recorded: ListLayer::new(within(plan.recorded.clone(), groups)),
            stride: StrideLayer::new(plan.background),
            guesses: VecDeque::new(),
            background: ListLayer::new(background),
            window: BackgroundWindow::new(plan.background_window, round_trip),
            background_asked: 0,
            looks_here: false,
            waited: 0,
            report: PlanReport::default(),
            plan,
        }
    }

    fn state(&self, group: u64) -> Option<GroupState> {
        self.states.get(usize::try_from(group).ok()?).copied()
    }

    fn set(&mut self, group: u64, state: GroupState) {
        let old = std::mem::replace(&mut self.states[group as usize], state);
        self.waited = self.waited + u32::from(state.is_waited()) - u32::from(old.is_waited());
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.present == self.states.len() as u64
    }

    pub(crate) fn is_present(&self, group: u64) -> bool {
        matches!(self.state(group), Some(GroupState::Present { .. } | GroupState::Given))
    }

    pub(crate) fn has(&self, group: u64) -> bool {
        self.state(group).is_some()
    }

    /// A guest waits for a group.
    pub(crate) fn fault(&mut self, group: u64) {
        let Some(state) = self.state(group) else { return };
        let met = match state {
            GroupState::Absent => {
                self.urgent.push_back(group);
                self.set(group, GroupState::Queued);
                None
            }
            GroupState::Asked { layer, is_met: false } => {
                self.report.of(layer).met += 1;
                self.set(group, GroupState::Asked { layer, is_met: true });
                Some(layer)
            }
            // Somebody waits for it already, or need not wait.
            _ => return,
        };
        self.record(group);
        if self.plan.stride {
            let (states, guesses) = (&self.states, &self.guesses);
            // A guess that has not been asked for yet is paid for.
            let is_absent = |group: u64| {
                let state = usize::try_from(group).ok().and_then(|group| states.get(group));
                state == Some(&GroupState::Absent) && !guesses.contains(&group)
            };
            let was_met = met == Some(PlanLayer::Stride);
            let guessed = self.stride.fault(group, was_met, is_absent);
            self.guesses.extend(guessed);
            while self.guesses.len() > Self::GUESSES_MAX {
                self.guesses.pop_front();
            }
        }
    }

    /// Guests have touched these groups after they had come.
    pub(crate) fn touched(&mut self, groups: Range<u64>) {
        for group in groups.start..groups.end.min(self.states.len() as u64) {
            if let GroupState::Present { layer, is_used: false } = self.states[group as usize] {
                self.report.of(layer).touched += 1;
                self.set(group, GroupState::Present { layer, is_used: true });
                self.record(group);
            }
        }
    }

    fn record(&mut self, group: u64) {
        match self.report.recorded.last_mut() {
            Some(last) if last.end == group => last.end += 1,
            _ => self.report.recorded.push(group..group + 1),
        }
    }

    /// What is here is known, and the background need not wait for that.
    pub(crate) fn looked(&mut self) {
        self.looks_here = false;
    }

    /// All layers begin, with what earlier runs have touched, if that layer has nothing else.
    pub(crate) fn begin(&mut self, recorded: Vec<Range<u64>>, looks_here: bool) {
        self.looks_here = looks_here;
        if std::mem::take(&mut self.plan.held) && self.plan.recorded.is_empty() {
            self.recorded = ListLayer::new(within(recorded, self.states.len() as u64));
        }
    }

    /// Memory is short.
    pub(crate) fn pressure(&mut self, now: Instant) {
        self.window.pressure(now);
    }

    /// The groups to ask for next: those that guests wait for, `urgent` at most, and others,
    /// `planned` at most.
    pub(crate) fn next(&mut self, urgent: usize, planned: usize) -> Vec<(u64, PlanLayer)> {
        let mut next = Vec::new();
        while next.len() < urgent {
            let Some(group) = self.urgent.pop_front() else { break };
            if self.state(group) == Some(GroupState::Queued) {
                self.ask(group, PlanLayer::Fault);
                next.push((group, PlanLayer::Fault));
            }
        }
        let all = next.len() + planned;
        while next.len() < all {
            let Some((group, layer)) = self.next_planned() else { break };
            if self.state(group) == Some(GroupState::Absent) {
                self.ask(group, layer);
                next.push((group, layer));
            }
        }
        next
    }

    /// A group that a layer wants; it may be there.
    fn next_planned(&mut self) -> Option<(u64, PlanLayer)> {
        let of = |layer| move |group| (group, layer);
        if self.plan.held {
            return None;
        }
        let again = self.again.pop_front();
        let known = again.or_else(|| self.recorded.next().map(of(PlanLayer::Recorded)));
        if let Some(known) = known.or_else(|| self.guesses.pop_front().map(of(PlanLayer::Stride))) {
            return Some(known);
        }
        if self.looks_here || !self.window.has_room(self.background_asked) {
            return None;
        }
        self.background.next().map(of(PlanLayer::Background))
    }

    fn ask(&mut self, group: u64, layer: PlanLayer) {
        self.report.of(layer).asked += 1;
        self.background_asked += u32::from(layer == PlanLayer::Background);
        self.set(group, GroupState::Asked { layer, is_met: false });
    }

    /// The memory node says that it sends a group unasked.
    pub(crate) fn announced(&mut self, group: u64) {
        let state = self.state(group);
        if matches!(state, Some(GroupState::Absent | GroupState::Queued)) {
            self.ask(group, PlanLayer::Certain);
            let is_met = state == Some(GroupState::Queued);
            self.set(group, GroupState::Asked { layer: PlanLayer::Certain, is_met });
        }
    }

    /// A group is here from elsewhere.
    pub(crate) fn given(&mut self, group: u64) {
        if self.state(group).is_none() || self.is_present(group) {
            return;
        }
        if let Some(GroupState::Asked { layer: PlanLayer::Background, .. }) = self.state(group) {
            self.background_asked -= 1;
        }
        self.set(group, GroupState::Given);
        self.present += 1;
    }

    /// A group was asked for, and is here, `took` later. Gives the layer that has asked; `None` if it
    /// was here before.
    pub(crate) fn arrived(
        &mut self,
        group: u64,
        took: Option<Duration>,
        now: Instant,
    ) -> Option<PlanLayer> {
        let GroupState::Asked { layer, is_met } = self.state(group)? else { return None };
        self.report.of(layer).arrived += 1;
        let is_background = layer == PlanLayer::Background;
        self.background_asked -= u32::from(is_background);
        let is_used = is_met || layer == PlanLayer::Fault;
        self.set(group, GroupState::Present { layer, is_used });
        self.present += 1;
        if let Some(took) = took {
            self.window.answered(took, is_background, self.waited > 0, now);
        }
        Some(layer)
    }

    /// A group that was asked for was found here.
    pub(crate) fn was_here(&mut self, group: u64) {
        if !self.is_present(group) {
            self.report.here += 1;
        }
    }

    /// A group was asked for, and will not come from there.
    pub(crate) fn lost(&mut self, group: u64) {
        let Some(GroupState::Asked { layer, is_met }) = self.state(group) else { return };
        self.background_asked -= u32::from(layer == PlanLayer::Background);
        self.window.forget();
        if is_met || layer == PlanLayer::Fault {
            self.set(group, GroupState::Queued);
            self.urgent.push_front(group);
        } else {
            self.set(group, GroupState::Absent);
            self.again.push_back((group, layer));
        }
    }

    pub(crate) fn report(&self) -> &PlanReport {
        &self.report
    }
}

/// What there is of ranges among so many groups.
fn within(mut ranges: Vec<Range<u64>>, groups: u64) -> Vec<Range<u64>> {
    ranges.iter_mut().for_each(|range| range.end = range.end.min(groups));
    ranges.retain(|range| !range.is_empty());
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn quiet() -> FetchPlan {
        FetchPlan { stride: false, background: false, ..FetchPlan::default() }
    }

    fn groups(planner: &mut Planner, urgent: usize, planned: usize) -> Vec<u64> {
        planner.next(urgent, planned).into_iter().map(|(group, _)| group).collect()
    }

    fn arrive(planner: &mut Planner, groups: Range<u64>) {
        for group in groups {
            let layer = planner.arrived(group, Some(Duration::ZERO), Instant::now());
            assert!(layer.is_some(), "group {group}");
        }
    }

    #[test]
    fn layers_have_their_turn_in_order_and_each_group_is_asked_for_once() {
        let plan = FetchPlan { recorded: vec![7..9, 3..4], background: true, ..quiet() };
        let mut planner = Planner::new(plan, 10, Duration::ZERO);
        planner.announced(8);
        planner.fault(5);
        assert_eq!(groups(&mut planner, 1, 3), [5, 7, 3, 0]);
        assert_eq!(groups(&mut planner, 9, 9), [1, 2, 4, 6, 9]);
        assert_eq!(groups(&mut planner, 9, 9), [0; 0]);
        arrive(&mut planner, 0..10);
        assert!(planner.is_whole());
        let count = |layer| planner.report().counts(layer).arrived;
        assert_eq!(PlanLayer::ALL.map(count), [1, 1, 2, 0, 6]);
    }

    #[test]
    fn the_background_alone_waits_until_it_is_known_what_is_here() {
        let plan = FetchPlan { held: true, background: true, ..quiet() };
        let mut planner = Planner::new(plan, 10, Duration::ZERO);
        planner.begin(vec![7..9], true);
        planner.fault(2);
        assert_eq!(groups(&mut planner, 9, 9), [2, 7, 8]);
        planner.looked();
        assert_eq!(groups(&mut planner, 9, 4), [0, 1, 3, 4]);
    }

    /// Where guests touch a tenth of their pages, in orders in which guesses are wrong and right.
    #[test]
    fn without_the_background_little_is_asked_for_that_no_guest_touches() {
        const PAGES: u64 = 25_000;
        let at_random = |page: &u64| Some((page * 1_664_525 + 1_013_904_223) % PAGES);
        let random: Vec<u64> = std::iter::successors(Some(0), at_random).take(2500).collect();
        let in_runs = random.iter().take(80).flat_map(|start| *start..start + 32).collect();
        let strided = (0..2500).map(|at| at * 17 % PAGES).collect();
        for pages in [random, in_runs, strided, (0..2500).collect::<Vec<u64>>()] {
            let plan = FetchPlan { background: false, ..FetchPlan::default() };
            let mut planner = Planner::new(plan, PAGES / 4, Duration::from_millis(10));
            let mut touched = HashSet::new();
            for group in pages.into_iter().map(|page| page % PAGES / 4) {
                touched.insert(group);
                if !planner.is_present(group) {
                    planner.fault(group);
                    for group in groups(&mut planner, 16, 64) {
                        arrive(&mut planner, group..group + 1);
                    }
                }
            }
            let asked = PlanLayer::ALL.map(|layer| planner.report().counts(layer).asked);
            let (asked, touched) = (asked.iter().sum::<u64>(), touched.len() as u64);
            let enough = touched + 16 + touched / 32;
            assert!(asked <= enough, "{asked} groups for {touched}");
        }
    }

    #[test]
    fn each_layer_is_switched_by_itself() {
        for (layer, plan) in [
            (PlanLayer::Recorded, FetchPlan { recorded: vec![0..4], ..quiet() }),
            (PlanLayer::Stride, FetchPlan { stride: true, ..quiet() }),
            (PlanLayer::Background, FetchPlan { background: true, ..quiet() }),
        ] {
            let mut planner = Planner::new(plan, 1000, Duration::ZERO);
            (0..10).for_each(|at| planner.fault(100 + at * 10));
            planner.next(100, 100);
            for other in PlanLayer::ALL {
                let is_on = other == layer || other == PlanLayer::Fault;
                assert_eq!(planner.report().counts(other).asked > 0, is_on, "{layer:?}, {other:?}");
            }
        }
    }

    #[test]
    fn the_background_takes_less_while_guests_wait_behind_others_and_more_again() {
        const SOON: Duration = Duration::from_millis(1);
        const LATE: Duration = Duration::from_secs(1);
        let plan = FetchPlan { background: true, background_window: 16, ..quiet() };
        let mut planner = Planner::new(plan, 1000, Duration::ZERO);
        let mut now = Instant::now();
        // One group a millisecond: the peer becomes no quicker.
        let mut come = |planner: &mut Planner, groups: &[u64], took| {
            for group in groups {
                now += Duration::from_millis(1);
                assert!(planner.arrived(*group, Some(took), now).is_some(), "group {group}");
            }
        };
        let first = groups(&mut planner, 0, 100);
        assert_eq!(first, [0, 1, 2, 3, 4, 5, 6, 7]);
        come(&mut planner, &first, SOON);
        let all = groups(&mut planner, 0, 100);
        assert_eq!(all.len(), 16);
        // They have waited behind others, as those do that are asked for now.
        come(&mut planner, &all, LATE);
        let many = groups(&mut planner, 0, 100);
        assert!((10..16).contains(&many.len()), "{many:?}");
        (0..2).for_each(|at| planner.fault(900 + at));
        planner.next(2, 0);
        come(&mut planner, &many, LATE);
        let few = groups(&mut planner, 0, 100);
        assert!(few.len() + 5 < many.len(), "{few:?}");
        // Nobody waits any more, and nothing behind others.
        come(&mut planner, &[900, 901], SOON);
        let mut asked = few.clone();
        for _ in 0..8 {
            come(&mut planner, &asked, SOON);
            asked = groups(&mut planner, 0, 100);
        }
        assert_eq!(asked.len(), 16);
        come(&mut planner, &asked, SOON);
        planner.pressure(Instant::now());
        assert_eq!(groups(&mut planner, 0, 100).len(), 1);
    }

    #[test]
    fn a_guest_waits_for_a_group_until_it_is_here_from_wherever() {
        let mut planner = Planner::new(quiet(), 10, Duration::ZERO);
        (0..5).for_each(|group| planner.fault(group));
        planner.fault(0);
        assert_eq!(planner.waited, 5);
        planner.announced(0);
        assert_eq!(groups(&mut planner, 9, 0), [1, 2, 3, 4]);
        planner.fault(1);
        planner.lost(1);
        assert_eq!(planner.waited, 5);
        planner.given(1);
        planner.given(2);
        arrive(&mut planner, 3..5);
        arrive(&mut planner, 0..1);
        assert_eq!(planner.waited, 0);
    }

    #[test]
    fn a_plan_that_is_held_asks_for_what_guests_wait_for_alone() {
        let mut planner =
            Planner::new(FetchPlan { held: true, ..FetchPlan::default() }, 100, Duration::ZERO);
        planner.fault(5);
        assert_eq!(groups(&mut planner, 9, 9), [5]);
        planner.begin(vec![50..52, 3..4, 99..u64::MAX, 200..u64::MAX], false);
        assert_eq!(groups(&mut planner, 9, 4), [50, 51, 3, 99]);
        assert_eq!(planner.report().counts(PlanLayer::Recorded).asked, 4);
        planner.begin(vec![60..61], false);
        assert!(!groups(&mut planner, 9, 1).contains(&60), "it has begun before");
    }

    #[test]
    fn what_was_lost_is_asked_for_again() {
        let plan = FetchPlan { background: true, ..quiet() };
        let mut planner = Planner::new(plan, 3, Duration::ZERO);
        planner.fault(2);
        assert_eq!(groups(&mut planner, 9, 9), [2, 0, 1]);
        planner.fault(1);
        (0..3).for_each(|group| planner.lost(group));
        assert_eq!(groups(&mut planner, 9, 0), [2, 1]);
        assert_eq!(groups(&mut planner, 9, 9), [0]);
        assert_eq!(planner.report().counts(PlanLayer::Background).met, 1);
        assert_eq!(planner.report().recorded, [2..3, 1..2]);
    }

    #[test]
    fn what_guests_touch_is_counted_and_recorded_once() {
        let plan = FetchPlan { background: true, ..quiet() };
        let mut planner = Planner::new(plan, 8, Duration::ZERO);
        planner.next(0, 4);
        arrive(&mut planner, 0..4);
        planner.touched(2..100);
        planner.touched(2..4);
        let counts = planner.report().counts(PlanLayer::Background);
        assert_eq!((counts.arrived, counts.touched, counts.useless()), (4, 2, 2));
        assert_eq!(planner.report().recorded, [2..4]);
    }
}
