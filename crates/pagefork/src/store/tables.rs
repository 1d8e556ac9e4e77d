//! The tables of a store: their elements, and bulk operations on them.

use std::ptr;

use pagefork_layout::module::{ElementSegment, TableType, ValType};
use pagefork_layout::reference::FuncRef;
use pagefork_layout::trap::TrapCode;

use crate::base::error::{LimitError, Result};
use crate::store::group::{Entity, StoreGroup};
use crate::store::limits;

impl StoreGroup {
    pub(crate) fn table_type(&self, entity: Entity) -> TableType {
        let module = &self.instance(entity.ordinal).module;
        let info = module.info();
        let declared = info.tables[(info.imported_tables + entity.own_index) as usize];
        let element = module.engine_ref_type(declared.element);
        TableType { element, minimum: self.table_length(entity), ..declared }
    }

    /// How many elements each table has that the instance defines.
    pub(crate) fn table_lengths(&self, ordinal: u32) -> Vec<u64> {
        let count = self.instance(ordinal).module.layout().table_capacities.len() as u32;
        (0..count).map(|own_index| self.table_length(Entity { ordinal, own_index })).collect()
    }

    pub(crate) fn table_length(&self, entity: Entity) -> u64 {
        // SAFETY: the word is in the state zone.
        unsafe { self.table_length_word(entity).read() }
    }

    pub(crate) fn table_length_word(&self, entity: Entity) -> *mut u64 {
        let instance = self.instance(entity.ordinal);
        instance.word(instance.module.layout().state_parts.table_length(entity.own_index))
    }

    /// The address of an element; only those within the table's room are in its
    /// zone.
    pub(crate) fn element(&self, entity: Entity, index: u64) -> *mut u64 {
        let instance = self.instance(entity.ordinal);
        instance.at(instance.module.layout().table_element(entity.own_index, index)).cast()
    }

    /// Writes elements, as they are stored, from `start` on. They must be within
    /// the table's room.
    pub(crate) fn put_elements(
        &mut self,
        entity: Entity,
        start: u64,
        words: impl Iterator<Item = u64>,
    ) {
        self.note_writer();
        let capacity = self.table_capacity(entity);
        for (index, word) in (start..).zip(words) {
            assert!(index < capacity, "elements are checked before they are written");
            // SAFETY: the element is within the table's room.
            unsafe { self.element(entity, index).write(word) };
        }
    }

    /// All elements, as they are stored.
    pub(crate) fn table_words(&self, entity: Entity) -> impl Iterator<Item = u64> {
        let length = self.table_length(entity);
        // SAFETY: the elements are within the table.
        (0..length).map(move |index| unsafe { self.element(entity, index).read() })
    }

    pub(crate) fn table_capacity(&self, entity: Entity) -> u64 {
        let layout = self.instance(entity.ordinal).module.layout();
        layout.table_capacities[entity.own_index as usize]
    }

    /// # Errors
    /// If the elements `start..start + length` are not all within the table.
    pub(crate) fn check_elements(
        &self,
        entity: Entity,
        start: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        match start.checked_add(length) {
            Some(end) if end <= self.table_length(entity) => Ok(()),
            _ => Err(TrapCode::TableOutOfBounds),
        }
    }

    /// The word of a reference from a place of the instance `from` as it is stored
    /// in a table.
    pub(crate) fn stored(&self, table: Entity, word: u64, from: u32) -> u64 {
        match ValType::Ref(self.table_type(table).element).has_owner() {
            true => FuncRef(word).absolute(from).relative(table.ordinal).0,
            false => word,
        }
    }

    /// `table.fill` with a [stored](Self::stored) element, all or nothing.
    pub(crate) fn table_fill(
        &mut self,
        table: Entity,
        start: u64,
        word: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(table, start, length)?;
        self.put_elements(table, start, (0..length).map(|_| word));
        Ok(())
    }

    /// `table.grow` with a [stored](Self::stored) element.
    pub(crate) fn table_grow(
        &mut self,
        table: Entity,
        delta: u64,
        word: u64,
    ) -> Result<u64, LimitError> {
        let old = self.table_length(table);
        let new = old.saturating_add(delta);
        // No table has room for more than its maximum.
        let (what, capacity) = ("elements of a table", self.table_capacity(table));
        let ty = self.table_type(table);
        let numbered = if ty.table64 { u64::MAX } else { u32::MAX.into() };
        let source = limits::source_of(capacity, ty.maximum, numbered);
        limits::check_of(source, what, new, capacity)?;
        limits::check(what, new, self.limits.table_elements)?;
        self.put_elements(table, old, (0..delta).map(|_| word));
        // SAFETY: the word is in the state zone.
        unsafe { self.table_length_word(table).write(new) };
        Ok(old)
    }

    /// `table.copy`, all or nothing.
    pub(crate) fn table_copy(
        &mut self,
        (to, from): (Entity, Entity),
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(from, source, length)?;
        self.check_elements(to, destination, length)?;
        if length == 0 {
            return Ok(());
        }
        if to.ordinal == from.ordinal {
            // Elements lie downwards: the last one has the lowest address.
            let last = length - 1;
            let from = self.element(from, source + last);
            let to = self.element(to, destination + last);
            // SAFETY: all elements are within their tables; they may overlap.
            unsafe { ptr::copy(from, to, length as usize) };
            return Ok(());
        }
        for i in 0..length {
            // SAFETY: both elements are within their tables.
            unsafe {
                let word = self.element(from, source + i).read();
                self.element(to, destination + i).write(self.stored(to, word, from.ordinal));
            }
        }
        Ok(())
    }

    /// `table.init` with a segment of the instance `ordinal`, all or nothing.
    pub(crate) fn table_init(
        &mut self,
        ordinal: u32,
        table: Entity,
        elements: &ElementSegment,
        destination: u64,
        source: u64,
        length: u64,
    ) -> Result<(), TrapCode> {
        self.check_elements(table, destination, length)?;
        let end = source.checked_add(length);
        let end = end.filter(|end| *end <= elements.items.len() as u64);
        let end = end.ok_or(TrapCode::TableOutOfBounds)?;
        for (item, i) in elements.items[source as usize..end as usize].iter().zip(0..) {
            let word = self.constant(ordinal, item, ValType::Ref(elements.element));
            let word = self.stored(table, word, ordinal);
            // SAFETY: the element is within the table.
            unsafe { self.element(table, destination + i).write(word) };
        }
        Ok(())
    }
}
