//! Stores with the embedder's data, and how they are borrowed.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use pagefork_pages::PagesError;

pub(crate) use crate::store::group::{StoreGroup, StoreId};

use crate::api::func::Caller;
use crate::base::error::Result;
use crate::base::frames::WasmBacktrace;
use crate::base::trace::span;
use crate::code::engine::Engine;
use crate::code::pool::{self, Home, ParkedSlots, ParkedStore};
use crate::run::enter;
use crate::store::interrupt::InterruptHandle;
use crate::store::limits::StoreLimits;

/// All instances that can refer to each other, with everything they own, and the
/// embedder's `T`.
///
/// Handles such as [`Func`](crate::Func) and [`Memory`](crate::Memory) name
/// something in a store and are used together with it. Dropping the store gives its
/// slots to the pool for the next ones; [closing](Store::close) it keeps none.
///
/// A store may move between threads, if `T` may, and any thread may enter its
/// guests. If `T` may be shared by threads, so may the store: they read its data and
/// memories at once.
///
/// # Examples
///
/// ```
/// use pagefork::{Caller, Engine, Func, Store};
///
/// let engine = Engine::default();
/// let mut store = Store::new(&engine, 0u32);
/// let count = Func::wrap(&mut store, |mut caller: Caller<'_, u32>| *caller.data_mut() += 1);
/// count.call(&mut store, &[], &mut [])?;
/// assert_eq!(*store.data(), 1);
/// // Between calls the data is the embedder's.
/// *store.data_mut() = 40;
/// count.call(&mut store, &[], &mut [])?;
/// assert!(Engine::same(store.engine(), &engine));
/// assert_eq!(store.into_data(), 41);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct Store<T: 'static> {
    /// Invariant: from a box, and unique. Not kept as one, because guests' pages
    /// point to it while the store moves.
    full: NonNull<Full<T>>,
    owned: PhantomData<Full<T>>,
}

/// Invariant of the representation: a pointer to the whole is one to `inner`.
#[repr(C)]
pub(crate) struct Full<T> {
    pub(crate) inner: StoreGroup,
    /// Gone once the store is parked.
    pub(crate) data: ManuallyDrop<T>,
    invariant: Invariant<T>,
}

/// Makes a type invariant in `T`, without owning or sharing one.
///
/// Host functions of a store, a linker or an `InstancePre` read and write the embedder's
/// data as the `T` with which they were defined. A subtype or supertype of `T` must not take
/// its place, or the data could be written as the one and read as the other. Types without
/// a short lifetime have subtypes too: a function that takes any `&str` is one that takes a
/// `&'static str`. If a store of the first could become a store of the second, safe code
/// could put a function there that keeps its argument for ever, and a host function would
/// call it with a text that is freed soon.
///
/// ```
/// # use pagefork::*;
/// fn exchange(it: for<'a> fn(&'a str)) -> fn(&'static str) {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: Store<for<'a> fn(&'a str)>) -> Store<fn(&'static str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: Store<fn(&'static str)>) -> Store<for<'a> fn(&'a str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: Linker<for<'a> fn(&'a str)>) -> Linker<fn(&'static str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: Linker<fn(&'static str)>) -> Linker<for<'a> fn(&'a str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: InstancePre<for<'a> fn(&'a str)>) -> InstancePre<fn(&'static str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: InstancePre<fn(&'static str)>) -> InstancePre<for<'a> fn(&'a str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: StoreContext<'_, for<'a> fn(&'a str)>) -> StoreContext<'_, fn(&'static str)> {
///     it
/// }
/// ```
///
/// ```compile_fail,E0308
/// # use pagefork::*;
/// fn exchange(it: StoreContext<'_, fn(&'static str)>) -> StoreContext<'_, for<'a> fn(&'a str)> {
///     it
/// }
/// ```
pub(crate) type Invariant<T> = PhantomData<fn(T) -> T>;

// SAFETY: a store owns what its pointer leads to, a `StoreGroup`, which is `Send`, and a `T`.
unsafe impl<T: Send> Send for Store<T> {}

// SAFETY: a store owns what its pointer leads to; through `&Store` there is `&StoreGroup`, which is `Sync`, and `&T`.
unsafe impl<T: Sync> Sync for Store<T> {}

