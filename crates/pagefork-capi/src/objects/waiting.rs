//! Host functions that C completes later, and who is told that a waiting call can go on.

use std::ffi::c_void;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pagefork::{Error, Result};

use crate::base::border::BorderError;
use crate::objects::host_info::{Finalizer, HostInfo};
use crate::objects::value::{OwnedValues, pagefork_val_t};

/// A C function that is told something, with what it was given for that.
pub(crate) type Notify = extern "C-unwind" fn(*mut c_void);

/// What a completion has come to.
pub(crate) type Completed = Result<OwnedValues<pagefork_val_t>>;

/// A call of a host function that C has begun: C completes it, a guest waits for it.
///
/// | state | completed | the wait ends | polled |
/// | --- | --- | --- | --- |
/// | `Begun` | `Completed`, wakes | `Ended`, cancels | `Begun` |
/// | `Completed` | - | `Ended` | `Ended`, ready |
/// | `Ended` | `Ended`, drops the values | - | - |
#[derive(Default)]
pub(crate) struct HostWait(Mutex<WaitState>);

#[derive(Default)]
enum WaitState {
    Begun {
        waker: Option<Waker>,
        cancel: Option<Cancel>,
    },
    Completed(Completed),
    #[default]
    Ended,
}

/// What C has called when nobody waits any more.
struct Cancel {
    function: Notify,
    env: *mut c_void,
}

// SAFETY: the header says that it may be called on any thread.
unsafe impl Send for Cancel {}

impl HostWait {
    /// A wait that has begun.
    pub(crate) fn begin() -> Arc<Self> {
        Arc::new(Self(Mutex::new(WaitState::Begun { waker: None, cancel: None })))
    }

    fn lock(&self) -> MutexGuard<'_, WaitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait with this, unless nobody waits any more.
    pub(crate) fn complete(&self, completed: Completed) {
        let mut state = self.lock();
        let WaitState::Begun { waker, .. } = &mut *state else {
            drop(state);
            // Outside of the lock: an object's last reference may call C.
            drop(completed);
            return;
        };
        let waker = waker.take();
        *state = WaitState::Completed(completed);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether there is somebody who waits.
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(*self.lock(), WaitState::Begun { .. })
    }

    /// Has this called when nobody waits any more though it was not completed, which may be at
    /// once.
    pub(crate) fn on_cancel(&self, function: Option<Notify>, env: *mut c_void) {
        let new = function.map(|function| Cancel { function, env });
        let mut state = self.lock();
        match &mut *state {
            WaitState::Begun { cancel, .. } => *cancel = new,
            WaitState::Completed(_) => {}
            WaitState::Ended => {
                drop(state);
                if let Some(cancel) = new {
                    (cancel.function)(cancel.env);
                }
            }
        }
    }

    /// Nobody waits any more.
    fn end(&self) {
        let old = mem::take(&mut *self.lock());
        if let WaitState::Begun { cancel: Some(cancel), .. } = &old {
            (cancel.function)(cancel.env);
        }
    }
}

/// The future of a host function that C completes: with it the wait ends.
pub(crate) struct WaitFuture(pub(crate) Arc<HostWait>);

impl Future for WaitFuture {
    type Output = Completed;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completed> {
        let mut state = self.0.lock();
        match mem::take(&mut *state) {
            WaitState::Completed(completed) => Poll::Ready(completed),
            WaitState::Begun { cancel, .. } => {
                *state = WaitState::Begun { waker: Some(context.waker().clone()), cancel };
                Poll::Pending
            }
            WaitState::Ended => Poll::Ready(Err(given_up())),
        }
    }
}

