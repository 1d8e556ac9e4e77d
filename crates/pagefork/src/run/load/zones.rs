//! The bytes of a slot below its base, as an image has them.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::SlotLayout;

use crate::base::error::Result;

/// Tables and state of an instance, as they are to be: from some page of the tables zone to the
/// base. Below that there are zeros.
pub(super) struct BelowBase {
    base: u64,
    /// Slot offset of the first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl BelowBase {
    /// Reads what `extents` have there by `read`, which is given a slot offset. `None` if they reach
    /// below tables and state.
    ///
    /// # Errors
    /// What `read` fails with.
    pub(super) fn read(
        layout: &SlotLayout,
        extents: &[Range<u64>],
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Option<Self>> {
        let base = layout.base;
        let inside = extents.iter().filter(|extent| !extent.is_empty() && extent.start < base);
        let start = inside.clone().map(|extent| extent.start).min().unwrap_or(base);
        if start < layout.tables.start {
            return Ok(None);
        }
        let mut bytes = vec![0; (base - start) as usize];
        for extent in inside {
            let end = extent.end.min(base);
            let at = (extent.start - start) as usize..(end - start) as usize;
            read(extent.start, &mut bytes[at])?;
        }
        Ok(Some(Self { base, start, bytes }))
    }

    /// `N` bytes at an offset from the base, which are below it.
    pub(super) fn at<const N: usize>(&self, offset: i64) -> [u8; N] {
        let mut found = [0; N];
        let place = self.base.checked_add_signed(offset).unwrap_or(0);
        for (byte, at) in found.iter_mut().zip(place..) {
            let index = at.checked_sub(self.start).and_then(|index| usize::try_from(index).ok());
            *byte = index.and_then(|index| self.bytes.get(index)).copied().unwrap_or(0);
        }
        found
    }

    pub(super) fn word(&self, offset: i64) -> u64 {
        u64::from_le_bytes(self.at(offset))
    }

    /// The bytes of a range of offsets from the base that does not reach below what there is, or
    /// zeros.
    pub(super) fn range(&self, start: i64, length: usize) -> Vec<u8> {
        (start..).take(length).map(|offset| self.at::<1>(offset)[0]).collect()
    }

    /// The pages that are not all zero: slot offsets and bytes.
    pub(super) fn pages(&self) -> Vec<(u64, &[u8])> {
        let places = (self.start..).step_by(PAGE_SIZE as usize);
        let pages = places.zip(self.bytes.chunks(PAGE_SIZE as usize));
        pages.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect()
    }
}
