//! Suspended guests as pages: where their registers and frames lie, and how they are copied
//! into another store.

use std::ops::Range;
use std::ptr;

use pagefork_layout::CELL_SIZE;
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::state::save;

use crate::base::error::{Result, UsageError};
use crate::run::enter::{self, CallOutcome};
use crate::store::frame::Landing;
use crate::store::group::{InstanceData, StoreGroup};
use crate::store::interrupt::Due;
use crate::store::suspended::Suspended;

/// A word of a suspended guest's stack that is an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameWord {
    /// Where it lies: an offset in the slot that has the stack.
    pub offset: u64,
    /// What it is.
    pub kind: FrameWordKind,
}

/// What an address on the stack is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameWordKind {
    /// A saved frame pointer, as a distance below the top of the stack; `None` at
    /// the end of the chain.
    FramePointer(Option<u64>),
    /// A return address: an offset in the text of the instance with this number.
    ReturnAddress {
        /// The first instance that has this code.
        ordinal: u32,
        /// Offset in its module's text.
        offset: u32,
    },
    /// A return address in the thunk through which the guest was entered.
    ReturnToHost,
}

/// While one of these lives, the store's guest may be suspended.
pub(crate) struct Suspendable {
    store: *mut StoreGroup,
    counting: bool,
}

impl Suspendable {
    /// # Safety
    /// The store is borrowed by the caller for as long as this lives.
    pub(crate) unsafe fn begin(store: *mut StoreGroup, stop_at: Option<u64>) -> Self {
        let counting = stop_at.is_some_and(|count| count > 0);
        // SAFETY: by this function's contract the store is borrowed by the caller.
        unsafe {
            (*store).activation.suspendable = true;
            if counting {
                (*store).interrupts.set_due(Due::Suspension, true);
                (*store).clear_registers();
            }
            (*store).activation.suspend_requested = false;
            (*store).activation.suspend_countdown = stop_at.unwrap_or(0);
            if counting {
                (*store).interrupts.set_every_point(true);
            }
        }
        Self { store, counting }
    }
}

impl Drop for Suspendable {
    fn drop(&mut self) {
        // SAFETY: by the contract of `begin` the store is borrowed as long as `self` lives.
        unsafe {
            (*self.store).activation.suspendable = false;
            (*self.store).interrupts.set_due(Due::Suspension, false);
            (*self.store).activation.suspend_requested = false;
            (*self.store).activation.suspend_countdown = 0;
            if self.counting {
                (*self.store).interrupts.set_every_point(false);
            }
        }
    }
}

/// Asks that the guest be suspended when the host function that runs returns.
///
/// # Errors
/// If the guest was not called to be, or host functions run between its frames.
pub(crate) fn request(store: &mut StoreGroup) -> Result<(), UsageError> {
    let activation = &mut store.activation;
    if !activation.is_active() || !activation.suspendable {
        return Err(UsageError::NotSuspendable);
    }
    // SAFETY: the guest is entered.
    if unsafe { activation.is_nested() } {
        return Err(UsageError::Nested);
    }
    activation.suspend_requested = true;
    store.interrupts.set_due(Due::Suspension, true);
    Ok(())
}

/// Continues a guest that was suspended, which the store must not know any more: with the results
/// in its save area, or where an exception lands.
///
/// # Errors
/// As [`enter::call`].
///
/// # Panics
/// As [`enter::call`].
///
/// # Safety
/// The store is borrowed by the caller, the pointer with the provenance of the whole; no guest of
/// it is entered; and the guest's frames are where it was suspended, or where a copy has put them.
pub(crate) unsafe fn resume(
    store: *mut StoreGroup,
    suspended: &Suspended,
    landing: Option<Landing>,
    stop_at: Option<u64>,
) -> Result<CallOutcome> {
    // SAFETY: by this function's contract.
    unsafe {
        let inner = &mut *store;
        let stack_top = stack_top(inner.instance(suspended.stack_owner));
        let instance = inner.instance(suspended.ordinal);
        let (base, save_area) = (instance.base(), save_area(instance).expose_provenance());
        let result = give_results(instance);
        let frame = stack_top - saved(instance, save::FP) as usize;
        inner.activation.stack_top = stack_top;
        inner.activation.stack_owner = suspended.stack_owner;
        let _suspendable = Suspendable::begin(store, stop_at);
        enter::resume(store, base, frame, save_area, result, landing)
    }
}

/// Gives a suspended guest up: its frames are forgotten.
pub(crate) fn abandon(store: &mut StoreGroup) {
    store.note_writer();
    if let Some(suspended) = store.suspended.take() {
        store.update_due();
        let instance = store.instance(suspended.ordinal);
        let size = instance.module.layout().state_parts.save_size;
        // SAFETY: the save area is in the state zone.
        unsafe { save_area(instance).write_bytes(0, size as usize) };
    }
}

pub(crate) fn stack_top(instance: &InstanceData) -> usize {
    instance.slot.stack_top().expose_provenance()
}

pub(crate) fn save_area(instance: &InstanceData) -> *mut u8 {
    instance.at(instance.module.layout().state_parts.save_area.into())
}

