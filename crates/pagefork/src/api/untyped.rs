//! Host functions on slices of values, of types that Rust does not know: called directly where their
//! values fit registers, else through cells.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::{array, slice};

use pagefork_layout::link::function_import::{self, FLOATS_MAX, INTS_MAX};
use pagefork_layout::module::{FuncType, ValType};

use crate::api::foreign::ForeignFunction;
use crate::api::func::Caller;
use crate::api::host_func::{check_result, unset, values_of_call};
use crate::api::raw::ValRaw;
use crate::api::registers::{
    RegisterCallee, RegisterResult, RegisterValues, bits, has_floats, in_registers,
    in_registers_as, is_float,
};
use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::code::engine::Engine;
use crate::store::group::StoreGroup;
use crate::store::host_func::HostFunc;
use crate::store::value::Val;

/// A host function of any type on values that are checked.
pub(crate) fn on_values<T: 'static>(
    engine: &Engine,
    ty: FuncType,
    function: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
) -> HostFunc {
    if !function_import::is_direct(&ty) {
        return in_cells(engine, ty, function);
    }
    let (has_floats, signature) = (has_floats(&ty), Signature::new(ty.clone()));
    match has_floats {
        true => in_registers(engine, ty, OnValues::<_, true> { signature, function }),
        false => in_registers(engine, ty, OnValues::<_, false> { signature, function }),
    }
}

fn in_cells<T: 'static>(
    engine: &Engine,
    ty: FuncType,
    function: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
) -> HostFunc {
    HostFunc::in_cells_of_type(engine, ty, |types| {
        let types = Arc::clone(types);
        Box::new(move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
            // SAFETY: `HostCall` says that store, cells and base are of one store and function type.
            unsafe {
                let owner = (*store).ordinal_of(base);
                // A function that this one calls takes another buffer.
                let mut values = (*store).values.take();
                values.extend(values_of_call(&*store, cells, base, &types));
                let (params, results) = values.split_at_mut(types.params.len());
                let result = function(Caller::new(store, base), params, results);
                let result = result.and_then(|()| {
                    for (i, value) in results.iter().enumerate() {
                        check_result(&*store, &types, i, value)?;
                        cells.add(i).write(value.to_cell(&*store, owner)?);
                    }
                    Ok(())
                });
                (*store).values.give_back(values);
                result
            }
        })
    })
}

/// A type of numbers, which registers hold.
#[derive(Clone, Copy, Debug)]
enum Number {
    I32,
    I64,
    F32,
    F64,
}

impl Number {
    fn of(ty: ValType) -> Self {
        match ty {
            ValType::I32 => Self::I32,
            ValType::I64 => Self::I64,
            ValType::F32 => Self::F32,
            ValType::F64 => Self::F64,
            ValType::V128 | ValType::Ref(_) => unreachable!("no register holds it"),
        }
    }

    /// The value with these bits, of which those count that it has.
    fn value(self, word: u64) -> Val {
        match self {
            Self::I32 => Val::I32(word as i32),
            Self::I64 => Val::I64(word as i64),
            Self::F32 => Val::F32(word as u32),
            Self::F64 => Val::F64(word),
        }
    }

    /// The bits of a value; `None` if it is of another type.
    fn word(self, value: &Val) -> Option<u64> {
        match (self, value) {
            (Self::I32, Val::I32(value)) => Some(u64::from(*value as u32)),
            (Self::I64, Val::I64(value)) => Some(*value as u64),
            (Self::F32, Val::F32(bits)) => Some(u64::from(*bits)),
            (Self::F64, Val::F64(bits)) => Some(*bits),
            _ => None,
        }
    }
}

/// A type whose values fit registers: where the arguments are.
struct Signature {
    ty: FuncType,
    /// Each parameter's type, and which register of its kind has it.
    params: Box<[(Number, usize)]>,
    result: Option<Number>,
}

impl Signature {
    fn new(ty: FuncType) -> Self {
        let (mut ints, mut floats) = (0.., 0..);
        let place = |ty: &ValType| match Number::of(*ty) {
            number @ (Number::I32 | Number::I64) => (number, ints.next().unwrap_or(0)),
            number @ (Number::F32 | Number::F64) => (number, floats.next().unwrap_or(0)),
        };
        let params = ty.params.iter().map(place).collect();
        let result = ty.results.first().map(|ty| Number::of(*ty));
        Self { ty, params, result }
    }

    /// Gives the arguments in their order: index, type, and bits, of which those count that the type
    /// has. Without floats the registers are in that order, and stay registers.
    #[inline(always)]
    fn each_word<const FLOATS: bool>(
        &self,
        registers: &RegisterValues,
        mut put: impl FnMut(usize, Number, u64),
    ) {
        if !FLOATS {
            for (index, (word, (number, _))) in registers.ints.iter().zip(&self.params).enumerate()
            {
                put(index, *number, *word);
            }
            return;
        }
        for (index, (number, register)) in self.params.iter().enumerate() {
            let word = match number {
                Number::I32 | Number::I64 => registers.ints[*register],
                Number::F32 | Number::F64 => registers.floats[*register].to_bits(),
            };
            put(index, *number, word);
        }
    }
}

/// A function on values of a type that fits registers.
struct OnValues<F, const FLOATS: bool> {
    signature: Signature,
    function: F,
}

