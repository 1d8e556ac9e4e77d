//! Functions as embedders make and call them, and what host functions know of their caller.

use pagefork_layout::link::function_import;
use pagefork_layout::module::{FuncType, ValType};
use pagefork_layout::reference::HOST_ORDINAL;

use crate::api::export::check_type;
use crate::api::host_func::IntoFunc;
use crate::api::instance::{Extern, Instance};
use crate::api::store::{AsContext, AsContextMut, StoreContext, StoreContextMut};
use crate::api::typed::{TypedFunc, WasmValues};
use crate::api::untyped::on_values;
use crate::base::error::{Error, Result, UsageError};
use crate::base::trace::span;
use crate::code::engine::Engine;
use crate::run::enter::{self, CallOutcome, Registers};
use crate::store::activation::Activation;
use crate::store::called::CalledFunction;
use crate::store::group::StoreGroup;
use crate::store::handle::{Func, cells, read_results, write_values};
pub(crate) use crate::store::host_func::HostFunc;
use crate::store::interrupt::{InterruptHandle, Interruption};
use crate::store::value::Val;

impl Func {
    /// Makes a closure a function of the type `ty`. It gets the arguments, which
    /// are of that type, and must set each of the results.
    ///
    /// If the closure returns an error, the guests that called it are left, and
    /// their callers get it, unless it is an [`Exception`](crate::Exception) that
    /// one of them catches; if it panics, they are left, too, and the panic goes on
    /// in the embedder. A result that is not set, or of a wrong type, is the error
    /// [`UsageError::HostResult`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, FuncType, Store, Val, ValType};
    ///
    /// // As many parameters as the type says: it may be known at run time alone.
    /// let mut store = Store::new(&Engine::default(), ());
    /// let ty = FuncType::new([ValType::I32; 3], [ValType::I32]);
    /// let sum = Func::new(&mut store, ty, |_, params, results| {
    ///     results[0] = Val::I32(params.iter().map(Val::unwrap_i32).sum());
    ///     Ok(())
    /// });
    /// let mut results = [Val::I32(0)];
    /// sum.call(&mut store, &[1, 2, 3].map(Val::I32), &mut results)?;
    /// assert_eq!(results[0].i32(), Some(6));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn new<T: 'static>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        function: impl Fn(Caller<'_, T>, &[Val], &mut [Val]) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let store = store.as_context_mut();
        let function = on_values(store.engine(), ty, function);
        Self::from_host(&mut store.0.inner, function)
    }

    /// Makes a closure a function whose type follows from the closure's: up to 16
    /// parameters, after an optional [`Caller`], and a value, a tuple of values or
    /// nothing as the result, or a [`Result`] of that. See [`Func::new`] for
    /// errors and panics.
    ///
    /// # Examples
    ///
    /// See [`Func`].
    pub fn wrap<T: 'static, Params, Results>(
        mut store: impl AsContextMut<Data = T>,
        function: impl IntoFunc<T, Params, Results>,
    ) -> Self {
        let store = store.as_context_mut();
        let function = function.into_host_func(store.engine());
        Self::from_host(&mut store.0.inner, function)
    }

    pub(crate) fn from_host(store: &mut StoreGroup, function: HostFunc) -> Self {
        let definition = store.add_host_function(function.into());
        Self { store: store.id, definition }
    }

    /// The function's type.
    ///
    /// # Panics
    /// If the function is of another store.
    ///
    /// # Examples
    ///
    /// See [`Func`].
    pub fn ty(&self, store: impl AsContext) -> FuncType {
        self.with_type(store, FuncType::clone)
    }

    /// Looks at the function's type where it lies: nothing is copied.
    ///
    /// # Panics
    /// If the function is of another store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let add = Func::wrap(&mut store, |a: i32, b: i32| a + b);
    /// assert_eq!(add.with_type(&store, |ty| ty.params.len()), 2);
    /// ```
    pub fn with_type<R>(&self, store: impl AsContext, look: impl FnOnce(&FuncType) -> R) -> R {
        let store = &store.as_context().0.inner;
        store.assert_own(self.store, "function");
        look(store.function_type(self.definition).0)
    }

    /// Calls the function. `params` must be of its parameters' types; `results` is
    /// overwritten and must be as long as its list of results.
    ///
    /// # Errors
    /// If values or stores do not match, before anything is called; else what
    /// ends the call: a [`Trap`](crate::Trap), or the error of a host function.
    ///
    /// # Panics
    /// If a host function panics, with its payload.
    ///
    /// # Examples
    ///
    /// See [`Func`].
    #[inline(always)]
    pub fn call(
        &self,
        mut store: impl AsContextMut,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<()> {
        let mut store = store.as_context_mut();
        let store = store.as_ptr();
        // SAFETY: the store is borrowed, so that the function is its own if it is known there. Integers are
        // what the type says, and nothing has happened since the guest was found to be outermost.
        unsafe {
            if let Some(called) = self.first_known_direct(store)
                && let (target, ty) = (called.target, called.ty())
                && results.len() == ty.results.len()
                && let Some(ints) = int_values(params, &ty.params)
            {
                span!(TRACE, "call");
                let (entry, registers) = (target.direct_entry, Registers::of_ints(ints));
                let called = enter::call_outermost::<false>(store, &target, entry, registers);
                return called.map(|registers| set_result(results, ty, registers));
            }
            self.call_otherwise(store, params, results)
        }
    }

    /// As [`Func::call`], where arguments are no integers in registers, or the function is not known yet.
    ///
    /// # Safety
    /// The store is borrowed by the caller, the pointer with the provenance of the whole.
    #[inline(never)]
    unsafe fn call_otherwise(
        &self,
        store: *mut StoreGroup,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<()> {
        // SAFETY: as in `call`, whose contract this function's is.
        unsafe {
            if let Some(called) = self.known_direct(store).or_else(|| self.becomes_known(store))
                && let (target, ty) = (called.target, called.ty())
                && results.len() == ty.results.len()
                && let Some(registers) = Registers::of_values(params, &ty.params)
            {
                span!(TRACE, "call");
                let called = enter::call_in_registers(store, &target, registers);
                return called.map(|registers| set_result(results, ty, registers));
            }
            self.call_in_cells(store, params, results)
        }
    }

    /// As [`Func::call`], of functions of any type, with values in cells.
    ///
    /// # Safety
    /// As of [`Func::call_otherwise`].
    #[inline(never)]
    unsafe fn call_in_cells(
        &self,
        store: *mut StoreGroup,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<()> {
        // SAFETY: by this function's contract the store is borrowed.
        let inner = unsafe { &mut *store };
        inner.check(self.store, "function")?;
        if self.definition.ordinal() == HOST_ORDINAL {
            // SAFETY: the store is borrowed, and the function is of the store.
            return unsafe { self.call_host(store, params, results) };
        }
        span!(if !inner.activation.is_active(), TRACE, "call");
        let called = inner.called(self.definition);
        let target = &called.target;
        // SAFETY: nothing but guests and host functions come between, and no instance goes as
        // long as they run.
        let ty = unsafe { called.ty() };
        check_values(inner, ty, params, results)?;
        let cells = cells(target);
        // SAFETY: the link zone has cells for each function with an entry stub, and the
        // values are as many as the type has. The store is borrowed, and the target is its
        // own, with its arguments, just checked, in its cells; where it has finished, its
        // results are there.
        unsafe {
            write_values(inner, params, cells, target.ordinal)?;
            match enter::call(store, target)? {
                CallOutcome::Finished => {}
                CallOutcome::Suspended => return Err(UsageError::Suspended.into()),
            }
            read_results(&*store, ty, results, cells, target.ordinal);
        }
        Ok(())
    }

    /// As [`Func::known_direct`], of functions that the store has kept first.
    ///
    /// # Safety
    /// The store is borrowed by the caller.
    #[inline(always)]
    pub(crate) unsafe fn first_known_direct<'a>(
        &self,
        store: *const StoreGroup,
    ) -> Option<&'a CalledFunction> {
        // SAFETY: by this function's contract.
        unsafe {
            let is_ready = (*store).id == self.store && enter::is_outermost(store);
            let called = is_ready.then(|| (*store).first_known_call(self.definition)).flatten();
            called.filter(|called| called.target.direct_entry != 0)
        }
    }

    /// The function as the store has kept it, if it is a guest's that is entered as the outermost, with
    /// values in registers.
    ///
    /// # Safety
    /// The store is borrowed by the caller.
    #[inline]
    pub(crate) unsafe fn known_direct<'a>(
        &self,
        store: *const StoreGroup,
    ) -> Option<&'a CalledFunction> {
        // SAFETY: by this function's contract.
        unsafe {
            let is_ready = (*store).id == self.store && enter::is_outermost(store);
            let called = is_ready.then(|| (*store).known_call(self.definition)).flatten();
            called.filter(|called| called.target.direct_entry != 0)
        }
    }

    /// Has the store keep the function, if it is one that [`Func::known_direct`] gives then and did not
    /// give before.
    ///
    /// # Safety
    /// The store is borrowed by the caller.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn becomes_known<'a>(
        &self,
        store: *mut StoreGroup,
    ) -> Option<&'a CalledFunction> {
        // SAFETY: by this function's contract.
        unsafe {
            if (*store).id != self.store
                || self.definition.ordinal() == HOST_ORDINAL
                || self.known_direct(store).is_some()
                || !enter::enters_outermost(store)
            {
                return None;
            }
            (*store).called(self.definition);
            self.known_direct(store)
        }
    }

    /// Calls a function of the host.
    ///
    /// # Safety
    /// The store is borrowed by the caller, the pointer with the provenance of the whole, and
    /// the function is a host function of it.
    pub(crate) unsafe fn call_host(
        &self,
        store: *mut StoreGroup,
        params: &[Val],
        results: &mut [Val],
    ) -> Result<()> {
        let index = self.definition.index().expect("a definition is not null");
        // SAFETY: by this function's contract the store is borrowed, and the function, which
        // stays in the store's list, is of it; the buffer has a cell for each value, and once
        // it has returned its results are there.
        unsafe {
            let function = &*(*store).host_function_ptr(index);
            check_values(&*store, &function.ty, params, results)?;
            StoreGroup::with_own_cells(store, params.len().max(results.len()), |cells| {
                write_values(&*store, params, cells, 0)?;
                let _deadline = (*store).begin_host_call()?;
                (function.call)(store, cells, 0)?;
                read_results(&*store, &function.ty, results, cells, 0);
                Ok(())
            })
        }
    }

    /// The function with its type known to the compiler: calls need no checks of
    /// values then, and allocate nothing.
    ///
    /// # Errors
    /// If the function is of another type or store.
    ///
    /// # Examples
    ///
    /// See [`Func`].
    pub fn typed<Params: WasmValues, Results: WasmValues>(
        &self,
        store: impl AsContext,
    ) -> Result<TypedFunc<Params, Results>> {
        let inner = &store.as_context().0.inner;
        inner.check(self.store, "function")?;
        check_type::<Params, Results>(inner.function_type(self.definition).0)?;
        Ok(TypedFunc::new(*self, self.store, self.entry(inner)))
    }
}

