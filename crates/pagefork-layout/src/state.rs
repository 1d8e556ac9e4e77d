//! The state zone, byte by byte.

use crate::CELL_SIZE;
use crate::module::{ModuleInfo, ValType};

/// Offset, relative to the base, of the header's word that holds the offset of
/// the link zone. The header's words are constants of the module: with the base
/// alone, host code and calls between instances find their way.
///
/// ```text
///   base-12            base-8            base-4         base
///   | cells offset i32 | link offset i32 | ABI version  | memory 0 ...
/// ```
pub const LINK_OFFSET: i32 = -8;
/// Where the offset of the cells stands.
pub const CELLS_OFFSET: i32 = -12;
/// Where [`crate::ABI_VERSION`] stands.
pub const ABI_OFFSET: i32 = -4;
/// Bytes of the header, reserved part included.
pub const HEADER_SIZE: u32 = 64;

/// Where the parts of a state zone lie, as offsets from the base (all negative).
///
/// ```text
///  start                                                base
///  | save area | dropped | globals | table lengths | sizes | header |
/// ```
///
/// Every array is indexed upwards from its offset. Imported entities have no
/// place here; indices count the module's own only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StateLayout {
    /// `u64` byte sizes of memories.
    pub memory_sizes: i32,
    /// `u64` lengths of tables, in elements.
    pub table_lengths: i32,
    /// Globals, a cell each.
    pub globals: i32,
    /// One byte for each element segment, then one for each data segment:
    /// 1 once dropped.
    pub dropped: i32,
    /// The registers of a suspended instance and what it waits for, see [`save`].
    pub save_area: i32,
    /// Bytes of the save area.
    pub save_size: u32,
    /// Bytes of the whole zone.
    pub size: u32,
}

impl StateLayout {
    /// The state zone of a module whose instances have `cell_count` cells.
    ///
    /// # Errors
    /// The zone's size in bytes, if it is beyond 256 MiB.
    pub fn new(module: &ModuleInfo, cell_count: u32) -> Result<Self, u64> {
        let own = |all: usize, imported: u32| (all as u64) - u64::from(imported);
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            end = (end + bytes).next_multiple_of(u64::from(CELL_SIZE));
            end
        };
        place(u64::from(HEADER_SIZE));
        let memory_sizes = place(8 * own(module.memories.len(), module.imported_memories));
        let table_lengths = place(8 * own(module.tables.len(), module.imported_tables));
        let globals =
            place(u64::from(CELL_SIZE) * own(module.globals.len(), module.imported_globals));
        let dropped = place((module.elements.len() + module.data.len()) as u64);
        let save_size = save::CELLS + CELL_SIZE * cell_count;
        let save_area = place(save_size.into());
        if save_area > 256 << 20 {
            return Err(save_area);
        }
        let below = |bytes: u64| -(bytes as i32);
        Ok(Self {
            memory_sizes: below(memory_sizes),
            table_lengths: below(table_lengths),
            globals: below(globals),
            dropped: below(dropped),
            save_area: below(save_area),
            save_size,
            size: save_area as u32,
        })
    }

    /// Offset of the size, in bytes, of the module's own memory `index`.
    pub const fn memory_size(&self, index: u32) -> i32 {
        self.memory_sizes + 8 * index as i32
    }

    /// Offset of the length, in elements, of the module's own table `index`.
    pub const fn table_length(&self, index: u32) -> i32 {
        self.table_lengths + 8 * index as i32
    }

    /// Offset of the module's own global `index`.
    pub const fn global(&self, index: u32) -> i32 {
        self.globals + (CELL_SIZE * index) as i32
    }

    /// Offset of the byte that says whether element segment `index` is dropped.
    pub const fn dropped_element(&self, index: u32) -> i32 {
        self.dropped + index as i32
    }

    /// Offset of the byte that says whether data segment `index` is dropped.
    pub const fn dropped_data(&self, module: &ModuleInfo, index: u32) -> i32 {
        self.dropped + module.elements.len() as i32 + index as i32
    }
}

/// The save area of a suspended instance: words at these offsets from
/// its start. Stack addresses are kept as distances below the top of the stack
/// zone, so nothing here depends on where the slot lies.
pub mod save {
    /// What the instance is suspended in; see [`Suspension`].
    pub const KIND: u32 = 0;
    /// Stack pointer, as a distance below the top of the stack zone.
    pub const SP: u32 = 8;
    /// Frame pointer, as a distance below the top of the stack zone.
    pub const FP: u32 = 16;
    /// The callee-saved registers rbx, r12, r13, r14.
    pub const REGISTERS: u32 = 24;
    /// In a host call: the cells with its results. The others are zero.
    pub const CELLS: u32 = 64;

    /// Values of [`KIND`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u64)]
    pub enum Suspension {
        /// Not suspended.
        None = 0,
        /// In a host call: the registers above are live.
        HostCall = 1,
        /// At an interruption point: every register lies in the top frame.
        Interrupt = 2,
    }
}

/// At most this many integer or reference results of a function are returned in
/// registers, the further ones in cells.
pub const INT_RESULTS_MAX: usize = 8;
/// At most this many float or vector results are returned in registers.
pub const FLOAT_RESULTS_MAX: usize = 8;

/// For each result of a function, the cell that it is returned in, or `None`
/// where it is returned in a register.
pub fn result_cells(results: &[ValType]) -> Vec<Option<u32>> {
    let (mut ints, mut floats) = (0, 0);
    let place = |(i, ty): (usize, &ValType)| {
        let (used, max) = match ty {
            ValType::F32 | ValType::F64 | ValType::V128 => (&mut floats, FLOAT_RESULTS_MAX),
            _ => (&mut ints, INT_RESULTS_MAX),
        };
        *used += 1;
        (*used > max).then_some(i as u32)
    };
    results.iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::{GlobalType, MemoryType, RefType, TableType, ValType};

    #[test]
    fn parts_do_not_overlap_and_end_below_the_header() {
        let module = ModuleInfo {
            memories: vec![MemoryType::new(1, None)],
            tables: vec![TableType::new(RefType::FUNCREF, 1, None); 3],
            globals: vec![GlobalType { content: ValType::V128, mutable: true }; 2],
            ..ModuleInfo::default()
        };
        let state = StateLayout::new(&module, 7).unwrap();
        assert!(state.memory_size(0) + 8 <= -(HEADER_SIZE as i32));
        assert!(state.table_length(2) + 8 <= state.memory_sizes);
        assert!(state.global(1) + CELL_SIZE as i32 <= state.table_lengths);
        assert!(state.dropped <= state.globals);
        assert!(state.save_area + state.save_size as i32 <= state.dropped);
        assert_eq!(state.save_area, -(state.size as i32));
        assert_eq!(state.global(0) % CELL_SIZE as i32, 0);
    }

    #[test]
    fn results_beyond_the_registers_go_to_cells() {
        let cells = result_cells(&[ValType::I32; 10]);
        assert_eq!(cells[..8], [None; 8]);
        assert_eq!(cells[8..], [Some(8), Some(9)]);
        assert_eq!(result_cells(&[ValType::F64; 9])[8], Some(8));
    }
}
