//! Calls that may end suspended, and what becomes of the guest then: it is resumed or abandoned.

use pagefork_layout::module::ValType;
use pagefork_layout::reference::{FuncRef, HOST_ORDINAL};
use pagefork_layout::state::save::{self, Suspension};

use crate::api::func::check_values;
use crate::api::store::{AsContextMut, Store, StoreContextMut};
use crate::base::cell::Cell;
use crate::base::error::{Error, Result, UsageError};
use crate::base::trace::span;
use crate::base::trap::Trap;
use crate::run::call_hook;
use crate::run::enter::{self, CallOutcome};
use crate::run::suspend::{self, HostCallOutcome, Suspendable, Suspends};
use crate::store::group::StoreGroup;
use crate::store::handle::{CallTarget, Func, cells, read_results, write_values};
use crate::store::interrupt::Deadline;
use crate::store::suspended::Suspended;
use crate::store::value::Val;

/// How far a call got.
///
/// # Examples
///
/// See [`Func::call_suspendable`].
#[derive(Clone, Debug)]
pub enum CallProgress {
    /// The function returned these values.
    Finished(Vec<Val>),
    /// The guest is suspended: [`Store::suspended`] says where.
    Suspended,
}

/// Where a guest is suspended.
///
/// # Examples
///
/// See [`Store::suspended`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SuspendedAt {
    /// Before the call of a host function, which [asked](crate::Caller::suspend_before) for it: the
    /// call is still to be made.
    BeforeHostCall,
    /// After the call of a host function: its results wait for the guest.
    AfterHostCall,
    /// At a function entry or loop iteration.
    InterruptionPoint,
}

/// A suspended guest, as the embedder sees it.
///
/// # Examples
///
/// See [`Store::suspended`].
#[derive(Clone, Debug)]
pub struct SuspendedCall {
    at: SuspendedAt,
    host_function: Option<Func>,
    arguments: Vec<Val>,
}

impl SuspendedCall {
    /// Where it is suspended.
    ///
    /// # Examples
    ///
    /// See [`Store::suspended`].
    pub fn at(&self) -> SuspendedAt {
        self.at
    }

    /// The host function whose call is still to be made.
    ///
    /// # Examples
    ///
    /// See [`Store::suspended`].
    pub fn host_function(&self) -> Option<Func> {
        self.host_function
    }

    /// The arguments of that call.
    ///
    /// # Examples
    ///
    /// See [`Store::suspended`].
    pub fn arguments(&self) -> &[Val] {
        &self.arguments
    }
}

impl Func {
    /// As [`Func::call`], but the guest may be suspended: because another thread
    /// [asks](crate::InterruptHandle::suspend) for it, or a host function that it calls, to be
    /// called [later](crate::Caller::suspend_before) or when it has
    /// [returned](crate::Caller::suspend_after). Then the guest is nothing but pages and takes no
    /// thread; the store can be [resumed](Store::resume), which may be done on another thread, be
    /// captured by a [snapshot](Store::snapshot), or dropped. No other guest of the store can be
    /// called meanwhile.
    ///
    /// A timeout stops while the guest is suspended; its rest goes on when it is resumed.
    ///
    /// In a store whose guests were called like this, host calls cost a few nanoseconds more: what
    /// a guest may be suspended with must hold nothing of the host.
    ///
    /// # Errors
    /// As [`Func::call`]; if a guest of the store runs.
    ///
    /// # Panics
    /// As [`Func::call`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Caller, Engine, Linker, Module, Store, Val};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "pause" (func $pause (result i32)))
    ///     (func (export "run") (param i32) (result i32)
    ///         (i32.add (local.get 0) (call $pause))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "pause", |mut caller: Caller<'_, ()>| -> pagefork::Result<i32> {
    ///     caller.suspend_after()?;
    ///     Ok(30)
    /// })?;
    /// let mut store = Store::new(&engine, ());
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// let progress = run.call_suspendable(&mut store, &[Val::I32(12)])?;
    /// assert!(matches!(progress, CallProgress::Suspended));
    ///
    /// let CallProgress::Finished(results) = store.resume()? else { panic!("nothing stops it") };
    /// assert_eq!(results[0].i32(), Some(42));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn call_suspendable(
        &self,
        mut store: impl AsContextMut,
        params: &[Val],
    ) -> Result<CallProgress> {
        self.call_until(store.as_context_mut(), params, Suspends::Ends)
    }

    pub(crate) fn call_until<T: 'static>(
        &self,
        mut context: StoreContextMut<'_, T>,
        params: &[Val],
        suspends: Suspends,
    ) -> Result<CallProgress> {
        let store = context.as_ptr();
        // SAFETY: the store is borrowed; this borrow ends before anything is entered.
        let inner = unsafe { &mut *store };
        let definition = self.reference(inner)?;
        inner.check_usable()?;
        if inner.activation.is_active() {
            return Err(UsageError::Nested.into());
        }
        let ty = inner.function_type(definition).0;
        let mut results = vec![Val::I32(0); ty.results.len()];
        let CallTarget::Guest(target) = self.entry(inner) else {
            // SAFETY: the store is borrowed, and the function is its own.
            unsafe { self.call_host(store, params, &mut results)? };
            return Ok(CallProgress::Finished(results));
        };
        check_values(inner, ty, params, &results)?;
        // SAFETY: the link zone has cells for each function with an entry stub; the parameters
        // are as many as the type has.
        unsafe { write_values(inner, params, cells(&target), target.ordinal)? };
        // SAFETY: the store is borrowed; the target is its own, its arguments are
        // checked and in its cells.
        unsafe {
            let deadline = inner.begin_outermost()?;
            span!(TRACE, "call");
            let suspendable = Suspendable::begin(store, suspends);
            let outcome = enter::call_prepared(store, &target);
            drop(suspendable);
            progress(store, definition, deadline, outcome)
        }
    }
}

