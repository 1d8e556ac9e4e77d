//! Exports that are called in a fresh instance each time.

use std::ffi::c_void;

use pagefork::{RegisterExport, RegisterResult, RegisterValues, Result};

use crate::base::border::BorderError;
use crate::objects::host_info::HostInfo;
use crate::objects::linker::pagefork_instance_pre_t;
use crate::objects::store::StoreRef;
use crate::objects::wasi::pagefork_wasi_config_t;
use crate::pagefork_h::spawn::{Spawning, spawn_store};

/// An export of whatever is spawned next.
pub(super) struct FreshExport {
    pre: pagefork_instance_pre_t,
    how: Spawning<pagefork_wasi_config_t>,
    /// What is attached to each store, or null; C's still when the store goes.
    data: *mut c_void,
    export: RegisterExport,
}

impl FreshExport {
    /// An export of the instances that `pre` spawns in this way.
    ///
    /// # Errors
    /// If the export is one of another module.
    pub(super) fn new(
        pre: &pagefork_instance_pre_t,
        how: &Spawning<&pagefork_wasi_config_t>,
        data: *mut c_void,
        export: RegisterExport,
    ) -> Result<Self> {
        if !export.is_of(pre.pre.module()) {
            return Err(BorderError::Unfit("the export is one of another module".into()).into());
        }
        Ok(Self { pre: pre.clone(), how: how.to_owned(), data, export })
    }

    /// Calls the export of a fresh instance. `kept` has its store if the call fails, for those who
    /// ask about its error. The result goes to a place of its own: with the outcome it would be copied by 16 bytes
    /// right after it was written by 8, for which a processor waits.
    ///
    /// # Errors
    /// If no instance can be had; else what ended the call.
    #[inline(never)]
    pub(super) fn call(
        &self,
        kept: &mut Option<StoreRef>,
        values: &RegisterValues,
        place: &mut RegisterResult,
    ) -> Result<()> {
        let (store, instance) = spawn_store(&self.pre, &self.how, |store| {
            if !self.data.is_null() {
                store.attach(HostInfo::new(self.data, None));
            }
        })?;
        match self.export.call(&mut store.any_context()?, &instance, values) {
            Ok(RegisterResult { int, float }) => {
                (place.int, place.float) = (int, float);
                // SAFETY: nobody but this function has the store, and its call has returned.
                unsafe { store.drop_unentered() };
                Ok(())
            }
            Err(error) => {
                *kept = Some(store);
                Err(error)
            }
        }
    }
}
