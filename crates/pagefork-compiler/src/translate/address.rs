//! Where things of an instance are, seen from compiled code. That an instance is
//! one run of pages shows here and nowhere else in the compiler: everything is
//! at a constant distance from the base, which is in the pinned register.
//!
//! An address must never outlive a call, because the instance may be moved
//! during the call. So the base is read from the register again after every call,
//! and nothing else derived from it is kept in a variable. Between calls it stays
//! the same value, by which Cranelift knows equal addresses as equal.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::immediates::Offset32;
use cranelift_codegen::ir::{
    self, AliasRegion, AliasRegionData, Endianness, InstBuilder, MemFlagsData, Value, types,
};
use cranelift_frontend::{FunctionBuilder, Variable};
use pagefork_layout::CELL_SIZE;
use pagefork_layout::link::{self, activation, global_import, memory_import, table_import};
use pagefork_layout::module::{ConstExpr, ValType};
use pagefork_layout::state;
use pagefork_layout::trap::TrapCode;
use wasmparser::{MemArg, MemArgTarget};

use super::{Translator, ir_type};

/// The byte order of Wasm.
pub(crate) const LITTLE_ENDIAN: MemFlagsData =
    MemFlagsData::new().with_endianness(Endianness::Little);

/// Kinds of storage that never overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AliasClass {
    /// Linear memories.
    Memory,
    /// Elements of tables.
    Table,
    /// Imported globals. Each of the module's own has a region to itself, with a
    /// number beyond all of these.
    Global,
    /// Sizes, lengths, cells.
    State,
    /// The link zone, and what it leads to on the host's side. Every 64-bit word
    /// loaded from here counts as a host address.
    Link,
}

impl AliasClass {
    const ALL: [Self; 5] = [Self::Memory, Self::Table, Self::Global, Self::State, Self::Link];

    /// The number by which the region is known in the IR.
    pub(crate) const fn id(self) -> u32 {
        self as u32
    }
}

/// How many of the module's own globals have a region of their own in one function: the first that
/// it uses.
const GLOBAL_REGIONS_MAX: usize = 64;

/// Stands for all others of the module's own globals; their number is limited far below.
const OTHER_GLOBALS: u32 = u32::MAX - AliasClass::ALL.len() as u32;

/// What is known about addresses at the current place.
pub(crate) struct Addressing {
    regions: [AliasRegion; AliasClass::ALL.len()],
    /// The base, as read after the last call on the way here.
    base: Variable,
    /// For each of the module's own globals that the function uses, its region.
    globals: HashMap<u32, AliasRegion>,
}

impl Addressing {
    pub(crate) fn new(b: &mut FunctionBuilder<'_>) -> Self {
        let regions = AliasClass::ALL.map(|region| {
            let description = format!("{region:?}").into();
            let data = AliasRegionData { user_id: region.id(), description };
            b.func.dfg.alias_regions.insert(data)
        });
        let base = b.declare_var(types::I64);
        let value = b.ins().get_pinned_reg(types::I64);
        b.def_var(base, value);
        Self { regions, base, globals: HashMap::new() }
    }
}

