//! Suspended guests as pages: where their registers and frames lie, and how they are copied
//! into another store.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use pagefork_layout::CELL_SIZE;
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::state::save;

use crate::base::cell::Cell;
use crate::base::error::{Error, ErrorKind, Result, UsageError};
use crate::base::frames::WasmBacktrace;
use crate::base::trap::{Trap, TrapCode};
use crate::run::call_hook;
use crate::run::enter::{self, CallOutcome};
use crate::run::throw::{self, Thrown};
use crate::store::activation::Activation;
use crate::store::frame::{Landing, Target};
use crate::store::group::{InstanceData, StoreGroup};
use crate::store::interrupt::Due;
use crate::store::suspended::{FrameWord, FrameWordKind, Suspended};

/// What it means to a call that its guest is suspended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suspends {
    /// The task that it is made by waits.
    WithItsTask,
    /// It ends, and the embedder is told.
    Ends,
    /// It ends, at the latest at this point where that is possible, counted from 1.
    EndsAt(u64),
}

/// While one of these lives, the store's guest may be suspended.
pub(crate) struct Suspendable {
    store: *mut StoreGroup,
    counting: bool,
}

impl Suspendable {
    /// # Safety
    /// The store is borrowed by the caller for as long as this lives.
    pub(crate) unsafe fn begin(store: *mut StoreGroup, suspends: Suspends) -> Self {
        let count = match suspends {
            Suspends::EndsAt(count) => count,
            _ => 0,
        };
        // SAFETY: by this function's contract the store is borrowed by the caller.
        unsafe {
            (*store).activation.suspendable = true;
            if suspends != Suspends::WithItsTask {
                (*store).activation.ends_suspended = true;
                // At any interruption point, as soon as anyone asks for it.
                (*store).clear_registers();
            }
            (*store).activation.suspend_requested = false;
            (*store).activation.yields = false;
            (*store).activation.yields_again = false;
            (*store).activation.suspend_countdown = count;
            if count > 0 {
                (*store).interrupts.set_due(Due::Suspension, true);
                (*store).interrupts.set_every_point(true);
            }
        }
        Self { store, counting: count > 0 }
    }
}

impl Drop for Suspendable {
    fn drop(&mut self) {
        // SAFETY: by the contract of `begin` the store is borrowed as long as `self` lives.
        unsafe {
            (*self.store).activation.suspendable = false;
            (*self.store).activation.ends_suspended = false;
            (*self.store).interrupts.set_due(Due::Suspension, false);
            (*self.store).activation.suspend_requested = false;
            (*self.store).activation.suspend_countdown = 0;
            if self.counting {
                (*self.store).interrupts.set_every_point(false);
            }
        }
    }
}

/// Whether the guest whose host function runs can be suspended.
///
/// # Errors
/// If it was not called to be, or host functions run between its frames.
pub(crate) fn check_suspendable(activation: &Activation) -> Result<(), UsageError> {
    if !activation.suspendable {
        return Err(UsageError::NotSuspendable);
    }
    // SAFETY: the guest is entered.
    match activation.is_active() && unsafe { activation.is_nested() } {
        true => Err(UsageError::Nested),
        false => Ok(()),
    }
}

/// Whether it can be, so that the embedder's call ends.
///
/// # Errors
/// As of [`check_suspendable`].
pub(crate) fn check_ends_suspended(activation: &Activation) -> Result<(), UsageError> {
    match activation.ends_suspended {
        true => check_suspendable(activation),
        false => Err(UsageError::NotSuspendable),
    }
}

/// Has the guest suspended when the host function that runs returns.
pub(crate) fn request(store: &mut StoreGroup) {
    store.activation.suspend_requested = true;
    store.interrupts.set_due(Due::Suspension, true);
}

