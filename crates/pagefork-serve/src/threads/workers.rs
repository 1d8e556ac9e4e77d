//! The threads that drive event loops and run handlers: all are equal, and each does one or the
//! other. [`schedule`](crate::threads::schedule) says which thread gets a request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::thread::Thread;
use std::time::Duration;

use crate::handler::failure::{Failure, FailureKind};
use crate::handler::lock::lock;
use crate::threads::event_loop::{self, Driver, EventLoop};
use crate::threads::job::Job;
use crate::threads::monitor::Monitor;
use crate::threads::schedule::{Schedule, ScheduleLimits};
use crate::threads::usage::ThreadUsage;

/// A thread without work ends after this time.
const IDLE_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Workers {
    state: Mutex<WorkersState>,
    limits: ScheduleLimits,
    monitor: Monitor,
}

struct WorkersState {
    schedule: Schedule,
    queue: VecDeque<Box<Job>>,
    /// Idle threads, most recently used last: that one has warm slots and caches.
    idle: Vec<Arc<IdleThread>>,
    /// Event loops whose drivers could handle a request.
    open: Vec<Arc<EventLoop>>,
    closed: bool,
}

/// A thread without work, and the command that it wakes up for.
struct IdleThread {
    command: Mutex<Option<Command>>,
    thread: Thread,
}

enum Command {
    Handle(Box<Job>),
    Drive(Driver),
    End,
}

impl Workers {
    pub(crate) fn new(limits: ScheduleLimits) -> Workers {
        let state = WorkersState {
            schedule: Schedule::new(limits),
            queue: VecDeque::new(),
            idle: Vec::new(),
            open: Vec::new(),
            closed: false,
        };
        Workers { limits, monitor: Monitor::default(), state: Mutex::new(state) }
    }

    /// Runs a job, now or later. Gives it back if too many wait.
    pub(crate) fn submit(self: &Arc<Self>, job: Box<Job>) -> Result<(), Box<Job>> {
        let mut state = lock(&self.state);
        // A request that gets a thread at once does not count as waiting.
        let has_room = state.schedule.has_room();
        if !has_room && !state.may_queue() {
            // Requests that were given up wait for nothing.
            state.queue.retain(|job| job.exchange.cancelled().is_none());
            if !state.may_queue() {
                return Err(job);
            }
        }
        // Earlier requests come first.
        let is_first = state.queue.is_empty();
        state.queue.push_back(job);
        if has_room && let Some(job) = state.queue.pop_front() {
            let is_inline = state.schedule.is_inline(job.may_wait);
            let event_loop = if is_inline { state.open_event_loop() } else { None };
            match event_loop {
                Some((event_loop, is_own)) => {
                    state.schedule.begin();
                    drop(state);
                    event_loop.give(job, is_own && is_first);
                }
                None => self.start(state, job),
            }
        }
        Ok(())
    }

    /// Lets more handlers run, if requests wait because the running handlers are slow.
    pub(crate) fn relieve(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.queue.is_empty() || !state.schedule.relieve() {
            return;
        }
        drop(state);
        for _ in 0..self.limits.running {
            let mut state = lock(&self.state);
            if state.schedule.busy >= self.limits.busy {
                return;
            }
            let Some(job) = state.queue.pop_front() else { return };
            self.start(state, job);
        }
    }

    /// The calling handler is slow: another thread drives the event loop that this one has left.
    pub(crate) fn detach(self: &Arc<Self>) {
        if let Some(event_loop) = event_loop::left_here() {
            lock(&self.state).schedule.slow();
            // If no thread can be started now, the monitor tries again.
            let _ = self.take_over(&event_loop);
        }
    }

    /// The calling handler begins to wait for its client: another may run.
    pub(crate) fn block(self: &Arc<Self>) {
        self.detach();
        let mut state = lock(&self.state);
        state.schedule.running -= 1;
        if state.schedule.has_room()
            && let Some(job) = state.queue.pop_front()
        {
            self.start(state, job);
        }
    }

    /// The calling handler goes on.
    pub(crate) fn unblock(&self) {
        lock(&self.state).schedule.running += 1;
    }

