//! Entering and leaving the guest. The instructions are in [`x86_64`]; here is
//! what calls them, and what they call on the host stack.
//!
//! # Safety
//!
//! While a guest runs, its store is borrowed by the code that entered it: the assembly and
//! the functions below reach it through `Activation::store`, a raw pointer made
//! from that borrow, which is not used until the entry returns.

#[macro_use]
mod thunks;
mod bulk;
mod direct;
mod registers;
mod x86_64;

pub(crate) use self::direct::{after_direct_call, put_direct_call_off};
pub(crate) use self::registers::{Registers, ints_of};
pub(crate) use self::x86_64::INTERRUPT_BLOCK;

use std::arch::asm;
use std::arch::x86_64::{__m128d, _mm_cvtsd_f64, _mm_set_sd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{ptr, slice};

use pagefork_layout::link::Service;
use pagefork_layout::state::save::{self, Suspension};

use crate::base::cell::Cell;
use crate::base::error::{Error, UsageError};
use crate::base::frames::WasmBacktrace;
use crate::base::trap::{Trap, TrapCode};
use crate::run::services::Stop;
use crate::run::throw::Thrown;
use crate::run::{call_hook, epoch, services, suspend, throw};
use crate::store::activation::{Activation, LeaveReason};
use crate::store::call_hook::HOOKED;
use crate::store::frame::{Landing, Target, Thunks};
use crate::store::group::StoreGroup;
use crate::store::interrupt::Due;
use crate::store::thread;

/// What host code answers the thunk that called it.
const CONTINUE: u32 = 0;
const LEAVE: u32 = 1;
const SUSPEND: u32 = 2;
const CATCH: u32 = 3;

/// How an entry ended.
const FINISHED: u32 = 0;
const LEFT: u32 = 1;
const SUSPENDED: u32 = 2;

#[expect(improper_ctypes, reason = "the assembly looks at the C part of the activation alone")]
unsafe extern "C" {
    static pagefork_thunks_start: u8;
    static pagefork_thunks_end: u8;
    fn pagefork_enter(
        activation: *mut Activation,
        base: usize,
        stack: usize,
        entry: usize,
        code: usize,
    ) -> u32;
    fn pagefork_resume(
        activation: *mut Activation,
        base: usize,
        frame: usize,
        save_area: usize,
        result: u64,
        landing: *const Landing,
    ) -> u32;
    fn pagefork_entered();
    fn pagefork_enter_outermost();
    fn pagefork_host_call();
    fn pagefork_interrupt();
    fn pagefork_trap();
    fn pagefork_trapped();
}

/// Where the outermost function of a suspended guest returns to.
pub(crate) fn entered() -> usize {
    pagefork_entered as *const () as usize
}

/// Where the thunks are.
pub(crate) fn thunks() -> Thunks {
    Thunks {
        start: &raw const pagefork_thunks_start as usize,
        end: &raw const pagefork_thunks_end as usize,
        host_call: pagefork_host_call as *const () as usize,
        interrupt: pagefork_interrupt as *const () as usize,
        trap: pagefork_trap as *const () as usize,
        trapped: pagefork_trapped as *const () as usize,
        bulk: bulk::thunks(),
        direct: direct::thunks(),
    }
}

/// How the guest was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallOutcome {
    /// The function returned; its results are in cells.
    Finished,
    /// The guest is suspended.
    Suspended,
}

/// Calls a guest function whose arguments are in its instance's cells.
///
/// # Errors
/// What makes the guest leave: a trap, or the error of a host function.
///
/// # Panics
/// With the payload of a host function that panicked.
///
/// # Safety
/// - `store` points to the store, exclusively borrowed by the caller, with the
///   provenance of the whole store (embedder's data included).
/// - `target` is a function of an instance of that store, and its arguments are
///   of its type.
#[inline]
pub(crate) unsafe fn call(store: *mut StoreGroup, target: &Target) -> Result<CallOutcome, Error> {
    // SAFETY: by the first clause of this function the store is borrowed for us; the borrows
    // made here end before the guest is entered.
    unsafe {
        if enters_outermost(store) {
            let call = call_outermost::<false>;
            return call(store, target, target.entry, Registers::default())
                .map(|_| CallOutcome::Finished);
        }
        // First of all: the arguments are written already.
        (*store).note_writer();
        thread::check_stack()?;
        let _deadline = (*store).prepare_entry()?;
        enter_telling_hook(store, target)
    }
}