impl<T: Default> Default for Store<T> {
    /// A store with the default data, of an engine of its own with the default
    /// configuration.
    ///
    /// # Panics
    /// As [`Engine::default`].
    fn default() -> Self {
        Self::new(&Engine::default(), T::default())
    }
}

impl<T> Store<T> {
    /// An empty store.
    ///
    /// # Examples
    ///
    /// See [`Store`].
    pub fn new(engine: &Engine, data: T) -> Self {
        let full = Full {
            inner: StoreGroup::new(engine, &enter::thunks()),
            data: ManuallyDrop::new(data),
            invariant: PhantomData,
        };
        let full = NonNull::from(Box::leak(Box::new(full)));
        // Functions of C's are told of the store by its address.
        full.expose_provenance();
        Self { full, owned: PhantomData }
    }

    /// The store's engine.
    ///
    /// # Examples
    ///
    /// See [`Store`].
    pub fn engine(&self) -> &Engine {
        &self.full().inner.engine
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`Store`].
    pub fn data(&self) -> &T {
        &self.full().data
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`Store`].
    pub fn data_mut(&mut self) -> &mut T {
        &mut self.full_mut().data
    }

    /// Drops the store and gives the embedder's data back.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Store};
    ///
    /// let store = Store::new(&Engine::default(), String::from("data"));
    /// assert_eq!(store.into_data(), "data");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn into_data(self) -> T {
        let full = self.full;
        std::mem::forget(self);
        // SAFETY: `self` is gone.
        unsafe { release(full) }
    }

    /// Frees everything now: no slot is kept for later instances.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, "(module (memory 1))")?;
    /// let (store, _instance) = Linker::new(&engine).instantiate_pre(&module)?.spawn(())?;
    /// store.close();
    /// // A drop would have kept its slot for the next one.
    /// assert_eq!(engine.pool_counters().parked, 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn close(self) {
        let full = self.full;
        std::mem::forget(self);
        // SAFETY: the pointer is from a box, `self` is gone, and the data is there.
        unsafe {
            let data = ManuallyDrop::take(&mut (*full.as_ptr()).data);
            free(full);
            drop(data);
        }
    }

    /// Brings all instances back to where they started: their memories, tables, globals
    /// and all else that they can see or change, and runs their start functions again,
    /// in the order in which they were made. The embedder's data becomes `data`; what it
    /// was is returned.
    ///
    /// Handles of instances and what is in them stay good; limits, the timeout, the deadline, the
    /// yield interval, the hook and the limiter stay as they are. References to host values mean nothing any more, unless the host made
    /// a global or table with one.
    ///
    /// # Errors
    /// If the system refuses something: then nothing in the store can be used before it
    /// is reset again. If the store's [limiter](Store::limiter), which is asked for all that is
    /// made again, refuses it: then no start function runs. If a start function fails, whose
    /// instance stays as it left it. The data is dropped, and the old stays.
    ///
    /// # Panics
    /// If a host function panics that a start function calls.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1))"#)?;
    /// let mut store = Store::new(&engine, "first");
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// memory.write(&mut store, 0, b"written")?;
    /// assert_eq!(store.reset("second")?, "first");
    /// assert_eq!(memory.data(&store)[..7], [0; 7]);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn reset(&mut self, data: T) -> Result<T> {
        span!(DEBUG, "reset");
        let old = self.replace_data(data);
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        match unsafe { StoreGroup::reset(self.as_ptr()) } {
            Ok(()) => Ok(old),
            Err(error) => {
                self.replace_data(old);
                Err(error)
            }
        }
    }

    /// Gives the embedder other data; returns the old.
    pub(crate) fn replace_data(&mut self, data: T) -> T {
        let old = std::mem::replace(&mut *self.full_mut().data, data);
        self.full_mut().inner.renew_foreign_callers();
        old
    }

    /// Whose bytes may be on the stacks of its slots.
    pub(crate) fn set_tenant(&mut self, number: u64, tenant: u64) {
        self.full_mut().inner.owner = Some(pool::owner(number, tenant));
    }

    /// Where the store is parked when it is dropped.
    pub(crate) fn set_home(&mut self, home: Arc<Home>) {
        self.full_mut().inner.home = Some(home);
    }

    pub(crate) fn inner(&self) -> &StoreGroup {
        &self.full().inner
    }

    /// The store as those who enter guests need it.
    pub(crate) fn as_ptr(&mut self) -> *mut StoreGroup {
        self.full.as_ptr().cast()
    }

    /// A parked store, with other data and another identity.
    ///
    /// # Safety
    /// Its data was of type `T`.
    #[inline]
    pub(crate) unsafe fn unpark(parked: ParkedStore, data: T) -> Self {
        let full: NonNull<Full<T>> = parked.into_inner().cast();
        // SAFETY: it is ours; its data is gone.
        unsafe {
            (&raw mut (*full.as_ptr()).data).write(ManuallyDrop::new(data));
            (*full.as_ptr()).inner.id = StoreId::next();
            (*full.as_ptr()).inner.renew_foreign_callers();
        }
        Self { full, owned: PhantomData }
    }

    /// Sets how much the store may use from now on; what it uses already stays.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Memory, MemoryType, Store, StoreLimits};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// store.set_limits(StoreLimits::new().memories(1));
    /// assert_eq!(store.limits(), StoreLimits::new().memories(1));
    /// Memory::new(&mut store, MemoryType::new(1, None))?;
    /// assert!(Memory::new(&mut store, MemoryType::new(1, None)).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_limits(&mut self, limits: StoreLimits) {
        self.full_mut().inner.limits = limits;
    }

    /// How much the store may use.
    ///
    /// # Examples
    ///
    /// See [`Store::set_limits`].
    pub fn limits(&self) -> StoreLimits {
        self.full().inner.limits
    }

    /// What interrupts the store's guests from other threads.
    ///
    /// # Errors
    /// If the engine's code cannot be interrupted: see
    /// [`Config::interruption`](crate::Config::interruption).
    ///
    /// # Examples
    ///
    /// See [`InterruptHandle`].
    pub fn interrupt_handle(&self) -> Result<InterruptHandle> {
        self.full().inner.interrupt_handle()
    }

    /// How long a call from the embedder may take, wall-clock time, before its
    /// guest is interrupted; `None`, the default, for ever. Calls that host
    /// functions make belong to the call that they run in.
    ///
    /// Once the time is up, the guest cannot go on: it traps at its next function entry
    /// or loop iteration, or where the host function returns that it is in, and so does
    /// every guest around it. Host functions that wait end their waits if they ask
    /// [`Caller::interruption`], as those of WASI do; the wait for an
    /// [asynchronous](crate::Linker::func_wrap_async) host function ends at once, and its future
    /// is dropped.
    ///
    /// # Errors
    /// If there is to be a timeout and the engine's code cannot be interrupted: see
    /// [`Config::interruption`](crate::Config::interruption).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagefork::{Engine, Instance, Module, Store, Trap, TrapCode};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// store.set_timeout(Some(Duration::from_millis(5)))?;
    /// let error = instance.get_typed_func::<(), ()>(&mut store, "spin")?.call(&mut store, ()).unwrap_err();
    /// assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::Interrupt));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<()> {
        let inner = &mut self.full_mut().inner;
        if timeout.is_some() {
            inner.check_interruptible()?;
        }
        inner.timeout = timeout;
        if let Some(suspended) = &mut inner.suspended {
            suspended.rest = timeout;
        }
        inner.update_due();
        Ok(())
    }

    /// Gives the store's guests this much fuel, instead of what they have. A guest
    /// that has used it up traps at its next function entry, loop, or operation on a
    /// range. At most `i64::MAX` units count.
    ///
    /// # Errors
    /// If the engine does not meter: see [`Config::fuel`](crate::Config::fuel).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Store};
    ///
    /// let mut store = Store::new(&Engine::new(Config::new().fuel(true))?, ());
    /// assert_eq!(store.fuel()?, 0);
    /// store.set_fuel(1_000_000)?;
    /// assert_eq!(store.fuel()?, 1_000_000);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_fuel(&mut self, fuel: u64) -> Result<()> {
        self.full_mut().inner.set_fuel(fuel)
    }

    /// How much fuel is left.
    ///
    /// # Errors
    /// If the engine does not meter: see [`Config::fuel`](crate::Config::fuel).
    ///
    /// # Examples
    ///
    /// See [`Store::set_fuel`].
    pub fn fuel(&self) -> Result<u64> {
        self.full().inner.fuel()
    }

    /// Takes this much fuel from the store's guests: what a host function costs that
    /// one of them called, for example.
    ///
    /// # Errors
    /// A [trap](crate::TrapCode::OutOfFuel), if less is left: then nothing is left, and
    /// the guest traps also if a host function keeps the error to itself. If the engine
    /// does not meter: see [`Config::fuel`](crate::Config::fuel).
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Config, Engine, Store};
    ///
    /// let mut store = Store::new(&Engine::new(Config::new().fuel(true))?, ());
    /// store.set_fuel(100)?;
    /// store.charge_fuel(70)?;
    /// assert_eq!(store.fuel()?, 30);
    /// assert!(store.charge_fuel(31).is_err());
    /// assert_eq!(store.fuel()?, 0);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn charge_fuel(&mut self, units: u64) -> Result<()> {
        self.full_mut().inner.charge_fuel(units)
    }

    /// What the store's guests are now, as a WebAssembly core dump: all memories
    /// and globals, and the frames of `backtrace`, innermost first, each in the
    /// first instance of its module. Meant to be called when a call has trapped,
    /// with the [backtrace](crate::Error::backtrace) of its error. `name` is what
    /// the dump says it is of.
    ///
    /// The dump holds everything that the guests held, secrets included.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory 1) (func (export "run") (unreachable)))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    /// let error = run.call(&mut store, ()).unwrap_err();
    /// // The file is a WebAssembly module itself, which debuggers can open.
    /// let dump = store.core_dump("plugin", error.backtrace().expect("a guest ran"));
    /// assert!(dump.starts_with(b"\0asm"));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn core_dump(&self, name: &str, backtrace: &WasmBacktrace) -> Vec<u8> {
        crate::run::core_dump::write(&self.full().inner, name, backtrace)
    }

    pub(crate) fn full(&self) -> &Full<T> {
        // SAFETY: the pointer is valid and `self` is borrowed.
        unsafe { self.full.as_ref() }
    }

    fn full_mut(&mut self) -> &mut Full<T> {
        // SAFETY: the pointer is valid, unique, and `self` is borrowed mutably.
        unsafe { self.full.as_mut() }
    }
}

