use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::handler::exchange::Exchange;
use crate::threads::workers::{Job, Workers};

/// A runtime, and the connections that were dealt to it.
pub(crate) struct EventLoop {
    /// Here while nobody leads the lane.
    runtime: Mutex<Option<Box<Runtime>>>,
    /// How often a thread began to lead it, and left it: odd while one leads.
    turns: AtomicU64,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// What its leader is to handle next.
    job: Option<Box<Job>>,
    /// The request of one of its own connections that its leader handles.
    own: Option<Arc<Exchange>>,
    /// Wakes its leader.
    leader: Option<Waker>,
    /// Whether there will be no more connections.
    closed: bool,
    ended: bool,
}

/// Who has this leads the lane.
pub(crate) struct Leader {
    lane: Arc<EventLoop>,
    /// There until it is dropped.
    runtime: Option<Box<Runtime>>,
}

thread_local! {
    /// The lane that the thread leads, or has left to handle a request.
    static LANE: RefCell<Option<Arc<EventLoop>>> = const { RefCell::new(None) };
    /// Whether it leads it.
    static LEADS: Cell<bool> = const { Cell::new(false) };
}

/// The lane that the thread leads.
pub(crate) fn led_here() -> Option<Arc<EventLoop>> {
    if LEADS.get() { LANE.with_borrow(Clone::clone) } else { None }
}

/// The lane that the thread has left to handle a request; says so once.
pub(crate) fn left_here() -> Option<Arc<EventLoop>> {
    if LEADS.get() { None } else { LANE.take() }
}

/// To be said when the thread will not come back to the lane that it has left.
pub(crate) fn forget() {
    LANE.set(None);
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

    /// Begins to lead, if nobody does.
    pub(crate) fn leader(self: &Arc<Self>) -> Option<Leader> {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.turns.fetch_add(1, Ordering::SeqCst);
        Some(Leader { lane: Arc::clone(self), runtime: Some(runtime) })
    }

    /// A number that changes when somebody begins to lead the lane or leaves it: odd
    /// while somebody leads.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Has its leader handle a request, perhaps of one of its own connections.
    pub(crate) fn give(&self, job: Box<Job>, is_own: bool) {
        let mut state = self.state();
        debug_assert!(state.job.is_none(), "a lane that is open has no request");
        if is_own {
            job.exchange.own();
            state.own = Some(Arc::clone(&job.exchange));
        }
        state.job = Some(job);
        let leader = state.leader.take();
        drop(state);
        leader.into_iter().for_each(Waker::wake);
    }

    /// Ends the lane as soon as its leader has nothing to handle.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let leader = state.leader.take();
        drop(state);
        leader.into_iter().for_each(Waker::wake);
    }

    /// Waits until the lane has ended, for at most this long.
    pub(crate) fn wait(&self, time_max: Duration) {
        let state = self.state();
        drop(self.ended.wait_timeout_while(state, time_max, |state| !state.ended));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader {
    pub(crate) fn lane(&self) -> &Arc<EventLoop> {
        &self.lane
    }

    /// Serves the connections until there is a request that this thread is to handle;
    /// `None` once the lane is closed.
    pub(crate) fn serve(&self, workers: &Arc<Workers>) -> Option<Box<Job>> {
        LANE.set(Some(Arc::clone(&self.lane)));
        LEADS.set(true);
        let mut connections_first = true;
        let runtime = self.runtime.as_ref().expect("it is not dropped");
        let next = runtime.block_on(poll_fn(|context| {
            let mut state = self.lane.state();
            // The response to the request before, and what else there is.
            if std::mem::take(&mut connections_first) {
                let own = state.own.take();
                drop(state);
                own.inspect(|exchange| exchange.disown());
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(job) = state.job.take() {
                return Poll::Ready(Some(job));
            }
            state.leader = Some(context.waker().clone());
            let closed = state.closed;
            drop(state);
            match workers.take(&self.lane) {
                Ok(Some(job)) => Poll::Ready(Some(job)),
                Ok(None) if closed && workers.shut(&self.lane) => Poll::Ready(None),
                _ => Poll::Pending,
            }
        }));
        LEADS.set(false);
        next
    }

    /// Lets others lead.
    pub(crate) fn leave(self) -> Arc<EventLoop> {
        Arc::clone(&self.lane)
    }

    /// Ends the lane, and its connections.
    pub(crate) fn end(mut self) {
        let runtime = self.runtime.take().expect("it is not dropped");
        runtime.shutdown_background();
        self.lane.state().ended = true;
        self.lane.ended.notify_all();
        forget();
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            self.lane.turns.fetch_add(1, Ordering::SeqCst);
            let mut free = self.lane.runtime.lock().unwrap_or_else(PoisonError::into_inner);
            *free = Some(runtime);
        }
    }
}
