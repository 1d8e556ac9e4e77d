//! Where the zones of a slot lie, and how large its memories are.

use std::ops::Range;

use pagefork_layout::page::{PAGE_SIZE, round_down};
use pagefork_layout::slot::SlotLayout;

/// The zones of a slot, as far as pages care: byte offsets from its start, all
/// multiples of the page size, but for the border between stack and link. [`Slot`](crate::Slot)
/// has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotConfig {
    /// The stack zone; everything below it is guard. It may end within a page, where the
    /// link zone starts then, at a multiple of 16.
    pub stack: Range<u64>,
    /// The link zone, which belongs to the runtime.
    pub link: Range<u64>,
    /// Images lie at or above this.
    pub image_floor: u64,
    /// Where the first memory starts, if there is one.
    pub base: u64,
    /// The memories, ascending.
    pub memories: Vec<MemoryZone>,
    /// Bytes of the whole slot.
    pub size: u64,
}

/// The part of a slot that belongs to one memory. [`Slot`](crate::Slot) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryZone {
    /// Where it starts: a byte offset from the start of the slot.
    pub start: u64,
    /// Bytes reserved for it.
    pub reservation: u64,
    /// Bytes of guard behind the reservation that belong to it.
    pub guard: u64,
}

/// How much of a memory is accessible; bytes, in whole pages. [`Slot`](crate::Slot) has an
/// example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemorySize {
    /// What a fresh or reset slot has.
    pub initial: u64,
    /// What it can become.
    pub maximum: u64,
}

impl SlotConfig {
    /// # Panics
    /// If the zones do not follow each other in whole pages.
    pub(crate) fn check(&self) {
        let zones = self;
        let border = [round_down(zones.stack.end), round_down(zones.link.start)];
        let below = [0, zones.stack.start, border[0], border[1], zones.link.end, zones.image_floor];
        let memories = zones.memories.iter().flat_map(|memory| {
            [memory.start, memory.start.saturating_add(memory.reservation), memory.end()]
        });
        let ascending = below.into_iter().chain([zones.base]).chain(memories).chain([zones.size]);
        assert!(
            ascending.clone().is_sorted() && { ascending }
                .all(|place| place.is_multiple_of(PAGE_SIZE)),
            "zones follow each other in whole pages, unlike {zones:#x?}"
        );
        let meet = zones.stack.end == zones.link.start && zones.stack.end.is_multiple_of(16);
        assert!(meet || [zones.stack.end, zones.link.start] == border, "stack and link meet");
        assert!(zones.stack.start > 0 && zones.size > zones.base, "a slot has guards at both ends");
        let starts_at_base = zones.memories.first().is_none_or(|first| first.start == zones.base);
        assert!(starts_at_base, "the first memory starts at the base");
    }
}

impl MemoryZone {
    /// Slot offset of its end, guard included.
    pub(crate) fn end(&self) -> u64 {
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
            link: layout.link.clone(),
            image_floor: layout.tables.start,
            base: layout.base,
            memories: layout.memories.iter().map(zone).collect(),
            size: layout.size,
        }
    }
}
