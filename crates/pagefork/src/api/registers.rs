//! Calls in both directions with values in registers, for functions whose types the Rust compiler
//! does not know: what a library for another language stands on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::{ptr, thread};

use pagefork_layout::link::function_import::{self, FLOATS_MAX, INTS_MAX};
use pagefork_layout::module::{FuncType, ValType};

use crate::api::foreign::ForeignFunction;
use crate::api::func::Caller;
use crate::api::host_func::{DirectAnswer, answer, put_off_with};
use crate::api::linker::Linker;
use crate::api::raw::ValRaw;
use crate::api::store::{AsContext, AsContextMut};
use crate::api::typed::{Register, WasmValues};
use crate::base::cell::Cell;
use crate::base::error::{Error, Result, UsageError};
use crate::base::trace::span;
use crate::code::engine::Engine;
use crate::run::enter::{self, Registers, UnfinishedCall};
use crate::store::frame::Target;
use crate::store::function_import::FunctionImport;
use crate::store::group::StoreGroup;
use crate::store::handle::{CallTarget, Func};
use crate::store::host_func::{DirectCall, HostFunc};

/// Arguments as they are in registers: integers and floats apart, each in the order of the
/// parameters. What no parameter has is not looked at, nor the upper half of 32 bits; an `f32` is
/// the lower half of a float's bits.
///
/// # Examples
///
/// See [`Func::with_registers`].
#[derive(Clone, Copy, Default, Debug)]
pub struct RegisterValues {
    /// The values of the types `i32` and `i64`.
    pub ints: [u64; INTS_MAX],
    /// The values of the types `f32` and `f64`.
    pub floats: [f64; FLOATS_MAX],
}

impl RegisterValues {
    /// So many integers have a register.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::RegisterValues;
    ///
    /// let values = RegisterValues::default();
    /// assert_eq!(values.ints.len(), RegisterValues::INTS_MAX);
    /// assert_eq!(values.floats.len(), RegisterValues::FLOATS_MAX);
    /// ```
    pub const INTS_MAX: usize = INTS_MAX;

    /// So many floats have a register. [`RegisterValues::INTS_MAX`] has an example.
    pub const FLOATS_MAX: usize = FLOATS_MAX;

    /// Whether all parameters of such a function have a register, and its result, of which there is
    /// at most one.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{FuncType, RegisterValues, ValType};
    ///
    /// assert!(RegisterValues::fit(&FuncType::new([ValType::I32, ValType::F64], [ValType::I64])));
    /// assert!(!RegisterValues::fit(&FuncType::new([], [ValType::I32, ValType::I32])));
    /// ```
    pub fn fit(ty: &FuncType) -> bool {
        function_import::is_direct(ty)
    }

    /// The bits of the arguments of these types, each of which has its register.
    pub(crate) fn words<'a>(&'a self, types: &'a [ValType]) -> impl Iterator<Item = u64> + 'a {
        let (mut ints, mut floats) = (self.ints.iter(), self.floats.iter());
        types.iter().map(move |ty| {
            let word = match is_float(*ty) {
                true => floats.next().map_or(0, |value| value.to_bits()),
                false => ints.next().copied().unwrap_or(0),
            };
            word & bits(*ty)
        })
    }
}

/// A result as it is in registers: the one that its type has counts, and of 32 bits the lower half.
///
/// # Examples
///
/// See [`Func::new_with_registers`].
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct RegisterResult {
    /// The result, if it is an integer.
    pub int: u64,
    /// The result, if it is a float.
    pub float: f64,
}

impl RegisterResult {
    /// These bits in the register of either kind.
    pub(crate) fn from_word(word: u64) -> Self {
        Self { int: word, float: f64::from_bits(word) }
    }
}

/// Host functions whose arguments and result are in registers: see [`Func::new_with_registers`].
///
/// # Examples
///
/// See [`Func::new_with_registers`].
pub trait RegisterCallee<T: 'static>: Send + Sync + 'static {
    /// Whether floats may be among its parameters: if not, it gets zeros, and no floats are kept for a
    /// call that is put off.
    ///
    /// # Examples
    ///
    /// See [`Func::new_with_registers`].
    const HAS_FLOATS: bool = true;

