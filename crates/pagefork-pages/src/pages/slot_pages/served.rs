//! Pages that get their contents when they are touched: those of images, copied and not mapped, and
//! zeros that memories grow by.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::SlotPages;
use crate::image::{Image, Source};
use crate::os::error::{Absence, AbsentPage};
use crate::os::page_faults::{GrowthEnd, PageFaults, ServedRange, TouchContents};
use crate::os::sys::CallFailure;
use crate::pages::bounds::SlotBounds;
use crate::pages::growth::GrowthKind;

/// Parts that are registered apart, each of which cuts a map in three: of more, what lies between them is
/// registered as well.
const PARTS_MAX: usize = 64;

/// How the pages of an image are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ImageService {
    /// By how many threads; with none, by the one that touches a page.
    pub(crate) threads: u32,
    /// Whether all are when a slot is filled or reset, and not each when it is touched.
    pub(crate) is_eager: bool,
}

impl SlotPages {
    /// Whether the pages of the image are copied when they are touched.
    pub(crate) fn serves_image(&self) -> bool {
        self.setup.image_service.is_some()
    }

    /// Copies all of them, if they are not to be touched first.
    pub(super) fn copy_eagerly(&mut self) {
        if let (Some(service), Some(served)) = (self.setup.image_service, &self.served)
            && service.is_eager
        {
            self.given = served.give_all();
        }
    }

    /// Bytes of the image that the slot has copies of before anybody has touched them: of the pages in which it differs
    /// from what is mapped, or of all that were [copied at once](Self::copy_eagerly).
    pub(crate) fn copied_size(&self) -> u64 {
        match self.serves_image() {
            true => self.given,
            false => self.image.copied_pages() as u64 * PAGE_SIZE,
        }
    }

    /// Whether a touch decides what of a memory may be accessed beyond its initial size: it can grow,
    /// by [`GrowthKind::Fault`].
    pub(super) fn grows_by_faults(&self, index: usize) -> bool {
        let size = &self.memories[index].size;
        self.setup.growth == GrowthKind::Fault && size.maximum > size.initial
    }

    /// Whether that is so of any memory. What lies beyond the size of one can be mapped and accessible
    /// then, and must not be touched.
    pub(crate) fn any_grows_by_faults(&self) -> bool {
        (0..self.memories.len()).any(|index| self.grows_by_faults(index))
    }

    /// Has the pages that the image has contents for be copied when they are touched, and those that
    /// memories grow by become zero. They are fresh, and not accessible yet.
    pub(super) fn serve(&mut self) -> Result<(), CallFailure> {
        let start = self.pages.start() as u64;
        let mut ranges = match self.serves_image() {
            true => served_ranges(&self.sources, &self.image),
            false => Vec::new(),
        };
        for index in 0..self.memories.len() {
            if self.grows_by_faults(index) {
                let memory = self.pages.start() as u64 + self.zones.memories[index].start;
                let growth = MemoryEnd { memory, bounds: self.bounds.clone(), index };
                ranges.push((self.growth_range(index), TouchContents::Grown(Box::new(growth))));
            }
        }
        if ranges.is_empty() && !self.serves_image() {
            return Ok(());
        }
        ranges.sort_unstable_by_key(|(slot, _)| slot.start);
        let served = ranges.into_iter().map(|(slot, contents)| ServedRange {
            addresses: start + slot.start..start + slot.end,
            contents,
        });
        let threads = self.setup.image_service.map_or(0, |service| service.threads);
        // SAFETY: the slot owns its pages, and drops this before others take their place; the contents
        // are held by `image`, and never written.
        self.served = Some(unsafe { PageFaults::new(served.collect(), threads) }?);
        Ok(())
    }

    /// Makes what memories can grow by accessible, where touches of it are served.
    pub(super) fn open_growth(&mut self) -> Result<(), CallFailure> {
        for index in 0..self.memories.len() {
            if self.grows_by_faults(index) {
                let growth = self.growth_range(index);
                self.pages.commit(growth)?;
            }
        }
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

/// Where a memory ends now.
#[derive(Debug)]
struct MemoryEnd {
    /// Its first address.
    memory: u64,
    bounds: SlotBounds,
    index: usize,
}

impl GrowthEnd for MemoryEnd {
    fn end(&self) -> u64 {
        self.memory + self.bounds.memory_size(self.index)
    }
}

/// Slot offsets of what an image has contents for, ascending and apart: spans of its file, but for the pages
/// in which a branch differs from that; and, if these are many, what lies between them.
fn served_ranges(sources: &[Source], image: &Image) -> Vec<(Range<u64>, TouchContents)> {
    let mut ranges = Vec::new();
    for differing in image.differing() {
        let contents = match differing.bytes() {
            Some(bytes) => TouchContents::At(bytes.as_ptr().expose_provenance()),
            None => TouchContents::Zeros,
        };
        ranges.push((differing.page..differing.page + PAGE_SIZE, contents));
    }
    let of_branch: Vec<_> = ranges.iter().map(|(slot, _)| slot.clone()).collect();
    for source in sources {
        let address = source.address.expect("images that are served can be read");
        let rest = pagefork_layout::page::without(std::slice::from_ref(&source.slot), &of_branch);
        for slot in rest {
            let from = address + (slot.start - source.slot.start) as usize;
            ranges.push((slot, TouchContents::At(from)));
        }
    }
    ranges.sort_unstable_by_key(|(slot, _)| slot.start);
    if parts(&ranges) > PARTS_MAX {
        fill_gaps(&mut ranges, image.extents());
    }
    ranges
}

/// Has what lies between ranges in one extent, which is accessible, be served too: zeros.
fn fill_gaps(ranges: &mut Vec<(Range<u64>, TouchContents)>, extents: &[Range<u64>]) {
    let ends = ranges.windows(2).map(|two| two[0].0.end..two[1].0.start);
    let is_inside = |gap: &Range<u64>| {
        let is_within = |extent: &Range<u64>| extent.start <= gap.start && gap.end <= extent.end;
        !gap.is_empty() && extents.iter().any(is_within)
    };
    let gaps: Vec<_> = ends.filter(is_inside).collect();
    ranges.extend(gaps.into_iter().map(|gap| (gap, TouchContents::Zeros)));
    ranges.sort_unstable_by_key(|(slot, _)| slot.start);
}

/// How many there are of ascending ranges, where neighbours are one.
fn parts(ranges: &[(Range<u64>, TouchContents)]) -> usize {
    let gaps = ranges.windows(2).filter(|two| two[0].0.end < two[1].0.start).count();
    gaps + usize::from(!ranges.is_empty())
}

/// How many maps more a slot has because parts of it are registered.
pub(super) fn served_maps(sources: &[Source], image: &Image) -> u64 {
    2 * parts(&served_ranges(sources, image)) as u64
}
