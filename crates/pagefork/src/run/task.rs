//! Calls of guests that wait: each poll of the future runs the guest until it ends, or until it
//! has to wait, when it is suspended and is nothing but pages.
//!
//! # Safety
//!
//! A task holds a pointer to a store that its maker has borrowed for as long as it lives. While
//! the guest waits for a host function, that one's future has the store, and so the task leaves it
//! alone; it knows by itself what it needs then.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{mem, ptr};

use pagefork_layout::state::save;
use pagefork_layout::trap::TrapCode;

use crate::base::cell::Cell;
use crate::base::error::{Result, UsageError};
use crate::base::trace::span;
use crate::base::trap::Trap;
use crate::run::call_hook;
use crate::run::enter::{self, CallOutcome};
use crate::run::suspend::{self, Suspendable, Suspends};
use crate::store::frame::Target;
use crate::store::group::StoreGroup;
use crate::store::interrupt::{AtEnd, Deadline, Interrupts};
use crate::store::pending::PendingCall;

/// A call of a guest's function that waits, or has ended.
pub(crate) struct Task {
    store: *mut StoreGroup,
    interrupts: Arc<Interrupts>,
    target: Target,
    state: TaskState,
    deadline: Option<Deadline>,
}

enum TaskState {
    /// The guest runs.
    Entered,
    Waiting(Waiting),
    Ended,
}

/// What a suspended guest waits for.
struct Waiting {
    /// The host function; `None` if it only lets others run.
    call: Option<Box<dyn PendingCall>>,
    /// Where the results go.
    cells: *mut Cell,
    /// Base of the instance that has called.
    base: usize,
}

// SAFETY: the store can be used from any thread, by one at a time; the other pointers are to its
// slots, which are the same on all threads. Whether the embedder's data may go to another thread
// is asked where the task is made.
unsafe impl Send for Task {}

impl Task {
    /// Calls a function, which runs until it ends or waits: then there is a task. `arguments` puts
    /// its arguments into the cells.
    ///
    /// # Errors
    /// As [`enter::call`].
    ///
    /// # Panics
    /// As [`enter::call`].
    ///
    /// # Safety
    /// The store is borrowed for as long as the task lives, the pointer with the provenance of the
    /// whole; `target` is a function of an instance of it; and `arguments` writes values of the
    /// function's type.
    #[inline]
    pub(crate) unsafe fn begin(
        store: *mut StoreGroup,
        target: &Target,
        context: &mut Context<'_>,
        arguments: impl FnOnce(*mut StoreGroup) -> Result<()>,
    ) -> Result<Option<Box<Self>>> {
        // SAFETY: by this function's contract the store is borrowed for us, and its interrupts
        // stay the same as long as a guest of it is entered.
        unsafe {
            (*store).check_may_block()?;
            // Most calls take nothing but to enter the guest: what a task needs is made for those
            // that wait.
            if enter::is_outermost(store) && (*store).turns.are_plain() {
                arguments(store)?;
                span!(TRACE, "call");
                let polling = Polling::begin(&*Arc::as_ptr(&(*store).interrupts), context);
                let outcome = enter::call_outermost_suspendable(store, target);
                drop(polling);
                if let Ok(CallOutcome::Finished) = outcome {
                    return Ok(None);
                }
                return Self::new(store, target).begun(context, outcome);
            }
            Self::begin_otherwise(store, target, context, arguments)
        }
    }

    /// As [`Task::begin`], in a store that needs more than to be entered.
    ///
    /// # Safety
    /// As of [`Task::begin`].
    #[inline(never)]
    unsafe fn begin_otherwise(
        store: *mut StoreGroup,
        target: &Target,
        context: &mut Context<'_>,
        arguments: impl FnOnce(*mut StoreGroup) -> Result<()>,
    ) -> Result<Option<Box<Self>>> {
        // SAFETY: by this function's contract, which is that of both.
        unsafe {
            let mut task = Self::new(store, target);
            let outcome = task.start(context, arguments);
            task.begun(context, outcome)
        }
    }

    /// # Safety
    /// As of [`Task::begin`].
    unsafe fn new(store: *mut StoreGroup, target: &Target) -> Self {
        // SAFETY: by this function's contract the store is borrowed for us.
        let interrupts = unsafe { Arc::clone(&(*store).interrupts) };
        Self { store, interrupts, target: *target, state: TaskState::Entered, deadline: None }
    }

    /// The task, if it waits once its guest was left.
    ///
    /// # Errors
    /// What has ended the call.
    #[cold]
    fn begun(
        mut self,
        context: &mut Context<'_>,
        outcome: Result<CallOutcome>,
    ) -> Result<Option<Box<Self>>> {
        match self.left(context, outcome) {
            Poll::Pending => Ok(Some(Box::new(self))),
            Poll::Ready(result) => result.map(|()| None),
        }
    }