/// # Safety
/// As [`call`].
unsafe fn enter_telling_hook(
    store: *mut StoreGroup,
    target: &Target,
) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract, which is that of `call`.
    unsafe {
        match (*store).is_hooked {
            true => call_hook::around_guest(store, target, || enter(store, target)),
            false => enter(store, target),
        }
    }
}

/// Calls a guest function that may be suspended: as [`call`], once the entry is prepared.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// As [`call`].
///
/// # Safety
/// As [`call`].
pub(crate) unsafe fn call_prepared(
    store: *mut StoreGroup,
    target: &Target,
) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract, which is that of `call`.
    unsafe {
        (*store).begin_run()?;
        enter_telling_hook(store, target)
    }
}

/// Whether a guest of the store is entered by [`call_outermost`].
///
/// # Safety
/// The store is valid.
#[inline]
pub(crate) unsafe fn is_outermost(store: *const StoreGroup) -> bool {
    // SAFETY: by this function's contract the store is valid.
    unsafe {
        let activation = &(*store).activation;
        thread::is_ready(activation.writer)
            && !activation.is_active()
            && (*activation.due).load(Ordering::Relaxed) == 0
    }
}

/// As [`is_outermost`], also of the first call of a thread in a store: it is known to write to the
/// store's slots then.
///
/// # Safety
/// The store is borrowed by the caller.
#[inline(always)]
pub(crate) unsafe fn enters_outermost(store: *mut StoreGroup) -> bool {
    // SAFETY: by this function's contract.
    unsafe { is_outermost(store) || !(*store).activation.is_active() && becomes_outermost(store) }
}

/// As [`is_outermost`], once the thread is ready, and known to write to the store's slots.
///
/// # Safety
/// The store is borrowed by the caller.
#[inline(never)]
unsafe fn becomes_outermost(store: *mut StoreGroup) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        (*store).note_writer();
        thread::check_stack().is_ok() && is_outermost(store)
    }
}

/// Calls a guest function with no guest around it: as [`call`], where [`is_outermost`]
/// says so. `entry` is one of its two entry stubs. Returns a result in registers: as an
/// integer and as a float.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// As [`call`].
///
/// # Safety
/// As [`call`]; [`is_outermost`] has just said yes; and the arguments are where `entry` wants
/// them: in cells, or in `registers`, of which floats are looked at only with `FLOATS`. What is
/// left of their registers is zero, since the guest may save all of it.
#[inline(always)]
pub(crate) unsafe fn call_outermost<const FLOATS: bool>(
    store: *mut StoreGroup,
    target: &Target,
    entry: usize,
    registers: Registers,
) -> Result<(u64, f64), Error> {
    // SAFETY: by this function's contract; where the guest was left, the borrow that `call` demands is
    // ours again.
    unsafe {
        let activation = &raw mut (*store).activation;
        call_outermost_unfinished::<FLOATS>(store, activation, target, entry, registers)
            .map_err(|left| left.reason().unwrap_or_else(|payload| resume_unwind(payload)))
    }
}

/// As [`call_outermost`], of a function whose values are in registers.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// As [`call`].
///
/// # Safety
/// As [`call_outermost`]; the function's type has an entry stub for values in registers.
#[inline(always)]
pub(crate) unsafe fn call_in_registers(
    store: *mut StoreGroup,
    target: &Target,
    registers: Registers,
) -> Result<(u64, f64), Error> {
    // SAFETY: by this function's contract.
    unsafe {
        match registers.has_floats() {
            true => call_outermost::<true>(store, target, target.direct_entry, registers),
            false => call_outermost::<false>(store, target, target.direct_entry, registers),
        }
    }
}

/// As [`call_outermost`], but what ends a call that does not return is left where it is.
/// `activation` leads to the store's.
///
/// # Errors
/// How to get it.
///
/// # Safety
/// As [`call_outermost`].
#[inline(always)]
pub(crate) unsafe fn call_outermost_unfinished<const FLOATS: bool>(
    store: *mut StoreGroup,
    activation: *mut Activation,
    target: &Target,
    entry: usize,
    registers: Registers,
) -> Result<(u64, f64), UnfinishedCall> {
    // SAFETY: by this function's contract.
    let (outcome, int, float) =
        unsafe { enter_outermost::<FLOATS>(store, activation, target, entry, registers) };
    match outcome {
        FINISHED => Ok((int, float)),
        outcome => Err(UnfinishedCall { activation, outcome }),
    }
}

