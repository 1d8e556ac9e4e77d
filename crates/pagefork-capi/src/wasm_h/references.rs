//! What all kinds of objects have in common, and how one kind is taken for another.

use std::ffi::c_void;

use pagefork::Result;

use crate::base::border::{exported, given};
use crate::base::c_box::CBox;
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};

/// What is null, if it is.
const OBJECT: &str = "object";

/// Whether both are the same thing; two nulls are.
fn same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> Result<bool> {
    match (a, b) {
        (Some(a), Some(b)) => a.is_same(b),
        (None, None) => Ok(true),
        _ => Ok(false),
    }
}

/// The same thing, as another object.
fn copy(object: Option<&wasm_ref_t>) -> Result<Option<CBox<wasm_ref_t>>> {
    Ok(given(object, OBJECT)?.present()?.copy())
}

/// The object, if it is of that kind: that it is of another is no failure.
fn if_it_is(
    object: Option<&wasm_ref_t>,
    is: impl FnOnce(&Object) -> bool,
) -> Result<*const wasm_ref_t> {
    let object = object.filter(|object| is(object.object()));
    Ok(object.map_or(std::ptr::null(), std::ptr::from_ref))
}

/// The same object, as a thing of another name.
fn as_it_is(object: Option<&wasm_ref_t>) -> Result<*const wasm_ref_t> {
    Ok(object.map_or(std::ptr::null(), std::ptr::from_ref))
}

exported! {
    fn wasm_foreign_new(store: Option<&wasm_store_t>) -> Option<CBox<wasm_ref_t>> {
        Ok(given(store, "store")?.own(Object::Foreign(Default::default())))
    }

    fn wasm_extern_kind(object: Option<&wasm_ref_t>) -> u8 {
        given(object, OBJECT)?.extern_kind()
    }

    fn wasm_extern_type(
        object: Option<&wasm_ref_t>,
    ) -> Option<Box<crate::objects::types::wasm_externtype_t>> {
        Ok(Some(Box::new(given(object, OBJECT)?.external_type()?)))
    }

    fn wasm_ref_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_ref_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_ref_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_ref_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_ref_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_ref_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_trap_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_trap_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_trap_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_trap_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_trap_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_trap_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_foreign_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_foreign_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_foreign_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_foreign_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_foreign_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_foreign_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_module_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_module_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_module_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_module_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_module_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_module_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_func_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_func_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_func_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_func_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_func_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_func_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_global_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_global_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_global_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_global_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_global_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_global_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_table_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_table_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_table_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_table_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_table_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_table_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_memory_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_memory_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_memory_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_memory_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_memory_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_memory_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_extern_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_extern_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_extern_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_extern_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_extern_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_extern_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_instance_delete(object: Option<CBox<wasm_ref_t>>) {
        drop(object);
        Ok(())
    }

    fn wasm_instance_copy(object: Option<&wasm_ref_t>) -> Option<CBox<wasm_ref_t>> {
        copy(object)
    }

    fn wasm_instance_same(a: Option<&wasm_ref_t>, b: Option<&wasm_ref_t>) -> bool {
        same(a, b)
    }

    fn wasm_instance_get_host_info(object: Option<&wasm_ref_t>) -> *mut c_void {
        given(object, OBJECT)?.info()
    }

    fn wasm_instance_set_host_info(object: Option<&wasm_ref_t>, data: *mut c_void) {
        given(object, OBJECT)?.set_info(HostInfo::new(data, None))
    }

    fn wasm_instance_set_host_info_with_finalizer(
        object: Option<&wasm_ref_t>,
        data: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        // It is ours from here on, also on failure.
        let info = HostInfo::new(data, finalizer);
        given(object, OBJECT)?.set_info(info)
    }

    fn wasm_trap_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_trap(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Trap(_)))
    }

    fn wasm_trap_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_trap_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Trap(_)))
    }

    fn wasm_foreign_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_foreign(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Foreign(_)))
    }

    fn wasm_foreign_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_foreign_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Foreign(_)))
    }

    fn wasm_module_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_module(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Module(_)))
    }

    fn wasm_module_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_module_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Module(_)))
    }

    fn wasm_func_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_func(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Func(..)))
    }

    fn wasm_func_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_func_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Func(..)))
    }

    fn wasm_global_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_global(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Global(_)))
    }

    fn wasm_global_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_global_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Global(_)))
    }

    fn wasm_table_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_table(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Table(_)))
    }

    fn wasm_table_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_table_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Table(_)))
    }

    fn wasm_memory_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_memory(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Memory(_)))
    }

    fn wasm_memory_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_memory_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Memory(_)))
    }

    fn wasm_extern_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_extern(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, is_external)
    }

    fn wasm_extern_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_extern_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, is_external)
    }

    fn wasm_instance_as_ref(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_instance(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Instance(_)))
    }

    fn wasm_instance_as_ref_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_ref_as_instance_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Instance(_)))
    }

    fn wasm_func_as_extern(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_func(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Func(..)))
    }

    fn wasm_func_as_extern_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_func_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Func(..)))
    }

    fn wasm_global_as_extern(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_global(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Global(_)))
    }

    fn wasm_global_as_extern_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_global_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Global(_)))
    }

    fn wasm_table_as_extern(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_table(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Table(_)))
    }

    fn wasm_table_as_extern_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_table_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Table(_)))
    }

    fn wasm_memory_as_extern(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_memory(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Memory(_)))
    }

    fn wasm_memory_as_extern_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        as_it_is(object)
    }

    fn wasm_extern_as_memory_const(object: Option<&wasm_ref_t>) -> *const wasm_ref_t {
        if_it_is(object, |object| matches!(object, Object::Memory(_)))
    }
}

/// Whether the object can be imported and exported.
fn is_external(object: &Object) -> bool {
    matches!(
        object,
        Object::Func(..)
            | Object::Global(_)
            | Object::Table(_)
            | Object::Memory(_)
            | Object::Tag(_)
    )
}
