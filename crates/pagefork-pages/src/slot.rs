use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::{MEMORY_GUARD, SLOT_ALIGN, SlotLayout};

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
    /// Where memory 0 starts.
    pub base: u64,
    /// Bytes reserved for memory 0, 0 if there is none.
    pub memory_reservation: u64,
    /// Bytes of guard behind the reservation that belong to the memory.
    pub memory_guard: u64,
    /// Bytes of the whole slot.
    pub size: u64,
}

impl From<&SlotLayout> for SlotConfig {
    fn from(layout: &SlotLayout) -> Self {
        let memory_guard = if layout.memory_reservation > 0 { MEMORY_GUARD } else { 0 };
        Self {
            stack: layout.stack.clone(),
            link: layout.link.start,
            image_floor: layout.tables.start,
            base: layout.base,
            memory_reservation: layout.memory_reservation,
            memory_guard,
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
/// Four maps: the guard behind and the guard of the next slot are one. Pages
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
    /// Bytes of memory that a fresh or reset slot has.
    memory_initial: u64,
    /// Bytes that memory may grow to.
    memory_max: u64,
    /// Offset up to which pages may have been written since they were last
    /// discarded. Invariant: at least the end of the accessible memory; higher
    /// only after a reset that failed half-way.
    dirty_end: u64,
}

impl Slot {
    /// Reserves a slot and fills it: the image copy-on-write, zeros elsewhere,
    /// `memory_size` bytes of memory accessible, which can become `memory_max`
    /// (bytes, in whole pages, at most what the layout reserves).
    ///
    /// # Errors
    /// [`PagesError::ImageMisfit`] and [`PagesError::MemorySize`] for an image or
    /// a size that this slot cannot have; else the limit that was met. Nothing
    /// stays behind.
    ///
    /// # Panics
    /// If the zones do not follow each other in whole pages.
    pub fn new(
        config: impl Into<SlotConfig>,
        image: &Arc<Image>,
        memory_size: u64,
        memory_max: u64,
    ) -> Result<Self, PagesError> {
        let zones = config.into();
        check_zones(&zones);
        check_memory_size(memory_size, 0, memory_max.min(zones.memory_reservation))?;
        check_memory_size(memory_max, memory_size, zones.memory_reservation)?;
        let room = zones.image_floor..zones.base + memory_size;
        let extent = image.extent();
        if !extent.is_empty() && (extent.start < room.start || extent.end > room.end) {
            return Err(PagesError::ImageMisfit { extent, room });
        }

        let mut pages = Reservation::new(zones.size, SLOT_ALIGN)?;
        pages.commit(zones.stack.start..room.end)?;
        for (range, file, file_offset) in image.maps() {
            pages.map_private(range, file, file_offset)?;
        }
        let bounds = place_bounds(&zones, pages.start());
        bounds.set_memory_size(memory_size);
        Ok(Self {
            pages,
            image: Arc::clone(image),
            bounds,
            memory_initial: memory_size,
            memory_max,
            dirty_end: room.end,
            zones,
        })
    }

    /// Address of the slot's first byte, which is guard.
    pub fn start(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.pages.start())
    }

    /// Address of the first byte of memory 0.
    pub fn base(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.base as usize)
    }