/// A call that has not returned.
pub(crate) struct UnfinishedCall {
    activation: *mut Activation,
    outcome: u32,
}

impl UnfinishedCall {
    /// What has ended the call; the payload of a panic as an error.
    ///
    /// # Safety
    /// The activation's store is borrowed by the caller, and nothing was done with it since.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn reason(self) -> std::thread::Result<Error> {
        // SAFETY: by this function's contract, which is that of `left_or_panicked`.
        let left = unsafe { left_or_panicked(self.activation, self.outcome) }?;
        Ok(left.err().unwrap_or_else(|| UsageError::Suspended.into()))
    }
}

/// As [`call_outermost`] with arguments in cells, where the guest may be suspended.
///
/// # Errors
/// As [`call`].
///
/// # Panics
/// As [`call`].
///
/// # Safety
/// As [`call`]; and [`is_outermost`] has just said yes.
#[inline]
pub(crate) unsafe fn call_outermost_suspendable(
    store: *mut StoreGroup,
    target: &Target,
) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract.
    unsafe {
        (*store).activation.suspendable = true;
        let none = Registers::default();
        let activation = &raw mut (*store).activation;
        let (outcome, ..) = enter_outermost::<false>(store, activation, target, target.entry, none);
        (*store).activation.suspendable = false;
        match outcome {
            FINISHED if is_quiet(&(*store).activation) => Ok(CallOutcome::Finished),
            outcome => left_suspendable(store, target, outcome),
        }
    }
}

/// Whether nothing is due.
///
/// # Safety
/// The activation's store is valid.
#[inline]
unsafe fn is_quiet(activation: &Activation) -> bool {
    // SAFETY: by this function's contract the store is valid, and with it its interrupts.
    unsafe { (*activation.due).load(Ordering::Relaxed) == 0 }
}

/// How a guest was left that may have been suspended.
///
/// # Errors
/// As [`call`].
///
/// # Safety
/// As [`call_outermost_suspendable`], which has just left the guest.
#[cold]
#[inline(never)]
unsafe fn left_suspendable(
    store: *mut StoreGroup,
    target: &Target,
    outcome: u32,
) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract the store is borrowed for us.
    unsafe {
        (*store).activation.suspend_requested = false;
        (*store).interrupts.set_due(Due::Suspension, false);
        match outcome {
            FINISHED => Ok(CallOutcome::Finished),
            SUSPENDED => {
                // Its outermost function is to return to who resumes it, whose entry frame is
                // that of `enter`. The return address is the first that was put on the stack.
                let returns = ptr::with_exposed_provenance_mut::<usize>(target.stack_top - 8);
                returns.write(pagefork_entered as *const () as usize);
                Ok(CallOutcome::Suspended)
            }
            outcome => left(&raw mut (*store).activation, outcome),
        }
    }
}

/// Enters a guest with no guest around it: returns how it was left, and its result in registers.
///
/// # Safety
/// As [`call_outermost`].
#[inline(always)]
unsafe fn enter_outermost<const FLOATS: bool>(
    store: *mut StoreGroup,
    activation: *mut Activation,
    target: &Target,
    entry: usize,
    registers: Registers,
) -> (u32, u64, f64) {
    let Registers { ints, floats, .. } = registers;
    let (outcome, int, vector): (u64, u64, __m128d);
    // SAFETY: the store is borrowed for us, and with it its activation; the guest's stack is unused, as no
    // guest is entered; the assembly enters the function's entry stub and
    // changes the registers that a call changes, and r12 to r15. Every x86-64 processor has SSE2.
    unsafe {
        (*activation).store = store;
        (*activation).stack_top = target.stack_top;
        (*activation).stack_owner = target.ordinal;
        let outer = thread::set_current(activation);
        macro_rules! enter {
            ($($floats:tt)*) => {
                asm!(
                    "call {enter}",
                    enter = sym pagefork_enter_outermost,
                    inlateout("rax") activation => outcome,
                    in("rdi") target.code,
                    in("r10") entry,
                    in("r11") target.stack_top,
                    in("rsi") ints[0],
                    inlateout("rdx") ints[1] => int,
                    in("rcx") ints[2],
                    in("r8") ints[3],
                    in("r9") ints[4],
                    lateout("r12") _,
                    lateout("r13") _,
                    lateout("r14") _,
                    inlateout("r15") target.base => _,
                    $($floats)*
                    clobber_abi("sysv64"),
                )
            };
        }
        match FLOATS {
            true => enter!(
                inlateout("xmm0") _mm_set_sd(floats[0]) => vector,
                in("xmm1") _mm_set_sd(floats[1]),
                in("xmm2") _mm_set_sd(floats[2]),
                in("xmm3") _mm_set_sd(floats[3]),
                in("xmm4") _mm_set_sd(floats[4]),
                in("xmm5") _mm_set_sd(floats[5]),
                in("xmm6") _mm_set_sd(floats[6]),
                in("xmm7") _mm_set_sd(floats[7]),
            ),
            false => enter!(lateout("xmm0") vector,),
        }
        thread::set_current(outer);
    }
    // SAFETY: every x86-64 processor has SSE2.
    (outcome as u32, int, unsafe { _mm_cvtsd_f64(vector) })
}

