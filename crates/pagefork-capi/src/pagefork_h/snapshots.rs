//! Snapshots of stores, and what is made of them.

use std::sync::Arc;

use pagefork::{Error, Result, Snapshot};
use pagefork_wasi::WasiState;

use crate::base::border::{attempt, exported, given};
use crate::objects::fallible::{OutBox, failed, fallible, make, outcome_in, places};
use crate::objects::linker::pagefork_instance_pre_t;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreRef};
use crate::objects::wasi::{give_wasi, pagefork_wasi_config_t};
use crate::pagefork_h::spawn::{pagefork_spawn_t, spawn};

/// What is null, if it is.
const SNAPSHOT: &str = "snapshot";
/// What is null, if it is.
const STORE: &str = "store";

/// What a store was, with what its WASI program had.
struct pagefork_snapshot_t {
    snapshot: Snapshot<HostData>,
    wasi: Option<Arc<WasiState>>,
}

impl pagefork_snapshot_t {
    /// What the store is now.
    ///
    /// # Errors
    /// As [`pagefork::Store::snapshot`] and [`pagefork_wasi::WasiCtx::save`].
    fn take(store: &StoreRef) -> Result<Self> {
        store.with_store(|store| {
            let wasi = store.data().present_wasi().map(|wasi| wasi.save().map_err(Error::new));
            let wasi = wasi.transpose()?.map(Arc::new);
            Ok(Self { snapshot: store.snapshot()?, wasi })
        })
    }

    fn instance_pre(&self) -> Result<pagefork_instance_pre_t> {
        let (pre, wasi) = (self.snapshot.instance_pre()?, self.wasi.clone());
        Ok(pagefork_instance_pre_t { pre, wasi })
    }
}

exported! {
    fn pagefork_snapshot_delete(snapshot: Option<Box<pagefork_snapshot_t>>) {
        drop(snapshot);
        Ok(())
    }
}

fallible! {
    fn pagefork_store_snapshot(
        store: Option<&wasm_store_t>,
        out: OutBox<'_, pagefork_snapshot_t>,
    ) {
        make(out, || Ok(Box::new(pagefork_snapshot_t::take(&given(store, STORE)?.0)?)))
    }

    fn pagefork_snapshot_instance_pre(
        snapshot: Option<&pagefork_snapshot_t>,
        out: OutBox<'_, pagefork_instance_pre_t>,
    ) {
        make(out, || Ok(Box::new(given(snapshot, SNAPSHOT)?.instance_pre()?)))
    }

    fn pagefork_store_counterpart(
        store: Option<&wasm_store_t>,
        of: Option<&wasm_ref_t>,
        out: OutBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let (store, of) = (&given(store, STORE)?.0, given(of, "object")?.external()?);
            let found = store.with_store(|store| store.counterpart(of))?;
            store.own_extern(found)
        })
    }

    fn pagefork_store_counterpart_instance(
        store: Option<&wasm_store_t>,
        of: Option<&wasm_ref_t>,
        out: OutBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let (store, of) = (&given(store, STORE)?.0, *given(of, "instance")?.instance()?);
            let found = store.with_store(|store| store.counterpart_instance(of))?;
            Ok(store.own(Object::Instance(found)))
        })
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_reset_to(
    store: Option<&wasm_store_t>,
    snapshot: Option<&pagefork_snapshot_t>,
    wasi: Option<&pagefork_wasi_config_t>,
) -> Option<Box<wasm_ref_t>> {
    outcome_in(given(store, STORE).map(|store| &store.0), |store| {
        let snapshot = given(snapshot, SNAPSHOT)?;
        let mut data = store.data();
        give_wasi(&mut data, wasi, snapshot.wasi.as_deref())?;
        // Nothing is forgotten if it cannot be reset.
        store.with_store(|store| store.reset_to(&snapshot.snapshot, data).map(drop))?;
        store.forget_references();
        store.forget_infos();
        Ok(())
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_fork(
    store: Option<&wasm_store_t>,
    how: Option<&pagefork_spawn_t<'_>>,
    stores: *mut Option<Box<wasm_store_t>>,
    count: usize,
) -> Option<Box<wasm_ref_t>> {
    let forked = attempt(|| {
        let places = places(stores, count)?;
        for place in &mut *places {
            place.write(None);
        }
        let pre = pagefork_snapshot_t::take(&given(store, STORE)?.0)?.instance_pre()?;
        let how = how.copied().unwrap_or_default();
        // All of them or none.
        let forks = (0..count).map(|_| Ok(spawn(&pre, how)?.0)).collect::<Result<Vec<_>>>()?;
        for (place, fork) in places.iter_mut().zip(forks) {
            place.write(Some(Box::new(wasm_store_t(fork))));
        }
        Ok(())
    });
    forked.map_or_else(|error| failed(None, error), |()| None)
}
