use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::{SLOT_ALIGN, SlotLayout};

use crate::bounds::SlotBounds;
use crate::error::{Feature, PagesError};
use crate::features::HostFeatures;
use crate::image::Image;
use crate::reservation::Reservation;

/// The zones of a slot, as far as pages care: byte offsets from its start, all
/// multiples of the page size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotConfig {
    /// The stack zone; everything below it is guard.
    pub stack: Range<u64>,
    /// Where the link zone starts.
    pub link: u64,
    /// Images lie at or above this.
    pub image_floor: u64,
    /// Where the first memory starts, if there is one.
    pub base: u64,
    /// The memories, ascending.
    pub memories: Vec<MemoryZone>,
    /// Bytes of the whole slot.
    pub size: u64,
}

/// The part of a slot that belongs to one memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryZone {
    /// Where it starts: a byte offset from the start of the slot.
    pub start: u64,
    /// Bytes reserved for it.
    pub reservation: u64,
    /// Bytes of guard behind the reservation that belong to it.
    pub guard: u64,
}

/// How much of a memory is accessible; bytes, in whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemorySize {
    /// What a fresh or reset slot has.
    pub initial: u64,
    /// What it can become.
    pub maximum: u64,
}

impl MemoryZone {
    /// Slot offset of its end, guard included.
    fn end(&self) -> u64 {
        self.start.saturating_add(self.reservation).saturating_add(self.guard)
    }
}

impl From<&SlotLayout> for SlotConfig {
    fn from(layout: &SlotLayout) -> Self {
        let zone = |place: &pagefork_layout::slot::MemoryPlace| MemoryZone {
            start: layout.base + place.offset,
            reservation: place.reservation,
            guard: place.guard,
        };
        Self {
            stack: layout.stack.clone(),
            link: layout.link.start,
            image_floor: layout.tables.start,
            base: layout.base,
            memories: layout.memories.iter().map(zone).collect(),
            size: layout.size,
        }
    }
}

/// The address space of one instance, filled from an image.
///
/// ```text
///  0       stack   link   tables   image                base          + size         end
///  | guard | stack | link | room   | contents, state    | memory 0    | guard        |
///  |-none--|--anonymous read-write-|--copy on write (image)--|-anon-rw-|----none------|
/// ```
///
/// Four maps: the guard behind and the guard of the next slot are one. Each
/// further memory lies behind the guard of the one before it, and costs two more,
/// or three where the image reaches into it. Pages
/// count as memory only once they are touched (`MAP_NORESERVE`). Transparent
/// huge pages are left as the system has them: refusing them (`MADV_NOHUGEPAGE`)
/// would mark the zones differently from their guards, which is of use only to
/// strategies that count page faults.
///
/// Everything here is raw pages: whoever reads or writes through the pointers
/// must not do so beyond what is accessible, nor after the slot is dropped, which
/// unmaps it.
#[derive(Debug)]
pub struct Slot {
    pages: Reservation,
    zones: SlotConfig,
    image: Arc<Image>,
    bounds: SlotBounds,
    /// One for each memory.
    memories: Vec<MemoryState>,
}

#[derive(Clone, Copy, Debug)]
struct MemoryState {
    size: MemorySize,
    /// Bytes up to which pages may have been written since they were last
    /// discarded. Invariant: at least what is accessible; higher only after a
    /// reset that failed half-way.
    dirty: u64,
    /// What was accessible before the reset that is under way.
    before: u64,
}