/// # Safety
/// As [`call`].
#[inline]
unsafe fn enter(store: *mut StoreGroup, target: &Target) -> Result<CallOutcome, Error> {
    // SAFETY: by the contract of `call` the store is borrowed for us.
    let activation = unsafe { &raw mut (*store).activation };
    // SAFETY: by the contract of `call` the store is borrowed for us; the guest's stack is free below GUEST_SP while host code
    // runs, and unused if no guest is entered.
    let outcome = unsafe {
        (*activation).store = store;
        let stack = if (*activation).is_active() {
            (*activation).guest_sp & !15
        } else {
            (*activation).stack_top = target.stack_top;
            (*activation).stack_owner = target.ordinal;
            target.stack_top
        };
        let outer = thread::set_current(activation);
        let outcome = pagefork_enter(activation, target.base, stack, target.entry, target.code);
        thread::set_current(outer);
        outcome
    };
    match outcome {
        FINISHED => Ok(CallOutcome::Finished),
        // SAFETY: the guest was left, so the borrow that `call` demands is ours again.
        _ => unsafe { left(activation, outcome) },
    }
}

/// Continues the suspended guest of a store.
///
/// # Errors
/// As [`call`].
///
/// # Safety
/// - As [`call`], and no guest of the store is entered.
/// - The guest is suspended in `base`'s save area, with its frames on the stack
///   below `activation.stack_top`. If it is suspended in a host call, that has these bits as its
///   first result, or it throws, and goes on at the landing.
pub(crate) unsafe fn resume(
    store: *mut StoreGroup,
    base: usize,
    frame: usize,
    save_area: usize,
    result: u64,
    landing: Option<Landing>,
) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract the store is borrowed for us, and the frames are
    // where the save area says.
    unsafe {
        (*store).begin_run()?;
        let activation = &raw mut (*store).activation;
        (*activation).store = store;
        let outer = thread::set_current(activation);
        let landing = landing.as_ref().map_or(ptr::null(), ptr::from_ref);
        let outcome = pagefork_resume(activation, base, frame, save_area, result, landing);
        thread::set_current(outer);
        match outcome {
            FINISHED => Ok(CallOutcome::Finished),
            _ => left(activation, outcome),
        }
    }
}

/// # Safety
/// The activation's store is borrowed by the caller.
#[cold]
unsafe fn left(activation: *mut Activation, outcome: u32) -> Result<CallOutcome, Error> {
    // SAFETY: by this function's contract.
    unsafe { left_or_panicked(activation, outcome) }
        .unwrap_or_else(|payload| resume_unwind(payload))
}

/// As [`left`], but a panic is given.
///
/// # Safety
/// The activation's store is borrowed by the caller.
unsafe fn left_or_panicked(
    activation: *mut Activation,
    outcome: u32,
) -> std::thread::Result<Result<CallOutcome, Error>> {
    if outcome == SUSPENDED {
        return Ok(Ok(CallOutcome::Suspended));
    }
    // SAFETY: by this function's contract the store is borrowed for us.
    let parked = unsafe { (*activation).parked.take() };
    match parked.expect("who leaves the guest parks the reason") {
        LeaveReason::Trap(code, backtrace) => {
            // SAFETY: by this function's contract the store is borrowed for us.
            let cause = unsafe { (*activation).take_cause(code) };
            Ok(Err(Trap::new(code, backtrace).caused_by(cause).into()))
        }
        LeaveReason::Error(error) => Ok(Err(error)),
        LeaveReason::Panic(payload) => Err(payload),
    }
}

