//! What an instance holds: the references in its globals and tables, and all of it as an
//! image.

use std::collections::HashSet;
use std::sync::Arc;

use pagefork_layout::module::{HeapType, RefType, ValType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_pages::{Image, ImageForm};

use crate::base::error::Result;
use crate::run::free_pages::free_pages;
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

impl StoreGroup {
    /// Gives up the host values that no guest holds a reference to, nor anything that the host
    /// made and that a reset fills again; returns how many. None while a guest has frames, in
    /// which references may be.
    pub(crate) fn collect_references(&mut self) -> usize {
        if self.activation.is_active() || self.check_usable().is_err() {
            return 0;
        }
        let mut held = HashSet::new();
        for ordinal in 1..self.next_ordinal() {
            self.each_reference(ordinal, |ty, word| {
                if ty.heap.top() == HeapType::Extern {
                    held.insert(word);
                }
            });
            held.insert(self.instance(ordinal).initial_word);
            self.exceptions(ordinal).each_word(|word| {
                held.insert(word);
            });
        }
        // Their destructors are the embedder's.
        let given_up = self.references.keep(&held);
        given_up.len()
    }
}

/// How many slots are to be made of an image, which says what form is the cheapest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum ExpectedSlots {
    /// It is moved: one goes on.
    One,
    #[default]
    Many,
}

/// What a store is captured for.
#[derive(Debug)]
pub(crate) enum CapturedFor {
    /// One goes on from it. Copies of pages of the first instance that has as many go into this room.
    Move(Vec<u8>),
    /// Many do.
    Spawns,
}

/// An image of what an instance is now, without the bytes of pages that its page manager holds free;
/// with what is in its save area, if it is suspended.
///
/// # Errors
/// If the system refuses something.
pub(crate) fn make_image(
    store: &mut StoreGroup,
    ordinal: u32,
    is_suspended: bool,
    captured_for: &mut CapturedFor,
) -> Result<Arc<Image>> {
    let module = store.instance(ordinal).module.clone();
    let (layout, name) = (module.layout(), module.name().unwrap_or("snapshot"));
    // What a call has left behind is no part of what the instance is.
    let nothing = vec![0; layout.state_parts.save_size as usize];
    let save_area = (layout.base as i64 + i64::from(layout.state_parts.save_area)) as u64;
    let free = free_pages(store, ordinal);
    let is_so = 1u32.to_le_bytes();
    let told = free.as_ref().map(|free| (free.cleared, &is_so[..]));
    let reset = (!is_suspended).then_some((save_area, &nothing[..]));
    let patches: Vec<_> = reset.into_iter().chain(told).collect();
    let zeros = free.as_ref().map_or(&[][..], |free| &free.ranges);
    // What was spawned from a snapshot differs from it in what one run has written. What was
    // started differs from its module in all that starting it has made.
    let is_spawned = ordinal as usize <= store.origin_count();
    let slot = &mut store.instance_mut(ordinal).slot;
    let image = match captured_for {
        CapturedFor::Move(room) => slot.snapshot_to_move(name, &patches, zeros, room),
        CapturedFor::Spawns if is_spawned => {
            slot.snapshot_without(name, &patches, zeros, ImageForm::Branch)
        }
        CapturedFor::Spawns => slot.snapshot_without(name, &patches, zeros, ImageForm::Whole),
    };
    if !slot.is_whole() {
        // A page of its file was gone: guests may not see what is in its place.
        store.set_broken(true);
    }
    Ok(image?)
}
