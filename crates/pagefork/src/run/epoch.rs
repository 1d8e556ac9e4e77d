//! What happens when a guest has come to its store's deadline in epochs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagefork_layout::trap::TrapCode;

use crate::run::backtrace::AT_INTERRUPTION_POINT;
use crate::run::services::Stop;
use crate::run::suspend;
use crate::store::activation::Activation;
use crate::store::epoch::UpdateDeadline;

/// Asks the embedder's callback whether the guest goes on.
///
/// # Errors
/// Ends the guest.
///
/// # Safety
/// The activation's store is valid, and its guest waits at an interruption point.
#[cold]
pub(crate) unsafe fn reached(activation: *mut Activation) -> Result<(), Stop> {
    // SAFETY: by this function's contract the store is valid, and nothing else uses it while its
    // guest waits; no borrow of it is alive while the callback runs.
    unsafe {
        let store = (*activation).store;
        // The callback may enter guests and look at frames.
        (*activation).guest_sp |= AT_INTERRUPTION_POINT;
        let Some(mut callback) = (*store).epochs.callback.take() else {
            return Err(TrapCode::Interrupt.into());
        };
        // A panic must not cross the guest's frames, which no unwinder knows.
        let answer = catch_unwind(AssertUnwindSafe(|| callback(store)));
        (*store).epochs.callback = Some(callback);
        match answer.map_err(Stop::Panic)?.map_err(Stop::Error)? {
            UpdateDeadline::Continue(ticks) => (*store).set_epoch_deadline(ticks),
            UpdateDeadline::Yield(ticks) => {
                (*store).set_epoch_deadline(ticks);
                suspend::check_yields(&*activation).map_err(|error| Stop::Error(error.into()))?;
                suspend::request_yield(&mut *store);
            }
            UpdateDeadline::Interrupt => return Err(TrapCode::Interrupt.into()),
        }
        // What the callback did may have.
        match ((*store).is_broken(), (*store).interrupts.is_noted()) {
            (true, _) => Err((*store).broken_by().into()),
            (_, true) => Err(TrapCode::Interrupt.into()),
            _ => Ok(()),
        }
    }
}