impl<T: 'static> Store<T> {
    /// Goes on with the suspended guest. If it is suspended before the call of a host function,
    /// that function is called, with the data that the store has by now.
    ///
    /// # Errors
    /// If there is no suspended guest; else as [`Func::call_suspendable`].
    ///
    /// # Panics
    /// As [`Func::call`].
    ///
    /// # Examples
    ///
    /// See [`Func::call_suspendable`] and [`Caller::suspend_before`](crate::Caller::suspend_before).
    pub fn resume(&mut self) -> Result<CallProgress> {
        resume_until(self.as_context_mut(), None, Suspends::Ends)
    }

    /// Goes on with a guest that is suspended before the call of a host function, with this
    /// instead of the call: its results, or an error that it fails with. An
    /// [`Exception`](crate::Exception) may be caught by the guest.
    ///
    /// # Errors
    /// If there is no guest suspended before a call; if the results are not of the function's
    /// type: the guest stays suspended then. Else as [`Func::call_suspendable`].
    ///
    /// # Panics
    /// As [`Func::call`].
    ///
    /// # Examples
    ///
    /// See [`Store::suspended`].
    pub fn resume_with(&mut self, results: Result<&[Val]>) -> Result<CallProgress> {
        resume_until(self.as_context_mut(), Some(results), Suspends::Ends)
    }

    /// Gives the suspended guest up, if there is one: its frames are forgotten, and its memory stays
    /// as it is. Guests of the store can be called again then.
    ///
    /// # Examples
    ///
    /// See [`InterruptHandle::suspend`](crate::InterruptHandle::suspend).
    pub fn abandon(&mut self) {
        suspend::abandon(&mut self.as_context_mut().0.inner);
    }

    /// Where the store's guest is suspended; `None` if it is not.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Caller, Engine, Linker, Module, Result, Store};
    /// use pagefork::{SuspendedAt, Val};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module
    ///     (import "host" "ask" (func $ask (param i32) (result i32)))
    ///     (func (export "run") (result i32) (call $ask (i32.const 7))))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "ask", |mut caller: Caller<'_, ()>, _: i32| -> Result<i32> {
    ///     Err(caller.suspend_before())
    /// })?;
    /// let mut store = Store::new(&engine, ());
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// run.call_suspendable(&mut store, &[])?;
    ///
    /// let suspended = store.suspended().expect("the host function asked for it");
    /// assert_eq!(suspended.at(), SuspendedAt::BeforeHostCall);
    /// assert!(suspended.host_function().is_some());
    /// let answer = suspended.arguments()[0].i32().expect("it is one") + 1;
    /// let progress = store.resume_with(Ok(&[Val::I32(answer)]))?;
    /// assert!(matches!(&progress, CallProgress::Finished(it) if it[0].i32() == Some(8)));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn suspended(&self) -> Option<SuspendedCall> {
        let inner = self.inner();
        let suspended = inner.suspended.as_ref().filter(|suspended| !suspended.of_task)?;
        let at = match (suspended.kind, suspended.host_function) {
            (_, Some(_)) => SuspendedAt::BeforeHostCall,
            (Suspension::Interrupt, None) => SuspendedAt::InterruptionPoint,
            (_, None) => SuspendedAt::AfterHostCall,
        };
        let definition = suspended.host_function.map(|index| FuncRef::new(HOST_ORDINAL, index));
        let arguments = definition.map(|definition| {
            let cells = saved_cells(inner, suspended);
            let params = inner.function_type(definition).0.params.iter().enumerate();
            let value = |(i, ty): (usize, &ValType)| {
                // SAFETY: the save area has a cell for each argument of the pending call.
                let cell = unsafe { cells.add(i).read() };
                Val::from_cell(cell, *ty, inner, suspended.ordinal)
            };
            params.map(value).collect()
        });
        let host_function =
            definition.and_then(|definition| Func::from_reference(inner, definition));
        Some(SuspendedCall { at, host_function, arguments: arguments.unwrap_or_default() })
    }
}

