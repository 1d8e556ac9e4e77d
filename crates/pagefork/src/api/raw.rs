//! Values without their types, and calls that check nothing: what bindings for other languages
//! are built on.

use std::arch::x86_64::{_mm_cvtsi64_si128, _mm_storeu_si128};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::{ptr, slice};

use pagefork_layout::link::function_import;
use pagefork_layout::module::{FuncType, ValType};
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};

use crate::api::foreign::ForeignFunction;
use crate::api::func::{Caller, RunningGuest};
use crate::api::linker::Linker;
use crate::api::store::{AsContext, AsContextMut, Full, StoreContextMut};
use crate::api::untyped::on_raw_values;
use crate::base::cell::Cell;
use crate::base::error::{Result, UsageError};
use crate::base::trace::span;
use crate::code::engine::Engine;
use crate::run::enter::{self, CallOutcome, Registers};
use crate::store::called::CalledFunction;
use crate::store::group::StoreGroup;
use crate::store::handle::{Func, cells};
use crate::store::host_func::HostFunc;
use crate::store::value::Val;

/// A WebAssembly value without its type: 16 bytes, aligned to 8. Whoever has one must know what it
/// is.
///
/// A value of 4 bytes lies in the first 4, and one of 8 in the first 8; the bytes behind are not
/// looked at, and are zero in what comes from here. Floats are their bits, and a vector takes all
/// 16, little endian. A reference is a number of 8 bytes, 0 for null, which means something in its
/// store alone, and until that is reset; [`Val::to_raw`] and [`Func::to_raw`] make it, and nothing
/// else may.
///
/// # Examples
///
/// ```
/// use pagefork::ValRaw;
///
/// assert_eq!(ValRaw::i32(-1).get_i32(), -1);
/// assert_eq!(ValRaw::i32(-1).get_u64(), 0xffff_ffff);
/// assert_eq!(f32::from_bits(ValRaw::f32(1.5f32.to_bits()).get_f32()), 1.5);
/// assert_eq!(ValRaw::v128(1 << 100).get_v128(), 1 << 100);
/// assert_eq!((size_of::<ValRaw>(), align_of::<ValRaw>()), (16, 8));
/// ```
#[derive(Clone, Copy, Default, Debug)]
#[repr(transparent)]
pub struct ValRaw(Cell);

const _: () = assert!(size_of::<ValRaw>() == 16 && align_of::<ValRaw>() == 8);

macro_rules! raw_values {
    ($($make:ident $get:ident $ty:ty, $what:literal, $value:ident => $cell:expr,
        $from:ident => $read:expr;)*) => {
        impl ValRaw {
            $(
                #[doc = concat!("The value of this ", $what, ".")]
                ///
                /// # Examples
                ///
                /// See [`ValRaw`].
                pub const fn $make($value: $ty) -> Self {
                    Self($cell)
                }

                #[doc = concat!("The ", $what, " that it is; if it is something else, a number without meaning.")]
                ///
                /// # Examples
                ///
                /// See [`ValRaw`].
                pub const fn $get(self) -> $ty {
                    let $from = self.0;
                    $read
                }
            )*
        }
    };
}

raw_values! {
    i32 get_i32 i32, "`i32`", value => Cell::from_u64(value as u32 as u64),
        cell => cell.low as i32;
    u32 get_u32 u32, "`i32` without a sign", value => Cell::from_u64(value as u64),
        cell => cell.low as u32;
    i64 get_i64 i64, "`i64`", value => Cell::from_u64(value as u64), cell => cell.low as i64;
    u64 get_u64 u64, "`i64` without a sign", value => Cell::from_u64(value), cell => cell.low;
    f32 get_f32 u32, "`f32` with these bits", bits => Cell::from_u64(bits as u64),
        cell => cell.low as u32;
    f64 get_f64 u64, "`f64` with these bits", bits => Cell::from_u64(bits), cell => cell.low;
    v128 get_v128 u128, "`v128`, little endian", bits => Cell::from_u128(bits),
        cell => cell.u128();
    funcref get_funcref u64, "reference to a function", reference => Cell::from_u64(reference),
        cell => cell.low;
    externref get_externref u64, "reference to a host value",
        reference => Cell::from_u64(reference), cell => cell.low;
    exnref get_exnref u64, "reference to an exception", reference => Cell::from_u64(reference),
        cell => cell.low;
}

