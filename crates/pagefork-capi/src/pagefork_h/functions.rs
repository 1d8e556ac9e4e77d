//! Functions with values of `pagefork.h` and with cells; globals with such values; exports.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use pagefork::{Caller, ForeignFunction, Func, Result, ValRaw};

use crate::base::border::given;
use crate::base::c_box::CBox;
use crate::base::guard::calling_sixth;
use crate::objects::callback::{self, pagefork_caller_t, pagefork_func_callback_t, raised};
use crate::objects::fallible::{OutCBox, elements, fallible, make, outcome_in, places, text};
use crate::objects::host_functions::{Place, define};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreCell};
use crate::objects::types::{kind, wasm_externtype_t};
use crate::objects::value::{CValue, pagefork_val_t};

/// What is null, if it is.
const FUNCTION: &str = "function";

/// A C function on cells.
pub(super) type pagefork_raw_callback_t =
    extern "C-unwind" fn(*const pagefork_caller_t, *mut ValRaw) -> Option<CBox<wasm_ref_t>>;

/// A C function on cells, and what calls it where guests do not.
pub(super) fn on_cells(
    callback: pagefork_raw_callback_t,
    env: HostInfo,
) -> (
    impl Fn(Caller<'_, HostData>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
    ForeignFunction<HostData>,
) {
    // SAFETY: by the header's word it is such a function, is there as long as what it was made with, and returns.
    let foreign = unsafe { ForeignFunction::on_cells(callback as *const (), env.data()) };
    type Guarded = extern "C" fn(
        *const pagefork_caller_t,
        *mut ValRaw,
        usize,
        usize,
        usize,
        pagefork_raw_callback_t,
    ) -> Option<CBox<wasm_ref_t>>;
    // SAFETY: the function takes the first two, and returns the same.
    let guarded = unsafe { calling_sixth::<Guarded>() };
    let function = move |mut caller: Caller<'_, HostData>, cells: &mut [ValRaw]| {
        let trap = StoreCell::with_caller(&mut caller, env.data(), |_, caller| {
            guarded(caller, cells.as_mut_ptr(), 0, 0, 0, callback)
        })?;
        trap.map_or(Ok(()), |trap| Err(raised(&trap)))
    };
    (function, foreign)
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_func_call(
    func: Option<&wasm_ref_t>,
    args: *const pagefork_val_t,
    arg_count: usize,
    results: *mut pagefork_val_t,
    result_count: usize,
) -> Option<CBox<wasm_ref_t>> {
    let store = given(func, FUNCTION).and_then(|func| func.store());
    outcome_in(store, move |store| {
        let (func, shape) = given(func, FUNCTION)?.func()?;
        let args = elements(args, arg_count)?;
        // A copy: the object may be deleted during the call.
        callback::call(store, &{ *func }, shape, args, places(results, result_count)?)
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_func_call_raw(
    func: Option<&wasm_ref_t>,
    cells: *mut ValRaw,
    count: usize,
) -> Option<CBox<wasm_ref_t>> {
    let store = given(func, FUNCTION).and_then(|func| func.store());
    outcome_in(store, move |store| {
        let func = *given(func, FUNCTION)?.bare_func()?;
        given((!cells.is_null() || count == 0).then_some(()), "list of cells")?;
        let mut context = store.any_context()?;
        let cells = std::ptr::slice_from_raw_parts_mut(cells, count);
        // SAFETY: the header says that the cells begin with values of the parameters' types.
        unsafe { func.call_unchecked(&mut context, cells) }
    })
}

fallible! {
    fn pagefork_func_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_func_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        let env = HostInfo::new(env, finalizer);
        make(out, || {
            let (store, ty) = (given(store, "store")?, given(ty, "type")?.func()?.clone());
            let callback = (given(callback, FUNCTION)?, env);
            let func = define(callback, Place::Store(&store.0), ty)?;
            store.0.own_func(given(func, FUNCTION)?)
        })
    }

    fn pagefork_func_new_raw(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_raw_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        let env = HostInfo::new(env, finalizer);
        make(out, || {
            let (store, ty) = (given(store, "store")?, given(ty, "type")?.func()?.clone());
            let (function, foreign) = on_cells(given(callback, FUNCTION)?, env);
            // SAFETY: the header says that the callback leaves values of the results' types.
            let func = unsafe { Func::new_foreign(&mut store.0.context()?, ty, function, foreign) };
            store.0.own_func(func)
        })
    }

    fn pagefork_global_get(
        global: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<pagefork_val_t>>,
    ) {
        let out = given(out, "value")?.write(pagefork_val_t::zero(kind::I32));
        let global = given(global, "global")?;
        let store = global.store()?;
        let value = global.global()?.get(&mut store.context()?);
        *out = pagefork_val_t::of_val(value, store)?;
        Ok(())
    }

    fn pagefork_global_set(global: Option<&wasm_ref_t>, value: Option<&pagefork_val_t>) {
        let (global, value) = (given(global, "global")?, given(value, "value")?);
        let (store, own) = (global.store()?, global.global()?);
        let ty = own.ty(&store.context()?);
        let value = value.to_val(ty.content, store)?;
        own.set(&mut store.context()?, value)
    }

    fn pagefork_instance_export(
        instance: Option<&wasm_ref_t>,
        name: *const c_char,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let instance = given(instance, "instance")?;
            let (store, name) = (instance.store()?, text(name, "name")?);
            let export = instance.instance()?.get_export(&mut store.context()?, name);
            store.own_extern(export.ok_or_else(|| no_export(name))?)
        })
    }

    fn pagefork_caller_export(
        caller: Option<&pagefork_caller_t>,
        name: *const c_char,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let (store, name) = (given(caller, "caller")?.store(), text(name, "name")?);
            let instance = given(store.0.caller()?, "instance that has called")?;
            let export = instance.get_export(&mut store.0.context()?, name);
            store.0.own_extern(export.ok_or_else(|| no_export(name))?)
        })
    }
}