/// Writes the result that is in registers to its place, if there is one.
#[inline(always)]
fn set_result(results: &mut [Val], ty: &FuncType, (int, float): (u64, f64)) {
    if let ([result], [ty]) = (results, &*ty.results) {
        *result = Val::from_register(*ty, int, float);
    }
}

/// The bits of arguments of these types; `None` if one is no integer, or of another type, or there are
/// more or fewer of them.
#[inline(always)]
fn int_values(values: &[Val], types: &[ValType]) -> Option<[u64; function_import::INTS_MAX]> {
    if values.len() != types.len() {
        return None;
    }
    enter::ints_of(types.len(), |index| match (values[index], types[index]) {
        (Val::I32(value), ValType::I32) => Some(u64::from(value as u32)),
        (Val::I64(value), ValType::I64) => Some(value as u64),
        _ => None,
    })
}

/// # Errors
/// If the values are not what a function of this type takes.
#[inline]
pub(crate) fn check_values(
    store: &StoreGroup,
    ty: &FuncType,
    params: &[Val],
    results: &[Val],
) -> Result<()> {
    check_count("parameters", ty.params.len(), params.len())?;
    check_count("results", ty.results.len(), results.len())?;
    for (i, (param, ty)) in params.iter().zip(&ty.params).enumerate() {
        param.check_type(store, *ty, || format!("parameter {i}"))?;
    }
    Ok(())
}