    /// Asks what the guest waits for, and runs it until it ends or waits again.
    ///
    /// # Errors
    /// As [`enter::call`].
    ///
    /// # Panics
    /// As [`enter::call`]; if the call has ended.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let TaskState::Waiting(waiting) = &mut self.state else {
            panic!("a call was polled after its end");
        };
        // First of all, so that no request gets lost.
        self.interrupts.wake_at_request(context.waker());
        let mut result = Ok(());
        if !self.interrupts.is_noted()
            && let Some(call) = &mut waiting.call
        {
            // SAFETY: the store is borrowed for us, its guest is suspended, and the cells are
            // those in which it finds what the call comes to.
            let polled = unsafe { call.poll(context, self.store, waiting.cells, waiting.base) };
            match polled {
                Poll::Ready(ready) => result = ready,
                Poll::Pending => {
                    // A call that it has waited for in between has taken that back when it ended.
                    self.interrupts.wake_at_request(context.waker());
                    if self.interrupts.is_noted() {
                        context.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
        // Its future goes before the store is used again.
        waiting.call = None;
        // SAFETY: the store is borrowed for us, and its guest is suspended.
        let outcome = unsafe { self.resume(context, result) };
        self.left(context, outcome)
    }

    /// Notes how the guest was left.
    ///
    /// # Errors
    /// What has ended the call.
    fn left(
        &mut self,
        context: &mut Context<'_>,
        outcome: Result<CallOutcome>,
    ) -> Poll<Result<()>> {
        match outcome {
            Ok(CallOutcome::Suspended) => {
                self.note_suspension();
                self.interrupts.wake_at_request(context.waker());
                if self.interrupts.is_noted() || self.yields() {
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
            outcome => {
                self.state = TaskState::Ended;
                self.deadline = None;
                self.interrupts.forget_waker();
                // What a host function has begun is nothing that anything waits for any more.
                // SAFETY: the store is borrowed for us, and no guest of it is entered.
                let pending = unsafe { (*self.store).pending.take() };
                drop(pending);
                Poll::Ready(outcome.map(|_| ()))
            }
        }
    }

    /// The store.
    pub(crate) fn store(&self) -> *mut StoreGroup {
        self.store
    }

    fn yields(&self) -> bool {
        matches!(&self.state, TaskState::Waiting(waiting) if waiting.call.is_none())
    }

    /// Enters the guest.
    ///
    /// # Safety
    /// As of [`Task::begin`].
    unsafe fn start(
        &mut self,
        context: &mut Context<'_>,
        arguments: impl FnOnce(*mut StoreGroup) -> Result<()>,
    ) -> Result<CallOutcome> {
        let store = self.store;
        // SAFETY: the store is borrowed for us.
        unsafe {
            (*store).check_usable()?;
            if (*store).activation.is_active() {
                // It cannot wait, but what it calls may be ready at once.
                arguments(store)?;
                let _polling = Polling::begin(&self.interrupts, context);
                return enter::call(store, &self.target);
            }
            self.deadline = (*store).begin_outermost()?;
            if (*store).turns.may_yield() {
                (*store).clear_registers();
            }
            arguments(store)?;
            let _turn = self.turn()?;
            let outcome = run_turn(store, context, |context| {
                span!(TRACE, "call");
                let _polling = Polling::begin(&self.interrupts, context);
                let _suspendable = Suspendable::begin(store, Suspends::WithItsTask);
                enter::call_prepared(store, &self.target)
            });
            if outcome.is_err() {
                // The hook may have failed after the guest has begun to wait.
                suspend::abandon(&mut *store);
            }
            outcome
        }
    }

    /// Goes on with a suspended guest, with what its host call has come to.
    ///
    /// # Safety
    /// The store is borrowed for us, and its guest is suspended.
    unsafe fn resume(
        &mut self,
        context: &mut Context<'_>,
        result: Result<()>,
    ) -> Result<CallOutcome> {
        let store = self.store;
        // SAFETY: by this function's contract.
        unsafe {
            if (*store).is_broken() {
                // By a host function.
                suspend::abandon(&mut *store);
                let trap = Trap::without_backtrace((*store).broken_by());
                return result.and(Err(trap.into()));
            }
            let ready = suspend::deliver(store, result);
            let ready = ready.and_then(|landing| Ok((landing, self.turn()?)));
            let (landing, _turn) = ready.inspect_err(|_| suspend::abandon(&mut *store))?;
            let suspended = (*store).suspended.clone().ok_or(UsageError::NotSuspended)?;
            let outcome = run_turn(store, context, |context| {
                span!(TRACE, "call");
                let _polling = Polling::begin(&self.interrupts, context);
                let resume = || {
                    (*store).suspended = None;
                    (*store).update_due();
                    suspend::resume(store, &suspended, landing, Suspends::WithItsTask)
                };
                match (*store).is_hooked {
                    true => call_hook::around_suspended(store, &self.target, resume),
                    false => resume(),
                }
            });
            if outcome.is_err() && !(*store).is_broken() {
                // Its turn may not have been run.
                suspend::abandon(&mut *store);
            }
            outcome
        }
    }

    /// Notes what the guest waits for that has just been suspended.
    fn note_suspension(&mut self) {
        // SAFETY: the store is borrowed for us, and no guest of it is entered.
        let store = unsafe { &mut *self.store };
        let suspended = store.suspended.as_ref().expect("the guest has just been suspended");
        let instance = store.instance(suspended.ordinal);
        let cells = suspend::save_area(instance).wrapping_add(save::CELLS as usize).cast();
        let base = instance.base();
        self.state = TaskState::Waiting(Waiting { call: store.pending.take(), cells, base });
    }

    /// How long the guest may run now.
    fn turn(&self) -> Result<Option<Deadline>> {
        // SAFETY: the store is borrowed for us, and no guest of it is entered.
        let turn = unsafe { (*self.store).turns.interval };
        match turn {
            Some(turn) => Ok(Deadline::after(turn, &self.interrupts, AtEnd::Yield)?),
            None => Ok(None),
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let TaskState::Ended = self.state {
            return;
        }
        // Its future goes before the store is used.
        if let TaskState::Waiting(waiting) = &mut self.state {
            waiting.call = None;
        }
        self.interrupts.forget_waker();
        // SAFETY: the store is borrowed for us. Where the guest is entered that has called this,
        // nothing of the store is suspended or pending.
        unsafe {
            // Who has run the guest has panicked since, if there is any.
            let pending = (*self.store).pending.take();
            drop(pending);
            suspend::abandon(&mut *self.store);
        }
    }
}

/// Runs a guest until it ends or waits: by the embedder's runner, if the store has one.
///
/// # Errors
/// As `turn`; if the runner does not run it.
///
/// # Panics
/// As `turn` and the runner.
///
/// # Safety
/// The store is borrowed by the caller. What `turn` uses can be used on any thread, by one at a
/// time; what can be asked of the embedder's data was asked when the runner was set.
unsafe fn run_turn(
    store: *mut StoreGroup,
    context: &mut Context<'_>,
    turn: impl FnOnce(&mut Context<'_>) -> Result<CallOutcome>,
) -> Result<CallOutcome> {
    // SAFETY: by this function's contract the store is borrowed.
    let Some(runner) = (unsafe { (*store).turns.runner.clone() }) else { return turn(context) };
    // What the guest goes on with was written by this thread, and it may be entered by another.
    // SAFETY: by this function's contract the store is borrowed.
    unsafe { (*store).note_writer() };
    let waker = context.waker();
    let (mut turn, mut outcome) = (SendTurn(Some(turn)), SendTurn(None));
    runner(&mut || {
        // All of it, so that it is as one sent.
        let (turn, outcome) = (&mut turn, &mut outcome);
        if let Some(turn) = turn.0.take() {
            // A context stays with its thread, a waker does not.
            let turn = || turn(&mut Context::from_waker(waker));
            outcome.0 = Some(catch_unwind(AssertUnwindSafe(turn)));
        }
    });
    match outcome.0 {
        Some(Ok(outcome)) => outcome,
        Some(Err(payload)) => resume_unwind(payload),
        None => Err(UsageError::TurnNotRun.into()),
    }
}

/// What a turn is, and what it comes to.
struct SendTurn<T>(T);

// SAFETY: by the contract of `run_turn`, which alone makes it: what a turn comes to is a result,
// and a panic can be sent.
unsafe impl<T> Send for SendTurn<T> {}

/// A call by the embedder of a host function that waits. No guest is around it, but one that waits for the host
/// function that makes it.
pub(crate) struct HostTask {
    store: *mut StoreGroup,
    interrupts: Arc<Interrupts>,
    /// It goes before what the pointers lead to.
    call: Option<Box<dyn PendingCall>>,
    /// Where its results go.
    cells: Box<[Cell]>,
    base: usize,
    _deadline: Option<Deadline>,
}

// SAFETY: as of `Task`.
unsafe impl Send for HostTask {}

/// How a call of a host function has begun.
pub(crate) enum BegunHostCall {
    /// It has returned, and its results are in these cells.
    Returned(Box<[Cell]>),
    Waits(Box<HostTask>),
}

impl HostTask {
    /// Calls a host function with its arguments in these cells, of which it has one for each
    /// argument and for each result, and one at least: their address tells the call from others.
    ///
    /// # Errors
    /// What it fails with.
    ///
    /// # Panics
    /// If it does.
    ///
    /// # Safety
    /// The store is borrowed for as long as the task lives, the pointer with the provenance of the
    /// whole; the function is of it, and the values of its type; `base` is that of an instance of
    /// the store, or 0.
    pub(crate) unsafe fn begin(
        store: *mut StoreGroup,
        function: u32,
        mut cells: Box<[Cell]>,
        base: usize,
        context: &mut Context<'_>,
    ) -> Result<BegunHostCall> {
        // SAFETY: by this function's contract the store is borrowed for us.
        unsafe {
            let interrupts = Arc::clone(&(*store).interrupts);
            let deadline = (*store).begin_host_call()?;
            let function = (*store).host_function_ptr(function);
            let polling = Polling::begin(&interrupts, context);
            let start = cells.as_mut_ptr();
            let outer = mem::replace(&mut (*store).activation.waits_in, start);
            let call = || ((*function).call)(store, start, base);
            let called = catch_unwind(AssertUnwindSafe(call));
            (*store).activation.waits_in = outer;
            drop(polling);
            called.unwrap_or_else(|payload| resume_unwind(payload))?;
            let Some(call) = (*store).pending.take() else {
                return Ok(BegunHostCall::Returned(cells));
            };
            interrupts.wake_at_request(context.waker());
            if interrupts.is_noted() {
                context.waker().wake_by_ref();
            }
            let call = Some(call);
            let task = Self { store, interrupts, call, cells, base, _deadline: deadline };
            Ok(BegunHostCall::Waits(Box::new(task)))
        }
    }

    /// Asks whether the host function is ready; its results are in the cells then.
    ///
    /// # Errors
    /// What it fails with; a trap, if it is interrupted.
    ///
    /// # Panics
    /// If it does.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<&mut [Cell]>> {
        self.interrupts.wake_at_request(context.waker());
        let interrupted = || Trap::without_backtrace(TrapCode::Interrupt).into();
        if self.interrupts.is_noted() {
            return Poll::Ready(Err(interrupted()));
        }
        let call = self.call.as_mut().expect("a call is not polled after its end");
        let (store, cells) = (self.store, self.cells.as_mut_ptr());
        // SAFETY: the store is borrowed for us, and the cells and the base are those of the call.
        match unsafe { call.poll(context, store, cells, self.base) } {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                self.call = None;
                Poll::Ready(result.map(|()| &mut self.cells[..]))
            }
        }
    }

    /// The store.
    pub(crate) fn store(&self) -> *mut StoreGroup {
        self.store
    }
}

impl Drop for HostTask {
    fn drop(&mut self) {
        // Its future goes before the store is used.
        self.call = None;
        self.interrupts.forget_waker();
    }
}

/// While one of these lives, asynchronous host functions find out who polls.
pub(crate) struct Polling<'a> {
    interrupts: &'a Interrupts,
    outer: *mut Context<'static>,
}

impl<'a> Polling<'a> {
    #[inline]
    pub(crate) fn begin(interrupts: &'a Interrupts, context: &mut Context<'_>) -> Self {
        let outer = interrupts.set_task(ptr::from_mut(context).cast());
        Self { interrupts, outer }
    }
}

impl Drop for Polling<'_> {
    #[inline]
    fn drop(&mut self) {
        self.interrupts.set_task(self.outer);
    }
}

/// Begins an asynchronous host function: if it is not ready at once, its guest is going to be
/// suspended.
///
/// # Errors
/// What the host function fails with; if the guest cannot wait.
///
/// # Safety
/// As of [`PendingCall::poll`], in a host call of the store's.
pub(crate) unsafe fn begin_call(
    store: *mut StoreGroup,
    cells: *mut Cell,
    base: usize,
    results: usize,
    mut call: impl PendingCall + 'static,
) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe {
        let task = (*store).interrupts.task();
        // A guest that is suspended for its caller goes on where that says so, and not where a
        // future is ready.
        if task.is_null() || (*store).activation.ends_suspended {
            return Err(UsageError::NotAsync.into());
        }
        // The context is that of the poll in which this guest was entered.
        if let Poll::Ready(result) = call.poll(&mut *task, store, cells, base) {
            return result;
        }
        if (*store).activation.waits_in == cells {
            // Who has called is told by what is pending.
            (*store).pending = Some(Box::new(call));
            return Ok(());
        }
        let activation = &(*store).activation;
        suspend::check_suspendable(activation)?;
        if base != activation.guest_base {
            // A host function of the guest's has called it, and not the guest, which would find its
            // results as those of that one.
            return Err(UsageError::Nested.into());
        }
        suspend::request(&mut *store);
        (*store).pending = Some(Box::new(call));
        for i in 0..results {
            cells.add(i).write(Cell::default());
        }
        Ok(())
    }
}
