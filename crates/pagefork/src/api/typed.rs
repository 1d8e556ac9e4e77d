//! Functions whose type the Rust compiler knows.

use std::marker::PhantomData;

use pagefork_layout::exception::ExceptionRef;
use pagefork_layout::link::function_import::are_direct;
use pagefork_layout::module::ValType;
use pagefork_layout::reference::FuncRef;

use crate::api::store::AsContextMut;
use crate::base::cell::Cell;
use crate::base::error::{Result, UsageError};
use crate::base::trace::span;
use crate::run::enter::{self, CallOutcome, Registers};
use crate::store::exception::ExnRef;
use crate::store::group::{StoreGroup, StoreId};
use crate::store::handle::cells;
use crate::store::handle::{CallTarget, Func};
use crate::store::references::ExternRef;

/// A function whose type the compiler knows: `Params` and `Results` are `()`, a
/// [`WasmTy`], or a tuple of up to 16 of them.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (func (export "swap") (param i32 i64)
///     (result i64 i32) (local.get 1) (local.get 0)))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let swap = instance.get_typed_func::<(i32, i64), (i64, i32)>(&mut store, "swap")?;
/// assert_eq!(swap.call(&mut store, (1, 2))?, (2, 1));
/// assert_eq!(Some(*swap.func()), instance.get_func(&mut store, "swap"));
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct TypedFunc<Params, Results> {
    func: Func,
    store: StoreId,
    /// Invariant: of that store and of the type that `Params` and `Results` say.
    entry: CallTarget,
    ty: PhantomData<fn(Params) -> Results>,
}

impl<Params, Results> TypedFunc<Params, Results> {
    pub(crate) fn new(func: Func, store: StoreId, entry: CallTarget) -> Self {
        Self { func, store, entry, ty: PhantomData }
    }

    /// How it is called.
    #[inline]
    pub(crate) fn target(&self) -> &CallTarget {
        &self.entry
    }

    /// # Errors
    /// If it is another store's.
    #[inline]
    pub(crate) fn check_store(&self, store: &StoreGroup) -> Result<()> {
        store.check(self.store, "function")
    }

    /// The same function without its type.
    ///
    /// # Examples
    ///
    /// See [`TypedFunc`].
    pub fn func(&self) -> &Func {
        &self.func
    }
}

impl<Params: WasmValues, Results: WasmValues> TypedFunc<Params, Results> {
    /// Calls the function. Allocates nothing.
    ///
    /// # Errors
    /// If the function, or a reference among the parameters, is of another store;
    /// else what ends the call: a [`Trap`](crate::Trap), or the error of a
    /// host function.
    ///
    /// # Panics
    /// If a host function panics, with its payload.
    ///
    /// # Examples
    ///
    /// See [`TypedFunc`].
    // A third of what a call costs would be to save registers once more around it.
    #[inline(always)]
    pub fn call(&self, mut store: impl AsContextMut, params: Params) -> Result<Results> {
        let mut store = store.as_context_mut();
        let store = store.as_ptr();
        if let CallTarget::Guest(target) = &self.entry
            // SAFETY: the store is borrowed.
            && unsafe { (*store).id == self.store && enter::enters_outermost(store) }
        {
            span!(TRACE, "call");
            // SAFETY: the entry is the store's own and of this type, so registers or cells are
            // enough and hold what the type says; nothing has happened since the check.
            return unsafe {
                if const { are_direct(Params::TYPES, Results::TYPES) } {
                    let (entry, mut registers) = (target.direct_entry, Registers::default());
                    params.put(&mut registers);
                    let result = match const { has_floats(Params::TYPES) } {
                        true => enter::call_outermost::<true>(store, target, entry, registers),
                        false => enter::call_outermost::<false>(store, target, entry, registers),
                    };
                    result.map(|(int, float)| {
                        Results::from_register(Results::Register::take(int, float))
                    })
                } else {
                    let cells = cells(target);
                    params.write(cells, CellOwner::of_ordinal(&*store, target.ordinal))?;
                    let none = Registers::default();
                    enter::call_outermost::<false>(store, target, target.entry, none).map(|_| {
                        Results::read(cells, CellOwner::of_ordinal(&*store, target.ordinal))
                    })
                }
            };
        }
        // SAFETY: the store is borrowed.
        unsafe { self.call_otherwise(store, params) }
    }

