//! Calls that wait, and host functions that make guests wait.

use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pagefork_layout::module::FuncType;

use crate::api::func::{Caller, check_values};
use crate::api::host_func::{WasmRet, check_result, values_of_call};
use crate::api::linker::Linker;
use crate::api::store::{AsContextMut, Store};
use crate::api::typed::{CellOwner, TypedFunc, WasmValues};
use crate::base::cell::Cell;
use crate::base::error::{Error, Result};
use crate::code::engine::Engine;
use crate::run::instantiate::NewInstance;
use crate::run::task::{BegunHostCall, HostTask, Task, begin_call};
use crate::store::group::StoreGroup;
use crate::store::handle::{CallTarget, Func, cells, read_results, write_values};
use crate::store::host_func::HostFunc;
use crate::store::pending::PendingCall;
use crate::store::value::Val;

/// A call of a function that can wait for host functions: see [`TypedFunc::call_async`] and
/// [`Func::call_async`].
///
/// It does nothing until it is polled. If it is dropped before it has ended, the guest is given
/// up; the store can be used again then, as after a trap.
pub(crate) struct CallFuture<C, V> {
    /// It goes before what lends the store.
    stage: CallStage,
    values: V,
    /// What lends the store.
    context: C,
}

/// How far a call has come.
enum CallStage {
    New,
    /// It cannot begin.
    Refused(Error),
    /// The guest has begun, and waits.
    Waits(Box<Task>),
    /// The host function has begun, and waits.
    WaitsInHost(Box<HostTask>),
    Ended,
}

impl<C, V> CallFuture<C, V> {
    /// A call of a function, if it was found to be one of the store's, with arguments of its type.
    #[inline]
    fn new(checked: Result<()>, values: V, context: C) -> Self {
        let stage = match checked {
            Ok(()) => CallStage::New,
            Err(error) => CallStage::Refused(error),
        };
        Self { stage, values, context }
    }
}

/// What is called, with arguments, and where results go.
pub(crate) trait Call: Unpin {
    /// What the call returns.
    type Output;

    /// How the function is called. It is lent: what has just been written in wide parts and is read
    /// whole at once, in other parts, waits until it has reached the cache.
    fn target(&self) -> &CallTarget;

    /// Base of the instance that calls a function of the host; 0 if the embedder does.
    fn base(&self) -> usize {
        0
    }

    /// # Errors
    /// If the arguments cannot be passed.
    ///
    /// # Safety
    /// The store is that of the function, borrowed by the caller; there is a cell for each
    /// argument, in a place of the instance `owner`, or of none where that is 0.
    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()>;

    /// # Safety
    /// As of [`Call::put`]; the function has returned, so its results are there.
    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) -> Self::Output;
}

/// See [`TypedFunc::call_async`].
pub(crate) struct TypedCall<Params, Results> {
    function: TypedFunc<Params, Results>,
    params: Params,
}

/// See [`Func::call_async`].
pub(crate) struct SliceCall<'a> {
    function: Func,
    target: CallTarget,
    params: &'a [Val],
    results: &'a mut [Val],
}

impl<C: AsContextMut + Unpin, V: Call> Future for CallFuture<C, V> {
    type Output = Result<V::Output>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { stage, values, context: lender } = self.get_mut();
        match (std::mem::replace(stage, CallStage::Ended), values.target()) {
            (CallStage::New, CallTarget::Guest(target)) => {
                let store = lender.as_context_mut().as_ptr();
                let (cells, ordinal) = (cells(target), target.ordinal);
                // SAFETY: the lender lends the store as long as the task lives, and is not asked
                // for it again until then; the function was found to be of it, with these values,
                // for which its cells are enough. If it has ended, its results are there.
                unsafe {
                    let put = |store| values.put(store, cells, ordinal);
                    match Task::begin(store, target, context, put) {
                        Ok(None) => Poll::Ready(Ok(values.take(&*store, cells, ordinal))),
                        Ok(Some(task)) => {
                            *stage = CallStage::Waits(task);
                            Poll::Pending
                        }
                        Err(error) => Poll::Ready(Err(error)),
                    }
                }
            }
            (begun, _) => poll_otherwise(begun, stage, values, lender, context),
        }
    }
}

