//! Images whose pages are copied when they are touched, and not mapped.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::SlotPages;
use crate::image::{Image, Source};
use crate::os::error::{Absence, AbsentPage};
use crate::os::page_faults::{PageFaults, ServedRange};
use crate::os::sys::CallFailure;

impl SlotPages {
    /// Whether the pages of the image are copied when they are touched.
    pub(crate) fn serves_image(&self) -> bool {
        self.setup.serves_image
    }

    /// Has the pages that the image has contents for be copied when they are touched. They are fresh,
    /// and not accessible yet.
    pub(super) fn serve_image(&mut self) -> Result<(), CallFailure> {
        let start = self.pages.start() as u64;
        let ranges = served_ranges(&self.sources, &self.image);
        let served = ranges.into_iter().map(|(slot, from)| ServedRange {
            addresses: start + slot.start..start + slot.end,
            from,
        });
        // SAFETY: the slot owns its pages, and drops this before others take their place; the contents
        // are held by `image`, and never written.
        self.served = Some(unsafe { PageFaults::new(served.collect()) }?);
        Ok(())
    }

    /// Before the kernel reads or writes in a range of slot offsets.
    pub(super) fn touch_served(&self, range: Range<u64>) {
        if let Some(served) = &self.served
            && self.is_whole()
            && served.is_of_this_process()
        {
            let start = self.pages.start() as u64;
            served.touch(start + range.start..start + range.end);
        }
    }

    /// # Errors
    /// [`AbsentPage`] in a process that was forked from the one whose pages are served.
    #[inline]
    pub(super) fn check_served_process(&self) -> Result<(), AbsentPage> {
        match self.served.as_ref().is_none_or(PageFaults::is_of_this_process) {
            true => Ok(()),
            false => Err(AbsentPage { group: 0, why: Absence::OfParent }),
        }
    }
}

/// Slot offsets of what an image has contents for, ascending, with the address of the contents or
/// `None` for zeros: spans of its file, but for the pages in which a branch differs from that.
fn served_ranges(sources: &[Source], image: &Image) -> Vec<(Range<u64>, Option<usize>)> {
    let mut ranges = Vec::new();
    for differing in image.differing() {
        let from = differing.bytes().map(|bytes| bytes.as_ptr().expose_provenance());
        ranges.push((differing.page..differing.page + PAGE_SIZE, from));
    }
    let of_branch: Vec<_> = ranges.iter().map(|(slot, _)| slot.clone()).collect();
    for source in sources {
        let address = source.address.expect("images that are served can be read");
        let rest = pagefork_layout::page::without(std::slice::from_ref(&source.slot), &of_branch);
        for slot in rest {
            let from = address + (slot.start - source.slot.start) as usize;
            ranges.push((slot, Some(from)));
        }
    }
    ranges.sort_unstable_by_key(|(slot, _)| slot.start);
    ranges
}

/// How many maps more a slot has because parts of it are registered.
pub(super) fn served_maps(sources: &[Source], image: &Image) -> u64 {
    2 * (sources.len() + image.differing().len()) as u64
}
