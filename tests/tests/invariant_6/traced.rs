//! A child process that is looked at while it runs: each system call that it makes, or each instruction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// No call that is looked at: by it a child says where what is looked at begins, and where it ends.
pub(crate) const MARK: libc::c_long = libc::SYS_getppid;

pub(crate) fn mark() {
    // SAFETY: a call without arguments, which changes nothing.
    unsafe { libc::syscall(MARK) };
}

/// A child that has stopped. Dropped, it is ended.
pub(crate) struct Traced {
    child: libc::pid_t,
    is_over: bool,
}

/// How a child that went on has stopped.
pub(crate) enum Stopped {
    /// A system call begins or ends, or an instruction has been carried out.
    There,
    /// It has ended with this code.
    Ended(i32),
}

impl Traced {
    /// A child that does `body`, which returns its exit code. `None` where no process may trace another.
    pub(crate) fn new(body: impl FnOnce() -> i32) -> Option<Self> {
        const REFUSED: i32 = 78;
        // SAFETY: this process has no other thread that could hold a lock for ever.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: these concern this child alone, which runs nothing of the parent's at its exit.
            unsafe {
                libc::alarm(100);
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<libc::c_void>(), 0) != 0 {
                    libc::_exit(REFUSED);
                }
                libc::raise(libc::SIGSTOP);
                let code = catch_unwind(AssertUnwindSafe(body));
                libc::_exit(code.unwrap_or(101));
            }
        }
        let mut traced = Self { child, is_over: false };
        let status = traced.wait();
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == REFUSED {
            return None;
        }
        let options = i64::from(libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL);
        assert_eq!(traced.request(libc::PTRACE_SETOPTIONS, options), 0);
        Some(traced)
    }

    /// Lets it go on to the next system call's begin or end.
    pub(crate) fn next_call(&mut self) -> Stopped {
        self.go_on(libc::PTRACE_SYSCALL, libc::SIGTRAP | 0x80)
    }

    /// Has it carry out one instruction.
    pub(crate) fn step(&mut self) -> Stopped {
        self.go_on(libc::PTRACE_SINGLESTEP, libc::SIGTRAP)
    }

    /// Its registers.
    pub(crate) fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: the structure is filled in by the kernel; the child has stopped.
        unsafe {
            let mut registers = std::mem::zeroed::<libc::user_regs_struct>();
            let place = &raw mut registers;
            let none = null_mut::<libc::c_void>();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, self.child, none, place), 0);
            registers
        }
    }

    /// Eight bytes of its memory.
    pub(crate) fn bytes(&self, address: u64) -> [u8; 8] {
        let place = address as *mut libc::c_void;
        // SAFETY: reads the child's memory, not this process's; the child has stopped.
        unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.child, place, 0) }.to_ne_bytes()
    }

    /// Goes on until it stops for this reason. It gets its signals.
    fn go_on(&mut self, request: libc::c_uint, reason: i32) -> Stopped {
        let mut signal = 0;
        loop {
            assert_eq!(self.request(request, signal), 0);
            let status = self.wait();
            if libc::WIFEXITED(status) {
                return Stopped::Ended(libc::WEXITSTATUS(status));
            }
            assert!(libc::WIFSTOPPED(status), "ended by a signal: {status:#x}");
            if libc::WSTOPSIG(status) == reason {
                return Stopped::There;
            }
            signal = i64::from(libc::WSTOPSIG(status));
        }
    }

    fn request(&self, request: libc::c_uint, data: i64) -> i64 {
        // SAFETY: nothing of this process is read or written; the child has stopped.
        unsafe { libc::ptrace(request, self.child, null_mut::<libc::c_void>(), data) }
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for the child made above, which stops itself or ends.
        assert_eq!(unsafe { libc::waitpid(self.child, &mut status, 0) }, self.child);
        self.is_over = !libc::WIFSTOPPED(status);
        status
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if !self.is_over {
            // SAFETY: ends and awaits the child made above.
            unsafe {
                libc::kill(self.child, libc::SIGKILL);
                libc::waitpid(self.child, null_mut(), 0);
            }
        }
    }
}
