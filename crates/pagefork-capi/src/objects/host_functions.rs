//! C functions with values as host functions: guests call them directly if their values fit registers.

use std::array;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::slice;

use pagefork::{
    Caller, Error, Func, FuncType, Linker, RegisterCallee, RegisterResult, RegisterValues, Result,
    Val, ValRaw, ValType,
};

use crate::base::border::BorderError;
use crate::objects::callback::{Callback, raised};
use crate::objects::store::{HostData, StoreCell, StoreRef};
use crate::objects::types::kind_of;
use crate::objects::value::{CValue, OwnedValues, kind_name};

/// So many values need no memory of their own.
const FEW: usize = 8;

/// Where a C function becomes a host function.
pub(crate) enum Place<'a> {
    /// In a store.
    Store(&'a StoreRef),
    /// In a linker, by two names.
    Linker(&'a mut Linker<HostData>, &'a str, &'a str),
}

/// Makes a C function a host function; that of a store is returned.
///
/// # Errors
/// If the store may not be reached, or the name is defined.
pub(crate) fn define<V: CValue>(
    callback: impl Callback<V>,
    place: Place<'_>,
    ty: FuncType,
) -> Result<Option<Func>> {
    if RegisterValues::fit(&ty) {
        return define_numbers(callback, place, ty);
    }
    let passes_as_is = |ty: &ValType| ty.is_num() || V::HAS_VECTORS && ty.is_v128();
    if ty.params.iter().chain(&ty.results).all(passes_as_is) {
        let params: Box<[u8]> = ty.params.iter().map(|ty| kind_of(*ty)).collect();
        let results: Box<[u8]> = ty.results.iter().map(|ty| kind_of(*ty)).collect();
        let function = move |caller: Caller<'_, HostData>, values: &mut [ValRaw]| {
            call_with_numbers(&callback, caller, &params, &results, values)
        };
        // SAFETY: the results are numbers and vectors of the type's kinds.
        unsafe {
            return match place {
                Place::Store(store) => {
                    Ok(Some(Func::new_unchecked(&mut store.context()?, ty, function)))
                }
                Place::Linker(linker, module, name) => {
                    linker.func_new_unchecked(module, name, ty, function).map(|_| None)
                }
            };
        }
    }
    let types = ty.clone();
    let function = move |caller: Caller<'_, HostData>, params: &[Val], results: &mut [Val]| {
        call_with_values(&callback, caller, &types, params, results)
    };
    match place {
        Place::Store(store) => Ok(Some(Func::new(&mut store.context()?, ty, function))),
        Place::Linker(linker, module, name) => {
            linker.func_new(module, name, ty, function).map(|_| None)
        }
    }
}

fn call_with_numbers<V: CValue>(
    callback: &impl Callback<V>,
    mut caller: Caller<'_, HostData>,
    params: &[u8],
    results: &[u8],
    values: &mut [ValRaw],
) -> Result<()> {
    let total = params.len() + results.len();
    let (mut few, mut many) = ([const { MaybeUninit::<V>::uninit() }; FEW], Vec::new());
    let places = match total <= FEW {
        true => &mut few[..total],
        false => {
            many.resize(total, MaybeUninit::uninit());
            &mut many[..]
        }
    };
    let args = params.iter().zip(&*values).map(|(kind, value)| V::of_number(*kind, *value));
    let zeros = results.iter().map(|kind| V::zero(*kind));
    for (place, value) in places.iter_mut().zip(args.chain(zeros)) {
        place.write(value);
    }
    // SAFETY: each was just written.
    let all = unsafe { slice::from_raw_parts_mut(places.as_mut_ptr().cast::<V>(), total) };
    let (args, own) = all.split_at_mut(params.len());
    let trap = StoreCell::with_caller(&mut caller, callback.env(), |_, caller| {
        callback.call(caller, args, own)
    })?;
    if let Some(trap) = trap {
        return Err(raised(&trap));
    }
    for (index, (result, kind)) in own.iter().zip(results).enumerate() {
        if result.kind() != *kind {
            return Err(wrong_result(index, result.kind(), *kind));
        }
        values[index] = result.number();
    }
    Ok(())
}

fn call_with_values<V: CValue>(
    callback: &impl Callback<V>,
    mut caller: Caller<'_, HostData>,
    ty: &FuncType,
    params: &[Val],
    results: &mut [Val],
) -> Result<()> {
    StoreCell::with_caller(&mut caller, callback.env(), |cell, caller| {
        let store = &cell.handle().0;
        let mut args = OwnedValues::<V>(Vec::with_capacity(params.len()));
        for param in params {
            args.0.push(V::of_val(*param, store)?);
        }
        let zero = |ty: &ValType| V::zero(kind_of(*ty));
        // What C puts here is ours, whether it fits or not, and also on failure.
        let mut own = OwnedValues::<V>(ty.results.iter().map(zero).collect());
        if let Some(trap) = callback.call(caller, &mut args.0, &mut own.0) {
            return Err(raised(&trap));
        }
        for ((result, value), ty) in results.iter_mut().zip(&own.0).zip(&ty.results) {
            *result = value.to_val(*ty, store)?;
        }
        Ok(())
    })?
}

