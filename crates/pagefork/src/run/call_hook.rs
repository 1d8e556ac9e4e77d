//! Telling the embedder's hook when guests are entered and left.
//!
//! # Safety
//!
//! The hook has the store and may call guests. So all functions here take the store by a pointer
//! with the provenance of the whole, which is exclusively the caller's, and keep what lies in the
//! cells of a call.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::slice;

use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::base::trap::Trap;
use crate::run::suspend;
use crate::store::call_hook::CallHook;
use crate::store::frame::Target;
use crate::store::group::StoreGroup;
use crate::store::host_func::HostFunc;

/// Calls a guest, as `enter` does.
///
/// # Errors
/// What `enter` or the hook fails with; the hook's error comes first.
///
/// # Safety
/// As of this module; `target` is a function of the store.
#[cold]
pub(crate) unsafe fn around_guest<R>(
    store: *mut StoreGroup,
    target: &Target,
    enter: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // SAFETY: by this function's contract the store is ours, and the cells are those of one of
    // its instances.
    unsafe {
        let count = (*store).instance(target.ordinal).module.layout().link_parts.cell_count;
        let cells = (std::ptr::with_exposed_provenance_mut(target.cells), count as usize);
        tell(store, CallHook::CallingWasm, cells)?;
        if (*store).is_broken() {
            // By the hook, which has ignored it.
            return Err(Trap::without_backtrace((*store).broken_by()).into());
        }
        let result = enter();
        tell(store, CallHook::ReturningFromWasm, cells)?;
        result
    }
}

/// Goes on with a suspended guest, which `enter` makes the store forget: until then the hook cannot
/// call guests, which would use its stack. If this fails the guest is given up.
///
/// # Errors
/// As of [`around_guest`].
///
/// # Panics
/// If the hook panics, or a host function.
///
/// # Safety
/// As of [`around_guest`]; the store has a suspended guest.
#[cold]
pub(crate) unsafe fn around_suspended<R>(
    store: *mut StoreGroup,
    target: &Target,
    enter: impl FnOnce() -> Result<R>,
) -> Result<R> {
    // SAFETY: by this function's contract, which is that of `around_guest`.
    let result = catch_unwind(AssertUnwindSafe(|| unsafe { around_guest(store, target, enter) }));
    if !matches!(result, Ok(Ok(_))) {
        // It failed before the guest went on, or after it was suspended again.
        // SAFETY: by this function's contract the store is ours.
        suspend::abandon(unsafe { &mut *store });
    }
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

/// Calls a host function for a guest.
///
/// # Errors
/// What the function or the hook fails with; the hook's error comes first.
///
/// # Safety
/// As of this module; and as of [`HostCall`](crate::store::host_func::HostCall).
pub(crate) unsafe fn around_host_function(
    store: *mut StoreGroup,
    function: &HostFunc,
    cells: *mut Cell,
    base: usize,
) -> Result<()> {
    let count = function.ty.params.len().max(function.ty.results.len());
    // SAFETY: by this function's contract the store is ours, and there are as many cells.
    unsafe {
        tell(store, CallHook::CallingHost, (cells, count))?;
        let result = (function.call)(store, cells, base);
        tell(store, CallHook::ReturningFromHost, (cells, count))?;
        result
    }
}

/// Tells the hook, unless it runs already.
///
/// # Safety
/// As of this module; there are as many cells.
unsafe fn tell(
    store: *mut StoreGroup,
    what: CallHook,
    (cells, count): (*mut Cell, usize),
) -> Result<()> {
    // SAFETY: by this function's contract the store is ours, and no borrow of it lives while
    // the hook runs; there are as many cells.
    unsafe {
        let Some(mut hook) = (*store).call_hook.take() else { return Ok(()) };
        let values = slice::from_raw_parts(cells, count).to_vec();
        let result = catch_unwind(AssertUnwindSafe(|| hook(store, what)));
        (*store).call_hook = Some(hook);
        cells.copy_from_nonoverlapping(values.as_ptr(), count);
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
}
