//! Functions of C's as host functions, which guests call with nothing in between, and how they fail:
//! what a library for another language stands on.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use pagefork_layout::link::function_import::INTS_MAX;
use pagefork_layout::module::FuncType;

use crate::api::func::Caller;
use crate::api::linker::Linker;
use crate::api::raw::{ValRaw, unchecked};
use crate::api::registers::{bits, has_floats};
use crate::api::store::{AsContextMut, Full, StoreContextMut};
use crate::base::error::{Error, Result};
use crate::store::foreign::{ForeignCall, ForeignFns};
use crate::store::handle::Func;

/// Data of stores whose guests call functions of C's, and by what these know the store.
///
/// # Examples
///
/// See [`ForeignFunction`].
pub trait ForeignData: 'static {
    /// By what functions of C's know the store, which has these data from now on and is at this address: that of
    /// [`StoreContextMut::expose`]. Asked each time that a store gets data, before any of its guests runs with
    /// them, if instances in it have been given such functions. Who puts other data in their place by
    /// [`Store::data_mut`](crate::Store::data_mut) or [`Caller::data_mut`] is not seen: what this gives must hold for
    /// both, as long as no reset or spawn comes between.
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction`].
    fn handle(&self, store: usize) -> *const c_void;

    /// The error that a function [on cells](ForeignFunction::on_cells) has returned, which is given here once.
    /// Nothing has borrowed the store.
    ///
    /// # Safety
    /// A function on cells of a store with such data has returned this just now.
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction::on_cells`].
    unsafe fn error(returned: NonNull<c_void>) -> Error;
}

/// A function of C's that does what a [`RegisterCallee`](crate::RegisterCallee) does, or a closure
/// [on cells](ForeignFunction::on_cells). Guests call it directly, except where calls have hooks or guests may be suspended: there the callee is called.
///
/// Its first argument is the address of two words: what it was made with, and what the store's
/// [data](ForeignData) say. The function's own arguments follow. To fail it has [`StoreContextMut::raise`] called.
///
/// # Examples
///
/// ```
/// use std::ffi::c_void;
/// use std::ptr::NonNull;
/// use pagefork::{
///     AsContextMut, Caller, Error, ForeignData, ForeignFunction, FuncType, Linker, Engine, Module,
///     RegisterCallee, RegisterResult, RegisterValues, Result, StoreContextMut, ValType,
/// };
///
/// struct Data;
///
/// impl ForeignData for Data {
///     fn handle(&self, store: usize) -> *const c_void {
///         std::ptr::without_provenance(store)
///     }
///
///     unsafe fn error(_: NonNull<c_void>) -> Error {
///         unreachable!("no function is on cells")
///     }
/// }
///
/// #[repr(C)]
/// struct Called {
///     factor: *mut c_void,
///     store: usize,
/// }
///
/// unsafe extern "C" fn multiply(called: *const Called, number: i64) -> i64 {
///     // SAFETY: guests give their caller, and the callee one that is like it.
///     let called = unsafe { &*called };
///     if number < 0 {
///         // SAFETY: it is the store whose guest has called, and nothing else uses it meanwhile.
///         let mut store = unsafe { StoreContextMut::<Data>::from_exposed(called.store) };
///         drop(store.raise(Error::msg("a negative number")));
///     }
///     number.wrapping_mul(called.factor.addr() as i64)
/// }
///
/// struct Multiply(usize);
///
/// impl RegisterCallee<Data> for Multiply {
///     fn call(&self, mut caller: Caller<'_, Data>, values: RegisterValues) -> Result<RegisterResult> {
///         let store = caller.as_context_mut().expose();
///         let called = Called { factor: std::ptr::without_provenance_mut(self.0), store };
///         // SAFETY: the function takes this.
///         let product = unsafe { multiply(&called, values.ints[0] as i64) };
///         match caller.as_context_mut().take_raised() {
///             Some(error) => Err(error),
///             None => Ok(RegisterResult { int: product as u64, float: 0.0 }),
///         }
///     }
///
///     fn foreign(&self) -> Option<ForeignFunction<Data>> {
///         let factor = std::ptr::without_provenance_mut(self.0);
///         // SAFETY: it is defined below as one from `i64` to `i64`, and does not unwind.
///         Some(unsafe { ForeignFunction::new(multiply as *const (), factor) })
///     }
/// }
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "host" "multiply" (func $multiply (param i64) (result i64)))
///     (func (export "run") (param i64) (result i64) (call $multiply (local.get 0))))"#)?;
/// let mut linker = Linker::new(&engine);
/// let ty = FuncType::new([ValType::I64], [ValType::I64]);
/// linker.func_new_with_registers("host", "multiply", ty, Multiply(6))?;
/// let pre = linker.instantiate_pre(&module)?;
/// for _ in 0..3 {
///     let (mut store, instance) = pre.spawn(Data)?;
///     let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
///     assert_eq!(run.call(&mut store, 7)?, 42);
///     assert_eq!(run.call(&mut store, -7).unwrap_err().to_string(), "a negative number");
///     assert_eq!(run.call(&mut store, 1)?, 6);
/// }
/// # Ok::<(), Error>(())
/// ```
pub struct ForeignFunction<T> {
    call: ForeignCall,
    data: PhantomData<fn(&T)>,
}