    /// Does what the function does.
    ///
    /// # Errors
    /// As of [`Func::new`]'s closures.
    ///
    /// # Examples
    ///
    /// See [`Func::new_with_registers`].
    fn call(&self, caller: Caller<'_, T>, values: RegisterValues) -> Result<RegisterResult>;

    /// The function of C's that does the same, if there is one: see [`ForeignFunction`].
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction`].
    fn foreign(&self) -> Option<ForeignFunction<T>> {
        None
    }
}

/// A function that is called with values in registers.
///
/// # Examples
///
/// See [`Func::with_registers`].
#[derive(Clone, Copy, Debug)]
pub struct RegisterFunc {
    /// Invariant: of the store that this is of.
    func: Func,
    /// Address of the store's activation. To leave a guest the processor waits for it: here it is
    /// found without following the pointers that lead to the store.
    activation: usize,
    target: CallTarget,
    masks: RegisterMasks,
}

/// The bits of each register that are part of a value: what is left is no guest's to see.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterMasks {
    ints: [u64; INTS_MAX],
    /// A bit for each float: whether there is one, and whether it has 64 bits.
    floats: u8,
    wide_floats: u8,
}

impl RegisterMasks {
    /// Always inline: the masks are made where they stay.
    ///
    /// # Errors
    /// If values of such a function do not fit registers.
    #[inline(always)]
    pub(super) fn of(ty: &FuncType) -> Result<Self> {
        if ty.params.is_empty() && (ty.results.is_empty() || is_one_number(&ty.results)) {
            return Ok(Self { ints: [0; INTS_MAX], floats: 0, wide_floats: 0 });
        }
        check_fits(ty)?;
        // A bit for each: whether there is one, and whether it has 64 bits.
        let (mut ints, mut wide_ints, mut floats, mut wide_floats) = (0u8, 0, 0u8, 0);
        for ty in &ty.params {
            let (present, wide) = match is_float(*ty) {
                true => (&mut floats, &mut wide_floats),
                false => (&mut ints, &mut wide_ints),
            };
            // The lowest bit that is not set.
            let bit = !*present & (*present + 1);
            *present |= bit;
            if bits(*ty) == u64::MAX {
                *wide |= bit;
            }
        }
        let ints = std::array::from_fn(|index| mask(ints, wide_ints, index));
        Ok(Self { ints, floats, wide_floats })
    }

    /// The bits of this float that are part of a value.
    #[inline(always)]
    fn float(&self, index: usize) -> u64 {
        mask(self.floats, self.wide_floats, index)
    }

    /// Enters a guest's function of this type with no guest around it.
    ///
    /// # Errors
    /// How to get what ends the call.
    ///
    /// # Safety
    /// The store is borrowed by the caller, the pointer with the provenance of the whole; it has just
    /// been found to be [outermost](enter::enters_outermost), its activation is at that address, and
    /// the function is its own and of this type.
    #[inline(always)]
    pub(super) unsafe fn enter(
        &self,
        store: *mut StoreGroup,
        activation: usize,
        target: &Target,
        values: &RegisterValues,
    ) -> Result<RegisterResult, UnfinishedCall> {
        span!(TRACE, "call");
        let mut registers = Registers::default();
        for (value, bits) in values.ints.iter().zip(&self.ints) {
            registers.put_int(value & bits);
        }
        let entry = target.direct_entry;
        // SAFETY: by this function's contract; the entry is for values in registers, which are what
        // the type says and zero where it has none.
        let called = unsafe {
            (&raw mut (*store).activation).expose_provenance();
            let activation = ptr::with_exposed_provenance_mut(activation);
            match self.floats {
                0 => {
                    let call = enter::call_outermost_unfinished::<false>;
                    call(store, activation, target, entry, registers)
                }
                _ => {
                    for (index, value) in values.floats.iter().enumerate() {
                        let bits = value.to_bits() & self.float(index);
                        registers.put_float(f64::from_bits(bits));
                    }
                    let call = enter::call_outermost_unfinished::<true>;
                    call(store, activation, target, entry, registers)
                }
            }
        };
        called.map(|(int, float)| RegisterResult { int, float })
    }
}

/// The bits of the register of this index that are part of a value: none, 32 or 64.
#[inline(always)]
fn mask(present: u8, wide: u8, index: usize) -> u64 {
    let is_set = |bits: u8| u64::from(bits >> index & 1).wrapping_neg();
    is_set(present) & (is_set(wide) | u64::from(u32::MAX))
}

fn is_one_number(types: &[ValType]) -> bool {
    matches!(types, [ValType::I32 | ValType::I64 | ValType::F32 | ValType::F64])
}

/// # Errors
/// If values of such a function do not fit registers.
#[inline]
fn check_fits(ty: &FuncType) -> Result<()> {
    match RegisterValues::fit(ty) {
        true => Ok(()),
        false => Err(UsageError::InvalidType(format!(
            "{ty} as that of a function with its values in registers: these are at most \
             {INTS_MAX} integers and {FLOATS_MAX} floats, and one result"
        ))
        .into()),
    }
}

/// The bits of a register that a value of this type has.
pub(crate) fn bits(ty: ValType) -> u64 {
    match ty {
        ValType::I32 | ValType::F32 => u32::MAX.into(),
        _ => u64::MAX,
    }
}

pub(crate) fn has_floats(ty: &FuncType) -> bool {
    ty.params.iter().any(|ty| is_float(*ty))
}

pub(crate) fn is_float(ty: ValType) -> bool {
    matches!(ty, ValType::F32 | ValType::F64)
}

impl Func {
    /// The function, to be called with values in registers.
    ///
    /// # Errors
    /// If it is of another store. [`UsageError::InvalidType`] if its values do not fit: it takes a
    /// vector or reference, more than 5 integers or 8 floats, or has several results.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, RegisterValues, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "scale") (param i32 f64) (result f64)
    ///     (f64.mul (f64.convert_i32_s (local.get 0)) (local.get 1))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let scale = instance.get_func(&mut store, "scale").expect("it is exported");
    /// let scale = scale.with_registers(&store)?;
    /// let mut values = RegisterValues::default();
    /// (values.ints[0], values.floats[0]) = (6, 1.5);
    /// assert_eq!(scale.call(&mut store, values)?.float, 9.0);
    /// assert_eq!(Some(*scale.func()), instance.get_func(&mut store, "scale"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn with_registers(&self, store: impl AsContext) -> Result<RegisterFunc> {
        let store = &store.as_context().0.inner;
        let (ty, _) = store.function_type(self.reference(store)?);
        Ok(RegisterFunc::new(*self, store, RegisterMasks::of(ty)?))
    }

    /// As [`Func::with_registers`], if its type is as `is` wants it; else `None`.
    ///
    /// # Errors
    /// As [`Func::with_registers`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let double = Func::wrap(&mut store, |number: i32| 2 * number);
    /// assert!(double.with_registers_if(&store, |ty| ty.params.len() == 1)?.is_some());
    /// assert!(double.with_registers_if(&store, |ty| ty.params.is_empty())?.is_none());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline(always)]
    pub fn with_registers_if(
        &self,
        store: impl AsContext,
        is: impl FnOnce(&FuncType) -> bool,
    ) -> Result<Option<RegisterFunc>> {
        let store = &store.as_context().0.inner;
        let (ty, _) = store.function_type(self.reference(store)?);
        match is(ty) {
            true => Ok(Some(RegisterFunc::new(*self, store, RegisterMasks::of(ty)?))),
            false => Ok(None),
        }
    }

    /// Makes `callee` a function of the type `ty`, which guests call with values in registers.
    /// See [`Func::new`] for errors and panics.
    ///
    /// # Errors
    /// [`UsageError::InvalidType`] if the values do not fit: see [`Func::with_registers`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{
    ///     Caller, Engine, Func, FuncType, RegisterCallee, RegisterResult, RegisterValues, Result,
    ///     Store, ValType,
    /// };
    ///
    /// struct Double;
    ///
    /// impl RegisterCallee<()> for Double {
    ///     const HAS_FLOATS: bool = false;
    ///
    ///     fn call(&self, _: Caller<'_, ()>, values: RegisterValues) -> Result<RegisterResult> {
    ///         Ok(RegisterResult { int: values.ints[0] * 2, float: 0.0 })
    ///     }
    /// }
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let ty = FuncType::new([ValType::I64], [ValType::I64]);
    /// let double = Func::new_with_registers(&mut store, ty, Double)?;
    /// assert_eq!(double.typed::<i64, i64>(&store)?.call(&mut store, 4)?, 8);
    /// let of_float = FuncType::new([ValType::F64], []);
    /// assert!(Func::new_with_registers(&mut store, of_float, Double).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn new_with_registers<T: 'static>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        callee: impl RegisterCallee<T>,
    ) -> Result<Self> {
        let store = store.as_context_mut();
        let function = host_func(store.engine(), ty, callee)?;
        Ok(Self::from_host(&mut store.0.inner, function))
    }
}

impl<T: 'static> Linker<T> {
    /// Defines a host function whose values are in registers: see [`Func::new_with_registers`].
    ///
    /// # Errors
    /// As of [`Linker::func_new`] and [`Func::new_with_registers`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{
    ///     Caller, Engine, FuncType, Linker, Module, RegisterCallee, RegisterResult, RegisterValues,
    ///     Result, ValType,
    /// };
    ///
    /// struct Count;
    ///
    /// impl RegisterCallee<u64> for Count {
    ///     fn call(&self, mut caller: Caller<'_, u64>, values: RegisterValues) -> Result<RegisterResult> {
    ///         *caller.data_mut() += values.ints[0];
    ///         Ok(RegisterResult::default())
    ///     }
    /// }
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "count" (func $count (param i64)))
    ///     (func (export "run") (call $count (i64.const 5))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_new_with_registers("host", "count", FuncType::new([ValType::I64], []), Count)?;
    /// let (mut store, instance) = linker.instantiate_pre(&module)?.spawn(1)?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(*store.data(), 6);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn func_new_with_registers(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        callee: impl RegisterCallee<T>,
    ) -> Result<&mut Self> {
        let function = host_func(self.engine(), ty, callee)?;
        self.define_host(module, name, function)
    }
}

impl RegisterFunc {
    /// Always inline: it is made where it stays.
    #[inline(always)]
    pub(super) fn new(func: Func, store: &StoreGroup, masks: RegisterMasks) -> Self {
        let (target, activation) = (func.entry(store), (&raw const store.activation).addr());
        Self { func, activation, target, masks }
    }

    /// The function itself.
    ///
    /// # Examples
    ///
    /// See [`Func::with_registers`].
    pub fn func(&self) -> &Func {
        &self.func
    }

    /// Whether there are floats among its parameters: if not, those of the values are not looked at.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let half = Func::wrap(&mut store, |number: f64| number / 2.0).with_registers(&store)?;
    /// let seven = Func::wrap(&mut store, || 7.0f64).with_registers(&store)?;
    /// assert!(half.has_floats() && !seven.has_floats());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn has_floats(&self) -> bool {
        self.masks.floats != 0
    }

    /// Calls the function. Allocates nothing.
    ///
    /// # Errors
    /// If it is of another store; else what ends the call: a [`Trap`](crate::Trap), or the error of
    /// a host function.
    ///
    /// # Panics
    /// If a host function panics, with its payload.
    ///
    /// # Examples
    ///
    /// See [`Func::with_registers`].
    #[inline(always)]
    pub fn call(&self, store: impl AsContextMut, values: RegisterValues) -> Result<RegisterResult> {
        self.call_catching(store, values).unwrap_or_else(|payload| resume_unwind(payload))
    }

    /// As [`RegisterFunc::call`], for those through whom no panic may go: the payload of a host
    /// function's panic is what this gives.
    ///
    /// # Errors
    /// The payload of a panic; within, as of [`RegisterFunc::call`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Instance, Module, RegisterValues, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "check" (func $check (param i32)))
    ///     (func (export "run") (param i32) (call $check (local.get 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let check = Func::wrap(&mut store, |number: i32| assert!(number == 0, "oh"));
    /// let instance = Instance::new(&mut store, &module, &[check.into()])?;
    /// let run = instance.get_func(&mut store, "run").expect("it is exported");
    /// for func in [run, check] {
    ///     let func = func.with_registers(&store)?;
    ///     let mut values = RegisterValues::default();
    ///     assert!(func.call_catching(&mut store, values).is_ok());
    ///     values.ints[0] = 1;
    ///     let payload = func.call_catching(&mut store, values).unwrap_err();
    ///     assert_eq!(payload.downcast_ref(), Some(&"oh"));
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn call_catching(
        &self,
        store: impl AsContextMut,
        values: RegisterValues,
    ) -> thread::Result<Result<RegisterResult>> {
        self.call_then(store, values, |called| called)
    }

    /// As [`RegisterFunc::call_catching`], where what it would give goes to `then`, of which there is
    /// a copy for each way that a call may go. So a result stays in registers.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, RegisterValues, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (func (export "half") (param i32) (result i32) (i32.div_u (i32.const 84) (local.get 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let half = instance.get_func(&mut store, "half").expect("it is exported");
    /// let half = half.with_registers(&store)?;
    /// let mut call = |number| {
    ///     let mut values = RegisterValues::default();
    ///     values.ints[0] = number;
    ///     half.call_then(&mut store, values, |called| match called {
    ///         Ok(Ok(result)) => result.int,
    ///         Ok(Err(_)) | Err(_) => u64::MAX,
    ///     })
    /// };
    /// assert_eq!((call(2), call(0)), (42, u64::MAX));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline(always)]
    pub fn call_then<R>(
        &self,
        mut store: impl AsContextMut,
        values: RegisterValues,
        then: impl FnOnce(thread::Result<Result<RegisterResult>>) -> R,
    ) -> R {
        let mut store = store.as_context_mut();
        let whole = store.as_ptr();
        // SAFETY: the store is borrowed.
        let is_ready = unsafe { (*whole).id == self.func.store && enter::is_outermost(whole) };
        match &self.target {
            CallTarget::Guest(target) if is_ready => {
                // SAFETY: the store is borrowed. One store has a number, and stays where it is as
                // long as it has it: so its activation is where it was. The entry is the store's
                // own, and nothing has happened since the check.
                match unsafe { self.masks.enter(whole, self.activation, target, &values) } {
                    Ok(result) => then(Ok(Ok(result))),
                    // SAFETY: the store is borrowed.
                    Err(left) => then(unsafe { left.reason() }.map(Err)),
                }
            }
            _ => {
                // A copy: what is borrowed lies in memory.
                let copied = values;
                then(self.call_slowly(store, &copied))
            }
        }
    }

    /// As [`RegisterFunc::call_catching`], of any store. Apart, so that what there is to be called here
    /// takes no register from a call that only enters a guest.
    #[inline(never)]
    fn call_slowly(
        &self,
        mut store: impl AsContextMut,
        values: &RegisterValues,
    ) -> thread::Result<Result<RegisterResult>> {
        let mut store = store.as_context_mut();
        let whole = store.as_ptr();
        if let CallTarget::Guest(target) = &self.target
            // SAFETY: the store is borrowed.
            && unsafe { (*whole).id == self.func.store && enter::enters_outermost(whole) }
        {
            // SAFETY: the same holds as in `call_then`.
            return unsafe {
                match self.masks.enter(whole, self.activation, target, values) {
                    Ok(result) => Ok(Ok(result)),
                    Err(left) => left.reason().map(Err),
                }
            };
        }
        catch_unwind(AssertUnwindSafe(|| call_otherwise(&self.func, store, *values)))
    }
}

/// Calls a function of the host, or one in a store that needs more than to be entered.
///
/// # Errors
/// As [`RegisterFunc::call`].
#[inline(never)]
pub(super) fn call_otherwise(
    func: &Func,
    mut store: impl AsContextMut,
    values: RegisterValues,
) -> Result<RegisterResult> {
    let mut store = store.as_context_mut();
    let mut cells = [ValRaw::default(); INTS_MAX + FLOATS_MAX];
    let ty = {
        let inner = &store.0.inner;
        inner.function_type(func.reference(inner)?).0.clone()
    };
    for (cell, word) in cells.iter_mut().zip(values.words(&ty.params)) {
        *cell = ValRaw::u64(word);
    }
    // SAFETY: there is a cell for each value that fits registers, with one of its type.
    unsafe { func.call_unchecked(&mut store, &raw mut cells[..])? };
    Ok(RegisterResult::from_word(cells[0].get_u64()))
}

/// A host function whose values are in registers.
fn host_func<T: 'static, C: RegisterCallee<T>>(
    engine: &Engine,
    ty: FuncType,
    callee: C,
) -> Result<HostFunc> {
    check_fits(&ty)?;
    if !C::HAS_FLOATS && has_floats(&ty) {
        let text = format!("{ty} as that of a callee without floats");
        return Err(UsageError::InvalidType(text).into());
    }
    Ok(in_registers(engine, ty, callee))
}

/// A host function of a type whose values fit registers; without floats if its callee has none.
pub(crate) fn in_registers<T: 'static, C: RegisterCallee<T>>(
    engine: &Engine,
    ty: FuncType,
    callee: C,
) -> HostFunc {
    let foreign = callee.foreign();
    in_registers_as(engine, ty, callee, foreign)
}

/// As [`in_registers`], where another has said which function of C's does the same.
pub(crate) fn in_registers_as<T: 'static, C: RegisterCallee<T>>(
    engine: &Engine,
    ty: FuncType,
    callee: C,
    foreign: Option<ForeignFunction<T>>,
) -> HostFunc {
    let (plain, keeping_shim) =
        (shim_of::<false, T, C>(&ty.results), shim_of::<true, T, C>(&ty.results));
    let foreign = foreign.and_then(|function| function.of_type(&ty));
    let closure = Arc::new(callee);
    let callee = Arc::clone(&closure);
    let function = HostFunc::in_cells_of_type(engine, ty, |types| {
        let types = Arc::clone(types);
        Box::new(move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
            let mut values = RegisterValues::default();
            let (mut ints, mut floats) = (values.ints.iter_mut(), values.floats.iter_mut());
            for (index, ty) in types.params.iter().enumerate() {
                // SAFETY: `HostCall` says that there is a cell for each parameter.
                let word = unsafe { (*cells.add(index)).low };
                match is_float(*ty) {
                    true => *floats.next().expect("it fits") = f64::from_bits(word),
                    false => *ints.next().expect("it fits") = word,
                }
            }
            // SAFETY: `HostCall` says that store, cells and base are of one store and function type.
            unsafe {
                let result = callee.call(Caller::new(store, base), values)?;
                if let Some(ty) = types.results.first() {
                    let word = match is_float(*ty) {
                        true => result.float.to_bits(),
                        false => result.int,
                    };
                    cells.write(Cell::from_u64(word & bits(*ty)));
                }
            }
            Ok(())
        })
    });
    HostFunc {
        direct: Some(DirectCall { shim: plain, keeping_shim, closure, foreign }),
        ..function
    }
}

/// What guests call for a callee of this type that has these results; see [`shim`].
fn shim_of<const KEEPS: bool, T: 'static, C: RegisterCallee<T>>(results: &[ValType]) -> usize {
    let shim = match *results {
        [] => shim::<KEEPS, T, C, ()> as *const (),
        [ValType::I32] => shim::<KEEPS, T, C, u32> as *const (),
        [ValType::I64] => shim::<KEEPS, T, C, u64> as *const (),
        [ValType::F32] => shim::<KEEPS, T, C, f32> as *const (),
        _ => shim::<KEEPS, T, C, f64> as *const (),
    };
    shim as usize
}

/// Ends a direct call of a function that asks to be called later, if that can be.
///
/// # Safety
/// The record is that of the call, which had these arguments.
#[cold]
#[inline(never)]
unsafe fn put_off<R: Default>(
    record: *const FunctionImport,
    error: &Error,
    values: &RegisterValues,
) -> Option<DirectAnswer<R>> {
    // SAFETY: by this function's contract the record leads to a function of its store, which is
    // there as long as the store.
    unsafe {
        let index = (*record).host_function();
        put_off_with(record, error, |store, _| {
            let params = &(&*store.host_function_ptr(index)).ty.params;
            Some(values.words(params).map(Cell::from_u64).collect())
        })
    }
}

/// What guests call for a callee of this type, with a result of type `V`: registers that have no
/// argument are passed on, too, and nobody looks at them. It `KEEPS` the arguments for a callee that
/// asks to be called later.
///
/// # Safety
/// Called by the thunk of this record alone, which is of a function with such a result; the store's
/// data are a `T`.
#[allow(clippy::too_many_arguments, reason = "each is a register")]
unsafe extern "C" fn shim<const KEEPS: bool, T: 'static, C: RegisterCallee<T>, V: WasmValues>(
    record: *const FunctionImport,
    i0: u64,
    i1: u64,
    i2: u64,
    i3: u64,
    i4: u64,
    f0: f64,
    f1: f64,
    f2: f64,
    f3: f64,
    f4: f64,
    f5: f64,
    f6: f64,
    f7: f64,
) -> DirectAnswer<V::Register> {
    // SAFETY: by this function's contract the record is that of a callee of this type, and the
    // activation that of the store whose guest called, which lends the store.
    unsafe {
        let callee = &*(*record).closure::<C>();
        let values = || RegisterValues {
            ints: [i0, i1, i2, i3, i4],
            floats: match C::HAS_FLOATS {
                true => [f0, f1, f2, f3, f4, f5, f6, f7],
                false => [0.0; FLOATS_MAX],
            },
        };
        let call = || {
            let activation = (*record).activation();
            let (store, base) = ((*activation).store, (*activation).guest_base);
            let result = callee.call(Caller::<T>::of_direct_call(store, base), values())?;
            Ok(V::from_register(V::Register::take(result.int, result.float)))
        };
        let result = catch_unwind(AssertUnwindSafe(call));
        if KEEPS
            && let Ok(Err(error)) = &result
            && let Some(answer) = put_off(record, error, &values())
        {
            return answer;
        }
        answer(record, result)
    }
}