impl Drop for WaitFuture {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// C has deleted a completion without an outcome.
#[cold]
pub(crate) fn given_up() -> Error {
    BorderError::Unfit("the host function was given up without an outcome".to_owned()).into()
}

/// Whom to tell that a waiting call can go on: C, and a thread that waits in here.
pub(crate) struct CallWaker {
    /// What C has called, at most once between two polls.
    notify: Option<Notify>,
    env: HostInfo,
    is_woken: AtomicBool,
    /// Holds nothing: with it `is_woken` is looked at before a thread sleeps.
    gate: Mutex<()>,
    woken: Condvar,
}

impl CallWaker {
    /// Calls `notify`, unless it is absent; the finalizer is called when it never will be again.
    pub(crate) fn new(
        notify: Option<Notify>,
        env: *mut c_void,
        finalizer: Option<Finalizer>,
    ) -> Arc<Self> {
        let env = HostInfo::new(env, finalizer);
        let (is_woken, gate, woken) = Default::default();
        Arc::new(Self { notify, env, is_woken, gate, woken })
    }

    /// What is told from here on is news again.
    pub(crate) fn rearm(&self) {
        self.is_woken.store(false, Ordering::SeqCst);
    }

    /// Sleeps until the call can go on; false if the time is up before that.
    pub(crate) fn sleep(&self, until: Option<Instant>) -> bool {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_woken.load(Ordering::SeqCst) {
            gate = match until {
                None => self.woken.wait(gate).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left == Duration::ZERO {
                        return false;
                    }
                    let waited = self.woken.wait_timeout(gate, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_woken.swap(true, Ordering::SeqCst) {
            return;
        }
        drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
        if let Some(notify) = self.notify {
            notify(self.env.data());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    extern "C-unwind" fn count(counter: *mut c_void) {
        // SAFETY: the tests give it a counter that outlives its calls.
        unsafe { &*counter.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }

    fn counter(of: &AtomicU32) -> *mut c_void {
        std::ptr::from_ref(of).cast_mut().cast()
    }

    fn poll(future: &mut WaitFuture) -> Poll<Completed> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_wait_is_cancelled_unless_it_was_completed() {
        let cancelled = AtomicU32::new(0);
        let count_of = || cancelled.load(Ordering::Relaxed);
        let wait = HostWait::begin();
        wait.on_cancel(Some(count), counter(&cancelled));
        let mut future = WaitFuture(Arc::clone(&wait));
        assert!(poll(&mut future).is_pending() && wait.is_wanted());
        wait.complete(Ok(OwnedValues(Vec::new())));
        assert!(poll(&mut future).is_ready() && !wait.is_wanted());
        drop(future);
        assert_eq!(count_of(), 0);

        let wait = HostWait::begin();
        wait.on_cancel(Some(count), counter(&cancelled));
        drop(WaitFuture(Arc::clone(&wait)));
        assert_eq!((count_of(), wait.is_wanted()), (1, false));
        wait.complete(Err(given_up()));
        wait.on_cancel(Some(count), counter(&cancelled));
        assert_eq!(count_of(), 2);
    }

    #[test]
    fn who_waits_is_told_once_between_two_polls() {
        let (told, finalized) = (AtomicU32::new(0), AtomicU32::new(0));
        extern "C-unwind" fn both(counters: *mut c_void) {
            // SAFETY: it is given two counters.
            let counters = unsafe { &*counters.cast::<[&AtomicU32; 2]>() };
            counters[0].fetch_add(1, Ordering::Relaxed);
        }
        extern "C-unwind" fn finalize(counters: *mut c_void) {
            // SAFETY: it is given two counters.
            let counters = unsafe { &*counters.cast::<[&AtomicU32; 2]>() };
            counters[1].fetch_add(1, Ordering::Relaxed);
        }
        let mut counters = [&told, &finalized];
        let env = (&raw mut counters).cast();
        let waker = CallWaker::new(Some(both), env, Some(finalize));
        assert!(!waker.sleep(Some(Instant::now())));
        let other = Waker::from(Arc::clone(&waker));
        std::thread::scope(|scope| {
            scope.spawn(|| other.wake_by_ref());
            assert!(waker.sleep(None));
        });
        other.wake_by_ref();
        assert_eq!(told.load(Ordering::Relaxed), 1);
        waker.rearm();
        other.wake();
        drop(waker);
        assert_eq!((told.load(Ordering::Relaxed), finalized.load(Ordering::Relaxed)), (2, 1));
    }
}