/// Has the guest let others run: where it is, or, if host functions run between its frames, as soon as
/// they have returned, or were left by an exception.
pub(crate) fn request_yield(store: &mut StoreGroup) {
    if check_yields(&store.activation).is_ok() {
        store.activation.yields = true;
        request(store);
    }
}

/// Whether the guest can let others run.
///
/// # Errors
/// If it is not run by a task.
pub(crate) fn check_yields(activation: &Activation) -> Result<(), UsageError> {
    match activation.suspendable && !activation.ends_suspended {
        true => Ok(()),
        false => Err(UsageError::CannotYield),
    }
}

/// Has the guest still let others run, once an exception has left the host functions between its frames, on
/// whose return that waits.
pub(crate) fn request_yield_again(store: &mut StoreGroup) {
    if store.activation.yields {
        store.activation.yields_again = true;
        store.interrupts.request_yield();
    }
}

/// Whether a host function has failed with this to be called later, and it can be.
///
/// # Safety
/// The activation's store is valid, and its guest waits in the host call.
pub(crate) unsafe fn is_put_off(activation: &Activation, error: &Error) -> bool {
    // SAFETY: by this function's contract the store is valid.
    let store = unsafe { &*activation.store };
    asks_to_be_put_off(error)
        && !store.interrupts.is_noted()
        && check_ends_suspended(activation).is_ok()
}

fn asks_to_be_put_off(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(UsageError::PutOff))
}

/// Whether this error of a host function can let its caller go on: a handler may catch it, or
/// the call is made again.
pub(crate) fn goes_on_after(error: &Error) -> bool {
    error.kind() == ErrorKind::Exception || asks_to_be_put_off(error)
}

/// Makes the host call that a guest was suspended before: if it is not put off once more, its
/// results are in the save area, and the guest is to be [told](deliver) what it has come to.
///
/// # Panics
/// If the host function panics, with its payload; the guest is given up.
///
/// # Safety
/// The store is borrowed by the caller, the pointer with the provenance of the whole, and its
/// guest is suspended before that call.
pub(crate) unsafe fn make_call(store: *mut StoreGroup, index: u32) -> HostCallOutcome {
    // SAFETY: by this function's contract: the arguments are in the save area, which has cells
    // enough for the results, too.
    unsafe {
        // Its results are written to the guest's own pages, which may not go on here.
        (*store).note_writer();
        let suspended = (*store).suspended.clone().expect("the guest is suspended");
        let instance = (*store).instance(suspended.ordinal);
        let cells: *mut Cell = save_area(instance).wrapping_add(save::CELLS as usize).cast();
        let base = instance.base();
        let function = &*(*store).host_function_ptr(index);
        let _suspendable = Suspendable::begin(store, Suspends::Ends);
        (*store).activation.store = store;
        let call = || match (*store).is_hooked {
            true => call_hook::around_host_function(store, function, cells, base),
            false => (function.call)(store, cells, base),
        };
        let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
            abandon(&mut *store);
            resume_unwind(payload)
        });
        let inner = &mut *store;
        let result = match (inner.take_raised(), result) {
            (Some(error), Ok(())) => Err(error),
            (_, result) => result,
        };
        match &result {
            Err(error) if asks_to_be_put_off(error) && !inner.interrupts.is_noted() => {
                return HostCallOutcome::PutOff;
            }
            Ok(()) => {
                let (given, got) = (function.ty.params.len(), function.ty.results.len());
                (got..given).for_each(|i| cells.add(i).write(Cell::default()));
            }
            Err(_) => {}
        }
        if let Some(suspended) = &mut inner.suspended {
            suspended.host_function = None;
        }
        let asked = inner.interrupts.take_suspension_request() | inner.activation.suspend_requested;
        match asked && result.is_ok() && !inner.is_broken() && !inner.interrupts.is_noted() {
            true => HostCallOutcome::Suspended,
            false => HostCallOutcome::Returned(result),
        }
    }
}

