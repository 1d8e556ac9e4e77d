//! Functions: making them of C functions, and calling them.

use std::ffi::c_void;

use pagefork::Result;

use crate::base::border::{attempt, exported, given, note_error};
use crate::base::c_box::CBox;
use crate::objects::callback::{
    self, Callback, wasm_func_callback_t, wasm_func_callback_with_env_t, wasm_val_vec_t,
};
use crate::objects::host_functions::{Place, define};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::trap::TrapObject;
use crate::objects::types::wasm_externtype_t;
use crate::objects::value::wasm_val_t;

/// What is null, if it is.
const FUNCTION: &str = "function";

fn new(
    store: Option<&wasm_store_t>,
    ty: Option<&wasm_externtype_t>,
    callback: impl Callback<wasm_val_t>,
) -> Result<Option<CBox<wasm_ref_t>>> {
    let (store, ty) = (given(store, "store")?, given(ty, "type")?.func()?.clone());
    let func = define(callback, Place::Store(&store.0), ty)?;
    Ok(Some(store.0.own_func(given(func, FUNCTION)?)?))
}

exported! {
    fn wasm_func_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        callback: Option<wasm_func_callback_t>,
    ) -> Option<CBox<wasm_ref_t>> {
        new(store, ty, given(callback, FUNCTION)?)
    }

    fn wasm_func_new_with_env(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        callback: Option<wasm_func_callback_with_env_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) -> Option<CBox<wasm_ref_t>> {
        // The environment is ours from here on, also on failure.
        let env = HostInfo::new(env, finalizer);
        new(store, ty, (given(callback, FUNCTION)?, env))
    }

    fn wasm_func_type(func: Option<&wasm_ref_t>) -> Option<Box<wasm_externtype_t>> {
        let func = given(func, FUNCTION)?;
        func.func()?;
        Ok(Some(Box::new(func.external_type()?)))
    }

    fn wasm_func_param_arity(func: Option<&wasm_ref_t>) -> usize {
        let func = given(func, FUNCTION)?;
        Ok(func.store()?.shape_of(func.func()?.1).params.len())
    }

    fn wasm_func_result_arity(func: Option<&wasm_ref_t>) -> usize {
        let func = given(func, FUNCTION)?;
        Ok(func.store()?.shape_of(func.func()?.1).results.len())
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn wasm_func_call(
    func: Option<&wasm_ref_t>,
    args: Option<&wasm_val_vec_t>,
    results: Option<&mut wasm_val_vec_t>,
) -> Option<CBox<wasm_ref_t>> {
    let Some(object) = func else {
        // There is no store for a trap.
        note_error(given(func, FUNCTION).map(|_| ()).expect_err("it is null"));
        return without_store("the function is null");
    };
    // The object itself may be deleted during the call.
    let store = match object.store() {
        Ok(store) => store.keep(),
        Err(error) => return without_store(&error.to_string()),
    };
    let called = attempt(|| {
        let (func, shape) = object.func()?;
        let args: &[wasm_val_t] = match args {
            Some(args) => args.elements()?,
            None => &[],
        };
        let results = match results {
            Some(results) => results.places()?,
            None => &mut [],
        };
        callback::call(&store, func, shape, args, results)
    });
    match called {
        Ok(()) => None,
        Err(error) => Some(store.own(Object::Trap(TrapObject::of(error)))),
    }
}

/// A trap of no store.
#[cold]
fn without_store(message: &str) -> Option<CBox<wasm_ref_t>> {
    let trap = TrapObject::new(message.as_bytes(), Default::default());
    Some(wasm_ref_t::without_store(Object::Trap(trap)))
}
