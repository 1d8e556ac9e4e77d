//! Modules that need no store: compiled, or read from bytes and files.

use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagefork::{Module, Result};

use crate::base::border::given;
use crate::base::c_box::CBox;
use crate::objects::engine::wasm_engine_t;
use crate::objects::fallible::{OutCBox, bytes, fallible, make, string};
use crate::objects::object::{ModuleObject, Object, wasm_ref_t};

/// What is null, if it is.
const ENGINE: &str = "engine";

fn own(module: Module) -> CBox<wasm_ref_t> {
    wasm_ref_t::without_store(Object::Module(ModuleObject::new(module)))
}

fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(string(path, "path")?)))
}

fallible! {
    fn pagefork_module_new(
        engine: Option<&wasm_engine_t>,
        data: *const u8,
        size: usize,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || Ok(own(Module::new(&given(engine, ENGINE)?.engine, bytes(data, size)?)?)))
    }

    fn pagefork_module_new_file(
        engine: Option<&wasm_engine_t>,
        file: *const c_char,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || Ok(own(Module::from_file(&given(engine, ENGINE)?.engine, path(file)?)?)))
    }

    fn pagefork_module_deserialize(
        engine: Option<&wasm_engine_t>,
        data: *const u8,
        size: usize,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let engine = &given(engine, ENGINE)?.engine;
            // SAFETY: the header says that the bytes are those of a module that was serialized.
            Ok(own(unsafe { Module::deserialize(engine, bytes(data, size)?)? }))
        })
    }

    fn pagefork_module_deserialize_file(
        engine: Option<&wasm_engine_t>,
        file: *const c_char,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        make(out, || {
            let engine = &given(engine, ENGINE)?.engine;
            // SAFETY: the header says that the file has what a module was serialized to.
            Ok(own(unsafe { Module::deserialize_file(engine, path(file)?)? }))
        })
    }
}