/// Polls a call that has `begun`, or is not one of a guest; `stage` says how far it has come then.
fn poll_otherwise<V: Call>(
    begun: CallStage,
    stage: &mut CallStage,
    values: &mut V,
    lender: &mut impl AsContextMut,
    context: &mut Context<'_>,
) -> Poll<Result<V::Output>> {
    match (begun, *values.target()) {
        (CallStage::Waits(mut task), CallTarget::Guest(target)) => match task.poll(context) {
            Poll::Pending => {
                *stage = CallStage::Waits(task);
                Poll::Pending
            }
            Poll::Ready(Ok(())) => {
                let cells = cells(&target);
                // SAFETY: the function has returned, so its results are in its cells.
                Poll::Ready(Ok(unsafe { values.take(&*task.store(), cells, target.ordinal) }))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        },
        (CallStage::New, CallTarget::Host(index)) => {
            let store = lender.as_context_mut().as_ptr();
            // SAFETY: the lender lends the store as long as the task lives, and is not asked for
            // it again until then; the function was found to be of it, with these values.
            unsafe {
                let ty = &(&*(*store).host_function_ptr(index)).ty;
                let count = ty.params.len().max(ty.results.len()).max(1);
                let mut cells = vec![Cell::default(); count].into_boxed_slice();
                let put = values.put(store, cells.as_mut_ptr(), 0);
                match put
                    .and_then(|()| HostTask::begin(store, index, cells, values.base(), context))
                {
                    Ok(BegunHostCall::Waits(task)) => {
                        *stage = CallStage::WaitsInHost(task);
                        Poll::Pending
                    }
                    Ok(BegunHostCall::Returned(mut cells)) => {
                        Poll::Ready(Ok(values.take(&*store, cells.as_mut_ptr(), 0)))
                    }
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
        }
        (CallStage::WaitsInHost(mut task), _) => {
            let store = task.store();
            match task.poll(context) {
                Poll::Pending => {
                    *stage = CallStage::WaitsInHost(task);
                    Poll::Pending
                }
                Poll::Ready(Ok(cells)) => {
                    // SAFETY: the function has returned, so its results are in its cells, and the
                    // store is ours again.
                    let results = unsafe { values.take(&*store, cells.as_mut_ptr(), 0) };
                    Poll::Ready(Ok(results))
                }
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            }
        }
        (CallStage::Refused(error), _) => Poll::Ready(Err(error)),
        (CallStage::New | CallStage::Waits(_) | CallStage::Ended, _) => {
            panic!("a call was polled after its end")
        }
    }
}

impl<Params: WasmValues + Unpin, Results: WasmValues> Call for TypedCall<Params, Results> {
    type Output = Results;

    #[inline]
    fn target(&self) -> &CallTarget {
        self.function.target()
    }

    #[inline]
    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.params.write(cells, CellOwner::of_ordinal(&*store, owner)) }
    }

    #[inline]
    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) -> Results {
        // SAFETY: by this function's contract.
        unsafe { Results::read(cells, CellOwner::of_ordinal(store, owner)) }
    }
}

impl Call for SliceCall<'_> {
    type Output = ();

    fn target(&self) -> &CallTarget {
        &self.target
    }

    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { write_values(&*store, self.params, cells, owner) }
    }

    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) {
        let (ty, _) = store.function_type(self.function.definition);
        // SAFETY: by this function's contract.
        unsafe { read_results(store, ty, self.results, cells, owner) }
    }
}

/// See [`InstancePre::instantiate_async`](crate::InstancePre::instantiate_async).
struct StartCall {
    target: CallTarget,
    base: usize,
}

impl Call for StartCall {
    type Output = ();

    fn target(&self) -> &CallTarget {
        &self.target
    }

    fn base(&self) -> usize {
        self.base
    }

