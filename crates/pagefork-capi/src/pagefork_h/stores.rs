//! Limits, times, fuel and interrupts of stores, and resetting them.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::Duration;

use pagefork::{InterruptHandle, Result, StoreLimits};

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::objects::fallible::{OutBox, fallible, make, outcome_in};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::wasi::pagefork_wasi_config_t;
use crate::pagefork_h::configs::check_reserved;

/// What is null, if it is.
const STORE: &str = "store";

/// What a store may have; 0 stands for no limit.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_limits_t {
    memory_size: u64,
    memory_total: u64,
    table_elements: u64,
    instances: u64,
    memories: u64,
    tables: u64,
    trap_on_grow_failure: bool,
    reserved: [u64; 4],
}

impl pagefork_limits_t {
    /// What the runtime is told.
    ///
    /// # Errors
    /// If C has set something of a later version.
    pub(super) fn to_limits(self) -> Result<StoreLimits> {
        check_reserved(&self.reserved)?;
        let or_none = |limit: u64| match usize::try_from(limit) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        Ok(StoreLimits::new()
            .memory_size(or_none(self.memory_size))
            .memory_total(or_none(self.memory_total))
            .table_elements(or_none(self.table_elements))
            .instances(or_none(self.instances))
            .memories(or_none(self.memories))
            .tables(or_none(self.tables))
            .trap_on_grow_failure(self.trap_on_grow_failure))
    }
}

/// What interrupts a store's guests from any thread.
pub(super) struct pagefork_interrupt_t(InterruptHandle);

fallible! {
    fn pagefork_store_set_limits(
        store: Option<&wasm_store_t>,
        limits: Option<&pagefork_limits_t>,
    ) {
        let limits = limits.map_or_else(|| Ok(StoreLimits::new()), |limits| limits.to_limits())?;
        given(store, STORE)?.0.with_store(|store| {
            store.set_limits(limits);
            Ok(())
        })
    }

    fn pagefork_store_set_timeout(store: Option<&wasm_store_t>, nanoseconds: u64) {
        let timeout = (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds));
        given(store, STORE)?.0.with_store(|store| store.set_timeout(timeout))
    }

    fn pagefork_store_set_fuel(store: Option<&wasm_store_t>, fuel: u64) {
        given(store, STORE)?.0.any_context()?.set_fuel(fuel)
    }

    fn pagefork_store_fuel(store: Option<&wasm_store_t>, out: Option<&mut MaybeUninit<u64>>) {
        let out = given(out, "place for the fuel")?.write(0);
        *out = given(store, STORE)?.0.any_context()?.fuel()?;
        Ok(())
    }

    fn pagefork_store_set_epoch_deadline(store: Option<&wasm_store_t>, ticks: u64) {
        given(store, STORE)?.0.with_store(|store| {
            // Without interruption a deadline would be a panic.
            store.interrupt_handle()?;
            store.set_epoch_deadline(ticks);
            Ok(())
        })
    }

    fn pagefork_store_interrupt_handle(
        store: Option<&wasm_store_t>,
        out: OutBox<'_, pagefork_interrupt_t>,
    ) {
        make(out, || {
            let handle = given(store, STORE)?.0.any_context()?.interrupt_handle()?;
            Ok(Box::new(pagefork_interrupt_t(handle)))
        })
    }
}

exported! {
    fn pagefork_interrupt_guests(handle: Option<&pagefork_interrupt_t>) {
        given(handle, "interrupt handle")?.0.interrupt();
        Ok(())
    }

    fn pagefork_interrupt_suspend(handle: Option<&pagefork_interrupt_t>) {
        given(handle, "interrupt handle")?.0.suspend();
        Ok(())
    }

    fn pagefork_interrupt_delete(handle: Option<Box<pagefork_interrupt_t>>) {
        drop(handle);
        Ok(())
    }

    fn pagefork_store_collect(store: Option<&wasm_store_t>) -> usize {
        given(store, STORE)?.0.collect()
    }

    fn pagefork_store_set_data(
        store: Option<&wasm_store_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(store, STORE)?.0.attach(info);
        Ok(())
    }

    fn pagefork_store_data(store: Option<&wasm_store_t>) -> *mut c_void {
        Ok(given(store, STORE)?.0.attached())
    }

    fn pagefork_store_copy(store: Option<&wasm_store_t>) -> Option<CBox<wasm_store_t>> {
        Ok(Some(given(store, STORE)?.0.clone().into_handle()))
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_reset(
    store: Option<&wasm_store_t>,
    wasi: Option<&pagefork_wasi_config_t>,
) -> Option<CBox<wasm_ref_t>> {
    outcome_in(given(store, STORE).map(|store| &store.0), |store| {
        // What is looked at first: nothing is forgotten if it cannot be reset now.
        store.with_store(|_| Ok(()))?;
        let mut data = store.data();
        if let Some(wasi) = wasi {
            wasi.give_to(&mut data)?;
        }
        store.forget_references();
        store.forget_infos();
        store.with_store(|store| store.reset(data).map(drop))
    })
}
