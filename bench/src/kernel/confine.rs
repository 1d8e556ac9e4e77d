//! Refusals of system calls, as containers and sandboxes have them: by a filter of this process's calls, which nothing
//! takes back.

#![allow(unsafe_code)]

use std::io;

use nix::libc;

/// What is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Counting events, page faults among them.
    PerfEvents,
    /// Asking for pages by what they are: private, written.
    PageMapScan,
    /// Telling of page faults, and protection against writes.
    Userfaults,
}

/// The number that this request has among those of `ioctl`: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u32 = 0xc060_6610;

// Where a filter finds these in what it is given.
const NUMBER: u32 = 0;
const SECOND_ARGUMENT: u32 = 24;

const fn step(code: u32, then: u8, otherwise: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: then, jf: otherwise, k: value }
}

const fn load(offset: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Goes on with the next step if that is the value, and passes over so many of them otherwise.
const fn unless_equal(value: u32, passes: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, passes, value)
}

const fn answer(value: u32) -> libc::sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

/// Has the system refuse this from now on, for this thread and those that it starts.
///
/// # Errors
/// If the system has no such filters.
pub(crate) fn refuse(refusals: &[Refusal]) -> io::Result<()> {
    let refused = answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut steps = Vec::new();
    for refusal in refusals {
        steps.push(load(NUMBER));
        match refusal {
            Refusal::PerfEvents => steps.push(unless_equal(libc::SYS_perf_event_open as u32, 1)),
            Refusal::Userfaults => steps.push(unless_equal(libc::SYS_userfaultfd as u32, 1)),
            Refusal::PageMapScan => {
                steps.push(unless_equal(libc::SYS_ioctl as u32, 3));
                steps.push(load(SECOND_ARGUMENT));
                steps.push(unless_equal(PAGEMAP_SCAN, 1));
            }
        }
        steps.push(refused);
    }
    steps.push(answer(libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let said = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: numbers, and a program of so many steps, which the kernel copies.
    unsafe {
        said(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        said(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
    }
}

/// Makes this process one of a user without rights, as one that such a user has started: what is in `/proc` of it is its own.
///
/// # Errors
/// If it may not.
pub(crate) fn become_nobody() -> io::Result<()> {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: calls with numbers alone.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setgid(NOBODY) != 0
            || libc::setuid(NOBODY) != 0
            || libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}
