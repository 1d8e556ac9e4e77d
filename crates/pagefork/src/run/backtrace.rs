//! Capturing backtraces: frames are walked by their frame pointers.

use std::sync::Arc;

use pagefork_layout::code::CodeKind;
use pagefork_layout::state::save;

use crate::base::frames::{Frame, WasmBacktrace};
use crate::run::{enter, suspend};
use crate::store::frame::EntryFrame;
use crate::store::group::StoreGroup;

/// Added to the stack pointer of a guest that waits at an interruption point while host code
/// runs that may enter guests: below it lie its registers, above which is its frame pointer.
pub(crate) const AT_INTERRUPTION_POINT: usize = 1;

/// The frame pointer of a guest that waits in a host call, or at an interruption point.
fn frame_pointer(guest_sp: usize) -> usize {
    match guest_sp & AT_INTERRUPTION_POINT {
        0 => guest_sp,
        _ => guest_sp - AT_INTERRUPTION_POINT + enter::INTERRUPT_BLOCK as usize,
    }
}

impl WasmBacktrace {
    /// The frames of these instructions, then those from the frame pointer `frame`
    /// up, and on in the entries around this one.
    ///
    /// # Safety
    /// `frame` is a frame pointer of a guest of `store` that does not run now, or
    /// 0, and `entry` its innermost entry frame, or 0.
    pub(crate) unsafe fn from_frames(
        store: &StoreGroup,
        instructions: &[usize],
        frame: usize,
        entry: usize,
    ) -> Self {
        let mut trace = Self::default();
        for pc in instructions {
            trace.add(store, *pc, 0);
        }
        // SAFETY: by this function's contract.
        unsafe { trace.add_frames(store, frame, entry) };
        trace
    }

    /// The frames of all guests of the store that wait for host functions: first those that were
    /// entered, then those of a guest that was suspended by the call of a task.
    ///
    /// # Safety
    /// If a guest of the store is entered, it waits in a host call.
    pub(crate) unsafe fn of_waiting(store: &StoreGroup) -> Self {
        let mut trace = Self::default();
        let activation = &store.activation;
        if activation.is_active() {
            // SAFETY: by this function's contract `guest_sp` is the frame pointer of the thunk.
            unsafe { trace.add_frames(store, activation.guest_sp, activation.host_sp) };
        }
        if let Some(suspended) = store.suspended.as_ref().filter(|suspended| suspended.of_task) {
            let top = suspend::stack_top(store.instance(suspended.stack_owner));
            let distance = suspend::saved(store.instance(suspended.ordinal), save::FP);
            // SAFETY: the guest does not run: its frames are on its stack, up to its entry.
            unsafe { trace.add_frames(store, top - distance as usize, 0) };
        }
        trace
    }

    /// Adds the frames from the frame pointer `frame` up, and on in the entries around this one.
    ///
    /// # Safety
    /// As of [`WasmBacktrace::from_frames`].
    unsafe fn add_frames(&mut self, store: &StoreGroup, frame: usize, entry: usize) {
        let (mut frame, mut entry) = (frame_pointer(frame), entry);
        loop {
            while frame != 0 {
                // SAFETY: frame pointers are kept in every frame: the caller's,
                // then the return address.
                let (next, return_address) =
                    unsafe { *std::ptr::with_exposed_provenance::<(usize, usize)>(frame) };
                // A call's instruction ends where its return address begins.
                self.add(store, return_address - 1, 1);
                frame = next;
            }
            if entry == 0 {
                return;
            }
            // SAFETY: entries that have not been left are intact, as the caller
            // promises of the innermost, and each leads to the one around it.
            let around = unsafe { &*std::ptr::with_exposed_provenance::<EntryFrame>(entry) };
            if around.outer_host_sp == 0 {
                return;
            }
            frame = frame_pointer(around.outer_guest_sp);
            entry = around.outer_host_sp;
        }
    }

    /// Adds the frame of the instruction at `pc`, whose source is noted `ahead`
    /// bytes behind it.
    fn add(&mut self, store: &StoreGroup, pc: usize, ahead: u32) {
        let Some((instance, offset)) = store.code_at(pc) else {
            debug_assert!(pc == 0 || enter::thunks().contains(pc), "unknown code in a frame");
            return;
        };
        let module = &instance.module;
        let Some(range) = module.code().range_at(offset) else { return };
        let (CodeKind::Function(function) | CodeKind::Checked(function)) = range.kind else {
            return;
        };
        if function < module.info().imported_functions {
            return;
        }
        let ordinal = store.ordinal_of_instance(instance);
        let latest = self.frames().last().filter(|latest| latest.instance == ordinal);
        let latest = latest.map(|latest| Arc::clone(&latest.source));
        self.push(|| Frame {
            store: store.id.number(),
            source: latest.unwrap_or_else(|| Arc::new(module.clone())),
            instance: ordinal,
            function,
            offset: offset - range.start,
            noted: (range.start, offset + ahead),
        });
    }
}
