//! The zones of a slot and their places.

use std::ops::Range;

use crate::CELL_SIZE;
use crate::exception::ZONE_SIZE_MAX;
use crate::link::LinkLayout;
use crate::module::ModuleInfo;
use crate::page::{PAGE_SIZE, WASM_PAGE_SIZE, round_up};
use crate::state::StateLayout;

/// Bytes of the low guard of a slot, at least; a stack overflow faults there.
/// Compiled code probes every page of a frame beyond one page.
pub const LOW_GUARD: u64 = 64 << 10;

/// Bytes that each 32-bit memory reserves: what an index can name.
pub const MEMORY_RESERVATION: u64 = 4 << 30;

/// Bytes of guard behind a 32-bit memory's reservation: what a static offset can
/// add to an index, and the widest access. So no access of such a memory is
/// checked, whichever instance it belongs to.
pub const MEMORY_GUARD: u64 = (4 << 30) + (64 << 10);

/// Bytes of guard behind a 64-bit memory's reservation. Every access of such a
/// memory is checked; the guard only keeps neighbours apart.
pub const MEMORY64_GUARD: u64 = 64 << 10;

/// Bytes that are inaccessible below each slot that lies above no other: a negative offset
/// that a miscompilation adds finds nothing there, as it does in the guards between slots.
pub const PRE_GUARD: u64 = 2 << 30;

/// Slots start at multiples of this, so that a slot's small zones and the start
/// of its memory share page tables.
pub const SLOT_ALIGN: u64 = 2 << 20;

/// The link zone starts at a multiple of this.
const LINK_ALIGN: u64 = 64;

/// What the embedder decides about slots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlotLimits {
    /// Bytes of the stack zone; rounded up to pages, and up to where the link zone starts.
    pub stack_size: u64,
    /// Room to grow for a table, in elements, where its module gives no smaller
    /// maximum. A larger initial length is still honoured.
    pub table_elements: u64,
    /// Bytes that a 64-bit memory reserves, and so can grow to, where its module
    /// gives no smaller maximum; rounded down to wasm pages. A larger initial
    /// size is still honoured.
    pub memory64_size: u64,
    /// Bytes of the zone for exceptions of a module that has tags; rounded up to
    /// pages, at most [`crate::exception::ZONE_SIZE_MAX`].
    pub exceptions_size: u64,
}

impl Default for SlotLimits {
    fn default() -> Self {
        Self {
            stack_size: 1 << 20,
            table_elements: 64 << 10,
            memory64_size: 4 << 30,
            exceptions_size: 64 << 10,
        }
    }
}

/// The zones of a slot. All places are byte offsets from the slot's start and
/// multiples of the page size, unless they say otherwise. Stack and link meet within a
/// page: every run writes both, and so takes one page for what both begin with.
///
/// ```text
/// 0       stack        link   exceptions   tables         image        base           size
/// | guard | stack down | link | exceptions | room to grow | contents,  | memory 0 | guard |
/// |       |            |      |            |              | state      |          |       |
/// '-none--'---------------anonymous, read-write-----------'-copy on write-'-rw-'---none---'
/// ```
///
/// Further memories lie behind memory 0, each with its guard, at multiples of
/// [`SLOT_ALIGN`] from the slot's start.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlotLayout {
    /// The stack zone; it grows from its end down, a multiple of 16.
    pub stack: Range<u64>,
    /// The link zone; it ends with a page.
    pub link: Range<u64>,
    /// The exceptions zone, see [`crate::exception`]: empty in modules without
    /// tags.
    pub exceptions: Range<u64>,
    /// The tables zone: room to grow, then contents.
    pub tables: Range<u64>,
    /// The state zone; it ends at the base.
    pub state: Range<u64>,
    /// Where the first memory starts: what offsets in compiled code are relative
    /// to.
    pub base: u64,
    /// The memories that the module defines, in order.
    pub memories: Vec<MemoryPlace>,
    /// Bytes of the whole slot, guards included; a multiple of [`SLOT_ALIGN`].
    pub size: u64,
    /// For each own table, where it ends, relative to the base: element `i` is
    /// the 8 bytes at `end - 8 * (i + 1)`.
    pub table_ends: Vec<i32>,
    /// For each own table, how many elements it has room for: fewer than it
    /// begins with if no slot can hold it.
    pub table_capacities: Vec<u64>,
    /// Where the first byte of initial table contents or state lies: the image
    /// starts here and never below.
    pub image_start: u64,
    /// Parts of the state zone.
    pub state_parts: StateLayout,
    /// Parts of the link zone.
    pub link_parts: LinkLayout,
}

