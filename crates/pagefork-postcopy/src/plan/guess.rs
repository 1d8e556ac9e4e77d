//! Guesses from the places of faults: the distance that most of them had. Wrong guesses use up a credit
//! that right ones and faults give back.

use std::collections::VecDeque;

/// How many groups may be guessed. A guess is right if a later fault meets it on its way, or
/// comes right behind where the guesses ended, as it does if all of them came in time.
///
/// Guesses are paid for when they are made, and paid back, each once, if they are right. So what is asked for in vain
/// is [`GuessCredit::MAX`] groups at most, and one for each `for_one` groups that guests touch.
#[derive(Debug)]
struct GuessCredit {
    /// Groups that guests touch for each that may be guessed wrong.
    for_one: u64,
    /// For how many groups there is credit, in parts of which each has `for_one`.
    left: u64,
}

impl GuessCredit {
    /// Groups, to begin with and at most.
    const MAX: u64 = 16;

    fn new(for_one: u64) -> Self {
        Self { for_one, left: Self::MAX * for_one }
    }

    /// A fault has happened, and so many guesses were right, of which so many were touched without a fault.
    fn fault(&mut self, right: u64, unseen: u64) {
        let earned = 1 + right * self.for_one + unseen;
        self.left = (self.left + earned).min(Self::MAX * self.for_one);
    }

    /// Pays for so many groups. Returns whether there is credit for them.
    fn pay(&mut self, groups: u64) -> bool {
        let left = self.left.checked_sub(groups * self.for_one);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }
}

/// Groups at the distance that most of the last faults had.
#[derive(Debug)]
pub(crate) struct StrideLayer {
    last: Option<u64>,
    distances: VecDeque<i64>,
    guessed: Option<StrideGuess>,
    credit: GuessCredit,
}

/// What was guessed up to the last fault, and may be right.
#[derive(Debug)]
struct StrideGuess {
    distance: i64,
    /// How many such distances ahead.
    depth: u64,
    /// The group behind the last of them.
    frontier: Option<u64>,
    /// The groups that were paid for, as far as no fault has met them.
    paid: VecDeque<u64>,
}

impl StrideLayer {
    /// Faults that are looked back at.
    const HISTORY: usize = 8;
    /// Groups that are guessed at a time, at most: twice as many after each guess that was right.
    const DEPTH_MAX: u64 = 16;

    /// Groups that guests touch for each that may be asked for in vain: with the proofs of all, and what the
    /// network adds, that is less than a tenth more than guests need, but for the first [`GuessCredit::MAX`].
    const FOR_ONE: u64 = 32;
    /// The same if all groups are asked for: then a wrong guess costs only its turn.
    const FOR_ONE_OF_ALL: u64 = 4;

    /// One for an image of which all groups are asked for sooner or later, or only some.
    pub(crate) fn new(is_all_asked: bool) -> Self {
        let for_one = if is_all_asked { Self::FOR_ONE_OF_ALL } else { Self::FOR_ONE };
        let credit = GuessCredit::new(for_one);
        Self { last: None, distances: VecDeque::new(), guessed: None, credit }
    }