/// What host code answers: in eax, and in rdx where the registers are to be
/// saved if the guest is suspended, or the [`Landing`] if it catches.
#[repr(C)]
struct HostAnswer {
    verdict: u64,
    place: *mut u8,
}

impl HostAnswer {
    const CONTINUE: Self = Self { verdict: CONTINUE as u64, place: ptr::null_mut() };

    /// # Safety
    /// The activation's store is valid.
    #[cold]
    unsafe fn leave(activation: *mut Activation, reason: LeaveReason) -> Self {
        // SAFETY: by this function's contract the store is valid.
        unsafe { (*activation).parked = Some(reason) };
        Self { verdict: LEAVE.into(), place: ptr::null_mut() }
    }

    /// # Safety
    /// The activation's store is valid, and the guest is about to be left; no more `results`
    /// than it has cells.
    #[cold]
    unsafe fn suspend(
        store: *mut StoreGroup,
        base: usize,
        kind: Suspension,
        results: &[Cell],
    ) -> Self {
        // SAFETY: by this function's contract the store is valid.
        let save_area = unsafe { (*store).note_suspension(base, kind) };
        let saved = save_area.wrapping_add(save::CELLS as usize).cast();
        // SAFETY: the save area has room for all cells, which lie elsewhere.
        unsafe { results.as_ptr().copy_to_nonoverlapping(saved, results.len()) };
        Self { verdict: SUSPEND.into(), place: save_area }
    }

    /// What becomes of the guest whose call of a host function is to be made later.
    ///
    /// # Safety
    /// As of [`HostAnswer::suspend`], where the function has these arguments.
    #[cold]
    unsafe fn suspend_before(activation: *mut Activation, function: u32, args: &[Cell]) -> Self {
        // SAFETY: by this function's contract the store is valid.
        unsafe {
            let (store, base) = ((*activation).store, (*activation).guest_base);
            let answer = Self::suspend(store, base, Suspension::HostCall, args);
            let suspended = (*store).suspended.as_mut().expect("it was just noted");
            suspended.host_function = Some(function);
            answer
        }
    }

    /// What becomes of the guest that an exception comes to.
    ///
    /// # Safety
    /// The activation's store is valid, and its guest waits in a host call.
    #[cold]
    unsafe fn thrown(activation: *mut Activation, thrown: Thrown) -> Self {
        // SAFETY: by this function's contract the store is valid.
        unsafe {
            match thrown {
                Thrown::Caught(landing) => {
                    (*activation).landing = landing;
                    let place = (&raw mut (*activation).landing).cast();
                    Self { verdict: CATCH.into(), place }
                }
                Thrown::Uncaught(exception) => {
                    let mut error = Error::from(exception);
                    error.set_backtrace(|| backtrace(activation));
                    Self::leave(activation, LeaveReason::Error(error))
                }
                Thrown::Trap(code) => Self::leave(activation, trapped(activation, code)),
            }
        }
    }
}

/// Runs a host function or a service, on the host stack.
///
/// # Safety
/// Called by the thunk alone: the activation's store is valid, and `cells` has
/// the arguments of the function `index`.
unsafe extern "C" fn on_host_call(
    activation: *mut Activation,
    index: u32,
    cells: *mut Cell,
) -> HostAnswer {
    // SAFETY: the activation belongs to the running store, whose entry keeps it
    // borrowed through this pointer.
    unsafe {
        let store = (*activation).store;
        let base = (*activation).guest_base;
        if index >= HOOKED {
            if index < Service::MemoryGrow as u32 {
                return on_hooked_host_call(activation, index & !HOOKED, cells);
            }
            if let Some(service @ (Service::Throw | Service::Rethrow)) = Service::from_index(index)
            {
                let caller = (*store).ordinal_of(base);
                let thrown = throw::throw(&*activation, &mut *store, caller, service, cells);
                return HostAnswer::thrown(activation, thrown);
            }
            return match services::call(store, base, index, cells) {
                Ok(()) => HostAnswer::CONTINUE,
                Err(stop) => HostAnswer::leave(activation, stopped(activation, stop)),
            };
        }
        let function = (*store).host_function_ptr(index);
        // A panic must not cross the guest's frames, which no unwinder knows.
        let result = catch_unwind(AssertUnwindSafe(|| ((*function).call)(store, cells, base)));
        if matches!(result, Ok(Ok(()))) && goes_on((*activation).due) {
            return HostAnswer::CONTINUE;
        }
        after_host_call(activation, result, index, cells)
    }
}