/// Where a memory lies in its slot: bytes, all multiples of the page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryPlace {
    /// Where it starts, as a distance above the base: 0 for the first.
    pub offset: u64,
    /// Bytes reserved: it cannot grow beyond. Less than its initial size if that
    /// does not fit into a slot; no instance can be made then.
    pub reservation: u64,
    /// Bytes behind the reservation that are never accessible.
    pub guard: u64,
}

impl MemoryPlace {
    /// The largest size that the memory can have, in wasm pages; its module may declare less.
    pub const fn pages_max(&self) -> u64 {
        self.reservation / WASM_PAGE_SIZE
    }

    /// Where its guard ends, as a distance above the base.
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.reservation).saturating_add(self.guard)
    }
}

/// A module that no slot can hold: what is too large, and by how much.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotTooLarge {
    /// Which part.
    pub what: &'static str,
    /// Its size in bytes.
    pub size: u64,
    /// The largest size in bytes.
    pub limit: u64,
}

/// Tables and state together stay within this many bytes below the base.
pub const BELOW_BASE_MAX: u64 = 1 << 30;

/// Memories and their guards together stay within this many bytes: half of what
/// a process has.
pub const ABOVE_BASE_MAX: u64 = 1 << 46;

impl SlotLayout {
    /// The slot of an instance of `module`.
    ///
    /// # Errors
    /// If the state does not fit [`BELOW_BASE_MAX`], or memories
    /// [`ABOVE_BASE_MAX`].
    pub fn new(module: &ModuleInfo, limits: &SlotLimits) -> Result<Self, SlotTooLarge> {
        let too_large = |what, size| SlotTooLarge { what, size, limit: BELOW_BASE_MAX };
        let link_parts = LinkLayout::new(module);
        let state_parts = StateLayout::new(module, link_parts.cell_count)
            .map_err(|size| too_large("state", size))?;

        // Fixed tables lie next to the state, those with the most room to grow
        // lowest: so the lowest one's room adjoins the anonymous zones, and the
        // image behind stays dense.
        let own = &module.tables[module.imported_tables as usize..];
        let mut capacities: Vec<u64> = own
            .iter()
            .map(|table| {
                let maximum = table.maximum.unwrap_or(u64::MAX);
                maximum.min(limits.table_elements).max(table.minimum)
            })
            .collect();
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.sort_by_key(|&index| capacities[index] - own[index].minimum);

        let mut ends = vec![0i32; own.len()];
        let mut below = u64::from(state_parts.size);
        let mut contents = below;
        for index in order {
            below = below.next_multiple_of(8);
            ends[index] = -(below.min(BELOW_BASE_MAX) as i32);
            // A table that does not fit gets no room at all: the module is valid,
            // only that no instance of it can be made.
            let room = BELOW_BASE_MAX.saturating_sub(below) / 8;
            let minimum = own[index].minimum;
            capacities[index] = if minimum <= room { capacities[index].min(room) } else { 0 };
            if capacities[index] > 0 && minimum > 0 {
                contents = below + 8 * minimum;
            }
            below += 8 * capacities[index];
        }

        let stack_size = round_up(limits.stack_size.max(4 * PAGE_SIZE));
        let link_size = u64::from(link_parts.size).next_multiple_of(LINK_ALIGN);
        let tables_and_state = round_up(below);
        let link_end = LOW_GUARD + stack_size + round_up(link_size);
        let link = link_end - link_size..link_end;
        let stack = LOW_GUARD..link.start;
        let exceptions_size = match module.tags.is_empty() {
            true => 0,
            false => round_up(limits.exceptions_size.clamp(PAGE_SIZE, ZONE_SIZE_MAX)),
        };
        let exceptions = link.end..link.end + exceptions_size;
        let base = exceptions.end + tables_and_state;
        let state_start = base - round_up(u64::from(state_parts.size)).min(tables_and_state);
        let memories = memory_places(module, limits, base)?;
        let end = base + memories.last().map_or(LOW_GUARD, MemoryPlace::end);
        Ok(Self {
            stack,
            tables: exceptions.end..state_start,
            link,
            exceptions,
            state: state_start..base,
            base,
            memories,
            size: end.next_multiple_of(SLOT_ALIGN),
            table_ends: ends,
            table_capacities: capacities,
            image_start: base - round_up(contents),
            state_parts,
            link_parts,
        })
    }

    /// Offset of the link zone from the base: negative.
    pub const fn link_offset(&self) -> i32 {
        -((self.base - self.link.start) as i32)
    }