    unsafe fn put(&self, _: *mut StoreGroup, _: *mut Cell, _: u32) -> Result<()> {
        Ok(())
    }

    unsafe fn take(&mut self, _: &StoreGroup, _: *mut Cell, _: u32) {}
}

/// Runs the start function of an instance that was just made, and may wait.
///
/// # Errors
/// What it fails with.
pub(crate) async fn start_async(
    mut store: impl AsContextMut + Unpin,
    made: &NewInstance,
) -> Result<()> {
    let (target, base) = {
        let inner = &store.as_context_mut().0.inner;
        let Some(target) = made.start(inner) else { return Ok(()) };
        (target, inner.instance(made.ordinal).base())
    };
    CallFuture::new(Ok(()), StartCall { target, base }, store).await
}

impl<Params: WasmValues + Unpin, Results: WasmValues> TypedFunc<Params, Results> {
    /// Calls the function; the future is ready when it has returned. Where it calls an
    /// [asynchronous host function](Linker::func_wrap_async) that is not ready, the guest is
    /// suspended: it is nothing but pages then, and takes no thread. Any executor will do, and
    /// each poll may come on another thread.
    ///
    /// If the future is dropped before it has ended, so is that of the host function; the guest
    /// is given up, its memory stays as it was, and the store can be used again.
    ///
    /// A timeout of the store counts from the first poll on, and like an interrupt ends a wait,
    /// too. What blocks a host function blocks the thread that polls, and so does a guest that
    /// computes, unless it is asked to [yield](Store::set_yield_interval); fills and copies of
    /// large memories are one step. [`Store::run_turns_with`] has all that run elsewhere. A guest that is called by a host function of its own store
    /// cannot wait: what it calls must be ready at once.
    ///
    /// # Errors
    /// The future's are those of [`TypedFunc::call`].
    ///
    /// # Panics
    /// As [`TypedFunc::call`], in a poll; if it is polled after its end.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Linker, Module, Store};
    ///
    /// # struct NoWaker;
    /// # impl std::task::Wake for NoWaker { fn wake(self: std::sync::Arc<Self>) {} }
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let waker = std::sync::Arc::new(NoWaker).into();
    /// #     loop {
    /// #         let mut context = std::task::Context::from_waker(&waker);
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # async fn later() {
    /// #     let mut waited = false;
    /// #     std::future::poll_fn(|_| if std::mem::replace(&mut waited, true) {
    /// #         std::task::Poll::Ready(()) } else { std::task::Poll::Pending }).await
    /// # }
    /// # block_on(async {
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "fetch" (func $fetch (param i32) (result i32)))
    ///     (func (export "run") (result i32)
    ///         (i32.add (call $fetch (i32.const 1)) (call $fetch (i32.const 2)))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap_async("host", "fetch", |mut caller: Caller<'_, u32>, (key,): (i32,)| {
    ///     Box::new(async move {
    ///         later().await; // for as long as it takes
    ///         *caller.data_mut() += 1;
    ///         key * 100
    ///     })
    /// })?;
    /// let mut store = Store::new(&engine, 0);
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    /// assert_eq!(run.call_async(&mut store, ()).await?, 300);
    /// assert_eq!(*store.data(), 2);
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub fn call_async<C: AsContextMut + Unpin>(
        &self,
        mut store: C,
        params: Params,
    ) -> impl Future<Output = Result<Results>> + Unpin + use<C, Params, Results> {
        let checked = self.check_store(&store.as_context_mut().0.inner);
        CallFuture::new(checked, TypedCall { function: *self, params }, store)
    }
}

