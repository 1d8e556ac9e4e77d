//! What a thread needs to enter guests: a signal stack, and the end of its own stack.

#[cfg(target_env = "gnu")]
use std::arch::{asm, global_asm};
use std::cell::{Cell, RefCell};
#[cfg(target_env = "gnu")]
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

use crate::base::error::{Error, SystemError};
use crate::base::trap::{Trap, TrapCode};
use crate::store::activation::Activation;

/// Bytes of the host's stack that must be left when a guest is entered: room for
/// what host functions call.
const HOST_STACK_RESERVE: usize = 128 << 10;

/// Bytes of the stack that signal handlers run on, without its guard.
const SIGNAL_STACK_SIZE: usize = 128 << 10;

/// Bytes of guard below it.
const SIGNAL_STACK_GUARD: usize = 4096;

/// What this thread needs in order to enter guests, and which one it runs.
#[repr(C)]
struct ThreadState {
    /// Guests are entered freely while the host's stack pointer is above this.
    /// The largest number until the thread has its signal stack, so that one
    /// comparison finds out both.
    stack_limit: Cell<usize>,
    /// Lowest and highest address of the thread's stack, once known.
    stack: Cell<(usize, usize)>,
    /// The activation that runs, or null.
    current: Cell<*const Activation>,
    /// Tells this thread from all others; 0 until it is first asked for.
    number: Cell<u64>,
}

// Without a destructor and constant: access is an addition, also from a signal handler.
//
// It is not among those of `thread_local!`, since these are found by a call: in a shared library it is made, which
// may allocate, and elsewhere, where the linker takes it out, there is still no register that it
// would not have changed.
#[cfg(target_env = "gnu")]
global_asm!(
    ".pushsection .tdata.pagefork_thread,\"awT\",@progbits",
    ".p2align 3",
    ".globl pagefork_thread",
    ".hidden pagefork_thread",
    ".type pagefork_thread,@object",
    "pagefork_thread:",
    ".quad -1",
    ".zero {SIZE} - 8",
    ".size pagefork_thread, {SIZE}",
    ".popsection",
    SIZE = const size_of::<ThreadState>(),
);

#[cfg(target_env = "gnu")]
const _: () = assert!(offset_of!(ThreadState, stack_limit) == 0);

/// What there is of this thread.
#[cfg(target_env = "gnu")]
#[inline(always)]
fn this_thread() -> &'static ThreadState {
    let place: *const ThreadState;
    // SAFETY: the first word of a thread's block is its own address, and the offset is that of
    // `pagefork_thread`, which is a `ThreadState` as it is in the beginning: its first word all ones, all
    // others zero. It is there as long as the thread, and stays with it: it cannot be shared.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + pagefork_thread@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, nomem, nostack),
        );
        &*place
    }
}

/// What there is of this thread. Libraries that are opened while the program runs may not have the other way to
/// it everywhere.
#[cfg(not(target_env = "gnu"))]
#[inline]
fn this_thread() -> &'static ThreadState {
    thread_local! {
        static THREAD: ThreadState = const {
            ThreadState {
                stack_limit: Cell::new(usize::MAX),
                stack: Cell::new((0, 0)),
                current: Cell::new(ptr::null()),
                number: Cell::new(0),
            }
        };
    }
    // SAFETY: it is there as long as the thread, as it has no destructor, and stays with it: it cannot be shared.
    THREAD.with(|thread| unsafe { &*ptr::from_ref(thread) })
}

thread_local! {
    static SIGNAL_STACK: RefCell<Option<SignalStack>> = const { RefCell::new(None) };
}

/// Makes sure that this thread can enter a guest: that it has a signal stack,
/// and room left on its own.
///
/// # Errors
/// The trap `StackOverflow` if the host's stack is nearly used up; a system
/// error if no signal stack can be had.
#[inline]
pub(crate) fn check_stack() -> Result<(), Error> {
    let marker = 0u8;
    let stack_pointer = &raw const marker as usize;
    if stack_pointer > this_thread().stack_limit.get() {
        return Ok(());
    }
    check_stack_slowly(stack_pointer)
}

/// Whether this is the thread `number` and could enter a guest without further ado.
#[inline]
pub(crate) fn is_ready(number: u64) -> bool {
    let marker = 0u8;
    let stack_pointer = &raw const marker as usize;
    let thread = this_thread();
    stack_pointer > thread.stack_limit.get() && number == thread.number.get()
}

#[cold]
fn check_stack_slowly(stack_pointer: usize) -> Result<(), Error> {
    if this_thread().stack_limit.get() == usize::MAX {
        prepare()?;
    }
    let thread = this_thread();
    let (limit, (low, high)) = (thread.stack_limit.get(), thread.stack.get());
    // On a stack that is not the thread's (a coroutine's), nothing is known.
    let known = (low..high).contains(&stack_pointer);
    if known && stack_pointer <= limit {
        return Err(Trap::without_backtrace(TrapCode::StackOverflow).into());
    }
    Ok(())
}

/// The number of this thread: never 0, and no other thread's.
#[inline]
pub(crate) fn number() -> u64 {
    match this_thread().number.get() {
        0 => number_anew(),
        number => number,
    }
}

#[cold]
fn number_anew() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    this_thread().number.set(number);
    number
}

/// The activation that this thread runs, or null. Async-signal-safe on threads
/// that entered a guest before.
pub(crate) fn current() -> *const Activation {
    this_thread().current.get()
}

