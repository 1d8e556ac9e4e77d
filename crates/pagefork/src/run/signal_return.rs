//! Leaving a signal handler for elsewhere, without `rt_sigreturn`.
//!
//! That call reads the whole state of the processor back from the signal's frame, of which a guest that
//! trapped needs next to nothing, and is two fifths of what a signal takes. What else the kernel has
//! changed for the handler is put back here: the signal mask, the control words of floating-point
//! numbers. Where it has changed what this cannot put back, the handler returns as others do.
//!
//! # Safety
//!
//! The structures are those that the kernel gave to the handler that asks.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
use std::sync::OnceLock;
use std::{mem, ptr};

use libc::{c_int, ucontext_t};

/// Where a frame has the register of protection keys, `None` on a machine without it. With them the
/// kernel lets a handler into all that has the first key, whatever was allowed before.
static PROTECTION_KEYS: OnceLock<Option<usize>> = OnceLock::new();

/// A stack of this kind is none while a handler runs on it; `rt_sigreturn` makes it one again.
const SS_AUTODISARM: c_int = 1 << 31;

/// Asks the processor what a handler has to know.
pub(super) fn prepare() {
    PROTECTION_KEYS.get_or_init(protection_keys);
}

fn protection_keys() -> Option<usize> {
    const FEATURES: u32 = 7;
    const EXTENDED_STATE: u32 = 13;
    const IN_USE: u32 = 1 << 4;
    if __get_cpuid_max(0).0 < EXTENDED_STATE || __cpuid_count(FEATURES, 0).ecx & IN_USE == 0 {
        return None;
    }
    Some(__cpuid_count(EXTENDED_STATE, extended::KEYS).ebx as usize)
}

/// Goes on where `context` says, with its stack pointer and first five arguments; returns if
/// only `rt_sigreturn` can.
///
/// # Safety
/// Called by a handler of a signal, which has nothing to drop; what goes on there expects nothing
/// in other registers.
pub(super) unsafe fn go_on_at(context: &ucontext_t) {
    let state = context.uc_mcontext.fpregs;
    // SAFETY: by this module's contract the state is that of the frame.
    let is_kept = !state.is_null() && unsafe { keys_are_kept(state.cast()) };
    if !is_kept || context.uc_stack.ss_flags & SS_AUTODISARM != 0 {
        return;
    }
    let register = |register: c_int| context.uc_mcontext.gregs[register as usize];
    // SAFETY: the mask is the one of before the signal, in the kernel's size. By this function's
    // contract nothing of this stack is needed after it.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const context.uc_sigmask,
            ptr::null_mut::<libc::sigset_t>(),
            mem::size_of::<u64>(),
        );
        asm!(
            "ldmxcsr [r9]",
            "fldcw [r10]",
            "mov rsp, r11",
            "jmp rax",
            in("r9") &raw const (*state).mxcsr,
            in("r10") &raw const (*state).cwd,
            in("r11") register(libc::REG_RSP),
            in("rax") register(libc::REG_RIP),
            in("rdi") register(libc::REG_RDI),
            in("rsi") register(libc::REG_RSI),
            in("rdx") register(libc::REG_RDX),
            in("rcx") register(libc::REG_RCX),
            in("r8") register(libc::REG_R8),
            options(noreturn),
        )
    }
}

/// Whether the handler may touch what the code before it could, no more and no less.
///
/// # Safety
/// The state is that of a signal's frame.
unsafe fn keys_are_kept(state: *const u8) -> bool {
    match PROTECTION_KEYS.get() {
        Some(None) => true,
        // SAFETY: by this function's contract; a processor that has such keys reads them.
        Some(&Some(place)) => unsafe { extended::keys(state, place) == Some(read_keys()) },
        None => false,
    }
}

/// The keys of now.
///
/// # Safety
/// The processor has protection keys, and the kernel uses them.
unsafe fn read_keys() -> u32 {
    let keys: u32;
    // SAFETY: by this function's contract; it reads a register.
    unsafe {
        asm!("rdpkru", in("ecx") 0, out("eax") keys, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    keys
}

/// The extended state in a signal's frame, as the kernel and the processor lay it out.
mod extended {
    /// The number of the keys' component.
    pub(super) const KEYS: u32 = 9;

    /// What the kernel says of the state, in a part that the processor leaves to it: that it is
    /// extended, and how long it is.
    const MAGIC: (usize, u32) = (464, 0x4650_5853);
    const LENGTH: usize = 480;
    /// Which components are there; others are as after a reset.
    const PRESENT: usize = 512;

    /// The protection keys; `None` if the frame does not tell.
    ///
    /// # Safety
    /// 512 bytes can be read there, and if they say so, as many as they say.
    pub(super) unsafe fn keys(state: *const u8, place: usize) -> Option<u32> {
        // SAFETY: by this function's contract.
        let word = |place| unsafe { state.add(place).cast::<u32>().read_unaligned() };
        if word(MAGIC.0) != MAGIC.1 || (word(LENGTH) as usize) < place + 4 {
            return None;
        }
        match word(PRESENT) & 1 << KEYS {
            0 => Some(0),
            _ => Some(word(place)),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn keys_are_read_where_a_frame_says_that_it_has_them() {
            const KEYS_AT: usize = 576;
            let read = |words: &[(usize, u32)]| {
                let mut state = [0u8; KEYS_AT + 8];
                for &(at, word) in words {
                    state[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                // SAFETY: no length is said that is beyond the array's.
                unsafe { keys(state.as_ptr(), KEYS_AT) }
            };
            let (extended, length) = (MAGIC, (LENGTH, KEYS_AT as u32 + 8));
            let (present, value) = ((PRESENT, 1 << KEYS), (KEYS_AT, 0x5555_5554));
            assert_eq!(read(&[extended, length, present, value]), Some(0x5555_5554));
            assert_eq!(read(&[extended, length, value]), Some(0), "as after a reset");
            assert_eq!(read(&[length, present, value]), None, "not extended");
            assert_eq!(read(&[extended, (LENGTH, KEYS_AT as u32), present, value]), None, "short");
        }
    }
}
