//! Ranges of addresses.

use std::ops::Range;

use gimli::{AttributeValue, UnitRef};

use super::budget::ReadBudget;
use super::{Slice, Unreadable};

/// At most this many ranges that begin before an address are looked at for one that
/// contains it: those of compilers hardly overlap.
const OVERLAPPING_MAX: usize = 8;

/// The attributes of an entry that say which addresses belong to it.
#[derive(Default)]
pub(super) struct RangeAttributes<'a> {
    low: Option<AttributeValue<Slice<'a>>>,
    high: Option<AttributeValue<Slice<'a>>>,
    ranges: Option<AttributeValue<Slice<'a>>>,
}

impl<'a> RangeAttributes<'a> {
    /// Takes note of an attribute, if it is one of them.
    pub(super) fn note(&mut self, attribute: &gimli::Attribute<Slice<'a>>) {
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = Some(attribute.value()),
            gimli::DW_AT_high_pc => self.high = Some(attribute.value()),
            gimli::DW_AT_ranges => self.ranges = Some(attribute.value()),
            _ => {}
        }
    }

    /// Whether there are any.
    pub(super) fn are_given(&self) -> bool {
        self.ranges.is_some() || self.high.is_some()
    }

    /// Where it begins.
    pub(super) fn low(&self, unit: UnitRef<'_, Slice<'a>>) -> Option<u64> {
        unit.attr_address(self.low?).ok()?
    }

    /// The ranges of code.
    pub(super) fn read(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        budget: &ReadBudget,
        mut each: impl FnMut(Range<u32>) -> Result<(), Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut add = |begin: u64, end: u64| {
            match (u32::try_from(begin), u32::try_from(end)) {
                // Linkers move what they leave out to 0, or to the last addresses.
                (Ok(begin), Ok(end)) if 0 < begin && begin < end => each(begin..end),
                _ => Ok(()),
            }
        };
        if let Some(ranges) = self.ranges {
            let Some(offset) = unit.attr_ranges_offset(ranges)? else { return Ok(()) };
            let mut ranges = unit.ranges(offset)?;
            // One by one: the reader goes over empty ones by itself, uncounted.
            while let Some(range) = ranges.next_raw()? {
                budget.read(1)?;
                if let Some(range) = ranges.convert_raw(range)? {
                    add(range.begin, range.end)?;
                }
            }
            return Ok(());
        }
        let Some(low) = self.low(unit) else { return Ok(()) };
        match self.high {
            None => Ok(()),
            Some(AttributeValue::Udata(size)) => add(low, low.saturating_add(size)),
            Some(high) => match unit.attr_address(high)? {
                Some(high) => add(low, high),
                None => Ok(()),
            },
        }
    }
}

/// What a range of addresses belongs to.
#[derive(Clone, Copy)]
pub(super) struct Extent<T> {
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) of: T,
}

/// What an address belongs to, the nearest beginning first; `extents` are sorted by
/// their beginnings.
pub(super) fn at<T: Copy>(extents: &[Extent<T>], address: u32) -> impl Iterator<Item = T> {
    let end = extents.partition_point(|extent| extent.begin <= address);
    let near = extents[..end].iter().rev().take(OVERLAPPING_MAX);
    near.filter(move |extent| address < extent.end).map(|extent| extent.of)
}
