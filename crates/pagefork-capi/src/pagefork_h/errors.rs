//! Errors, and the version.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use pagefork::{ErrorKind, Trap};
use pagefork_wasi::Exit;

use crate::base::border::{BorderError, exported, given, take_last_error};
use crate::base::c_box::CBox;
use crate::objects::fallible::string;
use crate::objects::object::{Object, wasm_ref_t};
use crate::objects::trap::TrapObject;

/// What is null, if it is.
const ERROR: &str = "error";

/// The version, with a zero behind.
const VERSION: &CStr = {
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("a version has no zeros"),
    }
};

/// The kind of an error, as the header numbers them.
fn kind(trap: &TrapObject) -> u8 {
    let Some(error) = &trap.error else { return 4 };
    match error.kind() {
        _ if error.is::<BorderError>() => 7,
        ErrorKind::Compile => 0,
        ErrorKind::Link => 1,
        ErrorKind::Trap => 2,
        ErrorKind::Exception => 3,
        ErrorKind::Limit => 5,
        ErrorKind::System => 6,
        ErrorKind::Usage => 7,
        _ => 4,
    }
}

exported! {
    fn pagefork_version() -> *const c_char {
        Ok(VERSION.as_ptr())
    }

    fn pagefork_last_error() -> Option<CBox<wasm_ref_t>> {
        let error = take_last_error();
        Ok(error.map(|error| wasm_ref_t::without_store(Object::Trap(TrapObject::of(error)))))
    }

    fn pagefork_error_new(message: *const c_char) -> Option<CBox<wasm_ref_t>> {
        let trap = TrapObject::new(string(message, "message")?, None);
        Ok(Some(wasm_ref_t::without_store(Object::Trap(trap))))
    }

    fn pagefork_error_kind(error: Option<&wasm_ref_t>) -> u8 {
        Ok(kind(given(error, ERROR)?.trap()?))
    }

    fn pagefork_error_trap_code(error: Option<&wasm_ref_t>) -> u8 {
        let error = given(error, ERROR)?.trap()?.error.as_ref();
        let trap = error.and_then(|error| error.downcast_ref::<Trap>());
        Ok(trap.map_or(0, |trap| trap.code() as u8))
    }

    fn pagefork_error_exit_status(
        error: Option<&wasm_ref_t>,
        out: Option<&mut MaybeUninit<i32>>,
    ) -> bool {
        let error = given(error, ERROR)?.trap()?.error.as_ref();
        let exit = error.and_then(|error| error.downcast_ref::<Exit>());
        if let (Some(Exit(status)), Some(out)) = (exit, out) {
            out.write(*status);
        }
        Ok(exit.is_some())
    }
}
