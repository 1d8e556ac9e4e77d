//! Groups that a peer has asked for, in the order in which they are read and sent.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::wire::frame::Lane;

/// A group of an image, by the number that the image has on the connection.
pub(crate) type GroupName = (u32, u64);

/// Groups that wait, and those that are being read.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeMap<(Lane, u64), GroupName>,
    places: HashMap<GroupName, (Lane, u64)>,
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

    /// Takes a group away that is not being read yet. Gives whether there was one.
    pub(crate) fn remove(&mut self, group: GroupName) -> bool {
        let Some(place) = self.places.remove(&group) else { return false };
        self.waiting.remove(&place);
        self.unasked -= usize::from(place.0 == Lane::Control);
        true
    }

    /// Nothing of an image is wanted any more.
    pub(crate) fn cancel_image(&mut self, image: u32) {
        let of_image = |group: &&GroupName| group.0 == image;
        let waiting: Vec<GroupName> = self.places.keys().filter(of_image).copied().collect();
        for group in waiting {
            self.remove(group);
        }
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
}