/// A C function has left a value of another kind.
#[cold]
fn wrong_result(index: usize, found: u8, expected: u8) -> Error {
    let (found, expected) = (kind_name(found), kind_name(expected));
    let text = format!("result {index} of a host function is {found}, expected {expected}");
    BorderError::Unfit(text).into()
}

const INTS_MAX: usize = RegisterValues::INTS_MAX;

/// So many parameters have a register.
const PARAMS_MAX: usize = INTS_MAX + RegisterValues::FLOATS_MAX;

/// A parameter: its kind, and which of the registers has it, those of integers first.
#[derive(Clone, Copy, Default)]
struct Param {
    kind: u8,
    register: u8,
}

/// A C function with values of `V`, with what its type says about each.
struct NumberFunction<C, V, const FLOATS: bool> {
    callback: C,
    /// Invariant: at most [`INTS_MAX`] are no floats, and all of them if there are no `FLOATS`.
    params: [Param; PARAMS_MAX],
    /// How many parameters there are.
    count: usize,
    /// The kind of the result, if there is one.
    result: Option<u8>,
    values: PhantomData<fn() -> V>,
}

fn is_float(ty: &ValType) -> bool {
    matches!(ty, ValType::F32 | ValType::F64)
}

/// Whether there are floats among the parameters.
pub(crate) fn has_floats(ty: &FuncType) -> bool {
    ty.params.iter().any(is_float)
}

/// Makes a C function of numbers that fit registers a host function; that of a store is returned.
///
/// # Errors
/// If the store may not be reached, or the name is defined.
fn define_numbers<V: CValue>(
    callback: impl Callback<V>,
    place: Place<'_>,
    ty: FuncType,
) -> Result<Option<Func>> {
    match has_floats(&ty) {
        true => place.define(ty.clone(), NumberFunction::<_, V, true>::new(callback, &ty)),
        false => place.define(ty.clone(), NumberFunction::<_, V, false>::new(callback, &ty)),
    }
}

impl Place<'_> {
    fn define(self, ty: FuncType, callee: impl RegisterCallee<HostData>) -> Result<Option<Func>> {
        match self {
            Place::Store(store) => {
                Func::new_with_registers(&mut store.context()?, ty, callee).map(Some)
            }
            Place::Linker(linker, module, name) => {
                linker.func_new_with_registers(module, name, ty, callee).map(|_| None)
            }
        }
    }
}

impl<C, V, const FLOATS: bool> NumberFunction<C, V, FLOATS> {
    fn new(callback: C, ty: &FuncType) -> Self {
        let (mut ints, mut floats) = (0.., INTS_MAX as u8..);
        let mut params = [Param::default(); PARAMS_MAX];
        for (param, ty) in params.iter_mut().zip(&ty.params) {
            let registers = if is_float(ty) { &mut floats } else { &mut ints };
            *param = Param { kind: kind_of(*ty), register: registers.next().unwrap_or(0) };
        }
        let result = ty.results.first().map(|ty| kind_of(*ty));
        Self { callback, params, count: ty.params.len(), result, values: PhantomData }
    }
}

impl<C: Callback<V>, V: CValue, const FLOATS: bool> RegisterCallee<HostData>
    for NumberFunction<C, V, FLOATS>
{
    const HAS_FLOATS: bool = FLOATS;

    #[inline(always)]
    fn call(
        &self,
        mut caller: Caller<'_, HostData>,
        values: RegisterValues,
    ) -> Result<RegisterResult> {
        let RegisterValues { ints, floats } = values;
        // Only what there are arguments for is written.
        let mut args = [const { MaybeUninit::<V>::uninit() }; PARAMS_MAX];
        let places = args.iter_mut().zip(&self.params).take(self.count);
        match FLOATS {
            true => {
                let words: [u64; PARAMS_MAX] = array::from_fn(|index| match index {
                    0..INTS_MAX => ints[index],
                    _ => floats[index - INTS_MAX].to_bits(),
                });
                for (place, param) in places {
                    place.write(V::of_word(param.kind, words[usize::from(param.register)]));
                }
            }
            false => {
                for ((place, param), word) in places.zip(ints) {
                    place.write(V::of_word(param.kind, word));
                }
            }
        }
        // SAFETY: so many were written just now: without floats they are no more than the integers.
        let args = unsafe { slice::from_raw_parts_mut(args.as_mut_ptr().cast::<V>(), self.count) };
        let mut result = MaybeUninit::uninit();
        let result = V::put_zero(&mut result, self.result.unwrap_or(0));
        let results = &mut slice::from_mut(result)[..usize::from(self.result.is_some())];
        let trap = StoreCell::with_caller(&mut caller, self.callback.env(), |_, caller| {
            self.callback.call(caller, args, results)
        })?;
        if let Some(trap) = trap {
            return Err(raised(&trap));
        }
        let Some(kind) = self.result else { return Ok(RegisterResult::default()) };
        if result.kind() != kind {
            return Err(wrong_result(0, result.kind(), kind));
        }
        let word = result.word();
        Ok(RegisterResult { int: word, float: f64::from_bits(word) })
    }
}
