//! WASI programs: what they see, and what they have written.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use pagefork::Error;
use pagefork_wasi::{Permissions, StdinKind};

use crate::base::border::{BorderError, exported, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::CVec;
use crate::objects::fallible::{bytes, fallible, outcome_in, path, string, text};
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::wasi::{Output, pagefork_wasi_config_t};

/// What is null, if it is.
const CONFIG: &str = "configuration";

macro_rules! inherited {
    ($($name:ident $set:ident;)*) => {
        exported! {$(
            fn $name(config: Option<&mut pagefork_wasi_config_t>) {
                given(config, CONFIG)?.builder.$set();
                Ok(())
            }
        )*}
    };
}

inherited! {
    pagefork_wasi_config_inherit_args inherit_args;
    pagefork_wasi_config_inherit_env inherit_env;
}

exported! {
    fn pagefork_wasi_config_new() -> Option<Box<pagefork_wasi_config_t>> {
        Ok(Some(Box::new(pagefork_wasi_config_t::new())))
    }

    fn pagefork_wasi_config_delete(config: Option<Box<pagefork_wasi_config_t>>) {
        drop(config);
        Ok(())
    }

    fn pagefork_wasi_config_inherit_stdin(config: Option<&mut pagefork_wasi_config_t>) {
        given(config, CONFIG)?.stdin = StdinKind::Inherit;
        Ok(())
    }

    fn pagefork_wasi_config_await_stdin(config: Option<&mut pagefork_wasi_config_t>) {
        given(config, CONFIG)?.stdin = StdinKind::Awaited;
        Ok(())
    }

    fn pagefork_wasi_config_inherit_stdout(config: Option<&mut pagefork_wasi_config_t>) {
        given(config, CONFIG)?.outputs[0] = Output::Inherited;
        Ok(())
    }

    fn pagefork_wasi_config_inherit_stderr(config: Option<&mut pagefork_wasi_config_t>) {
        given(config, CONFIG)?.outputs[1] = Output::Inherited;
        Ok(())
    }

    fn pagefork_wasi_config_capture_stdout(
        config: Option<&mut pagefork_wasi_config_t>,
        size_max: usize,
    ) {
        given(config, CONFIG)?.outputs[0] = Output::Captured(size_max);
        Ok(())
    }

    fn pagefork_wasi_config_capture_stderr(
        config: Option<&mut pagefork_wasi_config_t>,
        size_max: usize,
    ) {
        given(config, CONFIG)?.outputs[1] = Output::Captured(size_max);
        Ok(())
    }
}

fallible! {
    fn pagefork_wasi_config_arg(config: Option<&mut pagefork_wasi_config_t>, arg: *const c_char) {
        given(config, CONFIG)?.builder.arg(string(arg, "argument")?);
        Ok(())
    }

    fn pagefork_wasi_config_env(
        config: Option<&mut pagefork_wasi_config_t>,
        name: *const c_char,
        value: *const c_char,
    ) {
        let (name, value) = (string(name, "name")?, string(value, "value")?);
        given(config, CONFIG)?.builder.env(name, value);
        Ok(())
    }

    fn pagefork_wasi_config_stdin(
        config: Option<&mut pagefork_wasi_config_t>,
        data: *const u8,
        size: usize,
    ) {
        let input = StdinKind::bytes(bytes(data, size)?);
        given(config, CONFIG)?.stdin = input;
        Ok(())
    }

    fn pagefork_wasi_config_directory(
        config: Option<&mut pagefork_wasi_config_t>,
        host_path: *const c_char,
        guest_path: *const c_char,
        read_only: bool,
    ) {
        let (host, guest) = (path(host_path, "path")?, text(guest_path, "guest's path")?);
        let access = match read_only {
            true => Permissions::ReadOnly,
            false => Permissions::ReadWrite,
        };
        let builder = &mut given(config, CONFIG)?.builder;
        builder.preopened_dir(host, guest, access).map_err(Error::new)?;
        Ok(())
    }

    fn pagefork_wasi_config_session_directory(
        config: Option<&mut pagefork_wasi_config_t>,
        host_path: *const c_char,
        guest_path: *const c_char,
    ) {
        let (host, guest) = (path(host_path, "path")?, text(guest_path, "guest's path")?);
        given(config, CONFIG)?.builder.session_dir(host, guest).map_err(Error::new)?;
        Ok(())
    }

    fn pagefork_store_set_wasi(
        store: Option<&wasm_store_t>,
        config: Option<&pagefork_wasi_config_t>,
    ) {
        let mut context = given(store, "store")?.0.any_context()?;
        given(config, CONFIG)?.give_to(context.data_mut())
    }

    fn pagefork_store_take_output(
        store: Option<&wasm_store_t>,
        stream: u8,
        out: Option<&mut MaybeUninit<CVec<u8>>>,
    ) {
        let out = given(out, "vector")?.write(CVec::EMPTY);
        let context = given(store, "store")?.0.any_context()?;
        let output = usize::from(stream).checked_sub(1);
        let output = output.and_then(|index| context.data().output(index));
        let output = output.ok_or_else(|| {
            let text = format!("stream {stream} is not captured: 1 is the output, 2 errors");
            BorderError::Unfit(text)
        })?;
        *out = CVec::new(output.take())?;
        Ok(())
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_wasi_start(instance: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
    let store = given(instance, "instance").and_then(|instance| instance.store());
    outcome_in(store, |store| {
        let instance = *given(instance, "instance")?.instance()?;
        let start = instance.get_typed_func::<(), ()>(&mut store.context()?, "_start")?;
        start.call(&mut store.context()?, ())
    })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_wasi_initialize(instance: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
    let store = given(instance, "instance").and_then(|instance| instance.store());
    outcome_in(store, |store| {
        let instance = *given(instance, "instance")?.instance()?;
        pagefork_wasi::initialize(&mut store.context()?, &instance).map(|_| ())
    })
}
