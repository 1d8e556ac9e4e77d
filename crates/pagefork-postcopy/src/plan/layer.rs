//! The layers of planning: each can be switched off, and each is counted by itself.

use std::ops::Range;

/// Why a group was asked for, in the order in which layers have their turn.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::PlanLayer;
///
/// assert!(PlanLayer::Fault < PlanLayer::Background);
/// assert_eq!(PlanLayer::ALL.len(), 5);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PlanLayer {
    /// A guest waits for it.
    Fault,
    /// The memory node has sent it unasked with the head, because every instance touches it.
    Certain,
    /// Earlier runs have touched it.
    Recorded,
    /// The faults before have most often had the same distance.
    Stride,
    /// The image is to be complete.
    Background,
}

impl PlanLayer {
    /// All layers in order.
    pub const ALL: [Self; 5] =
        [Self::Fault, Self::Certain, Self::Recorded, Self::Stride, Self::Background];
}

/// What a layer came to.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::PlanCounts;
///
/// let counts = PlanCounts { asked: 8, arrived: 8, met: 1, touched: 5 };
/// assert_eq!(counts.useless(), 2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanCounts {
    /// Groups that it has asked for.
    pub asked: u64,
    /// Of these, how many have come.
    pub arrived: u64,
    /// Of these, how many a guest waited for before they had come.
    pub met: u64,
    /// Of these, how many a guest is known to have touched after they had come.
    pub touched: u64,
}

impl PlanCounts {
    /// Groups that have come and that no guest is known to have touched.
    pub fn useless(&self) -> u64 {
        self.arrived.saturating_sub(self.met).saturating_sub(self.touched)
    }
}

/// Groups that are known before the image runs, in order.
#[derive(Debug, Default)]
pub(crate) struct ListLayer {
    ranges: Vec<Range<u64>>,
    /// Index of the range that the next group is in.
    at: usize,
    /// The next group of it, from its start.
    offset: u64,
}

impl ListLayer {
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Self {
        Self { ranges, at: 0, offset: 0 }
    }
}

impl Iterator for ListLayer {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while let Some(range) = self.ranges.get(self.at) {
            let group = range.start.saturating_add(self.offset);
            if group < range.end {
                self.offset += 1;
                return Some(group);
            }
            (self.at, self.offset) = (self.at + 1, 0);
        }
        None
    }
}
