//! Memories.

use pagefork::Memory;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::types::wasm_externtype_t;

/// What is null, if it is.
const MEMORY: &str = "memory";

exported! {
    fn wasm_memory_new(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
    ) -> Option<CBox<wasm_ref_t>> {
        let (store, ty) = (given(store, "store")?, given(ty, "type")?.memory()?);
        let memory = Memory::new(&mut store.0.context()?, ty)?;
        Ok(store.own(Object::Memory(memory)))
    }

    fn wasm_memory_type(memory: Option<&wasm_ref_t>) -> Option<Box<wasm_externtype_t>> {
        let memory = given(memory, MEMORY)?;
        memory.memory()?;
        Ok(Some(Box::new(memory.external_type()?)))
    }

    fn wasm_memory_data(memory: Option<&wasm_ref_t>) -> *mut u8 {
        let memory = given(memory, MEMORY)?;
        // Said to be written to until the store is reset: C keeps the pointer.
        Ok(memory.memory()?.data_mut(&mut memory.store()?.context()?).as_mut_ptr())
    }

    fn wasm_memory_data_size(memory: Option<&wasm_ref_t>) -> usize {
        let memory = given(memory, MEMORY)?;
        Ok(memory.memory()?.data(&memory.store()?.context()?).len())
    }

    fn wasm_memory_size(memory: Option<&wasm_ref_t>) -> u32 {
        let memory = given(memory, MEMORY)?;
        let pages = memory.memory()?.size(&memory.store()?.context()?);
        Ok(u32::try_from(pages).unwrap_or(u32::MAX))
    }

    fn wasm_memory_grow(memory: Option<&wasm_ref_t>, delta: u32) -> bool {
        let memory = given(memory, MEMORY)?;
        memory.memory()?.grow(&mut memory.store()?.context()?, delta.into()).map(|_| true)
    }
}
