//! Groups that a peer has asked for, in the order in which they are read and sent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::wire::frame::Lane;

/// A group of an image, by the number that the image has on the connection.
pub(crate) type GroupName = (u32, u64);

/// Groups that wait, and those that are being read.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeMap<(Lane, u64), GroupName>,
    places: BTreeMap<GroupName, (Lane, u64)>,
    reading: HashMap<GroupName, Lane>,
    /// Of the groups that are being read, those that are not wanted any more.
    dropped: HashSet<GroupName>,
    /// Of all but the dropped ones, those in [`Lane::Control`]: they were not asked for.
    unasked: usize,
    next: u64,
}

impl Backlog {
    /// Groups that were asked for, and wait or are being read.
    pub(crate) fn asked(&self) -> usize {
        self.waiting.len() + self.reading.len() - self.dropped.len() - self.unasked
    }

    pub(crate) fn reading(&self) -> usize {
        self.reading.len()
    }

    /// Whether a group waits, or is being read.
    pub(crate) fn has(&self, group: GroupName) -> bool {
        self.places.contains_key(&group) || self.reading.contains_key(&group)
    }

    /// Adds a group, or lets it go earlier if it waits already. Certain groups are in
    /// [`Lane::Control`], behind urgent ones.
    pub(crate) fn add(&mut self, group: GroupName, lane: Lane) {
        match self.reading.get_mut(&group) {
            Some(reading) if *reading != Lane::Control => *reading = (*reading).min(lane),
            Some(_) => {}
            None => self.place(group, lane),
        }
    }

    /// Lets a group go earlier, if it is still here.
    pub(crate) fn raise(&mut self, group: GroupName) {
        if let Some(reading) = self.reading.get_mut(&group) {
            // What follows a head on its stream stays there.
            if *reading != Lane::Control {
                *reading = Lane::Urgent;
            }
        } else if self.places.contains_key(&group) {
            self.place(group, Lane::Urgent);
        }
    }

    fn place(&mut self, group: GroupName, lane: Lane) {
        let lane = match self.places.get(&group) {
            Some((old, _)) if *old <= lane => return,
            _ => lane,
        };
        self.remove(group);
        let place = (lane, self.next);
        self.next += 1;
        self.unasked += usize::from(lane == Lane::Control);
        self.waiting.insert(place, group);
        self.places.insert(group, place);
    }

    /// Takes a group away that is not being read yet.
    fn remove(&mut self, group: GroupName) {
        let Some(place) = self.places.remove(&group) else { return };
        self.waiting.remove(&place);
        self.unasked -= usize::from(place.0 == Lane::Control);
    }

    /// Takes those of the groups away that are not being read yet, and gives them. That takes time for each one that
    /// is there: a long range costs nothing by itself.
    pub(crate) fn take_back(&mut self, image: u32, groups: Range<u64>) -> Vec<u64> {
        let taken = self.places.range((image, groups.start)..(image, groups.end));
        let taken: Vec<u64> = taken.map(|((_, group), _)| *group).collect();
        taken.iter().for_each(|group| self.remove((image, *group)));
        taken
    }

    /// Nothing of an image is wanted any more.
    pub(crate) fn cancel_image(&mut self, image: u32) {
        let waiting = self.places.range((image, 0)..=(image, u64::MAX));
        let waiting: Vec<GroupName> = waiting.map(|(group, _)| *group).collect();
        waiting.into_iter().for_each(|group| self.remove(group));
        for (group, lane) in self.reading.iter().filter(|(group, _)| group.0 == image) {
            if self.dropped.insert(*group) {
                self.unasked -= usize::from(*lane == Lane::Control);
            }
        }
    }

    /// Whether a guest waits for the group that is next.
    pub(crate) fn is_urgent(&self) -> bool {
        self.waiting.range((Lane::Urgent, 0)..(Lane::Planned, 0)).next().is_some()
    }

    /// Takes the group that is to be read next.
    pub(crate) fn next(&mut self) -> Option<GroupName> {
        let urgent = self.waiting.range((Lane::Urgent, 0)..(Lane::Planned, 0)).next();
        let (place, group) = urgent.or_else(|| self.waiting.first_key_value())?;
        let (place, group) = (*place, *group);
        self.remove(group);
        self.unasked += usize::from(place.0 == Lane::Control);
        self.reading.insert(group, place.0);
        Some(group)
    }

    /// A group was read. Gives the lane that it goes to, if it is still wanted.
    pub(crate) fn read(&mut self, group: GroupName) -> Option<Lane> {
        let lane = self.reading.remove(&group)?;
        if self.dropped.remove(&group) {
            return None;
        }
        self.unasked -= usize::from(lane == Lane::Control);
        Some(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_go_by_lane_and_then_in_order_and_urgent_ones_before_all() {
        let mut backlog = Backlog::default();
        backlog.add((1, 1), Lane::Background);
        backlog.add((1, 2), Lane::Planned);
        backlog.add((1, 3), Lane::Background);
        backlog.add((2, 4), Lane::Control);
        backlog.add((1, 5), Lane::Urgent);
        backlog.raise((1, 3));
        backlog.raise((1, 9));
        backlog.add((1, 2), Lane::Background);
        assert_eq!(backlog.asked(), 4);
        let order: Vec<u64> = std::iter::from_fn(|| backlog.next()).map(|name| name.1).collect();
        assert_eq!(order, [5, 3, 4, 2, 1]);
        assert_eq!(backlog.read((1, 3)), Some(Lane::Urgent));
        assert_eq!(backlog.read((1, 3)), None);
        backlog.cancel_image(1);
        assert_eq!(backlog.asked(), 0);
        assert_eq!([(1, 5), (2, 4)].map(|name| backlog.read(name)), [None, Some(Lane::Control)]);
        assert_eq!(backlog.asked(), 0);
    }

    #[test]
    fn what_is_taken_back_is_what_waits_of_one_image_however_long_the_range() {
        let mut backlog = Backlog::default();
        for (image, group) in [(1, 5), (1, 6), (1, 7), (2, 6), (0, 6)] {
            backlog.add((image, group), Lane::Planned);
        }
        assert_eq!(backlog.next(), Some((1, 5)));
        // Whoever looked for each would not be back today.
        assert_eq!(backlog.take_back(1, 0..u64::MAX), [6, 7]);
        assert_eq!(backlog.take_back(1, 0..u64::MAX), []);
        assert!(backlog.has((1, 5)), "it is being read");
        assert_eq!(backlog.asked(), 3);
        backlog.cancel_image(0);
        assert!(backlog.has((2, 6)) && !backlog.has((0, 6)));
    }
}