impl Func {
    /// As [`TypedFunc::call_async`], on slices as [`Func::call`].
    ///
    /// # Errors
    /// The future's are those of [`Func::call`].
    ///
    /// # Panics
    /// As [`TypedFunc::call_async`].
    ///
    /// # Examples
    ///
    /// See [`Func::wrap_async`].
    pub fn call_async<'a, C: AsContextMut + Unpin>(
        &self,
        mut store: C,
        params: &'a [Val],
        results: &'a mut [Val],
    ) -> impl Future<Output = Result<()>> + Unpin + use<'a, C> {
        let inner = &store.as_context_mut().0.inner;
        let target = inner.check(self.store, "function").and_then(|()| {
            check_values(inner, inner.function_type(self.definition).0, params, results)?;
            Ok(self.entry(inner))
        });
        let (checked, target) = match target {
            Ok(target) => (Ok(()), target),
            Err(error) => (Err(error), CallTarget::Host(0)),
        };
        CallFuture::new(checked, SliceCall { function: *self, target, params, results }, store)
    }

    /// Makes a function of the host that may let its caller wait: see
    /// [`Linker::func_wrap_async`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Store, Val};
    ///
    /// # struct NoWaker;
    /// # impl std::task::Wake for NoWaker { fn wake(self: std::sync::Arc<Self>) {} }
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let waker = std::sync::Arc::new(NoWaker).into();
    /// #     loop {
    /// #         let mut context = std::task::Context::from_waker(&waker);
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # async fn fetch(key: i32) -> i32 { key * 100 }
    /// # block_on(async {
    /// let mut store = Store::new(&Engine::default(), ());
    /// let fetch = Func::wrap_async(&mut store, |_: Caller<'_, ()>, (key,): (i32,)| {
    ///     Box::new(async move { fetch(key).await })
    /// });
    /// let mut results = [Val::I32(0)];
    /// fetch.call_async(&mut store, &[Val::I32(3)], &mut results).await?;
    /// assert_eq!(results[0].i32(), Some(300));
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub fn wrap_async<T, Params, R>(
        mut store: impl AsContextMut<Data = T>,
        function: impl AsyncHostFunc<T, Params, R>,
    ) -> Self
    where
        T: 'static,
        Params: WasmValues + Send,
        R: WasmRet + 'static,
    {
        let store = store.as_context_mut();
        let function = asynchronous(store.engine(), function);
        Self::from_host(&mut store.0.inner, function)
    }

    /// Makes a function of the host of the type `ty` that may let its caller wait: see
    /// [`Linker::func_new_async`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Func, FuncType, Store, Val, ValType};
    ///
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # async fn fetch(key: i32) -> i32 { key * 100 }
    /// # block_on(async {
    /// let mut store = Store::new(&Engine::default(), ());
    /// let ty = FuncType::new([ValType::I32], [ValType::I32]);
    /// let fetch = Func::new_async(&mut store, ty, |_, arguments, results| {
    ///     Box::new(async move {
    ///         results[0] = Val::I32(fetch(arguments[0].unwrap_i32()).await);
    ///         Ok(())
    ///     })
    /// });
    /// let fetch = fetch.typed::<i32, i32>(&store)?;
    /// assert_eq!(fetch.call_async(&mut store, 3).await?, 300);
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub fn new_async<T: 'static>(
        mut store: impl AsContextMut<Data = T>,
        ty: FuncType,
        function: impl AsyncUntypedFunc<T>,
    ) -> Self {
        let store = store.as_context_mut();
        let function = asynchronous_untyped(store.engine(), ty, function);
        Self::from_host(&mut store.0.inner, function)
    }
}

/// Closures that can be host functions which let their callers wait: see
/// [`Linker::func_wrap_async`]. They get their caller and their parameters, as a tuple.
///
/// # Examples
///
/// See [`TypedFunc::call_async`].
pub trait AsyncHostFunc<T: 'static, Params, R>:
    for<'a> Fn(Caller<'a, T>, Params) -> Box<dyn Future<Output = R> + Send + 'a> + Send + Sync + 'static
{
}

impl<T: 'static, Params, R, F> AsyncHostFunc<T, Params, R> for F where
    F: for<'a> Fn(Caller<'a, T>, Params) -> Box<dyn Future<Output = R> + Send + 'a>
        + Send
        + Sync
        + 'static
{
}

