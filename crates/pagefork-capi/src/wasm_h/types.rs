//! Types: making them, reading them, and taking one kind for another.

use pagefork::{ExternType, Result};

use crate::base::border::{exported, given};
use crate::base::c_vec::{CVec, Element};
use crate::objects::types::{
    wasm_exporttype_t, wasm_externtype_t, wasm_importtype_t, wasm_limits_t, wasm_valtype_t,
    wasm_valtype_vec_t,
};

/// What is null, if it is.
const TYPE: &str = "type";

/// A pointer to what a type lends.
fn lend<T>(value: &T) -> Result<*const T> {
    Ok(value)
}

/// The type, if it is of that kind: that it is of another is no failure.
fn if_it_is(
    ty: Option<&wasm_externtype_t>,
    is: impl FnOnce(&ExternType) -> bool,
) -> Result<*const wasm_externtype_t> {
    let ty = ty.filter(|ty| is(&ty.ty));
    Ok(ty.map_or(std::ptr::null(), std::ptr::from_ref))
}

/// The same type, by another name.
fn as_it_is(ty: Option<&wasm_externtype_t>) -> Result<*const wasm_externtype_t> {
    Ok(ty.map_or(std::ptr::null(), std::ptr::from_ref))
}

exported! {
    fn wasm_valtype_new(kind: u8) -> Option<Box<wasm_valtype_t>> {
        Ok(Some(Box::new(wasm_valtype_t::of_kind(kind)?)))
    }

    fn wasm_valtype_kind(ty: Option<&wasm_valtype_t>) -> u8 {
        Ok(crate::objects::types::kind_of(given(ty, TYPE)?.0))
    }

    fn wasm_functype_new(
        params: Option<&mut wasm_valtype_vec_t>,
        results: Option<&mut wasm_valtype_vec_t>,
    ) -> Option<Box<wasm_externtype_t>> {
        let params = params.map_or_else(|| CVec::EMPTY.into(), CVec::take);
        let results = results.map_or_else(|| CVec::EMPTY.into(), CVec::take);
        Ok(Some(Box::new(wasm_externtype_t::of_func(params, results)?)))
    }

    fn wasm_functype_params(ty: Option<&wasm_externtype_t>) -> *const wasm_valtype_vec_t {
        lend(given(ty, TYPE)?.params_and_results()?.0)
    }

    fn wasm_functype_results(ty: Option<&wasm_externtype_t>) -> *const wasm_valtype_vec_t {
        lend(given(ty, TYPE)?.params_and_results()?.1)
    }

    fn wasm_globaltype_new(
        content: Option<Box<wasm_valtype_t>>,
        mutability: u8,
    ) -> Option<Box<wasm_externtype_t>> {
        let content = given(content, TYPE)?;
        Ok(Some(Box::new(wasm_externtype_t::of_global(*content, mutability)?)))
    }

    fn wasm_globaltype_content(ty: Option<&wasm_externtype_t>) -> *const wasm_valtype_t {
        let ty = given(ty, TYPE)?;
        ty.global()?;
        lend(ty.content()?)
    }

    fn wasm_globaltype_mutability(ty: Option<&wasm_externtype_t>) -> u8 {
        Ok(u8::from(given(ty, TYPE)?.global()?.mutable))
    }

    fn wasm_tabletype_new(
        element: Option<Box<wasm_valtype_t>>,
        limits: Option<&wasm_limits_t>,
    ) -> Option<Box<wasm_externtype_t>> {
        let (element, limits) = (given(element, TYPE)?, given(limits, "limits")?);
        Ok(Some(Box::new(wasm_externtype_t::of_table(*element, *limits)?)))
    }

    fn wasm_tabletype_element(ty: Option<&wasm_externtype_t>) -> *const wasm_valtype_t {
        let ty = given(ty, TYPE)?;
        ty.table()?;
        lend(ty.content()?)
    }

    fn wasm_tabletype_limits(ty: Option<&wasm_externtype_t>) -> *const wasm_limits_t {
        let ty = given(ty, TYPE)?;
        ty.table()?;
        lend(ty.limits()?)
    }

    fn wasm_memorytype_new(limits: Option<&wasm_limits_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(wasm_externtype_t::of_memory(*given(limits, "limits")?))))
    }

    fn wasm_memorytype_limits(ty: Option<&wasm_externtype_t>) -> *const wasm_limits_t {
        let ty = given(ty, TYPE)?;
        ty.memory()?;
        lend(ty.limits()?)
    }

    fn wasm_externtype_kind(ty: Option<&wasm_externtype_t>) -> u8 {
        Ok(given(ty, TYPE)?.kind())
    }

    fn wasm_importtype_new(
        module: Option<&mut CVec<u8>>,
        name: Option<&mut CVec<u8>>,
        ty: Option<Box<wasm_externtype_t>>,
    ) -> Option<Box<wasm_importtype_t>> {
        let (module, name) = (module.map(CVec::take), name.map(CVec::take));
        let ty = given(ty, TYPE)?;
        let (module, name) = (given(module, "name of the module")?, given(name, "name")?);
        Ok(Some(Box::new(wasm_importtype_t { module, name, ty })))
    }

    fn wasm_importtype_module(import: Option<&wasm_importtype_t>) -> *const CVec<u8> {
        lend(&*given(import, TYPE)?.module)
    }

    fn wasm_importtype_name(import: Option<&wasm_importtype_t>) -> *const CVec<u8> {
        lend(&*given(import, TYPE)?.name)
    }

    fn wasm_importtype_type(import: Option<&wasm_importtype_t>) -> *const wasm_externtype_t {
        lend(&*given(import, TYPE)?.ty)
    }

    fn wasm_exporttype_new(
        name: Option<&mut CVec<u8>>,
        ty: Option<Box<wasm_externtype_t>>,
    ) -> Option<Box<wasm_exporttype_t>> {
        let (name, ty) = (name.map(CVec::take), given(ty, TYPE)?);
        Ok(Some(Box::new(wasm_exporttype_t { name: given(name, "name")?, ty })))
    }

    fn wasm_exporttype_name(export: Option<&wasm_exporttype_t>) -> *const CVec<u8> {
        lend(&*given(export, TYPE)?.name)
    }

    fn wasm_exporttype_type(export: Option<&wasm_exporttype_t>) -> *const wasm_externtype_t {
        lend(&*given(export, TYPE)?.ty)
    }

    fn wasm_valtype_delete(ty: Option<Box<wasm_valtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_valtype_copy(ty: Option<&wasm_valtype_t>) -> Option<Box<wasm_valtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_functype_delete(ty: Option<Box<wasm_externtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_functype_copy(ty: Option<&wasm_externtype_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_globaltype_delete(ty: Option<Box<wasm_externtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_globaltype_copy(ty: Option<&wasm_externtype_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_tabletype_delete(ty: Option<Box<wasm_externtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_tabletype_copy(ty: Option<&wasm_externtype_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_memorytype_delete(ty: Option<Box<wasm_externtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_memorytype_copy(ty: Option<&wasm_externtype_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_externtype_delete(ty: Option<Box<wasm_externtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_externtype_copy(ty: Option<&wasm_externtype_t>) -> Option<Box<wasm_externtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_importtype_delete(ty: Option<Box<wasm_importtype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_importtype_copy(ty: Option<&wasm_importtype_t>) -> Option<Box<wasm_importtype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_exporttype_delete(ty: Option<Box<wasm_exporttype_t>>) {
        drop(ty);
        Ok(())
    }

    fn wasm_exporttype_copy(ty: Option<&wasm_exporttype_t>) -> Option<Box<wasm_exporttype_t>> {
        Ok(Some(Box::new(given(ty, TYPE)?.copy())))
    }

    fn wasm_functype_as_externtype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_functype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Func(_)))
    }

    fn wasm_functype_as_externtype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_functype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Func(_)))
    }

    fn wasm_globaltype_as_externtype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_globaltype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Global(_)))
    }

    fn wasm_globaltype_as_externtype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_globaltype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Global(_)))
    }

    fn wasm_tabletype_as_externtype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_tabletype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Table(_)))
    }

    fn wasm_tabletype_as_externtype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_tabletype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Table(_)))
    }

    fn wasm_memorytype_as_externtype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_memorytype(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Memory(_)))
    }

    fn wasm_memorytype_as_externtype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        as_it_is(ty)
    }

    fn wasm_externtype_as_memorytype_const(ty: Option<&wasm_externtype_t>) -> *const wasm_externtype_t {
        if_it_is(ty, |ty| matches!(ty, ExternType::Memory(_)))
    }
}
