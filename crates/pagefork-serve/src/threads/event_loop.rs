//! Event loops: each a runtime with some of the connections, driven by one thread at a time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::handler::exchange::Exchange;
use crate::handler::lock::lock;
use crate::threads::job::Job;

/// A runtime, and the connections that were dealt to it.
pub(crate) struct EventLoop {
    /// Here while no thread drives the loop.
    runtime: Mutex<Option<Box<Runtime>>>,
    /// How often a thread began to drive the loop, and left it: odd while one drives it.
    turns: AtomicU64,
    state: Mutex<EventLoopState>,
    ended: Condvar,
}

#[derive(Default)]
struct EventLoopState {
    /// What its driver handles next.
    job: Option<Box<Job>>,
    /// The request of one of its own connections that its driver handles.
    own: Option<Arc<Exchange>>,
    /// Wakes its driver.
    waker: Option<Waker>,
    /// Whether there will be no more connections.
    closed: bool,
    ended: bool,
}

/// The right to drive an event loop: one exists at a time.
pub(crate) struct Driver {
    event_loop: Arc<EventLoop>,
    /// There until it is dropped.
    runtime: Option<Box<Runtime>>,
}

thread_local! {
    /// The event loop that the thread drives, or has left to handle a request.
    static EVENT_LOOP: RefCell<Option<Arc<EventLoop>>> = const { RefCell::new(None) };
    /// Whether it drives it.
    static DRIVES: Cell<bool> = const { Cell::new(false) };
}

/// The event loop that the thread drives.
pub(crate) fn driven_here() -> Option<Arc<EventLoop>> {
    if DRIVES.get() { EVENT_LOOP.with_borrow(Clone::clone) } else { None }
}

/// The event loop that the thread has left to handle a request; says so once.
pub(crate) fn left_here() -> Option<Arc<EventLoop>> {
    if DRIVES.get() { None } else { EVENT_LOOP.take() }
}

/// The thread will not come back to the event loop that it has left.
pub(crate) fn forget() {
    EVENT_LOOP.set(None);
}

impl EventLoop {
    pub(crate) fn new(runtime: Runtime) -> Arc<EventLoop> {
        Arc::new(EventLoop {
            runtime: Mutex::new(Some(Box::new(runtime))),
            turns: AtomicU64::new(0),
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Begins to drive the loop, if no thread does.
    pub(crate) fn driver(self: &Arc<Self>) -> Option<Driver> {
        let runtime = lock(&self.runtime).take()?;
        self.turns.fetch_add(1, Ordering::SeqCst);
        Some(Driver { event_loop: Arc::clone(self), runtime: Some(runtime) })
    }

    /// A number that changes when a thread begins to drive the loop or leaves it: odd while one
    /// drives it.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Gives its driver a request to handle inline, perhaps of one of its own connections.
    pub(crate) fn give(&self, job: Box<Job>, is_own: bool) {
        let mut state = lock(&self.state);
        debug_assert!(state.job.is_none(), "an event loop that is open has no request");
        if is_own {
            job.exchange.run_inline();
            state.own = Some(Arc::clone(&job.exchange));
        }
        state.job = Some(job);
        EventLoop::wake(state);
    }

    /// Ends the loop as soon as its driver has nothing to handle.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        EventLoop::wake(state);
    }

    fn wake(mut state: MutexGuard<'_, EventLoopState>) {
        let driver = state.waker.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }

    /// Waits until the loop has ended, for at most this long.
    pub(crate) fn wait(&self, time_max: Duration) {
        let state = lock(&self.state);
        drop(self.ended.wait_timeout_while(state, time_max, |state| !state.ended));
    }
}

impl Driver {
    pub(crate) fn event_loop(&self) -> &Arc<EventLoop> {
        &self.event_loop
    }

    /// Serves the connections until there is a request for this thread: one that was given, or
    /// one that `next` has. `next` is told whether the loop is closed, and ends it with `None`.
    pub(crate) fn serve(
        &self,
        mut next: impl FnMut(bool) -> Poll<Option<Box<Job>>>,
    ) -> Option<Box<Job>> {
        EVENT_LOOP.set(Some(Arc::clone(&self.event_loop)));
        DRIVES.set(true);
        let mut connections_first = true;
        let runtime = self.runtime.as_ref().expect("it is not dropped");
        let job = runtime.block_on(poll_fn(|context| {
            let mut state = lock(&self.event_loop.state);
            // First the response to the last request, and everything else that is ready.
            if std::mem::take(&mut connections_first) {
                let own = state.own.take();
                drop(state);
                own.inspect(|exchange| exchange.detach());
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(job) = state.job.take() {
                return Poll::Ready(Some(job));
            }
            state.waker = Some(context.waker().clone());
            let closed = state.closed;
            drop(state);
            next(closed)
        }));
        DRIVES.set(false);
        job
    }

    /// Lets other threads drive the loop.
    pub(crate) fn leave(self) -> Arc<EventLoop> {
        Arc::clone(&self.event_loop)
    }

    /// Ends the loop, and its connections.
    pub(crate) fn end(mut self) {
        let runtime = self.runtime.take().expect("it is not dropped");
        runtime.shutdown_background();
        lock(&self.event_loop.state).ended = true;
        self.event_loop.ended.notify_all();
        forget();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.event_loop.turns.fetch_add(1, Ordering::SeqCst);
            let mut free = lock(&self.event_loop.runtime);
            *free = Some(runtime);
        }
    }
}