/// Closures that can be host functions which let their callers wait, of any type: see
/// [`Linker::func_new_async`]. They get their caller, its arguments, and places for results.
///
/// # Examples
///
/// See [`Linker::func_new_async`].
pub trait AsyncUntypedFunc<T: 'static>:
    for<'a> Fn(
        Caller<'a, T>,
        &'a [Val],
        &'a mut [Val],
    ) -> Box<dyn Future<Output = Result<()>> + Send + 'a>
    + Send
    + Sync
    + 'static
{
}

impl<T: 'static, F> AsyncUntypedFunc<T> for F where
    F: for<'a> Fn(
            Caller<'a, T>,
            &'a [Val],
            &'a mut [Val],
        ) -> Box<dyn Future<Output = Result<()>> + Send + 'a>
        + Send
        + Sync
        + 'static
{
}

impl<T: 'static> Linker<T> {
    /// As [`Linker::func_wrap_async`], of a function of the type `ty`. Its future sets each of the
    /// results, as the closures of [`Linker::func_new`] do.
    ///
    /// # Errors
    /// As [`Linker::define`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, FuncType, Linker, Module, Store, Val, ValType};
    ///
    /// # fn block_on<F: std::future::Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(it) = future.as_mut().poll(&mut context) { return it }
    /// #     }
    /// # }
    /// # async fn later() {
    /// #     let mut waited = false;
    /// #     std::future::poll_fn(|_| if std::mem::replace(&mut waited, true) {
    /// #         std::task::Poll::Ready(()) } else { std::task::Poll::Pending }).await
    /// # }
    /// # block_on(async {
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "fetch" (func $fetch (param i32) (result i32 i64)))
    ///     (func (export "run") (result i32 i64) (call $fetch (i32.const 4))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// let ty = FuncType::new([ValType::I32], [ValType::I32, ValType::I64]);
    /// linker.func_new_async("host", "fetch", ty, |_, arguments, results| {
    ///     Box::new(async move {
    ///         later().await; // for as long as it takes
    ///         results[0] = arguments[0];
    ///         results[1] = Val::I64(44);
    ///         Ok(())
    ///     })
    /// })?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = linker.instantiate(&mut store, &module)?;
    /// let run = instance.get_typed_func::<(), (i32, i64)>(&mut store, "run")?;
    /// assert_eq!(run.call_async(&mut store, ()).await?, (4, 44));
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub fn func_new_async(
        &mut self,
        module: &str,
        name: &str,
        ty: FuncType,
        function: impl AsyncUntypedFunc<T>,
    ) -> Result<&mut Self> {
        let function = asynchronous_untyped(self.engine(), ty, function);
        self.define_host(module, name, function)
    }

    /// Defines a function of the host that may let its caller wait. It gets its caller and its
    /// parameters, as a tuple, and returns a future of what [`Linker::func_wrap`]'s closures
    /// return. The future is polled at once; if it is not ready then, the guest is suspended
    /// until it is. Even if all futures are ready at once, guests that call it are to be called
    /// with [`call_async`](TypedFunc::call_async), and those whose start functions call it are made
    /// with [`instantiate_async`](Linker::instantiate_async).
    ///
    /// While it waits, the future can use its caller's store: data, memories, globals, tables. But
    /// guests of the store cannot be called then: [`UsageError::Suspended`]. An error, or an
    /// [`Exception`](crate::Exception) that a guest may catch, is thrown where the guest waits.
    ///
    /// # Errors
    /// As [`Linker::define`].
    ///
    /// # Examples
    ///
    /// See [`TypedFunc::call_async`].
    ///
    /// [`UsageError::Suspended`]: crate::UsageError::Suspended
    pub fn func_wrap_async<Params, R>(
        &mut self,
        module: &str,
        name: &str,
        function: impl AsyncHostFunc<T, Params, R>,
    ) -> Result<&mut Self>
    where
        Params: WasmValues + Send,
        R: WasmRet + 'static,
    {
        let function = asynchronous(self.engine(), function);
        self.define_host(module, name, function)
    }
}

