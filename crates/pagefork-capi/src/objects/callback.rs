//! C functions as host functions, and calls of functions, with values of `wasm.h`.

use std::ffi::c_void;

use pagefork::{AsContextMut, Caller, Error, Func, FuncType, Result, Val, ValRaw, ValType};

use crate::base::border::BorderError;
use crate::base::c_vec::CVec;
use crate::objects::host_info::HostInfo;
use crate::objects::object::wasm_ref_t;
use crate::objects::store::{FuncShape, HostData, Shape, StoreCell, StoreRef};
use crate::objects::trap::TrapObject;
use crate::objects::types::kind_of;
use crate::objects::value::{kind_name, wasm_val_t};

/// A vector of values.
pub(crate) type wasm_val_vec_t = CVec<wasm_val_t>;

/// A C function with values of `wasm.h`.
pub(crate) type wasm_func_callback_t =
    extern "C-unwind" fn(*const wasm_val_vec_t, *mut wasm_val_vec_t) -> Option<Box<wasm_ref_t>>;

/// A C function with an environment and values of `wasm.h`.
pub(crate) type wasm_func_callback_with_env_t = extern "C-unwind" fn(
    *mut c_void,
    *const wasm_val_vec_t,
    *mut wasm_val_vec_t,
) -> Option<Box<wasm_ref_t>>;

/// A C function, and its environment.
pub(crate) enum Callback {
    /// Without an environment.
    Plain(wasm_func_callback_t),
    /// With one, which is finalized with the function.
    WithEnv(wasm_func_callback_with_env_t, HostInfo),
}

/// So many values need no memory of their own.
const FEW: usize = 8;

impl Callback {
    fn call(&self, args: &wasm_val_vec_t, results: &mut wasm_val_vec_t) -> Option<Box<wasm_ref_t>> {
        match self {
            Self::Plain(function) => function(args, results),
            Self::WithEnv(function, env) => function(env.data(), args, results),
        }
    }

    /// Makes it a function of a store.
    ///
    /// # Errors
    /// If the store may not be reached.
    pub(crate) fn into_func(self, store: &StoreRef, ty: FuncType) -> Result<Func> {
        let mut context = store.context()?;
        let is_number = |ty: &ValType| ty.is_num();
        if ty.params.iter().chain(&ty.results).all(is_number) {
            let params: Box<[u8]> = ty.params.iter().map(|ty| kind_of(*ty)).collect();
            let results: Box<[u8]> = ty.results.iter().map(|ty| kind_of(*ty)).collect();
            let function = move |caller: Caller<'_, HostData>, values: &mut [ValRaw]| {
                self.call_with_numbers(caller, &params, &results, values)
            };
            // SAFETY: the results are numbers of the type's kinds.
            return Ok(unsafe { Func::new_unchecked(&mut context, ty, function) });
        }
        let types = ty.clone();
        Ok(Func::new(&mut context, ty, move |caller, params, results| {
            self.call_with_values(caller, &types, params, results)
        }))
    }

    fn call_with_numbers(
        &self,
        mut caller: Caller<'_, HostData>,
        params: &[u8],
        results: &[u8],
        values: &mut [ValRaw],
    ) -> Result<()> {
        let (count, total) = (params.len(), params.len() + results.len());
        let (mut few, mut many) = ([const { wasm_val_t::zero(0) }; FEW], Vec::new());
        let all = match total <= FEW {
            true => &mut few[..total],
            false => {
                many.resize(total, wasm_val_t::zero(0));
                &mut many[..]
            }
        };
        let (args, own) = all.split_at_mut(count);
        for ((arg, kind), value) in args.iter_mut().zip(params).zip(&*values) {
            *arg = wasm_val_t::of_number(*kind, *value);
        }
        for (result, kind) in own.iter_mut().zip(results) {
            result.kind = *kind;
        }
        let (args, mut answer) = (CVec::of(args), CVec::of(own));
        let trap = StoreCell::in_host_function(&mut caller, |_| self.call(&args, &mut answer));
        if let Some(trap) = trap {
            return Err(raised(&trap));
        }
        for (index, (result, kind)) in own.iter().zip(results).enumerate() {
            if result.kind != *kind {
                return Err(wrong_result(index, result.kind, *kind));
            }
            values[index] = result.number();
        }
        Ok(())
    }

    fn call_with_values(
        &self,
        mut caller: Caller<'_, HostData>,
        ty: &FuncType,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<()> {
        StoreCell::in_host_function(&mut caller, |store| {
            let mut args = FreedValues(Vec::with_capacity(params.len()));
            for param in params {
                args.0.push(wasm_val_t::of_val(*param, store)?);
            }
            let zero = |ty: &ValType| wasm_val_t::zero(kind_of(*ty));
            let mut own: Vec<wasm_val_t> = ty.results.iter().map(zero).collect();
            let (list, mut answer) = (CVec::of(&mut args.0), CVec::of(&mut own));
            if let Some(trap) = self.call(&list, &mut answer) {
                return Err(raised(&trap));
            }
            // They are ours now, whether they fit or not.
            let own = FreedValues(own);
            for ((result, value), ty) in results.iter_mut().zip(&own.0).zip(&ty.results) {
                *result = value.to_val(*ty, store)?;
            }
            Ok(())
        })
    }
}