impl<T, F, const FLOATS: bool> RegisterCallee<T> for OnValues<F, FLOATS>
where
    T: 'static,
    F: Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
{
    const HAS_FLOATS: bool = FLOATS;

    #[inline(always)]
    fn call(&self, caller: Caller<'_, T>, registers: RegisterValues) -> Result<RegisterResult> {
        let (store, base) = caller.into_parts();
        let Signature { ty, params, result } = &self.signature;
        let mut values = [const { MaybeUninit::uninit() }; INTS_MAX + FLOATS_MAX + 1];
        self.signature.each_word::<FLOATS>(&registers, |index, number, word| {
            values[index].write(number.value(word));
        });
        for (place, ty) in values[params.len()..].iter_mut().zip(&ty.results) {
            place.write(unset(*ty));
        }
        let count = params.len() + ty.results.len();
        // SAFETY: so many were written: there is room for all that fit registers, and a result.
        let values = unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast::<Val>(), count) };
        let (params, results) = values.split_at_mut(params.len());
        // SAFETY: the parts are those of a caller of this store.
        let caller = unsafe { Caller::new(store, base) };
        (self.function)(caller, params, results)?;
        let (Some(value), Some(number)) = (results.first(), result) else {
            return Ok(RegisterResult::default());
        };
        if let Some(word) = number.word(value) {
            return Ok(RegisterResult::from_word(word));
        }
        // SAFETY: the caller had lent the store, and the function has returned.
        check_result(unsafe { &*store }, ty, 0, value)?;
        unreachable!("a value of another type is refused")
    }
}

/// So many parameters have a register.
const PARAMS_MAX: usize = INTS_MAX + FLOATS_MAX;

/// A function on values that are not checked, of a type that fits registers.
struct OnRawValues<F, const FLOATS: bool> {
    function: F,
    /// The bits of each parameter that count; of those that are not there, none do.
    bits: [u64; PARAMS_MAX],
    /// Which of the registers has each, those of integers first.
    registers: [u8; PARAMS_MAX],
    params: usize,
    /// How many values the function gets.
    count: usize,
    /// Whether its result is of 4 bytes.
    is_narrow: bool,
}

impl<F, const FLOATS: bool> OnRawValues<F, FLOATS> {
    fn new(ty: &FuncType, function: F) -> Self {
        let (mut ints, mut floats) = (0.., INTS_MAX as u8..);
        let (mut counting, mut registers) = ([0; PARAMS_MAX], [0; PARAMS_MAX]);
        for (index, ty) in ty.params.iter().enumerate() {
            let next = if is_float(*ty) { floats.next() } else { ints.next() };
            (counting[index], registers[index]) = (bits(*ty), next.unwrap_or(0));
        }
        let (params, count) = (ty.params.len(), ty.params.len().max(ty.results.len()));
        let is_narrow = ty.results.first().is_some_and(|ty| bits(*ty) != u64::MAX);
        Self { function, bits: counting, registers, params, count, is_narrow }
    }
}

impl<T, F, const FLOATS: bool> RegisterCallee<T> for OnRawValues<F, FLOATS>
where
    T: 'static,
    F: Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
{
    const HAS_FLOATS: bool = FLOATS;

    #[inline(always)]
    fn call(&self, caller: Caller<'_, T>, given: RegisterValues) -> Result<RegisterResult> {
        let RegisterValues { ints, floats } = given;
        let mut values = [const { MaybeUninit::uninit() }; PARAMS_MAX];
        match FLOATS {
            true => {
                let words: [u64; PARAMS_MAX] = array::from_fn(|index| match index {
                    0..INTS_MAX => ints[index],
                    _ => floats[index - INTS_MAX].to_bits(),
                });
                let params = values.iter_mut().zip(&self.registers).zip(&self.bits);
                for ((place, register), bits) in params.take(self.params) {
                    ValRaw::write_word(place, words[usize::from(*register)] & bits);
                }
            }
            // Registers are in the order of the parameters, and stay registers. To look at how many
            // there are costs as much as to write one.
            false => {
                let mut write = |index: usize| {
                    ValRaw::write_word(&mut values[index], ints[index] & self.bits[index]);
                };
                write(0);
                if self.params > 1 {
                    (1..INTS_MAX).for_each(write);
                }
            }
        }
        let values = values.as_mut_ptr().cast::<ValRaw>();
        // SAFETY: one for each parameter was written, and the first one, where a result is: if there are
        // floats, there is a parameter.
        let word = unsafe {
            (self.function)(caller, slice::from_raw_parts_mut(values, self.count))?;
            // No more bytes than a function of C's may just have written: a processor waits for a read of
            // more. Volatile, since a compiler may read both, and choose.
            match self.is_narrow {
                true => u64::from(values.cast::<u32>().read_volatile()),
                false => values.cast::<u64>().read_volatile(),
            }
        };
        Ok(RegisterResult::from_word(word))
    }
}

/// A host function on values that are not checked, if they fit registers.
///
/// # Safety
/// As of [`Func::new_unchecked`](crate::Func::new_unchecked).
pub(crate) unsafe fn on_raw_values<T: 'static>(
    engine: &Engine,
    ty: FuncType,
    function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
    foreign: Option<ForeignFunction<T>>,
) -> HostFunc {
    match has_floats(&ty) {
        true => {
            let callee = OnRawValues::<_, true>::new(&ty, function);
            in_registers_as(engine, ty, callee, foreign)
        }
        false => {
            let callee = OnRawValues::<_, false>::new(&ty, function);
            in_registers_as(engine, ty, callee, foreign)
        }
    }
}
