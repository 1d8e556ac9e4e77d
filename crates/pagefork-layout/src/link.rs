//! The link zone is the only zone of a slot with host addresses in it, and has the values
//! that are just being passed. It is written at every spawn and is never part of an image.

use crate::CELL_SIZE;
use crate::module::{FuncType, ModuleInfo};

/// Offset in the link zone of the address of the store's [`activation`].
pub const ACTIVATION: u32 = 0;
/// Offset of the address of this instance's array of [`function_import`]s.
pub const FUNCTION_IMPORTS: u32 = 8;
/// Offset of a `u32`: 1 while a memory of this instance is accessible past its size, and 0
/// otherwise. Code loads it together with [`INTERRUPT`].
pub const ACCESSIBLE_PAST_SIZE: u32 = 16;
/// Offset of the interrupt word: a `u32`, not zero once an interrupt is wanted.
pub const INTERRUPT: u32 = 20;
/// Offset of this instance's ordinal in its store, a `u32` from 1.
pub const ORDINAL: u32 = 24;
/// Offset of the address of the module's descriptors (read-only data).
pub const DESCRIPTORS: u32 = 32;
/// Offset of the first import record.
pub const IMPORTS: u32 = 64;

/// Where the records of imported memories, tables and globals lie, and the cells, as
/// offsets from the start of the link zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LinkLayout {
    memories: u32,
    tables: u32,
    globals: u32,
    /// Cells through which host and guest pass arguments and results to each
    /// other, and functions the results that do not fit registers. Nothing stays
    /// in them: the callee reads its arguments before it calls on, and results
    /// for a suspended instance are [saved](crate::state::save).
    pub cells: u32,
    /// How many cells there are.
    pub cell_count: u32,
    /// Bytes of the whole zone.
    pub size: u32,
}

impl LinkLayout {
    /// The link zone of a module.
    pub fn new(module: &ModuleInfo) -> Self {
        let memories = IMPORTS;
        let tables = memories + module.imported_memories * memory_import::SIZE;
        let globals = tables + module.imported_tables * table_import::SIZE;
        let records_end = globals + module.imported_globals * global_import::SIZE;
        let cells = records_end.next_multiple_of(CELL_SIZE);
        let values = |ty: &FuncType| ty.params.len().max(ty.results.len()) as u32;
        // Where a payload is passed, what it belongs to has a cell before it.
        let payload = |ty: &u32| module.types[*ty as usize].params.len() as u32 + 1;
        let of_types = module.types.iter().map(values);
        let of_tags = module.tags.iter().map(payload);
        let cell_count = of_types.chain(of_tags).max().unwrap_or(0).max(SERVICE_CELLS);
        let size = cells + CELL_SIZE * cell_count;
        Self { memories, tables, globals, cells, cell_count, size }
    }

    /// The record of imported memory `index`; see [`memory_import`].
    pub const fn memory(&self, index: u32) -> u32 {
        self.memories + index * memory_import::SIZE
    }

    /// The record of imported table `index`; see [`table_import`].
    pub const fn table(&self, index: u32) -> u32 {
        self.tables + index * table_import::SIZE
    }

    /// The record of imported global `index`; see [`global_import`].
    pub const fn global(&self, index: u32) -> u32 {
        self.globals + index * global_import::SIZE
    }
}

/// The record of an imported memory.
pub mod memory_import {
    /// Offset of the address of the memory's first byte.
    pub const BASE: u32 = 0;
    /// Offset of the address of its size word (`u64`, bytes).
    pub const SIZE_WORD: u32 = 8;
    /// Bytes of the record.
    pub const SIZE: u32 = 16;
}

/// The record of an imported table.
pub mod table_import {
    /// Offset of the address at which the table ends: tables grow downwards,
    /// element `i` is the 8 bytes at `end - 8 * (i + 1)`.
    pub const END: u32 = 0;
    /// Offset of the address of its length word (`u64`, elements).
    pub const LENGTH_WORD: u32 = 8;
    /// Offset of the owner's ordinal, a `u32`: what ordinal 0 means inside.
    pub const OWNER: u32 = 16;
    /// Bytes of the record.
    pub const SIZE: u32 = 24;
}

