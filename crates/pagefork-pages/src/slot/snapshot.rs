//! What a slot has otherwise than its image, and the image of what it has now.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use pagefork_layout::page::{self, PAGE_SIZE, joined};

use super::Slot;
use super::deltas::{Deltas, of_page};
use crate::image::Image;
use crate::image::branch::BRANCH_PAGES_MAX;
use crate::image::branch::ImageForm;
use crate::image::read::PageReader;
use crate::os::error::PagesError;
use crate::strategy::config::DeltaTracker;

/// A page of zeros.
static ZEROS: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];

impl Slot {
    /// Slot offsets of the pages that are not as in the slot's image, ascending: of all that
    /// images hold, which is tables, state, and the memories as they are now, without the stack
    /// and the link zone.
    ///
    /// Where the kernel tells which pages are private, no other is read. What the slot's strategy
    /// knows is neither used nor changed. No code may run in the slot meanwhile; it may be
    /// suspended.
    ///
    /// # Errors
    /// [`PagesError::ResetIncomplete`] after a reset that failed; if the kernel does not tell
    /// what is private though it has before; an error of the image's file. Nothing has changed
    /// then.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, ImageForm, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base + 4096, [(base, &b"hello"[..])])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &image, &[size])?;
    /// slot.enter();
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// unsafe { slot.memory(0).write(b'j') };
    /// assert_eq!(slot.changed_pages()?, [base]);
    /// let changed = slot.snapshot("changed", &[(base + 1, b"a")], ImageForm::Branch)?;
    /// let mut bytes = [0; 5];
    /// changed.read(base, &mut bytes)?;
    /// assert_eq!(&bytes, b"jallo");
    /// assert_eq!(changed.own_pages(), [base]);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn changed_pages(&self) -> Result<Vec<u64>, PagesError> {
        self.pages.check_process()?;
        self.pages.begin_look()?;
        let changed = self.look_for_changed();
        self.pages.end_look()?;
        changed
    }

    fn look_for_changed(&self) -> Result<Vec<u64>, PagesError> {
        let mut reader = PageReader::new(self.image())?;
        let mut changed = Vec::new();
        self.check_whole()?;
        let candidates = Deltas::new(DeltaTracker::Off).candidates(&self.pages)?;
        candidates.ranges.iter().try_for_each(|range| self.pages.wait(range.clone()))?;
        for page in candidates.ranges.into_iter().flat_map(pages_in) {
            // SAFETY: candidates are accessible.
            if !reader.is_equal(page, unsafe { self.page(page) })? {
                changed.push(page);
            }
        }
        Ok(changed)
    }

    /// An image of what the slot has now, but for `patches`: bytes at slot offsets that it has
    /// instead. Of patches that overlap the later one holds. It is a [branch](Image::branch) of
    /// the slot's image if that is wanted and few pages are otherwise, or else whole: then pages
    /// of the slot's image that the slot has unchanged are read there. The slot stays as it is.
    ///
    /// A slot whose strategies name a [tracker](DeltaTracker), that was not reset since its last
    /// snapshot, and that one still held: then the image is a branch of that one, also if it was to be
    /// whole, if few pages are otherwise. [`Slot::compared`] has an example.
    ///
    /// Code may be suspended in the slot, and must not run meanwhile. `name` is as of
    /// [`Image::new`]. [`Slot::changed_pages`] has an example.
    ///
    /// # Errors
    /// [`PagesError::OutsideImage`] for a patch outside tables, state and memories; else as of
    /// [`Slot::changed_pages`] and [`Image::branch`].
    pub fn snapshot(
        &mut self,
        name: &str,
        patches: &[(u64, &[u8])],
        form: ImageForm,
    ) -> Result<Arc<Image>, PagesError> {
        self.snapshot_without(name, patches, &[], form)
    }

    /// As [`Slot::snapshot`], without what pages have that lie whole in these ranges of slot
    /// offsets: they are zero in the image, but for patches. Of a slot whose image is
    /// [incomplete](crate::IncompletePages) they stay as they are.
    ///
    /// # Errors
    /// As of [`Slot::snapshot`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, ImageForm, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base + 4096, [(base, &b"hello"[..])])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &image, &[size])?;
    /// let free = base..base + 4096;
    /// let smaller = slot.snapshot_without("smaller", &[], &[free], ImageForm::Whole)?;
    /// assert_eq!(smaller.contents()?, []);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn snapshot_without(
        &mut self,
        name: &str,
        patches: &[(u64, &[u8])],
        zeros: &[Range<u64>],
        form: ImageForm,
    ) -> Result<Arc<Image>, PagesError> {
        self.snapshot_in(name, patches, zeros, form, &mut Vec::new())
    }

    /// As [`Slot::snapshot_without`], of [`ImageForm::Changes`]. Copies of pages go into `room`, if they need
    /// half of what it was made for or more, and no more than that: it is taken then.
    ///
    /// # Errors
    /// As of [`Slot::snapshot`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base + (64 << 10), [(base, &[1; 64 << 10][..])])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let patches = [(base, &[2; 4096][..]), (base + 8192, &[3; 4096])];
    /// for (pages, is_taken) in [(1, false), (2, true), (4, true), (5, false)] {
    ///     let mut slot = Slot::new(config.clone(), &image, &[size])?;
    ///     let mut room = vec![1; pages * 4096];
    ///     let moved = slot.snapshot_to_move("moved", &patches, &[], &mut room)?;
    ///     assert_eq!(room.is_empty(), is_taken);
    ///     let mut bytes = [0; 2];
    ///     moved.read(base + 4095, &mut bytes)?;
    ///     assert_eq!(bytes, [2, 1]);
    ///     moved.read(base + 8192, &mut bytes)?;
    ///     assert_eq!(bytes, [3, 3]);
    /// }
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn snapshot_to_move(
        &mut self,
        name: &str,
        patches: &[(u64, &[u8])],
        zeros: &[Range<u64>],
        room: &mut Vec<u8>,
    ) -> Result<Arc<Image>, PagesError> {
        self.snapshot_in(name, patches, zeros, ImageForm::Changes, room)
    }

    fn snapshot_in(
        &mut self,
        name: &str,
        patches: &[(u64, &[u8])],
        zeros: &[Range<u64>],
        form: ImageForm,
        room: &mut Vec<u8>,
    ) -> Result<Arc<Image>, PagesError> {
        self.pages.check_process()?;
        self.pages.begin_look()?;
        let image = self.look_and_snapshot(name, patches, zeros, form, room);
        self.pages.end_look()?;
        image
    }

    fn look_and_snapshot(
        &mut self,
        name: &str,
        patches: &[(u64, &[u8])],
        zeros: &[Range<u64>],
        form: ImageForm,
        room: &mut Vec<u8>,
    ) -> Result<Arc<Image>, PagesError> {
        let is_incomplete = self.image().is_incomplete();
        // What nobody has touched may be absent, and is left to the image.
        let zeros = if is_incomplete { Vec::new() } else { page_ranges(zeros) };
        let patched = self.patched(patches, &zeros)?;
        let candidates = self.deltas.candidates(&self.pages)?;
        let form = match (&candidates.last, form) {
            (Some(_), ImageForm::Whole) => ImageForm::Branch,
            (_, form) => form,
        };
        let parent = candidates.last.as_ref().unwrap_or(self.image());
        let of_patches = patched.iter().map(|(page, bytes)| (*page, &bytes[..]));
        let mut reader = PageReader::new(parent)?;
        let mut ranges = candidates.ranges.clone();
        // What is private is here. Where the kernel does not tell, it may be anything.
        ranges.iter().try_for_each(|range| self.pages.wait(range.clone()))?;
        if !zeros.is_empty() {
            // What the slot has not changed there is to be zero, too.
            let contents = parent.contents()?;
            ranges.extend(contents.iter().flat_map(|range| within(&zeros, range)));
            ranges = joined(ranges);
        }
        let left_out: Vec<_> = ranges.iter().flat_map(|range| within(&zeros, range)).collect();
        // Most of what was written has changed.
        let is_as_written = form == ImageForm::Changes && candidates.are_written;
        let (mut changed, mut compared) = (Vec::new(), 0);
        for page in ranges.into_iter().flat_map(pages_in) {
            // SAFETY: candidates are accessible.
            let bytes = unsafe { self.page_without(page, &zeros) };
            // Of a whole image it does not matter whether more pages are changed.
            let is_whole = form != ImageForm::Changes && changed.len() > BRANCH_PAGES_MAX;
            compared += 1;
            // What is left out may be zero there, too.
            let is_changed = is_as_written && !ptr::eq(bytes.as_ptr(), ZEROS.as_ptr());
            if !patched.contains_key(&page)
                && (is_whole || is_changed || !reader.is_equal(page, bytes)?)
            {
                changed.push((page, bytes));
            }
        }
        for (page, bytes) in of_patches {
            if !reader.is_equal(page, bytes)? {
                changed.push((page, bytes));
            }
        }
        changed.sort_unstable_by_key(|(page, _)| *page);
        let is_of_form = form != ImageForm::Whole || parent.depth() == 0;
        let image = match changed.is_empty() && is_of_form {
            true => Arc::clone(parent),
            false => {
                let extents = self.extents(parent, &changed);
                Image::of_changed_in(parent, name, extents, &changed, form, room)?
            }
        };
        let otherwise = patched.into_keys().map(of_page).chain(left_out);
        self.deltas.note(&self.pages, &image, candidates, otherwise.collect());
        self.compared = compared;
        Ok(image)
    }

    fn check_whole(&self) -> Result<(), PagesError> {
        if self.is_whole() { Ok(()) } else { Err(PagesError::ResetIncomplete) }
    }

    /// The pages that patches are of, as they are to be.
    fn patched(
        &self,
        patches: &[(u64, &[u8])],
        zeros: &[Range<u64>],
    ) -> Result<BTreeMap<u64, Vec<u8>>, PagesError> {
        self.check_whole()?;
        let mut patched = BTreeMap::new();
        for &(offset, bytes) in patches.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let length = bytes.len() as u64;
            let holds = |part: &Range<u64>| part.contains(&offset) && length <= part.end - offset;
            let parts = self.pages.image_parts();
            if !parts.into_iter().any(|part| holds(&part)) {
                let extent = self.pages.image_parts().next().unwrap_or_default();
                return Err(PagesError::OutsideImage { offset, length, extent });
            }
            self.pages.wait(offset..offset + length)?;
            for page in pages_in(page::covering(offset..offset + length)) {
                // SAFETY: parts of images are accessible.
                let present = || unsafe { self.page_without(page, zeros) }.to_vec();
                let patched = patched.entry(page).or_insert_with(present);
                let common = offset.max(page)..(offset + length).min(page + PAGE_SIZE);
                let from = &bytes[(common.start - offset) as usize..(common.end - offset) as usize];
                patched[(common.start - page) as usize..][..from.len()].copy_from_slice(from);
            }
        }
        Ok(patched)
    }

    /// What an image of this slot covers that has these pages and those of another one: in each part
    /// that images hold, one range.
    fn extents(&self, parent: &Image, changed: &[(u64, &[u8])]) -> Vec<Range<u64>> {
        let of_part = |part: Range<u64>| {
            let first = changed.partition_point(|(page, _)| *page < part.start);
            let behind = changed.partition_point(|(page, _)| *page < part.end);
            let pages = changed[first..behind].iter().map(|(page, _)| *page..*page + PAGE_SIZE);
            let before = parent.extents().iter().filter(|one| part.contains(&one.start));
            pages
                .chain(before.cloned())
                .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end))
        };
        self.pages.image_parts().filter_map(of_part).collect()
    }

    /// The bytes of a page, or zeros if it lies in one of these ranges of pages.
    ///
    /// # Safety
    /// As of [`Self::page`].
    unsafe fn page_without(&self, page: u64, zeros: &[Range<u64>]) -> &[u8] {
        match within(zeros, &(page..page + PAGE_SIZE)).next() {
            Some(_) => &ZEROS,
            // SAFETY: by this function's contract.
            None => unsafe { self.page(page) },
        }
    }

    /// The bytes of a page.
    ///
    /// # Safety
    /// The page is accessible, and is not written meanwhile.
    unsafe fn page(&self, page: u64) -> &[u8] {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts(self.place(page), PAGE_SIZE as usize) }
    }
}

/// The whole pages that lie in these ranges: ascending, apart.
fn page_ranges(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let whole = |range: &Range<u64>| {
        let start = range.start.checked_next_multiple_of(PAGE_SIZE)?;
        Some(start..page::round_down(range.end)).filter(|range| !range.is_empty())
    };
    joined(ranges.iter().filter_map(whole).collect())
}

/// The parts of `range` that lie in ranges that are ascending and apart.
fn within(ranges: &[Range<u64>], range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (range.start, range.end);
    let first = ranges.partition_point(|one| one.end <= start);
    let reaching = ranges[first..].iter().take_while(move |one| one.start < end);
    reaching.map(move |one| one.start.max(start)..one.end.min(end))
}

fn pages_in(range: Range<u64>) -> impl Iterator<Item = u64> {
    range.step_by(PAGE_SIZE as usize)
}
