//! Traps and their frames.

use std::mem::MaybeUninit;

use pagefork::WasmBacktrace;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::{CVec, Element};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::trap::{TrapObject, wasm_frame_t};

/// What is null, if it is.
const FRAME: &str = "frame";

exported! {
    fn wasm_trap_new(
        store: Option<&wasm_store_t>,
        message: Option<&CVec<u8>>,
    ) -> Option<CBox<wasm_ref_t>> {
        let store = given(store, "store")?;
        let backtrace = WasmBacktrace::capture(&store.0.any_context()?);
        let message = match message {
            Some(message) => message.elements()?,
            None => &[],
        };
        Ok(store.own(Object::Trap(TrapObject::new(message, Some(backtrace)))))
    }

    fn wasm_trap_message(trap: Option<&wasm_ref_t>, out: Option<&mut MaybeUninit<CVec<u8>>>) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        *out = CVec::new(given(trap, "trap")?.trap()?.message())?;
        Ok(())
    }

    fn wasm_trap_origin(trap: Option<&wasm_ref_t>) -> Option<Box<wasm_frame_t>> {
        let trap = given(trap, "trap")?;
        let store = trap.store().ok();
        let frame = trap.trap()?.frames().first();
        frame.map(|frame| Ok(Box::new(wasm_frame_t::new(store, frame)?))).transpose()
    }

    fn wasm_trap_trace(
        trap: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_frame_t>>>>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let trap = given(trap, "trap")?;
        let store = trap.store().ok();
        let mut frames = Vec::new();
        for frame in trap.trap()?.frames() {
            frames.push(Some(Box::new(wasm_frame_t::new(store, frame)?)));
        }
        *out = CVec::new(frames)?;
        Ok(())
    }

    fn wasm_frame_delete(frame: Option<Box<wasm_frame_t>>) {
        drop(frame);
        Ok(())
    }

    fn wasm_frame_copy(frame: Option<&wasm_frame_t>) -> Option<Box<wasm_frame_t>> {
        Ok(Some(Box::new(given(frame, FRAME)?.copy())))
    }

    fn wasm_frame_instance(frame: Option<&wasm_frame_t>) -> *const wasm_ref_t {
        let instance = given(frame, FRAME)?.instance.as_deref();
        Ok(instance.map_or(std::ptr::null(), std::ptr::from_ref))
    }

    fn wasm_frame_func_index(frame: Option<&wasm_frame_t>) -> u32 {
        Ok(given(frame, FRAME)?.func_index)
    }

    fn wasm_frame_func_offset(frame: Option<&wasm_frame_t>) -> usize {
        Ok(given(frame, FRAME)?.func_offset)
    }

    fn wasm_frame_module_offset(frame: Option<&wasm_frame_t>) -> usize {
        Ok(given(frame, FRAME)?.module_offset)
    }
}
