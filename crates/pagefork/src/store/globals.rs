//! The globals of a store, and constant expressions, which read them.

use pagefork_layout::module::{ConstExpr, GlobalType, ValType};
use pagefork_layout::reference::FuncRef;

use crate::base::cell::Cell;
use crate::store::group::{Entity, StoreGroup};

impl StoreGroup {
    pub(crate) fn global_type(&self, entity: Entity) -> GlobalType {
        let module = &self.instance(entity.ordinal).module;
        let info = module.info();
        let ty = info.globals[(info.imported_globals + entity.own_index) as usize];
        GlobalType { content: module.engine_val_type(ty.content), ..ty }
    }

    pub(crate) fn global_cell(&self, entity: Entity) -> Cell {
        // SAFETY: the cell is in the state zone.
        unsafe { self.global_address(entity).read() }
    }

    /// Sets a global that is a reference.
    pub(crate) fn set_global_word(&mut self, entity: Entity, word: u64) {
        self.note_writer();
        // SAFETY: the cell is in the state zone.
        unsafe { self.global_address(entity).write(Cell::from_u64(word)) };
    }

    pub(crate) fn global_address(&self, entity: Entity) -> *mut Cell {
        let instance = self.instance(entity.ordinal);
        instance.word(instance.module.layout().state_parts.global(entity.own_index)).cast()
    }

    /// The word of a reference that a constant expression of the instance
    /// `ordinal` means, as it lies in that instance's own places.
    pub(crate) fn constant(&self, ordinal: u32, expr: &ConstExpr, ty: ValType) -> u64 {
        match expr {
            ConstExpr::Bits(_) | ConstExpr::Extended(_) => {
                unreachable!("numbers are known when the image is made")
            }
            ConstExpr::Null => 0,
            ConstExpr::Func(index) => FuncRef::new(0, *index).0,
            ConstExpr::Global(index) => {
                let entity = self.global(ordinal, *index);
                let word = self.global_cell(entity).low;
                match ty.has_owner() {
                    true => FuncRef(word).absolute(entity.ordinal).relative(ordinal).0,
                    false => word,
                }
            }
        }
    }
}
