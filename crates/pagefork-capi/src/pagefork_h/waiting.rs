//! Host functions that C completes later, and calls that wait for them.
//!
//! # Safety
//!
//! A call that has begun has its store for itself: `StoreCell::lend_to_call` makes it so that nothing
//! else can reach the store until `StoreCell::end_call`, but for the host functions that it polls.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pagefork::{AsyncUntypedFunc, Caller, Func, FuncType, Instance, Result, Val};

use crate::base::border::{BorderError, attempt, border, exported, given};
use crate::base::c_box::CBox;
use crate::base::guard::calling_sixth;
use crate::objects::callback::{given_values, pagefork_caller_t, raised, wrong_count};
use crate::objects::fallible::{
    OutBox, OutCBox, elements, fallible, make, outcome_in, outcome_made, places, text,
};
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::linker::{pagefork_instance_pre_t, pagefork_linker_t};
use crate::objects::object::{Object, wasm_ref_t, wasm_store_t};
use crate::objects::store::{HostData, StoreCell, StoreRef};
use crate::objects::types::wasm_externtype_t;
use crate::objects::value::{CValue, OwnedValues, pagefork_val_t};
use crate::objects::waiting::{CallWaker, HostWait, Notify, WaitFuture, given_up};
use crate::pagefork_h::spawn::{PRE, Spawning, cell_and_data, pagefork_spawn_t};

/// What is null, if it is.
const CALL: &str = "call";
/// What is null, if it is.
const COMPLETION: &str = "completion";

/// A C function that begins what it does, and completes it later.
type pagefork_async_callback_t = extern "C-unwind" fn(
    *const pagefork_caller_t,
    *const pagefork_val_t,
    usize,
    Box<pagefork_completion_t>,
);

/// The same, called by a frame that nothing unwinds.
type GuardedCallback = extern "C-unwind" fn(
    *const pagefork_caller_t,
    *const pagefork_val_t,
    usize,
    Box<pagefork_completion_t>,
    usize,
    pagefork_async_callback_t,
);

/// With what C completes a call of a host function.
struct pagefork_completion_t(Arc<HostWait>);

impl Drop for pagefork_completion_t {
    fn drop(&mut self) {
        self.0.complete(Err(given_up()));
    }
}

/// A C function that completes its calls later, with its type.
struct BeginningFunction {
    callback: pagefork_async_callback_t,
    env: HostInfo,
    ty: FuncType,
}

impl BeginningFunction {
    /// # Errors
    /// If there is none.
    fn new(
        callback: Option<pagefork_async_callback_t>,
        env: HostInfo,
        ty: FuncType,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { callback: given(callback, "function")?, env, ty }))
    }

    /// Has C begin a call.
    ///
    /// # Errors
    /// If C has no such values, or has raised an error.
    fn begin(
        &self,
        caller: &mut Caller<'_, HostData>,
        params: &[Val],
        wait: &Arc<HostWait>,
    ) -> Result<()> {
        StoreCell::in_host_function(caller, |cell| {
            let mut args = OwnedValues(Vec::with_capacity(params.len()));
            for param in params {
                args.0.push(pagefork_val_t::of_val(*param, &cell.handle().0)?);
            }
            let caller = pagefork_caller_t::new(self.env.data(), cell.handle());
            let completion = Box::new(pagefork_completion_t(Arc::clone(wait)));
            // SAFETY: these are six words, of which the last is a function that takes the first four.
            let call = unsafe { calling_sixth::<GuardedCallback>() };
            call(&caller, args.0.as_ptr(), args.0.len(), completion, 0, self.callback);
            Ok(())
        })?
    }

    /// Takes over what C has completed a call with.
    ///
    /// # Errors
    /// If the values are not of the function's type.
    fn finish(
        &self,
        caller: &mut Caller<'_, HostData>,
        values: OwnedValues<pagefork_val_t>,
        results: &mut [Val],
    ) -> Result<()> {
        if values.0.len() != results.len() {
            return Err(wrong_count("results", results.len(), values.0.len()));
        }
        StoreCell::in_host_function(caller, |cell| {
            for ((result, value), ty) in results.iter_mut().zip(&values.0).zip(&self.ty.results) {
                *result = value.to_val(*ty, &cell.handle().0)?;
            }
            Ok(())
        })?
    }
}

/// What guests call for a C function that completes its calls later.
fn host_function(function: Arc<BeginningFunction>) -> impl AsyncUntypedFunc<HostData> {
    /// Says of what kind the closure is.
    fn of_kind<F: AsyncUntypedFunc<HostData>>(function: F) -> F {
        function
    }
    of_kind(move |mut caller, params, results| {
        let function = Arc::clone(&function);
        Box::new(async move {
            // With this future the wait ends, whatever ends it.
            let outcome = WaitFuture(HostWait::begin());
            function.begin(&mut caller, params, &outcome.0)?;
            let values = outcome.await?;
            function.finish(&mut caller, values, results)
        })
    })
}

