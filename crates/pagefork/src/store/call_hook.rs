//! What of the embedder's is told when guests are entered and left.

use crate::base::error::Result;
use crate::store::group::StoreGroup;

/// Which way goes what runs, between a store's guests and the host: see
/// [`Store::call_hook`](crate::Store::call_hook).
///
/// # Examples
///
/// ```
/// use pagefork::CallHook;
///
/// assert!(CallHook::CallingWasm.exiting_host() && CallHook::CallingHost.entering_host());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallHook {
    /// The host calls a function of a guest.
    CallingWasm,
    /// A function of a guest returns to the host, or ends by a trap or an error.
    ReturningFromWasm,
    /// A guest calls a function of the host.
    CallingHost,
    /// A function of the host returns to the guest, or fails.
    ReturningFromHost,
}

impl CallHook {
    /// Whether host code runs next.
    ///
    /// # Examples
    ///
    /// See [`CallHook`].
    pub fn entering_host(&self) -> bool {
        matches!(self, Self::ReturningFromWasm | Self::CallingHost)
    }

    /// Whether a guest runs next.
    ///
    /// # Examples
    ///
    /// See [`CallHook`].
    pub fn exiting_host(&self) -> bool {
        !self.entering_host()
    }
}

/// What is called then.
///
/// # Safety
/// Called with a store whose data has the type that the closure was made for, exclusively the
/// caller's, with the provenance of the whole store.
pub(crate) type HookCallback = dyn FnMut(*mut StoreGroup, CallHook) -> Result<()> + Send + Sync;

/// A bit of the number by which guests call a host function: the hook is to be told. So those
/// that have none test nothing.
pub(crate) const HOOKED: u32 = 1 << 30;

impl StoreGroup {
    /// Has guests that are entered and host functions that they call tell this hook, or none.
    pub(crate) fn set_call_hook(&mut self, hook: Option<Box<HookCallback>>) {
        self.is_hooked = hook.is_some();
        self.call_hook = hook;
        self.renew_function_imports();
        self.update_due();
    }
}