/// Values that are freed at the end.
struct FreedValues(Vec<wasm_val_t>);

impl Drop for FreedValues {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(wasm_val_t::free);
    }
}

#[cold]
fn wrong_result(index: usize, found: u8, expected: u8) -> Error {
    let (found, expected) = (kind_name(found), kind_name(expected));
    let text = format!("result {index} of a host function is {found}, expected {expected}");
    BorderError::Unfit(text).into()
}

/// The error of a host function that has returned this object as its trap.
#[cold]
pub(crate) fn raised(trap: &wasm_ref_t) -> Error {
    match trap.trap() {
        Ok(trap) => TrapObject::raise(trap),
        Err(error) => error,
    }
}

#[cold]
fn wrong_count(what: &'static str, expected: usize, found: usize) -> Error {
    BorderError::Count { what, expected, found }.into()
}

/// Calls a function with values of `wasm.h`.
///
/// # Errors
/// If the values do not fit, before anything is called; else what ended the call.
#[inline]
pub(crate) fn call(
    store: &StoreRef,
    func: &Func,
    shape: Shape,
    args: Option<&wasm_val_vec_t>,
    results: Option<&mut wasm_val_vec_t>,
) -> Result<()> {
    let shape = store.shape_of(shape);
    let args: &[wasm_val_t] = match args {
        Some(args) => args.elements()?,
        None => &[],
    };
    let results = match results {
        Some(results) => results.places()?,
        None => &mut [],
    };
    if args.len() != shape.params.len() {
        return Err(wrong_count("arguments", shape.params.len(), args.len()));
    }
    if !shape.is_numeric {
        return call_with_values(store, func, shape, args, results);
    }
    let (mut few, mut many) = ([ValRaw::default(); FEW], Vec::new());
    let count = args.len().max(shape.results.len());
    let values = match count <= FEW {
        true => &mut few[..count],
        false => {
            many.resize(count, ValRaw::default());
            &mut many[..]
        }
    };
    for (index, ((arg, kind), value)) in
        args.iter().zip(&shape.params).zip(&mut *values).enumerate()
    {
        if arg.kind != *kind {
            return Err(wrong_argument(index, arg.kind, *kind));
        }
        *value = arg.number();
    }
    let mut context = store.context()?;
    // SAFETY: the values are numbers of the kinds that the function's type has, which were just
    // compared, and there are as many as it has results.
    unsafe { func.call_unchecked(&mut context, &raw mut *values)? };
    check_results(shape, results.len())?;
    for ((result, kind), value) in results.iter_mut().zip(&shape.results).zip(&*values) {
        result.write(wasm_val_t::of_number(*kind, *value));
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

#[cold]
fn wrong_argument(index: usize, found: u8, expected: u8) -> Error {
    let (found, expected) = (kind_name(found), kind_name(expected));
    let text = format!("type mismatch: parameter {index} is {found}, expected {expected}");
    BorderError::Unfit(text).into()
}

#[cold]
fn call_with_values(
    store: &StoreRef,
    func: &Func,
    shape: &FuncShape,
    args: &[wasm_val_t],
    results: &mut [std::mem::MaybeUninit<wasm_val_t>],
) -> Result<()> {
    let ty = func.ty(&store.context()?);
    let params = args.iter().zip(&ty.params).map(|(arg, ty)| arg.to_val(*ty, store));
    let params: Vec<Val> = params.collect::<Result<_>>()?;
    let mut values = vec![Val::I32(0); shape.results.len()];
    let mut context = store.context()?;
    func.call(context.as_context_mut(), &params, &mut values)?;
    check_results(shape, results.len())?;
    let mut own = FreedValues(Vec::with_capacity(values.len()));
    for value in values {
        own.0.push(wasm_val_t::of_val(value, store)?);
    }
    for (result, value) in results.iter_mut().zip(own.0.drain(..)) {
        result.write(value);
    }
    Ok(())
}