impl Translator<'_> {
    /// The base: where memory 0 starts. Valid up to the next call.
    pub(crate) fn base(&mut self) -> Value {
        self.b.use_var(self.addressing.base)
    }

    /// Reads the base again. Call it after every call, in the block that the call returns
    /// to: the instance may lie elsewhere now.
    pub(crate) fn forget_addresses(&mut self) {
        let base = self.b.ins().get_pinned_reg(types::I64);
        self.b.def_var(self.addressing.base, base);
    }

    /// Flags for an access that cannot trap.
    pub(crate) fn flags(&self, region: AliasClass) -> MemFlagsData {
        let region = self.addressing.regions[region as usize];
        MemFlagsData::trusted().with_alias_region(Some(region))
    }

    fn load(&mut self, region: AliasClass, ty: ir::Type, address: Value, offset: i32) -> Value {
        let flags = self.flags(region);
        self.b.ins().load(ty, flags, address, offset)
    }

    // The link zone and the host side.

    /// A field of the link zone.
    pub(crate) fn link_word(&mut self, ty: ir::Type, field: u32) -> Value {
        let offset = self.module.layout.link_offset() + field as i32;
        let base = self.base();
        self.load(AliasClass::Link, ty, base, offset)
    }

    /// A field of host-side storage at `address`.
    pub(crate) fn host_word(&mut self, address: Value, field: u32) -> Value {
        self.load(AliasClass::Link, types::I64, address, field as i32)
    }

    /// A field of the store's activation.
    pub(crate) fn activation_word(&mut self, field: u32) -> Value {
        let activation = self.link_word(types::I64, link::ACTIVATION);
        self.host_word(activation, field)
    }

    /// This instance's ordinal, as a 64-bit number.
    pub(crate) fn ordinal(&mut self) -> Value {
        let ordinal = self.link_word(types::I32, link::ORDINAL);
        self.b.ins().uextend(types::I64, ordinal)
    }

    /// After a call that left the pinned register at another instance's base:
    /// that instance's activation and ordinal, found through its header.
    pub(crate) fn callee_link(&mut self) -> (Value, Value) {
        self.forget_addresses();
        let base = self.base();
        let flags = self.flags(AliasClass::State);
        let offset = self.b.ins().sload32(flags, base, state::LINK_OFFSET);
        let link = self.b.ins().iadd(base, offset);
        let activation = self.host_word(link, link::ACTIVATION);
        let ordinal = self.load(AliasClass::Link, types::I32, link, link::ORDINAL as i32);
        (activation, self.b.ins().uextend(types::I64, ordinal))
    }

    /// The base of the instance with this ordinal.
    pub(crate) fn base_of(&mut self, activation: Value, ordinal: Value) -> Value {
        let bases = self.host_word(activation, activation::BASES);
        let offset = self.b.ins().ishl_imm_u(ordinal, 3);
        let entry = self.b.ins().iadd(bases, offset);
        self.host_word(entry, 0)
    }

    // The state zone.

    /// The address of cell `index`.
    pub(crate) fn cells_address(&mut self) -> Value {
        let base = self.base();
        self.b.ins().iadd_imm_s(base, i64::from(self.module.layout.cell(0)))
    }

    /// Puts a value into a cell, zero-extended to 64 bits where it is narrower.
    pub(crate) fn store_cell(&mut self, index: u32, value: Value) {
        let value = match self.b.func.dfg.value_type(value) {
            types::I32 => self.b.ins().uextend(types::I64, value),
            types::F32 => {
                let bits = self.b.ins().bitcast(types::I32, MemFlagsData::new(), value);
                self.b.ins().uextend(types::I64, bits)
            }
            _ => value,
        };
        let (base, flags) = (self.base(), self.flags(AliasClass::State));
        let offset = self.module.layout.cell(index);
        self.b.ins().store(flags, value, base, offset);
    }

    /// The value in a cell.
    pub(crate) fn load_cell(&mut self, index: u32, ty: ir::Type) -> Value {
        let base = self.base();
        let offset = self.module.layout.cell(index);
        self.load(AliasClass::State, ty, base, offset)
    }

    /// The value in a cell of the instance whose base the pinned register holds
    /// after a call out.
    pub(crate) fn load_callee_cell(&mut self, index: u32, ty: ir::Type) -> Value {
        let (base, flags) = (self.base(), self.flags(AliasClass::State));
        let cells = self.b.ins().sload32(flags, base, state::CELLS_OFFSET);
        let cells = self.b.ins().iadd(base, cells);
        self.load(AliasClass::State, ty, cells, (CELL_SIZE * index) as i32)
    }

    // Globals.

    pub(super) fn global_get(&mut self, index: u32) -> Value {
        let info = self.module.info;
        let ty = info.globals[index as usize];
        if let Some(own) = index.checked_sub(info.imported_globals)
            && !ty.mutable
            && let ConstExpr::Bits(bits) = info.global_inits[own as usize]
            && matches!(ty.content, ValType::I32 | ValType::I64)
        {
            return self.b.ins().iconst(ir_type(ty.content), bits as u64 as i64);
        }
        self.note_type(ty.content);
        let (address, offset) = self.global_place(index);
        let flags = self.global_flags(index);
        let value = self.b.ins().load(ir_type(ty.content), flags, address, offset);
        if ty.content.has_owner() && index < info.imported_globals {
            let owner = link::LinkLayout::global(&self.module.layout.link_parts, index);
            return self.absolute_of_owner(value, owner + global_import::OWNER);
        }
        value
    }

    pub(super) fn global_set(&mut self, index: u32, mut value: Value) {
        let info = self.module.info;
        if info.globals[index as usize].content.has_owner() && index < info.imported_globals {
            value = self.absolute(value);
        }
        let (address, offset) = self.global_place(index);
        let flags = self.global_flags(index);
        self.b.ins().store(flags, value, address, offset);
    }

    /// Flags for accesses to a global. Two imported ones may be the same; each of
    /// the module's own is like no other, but for those that a function uses many of:
    /// Cranelift's analysis of aliases looks at every region in every step.
    fn global_flags(&mut self, index: u32) -> MemFlagsData {
        let Some(own) = index.checked_sub(self.module.info.imported_globals) else {
            return self.flags(AliasClass::Global);
        };
        let known = &self.addressing.globals;
        let own = match known.len() < GLOBAL_REGIONS_MAX || known.contains_key(&own) {
            true => own,
            false => OTHER_GLOBALS,
        };
        let dfg = &mut self.b.func.dfg;
        let region = self.addressing.globals.entry(own).or_insert_with(|| {
            let user_id = AliasClass::ALL.len() as u32 + own;
            let description = format!("Global {own}").into();
            dfg.alias_regions.insert(AliasRegionData { user_id, description })
        });
        MemFlagsData::trusted().with_alias_region(Some(*region))
    }

    fn global_place(&mut self, index: u32) -> (Value, i32) {
        let layout = self.module.layout;
        match index.checked_sub(self.module.info.imported_globals) {
            Some(own) => (self.base(), layout.state_parts.global(own)),
            None => {
                let record = layout.link_parts.global(index);
                (self.link_word(types::I64, record + global_import::CELL), 0)
            }
        }
    }

    // Function references. A word that leaves for a place of another owner
    // must be absolute.

    /// `value` with its owner written out, where that is this instance.
    pub(crate) fn absolute(&mut self, value: Value) -> Value {
        let own = self.ordinal();
        self.with_owner(value, own)
    }

    /// `value`, read from a place whose owner's ordinal is in this link field.
    pub(super) fn absolute_of_owner(&mut self, value: Value, owner_field: u32) -> Value {
        let owner = self.link_word(types::I32, owner_field);
        let owner = self.b.ins().uextend(types::I64, owner);
        self.with_owner(value, owner)
    }

    /// `value` with `owner` written out where it names none: it is below 2^32
    /// then, and null is zero.
    pub(crate) fn with_owner(&mut self, value: Value, owner: Value) -> Value {
        let high = self.b.ins().ishl_imm_u(owner, 32);
        let owned = self.b.ins().bor(value, high);
        let less_one = self.b.ins().iadd_imm_s(value, -1);
        // Null wraps around to the largest number, others' are large anyway.
        let relative =
            self.b.ins().icmp_imm_u(IntCC::UnsignedLessThan, less_one, i64::from(u32::MAX));
        self.b.ins().select(relative, owned, value)
    }

    // Tables. Element `i` lies at `end - 8 * (i + 1)`.

    /// The length of a table, in elements, as 64 bits.
    pub(super) fn table_length(&mut self, table: u32) -> Value {
        let layout = self.module.layout;
        let (address, offset) = match table.checked_sub(self.module.info.imported_tables) {
            Some(own) => (self.base(), layout.state_parts.table_length(own)),
            None => {
                let record = layout.link_parts.table(table);
                (self.link_word(types::I64, record + table_import::LENGTH_WORD), 0)
            }
        };
        self.load(AliasClass::State, types::I64, address, offset)
    }

    /// The checked address and offset of an element.
    pub(super) fn element_place(&mut self, table: u32, index: Value) -> (Value, i32) {
        let index = self.extended(index);
        let length = self.table_length(table);
        let outside = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, index, length);
        self.trap_if(outside, TrapCode::TableOutOfBounds);
        let layout = self.module.layout;
        let (end, offset) = match table.checked_sub(self.module.info.imported_tables) {
            Some(own) => (self.base(), layout.table_ends[own as usize]),
            None => {
                let record = layout.link_parts.table(table);
                (self.link_word(types::I64, record + table_import::END), 0)
            }
        };
        let distance = self.b.ins().ishl_imm_u(index, 3);
        let inside = self.b.ins().isub(end, distance);
        // A mispredicted check must not read beyond the table.
        (self.b.ins().select_spectre_guard(outside, end, inside), offset - 8)
    }

    /// The element at a checked place, absolute where the table is imported.
    pub(super) fn load_element(&mut self, table: u32, (address, offset): (Value, i32)) -> Value {
        let info = self.module.info;
        let value = self.load(AliasClass::Table, types::I64, address, offset);
        let ty = ValType::Ref(info.tables[table as usize].element);
        self.note_type(ty);
        if ty.has_owner() && table < info.imported_tables {
            let record = self.module.layout.link_parts.table(table);
            return self.absolute_of_owner(value, record + table_import::OWNER);
        }
        value
    }

    /// Writes an element at a checked place.
    pub(super) fn store_element(&mut self, (address, offset): (Value, i32), value: Value) {
        let flags = self.flags(AliasClass::Table);
        self.b.ins().store(flags, value, address, offset);
    }

    // Indices.

    /// An index of either width, as 64 bits.
    fn extended(&mut self, index: Value) -> Value {
        match self.b.func.dfg.value_type(index) {
            types::I64 => index,
            _ => self.b.ins().uextend(types::I64, index),
        }
    }

    /// What is known in 64 bits, as an index of the width that memories or tables
    /// of 64 bits (`wide`), or of 32, have.
    pub(super) fn as_index(&mut self, value: Value, wide: bool) -> Value {
        if wide { value } else { self.b.ins().ireduce(types::I32, value) }
    }

    // Memories.

    /// The size of a memory in bytes.
    pub(super) fn memory_size(&mut self, memory: u32) -> Value {
        let layout = self.module.layout;
        let (address, offset) = match memory.checked_sub(self.module.info.imported_memories) {
            Some(own) => (self.base(), layout.state_parts.memory_size(own)),
            None => {
                let record = layout.link_parts.memory(memory);
                (self.link_word(types::I64, record + memory_import::SIZE_WORD), 0)
            }
        };
        self.load(AliasClass::State, types::I64, address, offset)
    }

    /// What to pass to a load or store of `size` bytes.
    ///
    /// In a 32-bit memory no check is needed: a 32-bit index and a 32-bit offset
    /// cannot name a byte beyond the guard, which every such memory has, so what
    /// is outside raises a signal, unless the memory may be accessible beyond its
    /// size. Then, and in a 64-bit memory, the end of the access is compared with
    /// the size.
    pub(crate) fn address(
        &mut self,
        memarg: &MemArg,
        index: Value,
        size: u8,
    ) -> (MemFlagsData, Value, Offset32) {
        let MemArgTarget::Memory(memory) = memarg.target else {
            unreachable!("validation refuses array accesses")
        };
        let (address, offset) = if self.module.info.memories[memory as usize].memory64 {
            (self.checked_address(memory, memarg.offset, index, size), 0)
        } else {
            // What a mispredicted check reads is of this memory or of its guard.
            self.check_bounds(memory, index, memarg.offset + u64::from(size));
            let start = self.memory_start(memory);
            let index = self.b.ins().uextend(types::I64, index);
            let address = self.b.ins().iadd(start, index);
            match i32::try_from(memarg.offset) {
                Ok(offset) => (address, offset),
                Err(_) => (self.b.ins().iadd_imm_s(address, memarg.offset as i64), 0),
            }
        };
        (self.memory_flags(), address, offset.into())
    }

    /// Where the `length` bytes from `index` on of a 32-bit memory are, and flags for
    /// accesses to them; not zero, and few, so that what is outside raises a signal, if
    /// it has not been found by comparing.
    pub(super) fn range_place(
        &mut self,
        memory: u32,
        index: Value,
        length: i32,
    ) -> (MemFlagsData, Value) {
        self.check_bounds(memory, index, length as u64);
        self.memory_place(memory, index)
    }

    /// Whether bytes of a 32-bit memory are outside it. Index and length have 32 bits.
    pub(super) fn range_is_outside(&mut self, memory: u32, index: Value, length: Value) -> Value {
        let index = self.b.ins().uextend(types::I64, index);
        let length = self.b.ins().uextend(types::I64, length);
        let end = self.b.ins().iadd(index, length);
        self.ends_outside(memory, end)
    }

    /// Whether `end`, which has not wrapped around, is beyond the size of a memory.
    pub(super) fn ends_outside(&mut self, memory: u32, end: Value) -> Value {
        let length = self.memory_size(memory);
        self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, length)
    }

    /// Where byte `index` of a 32-bit memory is, and flags for accesses to it and
    /// to a few pages beyond, which are not compared with the size.
    pub(super) fn memory_place(&mut self, memory: u32, index: Value) -> (MemFlagsData, Value) {
        let start = self.memory_start(memory);
        let index = self.b.ins().uextend(types::I64, index);
        (self.memory_flags(), self.b.ins().iadd(start, index))
    }

    /// Flags for an access that raises a signal outside its memory.
    fn memory_flags(&self) -> MemFlagsData {
        let trap = ir::TrapCode::unwrap_user(TrapCode::MemoryOutOfBounds as u8);
        LITTLE_ENDIAN
            .with_trap_code(Some(trap))
            .with_alias_region(Some(self.addressing.regions[AliasClass::Memory as usize]))
    }

    /// Where a memory starts. Valid up to the next call or block.
    fn memory_start(&mut self, memory: u32) -> Value {
        let layout = self.module.layout;
        match memory.checked_sub(self.module.info.imported_memories) {
            Some(own) => {
                let base = self.base();
                match layout.memories[own as usize].offset {
                    0 => base,
                    distance => self.b.ins().iadd_imm_s(base, distance as i64),
                }
            }
            None => {
                let record = layout.link_parts.memory(memory);
                self.link_word(types::I64, record + memory_import::BASE)
            }
        }
    }

    /// The address of `size` bytes at `index + offset` in a 64-bit memory, which
    /// are inside.
    fn checked_address(&mut self, memory: u32, offset: u64, index: Value, size: u8) -> Value {
        let length = self.memory_size(memory);
        let outside = match offset.checked_add(size.into()) {
            Some(reach) => {
                let end = self.b.ins().iadd_imm_s(index, reach as i64);
                // The sum of two is smaller than either if it has wrapped around.
                let wrapped = self.b.ins().icmp(IntCC::UnsignedLessThan, end, index);
                let beyond = self.b.ins().icmp(IntCC::UnsignedGreaterThan, end, length);
                self.b.ins().bor(wrapped, beyond)
            }
            // No memory has a byte there.
            None => self.b.ins().iconst(types::I8, 1),
        };
        self.trap_if(outside, TrapCode::MemoryOutOfBounds);
        let start = self.memory_start(memory);
        let distance = self.b.ins().iadd_imm_s(index, offset as i64);
        let inside = self.b.ins().iadd(start, distance);
        // A mispredicted check must not read beyond the memory.
        self.b.ins().select_spectre_guard(outside, start, inside)
    }
}
