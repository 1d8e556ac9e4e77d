//! Traps that the hardware raises. A signal is a trap only if the program counter
//! is in guest code or a thunk *and* the address is in a stack guard of the
//! store's slots, or in a memory of theirs at or beyond its current size;
//! everything else is passed on to the previous handler of the signal. Pages that get their contents when
//! they are touched come first, for guests and the host alike; where a memory has not grown as far, a touch
//! is left to be a trap.
//!
//! # Safety
//!
//! The handler runs anywhere. It reads what its own thread's store does not change
//! while a guest runs: the list of instances, their code and bounds. While host
//! code changes the list, `Activation::changing` is set, and the handler leaves it
//! alone.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};
use pagefork_pages::{FaultPlace, lift_protection, serve_fault, stand_in};

use crate::base::error::SystemError;
use crate::base::trap::TrapCode;
use crate::run::{enter, signal_return};
use crate::store::activation::Activation;
use crate::store::group::StoreGroup;
use crate::store::thread;

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

/// What handled each of [`SIGNALS`] before.
static PREVIOUS: OnceLock<[libc::sigaction; 4]> = OnceLock::new();

/// Which of [`SIGNALS`] had a handler that was to be called once (a bit each),
/// and was.
static USED_UP: AtomicU8 = AtomicU8::new(0);

/// `si_code` of a SIGBUS for a page that cannot be read.
const BUS_ADRERR: c_int = 2;
/// `si_code` of a SIGSEGV for a page whose protection forbids it.
const SEGV_ACCERR: c_int = 2;
/// What the processor's error code of a page fault has if it was a write.
const FAULT_WRITE: i64 = 2;

/// Installs the handlers, once a process.
///
/// # Errors
/// If the system refuses.
pub(crate) fn install() -> Result<(), SystemError> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        signal_return::prepare();
        // The previous handlers are known before ours can need them.
        let mut previous = [const { MaybeUninit::<libc::sigaction>::zeroed() }; 4];
        for (signal, previous) in SIGNALS.into_iter().zip(&mut previous) {
            // SAFETY: only asks.
            checked(unsafe { libc::sigaction(signal, ptr::null(), previous.as_mut_ptr()) })?;
        }
        // SAFETY: each was written above, and zeros are a value of the type.
        let previous = previous.map(|previous| unsafe { previous.assume_init() });
        let previous = PREVIOUS.get_or_init(|| previous);
        for (signal, previous) in SIGNALS.into_iter().zip(previous) {
            // SAFETY: the handler is async-signal-safe, see above.
            checked(unsafe { libc::sigaction(signal, &own_action(previous), ptr::null_mut()) })?;
        }
        pagefork_pages::stand_in_is_called();
        pagefork_pages::lift_protection_is_called();
        pagefork_pages::serve_fault_is_called();
        Ok(())
    });
    result.map_err(|code| SystemError::SignalHandler(io::Error::from_raw_os_error(code)))
}

/// Signals (by number) that have a handler without `SA_ONSTACK` in this process. If one comes
/// while a guest runs, the handler runs on the guest's stack: what it leaves there stays until
/// another tenant has the slot, and if no room is left there, the process ends.
///
/// It asks the system once for each signal, so call it in tests or after start, not for each
/// request.
///
/// # Examples
///
/// ```
/// assert_eq!(pagefork::handlers_on_guest_stacks(), []);
/// ```
pub fn handlers_on_guest_stacks() -> Vec<i32> {
    let runs_there = |&signal: &c_int| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks; zeros are a value of the type, should the call fail.
        let action = unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        is_handled && action.sa_flags & libc::SA_ONSTACK == 0
    };
    (1..=libc::SIGRTMAX()).filter(runs_there).collect()
}

/// Our handler in the place of `previous`.
fn own_action(previous: &libc::sigaction) -> libc::sigaction {
    let mut action = *previous;
    action.sa_sigaction = on_signal as *const () as usize;
    // Blocked signals are what the previous handler wants; ours needs none.
    action.sa_flags = libc::SA_SIGINFO
        | libc::SA_ONSTACK
        | previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    action
}

