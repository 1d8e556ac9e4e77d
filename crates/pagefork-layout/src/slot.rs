use std::ops::Range;

use crate::link::LinkLayout;
use crate::module::ModuleInfo;
use crate::page::{PAGE_SIZE, WASM_PAGE_SIZE, round_up};
use crate::state::StateLayout;

/// Bytes of the low guard of a slot, at least; a stack overflow faults there.
/// Compiled code probes every page of a frame beyond one page.
pub const LOW_GUARD: u64 = 64 << 10;

/// Bytes a 32-bit memory reserves at most: what an index can name.
pub const MEMORY_RESERVATION: u64 = 4 << 30;

/// Bytes of guard behind a 32-bit memory's reservation: what a static offset can
/// add to an index, and the widest access.
pub const MEMORY_GUARD: u64 = (4 << 30) + (64 << 10);

/// Slots start at multiples of this, so that a slot's small zones and the start
/// of its memory share page tables.
pub const SLOT_ALIGN: u64 = 2 << 20;

/// What the embedder decides about slots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlotLimits {
    /// Bytes of the stack zone; rounded up to pages.
    pub stack_size: u64,
    /// Room to grow for a table, in elements, where its module gives no smaller
    /// maximum. A larger initial length is still honoured.
    pub table_elements: u64,
}

impl Default for SlotLimits {
    fn default() -> Self {
        Self { stack_size: 1 << 20, table_elements: 64 << 10 }
    }
}

/// The zones of a slot. All places are byte offsets from the slot's start and
/// multiples of the page size, unless they say otherwise.
///
/// ```text
/// 0        stack        link     tables         image        base                size
/// | guard  | stack down | link   | room to grow | contents,  | memory 0  | guard |
/// |        |            |        |              | state      |           |       |
/// '--none--'----------anonymous, read-write-----'-copy on write-'-rw-'----none---'
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlotLayout {
    /// The stack zone; it grows from its end down.
    pub stack: Range<u64>,
    /// The link zone.
    pub link: Range<u64>,
    /// The tables zone: room to grow, then contents.
    pub tables: Range<u64>,
    /// The state zone; it ends at the base.
    pub state: Range<u64>,
    /// Where memory 0 starts: what offsets in compiled code are relative to.
    pub base: u64,
    /// Bytes reserved for memory 0; 0 if the module defines none.
    pub memory_reservation: u64,
    /// Bytes of the whole slot, guards included; a multiple of [`SLOT_ALIGN`].
    pub size: u64,
    /// For each own table, where it ends, relative to the base: element `i` is
    /// the 8 bytes at `end - 8 * (i + 1)`.
    pub table_ends: Vec<i32>,
    /// For each own table, how many elements it has room for.
    pub table_capacities: Vec<u64>,
    /// Where the first byte of initial table contents or state lies: the image
    /// starts here and never below.
    pub image_start: u64,
    /// Parts of the state zone.
    pub state_parts: StateLayout,
    /// Parts of the link zone.
    pub link_parts: LinkLayout,
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

impl SlotLayout {
    /// The slot of an instance of `module`.
    ///
    /// # Errors
    /// If tables and state do not fit [`BELOW_BASE_MAX`].
    pub fn new(module: &ModuleInfo, limits: &SlotLimits) -> Result<Self, SlotTooLarge> {
        let too_large = |what, size| SlotTooLarge { what, size, limit: BELOW_BASE_MAX };
        let state_parts = StateLayout::new(module).map_err(|size| too_large("state", size))?;
        let link_parts = LinkLayout::new(module);

        // Fixed tables lie next to the state, those with the most room to grow
        // lowest: so the lowest one's room adjoins the anonymous zones, and the
        // image behind stays dense.
        let own = &module.tables[module.imported_tables as usize..];
        let capacities: Vec<u64> = own
            .iter()
            .map(|table| {
                let maximum = table.maximum.unwrap_or(u64::MAX);
                maximum.min(limits.table_elements).max(table.minimum)
            })
            .collect();
        let room = |index: usize| capacities[index] - own[index].minimum;
        let mut order: Vec<usize> = (0..own.len()).collect();
        order.sort_by_key(|&index| room(index));

        let mut ends = vec![0i32; own.len()];
        let mut below = u64::from(state_parts.size);
        let mut contents = below;
        for index in order {
            below = below.next_multiple_of(8);
            ends[index] = -(below.min(BELOW_BASE_MAX) as i32);
            if own[index].minimum > 0 {
                contents = below.saturating_add(own[index].minimum.saturating_mul(8));
            }
            below = below.saturating_add(capacities[index].saturating_mul(8));
            if below > BELOW_BASE_MAX {
                return Err(too_large("tables", below));
            }
        }

        let stack_size = round_up(limits.stack_size.max(4 * PAGE_SIZE));
        let link_size = round_up(u64::from(link_parts.size));
        let tables_and_state = round_up(below);
        let stack = LOW_GUARD..LOW_GUARD + stack_size;
        let link = stack.end..stack.end + link_size;
        let base = link.end + tables_and_state;
        let state_start = base - round_up(u64::from(state_parts.size)).min(tables_and_state);
        let has_memory = module.memories.len() > module.imported_memories as usize;
        let (memory_reservation, guard) =
            if has_memory { (MEMORY_RESERVATION, MEMORY_GUARD) } else { (0, LOW_GUARD) };
        Ok(Self {
            stack,
            tables: link.end..state_start,
            link,
            state: state_start..base,
            base,
            memory_reservation,
            size: (base + memory_reservation + guard).next_multiple_of(SLOT_ALIGN),
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

    /// Offset from the base of element `element` of the module's own table
    /// `table`.
    pub fn table_element(&self, table: u32, element: u64) -> i64 {
        i64::from(self.table_ends[table as usize]) - 8 * (element as i64 + 1)
    }

    /// The largest size of memory 0 in wasm pages, whatever its module says.
    pub const fn memory_pages_max(&self) -> u64 {
        self.memory_reservation / WASM_PAGE_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{MemoryType, RefType, TableType};

    fn table(minimum: u64, maximum: Option<u64>) -> TableType {
        TableType::new(RefType::FUNCREF, minimum, maximum)
    }

    #[test]
    fn zones_follow_each_other_without_gap_or_overlap() {
        let module = ModuleInfo {
            tables: vec![table(10, None), table(5, Some(5)), table(0, Some(7))],
            memories: vec![MemoryType::new(1, None)],
            ..ModuleInfo::default()
        };
        let slot = SlotLayout::new(&module, &SlotLimits::default()).unwrap();
        assert!(slot.stack.start >= LOW_GUARD);
        assert_eq!(slot.stack.end, slot.link.start);
        assert_eq!(slot.link.end, slot.tables.start);
        assert_eq!(slot.tables.end, slot.state.start);
        assert_eq!(slot.state.end, slot.base);
        assert!(slot.size - slot.base >= 2 * (u64::from(u32::MAX)) + 16);
        assert_eq!(slot.size % SLOT_ALIGN, 0);
        for place in [slot.stack.end, slot.link.end, slot.base, slot.image_start] {
            assert_eq!(place % PAGE_SIZE, 0);
        }
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
    fn a_table_beyond_the_addressable_part_is_refused() {
        let module = ModuleInfo { tables: vec![table(1 << 28, None)], ..ModuleInfo::default() };
        let error = SlotLayout::new(&module, &SlotLimits::default()).unwrap_err();
        assert_eq!(error.what, "tables");
    }
}
