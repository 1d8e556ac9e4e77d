//! Signals of page faults, handled in the thread that takes them.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

use nix::libc::siginfo_t;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// What is done about a fault at an address: it must be async-signal-safe, and afterwards the
/// instruction is made again.
pub(crate) type Handler = dyn Fn(u64);

thread_local! {
    /// Whose faults this thread handles.
    static HANDLED: Cell<Option<(u64, u64, *const Handler)>> = const { Cell::new(None) };
}

thread_local! {
    /// How many this thread has taken.
    static COUNT: Cell<u32> = const { Cell::new(0) };
}

/// How many faults of this thread have raised a signal since [`count_signals`], whoever handled it: the kernel counts none of
/// them.
pub(crate) fn signal_count() -> u32 {
    COUNT.get()
}

/// Who handled these signals before: Pagefork, or nobody.
static PREVIOUS: [OnceLock<SigAction>; 2] = [OnceLock::new(), OnceLock::new()];
const SIGNALS: [Signal; 2] = [Signal::SIGBUS, Signal::SIGSEGV];

/// While it lives, faults of this thread in a range are handled by a function.
pub(crate) struct Handled {
    _handler: Box<Handler>,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

/// Counts signals of faults from now on, and hands them on: Pagefork's are seen only if it has an engine already.
pub(crate) fn count_signals() {
    for (signal, previous) in SIGNALS.iter().zip(&PREVIOUS) {
        previous.get_or_init(|| {
            let flags = SaFlags::SA_SIGINFO | SaFlags::SA_ONSTACK | SaFlags::SA_NODEFER;
            let action = SigAction::new(SigHandler::SigAction(on_signal), flags, SigSet::empty());
            // SAFETY: the handler is async-signal-safe.
            unsafe { sigaction(*signal, &action) }.expect("a handler")
        });
    }
}

/// Has faults of this thread in a range of addresses handled by a function: SIGBUS and SIGSEGV.
///
/// # Panics
/// If those of another range are already.
pub(crate) fn handle_signals(range: Range<u64>, handler: Box<Handler>) -> Handled {
    count_signals();
    let before = HANDLED.replace(Some((range.start, range.end, &raw const *handler)));
    assert!(before.is_none(), "a thread handles the faults of one range");
    Handled { _handler: handler, _thread: PhantomData }
}

impl Drop for Handled {
    fn drop(&mut self) {
        HANDLED.set(None);
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid structure, and the signals are those of faults.
    let address = unsafe { (*info).si_addr() }.addr() as u64;
    COUNT.set(COUNT.get().wrapping_add(1));
    if let Some((start, end, handler)) = HANDLED.get()
        && (start..end).contains(&address)
    {
        // SAFETY: `Handled` owns it, and takes it from here when it goes.
        unsafe { (*handler)(address) };
        return;
    }
    let previous = SIGNALS.iter().position(|&known| known as c_int == signal);
    match previous.and_then(|index| PREVIOUS[index].get()).map(SigAction::handler) {
        Some(SigHandler::SigAction(previous)) => previous(signal, info, context),
        // By default the process ends, at the instruction that is made again.
        _ => {
            let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
            // SAFETY: the default has no handler.
            let _ = Signal::try_from(signal).map(|signal| unsafe { sigaction(signal, &default) });
        }
    }
}