/// Runs a host function of a store that has a hook.
///
/// # Safety
/// As of [`on_host_call`].
#[cold]
unsafe fn on_hooked_host_call(
    activation: *mut Activation,
    index: u32,
    cells: *mut Cell,
) -> HostAnswer {
    // SAFETY: by this function's contract the store is valid, and its guest waits.
    unsafe {
        let (store, base) = ((*activation).store, (*activation).guest_base);
        let function = &*(*store).host_function_ptr(index);
        let call = || call_hook::around_host_function(store, function, cells, base);
        let result = catch_unwind(AssertUnwindSafe(call));
        if matches!(result, Ok(Ok(()))) && goes_on((*activation).due) {
            return HostAnswer::CONTINUE;
        }
        after_host_call(activation, result, index, cells)
    }
}

/// What becomes of the guest after a host function that it called with cells.
///
/// # Safety
/// As of [`after_host_function`]; the cells are those of the call.
#[cold]
unsafe fn after_host_call(
    activation: *mut Activation,
    result: std::thread::Result<Result<(), Error>>,
    index: u32,
    cells: *mut Cell,
) -> HostAnswer {
    // SAFETY: by this function's contract the store is valid; a function that fails leaves its
    // arguments, one that does not its results.
    unsafe {
        let ty = &(&*(*(*activation).store).host_function_ptr(index)).ty;
        if let Ok(Err(error)) = &result
            && suspend::is_put_off(&(*activation), error)
        {
            let args = slice::from_raw_parts(cells, ty.params.len());
            drop((*(*activation).store).take_raised());
            return HostAnswer::suspend_before(activation, index, args);
        }
        let results = slice::from_raw_parts(cells, ty.results.len());
        after_host_function(activation, result, results)
    }
}

/// Whether the guest just goes on when a host function has returned to it, by what is due in its store.
///
/// # Safety
/// The store is valid.
#[inline]
pub(crate) unsafe fn goes_on(due: *const AtomicU32) -> bool {
    // SAFETY: by this function's contract the store is valid, and with it its interrupts.
    unsafe { (*due).load(Ordering::Relaxed) & Due::AFTER_HOST_CALLS == 0 }
}

/// What becomes of the guest after a host function.
///
/// # Safety
/// The activation's store is valid, and its guest waits in a host call, which has these
/// results if it did not fail.
#[cold]
unsafe fn after_host_function(
    activation: *mut Activation,
    result: std::thread::Result<Result<(), Error>>,
    results: &[Cell],
) -> HostAnswer {
    // SAFETY: by this function's contract the store is valid.
    unsafe {
        let store = (*activation).store;
        let result = match ((*store).take_raised(), result) {
            (Some(error), Ok(Ok(()))) => Ok(Err(error)),
            (raised, result) => {
                // What is dropped may have code of the host's run, which may raise once more.
                drop(raised);
                while let Some(raised) = (*store).take_raised() {
                    drop(raised);
                }
                result
            }
        };
        match result {
            Ok(_) if (*store).is_torn() => {
                HostAnswer::leave(activation, trapped(activation, TrapCode::PageAbsent))
            }
            // Even if the host function ignored the failure, the guest must not go on.
            Ok(Ok(())) if (*store).is_broken() => {
                let code = (*store).broken_by();
                HostAnswer::leave(activation, trapped(activation, code))
            }
            Ok(Ok(())) if (*store).interrupts.is_noted() => {
                HostAnswer::leave(activation, trapped(activation, TrapCode::Interrupt))
            }
            Ok(Ok(())) => match (*store).may_suspend() {
                true => {
                    let base = (*activation).guest_base;
                    HostAnswer::suspend(store, base, Suspension::HostCall, results)
                }
                false => HostAnswer::CONTINUE,
            },
            Ok(Err(error)) if (*store).interrupts.is_noted() && suspend::goes_on_after(&error) => {
                HostAnswer::leave(activation, trapped(activation, TrapCode::Interrupt))
            }
            Ok(Err(error)) => match throw::throw_error(&*activation, &mut *store, error) {
                Ok(thrown) => {
                    // Asked for on the way back from a call that does not return.
                    (*activation).suspend_requested = false;
                    suspend::request_yield_again(&mut *store);
                    HostAnswer::thrown(activation, thrown)
                }
                Err(mut error) => {
                    error.set_backtrace(|| backtrace(activation));
                    HostAnswer::leave(activation, LeaveReason::Error(error))
                }
            },
            Err(payload) => HostAnswer::leave(activation, LeaveReason::Panic(payload)),
        }
    }
}