/// A call that may wait.
///
/// Invariant: while the stage is `Begun` or `Polled`, the store is the call's own.
struct pagefork_call_t {
    stage: RefCell<AsyncStage>,
    /// C has deleted the call while it was polled.
    is_deleted: Cell<bool>,
    told: Arc<CallWaker>,
    store: StoreRef,
}

/// The guest, which is done when this is.
type GuestFuture = Pin<Box<dyn Future<Output = Result<GuestOutput>>>>;

/// What a guest has come to.
enum GuestOutput {
    /// The results of a function.
    Results(Vec<Val>),
    /// An instance whose start function has returned.
    Started(Instance),
}

/// The same, for C.
enum CallEnd {
    Results(OwnedValues<pagefork_val_t>),
    Started(CBox<wasm_ref_t>),
}

impl CallEnd {
    /// # Errors
    /// If C has no such values.
    fn of(output: GuestOutput, store: &StoreRef) -> Result<Self> {
        let values = match output {
            GuestOutput::Started(instance) => {
                return Ok(Self::Started(store.own(Object::Instance(instance))));
            }
            GuestOutput::Results(values) => values,
        };
        let mut own = OwnedValues(Vec::with_capacity(values.len()));
        for value in values {
            own.0.push(pagefork_val_t::of_val(value, store)?);
        }
        Ok(Self::Results(own))
    }
}

/// How far a call that may wait has come.
enum AsyncStage {
    /// It runs when it is polled.
    Begun(GuestFuture),
    /// It is being polled.
    Polled,
    /// It has ended; nothing is left once C has taken the outcome.
    Ended(Option<Result<CallEnd>>),
}

impl pagefork_call_t {
    /// A call to which the store was lent, or that makes it.
    fn new(future: GuestFuture, told: Arc<CallWaker>, store: &StoreRef) -> Box<Self> {
        let stage = RefCell::new(AsyncStage::Begun(future));
        Box::new(Self { stage, is_deleted: Cell::new(false), told, store: store.clone() })
    }

    /// Runs the guest until it ends or waits; whether it has ended.
    ///
    /// # Errors
    /// If it is being polled: what the guest calls has called this.
    fn poll(&self) -> Result<bool> {
        let mut future = match self.stage.replace(AsyncStage::Polled) {
            AsyncStage::Begun(future) => future,
            AsyncStage::Ended(outcome) => {
                self.stage.replace(AsyncStage::Ended(outcome));
                return Ok(true);
            }
            AsyncStage::Polled => return Err(BorderError::Busy("the call is being polled").into()),
        };
        self.told.rearm();
        let waker = Waker::from(Arc::clone(&self.told));
        let poll = || Ok(future.as_mut().poll(&mut Context::from_waker(&waker)));
        let result = match attempt(poll) {
            Ok(Poll::Pending) => {
                self.stage.replace(AsyncStage::Begun(future));
                return Ok(false);
            }
            Ok(Poll::Ready(result)) => result,
            Err(panic) => Err(panic),
        };
        drop(future);
        self.store.end_call();
        let outcome = result.and_then(|output| CallEnd::of(output, &self.store));
        self.stage.replace(AsyncStage::Ended(Some(outcome)));
        Ok(true)
    }

    /// What the call has come to, if it fits.
    ///
    /// # Errors
    /// What ended the call; if it has not ended, or this is not asked for the first time; why it
    /// does not fit, and it stays then.
    fn take(&self, check: impl FnOnce(&CallEnd) -> Result<()>) -> Result<CallEnd> {
        let mut stage = self.stage.borrow_mut();
        let AsyncStage::Ended(outcome) = &mut *stage else {
            return Err(BorderError::Busy("the call has not ended: poll it").into());
        };
        if let Some(Ok(outcome)) = outcome {
            check(outcome)?;
        }
        let taken = || BorderError::Unfit("the outcome of the call was taken already".to_owned());
        outcome.take().ok_or_else(taken)?
    }

    /// Gives C the results.
    ///
    /// # Errors
    /// As [`Self::take`].
    fn take_results(&self, out: *mut pagefork_val_t, count: usize) -> Result<()> {
        let places = places(out, count)?;
        let outcome = self.take(|outcome| match outcome {
            CallEnd::Results(values) if values.0.len() == count => Ok(()),
            CallEnd::Results(values) => {
                Err(wrong_count("places for results", values.0.len(), count))
            }
            CallEnd::Started(_) => Err(of_another_kind("an instance")),
        })?;
        if let CallEnd::Results(mut values) = outcome {
            for (place, value) in places.iter_mut().zip(values.0.drain(..)) {
                place.write(value);
            }
        }
        Ok(())
    }