impl ValRaw {
    /// Writes what has these bytes, of at most 8, in one step of 16: where many are written, each step counts.
    #[inline(always)]
    pub(crate) fn write_word(place: &mut MaybeUninit<Self>, word: u64) {
        // SAFETY: every x86-64 processor has SSE2; the place is a value's, of 16 bytes.
        unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), _mm_cvtsi64_si128(word as i64)) }
    }
}

impl<'a, T: 'static> StoreContextMut<'a, T> {
    /// The store's address, by which [`StoreContextMut::from_exposed`] reaches it: for bindings whose
    /// host functions pass no context on. It is the same as long as the store has its number.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, Store, StoreContextMut};
    ///
    /// let mut store = Store::new(&Engine::default(), 1);
    /// let address = store.as_context_mut().expose();
    /// // SAFETY: the store's data is an `i32`, and nothing else uses the store meanwhile.
    /// let mut context = unsafe { StoreContextMut::<i32>::from_exposed(address) };
    /// *context.data_mut() += 1;
    /// assert_eq!(*store.data(), 2);
    /// ```
    #[inline]
    pub fn expose(&mut self) -> usize {
        (&raw mut *self.0).expose_provenance()
    }

    /// The store at an address that [`StoreContextMut::expose`] gave.
    ///
    /// # Safety
    /// The store's data is of type `T`. Of what has exposed the address, something may be used still;
    /// and nothing else uses the store for `'a`.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut::expose`].
    #[inline]
    pub unsafe fn from_exposed(address: usize) -> Self {
        // SAFETY: by this function's contract.
        Self(unsafe { &mut *ptr::with_exposed_provenance_mut(address) })
    }

    /// Says that this thread is about to call guests: what its first call in the store would have to see to is seen
    /// to now, so that it goes the way of all others. Nothing else changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "run") (result i32) (i32.const 7)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let run = instance.get_func(&mut store, "run").expect("it is exported").with_registers(&store)?;
    /// store.as_context_mut().expect_calls();
    /// assert_eq!(run.call(&mut store, Default::default())?.int, 7);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn expect_calls(&mut self) {
        // SAFETY: the store is borrowed. Whether it is ready now is asked again by each call.
        unsafe { enter::enters_outermost(self.as_ptr()) };
    }

    /// As [`StoreContextMut::running`], of the store at an address that [`StoreContextMut::expose`] gave,
    /// which somebody else may be using.
    ///
    /// # Safety
    /// The store's data is of type `T`, and the store is there. No other thread uses it meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, Store, StoreContextMut};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let address = store.as_context_mut().expose();
    /// // SAFETY: the store's data is nothing, and it is there.
    /// assert!(unsafe { StoreContextMut::<()>::running_at(address) }.is_none());
    /// ```
    pub unsafe fn running_at(address: usize) -> Option<RunningGuest> {
        let store: *const Full<T> = ptr::with_exposed_provenance(address);
        // SAFETY: by this function's contract the store is there. Only what is read is looked at: it is written
        // when guests are entered and left, and when they call the host, by this thread.
        unsafe { RunningGuest::of(&raw const (*store).inner.activation) }
    }
}