    /// Calls a function of the host, or one in a store that needs more than to be entered.
    ///
    /// # Safety
    /// The store is borrowed by the caller, the pointer with the provenance of the whole.
    #[inline(never)]
    pub(crate) unsafe fn call_otherwise(
        &self,
        store: *mut StoreGroup,
        params: Params,
    ) -> Result<Results> {
        // SAFETY: by this function's contract the store is borrowed; the entry is its own and
        // of this type, so the cells are enough and hold what the type says. The host function
        // is in its list, and no list of values is longer than the buffer.
        unsafe {
            (*store).check(self.store, "function")?;
            match &self.entry {
                CallTarget::Guest(target) => {
                    span!(if !(*store).activation.is_active(), TRACE, "call");
                    let cells = cells(target);
                    params.write(cells, CellOwner::of_ordinal(&*store, target.ordinal))?;
                    match enter::call(store, target)? {
                        CallOutcome::Finished => {}
                        CallOutcome::Suspended => return Err(UsageError::Suspended.into()),
                    }
                    Ok(Results::read(cells, CellOwner::of_ordinal(&*store, target.ordinal)))
                }
                CallTarget::Host(index) => {
                    let mut buffer = [Cell::default(); VALUES_MAX];
                    let cells = buffer.as_mut_ptr();
                    params.write(cells, CellOwner::of_ordinal(&*store, 0))?;
                    let function = (*store).host_function_ptr(*index);
                    let _deadline = (*store).begin_host_call()?;
                    ((*function).call)(store, cells, 0)?;
                    Ok(Results::read(cells, CellOwner::of_ordinal(&*store, 0)))
                }
            }
        }
    }
}

impl<Params, Results> Clone for TypedFunc<Params, Results> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Params, Results> Copy for TypedFunc<Params, Results> {}

impl<Params, Results> std::fmt::Debug for TypedFunc<Params, Results> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TypedFunc").field("func", &self.func).finish_non_exhaustive()
    }
}

