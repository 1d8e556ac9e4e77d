//! What copies and fills of guests call in stores that have absent pages.

use std::ffi::c_int;

use pagefork_layout::trap::TrapCode;

use super::x86_64;
use crate::store::activation::Activation;
use crate::store::frame::BulkThunks;

// SAFETY: they are defined in the assembly of `x86_64.rs`, and called by guests alone.
unsafe extern "C" {
    fn pagefork_memory_move();
    fn pagefork_memory_set();
    fn pagefork_memory_move_waiting();
    fn pagefork_memory_set_waiting();
}

/// Addresses of the thunks.
pub(super) fn thunks() -> BulkThunks {
    BulkThunks {
        plain: [
            pagefork_memory_move as *const () as usize,
            pagefork_memory_set as *const () as usize,
        ],
        waiting: [
            pagefork_memory_move_waiting as *const () as usize,
            pagefork_memory_set_waiting as *const () as usize,
        ],
    }
}

/// `memmove` for a guest whose store has absent pages: it waits for those.
///
/// # Safety
/// Called by the thunk alone: the activation's store is valid, both ranges are accessible but for
/// absent pages, and `frame` is the thunk's frame pointer.
pub(super) unsafe extern "C" fn move_waiting(
    to: *mut u8,
    from: *const u8,
    length: usize,
    activation: *mut Activation,
    frame: usize,
) {
    // SAFETY: by this function's contract.
    unsafe {
        let store = &mut *(*activation).store;
        if !store.wait_at(from.addr(), length) || !store.wait_at(to.addr(), length) {
            x86_64::leave_trapped(activation, TrapCode::PageAbsent, frame);
        }
        to.copy_from(from, length);
    }
}

/// `memset`, as [`move_waiting`].
///
/// # Safety
/// As of [`move_waiting`].
pub(super) unsafe extern "C" fn set_waiting(
    to: *mut u8,
    byte: c_int,
    length: usize,
    activation: *mut Activation,
    frame: usize,
) {
    // SAFETY: by this function's contract, which is that of `move_waiting`.
    unsafe {
        if !(*(*activation).store).wait_at(to.addr(), length) {
            x86_64::leave_trapped(activation, TrapCode::PageAbsent, frame);
        }
        to.write_bytes(byte as u8, length);
    }
}
