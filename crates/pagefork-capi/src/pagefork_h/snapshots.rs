//! Snapshots of stores, and what is made of them.

use std::any::Any;
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;

use pagefork::{Result, Snapshot};

use crate::base::border::{BorderError, attempt, exported, given};
use crate::base::c_box::CBox;
use crate::objects::callback::raised;
use crate::objects::fallible::{
    OutBox, OutCBox, failed, fallible, make, outcome_in, outcome_made, path, places,
};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::linker::pagefork_instance_pre_t;
use crate::objects::object::{ForeignObject, Object, wasm_ref_t, wasm_store_t};
use crate::objects::saved_program::SavedProgram;
use crate::objects::store::{HostData, KnownObject, StoreRef};
use crate::objects::wasi::{give_wasi, pagefork_wasi_config_t};
use crate::pagefork_h::spawn::{pagefork_spawn_t, spawn};

/// What is null, if it is.
pub(super) const SNAPSHOT: &str = "snapshot";
/// What is null, if it is.
pub(super) const PLACE: &str = "place for the files";
/// What is null, if it is.
const STORE: &str = "store";

/// What a store was, with what its WASI program had.
pub(super) struct pagefork_snapshot_t {
    pub(super) snapshot: Snapshot<HostData>,
    pub(super) program: Option<Arc<SavedProgram>>,
}

/// A C function that says what takes the place of an object that guests hold a reference to.
type KeepHook = extern "C-unwind" fn(
    *mut c_void,
    &wasm_ref_t,
    &mut Option<CBox<wasm_ref_t>>,
) -> Option<CBox<wasm_ref_t>>;

/// What a hook of C's has given for guests of any store to hold: both are ours.
///
/// # Errors
/// What the hook has failed with; if it has given nothing, or what is of one store.
pub(super) fn given_object(
    error: Option<CBox<wasm_ref_t>>,
    object: Option<CBox<wasm_ref_t>>,
) -> Result<Arc<dyn Any + Send + Sync>> {
    if let Some(error) = error {
        return Err(raised(&error));
    }
    match given(object, "object that the hook has given")?.object() {
        object @ (Object::Foreign(_) | Object::Module(_)) => {
            Ok(KnownObject::value_of(object.clone()))
        }
        other => Err(BorderError::Unfit(format!(
            "a {} means nothing in another store: give a foreign object or a module in its place",
            other.kind_name()
        ))
        .into()),
    }
}

impl pagefork_snapshot_t {
    /// What the store is now; the hook says what guests hold in others, and the files of a session
    /// go to the new directory `place`.
    ///
    /// # Errors
    /// As [`pagefork::Store::snapshot`] and [`SavedProgram::capture`].
    fn take(
        store: &StoreRef,
        hook: Option<(KeepHook, *mut c_void)>,
        place: Option<&Path>,
    ) -> Result<Self> {
        store.with_store(|store| {
            let wasi = store.data().present_wasi();
            let program = wasi.map(|wasi| SavedProgram::capture(wasi, place)).transpose()?;
            let program = program.map(Arc::new);
            let Some((hook, env)) = hook else {
                return Ok(Self { snapshot: store.snapshot()?, program });
            };
            let snapshot = store.snapshot_with(|value| {
                let object = KnownObject::of_value(value)?.clone();
                let mut out = None;
                let error = hook(env, &wasm_ref_t::without_store(object), &mut out);
                given_object(error, out)
            })?;
            Ok(Self { snapshot, program })
        })
    }

    fn instance_pre(&self) -> Result<pagefork_instance_pre_t> {
        let (pre, program) = (self.snapshot.instance_pre()?, self.program.clone());
        Ok(pagefork_instance_pre_t { pre, program })
    }
}

exported! {
    fn pagefork_snapshot_delete(snapshot: Option<Box<pagefork_snapshot_t>>) {
        drop(snapshot);
        Ok(())
    }

    fn pagefork_foreign_new(
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) -> Option<CBox<wasm_ref_t>> {
        let foreign = ForeignObject::with_info(HostInfo::new(data, finalizer));
        Ok(Some(wasm_ref_t::without_store(Object::Foreign(foreign))))
    }
}

fallible! {
    fn pagefork_store_snapshot(
        store: Option<&wasm_store_t>,
        out: OutBox<'_, pagefork_snapshot_t>,
    ) {
        make(out, || Ok(Box::new(pagefork_snapshot_t::take(&given(store, STORE)?.0, None, None)?)))
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
        out: OutCBox<'_, wasm_ref_t>,
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
        out: OutCBox<'_, wasm_ref_t>,
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
extern "C" fn pagefork_store_snapshot_with(
    store: Option<&wasm_store_t>,
    hook: Option<KeepHook>,
    env: *mut c_void,
    out: OutBox<'_, pagefork_snapshot_t>,
) -> Option<CBox<wasm_ref_t>> {
    outcome_made(given(store, STORE).map(|store| &store.0), out, |store| {
        let hook = given(hook, "hook")?;
        // What no guest holds is not asked for.
        store.collect()?;
        Ok(Box::new(pagefork_snapshot_t::take(store, Some((hook, env)), None)?))
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_snapshot_with_files(
    store: Option<&wasm_store_t>,
    place: *const c_char,
    hook: Option<KeepHook>,
    env: *mut c_void,
    out: OutBox<'_, pagefork_snapshot_t>,
) -> Option<CBox<wasm_ref_t>> {
    outcome_made(given(store, STORE).map(|store| &store.0), out, |store| {
        let place = path(place, PLACE)?;
        if hook.is_some() {
            // What no guest holds is not asked for.
            store.collect()?;
        }
        let hook = hook.map(|hook| (hook, env));
        Ok(Box::new(pagefork_snapshot_t::take(store, hook, Some(place))?))
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_store_reset_to(
    store: Option<&wasm_store_t>,
    snapshot: Option<&pagefork_snapshot_t>,
    wasi: Option<&pagefork_wasi_config_t>,
) -> Option<CBox<wasm_ref_t>> {
    outcome_in(given(store, STORE).map(|store| &store.0), |store| {
        let snapshot = given(snapshot, SNAPSHOT)?;
        store.with_store(|_| Ok(()))?;
        let mut data = store.data();
        give_wasi(&mut data, wasi, snapshot.program.as_ref())?;
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
    stores: *mut Option<CBox<wasm_store_t>>,
    count: usize,
) -> Option<CBox<wasm_ref_t>> {
    let forked = attempt(|| {
        let places = places(stores, count)?;
        for place in &mut *places {
            place.write(None);
        }
        let pre = pagefork_snapshot_t::take(&given(store, STORE)?.0, None, None)?.instance_pre()?;
        // All of them or none.
        let forks = (0..count).map(|_| Ok(spawn(&pre, how)?.0)).collect::<Result<Vec<_>>>()?;
        for (place, fork) in places.iter_mut().zip(forks) {
            place.write(Some(fork.into_handle()));
        }
        Ok(())
    });
    forked.map_or_else(|error| failed(None, error), |()| None)
}
