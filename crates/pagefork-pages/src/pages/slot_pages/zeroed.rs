//! Ranges that are made zero, and given back where that makes them so.

use std::ops::Range;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use super::{SlotPages, page_end};

impl SlotPages {
    /// Makes a range of the slot zero. Whole pages that no image lies below are given back, and
    /// zeros written elsewhere: of pages of an image a discard would bring back the bytes. Returns
    /// whether any page was given back.
    ///
    /// # Safety
    /// The range is accessible, and no other code uses it.
    pub(crate) unsafe fn make_zero(&mut self, range: Range<u64>) -> bool {
        let whole = page_end(range.start)..round_down(range.end);
        if whole.start >= whole.end {
            // SAFETY: by this function's contract the range is accessible and ours.
            unsafe { self.clear(range) };
            return false;
        }
        // SAFETY: by this function's contract the range is accessible and ours.
        unsafe {
            self.clear(range.start..whole.start);
            self.clear(whole.end..range.end);
        }
        let (mut released, rest) = self.punch(whole);
        for part in rest {
            let mut at = part.start;
            for gap in self.without_image(part.clone()) {
                // SAFETY: by this function's contract the range is accessible and ours.
                unsafe { self.clear(at..gap.start) };
                at = gap.start;
                if self.pages.discard(gap.clone()).is_ok() {
                    released = true;
                    at = gap.end;
                }
            }
            // SAFETY: by this function's contract the range is accessible and ours.
            unsafe { self.clear(at..part.end) };
        }
        released
    }

    /// The parts of a range of pages that are zero in every slot that is as its image, and that
    /// the kernel makes zero when it discards them.
    fn without_image(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if !self.setup.discards || range.start >= range.end {
            return Vec::new();
        }
        let mapped = self.image.maps().map(|(slot, ..)| slot);
        let differing = self.differing_pages().map(|page| page..page + PAGE_SIZE);
        // A discard leaves what is in a file as it is.
        let in_files = (0..self.memories.len()).filter(|&index| self.files.of(index).is_some());
        let in_files = in_files.map(|index| self.growth_range(index));
        let mut taken: Vec<Range<u64>> = mapped
            .chain(differing)
            .chain(in_files)
            .filter(|taken| taken.start < range.end && range.start < taken.end)
            .collect();
        taken.sort_by_key(|taken| taken.start);
        let mut at = range.start;
        let mut gaps = Vec::new();
        for taken in taken {
            if at < taken.start {
                gaps.push(at..taken.start);
            }
            at = at.max(taken.end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}