impl<T: 'static> Store<T> {
    /// How long a guest that was called with [`call_async`](TypedFunc::call_async) runs without a
    /// pause: then it lets the executor poll others, at its next function entry or loop iteration.
    /// `None`, the default, is for ever. It costs host calls a nanosecond, since guests may be
    /// suspended anywhere then.
    ///
    /// # Errors
    /// If the engine's code cannot be interrupted.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagefork::{Engine, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// store.set_yield_interval(Some(Duration::from_millis(10)))?;
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn set_yield_interval(&mut self, interval: Option<Duration>) -> Result<()> {
        let inner = &mut self.as_context_mut().0.inner;
        inner.check_interruptible()?;
        inner.turns.interval = interval;
        Ok(())
    }
}

impl<T: Send + 'static> Store<T> {
    /// Has guests that were called with [`call_async`](TypedFunc::call_async) run by `runner`: it
    /// gets each turn of a guest, from where it begins or goes on to where it ends or waits, and
    /// must run it once before it returns, on any thread. That is for executors that are to know
    /// that a turn may take long: it may compute, fill or copy large memories, fault pages in, and
    /// call host functions that block, as those of WASI do. Futures of host functions are
    /// polled outside, except for the first time.
    ///
    /// With tokio's runtime of several threads, `tokio::task::block_in_place(turn)` as the runner
    /// gives the other tasks of the thread to another one.
    ///
    /// # Errors
    /// Calls fail with [`UsageError::TurnNotRun`](crate::UsageError::TurnNotRun) if it does not run
    /// a turn.
    ///
    /// # Panics
    /// If it panics, polls do, and give the guest up.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Engine, Instance, Module, Store};
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
    /// let module = Module::new(&engine, r#"(module (memory 100) (func (export "clear")
    ///     (memory.fill (i32.const 0) (i32.const 0) (i32.const 6_553_600))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let clear = instance.get_typed_func::<(), ()>(&mut store, "clear")?;
    /// store.run_turns_with(|turn| std::thread::scope(|scope| {
    ///     scope.spawn(turn).join().expect("a turn's panic is not the thread's")
    /// }));
    /// clear.call_async(&mut store, ()).await?;
    /// # Ok::<(), pagefork::Error>(()) }).unwrap();
    /// ```
    pub fn run_turns_with(
        &mut self,
        runner: impl Fn(&mut (dyn FnMut() + Send)) + Send + Sync + 'static,
    ) {
        self.as_context_mut().0.inner.turns.runner = Some(Arc::new(runner));
    }
}

/// A host function that may let its caller wait.
fn asynchronous<T, Params, R>(
    engine: &Engine,
    function: impl AsyncHostFunc<T, Params, R>,
) -> HostFunc
where
    T: 'static,
    Params: WasmValues + Send,
    R: WasmRet + 'static,
{
    let call = move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
        // SAFETY: `HostCall` says that store, cells and base are of one store and function type,
        // and that the store is ours. The future has it as long as it lives: it is polled at once,
        // or by the task that has called, which leaves the store alone in between, and which lives
        // no longer than what has lent it the store.
        unsafe {
            let params = Params::read(cells, CellOwner::of_base(&*store, base));
            let future = Box::into_pin(function(Caller::<T>::new(store, base), params));
            let call = Pending { future: Some(future) };
            begin_call(store, cells, base, R::Values::TYPES.len(), call)
        }
    };
    HostFunc::in_cells::<Params, R::Values>(engine, Box::new(call))
}

/// What an asynchronous host function returns; `None` once it has ended.
type HostFuture<'a, R> = Option<Pin<Box<dyn Future<Output = R> + Send + 'a>>>;

/// Polls the future of a host function. One that has ended goes at once: it may still have the
/// store, and what it was lent.
#[inline]
fn poll_host<R>(future: &mut HostFuture<'_, R>, context: &mut Context<'_>) -> Poll<R> {
    let polled = future.as_mut().expect("it has not ended").as_mut().poll(context);
    if polled.is_ready() {
        *future = None;
    }
    polled
}