impl Slot {
    /// Reserves a slot and fills it: the image copy-on-write, zeros elsewhere, of
    /// each memory as much accessible as `sizes` says at its place.
    ///
    /// # Errors
    /// [`PagesError::ImageMisfit`] and [`PagesError::MemorySize`] for an image or
    /// a size that this slot cannot have; else the limit that was met. Nothing
    /// stays behind.
    ///
    /// # Panics
    /// If the zones do not follow each other in whole pages, or there are not as
    /// many sizes as memories.
    pub fn new(
        config: impl Into<SlotConfig>,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<Self, PagesError> {
        let zones = config.into();
        check_zones(&zones);
        assert_eq!(sizes.len(), zones.memories.len(), "each memory has a size");
        for (size, zone) in sizes.iter().zip(&zones.memories) {
            let MemorySize { initial, maximum } = *size;
            check_memory_size(initial, 0, maximum.min(zone.reservation))?;
            check_memory_size(maximum, initial, zone.reservation)?;
        }
        let rooms = rooms(&zones, sizes);
        for extent in image.extents() {
            let room = rooms.iter().rev().find(|room| room.start <= extent.start);
            let room = room.unwrap_or(&rooms[0]);
            if extent.start < room.start || extent.end > room.end {
                return Err(PagesError::ImageMisfit { extent: extent.clone(), room: room.clone() });
            }
        }

        let mut pages = Reservation::new(zones.size, SLOT_ALIGN)?;
        pages.commit(zones.stack.start..rooms[0].end)?;
        for room in &rooms[1..] {
            pages.commit(room.clone())?;
        }
        for (range, file, file_offset) in image.maps() {
            pages.map_private(range, file, file_offset)?;
        }
        let bounds = place_bounds(&zones, pages.start());
        for (index, size) in sizes.iter().enumerate() {
            bounds.set_memory_size(index, size.initial);
        }
        let fresh = |&size: &MemorySize| {
            let MemorySize { initial, .. } = size;
            MemoryState { size, dirty: initial, before: initial }
        };
        Ok(Self {
            pages,
            image: Arc::clone(image),
            bounds,
            memories: sizes.iter().map(fresh).collect(),
            zones,
        })
    }

    /// Address of the slot's first byte, which is guard.
    pub fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.pages.start())
    }

    /// Address of the first byte of the first memory.
    pub fn base(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.base as usize)
    }

    /// How many memories there are.
    pub fn memory_count(&self) -> usize {
        self.memories.len()
    }

    /// Address of the first byte of memory `index`.
    ///
    /// # Panics
    /// If there is no such memory; so do all functions that take an index.
    pub fn memory(&self, index: usize) -> *mut u8 {
        self.start().wrapping_add(self.zones.memories[index].start as usize)
    }

    /// Address of the link zone. A reset leaves it zero.
    pub fn link(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.link as usize)
    }

    /// Address where the stack zone ends: the stack grows down from here.
    pub fn stack_top(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.stack.end as usize)
    }

    /// Bytes of memory `index` that are accessible.
    pub fn memory_size(&self, index: usize) -> u64 {
        self.bounds.memory_size(index)
    }

    /// Bytes that memory `index` can grow to.
    pub fn memory_max(&self, index: usize) -> u64 {
        self.memories[index].size.maximum
    }

    /// What the slot was filled from and a reset returns to.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Where everything lies, to share with a signal handler.
    pub fn bounds(&self) -> SlotBounds {
        self.bounds.clone()
    }

    /// Makes memory `index` `new_size` bytes long; what is new reads as zero.
    ///
    /// # Errors
    /// [`PagesError::MemorySize`] if that is less than now, more than the
    /// maximum, or not whole pages; [`PagesError::ResetIncomplete`] after a reset
    /// that failed; else the limit that was met. The memory is as before then.
    pub fn grow_memory(&mut self, index: usize, new_size: u64) -> Result<(), PagesError> {
        let old_size = self.memory_size(index);
        let state = self.memories[index];
        check_memory_size(new_size, old_size, state.size.maximum)?;
        if state.dirty > old_size {
            return Err(PagesError::ResetIncomplete);
        }
        let start = self.zones.memories[index].start;
        self.pages.commit(start + old_size..start + new_size)?;
        self.memories[index].dirty = new_size;
        self.bounds.set_memory_size(index, new_size);
        Ok(())
    }

    /// Returns every page to what [`Slot::new`] made: the image, zeros elsewhere
    /// (stack and link included), memories of their initial sizes. This is the
    /// strategy *Discard*: the kernel throws the written pages away.
    ///
    /// # Errors
    /// [`PagesError::Unsupported`] where the kernel only pretends to discard;
    /// else the limit that was met. The slot is as before then, except that a
    /// memory for which even that could not be restored ends at its initial size
    /// and cannot grow before a reset succeeds.
    pub fn reset(&mut self) -> Result<(), PagesError> {
        if !HostFeatures::get()?.discard {
            return Err(PagesError::Unsupported {
                feature: Feature::Discard,
                detail: "the call reports success and changes nothing: use a fresh slot instead",
            });
        }
        // What can fail without losing anything comes first.
        for index in 0..self.memories.len() {
            if let Err(failure) = self.shrink(index) {
                self.undo_shrinking(index);
                return Err(failure);
            }
        }
        // One call for all that may have been written, guards between memories
        // included: it is done or not, as a whole.
        if let Err(failure) = self.pages.discard(self.zones.stack.start..self.dirty_end()) {
            self.undo_shrinking(self.memories.len());
            return Err(failure.into());
        }
        for memory in &mut self.memories {
            memory.dirty = memory.size.initial;
        }
        Ok(())
    }

    /// Makes what a memory has beyond its initial size inaccessible. Its pages
    /// stay dirty.
    fn shrink(&mut self, index: usize) -> Result<(), PagesError> {
        let (initial, size) = (self.memories[index].size.initial, self.memory_size(index));
        let start = self.zones.memories[index].start;
        self.memories[index].before = size;
        // From now on no handler may take the pages for accessible.
        self.bounds.set_memory_size(index, initial);
        self.pages.protect(start + initial..start + size).map_err(|failure| {
            self.bounds.set_memory_size(index, size);
            failure.into()
        })
    }

    /// Makes the memories below `count` accessible again that [`Self::shrink`]
    /// has shrunk, as far as that is possible.
    fn undo_shrinking(&mut self, count: usize) {
        for index in 0..count {
            let MemoryState { size, before, .. } = self.memories[index];
            let start = self.zones.memories[index].start;
            if self.pages.commit(start + size.initial..start + before).is_ok() {
                self.bounds.set_memory_size(index, before);
            }
        }
    }

    /// Slot offset up to which pages may have been written.
    fn dirty_end(&self) -> u64 {
        let ends = self.zones.memories.iter().zip(&self.memories);
        let ends = ends.filter(|(_, state)| state.dirty > 0);
        ends.map(|(zone, state)| zone.start + state.dirty).next_back().unwrap_or(self.zones.base)
    }
}