    /// How many handlers run or wait for clients, and how many requests wait for
    /// a handler.
    pub(crate) fn busy_and_queued(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.schedule.busy, state.queue.len())
    }

    /// Starts threads that drive the event loops, and the monitor.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn drive_all(
        self: &Arc<Self>,
        event_loops: Vec<Arc<EventLoop>>,
    ) -> std::io::Result<()> {
        // It takes two looks to see that an event loop was without a driver for too long.
        let interval = self.limits.patience / 2;
        let (workers, monitored) = (Arc::clone(self), event_loops.clone());
        let monitor = std::thread::Builder::new().name("pagefork-monitor".to_owned());
        let monitor = monitor.spawn(move || {
            // If no thread can be started, the next look comes soon.
            let take_over = |event_loop: &Arc<EventLoop>| drop(workers.take_over(event_loop));
            workers.monitor.run(&monitored, interval, take_over);
        })?;
        self.monitor.set_thread(monitor.thread().clone());
        event_loops.iter().try_for_each(|event_loop| self.take_over(event_loop))
    }

    /// Has a thread drive an event loop, unless one does.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn take_over(self: &Arc<Self>, event_loop: &Arc<EventLoop>) -> std::io::Result<()> {
        match event_loop.driver() {
            Some(driver) => self.command(lock(&self.state), Command::Drive(driver)),
            None => Ok(()),
        }
    }

    /// The next request for the driver of an open event loop; `None` if the loop is closed, and
    /// then it gets no more.
    fn next(self: &Arc<Self>, event_loop: &Arc<EventLoop>, closed: bool) -> Poll<Option<Box<Job>>> {
        loop {
            let mut state = lock(&self.state);
            let is_it = |open: &Arc<EventLoop>| Arc::ptr_eq(open, event_loop);
            // If it is not open any more, a request was given to it.
            let Some(index) = state.open.iter().position(is_it) else { return Poll::Pending };
            let job = if state.schedule.has_room() { state.queue.pop_front() } else { None };
            match job {
                Some(job) if !state.schedule.is_inline(job.may_wait) => self.start(state, job),
                Some(job) => {
                    state.open.swap_remove(index);
                    state.schedule.begin();
                    return Poll::Ready(Some(job));
                }
                None if closed => {
                    state.open.swap_remove(index);
                    return Poll::Ready(None);
                }
                None => return Poll::Pending,
            }
        }
    }

    /// Ends threads once they are done.
    pub(crate) fn close(&self) {
        self.monitor.close();
        let mut state = lock(&self.state);
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        for thread in idle {
            thread.wake(Command::End);
        }
    }

    /// Runs a job detached.
    fn start(self: &Arc<Self>, mut state: MutexGuard<'_, WorkersState>, job: Box<Job>) {
        state.schedule.begin();
        let exchange = Arc::clone(&job.exchange);
        if let Err(error) = self.command(state, Command::Handle(job)) {
            lock(&self.state).schedule.end(Duration::ZERO, false);
            let detail = format!("no thread could be started: {error}");
            exchange.finish(Err(Failure::new(FailureKind::Spawn, detail)));
        }
    }

    /// Gives a command to an idle thread, or to a new one.
    fn command(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WorkersState>,
        command: Command,
    ) -> std::io::Result<()> {
        if let Some(idle) = state.idle.pop() {
            drop(state);
            idle.wake(command);
            return Ok(());
        }
        drop(state);
        let workers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("pagefork-serve".to_owned());
        // If it does not start, the command is dropped, and the driver with it.
        thread.spawn(move || workers.work(command)).map(drop)
    }

    /// The life of a thread.
    fn work(self: &Arc<Self>, first: Command) {
        let this = IdleThread { command: Mutex::new(None), thread: std::thread::current() };
        let this = Arc::new(this);
        let mut command = Some(first);
        while let Some(current) = command {
            let next = match current {
                Command::Handle(job) => self.run(job),
                Command::Drive(driver) => self.drive(driver),
                Command::End => return,
            };
            command = match next {
                Some(job) => Some(Command::Handle(job)),
                None => self.rest(&this),
            };
        }
    }

    /// Drives an event loop, and handles requests inline, until the loop has ended or another
    /// thread drives it. Gives what the thread handles next, if there is more.
    fn drive(self: &Arc<Self>, mut driver: Driver) -> Option<Box<Job>> {
        loop {
            lock(&self.state).open.push(Arc::clone(driver.event_loop()));
            let Some(job) = driver.serve(|closed| self.next(driver.event_loop(), closed)) else {
                driver.end();
                return None;
            };
            let event_loop = driver.leave();
            self.monitor.wake();
            let used = ThreadUsage::of_this_thread();
            let taken = job.run();
            let Some(again) = event_loop.driver() else {
                event_loop::forget();
                return self.done(taken, used, true);
            };
            self.done(taken, used, false);
            driver = again;
        }
    }

    /// Handles a request detached. Gives the next one.
    fn run(&self, job: Box<Job>) -> Option<Box<Job>> {
        let used = ThreadUsage::of_this_thread();
        let taken = job.run();
        self.done(taken, used, true)
    }

    /// Notes the end of a job, and gives the next one, if the thread wants more.
    fn done(&self, taken: Duration, before: ThreadUsage, more: bool) -> Option<Box<Job>> {
        // From half of the patience on the monitor may have given the event loop away.
        let long = self.limits.patience / 2;
        let is_slow = taken >= long && ThreadUsage::of_this_thread().is_long(before, long);
        let mut state = lock(&self.state);
        state.schedule.end(taken, is_slow);
        while more && state.schedule.has_room() {
            let job = state.queue.pop_front()?;
            let is_inline = state.schedule.is_inline(job.may_wait);
            let event_loop = if is_inline { state.open.pop() } else { None };
            state.schedule.begin();
            let Some(event_loop) = event_loop else { return Some(job) };
            drop(state);
            // Otherwise threads that have lost their event loops would take all requests.
            event_loop.give(job, false);
            // Its driver may have been about to take one for a place that it left itself.
            state = lock(&self.state);
        }
        None
    }

    /// Waits for the next command of a thread without work; `None` ends the thread.
    fn rest(&self, this: &Arc<IdleThread>) -> Option<Command> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.idle.push(Arc::clone(this));
        drop(state);
        loop {
            std::thread::park_timeout(IDLE_MAX);
            if let Some(command) = lock(&this.command).take() {
                return Some(command);
            }
            let mut state = lock(&self.state);
            // If it is not there any more, a command is on its way.
            if let Some(index) = state.idle.iter().position(|other| Arc::ptr_eq(other, this)) {
                state.idle.remove(index);
                return None;
            }
        }
    }
}

