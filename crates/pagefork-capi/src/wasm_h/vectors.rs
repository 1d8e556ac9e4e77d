//! Vectors: making, copying and freeing them with their elements.

use std::mem::MaybeUninit;
use std::slice;

use pagefork::Result;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::base::c_vec::{CVec, Element, OwnedVec, put};
use crate::objects::object::wasm_ref_t;
use crate::objects::trap::wasm_frame_t;
use crate::objects::types::{
    wasm_exporttype_t, wasm_externtype_t, wasm_importtype_t, wasm_valtype_t,
};
use crate::objects::value::wasm_val_t;

/// A vector of elements that C has in an array, and gives away.
fn new<T>(size: usize, elements: *const T) -> Result<CVec<T>> {
    if size == 0 {
        return Ok(CVec::EMPTY);
    }
    given((!elements.is_null()).then_some(()), "array of elements")?;
    let mut vec = CVec::uninitialized(size)?;
    // SAFETY: by the header's word the array has as many elements, which are C's to give away.
    let elements = unsafe { slice::from_raw_parts(elements.cast::<MaybeUninit<T>>(), size) };
    for (place, element) in vec.places()?.iter_mut().zip(elements) {
        // SAFETY: a copy of what is there, whose owner is from here on the vector.
        *place = unsafe { std::ptr::read(element) };
    }
    Ok(vec)
}

/// A place for a vector, which holds a valid one whatever happens.
fn make<T>(
    out: Option<&mut MaybeUninit<CVec<T>>>,
    vec: impl FnOnce() -> Result<CVec<T>>,
) -> Result<()> {
    let out = given(out, "vector")?;
    let out = out.write(CVec::EMPTY);
    *out = vec()?;
    Ok(())
}

fn copy<T: Element>(out: Option<&mut MaybeUninit<CVec<T>>>, vec: Option<&CVec<T>>) -> Result<()> {
    make(out, || given(vec, "vector to copy")?.copy())
}

fn free<T>(vec: Option<&mut CVec<T>>) -> Result<()> {
    drop::<Option<OwnedVec<T>>>(vec.map(CVec::take));
    Ok(())
}

fn free_values(vec: Option<&mut CVec<wasm_val_t>>) -> Result<()> {
    if let Some(vec) = vec {
        let mut vec = vec.take();
        for value in vec.elements_mut()? {
            value.free();
        }
    }
    Ok(())
}

exported! {
    fn wasm_byte_vec_new_empty(out: Option<&mut MaybeUninit<CVec<u8>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_byte_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<u8>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_byte_vec_new(
        out: Option<&mut MaybeUninit<CVec<u8>>>,
        size: usize,
        elements: *const u8,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_byte_vec_copy(
        out: Option<&mut MaybeUninit<CVec<u8>>>,
        vec: Option<&CVec<u8>>,
    ) {
        copy(out, vec)
    }

    fn wasm_byte_vec_delete(vec: Option<&mut CVec<u8>>) {
        free(vec)
    }

    fn wasm_valtype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_valtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_valtype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_valtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_valtype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_valtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_valtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_valtype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_valtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_valtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_valtype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_valtype_t>>>>) {
        free(vec)
    }

    fn wasm_functype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_functype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_functype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_externtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_functype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_externtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_functype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_externtype_t>>>>) {
        free(vec)
    }

    fn wasm_globaltype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_globaltype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_globaltype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_externtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_globaltype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_externtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_globaltype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_externtype_t>>>>) {
        free(vec)
    }

    fn wasm_tabletype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_tabletype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_tabletype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_externtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_tabletype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_externtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_tabletype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_externtype_t>>>>) {
        free(vec)
    }

    fn wasm_memorytype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_memorytype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_memorytype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_externtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_memorytype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_externtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_memorytype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_externtype_t>>>>) {
        free(vec)
    }

    fn wasm_externtype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_externtype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_externtype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_externtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_externtype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_externtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_externtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_externtype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_externtype_t>>>>) {
        free(vec)
    }

    fn wasm_importtype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_importtype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_importtype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_importtype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_importtype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_importtype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_importtype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_importtype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_importtype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_importtype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_importtype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_importtype_t>>>>) {
        free(vec)
    }

    fn wasm_exporttype_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_exporttype_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_exporttype_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_exporttype_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_exporttype_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_exporttype_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_exporttype_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_exporttype_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_exporttype_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_exporttype_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_exporttype_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_exporttype_t>>>>) {
        free(vec)
    }

    fn wasm_val_vec_new_empty(out: Option<&mut MaybeUninit<CVec<wasm_val_t>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_val_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<wasm_val_t>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_val_vec_new(
        out: Option<&mut MaybeUninit<CVec<wasm_val_t>>>,
        size: usize,
        elements: *const wasm_val_t,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_val_vec_copy(
        out: Option<&mut MaybeUninit<CVec<wasm_val_t>>>,
        vec: Option<&CVec<wasm_val_t>>,
    ) {
        copy(out, vec)
    }

    fn wasm_val_vec_delete(vec: Option<&mut CVec<wasm_val_t>>) {
        free_values(vec)
    }

    fn wasm_frame_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_frame_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_frame_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_frame_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_frame_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_frame_t>>>>>,
        size: usize,
        elements: *const Option<Box<wasm_frame_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_frame_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<Box<wasm_frame_t>>>>>,
        vec: Option<&CVec<Option<Box<wasm_frame_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_frame_vec_delete(vec: Option<&mut CVec<Option<Box<wasm_frame_t>>>>) {
        free(vec)
    }

    fn wasm_extern_vec_new_empty(out: Option<&mut MaybeUninit<CVec<Option<CBox<wasm_ref_t>>>>>) {
        put(out, "vector", CVec::EMPTY)
    }

    fn wasm_extern_vec_new_uninitialized(
        out: Option<&mut MaybeUninit<CVec<Option<CBox<wasm_ref_t>>>>>,
        size: usize,
    ) {
        make(out, || CVec::uninitialized(size))
    }

    fn wasm_extern_vec_new(
        out: Option<&mut MaybeUninit<CVec<Option<CBox<wasm_ref_t>>>>>,
        size: usize,
        elements: *const Option<CBox<wasm_ref_t>>,
    ) {
        make(out, || new(size, elements))
    }

    fn wasm_extern_vec_copy(
        out: Option<&mut MaybeUninit<CVec<Option<CBox<wasm_ref_t>>>>>,
        vec: Option<&CVec<Option<CBox<wasm_ref_t>>>>,
    ) {
        copy(out, vec)
    }

    fn wasm_extern_vec_delete(vec: Option<&mut CVec<Option<CBox<wasm_ref_t>>>>) {
        free(vec)
    }
}
