//! Fresh instances in stores of their own.

use std::borrow::Borrow;

use pagefork::{Instance, Result, Store, StoreLimits};

use crate::base::border::{attempt, exported, given};
use crate::base::c_box::CBox;
use crate::objects::fallible::{OutBox, OutCBox, failed, fallible, make};
use crate::objects::linker::{pagefork_instance_pre_t, pagefork_linker_t};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreRef};
use crate::objects::wasi::{give_wasi, pagefork_wasi_config_t};
use crate::pagefork_h::configs::{check_reserved, pagefork_strategies_t};
use crate::pagefork_h::stores::pagefork_limits_t;

/// What is null, if it is.
pub(super) const PRE: &str = "prepared instance";

/// How an instance is spawned, as the header has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_spawn_t<'a> {
    tenant: u64,
    limits: Option<&'a pagefork_limits_t>,
    wasi: Option<&'a pagefork_wasi_config_t>,
    reserved: [u64; 4],
}

exported! {
    fn pagefork_instance_pre_delete(pre: Option<Box<pagefork_instance_pre_t>>) {
        drop(pre);
        Ok(())
    }
}

fallible! {
    fn pagefork_linker_instantiate_pre(
        linker: Option<&pagefork_linker_t>,
        module: Option<&wasm_ref_t>,
        out: OutBox<'_, pagefork_instance_pre_t>,
    ) {
        make(out, || {
            let module = &given(module, "module")?.module()?.module;
            let pre = given(linker, "linker")?.0.instantiate_pre(module)?;
            Ok(Box::new(pagefork_instance_pre_t { pre, program: None }))
        })
    }

    fn pagefork_instance_pre_with_strategies(
        pre: Option<&pagefork_instance_pre_t>,
        strategies: Option<&pagefork_strategies_t>,
        out: OutBox<'_, pagefork_instance_pre_t>,
    ) {
        make(out, || {
            let strategies = given(strategies, "strategies")?.to_config()?;
            let of = given(pre, PRE)?;
            let (pre, program) = (of.pre.with_strategies(strategies)?, of.program.clone());
            Ok(Box::new(pagefork_instance_pre_t { pre, program }))
        })
    }
}

/// How an instance is spawned, once that was checked. What WASI programs see is C's still, or a copy.
pub(super) struct Spawning<W> {
    pub(super) tenant: u64,
    pub(super) limits: Option<StoreLimits>,
    pub(super) wasi: Option<W>,
}

impl<'a> Spawning<&'a pagefork_wasi_config_t> {
    /// As C has it that says nothing.
    const PLAIN: Self = Self { tenant: 0, limits: None, wasi: None };

    /// # Errors
    /// If C has set something of a later version, or limits that are none.
    #[inline(always)]
    pub(super) fn of(how: Option<&pagefork_spawn_t<'a>>) -> Result<Self> {
        let Some(how) = how else {
            return Ok(Self::PLAIN);
        };
        check_reserved(&how.reserved)?;
        let limits = how.limits.map(|limits| limits.to_limits()).transpose()?;
        Ok(Self { tenant: how.tenant, limits, wasi: how.wasi })
    }

    /// The same, for as long as it is wanted.
    pub(super) fn to_owned(&self) -> Spawning<pagefork_wasi_config_t> {
        let Self { tenant, limits, wasi } = *self;
        Spawning { tenant, limits, wasi: wasi.cloned() }
    }
}

/// A cell for a store that is spawned in this way, and the data that the store is to have.
///
/// # Errors
/// If WASI programs cannot see what they are to.
#[inline(always)]
pub(super) fn cell_and_data<W: Borrow<pagefork_wasi_config_t>>(
    pre: &pagefork_instance_pre_t,
    how: &Spawning<W>,
) -> Result<(StoreRef, HostData)> {
    let cell = StoreRef::empty();
    let mut data = cell.data();
    if how.wasi.is_some() || pre.program.is_some() {
        give_wasi(&mut data, how.wasi.as_ref().map(W::borrow), pre.program.as_ref())?;
    }
    Ok((cell, data))
}

/// A store of its own with an instance. `prepare` is told of the store while it is empty.
///
/// # Errors
/// As [`pagefork::InstancePre::spawn_limited`]; if WASI programs cannot see what they are to.
#[inline(always)]
pub(super) fn spawn_store<W: Borrow<pagefork_wasi_config_t>>(
    pre: &pagefork_instance_pre_t,
    how: &Spawning<W>,
    prepare: impl FnOnce(&StoreRef),
) -> Result<(StoreRef, Instance)> {
    let (store, data) = cell_and_data(pre, how)?;
    prepare(&store);
    let (own, instance) = match &how.limits {
        Some(limits) => spawn_limited(pre, how.tenant, data, limits)?,
        None => pre.pre.spawn_for(how.tenant, data)?,
    };
    store.fill(own);
    Ok((store, instance))
}

/// Apart, since few stores are spawned so.
#[inline(never)]
fn spawn_limited(
    pre: &pagefork_instance_pre_t,
    tenant: u64,
    data: HostData,
    limits: &StoreLimits,
) -> Result<(Store<HostData>, Instance)> {
    pre.pre.spawn_limited(tenant, data, *limits, |_| ())
}

/// As [`spawn_store`], if C has said how.
///
/// # Errors
/// As [`spawn_store`]; if C has set something of a later version.
#[inline(never)]
fn spawn_as(
    pre: &pagefork_instance_pre_t,
    how: &pagefork_spawn_t<'_>,
) -> Result<(StoreRef, Instance)> {
    spawn_store(pre, &Spawning::of(Some(how))?, |_| ())
}

/// As [`spawn_store`], with an object of the instance.
///
/// # Errors
/// As [`spawn_store`]; if C has set something of a later version.
#[inline(always)]
pub(super) fn spawn(
    pre: &pagefork_instance_pre_t,
    how: Option<&pagefork_spawn_t<'_>>,
) -> Result<(StoreRef, CBox<wasm_ref_t>)> {
    let (store, instance) = match how {
        None => spawn_store(pre, &Spawning::PLAIN, |_| ())?,
        Some(how) => spawn_as(pre, how)?,
    };
    let instance = wasm_ref_t::new(&store, Object::Instance(instance));
    Ok((store, instance))
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_instance_pre_spawn(
    pre: Option<&pagefork_instance_pre_t>,
    how: Option<&pagefork_spawn_t<'_>>,
    store_out: OutCBox<'_, wasm_store_t>,
    out: OutCBox<'_, wasm_ref_t>,
) -> Option<CBox<wasm_ref_t>> {
    let spawned = attempt(|| {
        let out = given(out, "place for the instance")?.write(None);
        let store_out = given(store_out, "place for the store")?.write(None);
        let (store, instance) = spawn(given(pre, PRE)?, how)?;
        *out = Some(instance);
        *store_out = Some(store.into_handle());
        Ok(())
    });
    spawned.map_or_else(|error| failed(None, error), |()| None)
}