/// The future of a host function.
struct Pending<'a, R> {
    future: HostFuture<'a, R>,
}

impl<R: WasmRet> PendingCall for Pending<'_, R> {
    unsafe fn poll(
        &mut self,
        context: &mut Context<'_>,
        store: *mut StoreGroup,
        cells: *mut Cell,
        base: usize,
    ) -> Poll<Result<()>> {
        let Poll::Ready(result) = poll_host(&mut self.future, context) else {
            return Poll::Pending;
        };
        // SAFETY: by this function's contract the store and the cells are ours now.
        Poll::Ready(
            result.into_result().and_then(|values| unsafe {
                values.write(cells, CellOwner::of_base(&*store, base))
            }),
        )
    }
}

/// A host function of any type that may let its caller wait.
fn asynchronous_untyped<T: 'static>(
    engine: &Engine,
    ty: FuncType,
    function: impl AsyncUntypedFunc<T>,
) -> HostFunc {
    HostFunc::in_cells_of_type(engine, ty, |types| {
        let types = Arc::clone(types);
        Box::new(move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
            // SAFETY: as of the call in `asynchronous`; the values are the call's, which goes
            // after the future that they are lent to.
            unsafe {
                let values = values_of_call(&*store, cells, base, &types).collect();
                let mut call = PendingValues::new(values, Arc::clone(&types));
                let (params, results) = call.lend();
                let future = function(Caller::<T>::new(store, base), params, results);
                call.future = Some(Box::into_pin(future));
                begin_call(store, cells, base, types.results.len(), call)
            }
        })
    })
}

/// The future of a host function of any type, with the values that it was lent.
struct PendingValues<'a> {
    /// It goes before the values.
    future: HostFuture<'a, Result<()>>,
    /// The arguments, then the results. Owned, and lent to the future: not a box, which nothing
    /// else may point into.
    values: NonNull<[Val]>,
    ty: Arc<FuncType>,
}

// SAFETY: the future can be sent, and so can values; nothing else points to them.
unsafe impl Send for PendingValues<'_> {}

impl<'a> PendingValues<'a> {
    fn new(values: Box<[Val]>, ty: Arc<FuncType>) -> Self {
        Self { future: None, values: NonNull::from(Box::leak(values)), ty }
    }

    /// The arguments and the places of results.
    ///
    /// # Safety
    /// It is asked once, for a future that becomes this one's own.
    unsafe fn lend(&mut self) -> (&'a [Val], &'a mut [Val]) {
        // SAFETY: the values were leaked from a box, and by this function's contract nothing
        // else looks at them until the future has gone.
        let values = unsafe { &mut *self.values.as_ptr() };
        let (params, results) = values.split_at_mut(self.ty.params.len());
        (params, results)
    }
}

impl Drop for PendingValues<'_> {
    fn drop(&mut self) {
        self.future = None;
        // SAFETY: they were leaked from a box, and the future that they were lent to has gone.
        drop(unsafe { Box::from_raw(self.values.as_ptr()) });
    }
}

impl PendingCall for PendingValues<'_> {
    unsafe fn poll(
        &mut self,
        context: &mut Context<'_>,
        store: *mut StoreGroup,
        cells: *mut Cell,
        base: usize,
    ) -> Poll<Result<()>> {
        let Poll::Ready(result) = poll_host(&mut self.future, context) else {
            return Poll::Pending;
        };
        // SAFETY: by this function's contract the store and the cells are ours now, and the
        // values are since the future has gone.
        let write = || unsafe {
            let owner = (*store).ordinal_of(base);
            let results = &(&*self.values.as_ptr())[self.ty.params.len()..];
            for (i, value) in results.iter().enumerate() {
                check_result(&*store, &self.ty, i, value)?;
                cells.add(i).write(value.to_cell(&*store, owner)?);
            }
            Ok(())
        };
        Poll::Ready(result.and_then(|()| write()))
    }
}
