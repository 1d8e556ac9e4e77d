//! C functions as host functions, and calls of functions, with values of either header.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use pagefork::{AsContextMut, Error, Exception, Func, FuncType, Result, UsageError, Val, ValRaw};

use crate::base::border::BorderError;
use crate::base::c_box::CBox;
use crate::base::c_vec::CVec;
use crate::objects::host_info::HostInfo;
use crate::objects::object::{wasm_ref_t, wasm_store_t};
use crate::objects::shape::{FuncShape, Shape};
use crate::objects::store::StoreRef;
use crate::objects::trap::TrapObject;
use crate::objects::value::{CValue, OwnedValues, kind_name, pagefork_val_t, wasm_val_t};

/// A vector of values.
pub(crate) type wasm_val_vec_t = CVec<wasm_val_t>;

/// A C function with values of `wasm.h`.
pub(crate) type wasm_func_callback_t =
    extern "C-unwind" fn(*const wasm_val_vec_t, *mut wasm_val_vec_t) -> Option<CBox<wasm_ref_t>>;

/// A C function with an environment and values of `wasm.h`.
pub(crate) type wasm_func_callback_with_env_t = extern "C-unwind" fn(
    *mut c_void,
    *const wasm_val_vec_t,
    *mut wasm_val_vec_t,
) -> Option<CBox<wasm_ref_t>>;

/// Who has called a C function: what it was made with, and the store.
#[repr(C)]
pub(crate) struct pagefork_caller_t {
    env: *mut c_void,
    store: *const wasm_store_t,
}

impl pagefork_caller_t {
    /// A caller, for as long as the store is lent.
    #[inline]
    pub(crate) fn new(env: *mut c_void, store: &wasm_store_t) -> Self {
        Self { env, store }
    }

    /// The store.
    pub(crate) fn store(&self) -> &wasm_store_t {
        // SAFETY: a caller is lent to C for the length of the call, in which the store is.
        unsafe { &*self.store }
    }
}

/// A C function with its caller, and values of `pagefork.h`.
pub(crate) type pagefork_func_callback_t = extern "C-unwind" fn(
    *const pagefork_caller_t,
    *const pagefork_val_t,
    usize,
    *mut pagefork_val_t,
    usize,
) -> Option<CBox<wasm_ref_t>>;

/// A C function that takes values of this kind.
pub(crate) trait Callback<V: CValue>: Send + Sync + 'static {
    /// What it was made with, if it is told in its caller.
    fn env(&self) -> *mut c_void {
        ptr::null_mut()
    }

    /// Calls it; the results have their kinds, and are 0 or null.
    fn call(
        &self,
        caller: &pagefork_caller_t,
        args: &mut [V],
        results: &mut [V],
    ) -> Option<CBox<wasm_ref_t>>;
}

impl Callback<wasm_val_t> for wasm_func_callback_t {
    fn call(
        &self,
        _: &pagefork_caller_t,
        args: &mut [wasm_val_t],
        results: &mut [wasm_val_t],
    ) -> Option<CBox<wasm_ref_t>> {
        self(&CVec::of(args), &mut CVec::of(results))
    }
}

impl Callback<wasm_val_t> for (wasm_func_callback_with_env_t, HostInfo) {
    fn call(
        &self,
        _: &pagefork_caller_t,
        args: &mut [wasm_val_t],
        results: &mut [wasm_val_t],
    ) -> Option<CBox<wasm_ref_t>> {
        let (function, env) = self;
        function(env.data(), &CVec::of(args), &mut CVec::of(results))
    }
}

impl Callback<pagefork_val_t> for (pagefork_func_callback_t, HostInfo) {
    #[inline]
    fn env(&self) -> *mut c_void {
        self.1.data()
    }

    fn call(
        &self,
        caller: &pagefork_caller_t,
        args: &mut [pagefork_val_t],
        results: &mut [pagefork_val_t],
    ) -> Option<CBox<wasm_ref_t>> {
        let (function, _) = self;
        function(caller, args.as_ptr(), args.len(), results.as_mut_ptr(), results.len())
    }
}

/// So many values of a call need no memory of their own.
const FEW: usize = 8;

/// The error of a host function that has returned this object as its trap.
#[cold]
pub(crate) fn raised(trap: &wasm_ref_t) -> Error {
    let trap = match trap.trap() {
        Ok(trap) => trap,
        Err(error) => return error,
    };
    if let Some(error) = &trap.error {
        if let Some(exception) = error.downcast_ref::<Exception>() {
            // Guests can catch it.
            return exception.clone().into();
        }
        if let Some(UsageError::PutOff) = error.downcast_ref() {
            // The guest is suspended.
            return UsageError::PutOff.into();
        }
    }
    TrapObject::raise(trap)
}