/// The record of an imported global.
pub mod global_import {
    /// Offset of the address of the global's cell.
    pub const CELL: u32 = 0;
    /// Offset of the owner's ordinal, a `u32`: what ordinal 0 means inside.
    pub const OWNER: u32 = 8;
    /// Bytes of the record.
    pub const SIZE: u32 = 16;
}

/// What an imported function is bound to: a record in host memory.
///
/// A host function can be called in two ways: with its arguments in cells, or directly,
/// with its arguments in registers, where its type and the host allow that.
pub mod function_import {
    use crate::module::{FuncType, ValType};

    /// Offset of the address of the code, or of the host function's index where
    /// the base is 0.
    pub const CODE: u32 = 0;
    /// Offset of the base of the function's instance; 0 for a host function.
    pub const BASE: u32 = 8;
    /// Offset of the address of a thunk that makes direct calls; 0 if they cannot be made.
    ///
    /// It is called as System V has it. The first argument is the record's address, then
    /// come the function's. What it returns first means nothing to the guest; its second
    /// result is that of the function, if there is one.
    pub const THUNK: u32 = 16;
    /// Offset of the address of the code that the thunk calls on the host's stack: made for a closure, or a
    /// function of C's itself.
    pub const SHIM: u32 = 24;
    /// Offset of the address of the host's closure, or of what a function of C's is given as its caller.
    pub const CLOSURE: u32 = 32;
    /// Offset of the address of the store's [`activation`](super::activation).
    pub const ACTIVATION: u32 = 40;
    /// Offset of the address of a `u32` of the store's: 0 while a host function that has returned
    /// lets its caller go on.
    pub const DUE: u32 = 48;
    /// Bytes of the record.
    pub const SIZE: u32 = 56;

    /// At most this many integers are arguments of a direct call.
    pub const INTS_MAX: usize = 5;
    /// At most this many floats are.
    pub const FLOATS_MAX: usize = 8;

    /// Whether functions of this type can be called directly: all values fit registers, and
    /// mean the same to host and guest.
    pub fn is_direct(ty: &FuncType) -> bool {
        are_direct(&ty.params, &ty.results)
    }

    /// As [`is_direct`], of the types of parameters and results.
    pub const fn are_direct(params: &[ValType], results: &[ValType]) -> bool {
        let (mut ints, mut floats, mut i) = (0, 0, 0);
        while i < params.len() {
            match params[i] {
                ValType::I32 | ValType::I64 => ints += 1,
                ValType::F32 | ValType::F64 => floats += 1,
                ValType::V128 | ValType::Ref(_) => return false,
            }
            i += 1;
        }
        let fits =
            matches!(results, [] | [ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64]);
        fits && ints <= INTS_MAX && floats <= FLOATS_MAX
    }
}

/// What compiled code and the assembly read of a store's activation, a
/// structure in host memory: offsets of 64-bit words.
pub mod activation {
    /// Stack pointer of the host at the innermost entry into the guest.
    pub const HOST_SP: u32 = 0;
    /// Stack pointer of the guest at the innermost host call.
    pub const GUEST_SP: u32 = 8;
    /// Base of the instance that made the innermost host call.
    pub const GUEST_BASE: u32 = 16;
    /// Address of the array of bases, by ordinal; entry 0 is unused.
    pub const BASES: u32 = 24;
    /// Address above which the stack in use lies: its top.
    pub const STACK_TOP: u32 = 32;
    /// Code address: calls the host. System V; rdi: the function's index as
    /// zero-extended 32 bits, rsi: address of its argument cells, which the
    /// results replace.
    pub const HOST_CALL: u32 = 40;
    /// Code address: an interruption point. Preserves every register.
    pub const INTERRUPT: u32 = 48;
    /// Code address: traps. System V; rdi: the [`crate::trap::TrapCode`].
    pub const TRAP: u32 = 56;
    /// What [`super::Service::Resolve`] found: code and base, as in
    /// [`super::function_import`].
    pub const RESOLVED: u32 = 64;
    /// Fuel that is left, an `i64`: below zero once it is used up.
    pub const FUEL: u32 = 80;
    /// Code address: copies bytes that may overlap. System V; rdi: where to, rsi: where
    /// from, rdx: how many. Both ranges are accessible.
    pub const MEMORY_MOVE: u32 = 88;
    /// Code address: fills bytes. System V; rdi: where, esi: with which byte, rdx: how
    /// many. The range is accessible.
    pub const MEMORY_SET: u32 = 96;
    /// Bytes that are fixed by this contract.
    pub const SIZE: u32 = 104;
}

