//! Compiled modules.

use std::collections::BTreeSet;

use pagefork_layout::code::CodeImage;
use pagefork_layout::module::{ConstExpr, Item, ModuleInfo};
use pagefork_layout::slot::SlotLayout;
use serde::{Deserialize, Serialize};

/// Largest text in bytes: distances inside it must fit 32 bits.
pub(crate) const TEXT_SIZE_MAX: usize = 1 << 30;

/// A compiled module: what it declares, how its slots are laid out, and its code.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CompiledModule {
    /// Everything the module declares.
    pub info: ModuleInfo,
    /// The layout of its instances' slots.
    pub layout: SlotLayout,
    /// Its machine code.
    pub code: CodeImage,
}

/// The debug information in these bytes of a text; `None` if there is none, or
/// none that makes sense.
pub fn debug_info(bytes: &[u8]) -> Option<pagefork_layout::code::DebugInfo> {
    postcard::from_bytes(bytes).ok()
}

/// Canonical types of the functions that can become known outside.
pub(crate) fn entered_types(info: &ModuleInfo) -> BTreeSet<u32> {
    let exported = info.exports.iter().filter_map(|export| match export.item {
        Item::Func(index) => Some(index),
        _ => None,
    });
    let items = info.elements.iter().flat_map(|segment| segment.items.iter());
    let inits = info.global_inits.iter().chain(info.table_inits.iter().flatten());
    let referenced = items.chain(inits).filter_map(|expr| match expr {
        ConstExpr::Func(index) => Some(*index),
        _ => None,
    });
    // Few types of many functions.
    let mut is_entered = vec![false; info.types.len()];
    for index in exported.chain(referenced).chain(info.start) {
        is_entered[info.functions[index as usize] as usize] = true;
    }
    (0..).zip(is_entered).filter_map(|(ty, is_entered)| is_entered.then_some(ty)).collect()
}