/// The wrong number of something.
#[cold]
pub(crate) fn wrong_count(what: &'static str, expected: usize, found: usize) -> Error {
    BorderError::Count { what, expected, found }.into()
}

/// Calls a function with values of C's.
///
/// # Errors
/// If the values do not fit; else what ended the call.
#[inline]
pub(crate) fn call<V: CValue>(
    store: &StoreRef,
    func: &Func,
    shape: Shape,
    args: &[V],
    results: &mut [MaybeUninit<V>],
) -> Result<()> {
    let shape = store.shape_of(shape);
    if args.len() != shape.params.len() {
        return Err(wrong_count("arguments", shape.params.len(), args.len()));
    }
    if !shape.passes_as_is(V::HAS_VECTORS) {
        return call_checked(store, func, shape, args, results);
    }
    let count = args.len().max(shape.results.len());
    if count > FEW {
        return call_with_many(store, func, shape, args, results);
    }
    let mut few = [const { MaybeUninit::uninit() }; FEW];
    call_with_numbers(store, func, shape, args, results, &mut few[..count])
}

/// Apart, since few functions have so many values.
#[inline(never)]
fn call_with_many<V: CValue>(
    store: &StoreRef,
    func: &Func,
    shape: &FuncShape,
    args: &[V],
    results: &mut [MaybeUninit<V>],
) -> Result<()> {
    let mut values = vec![MaybeUninit::uninit(); args.len().max(shape.results.len())];
    call_with_numbers(store, func, shape, args, results, &mut values)
}

/// Calls a function of numbers and vectors, whose arguments are as many as it has parameters. There is a place in
/// `values` for each argument, and for each result.
///
/// # Errors
/// As of [`call`].
#[inline(always)]
fn call_with_numbers<V: CValue>(
    store: &StoreRef,
    func: &Func,
    shape: &FuncShape,
    args: &[V],
    results: &mut [MaybeUninit<V>],
    values: &mut [MaybeUninit<ValRaw>],
) -> Result<()> {
    for (index, ((arg, kind), value)) in
        args.iter().zip(&shape.params).zip(&mut *values).enumerate()
    {
        if arg.kind() != *kind {
            return Err(wrong_argument(index, arg.kind(), *kind));
        }
        value.write(arg.number());
    }
    let mut context = store.any_context()?;
    // SAFETY: the values are of the kinds that the function's type has, which were just compared,
    // and there are as many as it has results.
    unsafe { func.call_unchecked(&mut context, &raw mut *values as *mut [ValRaw])? };
    check_results(shape, results.len())?;
    for ((result, kind), value) in results.iter_mut().zip(&shape.results).zip(&*values) {
        // SAFETY: the function has returned, so that its results are there.
        result.write(unsafe { V::of_place(*kind, value.as_ptr()) });
    }
    Ok(())
}

/// Checks that there is a place for each result. That is looked at once the function has returned:
/// programs call functions that only trap with no places at all, and expect their trap.
#[inline]
fn check_results(shape: &FuncShape, found: usize) -> Result<()> {
    match shape.results.len() == found {
        true => Ok(()),
        false => Err(wrong_count("results", shape.results.len(), found)),
    }
}

/// What C gives a function of this type, as values of the store.
///
/// # Errors
/// If the values are not of its type.
pub(crate) fn given_values<V: CValue>(
    args: &[V],
    ty: &FuncType,
    store: &StoreRef,
) -> Result<Vec<Val>> {
    if args.len() != ty.params.len() {
        return Err(wrong_count("arguments", ty.params.len(), args.len()));
    }
    args.iter().zip(&ty.params).map(|(arg, ty)| arg.to_val(*ty, store)).collect()
}

#[cold]
fn wrong_argument(index: usize, found: u8, expected: u8) -> Error {
    let (found, expected) = (kind_name(found), kind_name(expected));
    let text = format!("type mismatch: parameter {index} is {found}, expected {expected}");
    BorderError::Unfit(text).into()
}

#[cold]
fn call_checked<V: CValue>(
    store: &StoreRef,
    func: &Func,
    shape: &FuncShape,
    args: &[V],
    results: &mut [MaybeUninit<V>],
) -> Result<()> {
    let params = given_values(args, shape.ty(), store)?;
    let mut values = vec![Val::I32(0); shape.results.len()];
    let mut context = store.any_context()?;
    func.call(context.as_context_mut(), &params, &mut values)?;
    check_results(shape, results.len())?;
    let mut own = OwnedValues(Vec::with_capacity(values.len()));
    for value in values {
        own.0.push(V::of_val(value, store)?);
    }
    for (result, value) in results.iter_mut().zip(own.0.drain(..)) {
        result.write(value);
    }
    Ok(())
}