pub(crate) fn saved(instance: &InstanceData, field: u32) -> u64 {
    // SAFETY: the save area is in the state zone.
    unsafe { save_area(instance).byte_add(field as usize).cast::<u64>().read() }
}

/// Puts the results that a guest waits for where it reads them: in cells, and the first one
/// into a register, as the bits that are returned here.
pub(crate) fn give_results(instance: &InstanceData) -> u64 {
    let layout = instance.module.layout();
    let cells = instance.at(layout.cell(0).into());
    let saved = save_area(instance).wrapping_add(save::CELLS as usize);
    let size = (CELL_SIZE * layout.link_parts.cell_count) as usize;
    // SAFETY: cells are in the link zone, the others in the state zone, and no guest is entered.
    unsafe {
        cells.copy_from_nonoverlapping(saved, size);
        saved.write_bytes(0, size);
        if size == 0 { 0 } else { cells.cast::<u64>().read_unaligned() }
    }
}

/// The addresses on the stack and their values.
pub(crate) fn chain(
    store: &StoreGroup,
    suspended: &Suspended,
) -> Result<Vec<(FrameWord, usize)>, UsageError> {
    let owner = store.instance(suspended.stack_owner);
    let (start, top) = (owner.slot.start().expose_provenance(), stack_top(owner));
    let bottom = start + owner.module.layout().stack.start as usize;
    let instance = store.instance(suspended.ordinal);
    let fp = saved(instance, save::FP) as usize;
    let mut frame = top.wrapping_sub(fp);
    let mut lowest = bottom;
    let mut words = Vec::new();
    loop {
        if frame < lowest || frame > top - 16 || !frame.is_multiple_of(8) {
            return Err(UsageError::BrokenFrames("a frame pointer does not rise within the stack"));
        }
        // SAFETY: both words are in the stack zone.
        let (outer, return_address) =
            unsafe { *ptr::with_exposed_provenance::<(usize, usize)>(frame) };
        let distance = (outer != 0).then(|| top.wrapping_sub(outer) as u64);
        let offset = (frame - start) as u64;
        words.push((FrameWord { offset, kind: FrameWordKind::FramePointer(distance) }, outer));
        let found = store.instances.iter().zip(1..).find_map(|(instance, ordinal)| {
            Some((ordinal, instance.module.code_memory().offset_of(return_address)?))
        });
        let kind = match found {
            Some((ordinal, offset)) => FrameWordKind::ReturnAddress { ordinal, offset },
            None if enter::thunks().contains(return_address) => FrameWordKind::ReturnToHost,
            None => return Err(UsageError::BrokenFrames("a return address is in no code")),
        };
        words.push((FrameWord { offset: offset + 8, kind }, return_address));
        if outer == 0 {
            return Ok(words);
        }
        lowest = frame + 16;
        frame = outer;
    }
}

/// Copies exceptions, tables, state and memories: only pages that differ are
/// written.
pub(crate) fn copy_zones(source: &InstanceData, target: &InstanceData) {
    let layout = source.module.layout();
    copy_pages(source, target, layout.exceptions.start..layout.base);
    for (index, memory) in layout.memories.iter().enumerate() {
        let start = layout.base + memory.offset;
        copy_pages(source, target, start..start + source.slot.memory_size(index));
    }
}

/// Copies these slot offsets, which are whole accessible pages.
pub(crate) fn copy_pages(source: &InstanceData, target: &InstanceData, range: Range<u64>) {
    let page_size = PAGE_SIZE as usize;
    for offset in range.step_by(page_size) {
        let from = source.slot.start().wrapping_add(offset as usize);
        let to = target.slot.start().wrapping_add(offset as usize);
        // SAFETY: the page is accessible in both slots, which are different ones.
        unsafe {
            let bytes = std::slice::from_raw_parts(from, page_size);
            if bytes != std::slice::from_raw_parts(to.cast_const(), page_size) {
                ptr::copy_nonoverlapping(from, to, page_size);
            }
        }
    }
}

/// Copies the part of the stack in use, and makes its addresses those of the
/// target.
pub(crate) fn copy_stack(
    source: &StoreGroup,
    target: &StoreGroup,
    suspended: &Suspended,
    words: &[(FrameWord, usize)],
) {
    let from = source.instance(suspended.stack_owner);
    let to = target.instance(suspended.stack_owner);
    let size = saved(source.instance(suspended.ordinal), save::SP) as usize;
    let (from_top, to_top) = (from.slot.stack_top(), to.slot.stack_top());
    // SAFETY: the part in use is in the stack zone, which is as large in both, and
    // the words are in that part.
    unsafe {
        ptr::copy_nonoverlapping(from_top.wrapping_sub(size), to_top.wrapping_sub(size), size);
        for (word, value) in words {
            let value = match word.kind {
                FrameWordKind::FramePointer(None) | FrameWordKind::ReturnToHost => *value,
                FrameWordKind::FramePointer(Some(distance)) => stack_top(to) - distance as usize,
                FrameWordKind::ReturnAddress { ordinal, offset } => {
                    let code = target.instance(ordinal).module.code_memory().start();
                    code + offset as usize
                }
            };
            to.slot.start().wrapping_add(word.offset as usize).cast::<usize>().write(value);
        }
    }
}