impl Val {
    /// The value without its type.
    ///
    /// # Errors
    /// If it is a reference of another store, or to a value that is gone.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Store, Val, ValType};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let double = Func::wrap(&mut store, |x: i32| x * 2);
    /// let raw = Val::from(double).to_raw(&store)?;
    /// // SAFETY: the value was made of a function of this store, which was not reset since.
    /// let same = unsafe { Val::from_raw(&store, raw, ValType::FUNCREF) };
    /// let same = same.unwrap_funcref().expect("it is not null");
    /// assert_eq!(same.typed::<i32, i32>(&store)?.call(&mut store, 4)?, 8);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn to_raw(self, store: impl AsContext) -> Result<ValRaw> {
        self.to_cell(&store.as_context().0.inner, 0).map(ValRaw)
    }

    /// The value that `raw` is as one of type `ty`.
    ///
    /// # Panics
    /// May panic if the contract below is broken.
    ///
    /// # Safety
    /// `raw` is a value of type `ty`. If it is a reference, it was made for this store, which was
    /// not reset since.
    ///
    /// # Examples
    ///
    /// See [`Val::to_raw`].
    pub unsafe fn from_raw(store: impl AsContext, raw: ValRaw, ty: ValType) -> Self {
        Self::from_cell(raw.0, ty, &store.as_context().0.inner, 0)
    }
}

