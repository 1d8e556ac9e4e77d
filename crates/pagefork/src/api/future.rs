//! Calls that wait, and host functions that make guests wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::api::func::{Caller, check_values};
use crate::api::host_func::WasmRet;
use crate::api::linker::Linker;
use crate::api::store::{AsContextMut, Store};
use crate::api::typed::{CellOwner, TypedFunc, WasmValues};
use crate::base::cell::Cell;
use crate::base::error::Result;
use crate::code::engine::Engine;
use crate::run::task::{Polling, Task, begin_call};
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
    /// The call, once it has begun: it goes before what lends the store.
    task: Option<Task>,
    /// `None` if it cannot be called, once that was said.
    target: Option<Result<CallTarget>>,
    values: V,
    /// What lends the store.
    context: C,
}

/// What is called, with arguments, and where results go.
pub(crate) trait Call: Unpin {
    /// What the call returns.
    type Output;

    /// # Errors
    /// If the arguments cannot be passed.
    ///
    /// # Safety
    /// The store is that of the function, borrowed by the caller; there is a cell for each
    /// argument, in a place of the instance `owner`.
    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()>;

    /// # Safety
    /// As of [`Call::put`]; the function has returned, so its results are there.
    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) -> Self::Output;

    /// Calls a function of the host, which has to be ready at once.
    ///
    /// # Safety
    /// The store is that of the function, borrowed by the caller, the pointer with the provenance
    /// of the whole.
    unsafe fn call_host(&mut self, store: *mut StoreGroup) -> Result<Self::Output>;
}

/// See [`TypedFunc::call_async`].
pub(crate) struct TypedCall<Params, Results> {
    function: TypedFunc<Params, Results>,
    params: Params,
}

/// See [`Func::call_async`].
pub(crate) struct SliceCall<'a> {
    function: Func,
    params: &'a [Val],
    results: &'a mut [Val],
}

impl<C: AsContextMut + Unpin, V: Call> Future for CallFuture<C, V> {
    type Output = Result<V::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { task, target, values, context: lender } = self.get_mut();
        let target = match target {
            Some(Ok(CallTarget::Guest(target))) => *target,
            Some(Ok(CallTarget::Host(_))) => {
                *target = None;
                let store = lender.as_context_mut().as_ptr();
                let interrupts = Arc::clone(&lender.as_context_mut().0.inner.interrupts);
                let _polling = Polling::begin(&interrupts, context);
                // SAFETY: the lender lends the store, and the function was found to be of it.
                return Poll::Ready(unsafe { values.call_host(store) });
            }
            _ => {
                let failed = target.take().expect("a call is not polled after its end");
                return Poll::Ready(Err(failed.expect_err("the others are above")));
            }
        };
        let cells = cells(&target);
        let task = task.get_or_insert_with(|| {
            let store = lender.as_context_mut().as_ptr();
            // SAFETY: the lender lends the store as long as the task lives, and is not asked for
            // it again until then; the function was found to be of it.
            unsafe { Task::new(store, target) }
        });
        // SAFETY: the store is that of the function; its cells are as many as the function has
        // values, and once it has returned its results are there.
        unsafe {
            let store = task.store();
            match task.poll(context, |store| values.put(store, cells, target.ordinal)) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Ok(())) => Poll::Ready(Ok(values.take(&*store, cells, target.ordinal))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            }
        }
    }
}

impl<Params: WasmValues + Unpin, Results: WasmValues> Call for TypedCall<Params, Results> {
    type Output = Results;

    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.params.write(cells, CellOwner::of_ordinal(&*store, owner)) }
    }

    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) -> Results {
        // SAFETY: by this function's contract.
        unsafe { Results::read(cells, CellOwner::of_ordinal(store, owner)) }
    }

    unsafe fn call_host(&mut self, store: *mut StoreGroup) -> Result<Results> {
        // SAFETY: by this function's contract.
        unsafe { self.function.call_otherwise(store, self.params) }
    }
}