impl<T> Drop for Store<T> {
    fn drop(&mut self) {
        // SAFETY: nothing uses it after this.
        drop(unsafe { release(self.full) });
    }
}

/// Takes the data out of a store, and parks the store, or at least its slots.
///
/// # Safety
/// Nothing uses the store after this.
unsafe fn release<T: 'static>(full: NonNull<Full<T>>) -> T {
    // SAFETY: by this function's contract the store is ours, and not parked: its data is
    // there.
    let (inner, data) = unsafe {
        let full = &mut *full.as_ptr();
        (&mut full.inner, ManuallyDrop::take(&mut full.data))
    };
    let home = inner.home.as_ref().map(|home| home.local());
    if let Some(home) = home
        && !inner.engine.pool().keeps_nothing()
        && {
            span!(DEBUG, "park");
            inner.reset_for_parking().is_ok()
        }
    {
        // SAFETY: by this function's contract the store is ours; its data was just taken.
        pool::park(home, unsafe { ParkedStore::new(full) });
        return data;
    }
    inner.park_slots();
    // SAFETY: by this function's contract the store is ours; its data was just taken.
    unsafe { free(full) };
    data
}

/// Frees a store without its data.
///
/// # Safety
/// `full` is from a box that nothing uses after this, and its data is gone.
unsafe fn free<T>(full: NonNull<Full<T>>) {
    // SAFETY: by this function's contract it is from a box that nothing uses after this.
    drop(unsafe { Box::from_raw(full.as_ptr()) });
}