    /// Gives C the instance.
    ///
    /// # Errors
    /// As [`Self::take`].
    fn take_instance(&self) -> Result<CBox<wasm_ref_t>> {
        let outcome = self.take(|outcome| match outcome {
            CallEnd::Started(_) => Ok(()),
            CallEnd::Results(_) => Err(of_another_kind("results of a function")),
        })?;
        match outcome {
            CallEnd::Started(instance) => Ok(instance),
            CallEnd::Results(_) => Err(of_another_kind("results of a function")),
        }
    }
}

#[cold]
fn of_another_kind(found: &str) -> pagefork::Error {
    BorderError::Unfit(format!("what the call gives is {found}")).into()
}

impl Drop for pagefork_call_t {
    fn drop(&mut self) {
        if let AsyncStage::Begun(future) = mem::replace(self.stage.get_mut(), AsyncStage::Polled) {
            drop(future);
            self.store.end_call();
        }
    }
}

/// Uses a call that C may delete meanwhile.
///
/// # Safety
/// The pointer is null, or leads to a call that was not deleted before.
unsafe fn with_call<R>(
    call: *mut pagefork_call_t,
    function: impl FnOnce(&pagefork_call_t) -> Result<R>,
) -> Result<R> {
    // SAFETY: by this function's contract. The call is freed below, and where it is not polled.
    let this = given(unsafe { call.as_ref() }, CALL)?;
    let result = function(this);
    if this.is_deleted.get() {
        // SAFETY: C has given it away, and it is polled no longer.
        drop(unsafe { Box::from_raw(call) });
    }
    result
}