/// The parts of a slot that images fill: tables, state and the first memory, then
/// each further memory.
fn rooms(zones: &SlotConfig, sizes: &[MemorySize]) -> Vec<Range<u64>> {
    let mut rooms: Vec<Range<u64>> = zones
        .memories
        .iter()
        .zip(sizes)
        .map(|(zone, size)| zone.start..zone.start + size.initial)
        .collect();
    match rooms.first_mut() {
        Some(first) => first.start = zones.image_floor,
        None => rooms.push(zones.image_floor..zones.base),
    }
    rooms
}

fn check_zones(zones: &SlotConfig) {
    let mut ascending =
        vec![0, zones.stack.start, zones.stack.end, zones.link, zones.image_floor, zones.base];
    for memory in &zones.memories {
        ascending.extend([memory.start, memory.start.saturating_add(memory.reservation)]);
        ascending.push(memory.end());
    }
    ascending.push(zones.size);
    assert!(
        ascending.is_sorted() && ascending.iter().all(|place| place.is_multiple_of(PAGE_SIZE)),
        "zones follow each other in whole pages, unlike {zones:#x?}"
    );
    assert!(zones.stack.start > 0 && zones.size > zones.base, "a slot has guards at both ends");
    let starts_at_base = zones.memories.first().is_none_or(|first| first.start == zones.base);
    assert!(starts_at_base, "the first memory starts at the base");
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

// A slot moves between threads; its addresses mean the same in each.
const _: () = {
    const fn sendable<T: Send + Sync>() {}
    sendable::<Slot>();
    sendable::<SlotBounds>();
    sendable::<Image>();
};