fn checked(result: c_int) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// # Safety
/// Called by the kernel alone.
unsafe extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives valid structures; errno is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        // What was sent says nothing about the instruction that it came at.
        let sent = is_sent(&*info);
        let (code, address) = ((*info).si_code, (*info).si_addr().addr());
        let raised = RaisedSignal { signal, code, address };
        let answer = if sent {
            SignalAnswer::NotOurs
        } else if is_served(raised, is_write(&*context.cast())) {
            SignalAnswer::Again
        } else {
            continue_as_trap(raised, &mut *context.cast())
        };
        match answer {
            SignalAnswer::Trapped => {
                *libc::__errno_location() = errno;
                signal_return::go_on_at(&*context.cast());
            }
            SignalAnswer::Again => {}
            SignalAnswer::NotOurs => {
                let stands_in = !sent && is_unreadable(raised) && stand_in(raised.address);
                if !stands_in {
                    pass_on(signal, info, context);
                }
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// What an instruction has raised.
#[derive(Clone, Copy)]
struct RaisedSignal {
    signal: c_int,
    /// Its `si_code`.
    code: c_int,
    address: usize,
}

/// What comes of a signal.
enum SignalAnswer {
    /// The context goes on in the thunk for traps.
    Trapped,
    /// The instruction is made again.
    Again,
    /// It is not a guest's.
    NotOurs,
}

/// # Safety
/// They are what the kernel gave to this thread.
unsafe fn continue_as_trap(raised: RaisedSignal, context: &mut ucontext_t) -> SignalAnswer {
    let activation = thread::current();
    if activation.is_null() {
        return SignalAnswer::NotOurs;
    }
    // SAFETY: what runs on this thread stays valid until it has left, which is
    // not before this handler returns.
    let activation = unsafe { &*activation };
    if !activation.is_active() || activation.changing.load(Ordering::Relaxed) {
        return SignalAnswer::NotOurs;
    }
    let registers = &mut context.uc_mcontext.gregs;
    let pc = registers[libc::REG_RIP as usize] as usize;
    // SAFETY: an active store is valid, and neither the guest nor, as was checked,
    // host code changes it now.
    let store = unsafe { &*activation.store };
    let code = match wait_for_page(activation, store, raised, pc) {
        Touched::Here => return SignalAnswer::Again,
        Touched::Absent => Some(TrapCode::PageAbsent),
        Touched::Otherwise => classify(store, raised, pc),
    };
    let Some(code) = code else { return SignalAnswer::NotOurs };
    let caller = if is_first_instruction(store, pc) {
        let top = registers[libc::REG_RSP as usize] as usize;
        // SAFETY: a function that was just called has its return address on top of
        // the stack.
        unsafe { *ptr::with_exposed_provenance::<usize>(top) }
    } else {
        0
    };
    let frame = registers[libc::REG_RBP as usize];
    let mut set = |register: c_int, value: usize| registers[register as usize] = value as i64;
    set(libc::REG_RDI, (&raw const *activation).expose_provenance());
    set(libc::REG_RSI, code as usize);
    set(libc::REG_RDX, frame as usize);
    set(libc::REG_RCX, pc);
    set(libc::REG_R8, caller);
    set(libc::REG_RSP, activation.host_sp);
    set(libc::REG_RIP, enter::thunks().trapped);
    SignalAnswer::Trapped
}

/// What a touch of an absent page came to.
enum Touched {
    /// The page is here: the instruction is made again.
    Here,
    /// It did not come.
    Absent,
    /// The signal has another reason.
    Otherwise,
}

/// As often an instruction is made again at one address. When a page has come, once is enough; more
/// often, and the page cannot be read for another reason.
const TOUCHES_MAX: u32 = 8;

/// Waits for the page that a guest has touched, if it is absent. Only guest code waits here: host
/// code, which may hold locks, has pages come before it touches them.
fn wait_for_page(
    activation: &Activation,
    store: &StoreGroup,
    raised: RaisedSignal,
    pc: usize,
) -> Touched {
    let address = raised.address;
    if !store.absence.is_possible || !is_unreadable(raised) || store.code_at(pc).is_none() {
        return Touched::Otherwise;
    }
    let mut instances = store.instances.iter();
    let instance = instances.find(|instance| instance.bounds.slot().contains(&address));
    match instance.and_then(|instance| instance.slot.wait_for_fault(address)) {
        Some(Ok(())) => {
            let (last, count) = activation.touched.get();
            let count = if last == address { count + 1 } else { 0 };
            activation.touched.set((address, count));
            if count < TOUCHES_MAX { Touched::Here } else { Touched::Otherwise }
        }
        Some(Err(absent)) => {
            activation.absent.set(Some(absent));
            Touched::Absent
        }
        None => Touched::Otherwise,
    }
}

/// Whether a signal was sent by a process (`kill`, `tgkill`, `sigqueue`, timers), not raised by
/// an instruction.
fn is_sent(info: &siginfo_t) -> bool {
    info.si_code <= 0
}

/// Why the guest traps, if it does.
fn classify(store: &StoreGroup, raised: RaisedSignal, pc: usize) -> Option<TrapCode> {
    let RaisedSignal { signal, address, .. } = raised;
    let code = store.code_at(pc);
    if code.is_none() && !enter::thunks().contains(pc) {
        return None;
    }
    let listed = code.and_then(|(instance, offset)| instance.module.trap_at(offset));
    if signal == libc::SIGILL || signal == libc::SIGFPE {
        return listed;
    }
    let mut places = store.instances.iter().map(|instance| instance.bounds.place(address));
    match places.find(|place| *place != FaultPlace::Other)? {
        FaultPlace::StackGuard => Some(TrapCode::StackOverflow),
        FaultPlace::MemoryBeyond => listed,
        FaultPlace::MemoryWithin if is_unreadable(raised) => Some(TrapCode::ImageUnreadable),
        _ => None,
    }
}

/// Whether an instruction has written to memory.
fn is_write(context: &ucontext_t) -> bool {
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & FAULT_WRITE != 0
}

/// Gives a page contents that gets them when it is touched, or makes one writable that may not be
/// written so that writes to it are noticed. Whether that was done.
fn is_served(raised: RaisedSignal, is_write: bool) -> bool {
    let address = raised.address;
    match (raised.signal, raised.code) {
        (libc::SIGSEGV, SEGV_ACCERR) => is_write && lift_protection(address),
        (libc::SIGBUS, BUS_ADRERR) => serve_fault(address, is_write),
        _ => false,
    }
}

/// Whether a page that is there cannot be read: also one that was refused, or memory that is broken.
fn is_unreadable(raised: RaisedSignal) -> bool {
    raised.signal == libc::SIGBUS && [BUS_ADRERR, libc::BUS_MCEERR_AR].contains(&raised.code)
}

/// Whether a function begins at `pc`: its caller's frame pointer is still there,
/// and nothing of its own frame.
fn is_first_instruction(store: &StoreGroup, pc: usize) -> bool {
    match store.code_at(pc) {
        Some((instance, offset)) => {
            let range = instance.module.code().range_at(offset);
            range.is_some_and(|range| range.start == offset)
        }
        None => enter::thunks().called_by_guests().any(|thunk| thunk == pc),
    }
}

/// Does what would have happened without our handler.
///
/// # Safety
/// As [`on_signal`].
unsafe fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let index = SIGNALS.iter().position(|known| *known == signal);
    let (Some(index), Some(previous)) = (index, PREVIOUS.get()) else { return };
    let previous = &previous[index];
    let mut handler = previous.sa_sigaction;
    if previous.sa_flags & libc::SA_RESETHAND != 0
        && handler != libc::SIG_DFL
        && handler != libc::SIG_IGN
        && USED_UP.fetch_or(1 << index, Ordering::Relaxed) & 1 << index != 0
    {
        handler = libc::SIG_DFL;
    }
    // SAFETY: the structures are the kernel's; a handler has the type that its
    // flags say.
    unsafe {
        let sent = is_sent(&*info);
        match handler {
            libc::SIG_IGN if sent => {}
            // An instruction that raises an ignored signal ends the process, too.
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::signal(signal, libc::SIG_DFL);
                if sent {
                    // Pending until this handler returns.
                    libc::raise(signal);
                }
                // Else the instruction raises it again.
            }
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
            }
            handler => {
                type Handler = unsafe extern "C" fn(c_int);
                std::mem::transmute::<usize, Handler>(handler)(signal);
            }
        }
        // Rust's own handler gives way to the default one, so that the instruction
        // ends the process when it faults again. None does if the signal was sent:
        // the process goes on, and its guests need our handler.
        let mut now = std::mem::zeroed::<libc::sigaction>();
        let given_way = handler != libc::SIG_DFL
            && handler != libc::SIG_IGN
            && libc::sigaction(signal, ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_DFL;
        if sent && given_way {
            libc::sigaction(signal, &own_action(previous), ptr::null_mut());
        }
    }
}
