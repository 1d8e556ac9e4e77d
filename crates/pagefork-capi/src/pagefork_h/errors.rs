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

/// Kinds of errors, by the numbers of `pagefork_error_kind_enum`.
const KINDS: [ErrorKind; 9] = [
    ErrorKind::Compile,
    ErrorKind::Link,
    ErrorKind::Trap,
    ErrorKind::Exception,
    ErrorKind::Host,
    ErrorKind::Limit,
    ErrorKind::System,
    ErrorKind::Usage,
    ErrorKind::Snapshot,
];

/// The kind of an error, as the header numbers them.
fn kind(trap: &TrapObject) -> u8 {
    let kind = match &trap.error {
        None => ErrorKind::Host,
        Some(error) if error.is::<BorderError>() => ErrorKind::Usage,
        Some(error) => error.kind(),
    };
    let number = |kind| KINDS.into_iter().zip(0..).find(|(known, _)| *known == kind);
    // A kind that is not known here is none of those that the header tells apart.
    number(kind).or_else(|| number(ErrorKind::Host)).map_or(0, |(_, number)| number)
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

#[cfg(test)]
pub(super) mod tests {
    use pagefork::TrapCode;

    use super::*;

    /// What an enumeration of `pagefork.h` has, in the order of the numbers, which begin with 0.
    pub(in crate::pagefork_h) fn enumerated(name: &str, prefix: &str) -> Vec<String> {
        let header = include_str!("../../include/pagefork.h");
        let (_, body) = header.split_once(&format!("enum {name} {{")).expect("it is declared");
        let (mut body, _) = body.split_once('}').expect("it ends");
        let mut names = String::new();
        while let Some((before, rest)) = body.split_once("/*") {
            names += before;
            (_, body) = rest.split_once("*/").expect("comments end");
        }
        names += body;
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        // `PAGEFORK_TRAP_OUT_OF_FUEL` is `outoffuel`, as is `OutOfFuel`.
        names
            .map(|name| name.strip_prefix(prefix).expect(name).replace('_', "").to_lowercase())
            .collect()
    }

    /// The name of a variant in the same way, without what it carries.
    pub(in crate::pagefork_h) fn plain(variant: impl std::fmt::Debug) -> String {
        let text = format!("{variant:?}").to_lowercase();
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    }

    #[test]
    fn kinds_of_errors_have_the_numbers_of_the_header() {
        let names = enumerated("pagefork_error_kind_enum", "PAGEFORK_ERROR_");
        assert_eq!(names, KINDS.map(plain));
    }

    #[test]
    fn reasons_to_trap_have_the_numbers_of_the_header() {
        let mut expected = vec!["none".to_owned()];
        expected.extend(TrapCode::ALL.map(plain));
        for code in TrapCode::ALL {
            assert_eq!(expected[usize::from(code as u8)], plain(code));
        }
        assert_eq!(enumerated("pagefork_trap_code_enum", "PAGEFORK_TRAP_"), expected);
    }
}