/// Rust types that are WebAssembly values: `i32`, `u32`, `i64`, `u64`, `f32`,
/// `f64`, `u128` (a vector, little endian), `Option<Func>`, `Option<ExternRef>`
/// and `Option<ExnRef>`.
///
/// # Safety
/// `write` and `read` use the cell that they are given as `Cell` says for
/// `TYPE`, and `write` writes all of it. The trait is not to be implemented outside this crate.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, Result, Store, WasmTy};
///
/// /// Calls a function of one parameter, of whatever type.
/// fn show<T: WasmTy>(store: &mut Store<()>, function: Func, value: T) -> Result<()> {
///     function.typed::<T, ()>(&*store)?.call(store, value)
/// }
///
/// let mut store = Store::new(&Engine::default(), ());
/// let function = Func::wrap(&mut store, |value: f64| assert_eq!(value, 0.5));
/// show(&mut store, function, 0.5)?;
/// assert!(show(&mut store, function, 1u32).is_err());
/// # Ok::<(), pagefork::Error>(())
/// ```
pub unsafe trait WasmTy: Copy + 'static {
    #[doc(hidden)]
    const TYPE: ValType;

    /// What it is in a register; `()` if it cannot be.
    #[doc(hidden)]
    type Register: Register;

    #[doc(hidden)]
    fn from_register(register: Self::Register) -> Self;

    #[doc(hidden)]
    fn into_register(self) -> Self::Register;

    /// # Safety
    /// The cell can be written.
    #[doc(hidden)]
    unsafe fn write(self, cell: *mut Cell, owner: CellOwner<'_>) -> Result<()>;

    /// # Safety
    /// The cell holds a value of type `TYPE`, in a place that belongs to `owner`.
    #[doc(hidden)]
    unsafe fn read(cell: *const Cell, owner: CellOwner<'_>) -> Self;
}

/// At most this many values are in a tuple.
const VALUES_MAX: usize = 16;

/// Lists of WebAssembly values: `()`, a [`WasmTy`], or a tuple of up to 16 of
/// them.
///
/// # Safety
/// As for [`WasmTy`]; there are at most 16 types.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Func, Result, Store, WasmValues};
///
/// /// Calls a function twice with the same list of values.
/// fn twice<P: WasmValues>(store: &mut Store<u32>, function: Func, values: P) -> Result<()> {
///     let function = function.typed::<P, ()>(&*store)?;
///     function.call(&mut *store, values)?;
///     function.call(store, values)
/// }
///
/// let mut store = Store::new(&Engine::default(), 0);
/// let add = Func::wrap(&mut store, |mut caller: pagefork::Caller<'_, u32>, a: u32, b: u32| {
///     *caller.data_mut() += a * b;
/// });
/// twice(&mut store, add, (3, 7))?;
/// assert_eq!(*store.data(), 42);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub unsafe trait WasmValues: Copy + 'static {
    #[doc(hidden)]
    const TYPES: &'static [ValType];

    /// What a list of one value is in a register; `()` for other lists.
    #[doc(hidden)]
    type Register: Register;

    /// To be called for lists of one value or none.
    #[doc(hidden)]
    fn from_register(register: Self::Register) -> Self;

    #[doc(hidden)]
    fn into_register(self) -> Self::Register;

    /// Puts the values into registers, as long as there are any left.
    #[doc(hidden)]
    fn put(self, registers: &mut Registers);

    /// # Safety
    /// There is a cell for each of `TYPES` that can be written.
    #[doc(hidden)]
    unsafe fn write(self, cells: *mut Cell, owner: CellOwner<'_>) -> Result<()>;

    /// # Safety
    /// There is a cell for each of `TYPES`, with a value of that type, in a place
    /// that belongs to `owner`.
    #[doc(hidden)]
    unsafe fn read(cells: *const Cell, owner: CellOwner<'_>) -> Self;
}

/// Whom the place belongs to that a value is in: found out only for references.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct CellOwner<'a> {
    store: &'a StoreGroup,
    base: usize,
    ordinal: u32,
}

impl<'a> CellOwner<'a> {
    /// # Safety
    /// `base` is that of an instance of the store, or 0.
    #[inline]
    pub(crate) unsafe fn of_base(store: &'a StoreGroup, base: usize) -> Self {
        Self { store, base, ordinal: 0 }
    }

    #[inline]
    pub(crate) fn of_ordinal(store: &'a StoreGroup, ordinal: u32) -> Self {
        Self { store, base: 0, ordinal }
    }

    fn ordinal(&self) -> u32 {
        match self.base {
            0 => self.ordinal,
            // SAFETY: by the contract of `of_base` it is that of an instance of the store.
            base => unsafe { self.store.ordinal_of(base) },
        }
    }
}

macro_rules! wasm_ty {
    ($($ty:ty, $wasm:ident, $value:ident => $to:expr, $low:ident => $from:expr;)*) => {$(
        // SAFETY: the value is in the first 8 bytes, zero-extended.
        unsafe impl WasmTy for $ty {
            const TYPE: ValType = ValType::$wasm;

            type Register = Self;

            #[inline]
            fn from_register(register: Self) -> Self {
                register
            }

            #[inline]
            fn into_register(self) -> Self {
                self
            }

            #[inline]
            unsafe fn write(self, cell: *mut Cell, _: CellOwner<'_>) -> Result<()> {
                let $value = self;
                // SAFETY: by the contract of `WasmTy::write` the cell can be written.
                unsafe { cell.write(Cell::from_u64($to)) };
                Ok(())
            }

            #[inline]
            unsafe fn read(cell: *const Cell, _: CellOwner<'_>) -> Self {
                // SAFETY: by the contract of `WasmTy::read` the cell holds such a value.
                let $low = unsafe { (*cell).low };
                $from
            }
        }
    )*};
}

wasm_ty! {
    i32, I32, value => u64::from(value as u32), low => low as i32;
    u32, I32, value => u64::from(value), low => low as u32;
    i64, I64, value => value as u64, low => low as i64;
    u64, I64, value => value, low => low;
    f32, F32, value => u64::from(value.to_bits()), low => f32::from_bits(low as u32);
    f64, F64, value => value.to_bits(), low => f64::from_bits(low);
}

/// What registers hold.
#[doc(hidden)]
pub trait Register: Copy + Default {
    /// Puts it into the next register of its kind, if there is one.
    fn put(self, registers: &mut Registers);

    /// Takes it from the register of its kind.
    fn take(int: u64, float: f64) -> Self;
}

impl Register for () {
    #[inline]
    fn put(self, _: &mut Registers) {}

    #[inline]
    fn take(_: u64, _: f64) {}
}

macro_rules! register {
    ($($ty:ty: $put:ident, $value:ident => $to:expr, ($int:ident, $float:ident) => $from:expr;)*) => {$(
        impl Register for $ty {
            #[inline(always)]
            fn put(self, registers: &mut Registers) {
                let $value = self;
                registers.$put($to);
            }

            #[inline(always)]
            fn take($int: u64, $float: f64) -> Self {
                $from
            }
        }
    )*};
}

register! {
    i32: put_int, value => u64::from(value as u32), (int, _float) => int as i32;
    u32: put_int, value => u64::from(value), (int, _float) => int as u32;
    i64: put_int, value => value as u64, (int, _float) => int as i64;
    u64: put_int, value => value, (int, _float) => int;
    f32: put_float, value => f64::from_bits(u64::from(value.to_bits())),
        (_int, float) => f32::from_bits(float.to_bits() as u32);
    f64: put_float, value => value, (_int, float) => float;
}

/// Whether one of the types is a float.
const fn has_floats(types: &[ValType]) -> bool {
    let mut i = 0;
    while i < types.len() {
        if matches!(types[i], ValType::F32 | ValType::F64) {
            return true;
        }
        i += 1;
    }
    false
}

macro_rules! no_register {
    () => {
        type Register = ();

        fn from_register((): ()) -> Self {
            unreachable!("functions with values of this type are not called directly")
        }

        fn into_register(self) {}
    };
}

// SAFETY: a vector takes the whole cell.
unsafe impl WasmTy for u128 {
    const TYPE: ValType = ValType::V128;

    no_register!();

    #[inline]
    unsafe fn write(self, cell: *mut Cell, _: CellOwner<'_>) -> Result<()> {
        // SAFETY: by the contract of `WasmTy::write` the cell can be written.
        unsafe { cell.write(Cell::from_u128(self)) };
        Ok(())
    }

    #[inline]
    unsafe fn read(cell: *const Cell, _: CellOwner<'_>) -> Self {
        // SAFETY: by the contract of `WasmTy::read` the cell holds such a value.
        unsafe { cell.read() }.u128()
    }
}

// SAFETY: a reference takes the first 8 bytes.
unsafe impl WasmTy for Option<Func> {
    const TYPE: ValType = ValType::FUNCREF;

    no_register!();

    unsafe fn write(self, cell: *mut Cell, owner: CellOwner<'_>) -> Result<()> {
        let reference = match self {
            Some(function) => function.reference(owner.store)?.relative(owner.ordinal()),
            None => FuncRef::NULL,
        };
        // SAFETY: by the contract of `WasmTy::write` the cell can be written.
        unsafe { cell.write(Cell::from_u64(reference.0)) };
        Ok(())
    }

    unsafe fn read(cell: *const Cell, owner: CellOwner<'_>) -> Self {
        // SAFETY: by the contract of `WasmTy::read` the cell holds such a value.
        let reference = FuncRef(unsafe { (*cell).low });
        Func::from_reference(owner.store, reference.absolute(owner.ordinal()))
    }
}

// SAFETY: a reference takes the first 8 bytes.
unsafe impl WasmTy for Option<ExternRef> {
    const TYPE: ValType = ValType::EXTERNREF;

    no_register!();

    unsafe fn write(self, cell: *mut Cell, owner: CellOwner<'_>) -> Result<()> {
        let handle = match self {
            Some(reference) => reference.handle(owner.store)?,
            None => 0,
        };
        // SAFETY: by the contract of `WasmTy::write` the cell can be written.
        unsafe { cell.write(Cell::from_u64(handle)) };
        Ok(())
    }

    unsafe fn read(cell: *const Cell, owner: CellOwner<'_>) -> Self {
        // SAFETY: by the contract of `WasmTy::read` the cell holds such a value.
        ExternRef::from_handle(owner.store, unsafe { (*cell).low })
    }
}

// SAFETY: a reference takes the first 8 bytes.
unsafe impl WasmTy for Option<ExnRef> {
    const TYPE: ValType = ValType::EXNREF;

    no_register!();

    unsafe fn write(self, cell: *mut Cell, owner: CellOwner<'_>) -> Result<()> {
        let reference = match self {
            Some(reference) => reference.reference(owner.store)?.relative(owner.ordinal()),
            None => ExceptionRef::NULL,
        };
        // SAFETY: by the contract of `WasmTy::write` the cell can be written.
        unsafe { cell.write(Cell::from_u64(reference.0)) };
        Ok(())
    }

    unsafe fn read(cell: *const Cell, owner: CellOwner<'_>) -> Self {
        // SAFETY: by the contract of `WasmTy::read` the cell holds such a value.
        let reference = ExceptionRef(unsafe { (*cell).low });
        ExnRef::from_reference(owner.store, reference.absolute(owner.ordinal()))
    }
}

// SAFETY: one value, one cell.
unsafe impl<A: WasmTy> WasmValues for A {
    const TYPES: &'static [ValType] = &[A::TYPE];

    type Register = A::Register;

    #[inline]
    fn from_register(register: A::Register) -> Self {
        WasmTy::from_register(register)
    }

    #[inline]
    fn into_register(self) -> A::Register {
        WasmTy::into_register(self)
    }

    #[inline]
    fn put(self, registers: &mut Registers) {
        WasmTy::into_register(self).put(registers);
    }

    #[inline]
    unsafe fn write(self, cells: *mut Cell, owner: CellOwner<'_>) -> Result<()> {
        // SAFETY: by the contract of `WasmValues::write` there is a cell for each.
        unsafe { WasmTy::write(self, cells, owner) }
    }

    #[inline]
    unsafe fn read(cells: *const Cell, owner: CellOwner<'_>) -> Self {
        // SAFETY: by the contract of `WasmValues::read` there is a cell for each.
        unsafe { <A as WasmTy>::read(cells, owner) }
    }
}

macro_rules! wasm_values {
    (@register) => {
        type Register = ();

        fn from_register((): ()) {}

        fn into_register(self) {}
    };
    (@register $value:ident) => {
        type Register = $value::Register;

        #[inline]
        fn from_register(register: Self::Register) -> Self {
            ($value::from_register(register),)
        }

        #[inline]
        fn into_register(self) -> Self::Register {
            WasmTy::into_register(self.0)
        }
    };
    (@register $($value:ident)*) => {
        no_register!();
    };
    ($($value:ident)*) => {
        // SAFETY: a cell for each value, in order.
        #[allow(non_snake_case, reason = "a type parameter and its value share a name")]
        #[allow(unused_variables, unused_mut, unused_assignments, reason = "without values")]
        #[allow(clippy::unused_unit, reason = "without values")]
        unsafe impl<$($value: WasmTy),*> WasmValues for ($($value,)*) {
            const TYPES: &'static [ValType] = &[$($value::TYPE),*];

            wasm_values!(@register $($value)*);

            #[inline]
            fn put(self, registers: &mut Registers) {
                let ($($value,)*) = self;
                $(WasmTy::into_register($value).put(registers);)*
            }

            #[inline]
            unsafe fn write(self, cells: *mut Cell, owner: CellOwner<'_>) -> Result<()> {
                let ($($value,)*) = self;
                let mut cell = cells;
                $(
                    // SAFETY: by the contract of `WasmValues::write` there is a cell for each.
                    unsafe {
                        WasmTy::write($value, cell, owner)?;
                        cell = cell.add(1);
                    }
                )*
                Ok(())
            }

            #[inline]
            unsafe fn read(cells: *const Cell, owner: CellOwner<'_>) -> Self {
                let mut cell = cells;
                $(
                    // SAFETY: by the contract of `WasmValues::read` there is a cell for each.
                    let $value = unsafe {
                        let value = <$value as WasmTy>::read(cell, owner);
                        cell = cell.add(1);
                        value
                    };
                )*
                ($($value,)*)
            }
        }
    };
}

wasm_values!();
wasm_values!(A);
wasm_values!(A B);
wasm_values!(A B C);
wasm_values!(A B C D);
wasm_values!(A B C D E);
wasm_values!(A B C D E F);
wasm_values!(A B C D E F G);
wasm_values!(A B C D E F G H);
wasm_values!(A B C D E F G H I);
wasm_values!(A B C D E F G H I J);
wasm_values!(A B C D E F G H I J K);
wasm_values!(A B C D E F G H I J K L);
wasm_values!(A B C D E F G H I J K L M);
wasm_values!(A B C D E F G H I J K L M N);
wasm_values!(A B C D E F G H I J K L M N O);
wasm_values!(A B C D E F G H I J K L M N O P);