impl<T: ForeignData> ForeignFunction<T> {
    /// The function at this address, with what it is made with.
    ///
    /// # Safety
    /// - It takes the address of two words as above, and then what the type has parameters of which it is made a
    ///   host function, and returns what that has as its result, all as System V has it. It is there as
    ///   long as any store with it.
    /// - It returns: nothing unwinds out of it, and nothing jumps out of it.
    /// - It may be called by any thread that runs guests, and the word may be used there.
    /// - It uses the store by its [address](StoreContextMut::from_exposed) alone, one context at a time, and none
    ///   that it had before it called a guest.
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction`].
    pub unsafe fn new(function: *const (), env: *mut c_void) -> Self {
        Self::known(function, env, None)
    }

    /// The function on cells at this address, with what it is made with. It is called directly if its type
    /// [fits registers](crate::RegisterValues::fit) and none of its parameters is a float; else what it is
    /// given with is called.
    ///
    /// # Safety
    /// As of [`ForeignFunction::new`], but that it takes, after the address of two words, the address of cells: as
    /// many [values](crate::ValRaw) as the type has parameters, or results if these are more. The first ones are
    /// the arguments, in whose place it puts the results, but if it fails. Only the bytes of a result's type need
    /// be written. It returns null, or what [`ForeignData::error`] takes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::ffi::c_void;
    /// use std::ptr::{self, NonNull};
    /// use pagefork::{
    ///     Caller, Engine, Error, ForeignData, ForeignFunction, FuncType, Linker, Module, Result, ValRaw, ValType,
    /// };
    ///
    /// struct Data;
    ///
    /// impl ForeignData for Data {
    ///     fn handle(&self, store: usize) -> *const c_void {
    ///         ptr::without_provenance(store)
    ///     }
    ///
    ///     unsafe fn error(returned: NonNull<c_void>) -> Error {
    ///         Error::msg(format!("number {}", returned.addr()))
    ///     }
    /// }
    ///
    /// unsafe extern "C" fn halve(_: *const [usize; 2], cells: *mut ValRaw) -> *mut c_void {
    ///     // SAFETY: who calls gives a cell, for the argument and the result.
    ///     let cell = unsafe { &mut *cells };
    ///     let number = cell.get_i32();
    ///     if number % 2 != 0 {
    ///         return ptr::without_provenance_mut(number as usize);
    ///     }
    ///     *cell = ValRaw::i32(number / 2);
    ///     ptr::null_mut()
    /// }
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "halve" (func $halve (param i32) (result i32)))
    ///     (func (export "run") (param i32) (result i32) (call $halve (local.get 0))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// let ty = FuncType::new([ValType::I32], [ValType::I32]);
    /// let function = |_: Caller<'_, Data>, cells: &mut [ValRaw]| -> Result<()> {
    ///     // SAFETY: there is a cell, as the function wants it.
    ///     match NonNull::new(unsafe { halve(ptr::null(), cells.as_mut_ptr()) }) {
    ///         None => Ok(()),
    ///         // SAFETY: it was returned just now.
    ///         Some(returned) => Err(unsafe { Data::error(returned) }),
    ///     }
    /// };
    /// // SAFETY: it is defined above as such a function, leaves an `i32`, and does not unwind.
    /// unsafe {
    ///     let foreign = ForeignFunction::on_cells(halve as *const (), ptr::null_mut());
    ///     linker.func_new_foreign("host", "halve", ty, function, foreign)?;
    /// }
    /// let (mut store, instance) = linker.instantiate_pre(&module)?.spawn(Data)?;
    /// let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    /// assert_eq!(run.call(&mut store, 8)?, 4);
    /// assert_eq!(run.call(&mut store, 9).unwrap_err().to_string(), "number 9");
    /// # Ok::<(), Error>(())
    /// ```
    pub unsafe fn on_cells(function: *const (), env: *mut c_void) -> Self {
        // Which bits count is known with the type.
        Self::known(function, env, Some(Box::default()))
    }