impl Func {
    /// The reference to the function, as in a [`ValRaw`].
    ///
    /// # Errors
    /// If the function is of another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let double = Func::wrap(&mut store, |x: i32| x * 2);
    /// let raw = double.to_raw(&store)?;
    /// // SAFETY: the reference was made for this store, which was not reset since.
    /// assert_eq!(unsafe { Func::from_raw(&store, raw) }, Some(double));
    /// // SAFETY: zero is null in every store.
    /// assert_eq!(unsafe { Func::from_raw(&store, 0) }, None);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn to_raw(&self, store: impl AsContext) -> Result<u64> {
        Ok(self.reference(&store.as_context().0.inner)?.0)
    }

    /// The function that a reference names; `None` for null.
    ///
    /// # Panics
    /// May panic if the contract below is broken.
    ///
    /// # Safety
    /// The reference is 0 or was made for this store, which was not reset since.
    ///
    /// # Examples
    ///
    /// See [`Func::to_raw`].
    pub unsafe fn from_raw(store: impl AsContext, raw: u64) -> Option<Self> {
        Self::from_reference(&store.as_context().0.inner, FuncRef(raw))
    }

    /// Calls the function with values that are not checked: `params_and_returns` begins with its
    /// arguments, which are replaced by its results. As a [`Func::call`], it allocates nothing;
    /// if it fails, the values are as good as undefined.
    ///
    /// # Errors
    /// If the function is of another store, or there are fewer values than it has parameters or
    /// results; else what ends the call: a [`Trap`](crate::Trap), or the error of a host function.
    ///
    /// # Panics
    /// If a host function panics, with its payload.
    ///
    /// # Safety
    /// `params_and_returns` can be read and written, and nothing else does so during the call. It
    /// begins with a value of the type of each parameter. References among them are as
    /// [`Val::from_raw`] wants them.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store, ValRaw};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "add")
    ///     (param i32 i32) (result i64) (i64.extend_i32_s (i32.add (local.get 0) (local.get 1)))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let add = instance.get_func(&mut store, "add").expect("it is exported");
    /// let mut values = [ValRaw::i32(-3), ValRaw::i32(1)];
    /// // SAFETY: these are two `i32`, as the type says, and room for one result.
    /// unsafe { add.call_unchecked(&mut store, &raw mut values[..])? };
    /// assert_eq!(values[0].get_i64(), -2);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline(always)]
    pub unsafe fn call_unchecked(
        &self,
        mut store: impl AsContextMut,
        params_and_returns: *mut [ValRaw],
    ) -> Result<()> {
        let mut store = store.as_context_mut();
        let store = store.as_ptr();
        // SAFETY: the store is borrowed, so that the function is its own if it is known there; the rest is this
        // function's contract.
        unsafe {
            match self.known_direct(store) {
                Some(called) if has_room(called.ty(), params_and_returns) => {
                    call_known(store, *called, params_and_returns)
                }
                _ => self.call_unknown(store, params_and_returns),
            }
        }
    }

    /// As [`Func::call_unchecked`], where [`known_direct`](Func::known_direct) gives nothing, or there are too few cells.
    ///
    /// # Safety
    /// As of [`Func::call_unchecked`]; the store is borrowed by the caller, the pointer with the
    /// provenance of the whole.
    #[inline(never)]
    unsafe fn call_unknown(&self, store: *mut StoreGroup, values: *mut [ValRaw]) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe {
            match self.becomes_known(store) {
                Some(called) if has_room(called.ty(), values) => call_known(store, *called, values),
                _ => self.call_raw_in_cells(store, values),
            }
        }
    }

    /// As [`Func::call_unchecked`], of functions of any type, with values in the guest's cells.
    ///
    /// # Safety
    /// As of [`Func::call_unknown`].
    #[inline(never)]
    unsafe fn call_raw_in_cells(
        &self,
        store: *mut StoreGroup,
        params_and_returns: *mut [ValRaw],
    ) -> Result<()> {
        let values: *mut Cell = params_and_returns.cast();
        // SAFETY: the store is borrowed; this borrow ends before anything is called.
        let inner = unsafe { &mut *store };
        inner.check(self.store, "function")?;
        if self.definition.ordinal() == HOST_ORDINAL {
            let index = self.definition.index().expect("a definition is not null");
            // SAFETY: the function stays in the store's list, which is borrowed; by this
            // function's contract the values are what it takes, and were just found to be enough.
            return unsafe {
                let function = &*inner.host_function_ptr(index);
                let count = check_room(&function.ty, params_and_returns)?;
                let _deadline = inner.begin_host_call()?;
                StoreGroup::with_own_cells(store, count, |own| {
                    copy(values, own, &function.ty.params, |word| word);
                    (function.call)(store, own, 0)?;
                    copy(own, values, &function.ty.results, |word| word);
                    Ok(())
                })
            };
        }
        span!(if !inner.activation.is_active(), TRACE, "call");
        let called = inner.called(self.definition);
        let target = &called.target;
        // SAFETY: nothing but guests and host functions come between, and no instance goes as
        // long as they run.
        let ty = unsafe { called.ty() };
        check_room(ty, params_and_returns)?;
        let cells = cells(target);
        // SAFETY: the link zone has cells for each function with an entry stub; by this
        // function's contract the values are of its type, and there are enough. The target is
        // the store's own, and where it has finished its results are in the cells.
        unsafe {
            copy(values, cells, &ty.params, |word| word.relative(target.ordinal));
            match enter::call(store, target)? {
                CallOutcome::Finished => {}
                CallOutcome::Suspended => return Err(UsageError::Suspended.into()),
            }
            copy(cells, values, &ty.results, |word| word.absolute(target.ordinal));
        }
        Ok(())
    }

    /// Makes a closure a function of the type `ty`, as [`Func::new`] does, but for its values: it
    /// gets as many as the function has parameters, or results if these are more. The first ones
    /// are the arguments, and it puts the results in their place.
    ///
    /// # Safety
    /// When the closure returns without an error, the values begin with one of the type of each
    /// result. References among them are as [`Val::from_raw`] wants them.
    /// When it returns [`Caller::suspend_before`], they are the arguments still.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, FuncType, Store, ValRaw, ValType};
    ///
    /// let mut store = Store::new(&Engine::default(), 0);
    /// let ty = FuncType::new([ValType::I32; 2], [ValType::I32]);
    /// // SAFETY: the closure leaves an `i32`, as the type says.
    /// let add = unsafe {
    ///     Func::new_unchecked(&mut store, ty, |mut caller: Caller<'_, i32>, values: &mut [ValRaw]| {
    ///         *caller.data_mut() += 1;
    ///         values[0] = ValRaw::i32(values[0].get_i32() + values[1].get_i32());
    ///         Ok(())
    ///     })
    /// };
    /// assert_eq!(add.typed::<(i32, i32), i32>(&store)?.call(&mut store, (3, 4))?, 7);
    /// assert_eq!(*store.data(), 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub unsafe fn new_unchecked<T: 'static>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let store = store.as_context_mut();
        // SAFETY: this function's contract is that of `unchecked`.
        let function = unsafe { unchecked(store.engine(), ty, function, None) };
        Self::from_host(&mut store.0.inner, function)
    }
}