    /// A guest waits for `group`, which this layer has asked for before if `was_met`. Gives what
    /// to ask for next, of what is absent.
    pub(crate) fn fault(
        &mut self,
        group: u64,
        was_met: bool,
        is_absent: impl Fn(u64) -> bool,
    ) -> Vec<u64> {
        let mut right = self.guessed.take();
        let unseen = right.as_mut().and_then(|guess| match guess.frontier == Some(group) {
            true => Some(guess.paid.drain(..).count() as u64),
            // What lies behind it may be right, too, and is paid back when it is met.
            false => {
                let at = guess.paid.iter().position(|paid| was_met && *paid == group)?;
                Some(guess.paid.drain(..=at).count() as u64 - 1)
            }
        });
        right = right.filter(|_| unseen.is_some());
        let unseen = unseen.unwrap_or(0);
        self.credit.fault(unseen + u64::from(was_met), unseen);
        let distance = match (&right, self.last.replace(group)) {
            // What lies between was guessed right, and so did not fault.
            (Some(guess), _) => Some(guess.distance),
            (None, Some(last)) => Some(group.wrapping_sub(last) as i64),
            (None, None) => None,
        };
        self.distances.extend(distance);
        if self.distances.len() > Self::HISTORY {
            self.distances.pop_front();
        }
        let Some(distance) = self.majority() else { return Vec::new() };
        let at = |index: u64| group.checked_add_signed(distance.checked_mul(index as i64)?);
        let depth = right.as_ref().map_or(1, |guess| (2 * guess.depth).min(Self::DEPTH_MAX));
        // Behind what is still on its way.
        let guesses = (1..=depth).map_while(at).filter(|group| is_absent(*group));
        let guesses: Vec<u64> = guesses.collect();
        if !self.credit.pay(guesses.len() as u64) {
            return Vec::new();
        }
        let mut paid = right.map(|guess| guess.paid).unwrap_or_default();
        paid.extend(&guesses);
        self.guessed = Some(StrideGuess { distance, depth, frontier: at(depth + 1), paid });
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Runs faults through `fault`, where what was asked for comes in time. Gives the number of
    /// faults, and how many groups were guessed.
    fn faults(
        groups: impl Iterator<Item = u64>,
        mut fault: impl FnMut(u64, &dyn Fn(u64) -> bool) -> Vec<u64>,
    ) -> (usize, usize) {
        let mut here = HashSet::new();
        let (mut count, mut guessed) = (0, 0);
        for group in groups {
            if here.insert(group) {
                count += 1;
                let guesses = fault(group, &|group| !here.contains(&group));
                guessed += guesses.len();
                here.extend(guesses);
            }
        }
        (count, guessed)
    }

    #[test]
    fn steady_distances_are_found_and_kept() {
        for is_all_asked in [false, true] {
            for stride in [1, 3, 1000] {
                let mut layer = StrideLayer::new(is_all_asked);
                let groups = (0..1000).map(|at| at * stride);
                let (count, _) = faults(groups, |group, absent| layer.fault(group, false, absent));
                assert!(count < 80, "{stride}: {count} faults");
            }
            let mut layer = StrideLayer::new(is_all_asked);
            let groups = (0..1000).rev();
            let (count, _) = faults(groups, |group, absent| layer.fault(group, false, absent));
            assert!(count < 80, "backwards: {count} faults");
        }
    }

    /// Runs of eight groups at random places, each of which ends where more is guessed; and distances that
    /// change at each fourth step, as pages at a steady distance that is no multiple of a group.
    #[test]
    fn wrong_guesses_are_few_for_what_guests_touch_and_right_ones_are_made_again() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 40
        };
        let mut runs: Vec<u64> = Vec::new();
        for _ in 0..500 {
            let start = random();
            runs.extend(start..start + 8);
        }
        let uneven = (0..4000).map(|at| at * 17 / 4).collect();
        for groups in [runs, uneven] {
            let mut layer = StrideLayer::new(false);
            let touched = groups.len();
            let (count, asked) =
                faults(groups.into_iter(), |group, absent| layer.fault(group, false, absent));
            let useless = count + asked - touched;
            assert!(asked > 100, "{asked} groups were guessed");
            assert!(useless <= 16 + touched / 32, "{useless} of {asked} were asked for in vain");
            let groups = (1 << 50)..(1 << 50) + 1000;
            let (count, _) = faults(groups, |group, absent| layer.fault(group, false, absent));
            assert!(count < 500, "after {count} faults it has not tried again");
        }
    }

    /// As [`faults`], where all that is asked for comes when a guest waits for it, and not before: each guess that is
    /// right is met. Gives how many groups were guessed, and how many of those in vain.
    fn met(groups: impl Iterator<Item = u64>, layer: &mut StrideLayer) -> (usize, usize) {
        let (mut here, mut asked) = (HashSet::new(), HashSet::new());
        for group in groups {
            if here.insert(group) {
                let was_met = asked.contains(&group);
                let is_absent = |group| !here.contains(&group) && !asked.contains(&group);
                let guesses = layer.fault(group, was_met, is_absent);
                asked.extend(guesses);
            }
        }
        (asked.len(), asked.difference(&here).count())
    }

    /// Runs of six groups at random places, by a guest that is quicker than the network: it meets the first of what
    /// was guessed, and leaves the rest.
    #[test]
    fn guesses_that_are_met_pay_for_no_others() {
        let mut state = 1_u64;
        let runs = (0..1000).flat_map(move |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            state >> 40..(state >> 40) + 6
        });
        for is_all_asked in [false, true] {
            let mut layer = StrideLayer::new(is_all_asked);
            let (guessed, in_vain) = met(runs.clone(), &mut layer);
            let bound = 16 + 6000 / layer.credit.for_one as usize;
            assert!(guessed > 100 && in_vain <= bound, "{in_vain} of {guessed} in vain");
            let (guessed, in_vain) = met((1 << 50)..(1 << 50) + 1000, &mut layer);
            assert!(guessed > 900 && in_vain <= 16, "{in_vain} of {guessed}");
        }
    }
}
