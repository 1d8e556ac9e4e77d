//! What C attaches to objects, and the function that is called when it is no longer needed.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A function of C's that is called when something of C's is no longer needed.
pub(crate) type Finalizer = extern "C-unwind" fn(*mut c_void);

/// Something of C's, with what is called when it is no longer needed.
pub(crate) struct HostInfo {
    data: *mut c_void,
    finalizer: Option<Finalizer>,
}

// SAFETY: the header says that what is attached may be used wherever its object is.
unsafe impl Send for HostInfo {}

// SAFETY: the pointer is only handed out, and the finalizer called once, by the last owner.
unsafe impl Sync for HostInfo {}

impl HostInfo {
    /// Something to attach.
    pub(crate) fn new(data: *mut c_void, finalizer: Option<Finalizer>) -> Self {
        Self { data, finalizer }
    }

    /// What C attached.
    pub(crate) fn data(&self) -> *mut c_void {
        self.data
    }
}

impl Drop for HostInfo {
    fn drop(&mut self) {
        if let Some(finalizer) = self.finalizer.take() {
            finalizer(self.data);
        }
    }
}

/// A place for what is attached to an object that many share.
#[derive(Default)]
pub(crate) struct InfoPlace(Mutex<Option<HostInfo>>);

impl InfoPlace {
    /// What is attached, or null.
    pub(crate) fn get(&self) -> *mut c_void {
        let info = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        info.as_ref().map_or(std::ptr::null_mut(), HostInfo::data)
    }

    /// Attaches nothing; what was there is finalized.
    pub(crate) fn take(&mut self) {
        let old = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        drop(old);
    }

    /// Attaches something else; what was there is finalized.
    pub(crate) fn set(&self, info: HostInfo) {
        let old = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(info);
        drop(old);
    }
}

impl fmt::Debug for InfoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InfoPlace").finish_non_exhaustive()
    }
}
