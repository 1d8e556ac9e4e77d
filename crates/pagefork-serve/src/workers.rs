//! The threads that handlers run on.
//!
//! As many run as there are processors, and the rest of the requests wait: a
//! thread that was used last has warm slots and warm caches. Whoever waits for its
//! client does not count, and whoever takes long is not waited for: when no request
//! was begun for as long as [`patience`](crate::Config::patience), more run, up to
//! the limit.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::exchange::Exchange;
use crate::handler::Request;

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A request and where its response goes.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) exchange: Arc<Exchange>,
}

pub(crate) struct Workers {
    state: Mutex<State>,
    limits: WorkerLimits,
    /// What threads do with jobs.
    run: fn(Box<Job>) -> Pace,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLimits {
    /// How many handlers run at once, unless they take long.
    pub(crate) running: usize,
    /// How many there may be at all.
    pub(crate) busy: usize,
    /// How many requests may wait beyond those.
    pub(crate) queued: usize,
}

struct State {
    queue: VecDeque<Box<Job>>,
    /// Threads without work, the one that was last at it last.
    idle: Vec<Arc<Seat>>,
    /// Threads with a job.
    busy: usize,
    /// Of those, the ones that do not wait for a client.
    running: usize,
    /// How many more than usual may run, because some take long.
    relief: usize,
    /// Threads there are.
    threads: usize,
    /// When a job was last begun.
    last_begun: Instant,
    closed: bool,
}

/// How long a job took.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Short,
    /// Longer than others are to wait.
    Long,
}

/// A thread, and what it is to wake up for.
struct Seat {
    order: Mutex<Option<Order>>,
    thread: Thread,
}

enum Order {
    Work(Box<Job>),
    End,
}

impl Workers {
    pub(crate) fn new(limits: WorkerLimits, run: fn(Box<Job>) -> Pace) -> Workers {
        Workers {
            limits,
            run,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                idle: Vec::new(),
                busy: 0,
                running: 0,
                relief: 0,
                threads: 0,
                last_begun: Instant::now(),
                closed: false,
            }),
        }
    }

    /// Has a job done, now or later; gives it back if too many wait.
    pub(crate) fn submit(self: &Arc<Self>, job: Box<Job>) -> Result<(), Box<Job>> {
        let mut state = self.lock();
        if state.running < self.running_max(&state) && state.busy < self.limits.busy {
            self.place(state, job);
            return Ok(());
        }
        // Those that will get a thread anyway do not count as waiting.
        if state.busy + state.queue.len() >= self.limits.busy + self.limits.queued {
            return Err(job);
        }
        state.queue.push_back(job);
        Ok(())
    }

    /// Lets more jobs run than there are processors, if some wait and none was begun
    /// for this long: those that run take their time. Each that does takes a place
    /// with it when it ends.
    pub(crate) fn relieve(self: &Arc<Self>, patience: Duration) {
        let mut state = self.lock();
        if state.queue.is_empty() || state.last_begun.elapsed() < patience {
            return;
        }
        state.relief = (state.relief + self.limits.running).min(self.limits.busy);
        drop(state);
        for _ in 0..self.limits.running {
            let mut state = self.lock();
            if state.busy >= self.limits.busy {
                return;
            }
            let Some(job) = state.queue.pop_front() else { return };
            self.place(state, job);
        }
    }

    /// The calling handler begins to wait for its client: another may run.
    pub(crate) fn block(self: &Arc<Self>) {
        let mut state = self.lock();
        state.running -= 1;
        if state.running < self.running_max(&state)
            && state.busy < self.limits.busy
            && let Some(job) = state.queue.pop_front()
        {
            self.place(state, job);
        }
    }

    /// The calling handler goes on.
    pub(crate) fn unblock(&self) {
        self.lock().running += 1;
    }

    /// How many handlers run or wait for clients, and how many requests wait for
    /// a handler.
    pub(crate) fn busy_and_queued(&self) -> (usize, usize) {
        let state = self.lock();
        (state.busy, state.queue.len())
    }

    /// Ends threads once they are done.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        state.threads -= idle.len();
        drop(state);
        for seat in idle {
            seat.tell(Order::End);
        }
    }

    fn running_max(&self, state: &State) -> usize {
        self.limits.running + state.relief
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a job to a thread.
    fn place(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Box<Job>) {
        state.busy += 1;
        state.running += 1;
        state.last_begun = Instant::now();
        if let Some(seat) = state.idle.pop() {
            drop(state);
            seat.tell(Order::Work(job));
            return;
        }
        state.threads += 1;
        drop(state);
        let workers = Arc::clone(self);
        let exchange = Arc::clone(&job.exchange);
        let thread = std::thread::Builder::new().name("pagefork-serve".to_owned());
        if let Err(error) = thread.spawn(move || workers.work(job)) {
            let mut state = self.lock();
            (state.busy, state.running) = (state.busy - 1, state.running - 1);
            state.threads -= 1;
            drop(state);
            exchange.finish(Err(crate::Failure::new(
                crate::FailureKind::Spawn,
                format!("no thread could be started: {error}"),
            )));
        }
    }

    /// What a thread does.
    fn work(&self, first: Box<Job>) {
        let seat = Arc::new(Seat { order: Mutex::new(None), thread: std::thread::current() });
        let mut job = Some(first);
        while let Some(current) = job {
            let pace = (self.run)(current);
            job = self.next(&seat, pace);
        }
    }

    /// The next job for a thread that is done with one; `None` ends it.
    fn next(&self, seat: &Arc<Seat>, pace: Pace) -> Option<Box<Job>> {
        let mut state = self.lock();
        if pace == Pace::Long {
            state.relief = state.relief.saturating_sub(1);
        }
        if state.running <= self.running_max(&state)
            && let Some(job) = state.queue.pop_front()
        {
            state.last_begun = Instant::now();
            return Some(job);
        }
        state.busy -= 1;
        state.running -= 1;
        if state.closed {
            state.threads -= 1;
            return None;
        }
        state.idle.push(Arc::clone(seat));
        drop(state);
        loop {
            std::thread::park_timeout(IDLE_MAX);
            match seat.order() {
                Some(Order::Work(job)) => return Some(job),
                Some(Order::End) => return None,
                None => {}
            }
            let mut state = self.lock();
            // If it is not there any more, an order is on its way.
            if let Some(index) = state.idle.iter().position(|other| Arc::ptr_eq(other, seat)) {
                state.idle.remove(index);
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl Seat {
    fn tell(&self, order: Order) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        self.thread.unpark();
    }

    fn order(&self) -> Option<Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
