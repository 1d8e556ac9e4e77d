//! The pages of a slot, in the verbs that slots and reset strategies are written
//! in. What each page holds afterwards is said here; when to do it, elsewhere.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use crate::image::file::ImageFile;
use crate::image::incomplete::RegisteredMap;
use crate::image::{Image, Source, Unsealed};
use crate::os::error::{Feature, PagesError};
use crate::os::features::HostFeatures;
use crate::os::page_faults::PageFaults;
use crate::os::reservation::PageKind;
use crate::os::stand_in::{self, FileWatch};
use crate::pages::bounds::SlotBounds;
use crate::pages::growth::{GrowthKind, GrowthReason, HighWater};
use crate::pages::map_budget::MapShare;
use crate::pages::restore;
use crate::pages::spare::SlotSpace;
use crate::pages::zones::{MemorySize, SlotConfig};

use self::absence::wait_for_copies;
use self::grown::GrowthFiles;
use self::maps::maps_of;
pub(crate) use self::served::ImageService;

/// What slots do of whose images pages are absent.
mod absence;
/// Slots that are made as another image in place.
mod advance;
/// How many kernel maps a slot may have.
mod maps;
/// What memories grow by that is emptied at once: files of their own, and pages that are served.
mod grown;
/// Pages that get their contents when they are touched.
mod served;
/// Ranges that are made zero.
mod zeroed;

/// In how many looks at a slot the length of a file that could be cut short is asked for once.
const LOOKS_A_LENGTH: u32 = 256;

/// How the pages of a slot are set up, for any image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setup {
    /// How memories grow: how much of them stays accessible.
    pub(crate) growth: GrowthKind,
    /// How they were to grow, and why they do not, where that is known before there is a slot.
    pub(crate) growth_lack: Option<(GrowthKind, GrowthReason)>,
    /// Whether the image is copied into anonymous pages instead of mapped
    /// copy-on-write.
    pub(crate) copies_image: bool,
    /// How each page of the image is copied when it is touched. Then `copies_image` is set, too.
    pub(crate) image_service: Option<ImageService>,
    /// Whether the image is read to restore pages.
    pub(crate) restores: bool,
    /// Whether huge pages are kept out.
    pub(crate) small_pages: SmallPages,
    /// Whether used pages can be discarded.
    pub(crate) discards: bool,
}

impl Setup {
    /// Copy-on-write, restored by discarding.
    pub(crate) const PLAIN: Self = Self {
        growth: GrowthKind::Mprotect,
        growth_lack: None,
        copies_image: false,
        image_service: None,
        restores: false,
        small_pages: SmallPages::Unsure,
        discards: true,
    };
}

/// Whether the pages of a slot stay small, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SmallPages {
    /// They may become huge.
    Unsure,
    /// The maps are made so.
    OfMaps,
    /// The maps are advised so: a call for what [`Self::OfMaps`] has for nothing.
    Advised,
}

#[derive(Debug)]
pub(crate) struct SlotPages {
    /// Maps of pages that may be absent. Others take their place before this forgets them.
    registered: Vec<RegisteredMap>,
    /// Pages that get their contents when they are touched: of the image, or such that memories grow by.
    /// It goes before `image` does, where contents lie.
    served: Option<PageFaults>,
    /// Bytes of the image that were copied before they were touched.
    given: u64,
    /// Notices pages that are gone, if the image lies in a file that could be cut short. It goes
    /// before the addresses do: another slot that has them is watched by its own.
    watch: Option<FileWatch>,
    pages: SlotSpace,
    maps: MapShare,
    zones: SlotConfig,
    setup: Setup,
    image: Arc<Image>,
    /// Invariant: as `image` says; their addresses are good while it is held.
    sources: Vec<Source>,
    bounds: SlotBounds,
    /// One for each memory.
    memories: Vec<MemoryState>,
    files: GrowthFiles,
    condition: Condition,
    /// How often such pages were looked at.
    looks: AtomicU32,
    huge_pages: HugePages,
}