    fn known(function: *const (), env: *mut c_void, cells: Option<Box<[u64; INTS_MAX]>>) -> Self {
        let (function, env) = (function.expose_provenance(), env.expose_provenance());
        Self { call: ForeignCall { function, env, data: T::FNS, cells }, data: PhantomData }
    }
}

impl<T> ForeignFunction<T> {
    /// How guests call the function as one of this type; `None` if they do not.
    pub(crate) fn of_type(self, ty: &FuncType) -> Option<ForeignCall> {
        let mut call = self.call;
        if let Some(cells) = &mut call.cells {
            if has_floats(ty) {
                return None;
            }
            for (counting, ty) in cells.iter_mut().zip(&ty.params) {
                *counting = bits(*ty);
            }
        }
        Some(call)
    }
}

/// What a type of data does for functions of C's.
trait Fns: ForeignData {
    const FNS: &'static ForeignFns;
}

impl<T: ForeignData> Fns for T {
    const FNS: &'static ForeignFns = &ForeignFns { handle: handle::<T>, error: T::error };
}

impl Func {
    /// As [`Func::new_unchecked`], of a closure that does what a function of C's does. Guests call that directly
    /// where they can.
    ///
    /// # Safety
    /// As of [`Func::new_unchecked`].
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction::on_cells`], by which it is defined in a linker.
    pub unsafe fn new_foreign<T: ForeignData>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
        foreign: ForeignFunction<T>,
    ) -> Self {
        let store = store.as_context_mut();
        // SAFETY: this function's contract is that of `unchecked`.
        let function = unsafe { unchecked(store.engine(), ty, function, Some(foreign)) };
        Self::from_host(&mut store.0.inner, function)
    }
}

impl<T: ForeignData> Linker<T> {
    /// As [`Linker::func_new_unchecked`], of a closure that does what a function of C's does. Guests call that
    /// directly where they can.
    ///
    /// # Errors
    /// As [`Linker::func_new`].
    ///
    /// # Safety
    /// As of [`Func::new_unchecked`].
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction::on_cells`].
    pub unsafe fn func_new_foreign(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &mut [ValRaw]) -> Result<()> + Send + Sync + 'static,
        foreign: ForeignFunction<T>,
    ) -> Result<&mut Self> {
        // SAFETY: this function's contract is that of `unchecked`.
        let function = unsafe { unchecked(self.engine(), ty, function, Some(foreign)) };
        self.define_host(module, name, function)
    }
}

/// By what functions of C's know the store at this address.
///
/// # Safety
/// The store is there, and has data of this type.
unsafe fn handle<T: ForeignData>(store: usize) -> usize {
    let full: *const Full<T> = ptr::with_exposed_provenance(store);
    // SAFETY: by this function's contract; whoever calls has borrowed no more of the store than lies before
    // its data.
    let data = unsafe { &(*full).data };
    data.handle(store).expose_provenance()
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// Has the host function that runs now fail with this error when it returns to the guest that has
    /// called it: for bindings whose functions return no errors. Gives what it would have failed with.
    ///
    /// If not a guest has called the function, or it is one of Rust's that returns a [`Result`], who has
    /// called it is to [take](StoreContextMut::take_raised) the error.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Caller, Engine, Error, Func, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "check" (func $check (param i32)))
    ///     (func (export "run") (param i32) (call $check (local.get 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let check = Func::wrap(&mut store, |mut caller: Caller<'_, ()>, number: i32| {
    ///     if number != 0 {
    ///         let before = caller.as_context_mut().raise(Error::msg("not zero"));
    ///         assert!(before.is_none());
    ///     }
    /// });
    /// let instance = Instance::new(&mut store, &module, &[check.into()])?;
    /// let run = instance.get_typed_func::<i32, ()>(&mut store, "run")?;
    /// assert_eq!(run.call(&mut store, 1).unwrap_err().to_string(), "not zero");
    /// run.call(&mut store, 0)?;
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use = "what it is may use the store when it is dropped"]
    pub fn raise(&mut self, error: Error) -> Option<Error> {
        self.0.inner.raise(error)
    }

    /// What the host function that runs now was to fail with, which it does not now.
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction`].
    pub fn take_raised(&mut self) -> Option<Error> {
        self.0.inner.take_raised()
    }
}
