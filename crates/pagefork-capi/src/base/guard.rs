//! Calls of C's functions that nothing unwinds out of: an exception that one of them throws finds these frames
//! before anything is unwound, and ends the process there. What is below are frames of guests and of the
//! engine, which are no exception's to pass.
//!
//! Functions of the host that guests call directly have such a frame already: see `ForeignFunction`. Those with
//! values are called without one, as it takes half a nanosecond of six: what they throw is caught, and ends the
//! process, once their own frames and those of the library above them are unwound.

use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::mem;

global_asm!(
    ".pushsection .text.pagefork_guards,\"ax\",@progbits",
    // Calls its sixth argument with the five before.
    ".p2align 4",
    ".globl pagefork_guard_sixth",
    ".hidden pagefork_guard_sixth",
    ".type pagefork_guard_sixth,@function",
    "pagefork_guard_sixth:",
    ".cfi_startproc",
    // Relative to the program counter, in 4 bytes.
    ".cfi_personality 0x1b, {end_unwinding}",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call r9",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size pagefork_guard_sixth, . - pagefork_guard_sixth",
    // Calls what comes after the arguments in registers, all of which it passes on.
    ".p2align 4",
    ".globl pagefork_guard_registers",
    ".hidden pagefork_guard_registers",
    ".type pagefork_guard_registers,@function",
    "pagefork_guard_registers:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {end_unwinding}",
    "sub rsp, 8",
    ".cfi_def_cfa_offset 16",
    "call qword ptr [rsp + 16]",
    "add rsp, 8",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
    ".size pagefork_guard_registers, . - pagefork_guard_registers",
    ".popsection",
    end_unwinding = sym end_unwinding,
);

unsafe extern "C" {
    fn pagefork_guard_sixth();
    fn pagefork_guard_registers();
}

/// The personality of these frames.
extern "C" fn end_unwinding(_: c_int, _: c_int, _: u64, _: *mut c_void, _: *mut c_void) -> c_int {
    eprintln!(
        "pagefork: a function of C's threw an exception, or ended its thread; it must return"
    );
    std::process::abort()
}

/// What calls its sixth argument, a function, with the five before, as a function of this type.
///
/// # Safety
/// `F` is a function of C's whose arguments are six words. The last one is a function which takes those before, or
/// the first of them, and returns as `F` does.
#[inline(always)]
pub(crate) unsafe fn calling_sixth<F: Copy>() -> F {
    const { assert!(size_of::<F>() == size_of::<unsafe extern "C" fn()>()) };
    // SAFETY: by this function's contract: the guard is called as such a function, and calls the other.
    unsafe { mem::transmute_copy(&(pagefork_guard_sixth as unsafe extern "C" fn())) }
}

/// What calls the function that comes after its arguments, as a function of this type.
///
/// # Safety
/// `F` is a function of C's whose arguments but the last are in registers, among them all six for words. The last
/// one is a function which takes those before, or the first of them of each kind, and returns as `F` does.
#[inline(always)]
pub(crate) unsafe fn calling_last<F: Copy>() -> F {
    const { assert!(size_of::<F>() == size_of::<unsafe extern "C" fn()>()) };
    // SAFETY: by this function's contract: the guard is called as such a function, and calls the other.
    unsafe { mem::transmute_copy(&(pagefork_guard_registers as unsafe extern "C" fn())) }
}