/// Calls a guest's function while another may be suspended: on the same stack it runs below the
/// other's frames. It cannot be suspended, nor can host functions that it calls call guests.
///
/// # Errors
/// As [`enter::call`].
///
/// # Panics
/// As [`enter::call`].
///
/// # Safety
/// As [`enter::call`]; no guest of the store is entered.
pub(crate) unsafe fn call_beside(store: *mut StoreGroup, target: &Target) -> Result<CallOutcome> {
    let mut target = *target;
    // SAFETY: by this function's contract the store is borrowed for us.
    unsafe {
        if let Some(suspended) = &(*store).suspended
            && suspended.stack_owner == target.ordinal
            && let Some(in_use) = (*store).suspended_stack()
        {
            target.stack_top = in_use.start & !15;
        }
        let _deadline = (*store).begin_outermost()?;
        enter::call_prepared(store, &target)
    }
}

/// What became of a host call that a guest was suspended before.
pub(crate) enum HostCallOutcome {
    /// The guest stays suspended before it.
    PutOff,
    /// The guest stays suspended after it.
    Suspended,
    /// The guest is to go on.
    Returned(Result<()>),
}

/// Tells a suspended guest what its host call has come to: where it goes on if that is an exception
/// that it catches, or nothing if the call has not failed.
///
/// # Errors
/// What ends the guest: it is to be given up then.
///
/// # Safety
/// The store is borrowed by the caller, the pointer with the provenance of the whole, and it has a
/// suspended guest.
pub(crate) unsafe fn deliver(
    store: *mut StoreGroup,
    result: Result<()>,
) -> Result<Option<Landing>> {
    // SAFETY: by this function's contract the store has a suspended guest, whose frames are
    // where its save area says; it waits like one in a host call.
    unsafe {
        let suspended = (*store).suspended.clone().ok_or(UsageError::NotSuspended)?;
        let top = stack_top((*store).instance(suspended.stack_owner));
        let instance = (*store).instance(suspended.ordinal);
        let frame = top - saved(instance, save::FP) as usize;
        let activation = &raw mut (*store).activation;
        (*activation).stack_top = top;
        (*activation).stack_owner = suspended.stack_owner;
        (*activation).guest_sp = frame;
        let shared = store.cast_const();
        let backtrace = || WasmBacktrace::from_frames(&*shared, &[], frame, 0);
        let trap = |code| Error::from(Trap::new(code, backtrace()));
        let error = match ((*store).interrupts.is_noted(), result) {
            (true, Err(error)) if goes_on_after(&error) => return Err(trap(TrapCode::Interrupt)),
            (true, Ok(())) => return Err(trap(TrapCode::Interrupt)),
            (_, Err(error)) => error,
            (false, Ok(())) => return Ok(None),
        };
        match throw::throw_error(&*activation, &mut *store, error) {
            Ok(Thrown::Caught(landing)) => Ok(Some(landing)),
            Ok(Thrown::Trap(code)) => Err(trap(code)),
            Ok(Thrown::Uncaught(exception)) => Err(exception.into()),
            Err(mut error) => {
                error.set_backtrace(backtrace);
                Err(error)
            }
        }
    }
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
    suspends: Suspends,
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
        let _suspendable = Suspendable::begin(store, suspends);
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
    // There may be as many frames as fit into a stack, and many instances.
    let codes = store.instances.iter().zip(1..);
    let mut codes: Vec<(usize, u32)> =
        codes.map(|(instance, ordinal)| (instance.module.code_memory().start(), ordinal)).collect();
    codes.sort_unstable();
    // The first instance stands for all that have its code.
    codes.dedup_by_key(|(start, _)| *start);
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
        let behind = codes.partition_point(|(start, _)| *start <= return_address);
        let found = behind.checked_sub(1).and_then(|index| {
            let ordinal = codes[index].1;
            let code = store.instance(ordinal).module.code_memory();
            Some((ordinal, code.offset_of(return_address)?))
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