impl<T> ParkedSlots for Full<T> {
    fn resident(&self) -> u64 {
        self.inner.instances.iter().map(|instance| instance.slot.resident()).sum()
    }

    fn written(&self) -> u64 {
        self.inner.instances.iter().map(|instance| instance.slot.written()).sum()
    }

    fn discard(&mut self) -> Result<(), PagesError> {
        let mut instances = self.inner.instances.iter_mut();
        instances.try_for_each(|instance| instance.slot.discard())
    }

    fn is_wanted(&self) -> bool {
        self.inner.home.as_ref().is_some_and(|home| home.is_open())
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Store<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("data", self.data()).finish_non_exhaustive()
    }
}

/// A borrowed store.
///
/// # Examples
///
/// ```
/// use pagefork::{AsContext, Engine, Store, StoreContext};
///
/// let store = Store::new(&Engine::default(), 5);
/// let context: StoreContext<'_, i32> = store.as_context();
/// assert_eq!(*context.data(), 5);
/// assert!(Engine::same(context.engine(), store.engine()));
/// assert!(context.fuel().is_err(), "this engine does not meter");
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct StoreContext<'a, T: 'static>(pub(crate) &'a Full<T>);

/// A mutably borrowed store.
///
/// # Examples
///
/// ```
/// use pagefork::{AsContextMut, Config, Engine, Result, Store, StoreContextMut};
///
/// /// Lets guests pay, and notes it.
/// fn charge(mut store: StoreContextMut<'_, u64>, price: u64) -> Result<()> {
///     *store.data_mut() += price;
///     store.charge_fuel(price)
/// }
///
/// let engine = Engine::new(Config::new().fuel(true))?;
/// let mut store = Store::new(&engine, 0);
/// store.as_context_mut().set_fuel(10)?;
/// charge(store.as_context_mut(), 4)?;
/// let context = store.as_context_mut();
/// assert_eq!((context.fuel()?, *context.data()), (6, 4));
/// assert!(Engine::same(context.engine(), &engine));
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct StoreContextMut<'a, T: 'static>(pub(crate) &'a mut Full<T>);

impl<'a, T> StoreContext<'a, T> {
    /// The store's engine.
    ///
    /// # Examples
    ///
    /// See [`StoreContext`].
    pub fn engine(&self) -> &'a Engine {
        &self.0.inner.engine
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`StoreContext`].
    pub fn data(&self) -> &'a T {
        &self.0.data
    }

    /// How much fuel is left: see [`Store::fuel`].
    ///
    /// # Errors
    /// As [`Store::fuel`].
    ///
    /// # Examples
    ///
    /// See [`StoreContext`].
    pub fn fuel(&self) -> Result<u64> {
        self.0.inner.fuel()
    }
}