/// Whether pages of a slot can be huge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HugePages {
    Possible,
    /// None forms any more, and some may be there until all pages are discarded.
    Refused,
    None,
}

/// Proof that no page of a slot is private but those that it has a copy of, or that those that
/// are will be replaced before the slot is used: only with it may be forgotten which pages are
/// private.
#[derive(Debug)]
pub(crate) struct AllFresh(());

/// Whether a slot can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    /// It can.
    Whole,
    /// A reset has failed half-way: first another has to succeed.
    Unfinished,
    /// Its pages have been replaced and not filled, or it is not known which of them are
    /// accessible: a reset has to fill it.
    Unfilled,
}

#[derive(Clone, Copy, Debug)]
struct MemoryState {
    size: MemorySize,
    /// Bytes up to which pages may have been written since they were last as the
    /// image, without what [is emptied at once](SlotPages::is_emptied_at_once). Invariant: at least the
    /// memory's size, but for that; higher only after a reset that failed half-way.
    dirty: u64,
    /// Bytes up to which pages may be private, those included that earlier runs had and
    /// that were restored in place: at least `dirty`.
    private: u64,
    /// The size before the reset that is under way.
    before: u64,
    /// How far runs have grown it since it was filled.
    high_water: HighWater,
}

impl SlotPages {
    /// Reserves a slot and fills it.
    pub(crate) fn new(
        zones: SlotConfig,
        setup: Setup,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<Self, PagesError> {
        check_fit(&zones, image, sizes)?;
        image.check_process()?;
        let sources = sources(image, setup)?;
        if !setup.copies_image {
            image.check_length()?;
        }
        wait_for_copies(image)?;
        let maps = MapShare::take(maps_of(setup, image, &sources, sizes.len()))?;
        let kind = match setup.small_pages {
            SmallPages::OfMaps => PageKind::Small,
            _ => PageKind::Any,
        };
        let pages = SlotSpace::reserve(kind, zones.size)?;
        let mut slot = Self {
            bounds: place_bounds(&zones, pages.start()),
            registered: Vec::new(),
            served: None,
            given: 0,
            pages,
            maps,
            zones,
            setup,
            image: Arc::clone(image),
            sources,
            memories: sizes.iter().map(|size| MemoryState::fresh(size, setup.growth)).collect(),
            files: GrowthFiles::default(),
            condition: Condition::Unfilled,
            watch: None,
            looks: AtomicU32::new(0),
            huge_pages: HugePages::Possible,
        };
        slot.fill()?;
        Ok(slot)
    }

    /// Fills the slot anew, with fresh pages from another image or the same.
    ///
    /// # Errors
    /// The slot is as before if the image does not fit or cannot be read, and
    /// unfilled after other errors.
    pub(crate) fn refill(
        &mut self,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<AllFresh, PagesError> {
        self.check_process()?;
        check_fit(&self.zones, image, sizes)?;
        image.check_process()?;
        let sources = sources(image, self.setup)?;
        if !self.setup.copies_image {
            image.check_length()?;
        }
        wait_for_copies(image)?;
        let maps = maps_of(self.setup, image, &sources, sizes.len());
        self.maps.grow_to(maps)?;
        self.condition = Condition::Unfilled;
        for index in 0..self.memories.len() {
            self.bounds.set_memory_size(index, 0);
        }
        self.pages.replace(0..self.zones.size)?;
        self.registered.clear();
        let _threads = self.served.take().and_then(PageFaults::end);
        self.image = Arc::clone(image);
        self.sources = sources;
        self.memories.clear();
        let growth = self.setup.growth;
        self.memories.extend(sizes.iter().map(|size| MemoryState::fresh(size, growth)));
        self.fill()?;
        self.maps.shrink_to(maps);
        Ok(AllFresh(()))
    }

    /// As [`Self::refill`], from the image and with the sizes that it has.
    pub(crate) fn refill_same(&mut self) -> Result<AllFresh, PagesError> {
        let image = Arc::clone(&self.image);
        let sizes: Vec<MemorySize> = self.memories.iter().map(|memory| memory.size).collect();
        self.refill(&image, &sizes)
    }

    /// Makes fresh pages what a slot starts with.
    fn fill(&mut self) -> Result<(), PagesError> {
        let setup = self.setup;
        let sizes: Vec<MemorySize> = self.memories.iter().map(|memory| memory.size).collect();
        self.files.make(setup.growth, &sizes);
        match (!setup.copies_image && self.image.could_be_cut(), &self.watch) {
            (true, Some(watch)) => watch.begin_anew(),
            (true, None) => {
                let start = self.pages.start();
                self.watch = Some(FileWatch::new(start..start + self.zones.size as usize));
            }
            (false, _) => self.watch = None,
        }
        // Before pages are accessible, so that none has contents then.
        self.serve()?;
        let first_end = if self.memories.is_empty() { self.zones.base } else { self.filled_end(0) };
        self.pages.commit(self.zones.stack.start..first_end)?;
        for index in 1..self.memories.len() {
            let filled = self.zones.memories[index].start..self.filled_end(index);
            self.pages.commit(filled)?;
        }
        self.open_growth()?;
        if !setup.copies_image {
            for (range, file, file_offset) in self.image.maps() {
                match file {
                    ImageFile::Incomplete(pages) => {
                        let registered = &mut self.registered;
                        pages.map(&mut self.pages, range, file_offset, registered)?;
                    }
                    _ => self.pages.map_private(range, file.as_fd(), file_offset)?,
                }
            }
        }
        self.map_growth()?;
        self.huge_pages = match setup.small_pages {
            SmallPages::OfMaps => HugePages::None,
            // Fresh maps have no advice.
            SmallPages::Advised if self.pages.refuse_huge_pages(0..self.zones.size).is_ok() => {
                HugePages::None
            }
            _ => HugePages::Possible,
        };
        if !setup.copies_image {
            for range in self.image.prefetched() {
                self.pages.prefetch(range.clone())?;
            }
        }
        if setup.copies_image && !self.serves_image() {
            for source in &self.sources {
                // SAFETY: images lie in what was made accessible above.
                unsafe { self.restore_from(source, source.slot.clone()) };
            }
        }
        if self.has_copies() {
            self.copy_differing();
            self.end_look()?;
        }
        self.copy_eagerly();
        for (index, memory) in self.memories.iter().enumerate() {
            self.bounds.set_memory_size(index, memory.size.initial);
        }
        self.condition = Condition::Whole;
        Ok(())
    }

    /// Copies the pages in which a branch differs from the image that is mapped. They are
    /// private from then on.
    fn copy_differing(&self) {
        // Those are copied when they are touched.
        if self.serves_image() {
            return;
        }
        for page in self.differing_pages() {
            // SAFETY: images lie in what is accessible as soon as a slot is filled, and no other
            // code uses a slot while it is filled or reset.
            unsafe { self.restore(page) };
        }
    }

    /// Slot offsets of the pages in which the image differs from what is mapped, ascending. The
    /// slot has a copy of each, which no discard brings back.
    pub(crate) fn differing_pages(&self) -> impl Iterator<Item = u64> {
        self.image.differing().iter().map(|differing| differing.page)
    }

    /// Whether the slot has such copies.
    pub(crate) fn has_copies(&self) -> bool {
        !self.image.differing().is_empty()
    }

    /// Whether the slot has a copy of the page because the image differs there from what is
    /// mapped.
    pub(crate) fn is_differing(&self, page: u64) -> bool {
        self.image.differing_page(page).is_some()
    }

    /// Slot offset up to which memory `index` is accessible once the slot is filled, as all that its image reaches is.
    fn filled_end(&self, index: usize) -> u64 {
        let accessible = self.always(index).max(self.memory_initial(index));
        self.zones.memories[index].start + accessible
    }

    pub(crate) fn start(&self) -> usize {
        self.pages.start()
    }

    pub(crate) fn zones(&self) -> &SlotConfig {
        &self.zones
    }

    pub(crate) fn image(&self) -> &Arc<Image> {
        &self.image
    }

    pub(crate) fn bounds(&self) -> &SlotBounds {
        &self.bounds
    }

    pub(crate) fn memory_count(&self) -> usize {
        self.memories.len()
    }

    pub(crate) fn memory_max(&self, index: usize) -> u64 {
        self.memories[index].size.maximum
    }

    pub(crate) fn memory_initial(&self, index: usize) -> u64 {
        self.memories[index].size.initial
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.condition == Condition::Whole && !self.has_lost_pages()
    }

    /// Whether no reset will do but by filling it.
    pub(crate) fn is_unfilled(&self) -> bool {
        self.condition == Condition::Unfilled || self.has_lost_pages()
    }

    /// The proof for a slot that is unfilled.
    pub(crate) fn unfilled(&self) -> Option<AllFresh> {
        self.is_unfilled().then_some(AllFresh(()))
    }

    /// Says that from here on the slot is neither as before nor as its image,
    /// until [`Self::finish`].
    pub(crate) fn begin(&mut self) {
        self.condition = Condition::Unfinished;
    }

    /// Says that every page is as the image, and memories have their initial sizes.
    pub(crate) fn finish(&mut self) {
        for memory in &mut self.memories {
            memory.dirty = memory.size.initial;
        }
        self.condition = Condition::Whole;
    }

    pub(crate) fn grow_memory(&mut self, index: usize, new_size: u64) -> Result<(), PagesError> {
        self.check_process()?;
        let old_size = self.bounds.memory_size(index);
        let state = self.memories[index];
        check_memory_size(new_size, old_size, state.size.maximum)?;
        if !self.is_whole() || state.dirty > old_size {
            return Err(PagesError::ResetIncomplete);
        }
        let (start, accessible) = (self.zones.memories[index].start, self.accessible(index));
        if let Some(file) = self.files.of_mut(index) {
            file.set_length(new_size - state.size.initial)?;
        } else if self.grows_by_faults(index) {
            // The handler serves as much as the size says, which is all.
        } else if new_size > accessible {
            let added = start + accessible..start + new_size;
            let begun = state.high_water.is_measuring().then(Instant::now);
            if let Err(failure) = self.pages.commit(added.clone()) {
                // It may have been done for some maps of several.
                if self.pages.protect(added).is_err() {
                    self.condition = Condition::Unfilled;
                }
                return Err(failure.into());
            }
            if let Some(begun) = begun {
                self.memories[index].high_water.note_growing(begun.elapsed());
            }
        }
        let private = self.private_bytes(index, new_size);
        let state = &mut self.memories[index];
        state.dirty = private;
        state.private = state.private.max(private);
        self.bounds.set_memory_size(index, new_size);
        Ok(())
    }

    /// Makes all memories as long as at first, and what they had beyond that
    /// inaccessible. Their pages stay dirty, but what lies in files or was served goes. Either all are,
    /// or none, unless some of that went: then the slot is not whole until a reset has succeeded.
    #[inline]
    pub(crate) fn shrink_all(&mut self) -> Result<(), PagesError> {
        for index in 0..self.memories.len() {
            if let Err(failure) = self.shrink(index) {
                self.undo_shrinking(index);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn shrink(&mut self, index: usize) -> Result<(), PagesError> {
        let (size, accessible) = (self.bounds.memory_size(index), self.accessible(index));
        let initial = self.memories[index].size.initial;
        let start = self.zones.memories[index].start;
        let high_water = self.memories[index].high_water;
        self.memories[index].before = size;
        let measures = self.setup.growth == GrowthKind::Auto && size > initial;
        let begun = measures.then(Instant::now);
        self.memories[index].high_water.note(size, begun);
        // From now on no handler may take the pages for accessible.
        self.bounds.set_memory_size(index, initial);
        if let Some(file) = self.files.of_mut(index) {
            return file.set_length(0).map_err(|failure| {
                self.bounds.set_memory_size(index, size);
                failure.into()
            });
        }
        if self.grows_by_faults(index) {
            return self.discard_grown(index, size);
        }
        let kept = self.accessible(index);
        self.pages.protect(start + kept..start + accessible).map_err(|failure| {
            // As above.
            if self.pages.commit(start + kept..start + accessible).is_err() {
                self.condition = Condition::Unfilled;
            }
            self.bounds.set_memory_size(index, size);
            self.memories[index].high_water = high_water;
            PagesError::from(failure)
        })?;
        if let Some(begun) = begun
            && kept < accessible
        {
            self.memories[index].high_water.note_shrinking(begun.elapsed());
        }
        Ok(())
    }

    /// Makes the memories below `count` accessible again that [`Self::shrink`]
    /// has shrunk, as far as that is possible.
    fn undo_shrinking(&mut self, count: usize) {
        for index in 0..count {
            let before = self.memories[index].before;
            if self.is_emptied_at_once(index) {
                // What it had is gone.
                if before > self.bounds.memory_size(index) && self.condition == Condition::Whole {
                    self.condition = Condition::Unfinished;
                }
                continue;
            }
            let kept = self.accessible(index);
            let start = self.zones.memories[index].start;
            let end = kept.max(before);
            match self.pages.commit(start + kept..start + end) {
                Ok(()) => self.bounds.set_memory_size(index, before),
                Err(_) => self.condition = Condition::Unfilled,
            }
        }
    }

    /// Whether no page can become huge, so that each becomes private by a fault of its own.
    pub(crate) fn has_small_pages(&self) -> bool {
        self.huge_pages == HugePages::None
    }

    /// Keeps huge pages out from now on. Those that there are stay until all pages are
    /// discarded. Whether that could be done.
    pub(crate) fn refuse_huge_pages(&mut self) -> bool {
        for memory in &mut self.memories {
            // A huge page around the end of a memory takes what is accessible beyond, too.
            memory.private = memory.size.maximum;
        }
        let refused = self.pages.refuse_huge_pages(0..self.zones.size).is_ok();
        if refused {
            self.huge_pages = HugePages::Refused;
        }
        refused
    }

    /// Whether no page of a slot that has just been made is private but those that it has a copy
    /// of, and none can become huge.
    pub(crate) fn is_untouched(&self) -> bool {
        self.has_small_pages() && !self.setup.copies_image
    }

    /// Throws away all that was written, in all zones.
    ///
    /// # Errors
    /// [`PagesError::Unsupported`] where the kernel only pretends to discard;
    /// else the limit that was met. The slot has to be filled again then, unless nothing
    /// had been thrown away yet.
    pub(crate) fn discard_all(&mut self) -> Result<AllFresh, PagesError> {
        if !HostFeatures::get()?.discard {
            return Err(PagesError::Unsupported {
                feature: Feature::Discard,
                detail: "the call reports success and changes nothing: use a fresh slot instead",
            });
        }
        // What can fail without losing anything comes first.
        self.shrink_all()?;
        // One call for all that may have been written, guards between memories included.
        // It goes map by map, and stops at one that is locked.
        let written = self.zones.stack.start..self.private_end();
        if let Err(failure) = self.pages.discard(written) {
            self.undo_shrinking(self.memories.len());
            self.condition = Condition::Unfilled;
            return Err(failure.into());
        }
        self.copy_differing();
        self.copy_eagerly();
        for memory in &mut self.memories {
            memory.private = memory.size.initial;
        }
        if self.huge_pages == HugePages::Refused {
            self.huge_pages = HugePages::None;
        }
        self.finish();
        Ok(AllFresh(()))
    }

    /// Gives back the memory of a slot that is as its image, if that changes no contents.
    pub(crate) fn discard_kept(&mut self) -> Result<Option<AllFresh>, PagesError> {
        // What was grown once is inaccessible now, and may be private still.
        let all = self.zones.stack.start..self.zones.size;
        if !self.can_discard_around(&all) {
            return Ok(None);
        }
        let discarded = self.pages.discard(all);
        self.given = 0;
        // Also after an error: a part may have been discarded.
        self.copy_differing();
        Ok(Some(discarded.map(|()| AllFresh(()))?))
    }

    /// Slot offset up to which pages may have been written.
    pub(crate) fn dirty_end(&self) -> u64 {
        self.end(|state| state.dirty)
    }

    /// Slot offset up to which pages may be private.
    fn private_end(&self) -> u64 {
        self.end(|state| state.private)
    }

    /// Slot offset of the end of the last memory that has any such bytes.
    fn end(&self, bytes: impl Fn(&MemoryState) -> u64) -> u64 {
        let ends = self.zones.memories.iter().zip(&self.memories);
        let ends = ends.filter(|(_, state)| bytes(state) > 0);
        ends.map(|(zone, state)| zone.start + bytes(state)).next_back().unwrap_or(self.zones.base)
    }

    /// Slot offsets that are accessible and may have been written, ascending: from
    /// the stack to the end of the first memory, then each further memory.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        self.parts_up_to(|index| self.memories[index].dirty.min(self.accessible(index)))
    }

    /// Slot offsets of all that is accessible, ascending: from the stack to the end
    /// of the first memory, then each further memory.
    #[cfg(any(debug_assertions, feature = "testing"))]
    pub(crate) fn accessible_parts(&self) -> Vec<Range<u64>> {
        self.parts_up_to(|index| self.accessible(index)).collect()
    }

    /// Slot offsets of what images hold, ascending: from tables to the end of the first memory as
    /// it is now, then each further memory.
    pub(crate) fn image_parts(&self) -> impl Iterator<Item = Range<u64>> {
        let parts = self.parts_up_to(|index| self.bounds.memory_size(index));
        parts.map(|part| part.start.max(self.zones.image_floor)..part.end)
    }

    /// Before the host reads or writes pages of the slot; [`Self::end_look`] has to follow. Where a
    /// page that is gone is [noticed](crate::os::stand_in) by then, the file is asked for its length
    /// now and then only.
    ///
    /// # Errors
    /// If the file of its image was cut short.
    #[inline]
    pub(crate) fn begin_look(&self) -> Result<(), PagesError> {
        if self.watch.is_none() {
            return Ok(());
        }
        // Lost counts do no harm, and a plain addition is all that it takes.
        let looks = self.looks.load(Ordering::Relaxed);
        self.looks.store(looks.wrapping_add(1), Ordering::Relaxed);
        match looks.is_multiple_of(LOOKS_A_LENGTH) || !stand_in::is_called() {
            true => self.image.check_length(),
            false => Ok(()),
        }
    }

    /// # Errors
    /// If a page was gone: then what was read of it is nothing, and the slot is unfilled.
    #[inline]
    pub(crate) fn end_look(&self) -> Result<(), PagesError> {
        match self.has_lost_pages() {
            true => Err(self.image.unreadable()),
            false => Ok(()),
        }
    }

    /// Whether something else is in the place of a page that is gone.
    #[inline]
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.watch.as_ref().is_some_and(FileWatch::has_lost_pages)
    }

    /// Notices pages that are gone, if that is possible.
    pub(crate) fn file_watch(&self) -> Option<&FileWatch> {
        self.watch.as_ref()
    }

    /// Whether the image was copied instead of mapped.
    pub(crate) fn copies_image(&self) -> bool {
        self.setup.copies_image
    }

    /// Slot offsets from the stack to the end of the first memory, then of each further memory,
    /// which has this many bytes.
    fn parts_up_to(&self, size: impl Fn(usize) -> u64) -> impl Iterator<Item = Range<u64>> {
        let memory = move |index: usize| {
            let start = self.zones.memories[index].start;
            start..start + size(index)
        };
        let first = if self.memories.is_empty() { self.zones.base } else { memory(0).end };
        std::iter::once(self.zones.stack.start..first).chain((1..self.memories.len()).map(memory))
    }

    /// Bytes of a memory that are accessible now.
    pub(crate) fn accessible(&self, index: usize) -> u64 {
        self.bounds.memory_size(index).max(self.always(index))
    }

    /// Bytes of a memory that are accessible even beyond its size.
    fn always(&self, index: usize) -> u64 {
        let MemoryState { size, high_water, .. } = self.memories[index];
        match self.setup.growth {
            GrowthKind::Mprotect | GrowthKind::Ftruncate | GrowthKind::Fault => 0,
            GrowthKind::Checked { accessible: None } => size.maximum,
            GrowthKind::Checked { accessible: Some(bytes) } => {
                round_down(bytes).min(size.maximum).max(size.initial)
            }
            GrowthKind::Kept | GrowthKind::Auto => high_water.kept(),
        }
    }

    /// Whether `page` can be restored in place: not if only the kernel may read
    /// that part of the image.
    ///
    /// # Errors
    /// An error of the image's file, also when it was cut short: the page cannot be restored.
    pub(crate) fn can_restore(&self, page: u64) -> Result<bool, PagesError> {
        match self.source(page) {
            Some(source) if source.address.is_none() => Ok(self.is_differing(page)),
            Some(source) if source.on_demand && !self.is_differing(page) => {
                self.image.fetch(page).map(|()| true)
            }
            _ => Ok(true),
        }
    }

    /// Whether discarding `range` makes it as the image.
    pub(crate) fn can_discard(&self, range: &Range<u64>) -> bool {
        let differing = self.image.differing();
        let first = differing.partition_point(|differing| differing.page < range.start);
        let copies = differing.get(first).is_some_and(|differing| differing.page < range.end);
        !copies && self.can_discard_around(range)
    }

    /// Whether discarding `range` makes it as the image but for the pages in which that differs
    /// from what is mapped.
    fn can_discard_around(&self, range: &Range<u64>) -> bool {
        let of_image =
            |source: &Source| source.slot.start < range.end && range.start < source.slot.end;
        let is_lost = self.setup.copies_image && !self.serves_image();
        self.setup.discards && !(is_lost && self.sources.iter().any(of_image))
    }

    /// Throws away what has been written in `range`, where that makes it as the
    /// image: [`Self::can_discard`].
    pub(crate) fn discard(&mut self, range: Range<u64>) -> Result<(), PagesError> {
        debug_assert!(self.can_discard(&range));
        Ok(self.pages.discard(range)?)
    }

    /// Makes the page at slot offset `page` as the image, in place.
    ///
    /// # Safety
    /// The page is accessible, no other code uses it, and [`Self::can_restore`] has said so.
    pub(crate) unsafe fn restore(&self, page: u64) {
        match self.wanted(page) {
            // SAFETY: by this function's contract the page is accessible, and no other code
            // uses it; the image's is held by `self.image`, and lies elsewhere.
            Some(wanted) => unsafe {
                self.place(page).copy_from_nonoverlapping(wanted, PAGE_SIZE as usize);
            },
            // SAFETY: by this function's contract the page is accessible, and no other code
            // uses it.
            None => unsafe { self.clear(page..page + PAGE_SIZE) },
        }
    }

    /// Writes zeros to `range` of the slot.
    ///
    /// # Safety
    /// It is accessible, and no other code uses it.
    pub(crate) unsafe fn clear(&self, range: Range<u64>) {
        let length = (range.end - range.start) as usize;
        // SAFETY: by this function's contract the range is accessible, and no other code
        // uses it.
        unsafe { self.place(range.start).write_bytes(0, length) }
    }

    /// As [`Self::restore`], but writes only what differs. Returns how many of the
    /// page's [`BLOCKS`](restore::BLOCKS) did.
    ///
    /// # Safety
    /// As of [`Self::restore`].
    pub(crate) unsafe fn restore_if_changed(&self, page: u64) -> u32 {
        let wanted = self.wanted(page);
        // SAFETY: the caller says so of the page; the image's is never written, and
        // held by `self.image`.
        unsafe { restore::restore_if_changed(self.place(page), wanted) }
    }

    /// Whether a page is not as the image.
    ///
    /// # Safety
    /// As of [`Self::restore`].
    pub(crate) unsafe fn differs(&self, page: u64) -> bool {
        let wanted = self.wanted(page);
        // SAFETY: as of `restore_if_changed`.
        unsafe { restore::differs(self.place(page), wanted) }
    }

    /// # Safety
    /// As of [`Self::restore`], for all pages of `range`, which lies in `source`.
    unsafe fn restore_from(&self, source: &Source, range: Range<u64>) {
        let length = (range.end - range.start) as usize;
        // SAFETY: the caller says so of the pages; the image's are held by
        // `self.image`, and lie elsewhere.
        unsafe {
            self.place(range.start).copy_from_nonoverlapping(source.place(range.start), length);
        }
    }

    /// Where the bytes lie that the image has as the page, unless they are zero. They are held by
    /// `self.image`, and never written.
    fn wanted(&self, page: u64) -> Option<*const u8> {
        match self.image.differing_page(page) {
            Some(differing) => differing.bytes().map(|bytes| bytes.as_ptr()),
            None => self.source(page).map(|source| source.place(page)),
        }
    }

    /// Where the file of the image has the page, unless it is zero there.
    fn source(&self, page: u64) -> Option<&Source> {
        self.sources.iter().find(|source| source.slot.contains(&page))
    }

    fn place(&self, offset: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.pages.start() + offset as usize)
    }
}

impl Source {
    fn place(&self, page: u64) -> *const u8 {
        let address = self.address.expect("only readable parts of an image are read");
        ptr::with_exposed_provenance(address + (page - self.slot.start) as usize)
    }
}

impl MemoryState {
    fn fresh(&size: &MemorySize, growth: GrowthKind) -> Self {
        let MemorySize { initial, .. } = size;
        Self {
            size,
            dirty: initial,
            private: initial,
            before: initial,
            high_water: HighWater::new(growth),
        }
    }
}

/// The end of the page that a byte before `offset` lies in.
fn page_end(offset: u64) -> u64 {
    offset.next_multiple_of(PAGE_SIZE)
}

fn sources(image: &Image, setup: Setup) -> Result<Vec<Source>, PagesError> {
    match (setup.copies_image, setup.restores) {
        (true, _) => image.sources(Unsealed::Copied),
        (false, true) => image.sources(Unsealed::OnDemand),
        (false, false) => Ok(Vec::new()),
    }
}

/// # Errors
/// [`PagesError::ImageMisfit`] and [`PagesError::MemorySize`].
fn check_fit(zones: &SlotConfig, image: &Image, sizes: &[MemorySize]) -> Result<(), PagesError> {
    assert_eq!(sizes.len(), zones.memories.len(), "each memory has a size");
    for (size, zone) in sizes.iter().zip(&zones.memories) {
        let MemorySize { initial, maximum } = *size;
        check_memory_size(initial, 0, maximum.min(zone.reservation))?;
        check_memory_size(maximum, initial, zone.reservation)?;
    }
    for extent in image.extents() {
        let room = room_at(extent.start, zones, sizes);
        if extent.start < room.start || extent.end > room.end {
            return Err(PagesError::ImageMisfit { extent: extent.clone(), room });
        }
    }
    Ok(())
}

/// The part of a slot that an image fills from `start` on: tables, state and the first
/// memory, or a further memory.
fn room_at(start: u64, zones: &SlotConfig, sizes: &[MemorySize]) -> Range<u64> {
    let mut memories = zones.memories.iter().zip(sizes);
    let mut room = match memories.next() {
        Some((zone, size)) => zones.image_floor..zone.start + size.initial,
        None => zones.image_floor..zones.base,
    };
    for (zone, size) in memories.take_while(|(zone, _)| zone.start <= start) {
        room = zone.start..zone.start + size.initial;
    }
    room
}

fn check_memory_size(requested: u64, current: u64, maximum: u64) -> Result<(), PagesError> {
    if (current..=maximum).contains(&requested) && requested.is_multiple_of(PAGE_SIZE) {
        return Ok(());
    }
    Err(PagesError::MemorySize { requested, current, maximum })
}

fn place_bounds(zones: &SlotConfig, start: usize) -> SlotBounds {
    let at = |offset: u64| start + offset as usize;
    let memories = zones.memories.iter().map(|memory| at(memory.start)..at(memory.end()));
    SlotBounds::new(start..at(zones.size), at(zones.stack.start), memories)
}
