//! Makes system calls of the current thread fail, for tests.

use std::cell::{Cell, RefCell};

use crate::os::error::Call;
pub use crate::os::times::{Times, with_times};

thread_local! {
    static PLAN: Cell<Plan> = const { Cell::new(Plan::Nothing) };
    static HALF_WAY: Cell<bool> = const { Cell::new(false) };
    static MADE: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy)]
enum Plan {
    Nothing,
    FailAfter { left: u64, code: i32, once: bool },
    Pretend(Call),
    FailAll(Call, i32),
}

/// What [`fail_nth`] and [`fail_from`] saw.
#[derive(Debug)]
pub struct Injected<R> {
    /// What the body returned.
    pub value: R,
    /// The first call that was made to fail; `None` if there were fewer calls.
    pub failed: Option<Call>,
}

/// Runs `body`; the system call number `nth` (from 0) that it makes through this
/// crate on this thread fails with the error number `code` instead of being
/// made.
pub fn fail_nth<R>(nth: u64, code: i32, body: impl FnOnce() -> R) -> Injected<R> {
    fail(Plan::FailAfter { left: nth, code, once: true }, nth, body)
}

/// As [`fail_nth`], but all later calls fail too: but not those that copy pages which were touched, since
/// who touches a page cannot be told that, and the process ends.
pub fn fail_from<R>(nth: u64, code: i32, body: impl FnOnce() -> R) -> Injected<R> {
    fail(Plan::FailAfter { left: nth, code, once: false }, nth, body)
}

/// Runs `body`; calls that change the access of several pages and are made to fail have
/// changed the first of them, as the kernel does where the second of two maps fails.
pub fn half_way<R>(body: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            HALF_WAY.set(false);
        }
    }
    let _restore = Restore;
    HALF_WAY.set(true);
    body()
}

/// Whether the next call is to fail half-way.
pub(crate) fn fails_half_way() -> bool {
    HALF_WAY.get() && matches!(PLAN.get(), Plan::FailAfter { left: 0, .. } | Plan::FailAll(..))
}

/// Runs `body`; calls of the kind `call` on this thread report success and do
/// nothing, as some emulators do.
pub fn pretend<R>(call: Call, body: impl FnOnce() -> R) -> R {
    recorded(Plan::Pretend(call), body).0
}

/// Runs `body`; all calls of the kind `call` on this thread fail with the error
/// number `code`, as behind a filter of system calls.
pub fn fail_all<R>(call: Call, code: i32, body: impl FnOnce() -> R) -> R {
    recorded(Plan::FailAll(call, code), body).0
}

/// Runs `body` and lists the system calls that it makes through this crate on
/// this thread.
pub fn record<R>(body: impl FnOnce() -> R) -> (R, Vec<Call>) {
    recorded(Plan::Nothing, body)
}

fn fail<R>(plan: Plan, nth: u64, body: impl FnOnce() -> R) -> Injected<R> {
    let (value, made) = recorded(plan, body);
    Injected { value, failed: made.get(nth as usize).copied() }
}

fn recorded<R>(plan: Plan, body: impl FnOnce() -> R) -> (R, Vec<Call>) {
    // Also when the body panics, later tests of this thread start afresh.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            PLAN.set(Plan::Nothing);
            MADE.take();
        }
    }
    let _restore = Restore;
    PLAN.set(plan);
    MADE.set(Some(Vec::new()));
    let value = body();
    (value, MADE.take().unwrap_or_default())
}

/// What to do with a call that is about to be made.
pub(crate) enum Injection {
    Make,
    Fail(i32),
    Pretend,
}

pub(crate) fn verdict(call: Call) -> Injection {
    // A thread that ends gives slots back when this may be gone already, and nobody records it.
    let _ = MADE.try_with(|made| {
        if let Some(made) = &mut *made.borrow_mut() {
            made.push(call);
        }
    });
    match PLAN.get() {
        Plan::FailAfter { left: 0, once: false, .. } if call == Call::CopyPage => Injection::Make,
        Plan::FailAfter { left: 0, code, once } => {
            if once {
                PLAN.set(Plan::Nothing);
            }
            Injection::Fail(code)
        }
        Plan::FailAfter { left, code, once } => {
            PLAN.set(Plan::FailAfter { left: left - 1, code, once });
            Injection::Make
        }
        Plan::Pretend(kind) if kind == call => Injection::Pretend,
        Plan::FailAll(kind, code) if kind == call => Injection::Fail(code),
        Plan::Pretend(_) | Plan::FailAll(..) | Plan::Nothing => Injection::Make,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CallsAtTheEnd;

    impl Drop for CallsAtTheEnd {
        fn drop(&mut self) {
            assert!(matches!(verdict(Call::Discard), Injection::Make));
        }
    }

    thread_local! {
        static CALLS_AT_THE_END: CallsAtTheEnd = const { CallsAtTheEnd };
    }

    /// What a thread has in its locals goes in the reverse order of its first use.
    #[test]
    fn threads_that_end_make_calls_when_nothing_is_recorded_any_more() {
        let thread = std::thread::spawn(|| {
            CALLS_AT_THE_END.with(|_| ());
            record(|| ()).1.len()
        });
        assert_eq!(thread.join().unwrap(), 0);
    }
}