/// An instance or module exports nothing by this name.
pub(super) fn no_export(name: &str) -> pagefork::UsageError {
    pagefork::UsageError::NoExport { kind: "thing", name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use pagefork::{Config, Engine, Instance, Module, ResetKind, StrategyConfig, UsageError};
    use pagefork_pages::inject::fail_from;

    use super::*;
    use crate::objects::object::Object;
    use crate::objects::store::StoreRef;

    type Made = MaybeUninit<Option<CBox<wasm_ref_t>>>;

    /// The memory that an instance exports.
    fn memory_of(instance: &wasm_ref_t) -> Result<CBox<wasm_ref_t>> {
        let mut made = Made::uninit();
        match pagefork_instance_export(Some(instance), c"memory".as_ptr(), Some(&mut made)) {
            // SAFETY: its place is written in any case.
            None => Ok(unsafe { made.assume_init() }.expect("it has not failed")),
            Some(error) => Err(raised(&error)),
        }
    }

    #[test]
    fn looks_at_a_store_whose_reset_has_failed_say_so_until_another_one_succeeds() {
        let strategies = StrategyConfig { reset: ResetKind::Remap, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#).unwrap();
        let store = StoreRef::new(&engine);
        let instance = Instance::new(&mut store.context().unwrap(), &module, &[]).unwrap();
        let instance = store.own(Object::Instance(instance));
        memory_of(&instance).unwrap();

        let data = || store.data();
        let reset = |store: &mut pagefork::Store<HostData>| store.reset(data()).map(drop);
        fail_from(0, libc::ENOMEM, || store.with_store(reset)).value.unwrap_err();
        for _ in 0..2 {
            let error = memory_of(&instance).map(drop).unwrap_err();
            assert_eq!(error.to_string(), UsageError::ResetIncomplete.to_string());
        }
        store.with_store(reset).unwrap();
        memory_of(&instance).unwrap();
    }
}