impl<T: 'static> Linker<T> {
    /// Defines a host function of any type on values that are not checked; see
    /// [`Func::new_unchecked`].
    ///
    /// # Errors
    /// As [`Linker::func_new`].
    ///
    /// # Safety
    /// As of [`Func::new_unchecked`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, FuncType, Linker, ValRaw, ValType};
    ///
    /// let mut linker = Linker::<()>::new(&Engine::default());
    /// let negate = |_: Caller<'_, ()>, values: &mut [ValRaw]| {
    ///     values[0] = ValRaw::i64(-values[0].get_i64());
    ///     Ok(())
    /// };
    /// let ty = FuncType::new([ValType::I64], [ValType::I64]);
    /// // SAFETY: the closure leaves an `i64`, as the type says.
    /// unsafe { linker.func_new_unchecked("host", "negate", ty, negate)? };
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub unsafe fn func_new_unchecked(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<&mut Self> {
        // SAFETY: this function's contract is that of `unchecked`.
        let function = unsafe { unchecked(self.engine(), ty, function, None) };
        self.define_host(module, name, function)
    }
}

/// A host function on values that are not checked, and the function of C's that does the same, if there is one.
///
/// # Safety
/// As of [`Func::new_unchecked`].
pub(crate) unsafe fn unchecked<T: 'static>(
    engine: &Engine,
    ty: FuncType,
    function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
    foreign: Option<ForeignFunction<T>>,
) -> HostFunc {
    if function_import::is_direct(&ty) {
        // SAFETY: by this function's contract.
        return unsafe { on_raw_values(engine, ty, function, foreign) };
    }
    HostFunc::in_cells_of_type(engine, ty, |types| {
        let types = Arc::clone(types);
        Box::new(move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
            let count = types.params.len().max(types.results.len());
            // The guest's own cells are not lent: calls of guests by the closure use them too.
            // SAFETY: `HostCall` says that store, cells and base are of one store and function
            // type; there are as many cells of our own, which are values without types, and by
            // this function's contract the closure leaves results.
            unsafe {
                StoreGroup::with_own_cells(store, count, |own| {
                    let owner = (*store).ordinal_of(base);
                    copy(cells, own, &types.params, |word| word.absolute(owner));
                    let values = slice::from_raw_parts_mut(own.cast(), count);
                    function(Caller::new(store, base), values)?;
                    copy(own, cells, &types.results, |word| word.relative(owner));
                    Ok(())
                })
            }
        })
    })
}

/// Arguments of these types in cells that begin with them, if all are integers.
///
/// # Safety
/// As of [`registers_of`].
#[inline(always)]
unsafe fn ints_in_cells(
    cells: *const Cell,
    types: &[ValType],
) -> Option<[u64; function_import::INTS_MAX]> {
    enter::ints_of(types.len(), |index| {
        // SAFETY: by this function's contract.
        unsafe {
            let cell = cells.add(index);
            match types[index] {
                ValType::I32 => Some(cell.cast::<u32>().read().into()),
                ValType::I64 => Some(cell.cast::<u64>().read()),
                _ => None,
            }
        }
    })
}