    /// Offset of cell `index` from the base: negative.
    pub const fn cell(&self, index: u32) -> i32 {
        self.link_offset() + (self.link_parts.cells + CELL_SIZE * index) as i32
    }

    /// Offset from the base of element `element` of the module's own table
    /// `table`.
    pub fn table_element(&self, table: u32, element: u64) -> i64 {
        i64::from(self.table_ends[table as usize]) - 8 * (element as i64 + 1)
    }

    /// Offset from the base of byte `byte` of the module's own memory `memory`.
    pub fn memory_byte(&self, memory: u32, byte: u64) -> i64 {
        (self.memories[memory as usize].offset + byte) as i64
    }
}

/// Where the module's own memories lie, in a slot with this base.
fn memory_places(
    module: &ModuleInfo,
    limits: &SlotLimits,
    base: u64,
) -> Result<Vec<MemoryPlace>, SlotTooLarge> {
    let mut places: Vec<MemoryPlace> = Vec::new();
    for memory in &module.memories[module.imported_memories as usize..] {
        let behind = |last: &MemoryPlace| (base + last.end()).next_multiple_of(SLOT_ALIGN) - base;
        let offset = places.last().map_or(0, behind);
        let (reservation, guard) = if memory.memory64 {
            let bytes = |pages: u64| pages.saturating_mul(WASM_PAGE_SIZE);
            let whole = |bytes: u64| bytes / WASM_PAGE_SIZE * WASM_PAGE_SIZE;
            let room = whole(ABOVE_BASE_MAX.saturating_sub(offset + MEMORY64_GUARD));
            let wanted = memory.maximum.map_or(u64::MAX, bytes).min(whole(limits.memory64_size));
            // A memory that does not fit gets no room at all: the module is valid,
            // only that no instance of it can be made.
            let minimum = bytes(memory.minimum);
            let reservation = if minimum <= room { wanted.max(minimum).min(room) } else { 0 };
            (reservation, MEMORY64_GUARD)
        } else {
            (MEMORY_RESERVATION, MEMORY_GUARD)
        };
        let place = MemoryPlace { offset, reservation, guard };
        if place.end() > ABOVE_BASE_MAX {
            return Err(SlotTooLarge {
                what: "memories",
                size: place.end(),
                limit: ABOVE_BASE_MAX,
            });
        }
        places.push(place);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{FuncType, MemoryType, RefType, TableType};

    fn table(minimum: u32, maximum: Option<u32>) -> TableType {
        TableType::new(RefType::FUNCREF, minimum, maximum)
    }

    #[test]
    fn zones_follow_each_other_without_gap_or_overlap() {
        let module = ModuleInfo {
            tables: vec![table(10, None), table(5, Some(5)), table(0, Some(7))],
            memories: vec![MemoryType::new(1, None)],
            tags: vec![0],
            types: vec![FuncType::default()],
            ..ModuleInfo::default()
        };
        let slot = SlotLayout::new(&module, &SlotLimits::default()).unwrap();
        assert!(slot.stack.start >= LOW_GUARD);
        assert_eq!(slot.stack.end, slot.link.start);
        assert_eq!(slot.link.end, slot.exceptions.start);
        assert!(slot.exceptions.end - slot.exceptions.start >= 64 << 10);
        assert_eq!(slot.exceptions.end, slot.tables.start);
        assert_eq!(slot.tables.end, slot.state.start);
        assert_eq!(slot.state.end, slot.base);
        assert_eq!(slot.memories.len(), 1);
        assert_eq!(slot.memories[0].offset, 0);
        assert!(slot.size - slot.base >= 2 * (u64::from(u32::MAX)) + 16);
        assert_eq!(slot.size % SLOT_ALIGN, 0);
        let places = [slot.stack.start, slot.link.end, slot.exceptions.end, slot.base];
        for place in places.into_iter().chain([slot.image_start]) {
            assert_eq!(place % PAGE_SIZE, 0);
        }
        assert_eq!(slot.link.start % LINK_ALIGN, 0);
        assert!(slot.link.end - slot.link.start < PAGE_SIZE, "a part of its page is stack");
        assert!(slot.stack.end - slot.stack.start > SlotLimits::default().stack_size);
    }

    #[test]
    fn the_table_with_most_room_is_lowest_and_only_contents_are_in_the_image() {
        let module = ModuleInfo {
            tables: vec![table(10, None), table(5, Some(5))],
            ..ModuleInfo::default()
        };
        let slot = SlotLayout::new(&module, &SlotLimits::default()).unwrap();
        assert!(slot.table_ends[0] < slot.table_ends[1]);
        assert_eq!(slot.table_capacities, [64 << 10, 5]);
        let below_base = slot.base - slot.image_start;
        assert!(below_base <= 2 * PAGE_SIZE, "the image holds {below_base} bytes below the base");
        assert_eq!(slot.table_element(0, 0), i64::from(slot.table_ends[0]) - 8);
    }

    #[test]
    fn a_table_beyond_the_addressable_part_gets_no_room_and_takes_none_from_others() {
        let tables = vec![table(1 << 28, None), table(5, None)];
        let module = ModuleInfo { tables, ..ModuleInfo::default() };
        let slot = SlotLayout::new(&module, &SlotLimits::default()).unwrap();
        assert_eq!(slot.table_capacities, [0, 64 << 10]);
    }
    fn memory64(minimum: u64, maximum: Option<u64>) -> MemoryType {
        MemoryType::new64(minimum, maximum)
    }

    fn places(memories: Vec<MemoryType>, limits: &SlotLimits) -> Result<SlotLayout, SlotTooLarge> {
        SlotLayout::new(&ModuleInfo { memories, ..ModuleInfo::default() }, limits)
    }

    #[test]
    fn every_32_bit_memory_has_the_full_guard_and_memories_do_not_overlap() {
        let (small, wide) = (MemoryType::new(0, Some(1)), MemoryType::new(1, None));
        let memories = vec![small, memory64(1, None), wide, memory64(0, Some(3)), small];
        let slot = places(memories.clone(), &SlotLimits::default()).unwrap();
        assert_eq!(slot.memories.len(), memories.len());
        let mut last_end = 0;
        for (place, memory) in slot.memories.iter().zip(&memories) {
            assert!(place.offset >= last_end);
            assert!(place.reservation >= memory.minimum * WASM_PAGE_SIZE);
            assert_eq!(place.end() % PAGE_SIZE, 0);
            if memory.memory64 {
                assert_eq!(place.guard, MEMORY64_GUARD);
            } else {
                assert!(place.reservation >= 1 << 32);
                assert!(place.end() - place.offset >= 2 * u64::from(u32::MAX) + 16);
            }
            last_end = place.end();
        }
        for place in &slot.memories[1..] {
            assert_eq!((slot.base + place.offset) % SLOT_ALIGN, 0);
        }
        assert!(slot.size >= slot.base + last_end);
        assert_eq!(slot.memory_byte(2, 7), slot.memories[2].offset as i64 + 7);
    }

    #[test]
    fn a_64_bit_memory_reserves_what_it_may_have() {
        let limits = SlotLimits { memory64_size: (5 << 16) + 1, ..SlotLimits::default() };
        let cases = [
            (memory64(0, Some(0)), 0),
            (memory64(0, Some(3)), 3),
            (memory64(1, Some(9)), 5),
            (memory64(1, None), 5),
            (memory64(7, None), 7),
            (memory64(7, Some(u64::MAX)), 7),
        ];
        for (memory, pages) in cases {
            let slot = places(vec![memory], &limits).unwrap();
            assert_eq!(slot.memories[0].pages_max(), pages, "{memory:?}");
            assert_eq!(slot.memories[0].reservation, pages * WASM_PAGE_SIZE);
        }
    }

    #[test]
    fn memories_beyond_the_address_space_get_no_room() {
        for minimum in [1 << 30, 1 << 48, u64::MAX] {
            let memories =
                vec![memory64(minimum, None), memory64(1, Some(1)), memory64(minimum, None)];
            let slot = places(memories, &SlotLimits::default()).unwrap();
            let reservations: Vec<u64> = slot.memories.iter().map(|m| m.reservation).collect();
            assert_eq!(reservations, [0, WASM_PAGE_SIZE, 0]);
        }
        let limits = SlotLimits { memory64_size: u64::MAX, ..SlotLimits::default() };
        let slot = places(vec![memory64(1, None)], &limits).unwrap();
        assert_eq!(slot.memories[0].end(), ABOVE_BASE_MAX);
        // A memory of 32 bits without its guard would not be safe.
        let many = vec![MemoryType::new(0, None); 9000];
        assert_eq!(places(many, &SlotLimits::default()).unwrap_err().what, "memories");
        let error = places(vec![memory64(1, None), MemoryType::new(0, None)], &limits);
        assert_eq!(error.unwrap_err().limit, ABOVE_BASE_MAX);
    }
}