impl<T: 'static> StoreContextMut<'_, T> {
    /// As [`Caller::suspend_before`](crate::Caller::suspend_before), for the host function that
    /// runs.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{AsContextMut, CallProgress, Caller, Engine, Linker, Module, Result, Store};
    ///
    /// /// What host functions share: each takes a number from the data, or waits for one.
    /// fn take<T: 'static>(mut store: impl AsContextMut<Data = Vec<T>>) -> Result<T> {
    ///     let mut store = store.as_context_mut();
    ///     match store.data_mut().pop() {
    ///         Some(number) => Ok(number),
    ///         None => {
    ///             assert!(store.can_suspend());
    ///             Err(store.suspend_before())
    ///         }
    ///     }
    /// }
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "next" (func $next (result i32)))
    ///     (func (export "run") (result i32) (call $next)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// linker.func_wrap("host", "next", |caller: Caller<'_, Vec<i32>>| -> Result<i32> { take(caller) })?;
    /// let mut store = Store::new(&engine, Vec::new());
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// assert!(matches!(run.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    /// store.data_mut().push(7);
    /// assert!(matches!(store.resume()?, CallProgress::Finished(_)));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn suspend_before(&mut self) -> Error {
        match suspend::check_ends_suspended(&self.0.inner.activation) {
            Ok(()) => UsageError::PutOff.into(),
            Err(error) => error.into(),
        }
    }

    /// As [`Caller::suspend_after`](crate::Caller::suspend_after), for the host function that runs.
    ///
    /// # Errors
    /// As of [`Caller::suspend_after`](crate::Caller::suspend_after).
    ///
    /// # Examples
    ///
    /// See [`Func::call_suspendable`].
    pub fn suspend_after(&mut self) -> Result<()> {
        let inner = &mut self.0.inner;
        suspend::check_ends_suspended(&inner.activation)?;
        suspend::request(inner);
        Ok(())
    }

    /// As [`Caller::can_suspend`](crate::Caller::can_suspend).
    ///
    /// # Examples
    ///
    /// See [`StoreContextMut::suspend_before`].
    pub fn can_suspend(&self) -> bool {
        suspend::check_ends_suspended(&self.0.inner.activation).is_ok()
    }
}

/// Goes on with the suspended guest of a store, with these results of the host call that it is
/// suspended before, if they are given.
pub(crate) fn resume_until<T: 'static>(
    mut context: StoreContextMut<'_, T>,
    results: Option<Result<&[Val]>>,
    suspends: Suspends,
) -> Result<CallProgress> {
    let store = context.as_ptr();
    // SAFETY: the store is borrowed; this borrow ends before anything is entered.
    let inner = unsafe { &mut *store };
    if inner.activation.is_active() {
        return Err(UsageError::Nested.into());
    }
    inner.check_whole()?;
    let suspended = inner.suspended.clone().ok_or(UsageError::NotSuspended)?;
    if suspended.of_task {
        return Err(UsageError::Suspended.into());
    }
    // What can fail without a change to the guest comes before its results.
    inner.interrupts.clear();
    inner.check_watched()?;
    let deadline = inner.begin_timeout(suspended.rest)?;
    let results = match (suspended.host_function, results) {
        (None, Some(_)) => return Err(UsageError::NoResultsWanted.into()),
        (Some(index), Some(Ok(results))) => {
            give_results(inner, &suspended, index, results)?;
            Some(Ok(()))
        }
        (_, results) => results.map(|results| results.map(|_| ())),
    };
    // SAFETY: the store is borrowed, no guest is entered, and the guest's frames are where it was
    // suspended or where a copy has put them.
    unsafe {
        let call = || suspended.host_function.map(|index| suspend::make_call(store, index));
        let result = match results.map(HostCallOutcome::Returned).or_else(call) {
            None => Ok(()),
            Some(HostCallOutcome::Returned(result)) => result,
            Some(HostCallOutcome::PutOff | HostCallOutcome::Suspended) => {
                return progress(store, suspended.function, deadline, Ok(CallOutcome::Suspended));
            }
        };
        if (*store).is_broken() {
            // By the host function.
            suspend::abandon(&mut *store);
            return result.and(Err(Trap::without_backtrace((*store).broken_by()).into()));
        }
        span!(TRACE, "call");
        let outcome = go_on(store, &suspended, result, suspends);
        progress(store, suspended.function, deadline, outcome)
    }
}