#[inline]
fn check_count(what: &'static str, expected: usize, found: usize) -> Result<()> {
    match expected == found {
        true => Ok(()),
        false => Err(UsageError::ValueCount { what, expected, found }.into()),
    }
}

/// What a host function gets to know about its caller, and its access to the
/// store.
///
/// # Examples
///
/// ```
/// use pagefork::{Caller, Engine, Extern, Instance, Linker, Module, Store};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (import "host" "print" (func $print (param i32 i32)))
///     (memory (export "memory") 1)
///     (data (i32.const 8) "hello")
///     (func (export "run") (call $print (i32.const 8) (i32.const 5))))"#)?;
/// let mut linker = Linker::new(&engine);
/// linker.func_wrap("host", "print", |mut caller: Caller<'_, String>, at: u32, length: u32| {
///     let Some(Extern::Memory(memory)) = caller.get_export("memory") else { return };
///     let text = memory.data(&caller)[at as usize..][..length as usize].to_vec();
///     assert!(caller.data().is_empty(), "it is called once");
///     caller.data_mut().push_str(&String::from_utf8_lossy(&text));
/// })?;
/// let mut store = Store::new(&engine, String::new());
/// let instance = linker.instantiate(&mut store, &module)?;
/// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
/// assert_eq!(store.data(), "hello");
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct Caller<'a, T: 'static> {
    pub(crate) store: StoreContextMut<'a, T>,
    /// Base of the calling instance, 0 if the embedder called.
    base: usize,
    is_direct: bool,
}

