//! How direct host calls end that do not just go on.

use crate::base::cell::Cell;
use crate::base::error::Error;
use crate::run::suspend;
use crate::store::activation::Activation;

use super::{HostAnswer, after_host_function};

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
        let answer = HostAnswer::suspend_before(activation, function, &args()?);
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
