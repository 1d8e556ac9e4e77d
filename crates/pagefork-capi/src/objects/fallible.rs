//! Functions of `pagefork.h`, which give an error or null; and what C gives them.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagefork::{Error, Result};

use crate::base::border::{BorderError, attempt, given};
use crate::base::c_box::CBox;
use crate::objects::object::{Object, wasm_ref_t};
use crate::objects::store::StoreRef;
use crate::objects::trap::TrapObject;

/// An error, for C, with the store whose guest it is about.
#[cold]
pub(crate) fn failed(store: Option<&StoreRef>, error: Error) -> Option<CBox<wasm_ref_t>> {
    let object = Object::Trap(TrapObject::of(error));
    Some(match store {
        Some(store) => store.own(object),
        None => wasm_ref_t::without_store(object),
    })
}

/// Runs what a function does; its failure is what it gives.
#[inline]
pub(crate) fn outcome(function: impl FnOnce() -> Result<()>) -> Option<CBox<wasm_ref_t>> {
    attempt(function).map_or_else(|error| failed(None, error), |()| None)
}

/// As [`outcome`], of something that enters a store's guests: they may delete all objects of it.
#[inline]
pub(crate) fn outcome_in(
    store: Result<&StoreRef>,
    function: impl FnOnce(&StoreRef) -> Result<()>,
) -> Option<CBox<wasm_ref_t>> {
    let store = match store {
        Ok(store) => store.keep(),
        Err(error) => return failed(None, error),
    };
    attempt(|| function(&store)).map_or_else(|error| failed(Some(&store), error), |()| None)
}

/// A place of C's for a pointer to something that is made.
type OutPointer<'a, P> = Option<&'a mut MaybeUninit<Option<P>>>;

/// A place of C's for something that is made, in a box.
pub(crate) type OutBox<'a, T> = OutPointer<'a, Box<T>>;

/// A place of C's for something that is made.
pub(crate) type OutCBox<'a, T> = OutPointer<'a, CBox<T>>;

/// Makes something; its place holds null if that fails.
///
/// # Errors
/// What `make` fails with, and if there is no place.
#[inline]
pub(crate) fn make<P>(out: OutPointer<'_, P>, make: impl FnOnce() -> Result<P>) -> Result<()> {
    let out = given(out, "place for what is made")?.write(None);
    *out = Some(make()?);
    Ok(())
}

/// As [`make`], of something that enters a store's guests: see [`outcome_in`]. The place holds null
/// if it fails, also where there is no store.
pub(crate) fn outcome_made<P>(
    store: Result<&StoreRef>,
    mut out: OutPointer<'_, P>,
    function: impl FnOnce(&StoreRef) -> Result<P>,
) -> Option<CBox<wasm_ref_t>> {
    if let Some(out) = &mut out {
        out.write(None);
    }
    outcome_in(store, |store| make(out, || function(store)))
}

/// Bytes of C's.
///
/// # Errors
/// If there should be some, and the pointer to them is null.
pub(crate) fn bytes<'a>(data: *const u8, size: usize) -> Result<&'a [u8]> {
    if size == 0 {
        return Ok(&[]);
    }
    given((!data.is_null()).then_some(()), "bytes")?;
    // SAFETY: by the header's word there are as many bytes, which stay for the call.
    Ok(unsafe { std::slice::from_raw_parts(data, size) })
}

/// Elements of C's.
///
/// # Errors
/// If there should be some, and the pointer to them is null.
pub(crate) fn elements<'a, T>(data: *const T, size: usize) -> Result<&'a [T]> {
    if size == 0 {
        return Ok(&[]);
    }
    given((!data.is_null()).then_some(()), "list")?;
    // SAFETY: by the header's word there are as many elements, which stay for the call.
    Ok(unsafe { std::slice::from_raw_parts(data, size) })
}

/// Places of C's, which may not be initialised.
///
/// # Errors
/// If there should be some, and the pointer to them is null.
pub(crate) fn places<'a, T>(data: *mut T, size: usize) -> Result<&'a mut [MaybeUninit<T>]> {
    if size == 0 {
        return Ok(&mut []);
    }
    given((!data.is_null()).then_some(()), "list of places")?;
    // SAFETY: by the header's word there is room for as many elements, which nothing else uses.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), size) })
}

/// A string of C's, as bytes.
///
/// # Errors
/// If it is null.
pub(crate) fn string<'a>(string: *const c_char, what: &'static str) -> Result<&'a [u8]> {
    given((!string.is_null()).then_some(()), what)?;
    // SAFETY: by the header's word it is a string with a zero behind, which stays for the call.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// A string of C's, as text.
///
/// # Errors
/// If it is null or no UTF-8.
#[inline]
pub(crate) fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    given((!pointer.is_null()).then_some(()), what)?;
    for length in 0..=FEW_BYTES {
        // SAFETY: by the header's word it is a string with a zero behind, which was not read yet.
        match unsafe { pointer.cast::<u8>().add(length).read() } {
            // SAFETY: so many bytes were read, each of ASCII, which is UTF-8; they stay for the call.
            0 => unsafe {
                let bytes = std::slice::from_raw_parts(pointer.cast(), length);
                return Ok(std::str::from_utf8_unchecked(bytes));
            },
            byte if byte.is_ascii() => {}
            _ => break,
        }
    }
    any_text(pointer, what)
}

/// Of strings of so many bytes, as most names have, it is seen on the way to their end that they are text.
const FEW_BYTES: usize = 16;

#[inline(never)]
fn any_text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    let text = std::str::from_utf8(string(pointer, what)?);
    text.map_err(|_| BorderError::Unfit(format!("the {what} is not UTF-8")).into())
}

/// A path of C's.
///
/// # Errors
/// If it is null.
pub(crate) fn path<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(string(pointer, what)?)))
}

/// Defines functions that C calls, whose body is an expression of type `Result<()>`.
macro_rules! fallible {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        // SAFETY: the names are declared in our headers, and begin as ours do.
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($arg: $ty),*
        ) -> Option<$crate::base::c_box::CBox<$crate::objects::object::wasm_ref_t>> {
            $crate::objects::fallible::outcome(move || $body)
        }
    )*};
}

pub(crate) use fallible;