impl WorkersState {
    fn may_queue(&self) -> bool {
        self.schedule.may_queue(self.queue.len())
    }

    /// An event loop whose driver has time, and whether the caller is that driver.
    fn open_event_loop(&mut self) -> Option<(Arc<EventLoop>, bool)> {
        let own = event_loop::driven_here();
        let is_own = |open: &Arc<EventLoop>| own.as_ref().is_some_and(|own| Arc::ptr_eq(own, open));
        match self.open.iter().position(is_own) {
            Some(index) => Some((self.open.swap_remove(index), true)),
            None => self.open.pop().map(|event_loop| (event_loop, false)),
        }
    }
}

impl IdleThread {
    fn wake(&self, command: Command) {
        *lock(&self.command) = Some(command);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Handler;
    use crate::handler::exchange::Exchange;
    use crate::handler::request::{BodyReader, Request};
    use crate::handler::response::ResponseWriter;
    use crate::threads::schedule::DETACHED;

    fn workers() -> Arc<Workers> {
        let patience = Duration::MAX / 2;
        Arc::new(Workers::new(ScheduleLimits { running: 2, busy: 2, queued: 10, patience }))
    }

    fn event_loop() -> Arc<EventLoop> {
        EventLoop::new(tokio::runtime::Builder::new_current_thread().build().unwrap())
    }

    struct Nothing;

    impl Handler for Nothing {
        fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
            Ok(())
        }
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
        Box::new(Job { request, exchange, handler: Arc::new(Nothing), may_wait: false })
    }

    #[test]
    fn what_is_given_to_a_driver_leaves_no_place_empty() {
        let (workers, event_loop) = (workers(), event_loop());
        let jobs = [job(), job(), job()];
        let [first, second, _] = jobs.each_ref().map(|job| Arc::clone(&job.exchange));
        let mut state = lock(&workers.state);
        state.queue.extend(jobs);
        (state.schedule.busy, state.schedule.running) = (2, 2);
        drop(state);
        // A driver comes back, and is given a job before it can take one.
        assert!(workers.done(Duration::ZERO, ThreadUsage::default(), false).is_none());
        lock(&workers.state).open.push(Arc::clone(&event_loop));
        let next = workers.done(Duration::ZERO, ThreadUsage::default(), true);
        assert!(Arc::ptr_eq(&next.expect("there is room").exchange, &second));
        let driver = event_loop.driver().unwrap();
        let given = driver.serve(|closed| workers.next(&event_loop, closed)).unwrap();
        assert!(Arc::ptr_eq(&given.exchange, &first));
        let state = lock(&workers.state);
        let Schedule { busy, running, .. } = state.schedule;
        assert_eq!((busy, running, state.queue.len()), (2, 2, 1));
    }

    #[test]
    fn a_thread_leaves_its_event_loop_to_another_once() {
        let (workers, event_loop) = (workers(), event_loop());
        let driver = event_loop.driver().unwrap();
        lock(&workers.state).open.push(Arc::clone(&event_loop));
        assert!(workers.submit(job()).is_ok());
        assert!(driver.serve(|closed| workers.next(&event_loop, closed)).is_some());
        drop(driver);
        workers.detach();
        assert_eq!(std::mem::take(&mut lock(&workers.state).schedule.detached), DETACHED);
        // It may go on for long, and says so whenever it flushes.
        workers.detach();
        assert_eq!(lock(&workers.state).schedule.detached, 0);
        event_loop.close();
        event_loop.wait(Duration::from_secs(60));
        assert!(event_loop.driver().is_none(), "it has ended");
        workers.close();
    }
}
