//! Words that threads wait on until another thread changes them. Everything here can be done in a
//! signal handler.

use std::ptr;
use std::time::Instant;

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Sleeps until [`wake`] is called for the word, unless it has another value than `expected`, or
/// until the deadline. It may also return for nothing. `false`: the deadline has passed.
pub(crate) fn wait(word: &AtomicU32, expected: u32, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return false;
    }
    let timeout = libc::timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are borrowed, and the kernel only reads them.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, expected, &raw const timeout)
    };
    true
}

/// Wakes all threads that wait on the word.
pub(crate) fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let none = ptr::null::<libc::timespec>();
    // SAFETY: the address alone is used.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, none) };
}