/// At most this many cells hold the arguments or results of a [`Service`].
pub const SERVICE_CELLS: u32 = 5;

/// Services of the runtime, called as host functions with these indices. Their
/// arguments and results are cells: integers zero-extended to 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Service {
    /// `(memory, delta wasm pages) -> old size in wasm pages, or -1`.
    MemoryGrow = 0x8000_0000,
    /// `(memory, destination, byte, length)`.
    MemoryFill,
    /// `(destination memory, source memory, destination, source, length)`.
    MemoryCopy,
    /// `(memory, data segment, destination, source, length)`.
    MemoryInit,
    /// `(data segment)`.
    DataDrop,
    /// `(table, initial element, delta) -> old length, or -1`.
    TableGrow,
    /// `(table, destination, element, length)`.
    TableFill,
    /// `(destination table, source table, destination, source, length)`.
    TableCopy,
    /// `(table, element segment, destination, source, length)`.
    TableInit,
    /// `(element segment)`.
    ElementDrop,
    /// `(function reference, canonical type index)`: puts what an indirect call
    /// of a foreign reference must call into [`activation::RESOLVED`]: host
    /// addresses do not belong into cells. Traps if it is of another type.
    Resolve,
    /// `(tag, payload ..)`: throws a new exception; does not return.
    Throw,
    /// `(exception reference)`: throws this exception on; does not return.
    Rethrow,
    /// `(exception reference, tag or -1 for any, 1 if a reference to it is
    /// wanted) -> (the reference, or 0 if it is of another tag, payload ..)`:
    /// catches an exception.
    Catch,
    /// `(memory, start, length)`: makes whole wasm pages zero, and gives them back.
    MemoryDiscard,
}

impl Service {
    /// All services in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::MemoryGrow,
        Self::MemoryFill,
        Self::MemoryCopy,
        Self::MemoryInit,
        Self::DataDrop,
        Self::TableGrow,
        Self::TableFill,
        Self::TableCopy,
        Self::TableInit,
        Self::ElementDrop,
        Self::Resolve,
        Self::Throw,
        Self::Rethrow,
        Self::Catch,
        Self::MemoryDiscard,
    ];

    /// The service with this index; `None` for a host function.
    pub fn from_index(index: u32) -> Option<Self> {
        Self::ALL.get(index.checked_sub(Self::MemoryGrow as u32)? as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::ValType;

    #[test]
    fn cells_follow_the_records_and_suffice_for_every_type_tag_and_service() {
        let ty = |params: usize, results: usize| FuncType {
            params: vec![ValType::I32; params].into(),
            results: vec![ValType::I32; results].into(),
        };
        let count = |types: Vec<FuncType>, tags: Vec<u32>| {
            let module = ModuleInfo { types, tags, imported_memories: 3, ..ModuleInfo::default() };
            let link = LinkLayout::new(&module);
            assert!(link.memory(3) <= link.cells && link.cells.is_multiple_of(CELL_SIZE));
            assert_eq!(link.size, link.cells + CELL_SIZE * link.cell_count);
            link.cell_count
        };
        assert_eq!(count(vec![], vec![]), SERVICE_CELLS);
        assert_eq!(count(vec![ty(9, 0), ty(0, 7)], vec![]), 9);
        assert_eq!(count(vec![ty(0, 11)], vec![]), 11);
        assert_eq!(count(vec![ty(8, 0)], vec![0]), 9);
    }
}