/// From where a host function was called, which costs nothing to keep. The default is that of calls by
/// the embedder.
///
/// # Examples
///
/// See [`StoreContextMut::instance_at`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallOrigin(usize);

/// A guest that runs, which is not over until its entry is left: see [`StoreContextMut::running`].
///
/// # Examples
///
/// See [`StoreContextMut::running`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningGuest {
    /// Address of what its entry has left on the host's stack: another one for each that is not left.
    entry: usize,
    origin: CallOrigin,
}

impl RunningGuest {
    /// # Safety
    /// The activation is there, and no other thread uses it.
    #[inline]
    pub(crate) unsafe fn of(activation: *const Activation) -> Option<Self> {
        // SAFETY: by this function's contract.
        let (entry, base) = unsafe { ((*activation).host_sp, (*activation).guest_base) };
        (entry != 0).then_some(Self { entry, origin: CallOrigin(base) })
    }

    /// Where its innermost call of a host function came from.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut::running`].
    pub fn origin(&self) -> CallOrigin {
        self.origin
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// The instance whose function made a call; `None` if the embedder did, or the instance is not
    /// there any more.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "f" (func $f)) (func (export "run") (call $f)))"#)?;
    /// let mut store = Store::new(&engine, None);
    /// let f = Func::wrap(&mut store, |mut caller: Caller<'_, Option<Instance>>| {
    ///     let origin = caller.origin();
    ///     let instance = caller.as_context_mut().instance_at(origin);
    ///     *caller.data_mut() = instance;
    /// });
    /// let instance = Instance::new(&mut store, &module, &[f.into()])?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(*store.data(), Some(instance));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn instance_at(&self, origin: CallOrigin) -> Option<Instance> {
        let inner = &self.0.inner;
        let is_it = |ordinal: &u32| inner.instance(*ordinal).base() == origin.0;
        let found = (origin.0 != 0).then(|| (1..inner.next_ordinal()).find(is_it)).flatten();
        found.map(|ordinal| Instance::from_ordinal(inner, ordinal))
    }

