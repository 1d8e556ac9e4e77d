//! The threads that requests are handled on.
//!
//! As many requests are handled at once as there are processors, and the rest waits:
//! a thread that was used last has warm slots and warm caches. Whoever waits for its
//! client does not count, and whoever takes long is not waited for: when no request
//! was begun for as long as [`patience`](crate::Config::patience), more run, up to
//! the limit.
//!
//! A request is best handled by the thread that serves its connection, which costs no
//! change of threads, while nobody looks after the connections of its [`EventLoop`] (all
//! threads are equal, and lead a lane or not). If that takes longer than a moment, or
//! if the handler waits for its client, another thread goes on with the lane. After a
//! request that took long by itself, and not because others used its processor, the
//! next ones are handed over at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::handler::Request;
use crate::handler::exchange::Exchange;
use crate::threads::event_loop::{self, EventLoop, Leader};
use crate::threads::monitor::Monitor;
use crate::threads::usage::ThreadUsage;

/// How long a thread without work stays.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// How many requests are handed over after one that took long.
const WARY: u32 = 32;

/// A request and where its response goes.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) exchange: Arc<Exchange>,
    /// Whether its handler may wait for its client, because the body is not complete.
    pub(crate) may_wait: bool,
}

pub(crate) struct Workers {
    state: Mutex<State>,
    limits: WorkerLimits,
    /// What threads do with jobs; says how long that took, without waiting for clients.
    run: fn(Box<Job>) -> Duration,
    lookout: Monitor,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLimits {
    /// How many handlers run at once, unless they take long.
    pub(crate) running: usize,
    /// How many there may be at all.
    pub(crate) busy: usize,
    /// How many requests may wait beyond those.
    pub(crate) queued: usize,
    /// How long others are to wait for them.
    pub(crate) patience: Duration,
}

struct State {
    queue: VecDeque<Box<Job>>,
    /// Threads without work, the one that was last at it last.
    idle: Vec<Arc<IdleThread>>,
    /// Lanes whose leaders could handle a request.
    open: Vec<Arc<EventLoop>>,
    /// How many requests are still to be handed over.
    wary: u32,
    /// Threads with a job.
    busy: usize,
    /// Of those, the ones that do not wait for a client. Below zero for a moment
    /// where one thread of a handler begins to wait before another has said that it goes on.
    running: isize,
    /// How many more than usual may run, because some take long.
    relief: usize,
    /// Threads there are.
    threads: usize,
    /// When a job was last begun.
    last_begun: Instant,
    closed: bool,
}

/// A thread, and what it is to wake up for.
struct IdleThread {
    order: Mutex<Option<Command>>,
    thread: Thread,
}

enum Command {
    Work(Box<Job>),
    Lead(Leader),
    End,
}

impl Workers {
    pub(crate) fn new(limits: WorkerLimits, run: fn(Box<Job>) -> Duration) -> Workers {
        Workers {
            limits,
            run,
            lookout: Monitor::default(),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                idle: Vec::new(),
                open: Vec::new(),
                wary: 0,
                busy: 0,
                running: 0,
                relief: 0,
                threads: 0,
                last_begun: Instant::now(),
                closed: false,
            }),
        }
    }

    /// Has a job done, now or later; gives it back if too many wait. Whoever leads a lane
    /// does it, unless it may wait for its client, or others took long.
    pub(crate) fn submit(self: &Arc<Self>, job: Box<Job>) -> Result<(), Box<Job>> {
        let mut state = self.lock();
        // Those that will get a thread anyway do not count as waiting.
        let has_room = self.has_room(&state);
        let places = self.limits.busy + self.limits.queued;
        if !has_room && state.busy + state.queue.len() >= places {
            // Those that were given up wait for nothing.
            state.queue.retain(|job| job.exchange.cancelled().is_none());
            if state.busy + state.queue.len() >= places {
                return Err(job);
            }
        }
        // Whoever waits already comes first.
        let is_first = state.queue.is_empty();
        state.queue.push_back(job);
        if has_room && let Some(job) = state.queue.pop_front() {
            let lane = if state.is_for_leaders(&job) { state.open_lane() } else { None };
            match lane {
                Some((lane, is_own)) => {
                    state.begin();
                    drop(state);
                    lane.give(job, is_own && is_first);
                }
                None => self.place(state, job),
            }
        }
        Ok(())
    }

    /// Lets more jobs run than there are processors, if some wait and none was begun
    /// for this long: those that run take their time. Each that does takes a place
    /// with it when it ends.
    pub(crate) fn relieve(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.queue.is_empty() || state.last_begun.elapsed() < self.limits.patience {
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

    /// Has the connections of the lane that the thread has left served by another one:
    /// the calling handler takes its time.
    pub(crate) fn leave_lane(self: &Arc<Self>) {
        if let Some(lane) = event_loop::left_here() {
            self.lock().wary = WARY;
            // If no thread can be started now, the lookout tries again.
            let _ = self.take_over(&lane);
        }
    }

    /// The calling handler begins to wait for its client: another may run.
    pub(crate) fn block(self: &Arc<Self>) {
        self.leave_lane();
        let mut state = self.lock();
        state.running -= 1;
        if self.has_room(&state)
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

    /// Has the connections of lanes served.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(self: &Arc<Self>, lanes: Vec<Arc<EventLoop>>) -> std::io::Result<()> {
        // It takes two looks to see that a lane was left for too long.
        let interval = self.limits.patience / 2;
        let (workers, looked_after) = (Arc::clone(self), lanes.clone());
        let lookout = std::thread::Builder::new().name("pagefork-lookout".to_owned());
        let lookout = lookout.spawn(move || {
            // If no thread can be started, the next look comes soon.
            let take_over = |lane: &Arc<EventLoop>| drop(workers.take_over(lane));
            workers.lookout.run(&looked_after, interval, take_over);
        })?;
        self.lookout.set_thread(lookout.thread().clone());
        lanes.iter().try_for_each(|lane| self.take_over(lane))
    }

    /// Has a thread serve the connections of a lane, unless one does.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn take_over(self: &Arc<Self>, lane: &Arc<EventLoop>) -> std::io::Result<()> {
        match lane.leader() {
            Some(leader) => self.tell(self.lock(), Command::Lead(leader)),
            None => Ok(()),
        }
    }

    /// A request for the leader of an open lane, from the queue. An error if it is given
    /// one already.
    pub(crate) fn take(self: &Arc<Self>, lane: &Arc<EventLoop>) -> Result<Option<Box<Job>>, ()> {
        loop {
            let mut state = self.lock();
            let index = state.open.iter().position(|open| Arc::ptr_eq(open, lane)).ok_or(())?;
            if !self.has_room(&state) {
                return Ok(None);
            }
            let Some(job) = state.queue.pop_front() else { return Ok(None) };
            if state.is_for_leaders(&job) {
                state.open.swap_remove(index);
                state.begin();
                return Ok(Some(job));
            }
            self.place(state, job);
        }
    }

    /// Gives a lane no more requests; `false` if one is on its way.
    pub(crate) fn shut(&self, lane: &Arc<EventLoop>) -> bool {
        let open = &mut self.lock().open;
        let before = open.len();
        open.retain(|other| !Arc::ptr_eq(other, lane));
        open.len() < before
    }

    /// Ends threads once they are done.
    pub(crate) fn close(&self) {
        self.lookout.close();
        let mut state = self.lock();
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        state.threads -= idle.len();
        drop(state);
        for seat in idle {
            seat.tell(Command::End);
        }
    }

    fn running_max(&self, state: &State) -> usize {
        self.limits.running + state.relief
    }

    /// Whether another handler may run.
    fn has_room(&self, state: &State) -> bool {
        state.running < self.running_max(state) as isize && state.busy < self.limits.busy
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a job to a thread that leads no lane.
    fn place(self: &Arc<Self>, mut state: MutexGuard<'_, State>, job: Box<Job>) {
        state.begin();
        let exchange = Arc::clone(&job.exchange);
        if let Err(error) = self.tell(state, Command::Work(job)) {
            let mut state = self.lock();
            (state.busy, state.running) = (state.busy - 1, state.running - 1);
            drop(state);
            exchange.finish(Err(crate::handler::failure::Failure::new(
                crate::handler::failure::FailureKind::Spawn,
                format!("no thread could be started: {error}"),
            )));
        }
    }

    /// Gives an order to a thread without work.
    fn tell(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        order: Command,
    ) -> std::io::Result<()> {
        if let Some(seat) = state.idle.pop() {
            drop(state);
            seat.tell(order);
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("pagefork-serve".to_owned());
        // What a thread that does not start was to lead is left by that.
        let started = thread.spawn(move || workers.work(order));
        started.map(drop).inspect_err(|_| self.lock().threads -= 1)
    }

    /// What a thread does.
    fn work(self: &Arc<Self>, first: Command) {
        let seat = Arc::new(IdleThread { order: Mutex::new(None), thread: std::thread::current() });
        let mut order = Some(first);
        while let Some(current) = order {
            order = match current {
                Command::Work(job) => {
                    let used = ThreadUsage::by_this_thread();
                    let taken = (self.run)(job);
                    match self.done(taken, used, true) {
                        Some(next) => Some(Command::Work(next)),
                        None => self.rest(&seat),
                    }
                }
                Command::Lead(leader) => match self.lead(leader) {
                    Some(next) => Some(Command::Work(next)),
                    None => self.rest(&seat),
                },
                Command::End => None,
            }
        }
    }

    /// Serves the connections of a lane, and handles requests, until it has ended or
    /// another thread leads it; says what the thread is to do next, if there is more.
    fn lead(self: &Arc<Self>, mut leader: Leader) -> Option<Box<Job>> {
        loop {
            self.lock().open.push(Arc::clone(leader.lane()));
            let Some(job) = leader.serve(self) else {
                leader.end();
                return None;
            };
            let lane = leader.leave();
            self.lookout.wake();
            let used = ThreadUsage::by_this_thread();
            let taken = (self.run)(job);
            let Some(again) = lane.leader() else {
                event_loop::forget();
                return self.done(taken, used, true);
            };
            self.done(taken, used, false);
            leader = again;
        }
    }

    /// Notes the end of a job, and says what the thread is to do next, if it wants more.
    fn done(&self, taken: Duration, before: ThreadUsage, more: bool) -> Option<Box<Job>> {
        // As soon as that the lookout may have another thread go on with the lane.
        let long = self.limits.patience / 2;
        let wary = taken >= long && ThreadUsage::by_this_thread().is_long(before, long);
        let mut state = self.lock();
        if taken >= self.limits.patience {
            state.relief = state.relief.saturating_sub(1);
        }
        if wary {
            state.wary = WARY;
        }
        state.busy -= 1;
        state.running -= 1;
        while more && self.has_room(&state) {
            let job = state.queue.pop_front()?;
            let lane = if state.is_for_leaders(&job) { state.open.pop() } else { None };
            state.begin();
            let Some(lane) = lane else { return Some(job) };
            drop(state);
            // Or those who have lost their lanes would take all that comes.
            lane.give(job, false);
            // Its leader may have been about to take one for a place that it left itself.
            state = self.lock();
        }
        None
    }

    /// The next order for a thread without work; `None` ends it.
    fn rest(&self, seat: &Arc<IdleThread>) -> Option<Command> {
        let mut state = self.lock();
        if state.closed {
            state.threads -= 1;
            return None;
        }
        state.idle.push(Arc::clone(seat));
        drop(state);
        loop {
            std::thread::park_timeout(IDLE_MAX);
            if let Some(order) = seat.order() {
                return Some(order);
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

impl State {
    /// Counts a job that begins.
    fn begin(&mut self) {
        self.busy += 1;
        self.running += 1;
        self.last_begun = Instant::now();
    }

    /// Whether the leader of a lane should handle a request.
    fn is_for_leaders(&mut self, job: &Job) -> bool {
        let is_wary = self.wary > 0;
        self.wary = self.wary.saturating_sub(1);
        !is_wary && !job.may_wait
    }

    /// A lane whose leader has time, and whether the caller is that.
    fn open_lane(&mut self) -> Option<(Arc<EventLoop>, bool)> {
        let own = event_loop::led_here();
        let is_own = |lane: &Arc<EventLoop>| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, lane));
        match self.open.iter().position(is_own) {
            Some(index) => Some((self.open.swap_remove(index), true)),
            None => self.open.pop().map(|lane| (lane, false)),
        }
    }
}

impl IdleThread {
    fn tell(&self, order: Command) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = Some(order);
        self.thread.unpark();
    }

    fn order(&self) -> Option<Command> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::BodyReader;

    fn workers() -> Arc<Workers> {
        let patience = Duration::MAX / 2;
        let limits = WorkerLimits { running: 2, busy: 2, queued: 10, patience };
        Arc::new(Workers::new(limits, |_| Duration::ZERO))
    }

    fn lane() -> Arc<EventLoop> {
        EventLoop::new(tokio::runtime::Builder::new_current_thread().build().unwrap())
    }

    fn job() -> Box<Job> {
        let address = ([127, 0, 0, 1], 0).into();
        let exchange = Exchange::of_test();
        let request = Request {
            head: http::Request::new(()).into_parts().0,
            body: BodyReader(Arc::clone(&exchange)),
            body_size: Some(0),
            id: http::HeaderValue::from_static("id"),
            remote: address,
            local: address,
        };
        Box::new(Job { request, exchange, may_wait: false })
    }

    #[test]
    fn what_is_given_to_a_leader_leaves_no_place_empty() {
        let (workers, lane) = (workers(), lane());
        let jobs = [job(), job(), job()];
        let [first, second, _] = jobs.each_ref().map(|job| Arc::clone(&job.exchange));
        let mut state = workers.lock();
        state.queue.extend(jobs);
        (state.busy, state.running) = (2, 2);
        drop(state);
        // A leader comes back, and is given a job before it can take one.
        assert!(workers.done(Duration::ZERO, ThreadUsage::default(), false).is_none());
        workers.lock().open.push(Arc::clone(&lane));
        let next =
            workers.done(Duration::ZERO, ThreadUsage::default(), true).expect("there is room");
        assert!(Arc::ptr_eq(&next.exchange, &second));
        let given = lane.leader().unwrap().serve(&workers).unwrap();
        assert!(Arc::ptr_eq(&given.exchange, &first));
        let state = workers.lock();
        assert_eq!((state.busy, state.running, state.queue.len()), (2, 2, 1));
    }

    #[test]
    fn a_thread_leaves_its_lane_to_another_once() {
        let (workers, lane) = (workers(), lane());
        let leader = lane.leader().unwrap();
        workers.lock().open.push(Arc::clone(&lane));
        assert!(workers.submit(job()).is_ok());
        assert!(leader.serve(&workers).is_some());
        drop(leader);
        workers.leave_lane();
        assert_eq!(std::mem::take(&mut workers.lock().wary), WARY);
        // It may go on for long, and says so whenever it flushes.
        workers.leave_lane();
        assert_eq!(workers.lock().wary, 0);
        lane.close();
        lane.wait(Duration::from_secs(60));
        assert!(lane.leader().is_none(), "it has ended");
        workers.close();
    }
}
