//! Globals and values.

use std::mem::MaybeUninit;

use pagefork::Global;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::Element;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::types::{kind, wasm_externtype_t};
use crate::objects::value::wasm_val_t;

/// What is null, if it is.
const GLOBAL: &str = "global";

exported! {
    fn wasm_val_delete(value: Option<&mut wasm_val_t>) {
        if let Some(value) = value {
            value.free();
        }
        Ok(())
    }

    fn wasm_val_copy(out: Option<&mut MaybeUninit<wasm_val_t>>, value: Option<&wasm_val_t>) {
        let out = given(out, "value")?.write(wasm_val_t::zero(kind::I32));
        *out = given(value, "value to copy")?.copy();
        Ok(())
    }

    fn wasm_global_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        value: Option<&wasm_val_t>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, ty) = (given(store, "store")?, given(ty, "type")?.global()?);
        let value = given(value, "value")?.to_val(ty.content, &store.0)?;
        let global = Global::new(&mut store.0.context()?, ty, value)?;
        Ok(store.own(Object::Global(global)))
    }

    fn wasm_global_type(global: Option<&wasm_ref_t>) -> Option<Box<wasm_externtype_t>> {
        let global = given(global, GLOBAL)?;
        global.global()?;
        Ok(Some(Box::new(global.external_type()?)))
    }

    fn wasm_global_get(
        global: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<wasm_val_t>>,
    ) {
        let out = given(out, "value")?.write(wasm_val_t::zero(kind::I32));
        let global = given(global, GLOBAL)?;
        let store = global.store()?;
        let value = global.global()?.get(&mut store.context()?);
        *out = wasm_val_t::of_val(value, store)?;
        Ok(())
    }

    fn wasm_global_set(global: Option<&wasm_ref_t>, value: Option<&wasm_val_t>) {
        let (global, value) = (given(global, GLOBAL)?, given(value, "value")?);
        let (store, own) = (global.store()?, global.global()?);
        let ty = own.ty(&store.context()?);
        let value = value.to_val(ty.content, store)?;
        own.set(&mut store.context()?, value)
    }
}
