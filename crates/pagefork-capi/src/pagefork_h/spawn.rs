//! Fresh instances in stores of their own.

use pagefork::{Result, StoreLimits};

use crate::base::border::{attempt, exported, given};
use crate::objects::fallible::{OutBox, failed, fallible, make};
use crate::objects::linker::{pagefork_instance_pre_t, pagefork_linker_t};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::StoreRef;
use crate::objects::wasi::pagefork_wasi_config_t;
use crate::pagefork_h::configs::pagefork_strategies_t;
use crate::pagefork_h::stores::pagefork_limits_t;

/// What is null, if it is.
const PRE: &str = "prepared instance";

/// How an instance is spawned, as the header has it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct pagefork_spawn_t<'a> {
    tenant: u64,
    limits: Option<&'a pagefork_limits_t>,
    wasi: Option<&'a pagefork_wasi_config_t>,
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
            Ok(Box::new(pagefork_instance_pre_t(pre)))
        })
    }

    fn pagefork_instance_pre_with_strategies(
        pre: Option<&pagefork_instance_pre_t>,
        strategies: Option<&pagefork_strategies_t>,
        out: OutBox<'_, pagefork_instance_pre_t>,
    ) {
        make(out, || {
            let strategies = given(strategies, "strategies")?.to_config()?;
            let pre = given(pre, PRE)?.0.with_strategies(strategies)?;
            Ok(Box::new(pagefork_instance_pre_t(pre)))
        })
    }
}

/// An instance in the store of a new cell.
fn spawn(
    store: &StoreRef,
    pre: &pagefork_instance_pre_t,
    how: pagefork_spawn_t<'_>,
) -> Result<Box<wasm_ref_t>> {
    let mut data = store.data();
    if let Some(wasi) = how.wasi {
        wasi.give_to(&mut data)?;
    }
    let (own, instance) = match how.limits {
        Some(limits) => {
            let limits: StoreLimits = limits.to_limits();
            pre.0.spawn_limited(how.tenant, data, limits, |_| ())?
        }
        None => pre.0.spawn_for(how.tenant, data)?,
    };
    store.fill(own);
    Ok(store.own(Object::Instance(instance)))
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_instance_pre_spawn(
    pre: Option<&pagefork_instance_pre_t>,
    how: Option<&pagefork_spawn_t<'_>>,
    store_out: OutBox<'_, wasm_store_t>,
    out: OutBox<'_, wasm_ref_t>,
) -> Option<Box<wasm_ref_t>> {
    let spawned = attempt(|| {
        let out = given(out, "place for the instance")?.write(None);
        let store_out = given(store_out, "place for the store")?.write(None);
        let pre = given(pre, PRE)?;
        let store = StoreRef::empty(pre.0.module().engine());
        *out = Some(spawn(&store, pre, how.copied().unwrap_or_default())?);
        *store_out = Some(Box::new(wasm_store_t(store)));
        Ok(())
    });
    spawned.map_or_else(|error| failed(None, error), |()| None)
}