impl<T> Clone for StoreContext<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for StoreContext<'_, T> {}

impl<T> StoreContextMut<'_, T> {
    /// The store's engine.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn engine(&self) -> &Engine {
        &self.0.inner.engine
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn data(&self) -> &T {
        &self.0.data
    }

    /// The embedder's data.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn data_mut(&mut self) -> &mut T {
        &mut self.0.data
    }

    /// How much fuel is left: see [`Store::fuel`].
    ///
    /// # Errors
    /// As [`Store::fuel`].
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn fuel(&self) -> Result<u64> {
        self.0.inner.fuel()
    }

    /// Gives the store's guests other fuel: see [`Store::set_fuel`].
    ///
    /// # Errors
    /// As [`Store::set_fuel`].
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn set_fuel(&mut self, fuel: u64) -> Result<()> {
        self.0.inner.set_fuel(fuel)
    }

    /// Takes fuel from the store's guests: see [`Store::charge_fuel`].
    ///
    /// # Errors
    /// As [`Store::charge_fuel`].
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    pub fn charge_fuel(&mut self, units: u64) -> Result<()> {
        self.0.inner.charge_fuel(units)
    }

    /// Says whether the store's handles lead to what they are of: after a reset that has failed they lead to nothing until
    /// another one succeeds, and looks at them panic where they cannot fail.
    ///
    /// # Errors
    /// [`UsageError::ResetIncomplete`](crate::UsageError::ResetIncomplete) if the last reset has failed.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, Engine, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// store.as_context_mut().check_reset()?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn check_reset(&self) -> Result<()> {
        self.0.inner.check_reset()
    }

    /// What interrupts the store's guests from other threads.
    ///
    /// # Errors
    /// As of [`Store::interrupt_handle`].
    ///
    /// # Examples
    ///
    /// See [`InterruptHandle`].
    pub fn interrupt_handle(&self) -> Result<InterruptHandle> {
        self.0.inner.interrupt_handle()
    }

    /// The store as those who enter guests need it: with the provenance of the
    /// whole, so that host functions reach the embedder's data through it.
    pub(crate) fn as_ptr(&mut self) -> *mut StoreGroup {
        (&raw mut *self.0).cast()
    }
}