/// Puts results where a guest that waits before a host call finds them.
///
/// # Errors
/// If they are not of the function's type.
fn give_results(
    store: &mut StoreGroup,
    suspended: &Suspended,
    index: u32,
    results: &[Val],
) -> Result<()> {
    let ty = store.function_type(FuncRef::new(HOST_ORDINAL, index)).0;
    let (expected, found) = (ty.results.len(), results.len());
    if expected != found {
        return Err(UsageError::ValueCount { what: "results", expected, found }.into());
    }
    for (i, (value, ty)) in results.iter().zip(&ty.results).enumerate() {
        value.check_type(store, *ty, || format!("result {i}"))?;
    }
    let params = ty.params.len();
    let values = results.iter().map(|value| value.to_cell(store, suspended.ordinal));
    let values: Vec<Cell> = values.collect::<Result<_>>()?;
    store.note_writer();
    let cells = saved_cells(store, suspended);
    for i in 0..params.max(found) {
        let value = values.get(i).copied().unwrap_or_default();
        // SAFETY: the save area has a cell for each argument and each result of the call.
        unsafe { cells.add(i).write(value) };
    }
    if let Some(suspended) = &mut store.suspended {
        suspended.host_function = None;
    }
    Ok(())
}

/// # Safety
/// The store is borrowed by the caller, the pointer with the provenance of the whole; its guest is
/// suspended, and what it waits for has come to `result`.
unsafe fn go_on(
    store: *mut StoreGroup,
    suspended: &Suspended,
    result: Result<()>,
    suspends: Suspends,
) -> Result<CallOutcome> {
    // SAFETY: by this function's contract.
    unsafe {
        let landing = suspend::deliver(store, result);
        let landing = landing.inspect_err(|_| suspend::abandon(&mut *store))?;
        let resume = || {
            (*store).suspended = None;
            (*store).update_due();
            suspend::resume(store, suspended, landing, suspends)
        };
        match (*store).is_hooked {
            true => {
                let target = (*store).target(suspended.function);
                call_hook::around_suspended(store, &target, resume)
            }
            false => resume(),
        }
    }
}

fn saved_cells(store: &StoreGroup, suspended: &Suspended) -> *mut Cell {
    let save_area = suspend::save_area(store.instance(suspended.ordinal));
    save_area.wrapping_add(save::CELLS as usize).cast()
}

/// What a call of `function` has come to.
///
/// # Safety
/// The store is borrowed by the caller, and `function` is a guest's of it.
unsafe fn progress(
    store: *mut StoreGroup,
    function: FuncRef,
    deadline: Option<Deadline>,
    outcome: Result<CallOutcome, Error>,
) -> Result<CallProgress> {
    // SAFETY: by this function's contract the store is borrowed, and its guest was left.
    let inner = unsafe { &mut *store };
    match outcome? {
        CallOutcome::Suspended => {
            let suspended = inner.suspended.as_mut().expect("the guest is suspended");
            suspended.function = function;
            suspended.rest = deadline.as_ref().map(Deadline::rest);
            Ok(CallProgress::Suspended)
        }
        CallOutcome::Finished => {
            let target = inner.target(function);
            let ty = inner.function_type(function).0;
            let mut results = vec![Val::I32(0); ty.results.len()];
            // SAFETY: the function has finished, so its results are in its cells.
            unsafe { read_results(inner, ty, &mut results, cells(&target), target.ordinal) };
            Ok(CallProgress::Finished(results))
        }
    }
}