/// Says which activation runs from now on; returns the one before.
#[inline]
pub(crate) fn set_current(activation: *const Activation) -> *const Activation {
    this_thread().current.replace(activation)
}

fn prepare() -> Result<(), Error> {
    let prepared = SIGNAL_STACK.try_with(|own| {
        let mut own = own.borrow_mut();
        if own.is_none() {
            *own = Some(SignalStack::install()?);
        }
        Ok::<(), SystemError>(())
    });
    // At the end of a thread, its destructors have taken the signal stack away.
    prepared.unwrap_or(Err(SystemError::ThreadEnds))?;
    let (low, high) = stack_of_this_thread()?;
    let reserve = HOST_STACK_RESERVE.min((high - low) / 4);
    let thread = this_thread();
    thread.stack.set((low, high));
    thread.stack_limit.set(low + reserve);
    Ok(())
}

fn stack_of_this_thread() -> Result<(usize, usize), SystemError> {
    // SAFETY: the attributes are initialised by the first call, and destroyed
    // once if it succeeded.
    unsafe {
        let mut attributes = std::mem::zeroed();
        let code = libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
        if code != 0 {
            return Err(SystemError::StackUnknown(std::io::Error::from_raw_os_error(code)));
        }
        let (mut low, mut size) = (ptr::null_mut(), 0);
        let code = libc::pthread_attr_getstack(&attributes, &mut low, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        match code {
            0 => Ok((low as usize, low as usize + size)),
            code => Err(SystemError::StackUnknown(std::io::Error::from_raw_os_error(code))),
        }
    }
}

/// The stack that this thread's signal handlers run on: a stack overflow leaves
/// no room on the one that overflowed.
struct SignalStack {
    /// Start of the mapping: the guard.
    start: *mut libc::c_void,
}

impl SignalStack {
    const MAPPED: usize = SIGNAL_STACK_GUARD + SIGNAL_STACK_SIZE;

    fn install() -> Result<Self, SystemError> {
        let failed = |error: std::io::Error| SystemError::SignalStack(error);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping; the stack registered is its upper part, which
        // lives until the destructor has taken it back.
        unsafe {
            let start = mm::mmap_anonymous(ptr::null_mut(), Self::MAPPED, access, flags);
            // If a later step fails, the destructor unmaps.
            let own = Self { start: start.map_err(|error| failed(error.into()))? };
            mm::mprotect(own.start, SIGNAL_STACK_GUARD, MprotectFlags::empty())
                .map_err(|error| failed(error.into()))?;
            let stack =
                libc::stack_t { ss_sp: own.stack(), ss_flags: 0, ss_size: SIGNAL_STACK_SIZE };
            match libc::sigaltstack(&stack, ptr::null_mut()) {
                0 => Ok(own),
                _ => Err(failed(std::io::Error::last_os_error())),
            }
        }
    }

    fn stack(&self) -> *mut libc::c_void {
        self.start.wrapping_byte_add(SIGNAL_STACK_GUARD)
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        this_thread().stack_limit.set(usize::MAX);
        // SAFETY: the mapping is ours, and no handler runs on it: this is the
        // thread that it belongs to. Another stack registered since stays.
        unsafe {
            let mut registered = std::mem::zeroed::<libc::stack_t>();
            libc::sigaltstack(ptr::null(), &mut registered);
            if registered.ss_sp == self.stack() && registered.ss_flags & libc::SS_DISABLE == 0 {
                registered.ss_flags = libc::SS_DISABLE;
                libc::sigaltstack(&registered, ptr::null_mut());
            }
            libc::munmap(self.start, Self::MAPPED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered() -> libc::stack_t {
        // SAFETY: only reads what is registered.
        unsafe {
            let mut stack = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(ptr::null(), &mut stack), 0);
            stack
        }
    }

    #[test]
    fn each_thread_begins_with_a_state_of_its_own() {
        fn begins() -> usize {
            let thread = this_thread();
            let first = ptr::from_ref(thread).addr();
            assert_eq!((thread.stack_limit.get(), thread.stack.get()), (usize::MAX, (0, 0)));
            assert_eq!((thread.current.get(), thread.number.get()), (ptr::null(), 0));
            assert_ne!(number(), 0);
            assert_eq!(
                (number(), ptr::from_ref(this_thread()).addr()),
                (thread.number.get(), first)
            );
            first
        }
        std::thread::scope(|scope| {
            let outer = scope.spawn(|| {
                // This thread is there as long as the other.
                let own = begins();
                let other = std::thread::spawn(begins).join().unwrap();
                (own, other)
            });
            let (own, other) = outer.join().unwrap();
            assert_ne!(own, other);
        });
    }

    #[test]
    fn a_thread_that_enters_gets_one_signal_stack() {
        std::thread::spawn(|| {
            check_stack().unwrap();
            let first = registered();
            assert_eq!(first.ss_size, SIGNAL_STACK_SIZE);
            check_stack().unwrap();
            assert_eq!(registered().ss_sp, first.ss_sp);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn little_host_stack_is_a_stack_overflow() {
        fn descend(depth: usize) -> Result<(), Error> {
            let frame = std::hint::black_box([0u8; 4096]);
            check_stack()?;
            let result = if depth == 0 { Ok(()) } else { descend(depth - 1) };
            std::hint::black_box(frame);
            result
        }
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        let result = thread.spawn(|| descend(1_000).map_err(|error| error.to_string())).unwrap();
        assert!(result.join().unwrap().unwrap_err().contains("call stack exhausted"));
    }
}