/// What gives access to a store: a [`Store`], a [`Caller`], a context, or a
/// reference to one of them.
///
/// # Examples
///
/// ```
/// use pagefork::{AsContext, Engine, Memory, MemoryType, Store};
///
/// fn pages(store: impl AsContext, memory: &Memory) -> u64 {
///     memory.size(store)
/// }
///
/// let mut store = Store::new(&Engine::default(), ());
/// let memory = Memory::new(&mut store, MemoryType::new(2, None))?;
/// assert_eq!(pages(&store, &memory), 2);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait AsContext {
    /// The embedder's data in the store.
    type Data: 'static;

    /// Borrows the store.
    ///
    /// # Examples
    ///
    /// See [`StoreContext`].
    fn as_context(&self) -> StoreContext<'_, Self::Data>;
}

/// What gives mutable access to a store.
///
/// # Examples
///
/// ```
/// use pagefork::{AsContextMut, Engine, Memory, MemoryType, Result, Store};
///
/// fn double(mut store: impl AsContextMut, memory: &Memory) -> Result<u64> {
///     let size = memory.size(&store);
///     memory.grow(&mut store, size)
/// }
///
/// let mut store = Store::new(&Engine::default(), ());
/// let memory = Memory::new(&mut store, MemoryType::new(2, None))?;
/// assert_eq!(double(&mut store, &memory)?, 2);
/// # Ok::<(), pagefork::Error>(())
/// ```
pub trait AsContextMut: AsContext {
    /// Borrows the store mutably.
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut`].
    fn as_context_mut(&mut self) -> StoreContextMut<'_, Self::Data>;
}

macro_rules! contexts {
    ($($ty:ty: |$this:ident| $shared:expr, $exclusive:expr;)*) => {$(
        impl<T: 'static> AsContext for $ty {
            type Data = T;

            fn as_context(&self) -> StoreContext<'_, T> {
                let $this = self;
                StoreContext($shared)
            }
        }

        impl<T: 'static> AsContextMut for $ty {
            fn as_context_mut(&mut self) -> StoreContextMut<'_, T> {
                let $this = self;
                StoreContextMut($exclusive)
            }
        }
    )*};
}

contexts! {
    Store<T>: |store| store.full(), store.full_mut();
    StoreContextMut<'_, T>: |context| context.0, context.0;
    Caller<'_, T>: |caller| caller.store.0, caller.store.0;
}

impl<T: 'static> AsContext for StoreContext<'_, T> {
    type Data = T;

    fn as_context(&self) -> StoreContext<'_, T> {
        *self
    }
}

impl<C: AsContext> AsContext for &C {
    type Data = C::Data;

    fn as_context(&self) -> StoreContext<'_, C::Data> {
        (**self).as_context()
    }
}

impl<C: AsContext> AsContext for &mut C {
    type Data = C::Data;

    fn as_context(&self) -> StoreContext<'_, C::Data> {
        (**self).as_context()
    }
}

impl<C: AsContextMut> AsContextMut for &mut C {
    fn as_context_mut(&mut self) -> StoreContextMut<'_, C::Data> {
        (**self).as_context_mut()
    }
}

impl<'a, T: AsContext> From<&'a T> for StoreContext<'a, T::Data> {
    fn from(store: &'a T) -> Self {
        store.as_context()
    }
}

impl<'a, T: AsContext> From<&'a mut T> for StoreContext<'a, T::Data> {
    fn from(store: &'a mut T) -> Self {
        let store: &'a T = store;
        store.as_context()
    }
}

impl<'a, T: AsContextMut> From<&'a mut T> for StoreContextMut<'a, T::Data> {
    fn from(store: &'a mut T) -> Self {
        store.as_context_mut()
    }
}
