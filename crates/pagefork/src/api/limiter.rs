//! Limiters in the embedder's data.

use std::sync::Arc;

use crate::api::store::{Full, Store};
use crate::store::group::StoreGroup;
use crate::store::limiter::{AskLimiter, ResourceLimiter};

impl<T> Store<T> {
    /// Sets who decides how much the store may use from now on, besides the
    /// [limits](Store::set_limits): a part of the embedder's data, which `limiter` finds. What
    /// the store uses already stays, and is not asked for.
    ///
    /// For an instance that is spawned, [`InstancePre::with_limiter`] sets it from the start.
    ///
    /// [`InstancePre::with_limiter`]: crate::InstancePre::with_limiter
    ///
    /// # Examples
    ///
    /// See [`ResourceLimiter`] and [`StoreLimits`](crate::StoreLimits).
    pub fn limiter(
        &mut self,
        limiter: impl (Fn(&mut T) -> &mut dyn ResourceLimiter) + Send + Sync + 'static,
    ) {
        self.set_limiter(ask_limiter(limiter));
    }

    /// Sets the limiter, which was made for data of type `T`.
    pub(crate) fn set_limiter(&mut self, limiter: Arc<AskLimiter>) {
        // SAFETY: the store is borrowed.
        unsafe { (*self.as_ptr()).limiter = Some(limiter) };
    }
}

/// A limiter of stores with data of type `T`.
pub(crate) fn ask_limiter<T: 'static>(
    limiter: impl (Fn(&mut T) -> &mut dyn ResourceLimiter) + Send + Sync + 'static,
) -> Arc<AskLimiter> {
    Arc::new(move |store: *mut StoreGroup, question: &mut dyn FnMut(&mut dyn ResourceLimiter)| {
        let full: *mut Full<T> = store.cast();
        // SAFETY: `AskLimiter` says that it is a whole store with a `T`, exclusively ours.
        question(limiter(unsafe { &mut (*full).data }));
    })
}