    /// Address of the link zone. A reset leaves it zero.
    pub fn link(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.link as usize)
    }

    /// Address where the stack zone ends: the stack grows down from here.
    pub fn stack_top(&self) -> *mut u8 {
        self.start().wrapping_add(self.zones.stack.end as usize)
    }

    /// Bytes of memory 0 that are accessible.
    pub fn memory_size(&self) -> u64 {
        self.bounds.memory_size()
    }

    /// Bytes that memory 0 can grow to.
    pub fn memory_max(&self) -> u64 {
        self.memory_max
    }

    /// What the slot was filled from and a reset returns to.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Where everything lies, to share with a signal handler.
    pub fn bounds(&self) -> SlotBounds {
        self.bounds.clone()
    }

    /// Makes memory 0 `new_size` bytes long; what is new reads as zero.
    ///
    /// # Errors
    /// [`PagesError::MemorySize`] if that is less than now, more than the
    /// maximum, or not whole pages; [`PagesError::ResetIncomplete`] after a reset
    /// that failed; else the limit that was met. The memory is as before then.
    pub fn grow_memory(&mut self, new_size: u64) -> Result<(), PagesError> {
        let old_size = self.memory_size();
        check_memory_size(new_size, old_size, self.memory_max)?;
        let (old_end, new_end) = (self.memory_end(old_size), self.memory_end(new_size));
        if self.dirty_end > old_end {
            return Err(PagesError::ResetIncomplete);
        }
        self.pages.commit(old_end..new_end)?;
        self.dirty_end = new_end;
        self.bounds.set_memory_size(new_size);
        Ok(())
    }

    /// Returns every page to what [`Slot::new`] made: the image, zeros elsewhere
    /// (stack and link included), memory of the initial size. This is the
    /// strategy *Discard*: the kernel throws the written pages away.
    ///
    /// # Errors
    /// [`PagesError::Unsupported`] where the kernel only pretends to discard;
    /// else the limit that was met. The slot is as before then, except that,
    /// where even that could not be restored, its memory ends at the initial
    /// size and cannot grow before a reset succeeds.
    pub fn reset(&mut self) -> Result<(), PagesError> {
        if !HostFeatures::get()?.discard {
            return Err(PagesError::Unsupported {
                feature: Feature::Discard,
                detail: "the call reports success and changes nothing: use a fresh slot instead",
            });
        }
        let old_size = self.memory_size();
        let (initial_end, old_end) =
            (self.memory_end(self.memory_initial), self.memory_end(old_size));
        // What can fail without losing anything comes first. From then on no
        // handler may take the pages for accessible.
        self.bounds.set_memory_size(self.memory_initial);
        if let Err(failure) = self.pages.protect(initial_end..old_end) {
            self.bounds.set_memory_size(old_size);
            return Err(failure.into());
        }
        if let Err(failure) = self.pages.discard(self.zones.stack.start..self.dirty_end) {
            if self.pages.commit(initial_end..old_end).is_ok() {
                self.bounds.set_memory_size(old_size);
            }
            return Err(failure.into());
        }
        self.dirty_end = initial_end;
        Ok(())
    }

    /// Slot offset of the end of a memory of `size` bytes.
    fn memory_end(&self, size: u64) -> u64 {
        self.zones.base + size
    }
}

fn check_zones(zones: &SlotConfig) {
    let memory_end = zones.base + zones.memory_reservation + zones.memory_guard;
    let ascending = [
        0,
        zones.stack.start,
        zones.stack.end,
        zones.link,
        zones.image_floor,
        zones.base,
        memory_end,
        zones.size,
    ];
    assert!(
        ascending.is_sorted() && ascending.iter().all(|place| place.is_multiple_of(PAGE_SIZE)),
        "zones follow each other in whole pages, unlike {zones:#x?}"
    );
    assert!(zones.stack.start > 0 && zones.size > zones.base, "a slot has guards at both ends");
}

fn check_memory_size(requested: u64, current: u64, maximum: u64) -> Result<(), PagesError> {
    if (current..=maximum).contains(&requested) && requested.is_multiple_of(PAGE_SIZE) {
        return Ok(());
    }
    Err(PagesError::MemorySize { requested, current, maximum })
}

fn place_bounds(zones: &SlotConfig, start: usize) -> SlotBounds {
    let at = |offset: u64| start + offset as usize;
    let memory_end = zones.base + zones.memory_reservation + zones.memory_guard;
    SlotBounds::new(start..at(zones.size), at(zones.stack.start), at(zones.base), at(memory_end))
}

// A slot moves between threads; its addresses mean the same in each.
const _: () = {
    const fn sendable<T: Send + Sync>() {}
    sendable::<Slot>();
    sendable::<SlotBounds>();
    sendable::<Image>();
};
