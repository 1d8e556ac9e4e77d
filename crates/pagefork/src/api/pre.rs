//! Modules with their imports resolved, and instances in stores of their own.

use std::marker::PhantomData;
use std::sync::Arc;

use pagefork_pages::{Strategies, StrategyConfig};

use crate::api::future::start_async;
use crate::api::imports::match_imports;
use crate::api::instance::{Extern, Instance};
use crate::api::limiter::ask_limiter;
use crate::api::linker::Definition;
use crate::api::store::{AsContextMut, Invariant, Store, StoreContextMut};
use crate::base::error::{Result, UsageError};
use crate::base::trace::span;
use crate::code::module::Module;
use crate::code::pool::{Home, Pooled};
use crate::run::ahead::FilledSlots;
use crate::run::instantiate::{self, NewInstance};
use crate::run::{freeze, limiter};
use crate::store::frozen::Frozen;
use crate::store::host_func::HostFunc;
use crate::store::interrupt::InterruptHandle;
use crate::store::limiter::{AskLimiter, ResourceLimiter};
use crate::store::limits::StoreLimits;

/// A module with what its imports are, checked: instances of it are made without
/// looking names up.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Linker, Module};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (global $count (mut i32) (i32.const 0))
///     (func (export "next") (result i32)
///         (global.set $count (i32.add (global.get $count) (i32.const 1)))
///         (global.get $count)))"#)?;
/// let pre = Linker::<()>::new(&engine).instantiate_pre(&module)?;
/// assert!(Module::same(pre.module(), &module));
/// // Found once, for all instances.
/// let next = module.get_typed_export::<(), i32>("next")?;
/// for _ in 0..3 {
///     // A fresh instance each time, in the slot of the one before.
///     let (mut store, instance) = pre.spawn(())?;
///     let next = instance.get_typed_export(&store, &next)?;
///     assert_eq!((next.call(&mut store, ())?, next.call(&mut store, ())?), (1, 2));
/// }
/// # Ok::<(), pagefork::Error>(())
/// ```
pub struct InstancePre<T> {
    shared: Arc<PreInner>,
    data: Invariant<T>,
}

struct PreInner {
    module: Module,
    imports: Vec<Definition>,
    /// The imports, if all are host functions.
    host_functions: Option<Box<[Arc<HostFunc>]>>,
    /// What slots are reset by, where the engine's way is not good enough.
    strategies: Option<Strategies>,
    limiter: Option<Arc<AskLimiter>>,
    home: Arc<Home>,
    /// What stores begin as, if that is not how the module starts.
    frozen: Option<Arc<Frozen>>,
}

impl Drop for PreInner {
    fn drop(&mut self) {
        self.home.close();
    }
}