fallible! {
    fn pagefork_func_new_async(
        store: Option<&wasm_store_t>,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_async_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutCBox<'_, wasm_ref_t>,
    ) {
        let env = HostInfo::new(env, finalizer);
        make(out, || {
            let (store, ty) = (given(store, "store")?, given(ty, "type")?.func()?.clone());
            let function = BeginningFunction::new(callback, env, ty.clone())?;
            let func = Func::new_async(&mut store.0.context()?, ty, host_function(function));
            store.0.own_func(func)
        })
    }

    fn pagefork_linker_func_async(
        linker: Option<&mut pagefork_linker_t>,
        module: *const c_char,
        name: *const c_char,
        ty: Option<&wasm_externtype_t>,
        callback: Option<pagefork_async_callback_t>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) {
        let env = HostInfo::new(env, finalizer);
        let (linker, ty) = (&mut given(linker, "linker")?.0, given(ty, "type")?.func()?.clone());
        let (module, name) = (text(module, "name of the module")?, text(name, "name")?);
        let function = host_function(BeginningFunction::new(callback, env, ty.clone())?);
        linker.func_new_async(module, name, ty, function).map(|_| ())
    }

    fn pagefork_func_call_async(
        func: Option<&wasm_ref_t>,
        args: *const pagefork_val_t,
        arg_count: usize,
        notify: Option<Notify>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutBox<'_, pagefork_call_t>,
    ) {
        let told = CallWaker::new(notify, env, finalizer);
        make(out, || {
            let object = given(func, "function")?;
            let (store, (func, shape)) = (object.store()?, object.func()?);
            let (func, ty) = (*func, store.func_type(shape));
            let params = given_values(elements(args, arg_count)?, ty, store)?;
            let mut results = vec![Val::I32(0); ty.results.len()];
            let context = store.lend_to_call()?;
            let future: GuestFuture = Box::pin(async move {
                func.call_async(context, &params, &mut results).await?;
                Ok(GuestOutput::Results(results))
            });
            Ok(pagefork_call_t::new(future, told, store))
        })
    }

    fn pagefork_linker_instantiate_async(
        linker: Option<&pagefork_linker_t>,
        store: Option<&wasm_store_t>,
        module: Option<&wasm_ref_t>,
        notify: Option<Notify>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutBox<'_, pagefork_call_t>,
    ) {
        let told = CallWaker::new(notify, env, finalizer);
        make(out, || {
            let (store, linker) = (&given(store, "store")?.0, &given(linker, "linker")?.0);
            let module = &given(module, "module")?.module()?.module;
            store.check_engine(module)?;
            let pre = linker.instantiate_pre(module)?;
            let context = store.lend_to_call()?;
            let future: GuestFuture =
                Box::pin(async move { pre.instantiate_async(context).await.map(GuestOutput::Started) });
            Ok(pagefork_call_t::new(future, told, store))
        })
    }

    fn pagefork_instance_pre_spawn_async(
        pre: Option<&pagefork_instance_pre_t>,
        how: Option<&pagefork_spawn_t<'_>>,
        notify: Option<Notify>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
        out: OutBox<'_, pagefork_call_t>,
    ) {
        let told = CallWaker::new(notify, env, finalizer);
        make(out, || {
            let pre = given(pre, PRE)?;
            let how = Spawning::of(how)?;
            let (store, data) = cell_and_data(pre, &how)?;
            let Spawning { tenant, limits, .. } = how;
            let (pre, own) = (pre.pre.clone(), store.clone());
            let future: GuestFuture = Box::pin(async move {
                let (made, instance) = match limits {
                    Some(limits) => pre.spawn_limited_async(tenant, data, limits, |_| ()).await?,
                    None => pre.spawn_for_async(tenant, data).await?,
                };
                own.fill(made);
                Ok(GuestOutput::Started(instance))
            });
            Ok(pagefork_call_t::new(future, told, &store))
        })
    }

    fn pagefork_store_set_yield_interval(store: Option<&wasm_store_t>, nanoseconds: u64) {
        let interval = (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds));
        given(store, "store")?.0.with_store(|store| store.set_yield_interval(interval))
    }
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_call_poll(call: *mut pagefork_call_t) -> bool {
    // SAFETY: by the header's word.
    border(|| unsafe { with_call(call, pagefork_call_t::poll) })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_call_wait(call: *mut pagefork_call_t, nanoseconds: u64) -> bool {
    // A time that is too long to be said is for ever.
    let until = Instant::now().checked_add(Duration::from_nanos(nanoseconds));
    let until = until.filter(|_| nanoseconds != u64::MAX);
    let wait = |call: &pagefork_call_t| {
        while !call.poll()? && !call.is_deleted.get() {
            if !call.told.sleep(until) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    // SAFETY: by the header's word.
    border(|| unsafe { with_call(call, wait) })
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_call_results(
    call: Option<&pagefork_call_t>,
    results: *mut pagefork_val_t,
    count: usize,
) -> Option<CBox<wasm_ref_t>> {
    let store = given(call, CALL).map(|call| &call.store);
    outcome_in(store, |_| given(call, CALL)?.take_results(results, count))
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_call_instance(
    call: Option<&pagefork_call_t>,
    out: OutCBox<'_, wasm_ref_t>,
) -> Option<CBox<wasm_ref_t>> {
    let store = given(call, CALL).map(|call| &call.store);
    outcome_made(store, out, |_| given(call, CALL)?.take_instance())
}

// SAFETY: the name is declared in our header, and begins as ours do.
#[unsafe(no_mangle)]
extern "C" fn pagefork_call_spawned(
    call: Option<&pagefork_call_t>,
    mut store_out: OutCBox<'_, wasm_store_t>,
    out: OutCBox<'_, wasm_ref_t>,
) -> Option<CBox<wasm_ref_t>> {
    if let Some(store_out) = &mut store_out {
        store_out.write(None);
    }
    let store = given(call, CALL).map(|call| &call.store);
    outcome_made(store, out, |store| {
        let store_out = given(store_out, "place for the store")?;
        let instance = given(call, CALL)?.take_instance()?;
        store_out.write(Some(store.clone().into_handle()));
        Ok(instance)
    })
}

exported! {
    fn pagefork_call_delete(call: *mut pagefork_call_t) {
        // SAFETY: by the header's word it is null, or leads to a call.
        let Some(this) = (unsafe { call.as_ref() }) else { return Ok(()) };
        if matches!(*this.stage.borrow(), AsyncStage::Polled) {
            this.is_deleted.set(true);
            return Ok(());
        }
        // SAFETY: C has given it away, and nothing uses it.
        drop(unsafe { Box::from_raw(call) });
        Ok(())
    }

    fn pagefork_completion_finish(
        completion: Option<Box<pagefork_completion_t>>,
        results: *const pagefork_val_t,
        count: usize,
    ) {
        // They are ours now, whatever comes of them.
        let values = elements(results, count).map(|values| OwnedValues(values.to_vec()));
        given(completion, COMPLETION)?.0.complete(values);
        Ok(())
    }

    fn pagefork_completion_fail(
        completion: Option<Box<pagefork_completion_t>>,
        error: Option<CBox<wasm_ref_t>>,
    ) {
        let error = given(error, "error").map_or_else(|error| error, |error| raised(&error));
        given(completion, COMPLETION)?.0.complete(Err(error));
        Ok(())
    }

    fn pagefork_completion_is_wanted(completion: Option<&pagefork_completion_t>) -> bool {
        Ok(given(completion, COMPLETION)?.0.is_wanted())
    }

    fn pagefork_completion_on_cancel(
        completion: Option<&pagefork_completion_t>,
        cancel: Option<Notify>,
        env: *mut c_void,
    ) {
        given(completion, COMPLETION)?.0.on_cancel(cancel, env);
        Ok(())
    }

    fn pagefork_completion_delete(completion: Option<Box<pagefork_completion_t>>) {
        drop(completion);
        Ok(())
    }
}
