//! Functions of C's as host functions, which guests call with nothing in between, and how they fail:
//! what a library for another language stands on.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use crate::api::store::{Full, StoreContextMut};
use crate::base::error::Error;
use crate::store::foreign::ForeignCall;

/// Data of stores whose guests call functions of C's, and by what these know the store.
///
/// # Examples
///
/// See [`ForeignFunction`].
pub trait ForeignData: 'static {
    /// By what functions of C's know the store, which has these data from now on and is at this address: that of
    /// [`StoreContextMut::expose`]. Asked each time that a store gets data, before any of its guests runs with
    /// them, if instances in it have been given such functions.
    ///
    /// # Examples
    ///
    /// See [`ForeignFunction`].
    fn handle(&self, store: usize) -> *const c_void;
}

/// A function of C's that does what a [`RegisterCallee`](crate::RegisterCallee) does. Guests call it
/// directly, except where calls have hooks or guests may be suspended: there the callee is called.
///
/// Its first argument is the address of two words: what it was made with, and what the store's
/// [data](ForeignData) say. The function's own arguments follow. To fail it has [`StoreContextMut::raise`] called.
///
/// # Examples
///
/// ```
/// use std::ffi::c_void;
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
    pub(crate) call: ForeignCall,
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
        let (function, env) = (function.expose_provenance(), env.expose_provenance());
        Self { call: ForeignCall { function, env, handle: handle::<T> }, data: PhantomData }
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
