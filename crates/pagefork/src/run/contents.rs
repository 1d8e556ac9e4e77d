//! What an instance holds: the references in its globals and tables, and all of it as an
//! image.

use std::ops::Range;
use std::sync::Arc;

use pagefork_layout::module::{HeapType, RefType, ValType};
use pagefork_layout::page::{PAGE_SIZE, round_up};
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

/// Everything of an instance that is in an image, as runs of pages that are not zero; with what is
/// in its save area, if it is suspended.
pub(crate) fn make_image(
    store: &StoreGroup,
    ordinal: u32,
    is_suspended: bool,
) -> Result<Arc<Image>> {
    let instance = store.instance(ordinal);
    let (module, slot) = (&instance.module, &instance.slot);
    let layout = module.layout();
    let memories = layout.memories.iter().enumerate().map(|(index, memory)| {
        let start = layout.base + memory.offset;
        start..start + slot.memory_size(index)
    });
    let bytes = |range: Range<u64>| {
        let start = slot.start().wrapping_add(range.start as usize);
        // SAFETY: the range is accessible, and not written while the store is
        // borrowed.
        unsafe { std::slice::from_raw_parts(start, (range.end - range.start) as usize) }
    };
    let mut state = bytes(layout.state.clone()).to_vec();
    if !is_suspended {
        // What a call has left behind is no part of what the instance is.
        let place = layout.base as i64 + i64::from(layout.state_parts.save_area);
        let at = place as usize - layout.state.start as usize;
        state[at..at + layout.state_parts.save_size as usize].fill(0);
    }

    let mut runs: Vec<(u64, &[u8])> = Vec::new();
    for part in std::iter::once(layout.tables.start..layout.state.start).chain(memories) {
        let start = part.start;
        for (page, at) in bytes(part).chunks(PAGE_SIZE as usize).zip(0..) {
            if page.iter().any(|byte| *byte != 0) {
                runs.push((start + at * PAGE_SIZE, page));
            }
        }
    }
    runs.push((layout.state.start, &state));
    runs.sort_unstable_by_key(|(at, _)| *at);
    let further = layout.memories.iter().skip(1).map(|memory| layout.base + memory.offset);
    let mut extents: Vec<Range<u64>> =
        std::iter::once(layout.image_start..layout.base).chain(further.map(|at| at..at)).collect();
    for (at, run) in &runs {
        let extent = extents.iter_mut().rev().find(|extent| extent.start <= *at);
        match extent {
            Some(extent) => extent.end = extent.end.max(round_up(at + run.len() as u64)),
            None => extents[0].start = extents[0].start.min(*at),
        }
    }
    let name = module.name().unwrap_or("snapshot");
    Ok(Image::with_extents(name, extents, runs)?)
}
