//! What compiled code, assembly and the signal handler read of a store.

use std::any::Any;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32};

use pagefork_layout::link::activation as contract;
use pagefork_pages::AbsentPage;

use crate::base::cell::Cell;
use crate::base::error::Error;
use crate::base::frames::WasmBacktrace;
use crate::base::trap::TrapCode;
use crate::store::frame::EntryFrame;
use crate::store::frame::Landing;
use crate::store::frame::Thunks;
use crate::store::group::StoreGroup;

/// What compiled code, the assembly and the signal handler read of a store: the
/// link zone of each instance points to its store's activation.
///
/// Invariant: `host_sp` is zero exactly when no guest frame of the store is on
/// any stack of this thread; else it is the address of the innermost
/// [`EntryFrame`].
#[repr(C)]
pub(crate) struct Activation {
    pub(crate) host_sp: usize,
    pub(crate) guest_sp: usize,
    pub(crate) guest_base: usize,
    /// The array of bases, by ordinal.
    pub(crate) bases: *const usize,
    pub(crate) stack_top: usize,
    host_call: usize,
    interrupt: usize,
    trap: usize,
    /// Code and base of what an indirect call across instances must call.
    pub(crate) resolved: [usize; 2],
    /// Fuel that is left; below zero once it is used up.
    pub(crate) fuel: i64,
    pub(crate) memory_move: usize,
    pub(crate) memory_set: usize,
    // The contract with compiled code ends here.
    /// The store, with the provenance of the outermost entry.
    pub(crate) store: *mut StoreGroup,
    /// Ordinal of the instance in whose slot the stack in use lies.
    pub(crate) stack_owner: u32,
    /// Set while the list of instances changes, so that the signal handler
    /// leaves it alone.
    pub(crate) changing: AtomicBool,
    /// Why the guest was left, until the embedder is told.
    pub(crate) parked: Option<LeaveReason>,
    /// Counts down to the suspension of the guest; 0: never.
    pub(crate) suspend_countdown: u64,
    /// Whether the host function that runs now asked for the suspension of its
    /// caller.
    pub(crate) suspend_requested: bool,
    /// Whether the guest is to let others run, in this turn of its.
    pub(crate) yields: bool,
    /// Whether its interruption points are to look at that anew.
    pub(crate) yields_again: bool,
    /// Whether who called is ready to see the guest suspended.
    pub(crate) suspendable: bool,
    /// Whether that is the embedder, whose call ends with it.
    pub(crate) ends_suspended: bool,
    /// The cells of the host function that the embedder has called and that may wait; null if
    /// there is none.
    pub(crate) waits_in: *mut Cell,
    /// Where the guest goes on that catches an exception.
    pub(crate) landing: Landing,
    /// What is due: bits of the store's [`Interrupts`](crate::store::interrupt::Interrupts).
    pub(crate) due: *const AtomicU32,
    /// What a direct host call that does not just go on needs besides its verdict: the save
    /// area, or the landing.
    pub(crate) direct_place: *mut u8,
    /// The thread that is known to have written to the store's slots since they were
    /// reset, by its [number](crate::store::thread::number); 0 for none.
    pub(crate) writer: u64,
    /// The page that did not come, of a guest that traps for it.
    pub(crate) absent: std::cell::Cell<Option<AbsentPage>>,
    /// The address of the last touch of an absent page, and how often it was touched in vain.
    pub(crate) touched: std::cell::Cell<(usize, u32)>,
}

/// What is carried over guest frames to the embedder.
pub(crate) enum LeaveReason {
    /// The guest trapped.
    Trap(TrapCode, WasmBacktrace),
    /// A host function failed.
    Error(Error),
    /// A host function panicked.
    Panic(Box<dyn Any + Send>),
}

const _: () = {
    assert!(offset_of!(Activation, host_sp) == contract::HOST_SP as usize);
    assert!(offset_of!(Activation, guest_sp) == contract::GUEST_SP as usize);
    assert!(offset_of!(Activation, guest_base) == contract::GUEST_BASE as usize);
    assert!(offset_of!(Activation, bases) == contract::BASES as usize);
    assert!(offset_of!(Activation, stack_top) == contract::STACK_TOP as usize);
    assert!(offset_of!(Activation, host_call) == contract::HOST_CALL as usize);
    assert!(offset_of!(Activation, interrupt) == contract::INTERRUPT as usize);
    assert!(offset_of!(Activation, trap) == contract::TRAP as usize);
    assert!(offset_of!(Activation, resolved) == contract::RESOLVED as usize);
    assert!(offset_of!(Activation, fuel) == contract::FUEL as usize);
    assert!(offset_of!(Activation, memory_move) == contract::MEMORY_MOVE as usize);
    assert!(offset_of!(Activation, memory_set) == contract::MEMORY_SET as usize);
    assert!(offset_of!(Activation, store) == contract::SIZE as usize);
};

impl Activation {
    pub(crate) fn new(thunks: &Thunks, due: *const AtomicU32) -> Self {
        Self {
            host_sp: 0,
            guest_sp: 0,
            guest_base: 0,
            bases: ptr::null(),
            stack_top: 0,
            host_call: thunks.host_call,
            interrupt: thunks.interrupt,
            trap: thunks.trap,
            resolved: [0; 2],
            fuel: 0,
            memory_move: thunks.bulk.plain[0],
            memory_set: thunks.bulk.plain[1],
            store: ptr::null_mut(),
            stack_owner: 0,
            changing: AtomicBool::new(false),
            parked: None,
            suspend_countdown: 0,
            suspend_requested: false,
            yields: false,
            yields_again: false,
            suspendable: false,
            ends_suspended: false,
            waits_in: ptr::null_mut(),
            landing: Landing::default(),
            due,
            direct_place: ptr::null_mut(),
            writer: 0,
            absent: std::cell::Cell::new(None),
            touched: std::cell::Cell::new((0, 0)),
        }
    }

    /// The page that did not come, for a trap of that kind.
    pub(crate) fn take_cause(&self, code: TrapCode) -> Option<AbsentPage> {
        self.absent.take().filter(|_| code == TrapCode::PageAbsent)
    }

    /// Forgets the last run: no guest is entered, and its end is not reported.
    pub(crate) fn forget_run(&mut self) {
        debug_assert!(!self.is_active(), "a guest runs");
        self.parked = None;
        self.suspend_countdown = 0;
        self.suspend_requested = false;
        self.yields = false;
        self.yields_again = false;
        self.suspendable = false;
        self.ends_suspended = false;
        self.writer = 0;
    }

    /// Whether guest frames lie below the caller.
    pub(crate) fn is_active(&self) -> bool {
        self.host_sp != 0
    }

    /// Whether host functions run between the guest's frames: one was called by
    /// the guest and entered it again.
    ///
    /// # Safety
    /// The guest is entered.
    pub(crate) unsafe fn is_nested(&self) -> bool {
        let entry = ptr::with_exposed_provenance::<EntryFrame>(self.host_sp);
        // SAFETY: `host_sp` is the entry frame of the innermost entry.
        unsafe { (*entry).outer_host_sp != 0 }
    }
}