/// The arguments in cells that begin with values of these types, which are numbers.
///
/// # Safety
/// There is a cell for each type, of which as many bytes are read as the type has.
#[inline(always)]
unsafe fn registers_of(cells: *const Cell, types: &[ValType]) -> Registers {
    let mut registers = Registers::default();
    for (i, ty) in types.iter().enumerate() {
        // SAFETY: by this function's contract.
        unsafe {
            let cell = cells.add(i);
            match ty {
                ValType::I32 => registers.put_int(cell.cast::<u32>().read().into()),
                ValType::F32 => registers.put_float_bits(cell.cast::<u32>().read().into()),
                ValType::F64 => registers.put_float_bits(cell.cast::<u64>().read()),
                _ => registers.put_int(cell.cast::<u64>().read()),
            }
        }
    }
    registers
}

/// Whether there are cells for the parameters of a function of this type, and for its results.
#[inline(always)]
fn has_room(ty: &FuncType, values: *mut [ValRaw]) -> bool {
    values.len() >= ty.params.len().max(ty.results.len())
}

/// Calls a function with values in registers. Always inline: what is known where it is called is not passed, nor
/// looked at once more.
///
/// # Errors
/// As of [`Func::call_unchecked`].
///
/// # Safety
/// As of [`Func::call_unchecked`]; the store is borrowed by the caller, the pointer with the provenance of the
/// whole, and [`Func::known_direct`] has just given this. There is room for the values.
#[inline(always)]
unsafe fn call_known(
    store: *mut StoreGroup,
    called: CalledFunction,
    values: *mut [ValRaw],
) -> Result<()> {
    span!(TRACE, "call");
    let (target, cells) = (&called.target, values.cast::<Cell>());
    // SAFETY: by this function's contract. The values are of the function's type, there is a cell for the result,
    // and nothing has happened since the guest was found to be outermost.
    unsafe {
        let ty = called.ty();
        let (int, float) = match ints_in_cells(cells, &ty.params) {
            Some(ints) => {
                let registers = Registers::of_ints(ints);
                enter::call_outermost::<false>(store, target, target.direct_entry, registers)?
            }
            None => {
                let registers = registers_of(cells, &ty.params);
                enter::call_in_registers(store, target, registers)?
            }
        };
        if let [ty] = &*ty.results {
            cells.write(Cell::from_u64(match ty {
                ValType::I32 => u64::from(int as u32),
                ValType::F32 => u64::from(float.to_bits() as u32),
                ValType::F64 => float.to_bits(),
                _ => int,
            }));
        }
        Ok(())
    }
}

/// How many cells a function of this type takes.
///
/// # Errors
/// If there are fewer values.
#[inline]
fn check_room(ty: &FuncType, values: *mut [ValRaw]) -> Result<usize> {
    let (expected, found) = (ty.params.len().max(ty.results.len()), values.len());
    match expected <= found {
        true => Ok(expected),
        false => Err(UsageError::ValueCount { what: "values", expected, found }.into()),
    }
}

/// Copies values of these types from one place to another, with references that name their
/// owners by the place they are in as `moved` says.
///
/// # Safety
/// Both have a cell for each type, and what is copied is of these types: of a cell as many bytes
/// are read as its type has.
#[inline]
unsafe fn copy(
    from: *const Cell,
    to: *mut Cell,
    types: &[ValType],
    moved: impl Fn(FuncRef) -> FuncRef,
) {
    for (i, ty) in types.iter().enumerate() {
        // SAFETY: by this function's contract there is a cell for each type in both, with as
        // many bytes of a value as are read.
        unsafe {
            let from = from.add(i);
            let cell = match ty {
                ValType::I32 | ValType::F32 => Cell::from_u64(from.cast::<u32>().read().into()),
                ValType::I64 | ValType::F64 => Cell::from_u64(from.cast::<u64>().read()),
                ValType::V128 => from.read(),
                // References to exceptions name their owners in the same way.
                ty if ty.has_owner() => Cell::from_u64(moved(FuncRef(from.cast::<u64>().read())).0),
                ValType::Ref(_) => Cell::from_u64(from.cast::<u64>().read()),
            };
            to.add(i).write(cell);
        }
    }
}