    /// The guest that runs below whoever asks, if one does: of several, the one that was entered last.
    /// So bindings that give their host functions no caller know who has called.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "f" (func $f)) (func (export "run") (call $f)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let f = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| {
    ///     let origin = caller.origin();
    ///     let running = caller.as_context_mut().running();
    ///     assert_eq!(running.map(|guest| guest.origin()), Some(origin));
    /// });
    /// let instance = Instance::new(&mut store, &module, &[f.into()])?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert!(store.as_context_mut().running().is_none());
    /// # use pagefork::AsContextMut;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn running(&self) -> Option<RunningGuest> {
        // SAFETY: the store is borrowed, and with it its activation.
        unsafe { RunningGuest::of(&self.0.inner.activation) }
    }
}

impl<'a, T: 'static> Caller<'a, T> {
    /// # Safety
    /// - `store` is a store with data of type `T`, exclusively the caller's for
    ///   `'a`, and the pointer has the provenance of the whole.
    /// - `base` is that of an instance of this store, or 0.
    pub(crate) unsafe fn new(store: *mut StoreGroup, base: usize) -> Self {
        // SAFETY: the first clause of this function: a whole store with a `T`, exclusively ours.
        let store = StoreContextMut(unsafe { &mut *store.cast() });
        Self { store, base, is_direct: false }
    }

    /// That of a direct call.
    ///
    /// # Safety
    /// As of [`Caller::new`]; the instance's guest runs, and has called.
    #[inline(always)]
    pub(crate) unsafe fn of_direct_call(store: *mut StoreGroup, base: usize) -> Self {
        // SAFETY: by this function's contract.
        Self { is_direct: true, ..unsafe { Self::new(store, base) } }
    }

    /// What [`Caller::new`] makes it of.
    pub(crate) fn into_parts(self) -> (*mut StoreGroup, usize) {
        let Self { mut store, base, .. } = self;
        (store.as_ptr(), base)
    }

    /// The store's engine.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Module, Result, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// // A host function that answers whether modules of its guests' engine can be so.
    /// let accepts_tags = Func::wrap(&mut store, |caller: Caller<'_, ()>| -> Result<i32> {
    ///     Ok(Module::new(caller.engine(), "(module (tag))").is_ok().into())
    /// });
    /// assert_eq!(accepts_tags.typed::<(), i32>(&store)?.call(&mut store, ())?, 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn engine(&self) -> &Engine {
        self.store.engine()
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`Caller`].
    pub fn data(&self) -> &T {
        self.store.data()
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`Caller`].
    pub fn data_mut(&mut self) -> &mut T {
        self.store.data_mut()
    }

    /// What the calling instance exports by this name; `None` also if the
    /// embedder called the function itself.
    ///
    /// # Examples
    ///
    /// See [`Caller`].
    pub fn get_export(&mut self, name: &str) -> Option<Extern> {
        self.instance()?.get_export(&mut self.store, name)
    }

    /// How much fuel the guest has left while it waits: see [`Store::fuel`](crate::Store::fuel).
    ///
    /// # Errors
    /// As [`Store::fuel`](crate::Store::fuel).
    ///
    /// # Examples
    ///
    /// See [`Caller::set_fuel`].
    pub fn fuel(&self) -> Result<u64> {
        self.store.fuel()
    }

    /// Gives the guest other fuel to go on with: see [`Store::set_fuel`](crate::Store::set_fuel).
    ///
    /// # Errors
    /// As [`Store::set_fuel`](crate::Store::set_fuel).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Config, Engine, Func, Instance, Module, Result, Store};
    ///
    /// let engine = Engine::new(Config::new().fuel(true))?;
    /// let module = Module::new(&engine, r#"(module (import "host" "refill" (func $refill))
    ///     (func (export "run") (call $refill)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let refill = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| -> Result<()> {
    ///     let left = caller.fuel()?;
    ///     caller.set_fuel(left + 1000)
    /// });
    /// let instance = Instance::new(&mut store, &module, &[refill.into()])?;
    /// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    /// store.set_fuel(10)?;
    /// run.call(&mut store, ())?;
    /// assert!(store.fuel()? > 1000);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_fuel(&mut self, fuel: u64) -> Result<()> {
        self.store.set_fuel(fuel)
    }

    /// Lets the guest pay for what the host function does.
    ///
    /// # Errors
    /// As [`Store::charge_fuel`](crate::Store::charge_fuel).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Config, Engine, Func, Result, Store};
    ///
    /// let mut store = Store::new(&Engine::new(Config::new().fuel(true))?, ());
    /// let work = Func::wrap(&mut store, |mut caller: Caller<'_, ()>, size: u32| -> Result<()> {
    ///     caller.charge_fuel(u64::from(size) * 10)
    /// });
    /// store.set_fuel(25)?;
    /// let work = work.typed::<u32, ()>(&store)?;
    /// work.call(&mut store, 2)?;
    /// assert_eq!(store.fuel()?, 5);
    /// assert!(work.call(&mut store, 1).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn charge_fuel(&mut self, units: u64) -> Result<()> {
        self.store.charge_fuel(units)
    }

    /// What interrupts the store's guests from other threads.
    ///
    /// # Errors
    /// As of [`Store::interrupt_handle`](crate::Store::interrupt_handle).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, InterruptHandle, Linker, Module, Result, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "begin" (func $begin))
    ///     (func (export "run") (call $begin) (loop (br 0))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// // The guest has just begun, so the interrupt does not come too early.
    /// linker.func_wrap("host", "begin", |caller: Caller<'_, ()>| -> Result<()> {
    ///     let handle: InterruptHandle = caller.interrupt_handle()?;
    ///     std::thread::spawn(move || handle.interrupt());
    ///     Ok(())
    /// })?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// assert!(instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ()).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn interrupt_handle(&self) -> Result<InterruptHandle> {
        self.store.interrupt_handle()
    }

    /// Tells a host function that waits or works for long when to stop: the guest that
    /// called it traps as soon as it returns then.
    ///
    /// # Examples
    ///
    /// See [`Interruption`].
    pub fn interruption(&self) -> Interruption<'_> {
        Interruption::of(&self.store.0.inner.interrupts)
    }

    /// Has the guest that called suspended before this call: what a host function returns as its
    /// error that would have to wait, and has done nothing yet. The embedder's call ends with
    /// [`CallProgress::Suspended`](crate::CallProgress). On resuming, the function is called again
    /// with the same arguments, or the embedder gives its results. While it is called again no
    /// guest of the store can be called.
    ///
    /// If the guest cannot be suspended, because it was not called with
    /// [`call_suspendable`](Func::call_suspendable), or host functions run between its frames, the
    /// error says so, and ends the guest as any other: [`Caller::can_suspend`] asks before.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Caller, Engine, Linker, Module, Result, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "next" (func $next (result i32)))
    ///     (func (export "run") (result i32) (i32.mul (call $next) (call $next))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "next", |mut caller: Caller<'_, Vec<i32>>| -> Result<i32> {
    ///     match caller.data_mut().pop() {
    ///         Some(next) => Ok(next),
    ///         None => Err(caller.suspend_before()),
    ///     }
    /// })?;
    /// let mut store = Store::new(&engine, vec![6]);
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// // The second call finds nothing.
    /// assert!(matches!(run.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    /// store.data_mut().push(7);
    /// let CallProgress::Finished(results) = store.resume()? else { panic!("it has what it needs") };
    /// assert_eq!(results[0].i32(), Some(42));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn suspend_before(&mut self) -> Error {
        self.store.suspend_before()
    }

    /// Has the guest that called suspended when this host function has returned: it will go on
    /// with the function's results.
    ///
    /// # Errors
    /// If it was not called with [`call_suspendable`](Func::call_suspendable), or host functions
    /// run between its frames.
    ///
    /// # Examples
    ///
    /// See [`Func::call_suspendable`].
    pub fn suspend_after(&mut self) -> Result<()> {
        self.store.suspend_after()
    }

    /// Whether the guest that called can be suspended.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Instance, Linker, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "can_suspend" (func $can_suspend (result i32)))
    ///     (func (export "run") (result i32) (call $can_suspend)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "can_suspend", |caller: Caller<'_, ()>| i32::from(caller.can_suspend()))?;
    /// let mut store = Store::new(&engine, ());
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// assert_eq!(run.typed::<(), i32>(&store)?.call(&mut store, ())?, 0);
    /// let progress = run.call_suspendable(&mut store, &[])?;
    /// assert!(matches!(&progress, pagefork::CallProgress::Finished(it) if it[0].i32() == Some(1)));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn can_suspend(&self) -> bool {
        self.store.can_suspend()
    }

    /// The store.
    ///
    /// # Examples
    ///
    /// See [`Caller::as_context_mut`].
    pub fn as_context(&self) -> StoreContext<'_, T> {
        AsContext::as_context(self)
    }

    /// The store.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Store, StoreContext, StoreContextMut};
    ///
    /// fn is_first(store: StoreContext<'_, u32>) -> bool {
    ///     *store.data() == 0
    /// }
    ///
    /// fn count(mut store: StoreContextMut<'_, u32>) {
    ///     *store.data_mut() += 1;
    /// }
    ///
    /// let mut store = Store::new(&Engine::default(), 0);
    /// let f = Func::wrap(&mut store, |mut caller: Caller<'_, u32>| {
    ///     assert!(is_first(caller.as_context()));
    ///     count(caller.as_context_mut());
    /// });
    /// f.typed::<(), ()>(&store)?.call(&mut store, ())?;
    /// assert_eq!(*store.data(), 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn as_context_mut(&mut self) -> StoreContextMut<'_, T> {
        AsContextMut::as_context_mut(self)
    }

    /// Whether a guest has called straight, with values in registers: then that is the one which
    /// [runs](StoreContextMut::running). Calls through references are not direct, nor those by the
    /// embedder, or of a guest that waits meanwhile. It is known when the program is compiled, and costs nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "f" (func $f (result i32))) (export "f" (func $f))
    ///     (func (export "run") (result i32) (call $f)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let f = Func::wrap(&mut store, |caller: Caller<'_, ()>| i32::from(caller.is_direct()));
    /// let instance = Instance::new(&mut store, &module, &[f.into()])?;
    /// for (name, is_direct) in [("run", 1), ("f", 0)] {
    ///     let func = instance.get_typed_func::<(), i32>(&mut store, name)?;
    ///     assert_eq!(func.call(&mut store, ())?, is_direct);
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline(always)]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// From where the function was called, to be asked later: see [`StoreContextMut::instance_at`].
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut::instance_at`].
    #[inline]
    pub fn origin(&self) -> CallOrigin {
        CallOrigin(self.base)
    }

    /// The instance whose function called; `None` if the embedder called the function itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "f" (func $f)) (func (export "run") (call $f)))"#)?;
    /// let mut store = Store::new(&engine, None);
    /// let f = Func::wrap(&mut store, |mut caller: Caller<'_, Option<Instance>>| {
    ///     *caller.data_mut() = caller.instance();
    /// });
    /// let instance = Instance::new(&mut store, &module, &[f.into()])?;
    /// instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())?;
    /// assert_eq!(*store.data(), Some(instance));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn instance(&self) -> Option<Instance> {
        let inner = &self.store.0.inner;
        // SAFETY: `base` is that of an instance of the store, or 0.
        let ordinal = unsafe { inner.ordinal_of(self.base) };
        (ordinal != 0).then(|| Instance::from_ordinal(inner, ordinal))
    }
}