impl<T: 'static> InstancePre<T> {
    pub(crate) fn new(module: Module, imports: Vec<Definition>) -> Self {
        Self::with(module, imports, None, None)
    }

    fn with(
        module: Module,
        imports: Vec<Definition>,
        strategies: Option<Strategies>,
        limiter: Option<Arc<AskLimiter>>,
    ) -> Self {
        let host_functions = imports
            .iter()
            .map(|import| match import {
                Definition::HostFunc(function) => Some(Arc::clone(function)),
                Definition::Extern(_) => None,
            })
            .collect();
        let home = Arc::new(Home::new(module.engine()));
        let frozen = None;
        let shared =
            PreInner { module, imports, host_functions, strategies, limiter, home, frozen };
        Self { shared: Arc::new(shared), data: PhantomData }
    }

    /// What spawns stores as they were captured, with at least one instance, and data of this
    /// type.
    pub(crate) fn of_frozen(frozen: Arc<Frozen>) -> Self {
        let module = frozen.instances[frozen.main as usize - 1].module.clone();
        let mut shared = Self::new(module, Vec::new());
        Arc::get_mut(&mut shared.shared).expect("it was just made").frozen = Some(frozen);
        shared
    }

    /// The same with other settings.
    fn with_settings(
        &self,
        strategies: Option<Strategies>,
        limiter: Option<Arc<AskLimiter>>,
    ) -> Self {
        let PreInner { module, imports, frozen, .. } = &*self.shared;
        let mut other = Self::with(module.clone(), imports.clone(), strategies, limiter);
        Arc::get_mut(&mut other.shared).expect("it was just made").frozen.clone_from(frozen);
        other
    }

    /// The module; of a snapshot, that of the instance which spawning returns.
    ///
    /// # Examples
    ///
    /// See [`InstancePre`].
    pub fn module(&self) -> &Module {
        &self.shared.module
    }

    /// The same, with its own way of resetting slots, instead of the engine's.
    ///
    /// # Errors
    /// [`PagesError::IllegalStrategies`](crate::PagesError) if the parts do not go
    /// together, or not with the engine's code.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, ResetKind, StrategyConfig};
    ///
    /// let engine = Engine::default();
    /// let pre = Linker::<()>::new(&engine).instantiate_pre(&Module::new(&engine, "(module)")?)?;
    /// // One that is reset seldom need keep nothing.
    /// let pre = pre.with_strategies(StrategyConfig { reset: ResetKind::Discard, ..Default::default() })?;
    /// let (store, instance) = pre.spawn(())?;
    /// assert_eq!(instance.strategy(&store).asked, ResetKind::Discard);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn with_strategies(&self, config: StrategyConfig) -> Result<Self> {
        let strategies = self.module().engine().check_strategies(config)?;
        Ok(self.with_settings(Some(strategies), self.shared.limiter.clone()))
    }

    /// The same, with a limiter that every store has which is spawned from it, from before its
    /// instance is made: see [`Store::limiter`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, StoreLimits};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 4))"#)?;
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// let pre = pre.with_limiter(|limits: &mut StoreLimits| limits);
    /// assert!(pre.spawn(StoreLimits::new().memory_size(3 << 16)).is_err());
    /// let (mut store, instance) = pre.spawn(StoreLimits::new().memory_size(5 << 16))?;
    /// let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
    /// assert!(memory.grow(&mut store, 1).is_ok() && memory.grow(&mut store, 1).is_err());
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[must_use]
    pub fn with_limiter(
        &self,
        limiter: impl (Fn(&mut T) -> &mut dyn ResourceLimiter) + Send + Sync + 'static,
    ) -> Self {
        self.with_settings(self.shared.strategies, Some(ask_limiter(limiter)))
    }

    /// Makes an instance, and runs the module's start function. Of a snapshot: fills an empty store
    /// with what was captured.
    ///
    /// # Errors
    /// If an import is of another store; else as [`Instance::new`].
    /// [`UsageError::TargetNotEmpty`], if it is of a snapshot and the store is not empty.
    ///
    /// # Panics
    /// If a host function panics that the start function calls.
    ///
    /// # Examples
    ///
    /// See [`Linker`](crate::Linker).
    pub fn instantiate(&self, mut store: impl AsContextMut<Data = T>) -> Result<Instance> {
        span!(DEBUG, "instantiate", module = self.module().name());
        let mut store = store.as_context_mut();
        let made = self.make(&mut store, None)?;
        let store = store.as_ptr();
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        unsafe {
            instantiate::call_start(store, &made)?;
            Ok(Instance::from_ordinal(&*store, made.ordinal))
        }
    }

    /// As [`InstancePre::instantiate`], with a start function that may wait for
    /// [asynchronous host functions](crate::Linker::func_wrap_async): see
    /// [`TypedFunc::call_async`](crate::TypedFunc::call_async). If the future is dropped while it
    /// waits, the instance stays in the store, as it does where a start function traps.
    ///
    /// # Errors
    /// The future's are those of [`InstancePre::instantiate`].
    ///
    /// # Panics
    /// As [`InstancePre::instantiate`], in a poll.
    ///
    /// # Examples
    ///
    /// See [`InstancePre::spawn_async`].
    pub async fn instantiate_async(
        &self,
        mut store: impl AsContextMut<Data = T>,
    ) -> Result<Instance> {
        let made = {
            span!(DEBUG, "instantiate", module = self.module().name());
            self.make(&mut store.as_context_mut(), None)?
        };
        start_async(&mut store, &made).await?;
        Ok(Instance::from_ordinal(&store.as_context().0.inner, made.ordinal))
    }

    /// Slots for one store as the snapshot is, which this has to be of.
    pub(super) fn fill_slots(
        &self,
        limits: &StoreLimits,
        before: Option<FilledSlots>,
    ) -> Result<FilledSlots> {
        let PreInner { module, strategies, frozen, .. } = &*self.shared;
        let wrong = UsageError::WrongSnapshot("there is none of it: it is made of a module");
        let frozen = frozen.as_ref().ok_or(wrong)?;
        frozen.check_limits(limits)?;
        let engine = module.engine();
        let strategies = strategies.as_ref().unwrap_or(engine.default_strategies());
        FilledSlots::new(engine, frozen, freeze::strategies_for(frozen, strategies)?, before)
    }

    /// Spawns a store in slots that are filled.
    pub(super) fn spawn_filled(
        &self,
        slots: FilledSlots,
        tenant: u64,
        data: T,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<(Store<T>, Instance)> {
        span!(DEBUG, "spawn", module = self.module().name());
        let (mut store, made) =
            self.spawn_cold(tenant, data, self.limited(limits, watch), Some(slots))?;
        // SAFETY: the store is ours, and the pointer is to the whole of it.
        unsafe { instantiate::call_start(store.as_ptr(), &made)? };
        let instance = Instance::from_ordinal(store.inner(), made.ordinal);
        Ok((store, instance))
    }

    /// Makes an instance that is not started yet, of a snapshot in slots that are filled if there are any.
    fn make(
        &self,
        store: &mut StoreContextMut<'_, T>,
        filled: Option<FilledSlots>,
    ) -> Result<NewInstance> {
        let inner = &mut store.0.inner;
        // Host functions know their types by the numbers of their engine.
        instantiate::check_engine(inner, self.module())?;
        let strategies = self.shared.strategies.as_ref();
        if let Some(frozen) = &self.shared.frozen {
            // SAFETY: the store is borrowed, the pointer is to the whole of it, and its data are
            // of the type that the host functions were made for.
            unsafe { freeze::spawn(store.as_ptr(), frozen, strategies, filled)? };
            return Ok(NewInstance::started(frozen.main));
        }
        let imports = match &self.shared.host_functions {
            Some(functions) if inner.host_functions.is_empty() => {
                inner.host_functions.extend(functions.iter().cloned());
                instantiate::host_imports(functions.len())
            }
            _ => {
                let imports = self.shared.imports.iter().map(|import| import.in_store(inner));
                let imports: Vec<Extern> = imports.collect();
                match_imports(inner, self.module(), &imports)?
            }
        };
        // SAFETY: the store is borrowed, and the pointer is to the whole of it.
        unsafe { instantiate::make(store.as_ptr(), self.module(), imports, strategies) }
    }

    /// Makes a fresh instance in a store of its own, and runs the module's start
    /// function. When the store is dropped its slot is reset, and kept for the next
    /// one: spawning it takes no system call and no allocation then. Timeout, limits, deadline and
    /// all other settings of the store start as those of a new one.
    ///
    /// # Errors
    /// [`UsageError::ImportOfStore`] if an import is not a host function of the linker;
    /// else as [`Instance::new`].
    ///
    /// # Panics
    /// If a host function panics that the start function calls.
    ///
    /// # Examples
    ///
    /// See [`InstancePre`].
    #[inline]
    pub fn spawn(&self, data: T) -> Result<(Store<T>, Instance)> {
        self.spawn_for(0, data)
    }

    /// As [`InstancePre::spawn`], for one of several tenants, which the embedder numbers:
    /// of what another tenant left on the stack nothing is there. Without that, an
    /// instance can find bytes on its stack that an earlier one of the same module left,
    /// if compiled code is wrong or speculates.
    ///
    /// # Errors
    /// As of [`InstancePre::spawn`].
    ///
    /// # Panics
    /// As of [`InstancePre::spawn`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module};
    ///
    /// let engine = Engine::default();
    /// let pre = Linker::new(&engine).instantiate_pre(&Module::new(&engine, "(module (memory 1))")?)?;
    /// // A number for each customer.
    /// for tenant in [1, 2, 1] {
    ///     let (_store, _instance) = pre.spawn_for(tenant, ())?;
    /// }
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn spawn_for(&self, tenant: u64, data: T) -> Result<(Store<T>, Instance)> {
        self.spawn_prepared(tenant, data, |_| Ok(()))
    }

    /// As [`InstancePre::spawn_for`], with limits that hold from the start. `watch` is
    /// given what interrupts the store's guests before any of them runs: what is set
    /// once the instance is there comes too late for the module's start function.
    ///
    /// # Errors
    /// As of [`InstancePre::spawn`], if the instance starts with more than the limits
    /// allow, and if the engine's code cannot be interrupted: see
    /// [`Config::interruption`](crate::Config::interruption).
    ///
    /// # Panics
    /// As of [`InstancePre::spawn`], and if `watch` does.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Linker, Module, StoreLimits};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (func $start (loop (br 0))) (start $start))"#)?;
    /// let pre = Linker::new(&engine).instantiate_pre(&module)?;
    /// let error = std::thread::scope(|scope| {
    ///     let (send, receive) = std::sync::mpsc::channel();
    ///     scope.spawn(move || {
    ///         let handle: pagefork::InterruptHandle = receive.recv().expect("it is sent");
    ///         std::thread::sleep(std::time::Duration::from_millis(5));
    ///         handle.interrupt();
    ///     });
    ///     let limits = StoreLimits::new().memory_total(1 << 20);
    ///     pre.spawn_limited(0, (), limits, |handle| send.send(handle).expect("it is awaited"))
    ///         .map(|_| ())
    ///         .unwrap_err()
    /// });
    /// assert!(error.to_string().contains("interrupt"), "{error}");
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn spawn_limited(
        &self,
        tenant: u64,
        data: T,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<(Store<T>, Instance)> {
        self.spawn_prepared(tenant, data, self.limited(limits, watch))
    }

    /// What prepares a store that has limits from the start.
    fn limited(
        &self,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> impl FnOnce(&mut Store<T>) -> Result<()> {
        move |store| {
            store.set_limits(limits);
            watch(store.interrupt_handle()?);
            match &self.shared.frozen {
                Some(frozen) => frozen.check_limits(&limits),
                None => instantiate::check_limits(store.inner()),
            }
        }
    }

    /// As [`InstancePre::spawn`], with a start function that may wait for
    /// [asynchronous host functions](crate::Linker::func_wrap_async): see
    /// [`TypedFunc::call_async`](crate::TypedFunc::call_async). If the future is dropped, so is the
    /// store.
    ///
    /// # Errors
    /// The future's are those of [`InstancePre::spawn`].
    ///
    /// # Panics
    /// As [`InstancePre::spawn`], in a poll.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Linker, Module};
    ///
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # block_on(async {
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "setting" (func $setting (result i32)))
    ///     (global $setting (mut i32) (i32.const 0))
    ///     (func $start (global.set $setting (call $setting)))
    ///     (start $start)
    ///     (func (export "setting") (result i32) (global.get $setting)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap_async("host", "setting", |caller: Caller<'_, i32>, (): ()| {
    ///     Box::new(async move { *caller.data() }) // as late as it likes
    /// })?;
    /// let pre = linker.instantiate_pre(&module)?;
    /// let (mut store, instance) = pre.spawn_async(7).await?;
    /// let setting = instance.get_typed_func::<(), i32>(&mut store, "setting")?;
    /// assert_eq!(setting.call(&mut store, ())?, 7);
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub async fn spawn_async(&self, data: T) -> Result<(Store<T>, Instance)> {
        self.spawn_for_async(0, data).await
    }

    /// As [`InstancePre::spawn_for`], with a start function that may wait: see
    /// [`InstancePre::spawn_async`].
    ///
    /// # Errors
    /// The future's are those of [`InstancePre::spawn`].
    ///
    /// # Panics
    /// As [`InstancePre::spawn`], in a poll.
    ///
    /// # Examples
    ///
    /// See [`InstancePre::spawn_limited_async`].
    pub async fn spawn_for_async(&self, tenant: u64, data: T) -> Result<(Store<T>, Instance)> {
        self.spawn_prepared_async(tenant, data, |_| Ok(())).await
    }

    /// As [`InstancePre::spawn_limited`], with a start function that may wait: see
    /// [`InstancePre::spawn_async`].
    ///
    /// # Errors
    /// The future's are those of [`InstancePre::spawn_limited`].
    ///
    /// # Panics
    /// As [`InstancePre::spawn_limited`], in a poll.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Linker, Module, StoreLimits};
    ///
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # block_on(async {
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "ready" (func $ready))
    ///     (memory (export "memory") 1)
    ///     (start $ready))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap_async("host", "ready", |_: Caller<'_, ()>, (): ()| {
    ///     Box::new(async move { /* as late as it likes */ })
    /// })?;
    /// let pre = linker.instantiate_pre(&module)?;
    /// let customer = 7;
    /// let (_store, _instance) = pre.spawn_for_async(customer, ()).await?;
    /// // What another thread ends the start function's wait with.
    /// let mut handle = None;
    /// let limits = StoreLimits::new().memory_total(1 << 20);
    /// pre.spawn_limited_async(customer, (), limits, |interrupt| handle = Some(interrupt)).await?;
    /// assert!(handle.is_some());
    /// let limits = StoreLimits::new().memory_total(100);
    /// assert!(pre.spawn_limited_async(customer, (), limits, |_| ()).await.is_err());
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub async fn spawn_limited_async(
        &self,
        tenant: u64,
        data: T,
        limits: StoreLimits,
        watch: impl FnOnce(InterruptHandle),
    ) -> Result<(Store<T>, Instance)> {
        self.spawn_prepared_async(tenant, data, self.limited(limits, watch)).await
    }

    async fn spawn_prepared_async(
        &self,
        tenant: u64,
        data: T,
        prepare: impl FnOnce(&mut Store<T>) -> Result<()>,
    ) -> Result<(Store<T>, Instance)> {
        let (mut store, made) = {
            span!(DEBUG, "spawn", module = self.module().name());
            self.spawn_unstarted(tenant, data, prepare)?
        };
        start_async(&mut store, &made).await?;
        let instance = Instance::from_ordinal(store.inner(), made.ordinal);
        Ok((store, instance))
    }

    /// Spawns an instance in a store that `prepare` has set up: nothing has run in it.
    #[inline]
    fn spawn_prepared(
        &self,
        tenant: u64,
        data: T,
        prepare: impl FnOnce(&mut Store<T>) -> Result<()>,
    ) -> Result<(Store<T>, Instance)> {
        span!(DEBUG, "spawn", module = self.module().name());
        let (mut store, made) = self.spawn_unstarted(tenant, data, prepare)?;
        // SAFETY: the store is ours, and the pointer is to the whole of it.
        unsafe { instantiate::call_start(store.as_ptr(), &made)? };
        let instance = Instance::from_ordinal(store.inner(), made.ordinal);
        Ok((store, instance))
    }

    #[inline]
    fn spawn_unstarted(
        &self,
        tenant: u64,
        data: T,
        prepare: impl FnOnce(&mut Store<T>) -> Result<()>,
    ) -> Result<(Store<T>, NewInstance)> {
        let shared = &*self.shared;
        let mut store = match shared.home.take() {
            // SAFETY: what is parked under this key has data of type `T`.
            Some(Pooled::Store(parked)) => unsafe { Store::unpark(parked, data) },
            _ => return self.spawn_cold(tenant, data, prepare, None),
        };
        // SAFETY: the store is ours, and the pointer is to the whole of it.
        instantiate::take_over_parked(unsafe { &mut *store.as_ptr() }, tenant)?;
        prepare(&mut store)?;
        if let Some(limiter) = &shared.limiter {
            store.set_limiter(Arc::clone(limiter));
            // SAFETY: the store is ours, and the pointer is to the whole of it.
            unsafe { limiter::allow_present(store.as_ptr())? };
        }
        let main = shared.frozen.as_ref().map_or(1, |frozen| frozen.main);
        // SAFETY: the store is ours, and the pointer is to the whole of it.
        let made = unsafe { instantiate::make_again(store.as_ptr(), main)? };
        Ok((store, made))
    }

    #[cold]
    fn spawn_cold(
        &self,
        tenant: u64,
        data: T,
        prepare: impl FnOnce(&mut Store<T>) -> Result<()>,
        filled: Option<FilledSlots>,
    ) -> Result<(Store<T>, NewInstance)> {
        let shared = &*self.shared;
        if shared.host_functions.is_none() {
            let of_store = |import: &&Definition| matches!(import, Definition::Extern(_));
            let at = shared.imports.iter().position(|import| of_store(&import));
            let import = shared.module.imports().nth(at.expect("one is of a store"));
            let import = import.expect("there are as many");
            let (module, name) = (import.module().to_owned(), import.name().to_owned());
            return Err(UsageError::ImportOfStore { module, name }.into());
        }
        let mut store = Store::new(shared.module.engine(), data);
        store.set_tenant(shared.home.number, tenant);
        prepare(&mut store)?;
        if let Some(limiter) = &shared.limiter {
            store.set_limiter(Arc::clone(limiter));
        }
        let made = {
            span!(DEBUG, "instantiate", module = self.module().name());
            self.make(&mut store.as_context_mut(), filled)?
        };
        store.set_home(Arc::clone(&shared.home));
        Ok((store, made))
    }
}

impl<T> Clone for InstancePre<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), data: PhantomData }
    }
}
