//! Host functions that a suspended guest waits for.

use std::task::{Context, Poll};

use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::store::group::StoreGroup;

/// A call of an asynchronous host function that has begun.
///
/// While it has not ended it may use the store at any time that it is polled, and nothing else
/// may in between.
pub(crate) trait PendingCall: Send {
    /// Goes on. Once it is ready, its results are in `cells`, and it is not polled again.
    ///
    /// # Errors
    /// What the host function fails with.
    ///
    /// # Safety
    /// The store is the one whose guest called, exclusively the caller's; `cells` has a cell for
    /// each result; and `base` is that of the instance that called.
    unsafe fn poll(
        &mut self,
        context: &mut Context<'_>,
        store: *mut StoreGroup,
        cells: *mut Cell,
        base: usize,
    ) -> Poll<Result<()>>;
}
