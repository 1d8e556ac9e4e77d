//! Linkers: definitions by two names.

use std::ffi::{c_char, c_void};

use pagefork::Linker;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::objects::callback::pagefork_func_callback_t;
use crate::objects::engine::wasm_engine_t;
use crate::objects::fallible::{OutBox, OutCBox, fallible, make, outcome_made, text};
use crate::objects::host_functions::{Place, define};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::linker::pagefork_linker_t;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::types::wasm_externtype_t;
use crate::pagefork_h::functions::{on_cells, pagefork_raw_callback_t};
use crate::pagefork_h::registers::{AnyCFunction, RegisterFunction};

/// What is null, if it is.
const LINKER: &str = "linker";
/// What is null, if it is.
const MODULE: &str = "name of the module";
/// What is null, if it is.
const NAME: &str = "name";

exported! {
    fn pagefork_linker_delete(linker: Option<Box<pagefork_linker_t>>) {
        drop(linker);
        Ok(())
    }

    fn pagefork_linker_allow_shadowing(linker: Option<&mut pagefork_linker_t>, allow: bool) {
        given(linker, LINKER)?.0.allow_shadowing(allow);
        Ok(())
    }
}

fallible! {
    fn pagefork_linker_new(engine: Option<&wasm_engine_t>, out: OutBox<'_, pagefork_linker_t>) {
        make(out, || {
            Ok(Box::new(pagefork_linker_t(Linker::new(&given(engine, "engine")?.engine))))
        })
    }

    fn pagefork_linker_define(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        name: *const c_char,
        external: Option<&wasm_ref_t>,
    ) {
        let external = given(external, "extern")?;
        let context = &external.store()?.context()?;
        let linker = given(linker, LINKER)?;
        linker.check_engine(context.engine(), "store")?;
        let (linker, module, name) = (&mut linker.0, text(module, MODULE)?, text(name, NAME)?);
        linker.define(context, module, name, external.external()?).map(|_| ())
    }

    fn pagefork_linker_func(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        name: *const c_char,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_func_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        let env = HostInfo::new(env, finalizer);
        let (linker, ty) = (&mut given(linker, LINKER)?.0, given(ty, "type")?.func()?.clone());
        let place = Place::Linker(linker, text(module, MODULE)?, text(name, NAME)?);
        define((given(callback, "function")?, env), place, ty).map(|_| ())
    }

    fn pagefork_linker_func_raw(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        name: *const c_char,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_raw_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        let env = HostInfo::new(env, finalizer);
        let (linker, ty) = (&mut given(linker, LINKER)?.0, given(ty, "type")?.func()?.clone());
        let (module, name) = (text(module, MODULE)?, text(name, NAME)?);
        let (function, foreign) = on_cells(given(callback, "function")?, env);
        // SAFETY: the header says that the callback leaves values of the results' types.
        unsafe { linker.func_new_foreign(module, name, ty, function, foreign).map(|_| ()) }
    }

    fn pagefork_linker_func_wrap(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        name: *const c_char,
        signature: *const c_char,
        function: Option<RegisterFunction>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        let env = HostInfo::new(env, finalizer);
        let linker = &mut given(linker, LINKER)?.0;
        let (module, name) = (text(module, MODULE)?, text(name, NAME)?);
        match AnyCFunction::new(signature, function, env)? {
            AnyCFunction::Floats(ty, function) => {
                linker.func_new_with_registers(module, name, ty, function).map(|_| ())
            }
            AnyCFunction::Ints(ty, function) => {
                linker.func_new_with_registers(module, name, ty, function).map(|_| ())
            }
        }
    }

    fn pagefork_linker_wasi(linker: Option<&mut pagefork_linker_t>) {
        pagefork_wasi::add_to_linker(&mut given(linker, LINKER)?.0, |data| data.wasi())
    }

    fn pagefork_linker_memory_discard(linker: Option<&mut pagefork_linker_t>) {
        given(linker, LINKER)?.0.define_memory_discard().map(|_| ())
    }

    fn pagefork_linker_instance(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        instance: Option<&wasm_ref_t>,
    ) {
        let instance = given(instance, "instance")?;
        let context = &mut instance.store()?.context()?;
        let linker = given(linker, LINKER)?;
        linker.check_engine(context.engine(), "store")?;
        let (linker, module) = (&mut linker.0, text(module, MODULE)?);
        linker.instance(context, module, *instance.instance()?).map(|_| ())
    }

    fn pagefork_linker_unknown_imports_as_traps(
        linker: Option<&mut pagefork_linker_t>,
        module: Option<&wasm_ref_t>,
    ) {
        let module = &given(module, "module")?.module()?.module;
        let linker = given(linker, LINKER)?;
        linker.check_engine(module.engine(), "module")?;
        linker.0.define_unknown_imports_as_traps(module)
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_linker_instantiate(
    linker: Option<&pagefork_linker_t>,
    store: Option<&wasm_store_t>,
    module: Option<&wasm_ref_t>,
    out: OutCBox<'_, wasm_ref_t>,
) -> Option<CBox<wasm_ref_t>> {
    outcome_made(given(store, "store").map(|store| &store.0), out, |store| {
        let module = &given(module, "module")?.module()?.module;
        let linker = &given(linker, LINKER)?.0;
        store.check_engine(module)?;
        let instance = linker.instantiate(&mut store.context()?, module)?;
        Ok(store.own(Object::Instance(instance)))
    })
}
