//! Exports that are called in a fresh instance each time.

use std::ffi::c_void;

use pagefork::{RegisterExport, RegisterResult, RegisterValues, Result, StoreLimits};

use crate::base::border::BorderError;
use crate::objects::host_info::HostInfo;
use crate::objects::linker::pagefork_instance_pre_t;
use crate::objects::store::StoreRef;
use crate::objects::wasi::pagefork_wasi_config_t;
use crate::pagefork_h::spawn::{Spawning, spawn_store};

/// An export of whatever is spawned next.
pub(super) struct FreshExport {
    pre: pagefork_instance_pre_t,
    tenant: u64,
    limits: Option<StoreLimits>,
    wasi: Option<pagefork_wasi_config_t>,
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
        Spawning { tenant, limits, wasi }: Spawning<'_>,
        data: *mut c_void,
        export: RegisterExport,
    ) -> Result<Self> {
        if !export.is_of(pre.pre.module()) {
            return Err(BorderError::Unfit("the export is one of another module".into()).into());
        }
        let (pre, wasi) = (pre.clone(), wasi.cloned());
        Ok(Self { pre, tenant, limits, wasi, data, export })
    }

    /// Calls the export of a fresh instance. `kept` has its store if the call fails, for those who
    /// ask about its error.
    ///
    /// # Errors
    /// If no instance can be had; else what ended the call.
    #[inline(always)]
    pub(super) fn call(
        &self,
        kept: &mut Option<StoreRef>,
        values: RegisterValues,
    ) -> Result<RegisterResult> {
        let Self { tenant, limits, data, .. } = *self;
        let how = Spawning { tenant, limits, wasi: self.wasi.as_ref() };
        let (store, instance) = spawn_store(&self.pre, how, |store| {
            if !data.is_null() {
                store.data.set(HostInfo::new(data, None));
            }
        })?;
        let mut context = store.context()?;
        let func = instance.get_register_export(&context, &self.export)?;
        let result = func.call(&mut context, values);
        if result.is_err() {
            *kept = Some(store);
        }
        result
    }
}