impl Call for SliceCall<'_> {
    type Output = ();

    unsafe fn put(&self, store: *mut StoreGroup, cells: *mut Cell, owner: u32) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { write_values(&*store, self.params, cells, owner) }
    }

    unsafe fn take(&mut self, store: &StoreGroup, cells: *mut Cell, owner: u32) {
        let (ty, _) = store.function_type(self.function.definition);
        // SAFETY: by this function's contract.
        unsafe { read_results(store, ty, self.results, cells, owner) }
    }

    unsafe fn call_host(&mut self, store: *mut StoreGroup) -> Result<()> {
        // SAFETY: by this function's contract.
        unsafe { self.function.call_host(store, self.params, self.results) }
    }
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
    /// large memories are one step. A guest that is called by a host function of its own store
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
        let target = self.checked_target(&store.as_context_mut().0.inner);
        let values = TypedCall { function: *self, params };
        CallFuture { task: None, target: Some(target), values, context: store }
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
        let values = SliceCall { function: *self, params, results };
        CallFuture { task: None, target: Some(target), values, context: store }
    }

    /// Makes a function of the host that may let its caller wait: see
    /// [`Linker::func_wrap_async`].
    pub fn wrap_async<T, Params, R, F>(mut store: impl AsContextMut<Data = T>, function: F) -> Self
    where
        T: 'static,
        Params: WasmValues + Send,
        R: WasmRet + 'static,
        F: for<'a> Fn(Caller<'a, T>, Params) -> Box<dyn Future<Output = R> + Send + 'a>
            + Send
            + Sync
            + 'static,
    {
        let store = store.as_context_mut();
        let function = asynchronous(store.engine(), function);
        Self::from_host(&mut store.0.inner, function)
    }
}

impl<T: 'static> Linker<T> {
    /// Defines a function of the host that may let its caller wait. It gets its caller and its
    /// parameters, as a tuple, and returns a future of what [`Linker::func_wrap`]'s closures
    /// return. The future is polled at once; if it is not ready then, the guest is suspended
    /// until it is. Even if all futures are ready at once, guests that call it are to be called
    /// with [`call_async`](TypedFunc::call_async); start functions cannot call it.
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
    pub fn func_wrap_async<Params, R, F>(
        &mut self,
        module: &str,
        name: &str,
        function: F,
    ) -> Result<&mut Self>
    where
        Params: WasmValues + Send,
        R: WasmRet + 'static,
        F: for<'a> Fn(Caller<'a, T>, Params) -> Box<dyn Future<Output = R> + Send + 'a>
            + Send
            + Sync
            + 'static,
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
        inner.yield_after = interval;
        Ok(())
    }
}

/// A host function that may let its caller wait.
fn asynchronous<T, Params, R, F>(engine: &Engine, function: F) -> HostFunc
where
    T: 'static,
    Params: WasmValues + Send,
    R: WasmRet + 'static,
    F: for<'a> Fn(Caller<'a, T>, Params) -> Box<dyn Future<Output = R> + Send + 'a>
        + Send
        + Sync
        + 'static,
{
    let call = move |store: *mut StoreGroup, cells: *mut Cell, base: usize| {
        // SAFETY: `HostCall` says that store, cells and base are of one store and function type,
        // and that the store is ours. The future has it as long as it lives: it is polled at once,
        // or by the task that has called, which leaves the store alone in between, and which lives
        // no longer than what has lent it the store.
        unsafe {
            let params = Params::read(cells, CellOwner::of_base(&*store, base));
            let future = Box::into_pin(function(Caller::<T>::new(store, base), params));
            let call = Box::new(Pending { future: Some(future) });
            begin_call(store, cells, base, R::Values::TYPES.len(), call)
        }
    };
    HostFunc::in_cells::<Params, R::Values>(engine, Box::new(call))
}

/// The future of a host function.
struct Pending<'a, R> {
    /// `None` once it has ended.
    future: Option<Pin<Box<dyn Future<Output = R> + Send + 'a>>>,
}

impl<R: WasmRet> PendingCall for Pending<'_, R> {
    unsafe fn poll(
        &mut self,
        context: &mut Context<'_>,
        store: *mut StoreGroup,
        cells: *mut Cell,
        base: usize,
    ) -> Poll<Result<()>> {
        let future = self.future.as_mut().expect("it has not ended");
        let Poll::Ready(result) = future.as_mut().poll(context) else { return Poll::Pending };
        // It may still have the store.
        self.future = None;
        // SAFETY: by this function's contract the store and the cells are ours now.
        Poll::Ready(
            result.into_result().and_then(|values| unsafe {
                values.write(cells, CellOwner::of_base(&*store, base))
            }),
        )
    }
}
