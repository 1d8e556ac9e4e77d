//! Configurations, engines and stores.

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::objects::engine::{wasm_config_t, wasm_engine_t};
use crate::objects::object::wasm_store_t;
use crate::objects::store::StoreRef;

exported! {
    fn wasm_config_new() -> Option<Box<wasm_config_t>> {
        Ok(Some(Box::new(wasm_config_t::new())))
    }

    fn wasm_config_delete(config: Option<Box<wasm_config_t>>) {
        drop(config);
        Ok(())
    }

    fn wasm_engine_new() -> Option<Box<wasm_engine_t>> {
        Ok(Some(Box::new(wasm_engine_t::new(&wasm_config_t::new())?)))
    }

    fn wasm_engine_new_with_config(
        config: Option<Box<wasm_config_t>>,
    ) -> Option<Box<wasm_engine_t>> {
        Ok(Some(Box::new(wasm_engine_t::new(&*given(config, "configuration")?)?)))
    }

    fn wasm_engine_delete(engine: Option<Box<wasm_engine_t>>) {
        drop(engine);
        Ok(())
    }

    fn wasm_store_new(engine: Option<&wasm_engine_t>) -> Option<CBox<wasm_store_t>> {
        Ok(Some(StoreRef::new(&given(engine, "engine")?.engine).into_handle()))
    }

    fn wasm_store_delete(store: Option<CBox<wasm_store_t>>) {
        drop(store);
        Ok(())
    }
}
