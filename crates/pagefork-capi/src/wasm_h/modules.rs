//! Modules: compiling, reading, sharing and serializing them.

use std::mem::MaybeUninit;

use pagefork::{Module, Result};

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::{CVec, OwnedVec};
use crate::objects::object::{
    ModuleObject, Object, wasm_ref_t, wasm_shared_module_t, wasm_store_t,
};
use crate::objects::types::{wasm_exporttype_t, wasm_externtype_t, wasm_importtype_t};

/// A name that a type owns.
fn name(text: &str) -> Result<OwnedVec<u8>> {
    Ok(CVec::new(text.as_bytes().to_vec())?.into())
}

/// A module of a store, for C.
fn own(store: &wasm_store_t, module: Module) -> Option<CBox<wasm_ref_t>> {
    store.own(Object::Module(ModuleObject::new(module)))
}

exported! {
    fn wasm_module_new(
        store: Option<&wasm_store_t>,
        binary: Option<&CVec<u8>>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, binary) = (given(store, "store")?, given(binary, "binary")?);
        Ok(own(store, Module::from_binary(&store.0.engine()?, binary.elements()?)?))
    }

    fn wasm_module_validate(store: Option<&wasm_store_t>, binary: Option<&CVec<u8>>) -> bool {
        let (store, binary) = (given(store, "store")?, given(binary, "binary")?);
        Module::validate(&store.0.engine()?, binary.elements()?).map(|()| true)
    }

    fn wasm_module_imports(
        module: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_importtype_t>>>>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let module = &given(module, "module")?.module()?.module;
        let types = module.imports().map(|import| {
            let ty = Box::new(wasm_externtype_t::new(import.ty()));
            let (module, name) = (name(import.module())?, name(import.name())?);
            Ok(Some(Box::new(wasm_importtype_t { module, name, ty })))
        });
        *out = CVec::new(types.collect::<Result<Vec<_>>>()?)?;
        Ok(())
    }

    fn wasm_module_exports(
        module: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_exporttype_t>>>>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let module = &given(module, "module")?.module()?.module;
        let types = module.exports().map(|export| {
            let ty = Box::new(wasm_externtype_t::new(export.ty()));
            Ok(Some(Box::new(wasm_exporttype_t { name: name(export.name())?, ty })))
        });
        *out = CVec::new(types.collect::<Result<Vec<_>>>()?)?;
        Ok(())
    }

    fn wasm_module_serialize(
        module: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<CVec<u8>>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        *out = CVec::new(given(module, "module")?.module()?.module.serialize()?)?;
        Ok(())
    }

    fn wasm_module_deserialize(
        store: Option<&wasm_store_t>,
        bytes: Option<&CVec<u8>>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, bytes) = (given(store, "store")?, given(bytes, "bytes")?);
        // SAFETY: the header says that the bytes are what `wasm_module_serialize` gave.
        let module = unsafe { Module::deserialize(&store.0.engine()?, bytes.elements()?)? };
        Ok(own(store, module))
    }

    fn wasm_module_share(module: Option<&wasm_ref_t>) -> Option<Box<wasm_shared_module_t>> {
        let module = given(module, "module")?.module()?;
        Ok(Some(Box::new(wasm_shared_module_t(module.clone()))))
    }

    fn wasm_module_obtain(
        store: Option<&wasm_store_t>,
        shared: Option<&wasm_shared_module_t>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, shared) = (given(store, "store")?, given(shared, "shared module")?);
        store.0.check_engine(&shared.0.module)?;
        Ok(store.own(Object::Module(shared.0.clone())))
    }

    fn wasm_shared_module_delete(shared: Option<Box<wasm_shared_module_t>>) {
        drop(shared);
        Ok(())
    }
}
