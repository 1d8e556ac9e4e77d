//! The memories of a store: their sizes, and bulk operations on them.

use std::ptr;

use pagefork_layout::module::MemoryType;
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::trap::TrapCode;
use pagefork_pages::Discarded;

use crate::base::error::{LimitError, Result};
use crate::store::group::{Entity, StoreGroup};
use crate::store::limits;

/// Largest number of wasm pages that the index type of a memory can address.
pub(crate) const fn pages_max(memory64: bool) -> u64 {
    if memory64 { 1 << 48 } else { 1 << 16 }
}

impl StoreGroup {
    pub(crate) fn memory_type(&self, entity: Entity) -> MemoryType {
        let instance = self.instance(entity.ordinal);
        let info = instance.module.info();
        let declared = &info.memories[(info.imported_memories + entity.own_index) as usize];
        let size = instance.slot.memory_size(entity.own_index as usize);
        MemoryType { minimum: size / WASM_PAGE_SIZE, ..*declared }
    }

    /// The first byte of a memory, and how many are accessible.
    pub(crate) fn memory_bytes(&self, entity: Entity) -> (*mut u8, usize) {
        let slot = &self.instance(entity.ordinal).slot;
        let index = entity.own_index as usize;
        (slot.memory(index), slot.memory_size(index) as usize)
    }

    /// Bytes that all memories have, or none if there is no limit.
    pub(crate) fn memory_total_if_limited(&self) -> u64 {
        match self.limits.memory_total {
            u64::MAX => 0,
            _ => self.memory_total(),
        }
    }

    /// Bytes that all memories have.
    pub(crate) fn memory_total(&self) -> u64 {
        let slots = self.instances.iter().map(|instance| &instance.slot);
        slots.flat_map(|slot| (0..slot.memory_count()).map(|index| slot.memory_size(index))).sum()
    }

    /// Makes a memory `delta` wasm pages larger; returns the size before, in wasm
    /// pages. The only place where the size word of a memory is written.
    pub(crate) fn grow_memory(&mut self, entity: Entity, delta: u64) -> Result<u64> {
        self.note_writer();
        let (allowed, index) = (self.limits, entity.own_index as usize);
        let total = self.memory_total_if_limited();
        let instance = self.instance_mut(entity.ordinal);
        // No slot has room for more than the memory's declared maximum.
        let maximum = instance.slot.memory_max(index) / WASM_PAGE_SIZE;
        let old_pages = instance.slot.memory_size(index) / WASM_PAGE_SIZE;
        if delta == 0 {
            return Ok(old_pages);
        }
        let pages = old_pages.saturating_add(delta);
        if pages > maximum {
            let info = instance.module.info();
            let ty = &info.memories[(info.imported_memories + entity.own_index) as usize];
            let source = limits::source_of(maximum, ty.maximum, pages_max(ty.memory64));
            limits::check_of(source, "wasm pages of a memory", pages, maximum)?;
        }
        let size = pages * WASM_PAGE_SIZE;
        limits::check("bytes of a memory", size, allowed.memory_size)?;
        let total = total.saturating_add(delta * WASM_PAGE_SIZE);
        limits::check(LimitError::MEMORY_TOTAL, total, allowed.memory_total)?;
        if let Err(error) = instance.slot.grow_memory(index, size) {
            if !instance.slot.is_whole() {
                // More is accessible than the memory has, and that cannot be changed.
                self.set_broken(true);
            }
            return Err(error.into());
        }
        let size_word = instance.module.layout().state_parts.memory_size(entity.own_index);
        // SAFETY: the word is in the state zone.
        unsafe { instance.word(size_word).write(instance.slot.memory_size(index)) };
        instance.show_beyond();
        Ok(old_pages)
    }

    /// The bytes `offset..offset + length` of a memory.
    pub(crate) fn memory_range(
        &mut self,
        entity: Entity,
        offset: u64,
        length: u64,
    ) -> Result<*mut u8, TrapCode> {
        let (start, size) = self.memory_bytes(entity);
        match offset.checked_add(length) {
            Some(end) if end <= size as u64 => {
                let place = start.wrapping_add(offset as usize);
                match self.wait_at(place.addr(), length as usize) {
                    true => Ok(place),
                    false => Err(TrapCode::PageAbsent),
                }
            }
            _ => Err(TrapCode::MemoryOutOfBounds),
        }
    }

    /// Makes bytes of a memory zero and gives them back where that gains something.
    pub(crate) fn discard_memory(
        &mut self,
        memory: Entity,
        start: u64,
        length: u64,
    ) -> Result<Discarded, TrapCode> {
        self.memory_range(memory, start, length)?;
        self.note_writer();
        let slot = &mut self.instance_mut(memory.ordinal).slot;
        let discarded = slot.discard_memory(memory.own_index as usize, start..start + length);
        // The range was checked, and code runs in whole slots only.
        discarded.map_err(|_| TrapCode::MemoryOutOfBounds)
    }

    /// Whether giving so many bytes of a memory back gains more than it costs.
    pub(crate) fn gains_by_discarding(&self, memory: Entity, length: u64) -> bool {
        self.instance(memory.ordinal).slot.gains_by_discarding(length)
    }

    /// `memory.init` from these bytes, all or nothing.
    pub(crate) fn memory_init(
        &mut self,
        memory: Entity,
        bytes: &[u8],
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.note_writer();
        let to = self.memory_range(memory, destination, length)?;
        let end = source.checked_add(length).filter(|end| *end <= bytes.len() as u64);
        let end = end.ok_or(TrapCode::MemoryOutOfBounds)?;
        let from = &bytes[source as usize..end as usize];
        // SAFETY: the range is accessible and no part of a module.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}
