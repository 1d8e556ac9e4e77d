//! How direct host calls end that do not just go on.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::cell::Cell;
use crate::base::error::Error;
use crate::run::suspend;
use crate::store::activation::Activation;
use crate::store::frame::{DirectThunkSet, DirectThunks};
use crate::store::group::StoreGroup;

use super::{HostAnswer, after_host_function};

/// Kinds of results, as thunks for functions of C's say them.
pub(super) const NONE: u32 = 0;
pub(super) const I32: u32 = 1;
pub(super) const I64: u32 = 2;
pub(super) const F32: u32 = 3;
pub(super) const F64: u32 = 4;

unsafe extern "C" {
    fn pagefork_direct_none();
    fn pagefork_direct_i32();
    fn pagefork_direct_f32();
    fn pagefork_direct_f64();
    fn pagefork_direct_none_clear();
    fn pagefork_direct_i32_clear();
    fn pagefork_direct_i64_clear();
    fn pagefork_direct_f32_clear();
    fn pagefork_direct_f64_clear();
    fn pagefork_foreign_none();
    fn pagefork_foreign_i32();
    fn pagefork_foreign_i64();
    fn pagefork_foreign_f32();
    fn pagefork_foreign_f64();
    fn pagefork_cell_none();
    fn pagefork_cell_i32();
    fn pagefork_cell_i64();
    fn pagefork_cell_f32();
    fn pagefork_cell_f64();
    fn pagefork_cells_none();
    fn pagefork_cells_i32();
    fn pagefork_cells_i64();
    fn pagefork_cells_f32();
    fn pagefork_cells_f64();
}

/// Where the thunks for direct calls are.
pub(super) fn thunks() -> DirectThunks {
    DirectThunks {
        result: DirectThunkSet {
            none: pagefork_direct_none as *const () as usize,
            i32: pagefork_direct_i32 as *const () as usize,
            // Nothing is to be cleared.
            i64: pagefork_direct_none as *const () as usize,
            f32: pagefork_direct_f32 as *const () as usize,
            f64: pagefork_direct_f64 as *const () as usize,
        },
        all: DirectThunkSet {
            none: pagefork_direct_none_clear as *const () as usize,
            i32: pagefork_direct_i32_clear as *const () as usize,
            i64: pagefork_direct_i64_clear as *const () as usize,
            f32: pagefork_direct_f32_clear as *const () as usize,
            f64: pagefork_direct_f64_clear as *const () as usize,
        },
        foreign: DirectThunkSet {
            none: pagefork_foreign_none as *const () as usize,
            i32: pagefork_foreign_i32 as *const () as usize,
            i64: pagefork_foreign_i64 as *const () as usize,
            f32: pagefork_foreign_f32 as *const () as usize,
            f64: pagefork_foreign_f64 as *const () as usize,
        },
        cell: DirectThunkSet {
            none: pagefork_cell_none as *const () as usize,
            i32: pagefork_cell_i32 as *const () as usize,
            i64: pagefork_cell_i64 as *const () as usize,
            f32: pagefork_cell_f32 as *const () as usize,
            f64: pagefork_cell_f64 as *const () as usize,
        },
        cells: DirectThunkSet {
            none: pagefork_cells_none as *const () as usize,
            i32: pagefork_cells_i32 as *const () as usize,
            i64: pagefork_cells_i64 as *const () as usize,
            f32: pagefork_cells_f32 as *const () as usize,
            f64: pagefork_cells_f64 as *const () as usize,
        },
    }
}

/// What becomes of the guest after a direct call of a host function that asks to be called
/// later: the verdict for the thunk; `None` if that cannot be.
///
/// # Safety
/// As of [`after_direct_call`]; the function has these arguments.
#[cold]
pub(crate) unsafe fn put_direct_call_off(
    activation: *mut Activation,
    error: &Error,
    function: u32,
    args: impl FnOnce() -> Option<Vec<Cell>>,
) -> Option<u64> {
    // SAFETY: by this function's contract.
    unsafe {
        if !suspend::is_put_off(&*activation, error) {
            return None;
        }
        let args = args()?;
        // It is called anew, and fails with nothing that it has said now.
        drop((*(*activation).store).take_raised());
        let answer = HostAnswer::suspend_before(activation, function, &args);
        (*activation).direct_place = answer.place;
        Some(answer.verdict)
    }
}

/// What becomes of the guest after a direct host call: the verdict for the thunk.
///
/// # Safety
/// Called by shims alone: the activation's store is valid, and its guest waits in a host call,
/// which has these results if it did not fail.
#[cold]
pub(crate) unsafe fn after_direct_call(
    activation: *mut Activation,
    result: std::thread::Result<Result<(), Error>>,
    results: &[Cell],
) -> u64 {
    // SAFETY: by this function's contract, which is that of `after_host_function`.
    unsafe {
        let answer = after_host_function(activation, result, results);
        (*activation).direct_place = answer.place;
        answer.verdict
    }
}

/// What becomes of the guest after a function of C's: the verdict for the thunk, and the result's bits.
#[repr(C)]
pub(super) struct ForeignAnswer {
    verdict: u64,
    value: u64,
}

/// What becomes of the guest after a function of C's that it has called directly, if something is due.
///
/// # Safety
/// Called by the thunks alone: the activation's store is valid, and its guest waits in a call of a function
/// with a result of this kind, which is in one of the two registers.
pub(super) unsafe extern "C" fn after_foreign_call(
    activation: *mut Activation,
    int: u64,
    kind: u32,
    float: f64,
) -> ForeignAnswer {
    let value = match kind {
        I32 => int & u64::from(u32::MAX),
        F32 => float.to_bits() & u64::from(u32::MAX),
        F64 => float.to_bits(),
        _ => int,
    };
    let results = &[Cell::from_u64(value)][..usize::from(kind != NONE)];
    // SAFETY: by this function's contract.
    let verdict = unsafe { after_direct_call(activation, Ok(Ok(())), results) };
    ForeignAnswer { verdict, value }
}

/// What becomes of the guest after a function of C's on cells that it has called directly, if that has returned
/// an error or something is due: the verdict for the thunk.
///
/// # Safety
/// As of [`after_foreign_call`], of a function that has left its result in the first cell, and has returned this;
/// not 0, it is an error of such functions.
pub(super) unsafe extern "C" fn after_call_on_cells(
    activation: *mut Activation,
    cells: *const Cell,
    kind: u32,
    returned: usize,
) -> u64 {
    let outcome = || {
        // SAFETY: by this function's contract. What the error was may use the store where it goes, which is not
        // borrowed meanwhile.
        match unsafe { StoreGroup::error_of_foreign((*activation).store, returned) } {
            Some(error) => Err(error),
            None => Ok(()),
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(outcome));
    // SAFETY: by this function's contract: as many bytes are read as the function has written.
    unsafe {
        let value = match kind {
            _ if !matches!(outcome, Ok(Ok(()))) => 0,
            NONE => 0,
            I32 | F32 => u64::from(cells.cast::<u32>().read()),
            _ => cells.cast::<u64>().read(),
        };
        let results = &[Cell::from_u64(value)][..usize::from(kind != NONE)];
        after_direct_call(activation, outcome, results)
    }
}

/// The personality of the thunks that call functions of C's: an exception that one of them throws finds it
/// before anything is unwound, and ends here. Guests' frames, and what the host keeps of them, are no
/// exception's to pass.
pub(super) extern "C" fn end_unwinding(
    _: c_int,
    _: c_int,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    eprintln!(
        "pagefork: a function of C's that a guest has called threw an exception, or ended its thread; it must return"
    );
    std::process::abort()
}
