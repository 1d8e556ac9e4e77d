//! Guesses from the places of faults: the distance that most of them had, and what lies beside
//! them. A layer that guesses wrong too often rests.

use std::collections::VecDeque;

/// Whether a layer's guesses are of use. A guess is right if a later fault meets it on its way, or
/// comes right behind where the guesses ended, as it does if all of them came in time.
#[derive(Debug)]
pub(crate) struct GuessWorth {
    /// Wrong guesses that it may still make.
    credit: u32,
    /// Faults for which it still rests.
    rest: u32,
}

impl GuessWorth {
    const CREDIT: u32 = 4;
    const CREDIT_MAX: u32 = 8;
    /// Faults for which a useless layer rests. Then one guess decides about the next rest.
    const REST: u32 = 64;

    pub(crate) fn new() -> Self {
        Self { credit: Self::CREDIT, rest: 0 }
    }

    /// A fault has happened, after guesses if `was_right` is something.
    fn fault(&mut self, was_right: Option<bool>) {
        match was_right {
            Some(true) => self.credit = (self.credit + 2).min(Self::CREDIT_MAX),
            Some(false) if self.credit > 1 => self.credit -= 1,
            Some(false) => (self.credit, self.rest) = (1, Self::REST),
            None => self.rest = self.rest.saturating_sub(1),
        }
    }

    fn rests(&self) -> bool {
        self.rest > 0
    }
}

/// Groups at the distance that most of the last faults had.
#[derive(Debug)]
pub(crate) struct StrideLayer {
    last: Option<u64>,
    distances: VecDeque<i64>,
    /// The group behind the last one that was guessed, and the distance.
    frontier: Option<(u64, i64)>,
    worth: GuessWorth,
}

impl StrideLayer {
    /// Faults that are looked back at.
    const HISTORY: usize = 8;
    /// Groups that are guessed at a time.
    const DEPTH: u64 = 16;

    pub(crate) fn new() -> Self {
        let worth = GuessWorth::new();
        Self { last: None, distances: VecDeque::new(), frontier: None, worth }
    }

    /// A guest waits for `group`, which this layer has asked for before if `was_met`. Gives what
    /// to ask for next; some of it may not exist or be there.
    pub(crate) fn fault(&mut self, group: u64, was_met: bool) -> Vec<u64> {
        let guessed = self.frontier;
        let is_right = was_met || guessed.is_some_and(|(frontier, _)| frontier == group);
        self.worth.fault(guessed.map(|_| is_right));
        let distance = match (guessed, self.last.replace(group)) {
            // What lies between was guessed right, and so did not fault.
            (Some((_, stride)), _) if is_right => Some(stride),
            (_, Some(last)) => Some(group.wrapping_sub(last) as i64),
            (_, None) => None,
        };
        self.distances.extend(distance);
        if self.distances.len() > Self::HISTORY {
            self.distances.pop_front();
        }
        self.frontier = None;
        let Some(stride) = self.majority().filter(|_| !self.worth.rests()) else {
            return Vec::new();
        };
        let at = |index: u64| group.checked_add_signed(stride.checked_mul(index as i64)?);
        // Behind what is still on its way.
        let guesses: Vec<u64> = (1..=Self::DEPTH).map_while(at).collect();
        self.frontier = at(Self::DEPTH + 1).map(|frontier| (frontier, stride));
        guesses
    }

    /// The distance that more than half of the faults had.
    fn majority(&self) -> Option<i64> {
        let (mut candidate, mut lead) = (0, 0);
        for distance in &self.distances {
            match (lead, *distance == candidate) {
                (0, _) => (candidate, lead) = (*distance, 1),
                (_, true) => lead += 1,
                (_, false) => lead -= 1,
            }
        }
        let votes = self.distances.iter().filter(|distance| **distance == candidate).count();
        (candidate != 0 && votes > Self::HISTORY / 2).then_some(candidate)
    }
}

/// Groups on both sides of a fault, more of them while that is of use.
#[derive(Debug)]
pub(crate) struct NeighbourLayer {
    /// The last fault, if its neighbours were asked for.
    last: Option<u64>,
    radius: u64,
    worth: GuessWorth,
}

impl NeighbourLayer {
    const RADIUS_MAX: u64 = 8;

    pub(crate) fn new() -> Self {
        Self { last: None, radius: 1, worth: GuessWorth::new() }
    }

    /// As [`StrideLayer::fault`].
    pub(crate) fn fault(&mut self, group: u64, was_met: bool) -> Vec<u64> {
        let guessed = self.last.take();
        let is_right =
            was_met || guessed.is_some_and(|last| last.abs_diff(group) == self.radius + 1);
        self.worth.fault(guessed.map(|_| is_right));
        if guessed.is_some() {
            let radius = if is_right { self.radius * 2 } else { self.radius / 2 };
            self.radius = radius.clamp(1, Self::RADIUS_MAX);
        }
        if self.worth.rests() {
            return Vec::new();
        }
        self.last = Some(group);
        let sides = |distance| [group.checked_add(distance), group.checked_sub(distance)];
        (1..=self.radius).flat_map(sides).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs faults through `fault`, where what was asked for comes in time. Gives the number of
    /// faults.
    fn faults(groups: impl Iterator<Item = u64>, mut fault: impl FnMut(u64) -> Vec<u64>) -> usize {
        let mut here = std::collections::HashSet::new();
        let mut count = 0;
        for group in groups {
            if here.insert(group) {
                count += 1;
                here.extend(fault(group));
            }
        }
        count
    }

    #[test]
    fn steady_distances_are_found_and_kept() {
        for stride in [1, 3, 1000] {
            let mut layer = StrideLayer::new();
            let count = faults((0..1000).map(|at| at * stride), |group| layer.fault(group, false));
            assert!(count < 80, "{stride}: {count} faults");
        }
        let mut layer = StrideLayer::new();
        let count = faults((0..1000).rev(), |group| layer.fault(group, false));
        assert!(count < 80, "backwards: {count} faults");
    }

    #[test]
    fn useless_layers_rest_and_try_again() {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 40
        };
        let (mut stride, mut neighbours) = (StrideLayer::new(), NeighbourLayer::new());
        let mut asked = 0;
        for _ in 0..10_000 {
            let group = random();
            asked += stride.fault(group, false).len() + neighbours.fault(group, false).len();
        }
        assert!(neighbours.worth.rests(), "neighbours of random places are of no use");
        assert!(asked < 1000, "{asked} groups were asked for in vain");
        let groups = (1 << 50)..(1 << 50) + 1000;
        let count = faults(groups, |group| neighbours.fault(group, false));
        assert!(count < 200, "after {count} faults it has not tried again");
    }
}