/// Decides what happens at an interruption point.
///
/// # Safety
/// Called by the thunk alone: the activation's store is valid.
unsafe extern "C" fn on_interrupt(activation: *mut Activation, frame: usize) -> HostAnswer {
    // SAFETY: as in `on_host_call`.
    unsafe {
        let store = (*activation).store;
        if (*store).interrupts.is_noted() {
            let backtrace = WasmBacktrace::from_frames(&*store, &[], frame, (*activation).host_sp);
            return HostAnswer::leave(
                activation,
                LeaveReason::Trap(TrapCode::Interrupt, backtrace),
            );
        }
        if (*store).interrupts.is_epoch_due()
            && let Err(stop) = epoch::reached(activation)
        {
            return HostAnswer::leave(activation, stopped(activation, stop));
        }
        // An earlier call may have been asked too late.
        if (*store).interrupts.take_yield() && (*store).turns.interval.is_some()
            || std::mem::take(&mut (*activation).yields_again)
        {
            suspend::request_yield(&mut *store);
        }
        let may = (*activation).suspend_countdown > 0
            || (*activation).suspend_requested
            || (*store).interrupts.is_suspension_requested();
        if may && (*store).may_suspend() {
            let base = (*activation).guest_base;
            return HostAnswer::suspend(store, base, Suspension::Interrupt, &[]);
        }
        HostAnswer::CONTINUE
    }
}

/// Parks a trap; the thunk leaves the guest then.
///
/// # Safety
/// Called by the thunks alone: the activation's store is valid, `frame` is a
/// frame pointer of its guest, and `pc` the instruction that trapped, or 0 if
/// `frame` is that of a thunk that was called to trap; `caller` is a return
/// address that no frame holds yet, or 0.
unsafe extern "C" fn on_trap(
    activation: *mut Activation,
    code: u32,
    frame: usize,
    pc: usize,
    caller: usize,
) {
    let code = TrapCode::from_number(code as u8).expect("compiled code traps with known codes");
    // SAFETY: as in `on_host_call`.
    unsafe {
        let store = &*(*activation).store;
        // A call's instruction ends where its return address begins.
        let instructions = [pc, caller.saturating_sub(1)];
        let backtrace =
            WasmBacktrace::from_frames(store, &instructions, frame, (*activation).host_sp);
        (*activation).parked = Some(LeaveReason::Trap(code, backtrace));
    }
}

/// # Safety
/// Host code runs that the guest called.
unsafe fn trapped(activation: *mut Activation, code: TrapCode) -> LeaveReason {
    // SAFETY: by this function's contract a host call runs that the guest made.
    LeaveReason::Trap(code, unsafe { backtrace(activation) })
}

/// # Safety
/// As [`trapped`].
#[cold]
unsafe fn stopped(activation: *mut Activation, stop: Stop) -> LeaveReason {
    // SAFETY: this function's contract is that of both.
    unsafe {
        match stop {
            Stop::Trap(code) => trapped(activation, code),
            Stop::Error(mut error) => {
                error.set_backtrace(|| backtrace(activation));
                LeaveReason::Error(error)
            }
            Stop::Panic(payload) => LeaveReason::Panic(payload),
        }
    }
}

/// The frames above a host call.
///
/// # Safety
/// Host code runs that the guest called.
unsafe fn backtrace(activation: *mut Activation) -> WasmBacktrace {
    // SAFETY: during a host call GUEST_SP is the frame pointer of the thunk.
    unsafe {
        let store = &*(*activation).store;
        WasmBacktrace::from_frames(store, &[], (*activation).guest_sp, (*activation).host_sp)
    }
}
