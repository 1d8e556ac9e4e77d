//! Host functions on slices of values, of types that Rust does not know: called directly where their
//! values fit registers, else through cells.

use std::mem;
use std::sync::Arc;

use pagefork_layout::link::function_import::{self, FLOATS_MAX, INTS_MAX};
use pagefork_layout::module::{FuncType, ValType};

use crate::api::func::Caller;
use crate::api::host_func::{check_result, unset};
use crate::api::raw::ValRaw;
use crate::api::registers::{
    RegisterCallee, RegisterResult, RegisterValues, has_floats, in_registers,
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
    match has_floats(&ty) {
        true => in_registers(engine, ty.clone(), OnValues::<_, true> { ty, function }),
        false => in_registers(engine, ty.clone(), OnValues::<_, false> { ty, function }),
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
                let mut values = mem::take(&mut (*store).values);
                values.clear();
                for (i, ty) in types.params.iter().enumerate() {
                    values.push(Val::from_cell(cells.add(i).read(), *ty, &*store, owner));
                }
                values.extend(types.results.iter().map(|ty| unset(*ty)));
                let (params, results) = values.split_at_mut(types.params.len());
                let result = function(Caller::new(store, base), params, results);
                let result = result.and_then(|()| {
                    for (i, value) in results.iter().enumerate() {
                        check_result(&*store, &types, i, value)?;
                        cells.add(i).write(value.to_cell(&*store, owner)?);
                    }
                    Ok(())
                });
                (*store).values = values;
                result
            }
        })
    })
}

/// A function on values of a type that fits registers.
struct OnValues<F, const FLOATS: bool> {
    ty: FuncType,
    function: F,
}

impl<T, F, const FLOATS: bool> RegisterCallee<T> for OnValues<F, FLOATS>
where
    T: 'static,
    F: Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
{
    const HAS_FLOATS: bool = FLOATS;

    #[inline]
    fn call(&self, caller: Caller<'_, T>, registers: RegisterValues) -> Result<RegisterResult> {
        let (store, base) = caller.into_parts();
        // A function that this one calls takes another buffer.
        // SAFETY: the caller has lent the store, and is gone.
        let mut values = unsafe { mem::take(&mut (*store).values) };
        values.clear();
        let params = self.ty.params.iter().zip(registers.words(&self.ty.params));
        values.extend(params.map(|(ty, word)| value(*ty, word)));
        values.extend(self.ty.results.iter().map(|ty| unset(*ty)));
        let (params, results) = values.split_at_mut(self.ty.params.len());
        // SAFETY: the parts are those of a caller of this store.
        let caller = unsafe { Caller::new(store, base) };
        let result = (self.function)(caller, params, results).and_then(|()| {
            let (Some(value), Some(ty)) = (results.first(), self.ty.results.first()) else {
                return Ok(RegisterResult::default());
            };
            register(*ty, value).map_or_else(
                || {
                    // SAFETY: the store is lent, and the function has returned.
                    check_result(unsafe { &*store }, &self.ty, 0, value)?;
                    unreachable!("a value of another type is refused")
                },
                Ok,
            )
        });
        // SAFETY: the store is lent, and the function has returned.
        unsafe { (*store).values = values };
        result
    }
}

/// The value of a type that fits a register, from its bits.
fn value(ty: ValType, word: u64) -> Val {
    match ty {
        ValType::I32 => Val::I32(word as i32),
        ValType::I64 => Val::I64(word as i64),
        ValType::F32 => Val::F32(word as u32),
        ValType::F64 => Val::F64(word),
        ValType::V128 | ValType::Ref(_) => unreachable!("no register holds it"),
    }
}

/// A value of this type as a register has it; `None` if it is of another one.
fn register(ty: ValType, value: &Val) -> Option<RegisterResult> {
    let word = match (ty, value) {
        (ValType::I32, Val::I32(value)) => u64::from(*value as u32),
        (ValType::I64, Val::I64(value)) => *value as u64,
        (ValType::F32, Val::F32(bits)) => u64::from(*bits),
        (ValType::F64, Val::F64(bits)) => *bits,
        _ => return None,
    };
    Some(RegisterResult::from_word(word))
}

/// A function on values that are not checked, of a type that fits registers.
struct OnRawValues<F, const FLOATS: bool> {
    ty: FuncType,
    function: F,
}

impl<T, F, const FLOATS: bool> RegisterCallee<T> for OnRawValues<F, FLOATS>
where
    T: 'static,
    F: Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
{
    const HAS_FLOATS: bool = FLOATS;

    #[inline]
    fn call(&self, caller: Caller<'_, T>, registers: RegisterValues) -> Result<RegisterResult> {
        let mut values = [ValRaw::default(); INTS_MAX + FLOATS_MAX];
        for (value, word) in values.iter_mut().zip(registers.words(&self.ty.params)) {
            *value = ValRaw::u64(word);
        }
        let count = self.ty.params.len().max(self.ty.results.len());
        (self.function)(caller, &mut values[..count])?;
        Ok(RegisterResult::from_word(match self.ty.results.first() {
            None => 0,
            Some(ValType::I32 | ValType::F32) => values[0].get_u32().into(),
            Some(_) => values[0].get_u64(),
        }))
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
) -> HostFunc {
    match has_floats(&ty) {
        true => in_registers(engine, ty.clone(), OnRawValues::<_, true> { ty, function }),
        false => in_registers(engine, ty.clone(), OnRawValues::<_, false> { ty, function }),
    }
}
