//! What an instance holds: the references in its globals and tables, and all of it as an
//! image.

use std::sync::Arc;

use pagefork_layout::module::{HeapType, RefType, ValType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_pages::Image;

use crate::base::error::Result;
use crate::store::group::{Entity, StoreGroup};

impl StoreGroup {
    /// Shows the number of every host function that an instance's own globals and tables
    /// refer to.
    pub(crate) fn each_host_function(&self, ordinal: u32, mut look: impl FnMut(u32)) {
        self.each_reference(ordinal, |ty, word| {
            let function = FuncRef(word);
            if ty.heap.top() == HeapType::Func
                && function.ordinal() == HOST_ORDINAL
                && let Some(index) = function.index()
            {
                look(index);
            }
        });
    }

    /// Shows every reference that an instance's own globals and tables hold.
    pub(crate) fn each_reference(&self, ordinal: u32, mut look: impl FnMut(RefType, u64)) {
        let info = self.instance(ordinal).module.info();
        for (global, own_index) in info.globals.iter().skip(info.imported_globals as usize).zip(0..)
        {
            if let ValType::Ref(ty) = global.content {
                look(ty, self.global_cell(Entity { ordinal, own_index }).low);
            }
        }
        for (table, own_index) in info.tables.iter().skip(info.imported_tables as usize).zip(0..) {
            for word in self.table_words(Entity { ordinal, own_index }) {
                look(table.element, word);
            }
        }
    }
}

/// An image of what an instance is now; with what is in its save area, if it is suspended.
///
/// # Errors
/// If the system refuses something.
pub(crate) fn make_image(
    store: &StoreGroup,
    ordinal: u32,
    is_suspended: bool,
) -> Result<Arc<Image>> {
    let instance = store.instance(ordinal);
    let layout = instance.module.layout();
    let name = instance.module.name().unwrap_or("snapshot");
    // What a call has left behind is no part of what the instance is.
    let nothing = vec![0; layout.state_parts.save_size as usize];
    let save_area = (layout.base as i64 + i64::from(layout.state_parts.save_area)) as u64;
    let patches: &[(u64, &[u8])] = if is_suspended { &[] } else { &[(save_area, &nothing)] };
    Ok(instance.slot.snapshot(name, patches)?)
}
