//! One request on its way: what the connection's task and the handler's thread
//! share about it.
//!
//! ```text
//! connection's task                                        handler's thread
//!   pump task: body frames --> input, bounded    --> BodyReader::read
//!   service future         <-- head              <-- ResponseWriter::start
//!   response body          <-- output, bounded   <-- ResponseWriter::write
//!   guardian: time limit   --> cancelled         --> the interrupt, and every wait ends
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::HeaderValue;

use crate::handler::Head;
use crate::handler::failure::{Cancelled, Failure};
use crate::http::front::Front;

/// Bytes of output from which on it is sent without waiting for more.
const OUTPUT_FLUSH: usize = 32 * 1024;

/// Bytes of output that are kept before the handler has to wait.
const OUTPUT_MAX: usize = 256 * 1024;

/// Bytes of a request's body that are kept before its client has to wait.
const INPUT_MAX: usize = 128 * 1024;

/// As many bytes each part of it costs besides: a chunk can be of one.
const PART_SIZE: usize = 64;

pub(crate) struct Exchange {
    front: Arc<Front>,
    id: HeaderValue,
    state: Mutex<State>,
    /// Told whenever a handler's thread that waits may go on.
    changed: Condvar,
}

struct State {
    input: VecDeque<Bytes>,
    input_size: usize,
    input_ended: bool,
    pump: Option<Waker>,

    head: Option<Head>,
    head_was_taken: bool,
    /// Without a body in its response, what is written goes nowhere.
    bodiless: bool,
    output: Vec<u8>,
    /// Bytes of the body that the connection has taken of a response that streams.
    sent: u64,
    /// Whether the connection has all that it will take.
    is_left: bool,
    /// Whether it was counted and logged that the request failed.
    is_reported: bool,
    /// Whether what is written is to be sent at once, and not when there is more.
    eager: bool,
    connection: Option<Waker>,
    /// Whether the connection's own thread handles the request, so that nobody waits
    /// for the response before that thread comes back.
    own: bool,
    /// How many threads of the handler wait.
    waiting: usize,

    submitted: Instant,
    started: Option<Instant>,
    finished: Option<Result<(), Failure>>,
    cancelled: Option<Cancelled>,
    interrupt: Option<Box<dyn Fn() + Send>>,
    guardian: Option<Waker>,
    guarded: bool,
    /// Since when the handler waits for its client, and how long it did before.
    blocked_since: Option<Instant>,
    blocked: Duration,
}

/// What a connection's task learns of a response first.
pub(crate) enum Answer {
    /// All of it.
    Whole(Head, Vec<u8>),
    /// Its head; the rest comes by [`Exchange::poll_output`].
    Streaming(Head),
    /// There is none.
    Failed(Failure),
}

/// How far a request is that has no answer.
pub(crate) enum Progress {
    /// It has waited this long for its handler.
    Queued(Duration),
    /// Its handler has begun; patience lasts this much longer.
    Begun(Duration),
    /// Its handler takes long.
    Long,
}

/// What a guardian is to do.
pub(crate) enum Watch {
    Done,
    /// Look again after this time.
    Again(Duration),
}

impl Exchange {
    pub(crate) fn new(
        front: &Arc<Front>,
        id: HeaderValue,
        bodiless: bool,
        submitted: Instant,
    ) -> Arc<Exchange> {
        Arc::new(Exchange {
            front: Arc::clone(front),
            id,
            changed: Condvar::new(),
            state: Mutex::new(State {
                input: VecDeque::new(),
                input_size: 0,
                input_ended: false,
                pump: None,
                head: None,
                head_was_taken: false,
                bodiless,
                output: Vec::new(),
                sent: 0,
                is_left: false,
                is_reported: false,
                eager: false,
                connection: None,
                own: false,
                waiting: 0,
                submitted,
                started: None,
                finished: None,
                cancelled: None,
                interrupt: None,
                guardian: None,
                guarded: false,
                blocked_since: None,
                blocked: Duration::ZERO,
            }),
        })
    }

    pub(crate) fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Why the request has no complete response of its handler's, as far as is known.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.lock().failure()
    }

    /// Counts and logs that the request failed. Whichever side notices it first does so; the
    /// other is ignored.
    pub(crate) fn report(&self, failure: &Failure) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_reported, true) {
            return;
        }
        let taken = state.taken();
        let stopped = state.cancelled.is_some();
        let what = match (failure.detail(), state.started) {
            ("", Some(_)) if stopped => format!("stopped after {taken:.1?}"),
            ("", None) if stopped => format!("it waited for {taken:.1?}"),
            (detail, _) => detail.to_owned(),
        };
        // Of what is refused, nothing was sent.
        let sent = state.sent;
        let broke =
            if sent > 0 { format!("after {sent} bytes of the body") } else { String::new() };
        drop(state);
        let parts = [&*broke, &*what];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.front.report(&self.id, failure.kind(), &parts.join(": "));
    }

    /// Nothing that holds the lock panics half-way.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the connection's tasks.
impl Exchange {
    /// Appends to the request's body, whatever its size is.
    pub(crate) fn push_input(&self, bytes: Bytes) {
        let mut state = self.lock();
        state.input_size += bytes.len();
        state.input.push_back(bytes);
        self.tell(state);
    }

    /// Ends the request's body.
    pub(crate) fn end_input(&self) {
        let mut state = self.lock();
        state.input_ended = true;
        self.tell(state);
    }

    /// The size of a body that is complete.
    pub(crate) fn complete_input_size(&self) -> Option<usize> {
        let state = self.lock();
        state.input_ended.then_some(state.input_size)
    }

    /// Waits until the handler has read enough for more to be pushed. `false`
    /// if it will read no more.
    pub(crate) fn poll_input_room(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if state.finished.is_some() || state.cancelled.is_some() {
            return Poll::Ready(false);
        }
        if state.has_input_room() {
            return Poll::Ready(true);
        }
        state.pump = Some(context.waker().clone());
        Poll::Pending
    }

    pub(crate) fn poll_answer(&self, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.lock();
        // A request is not given up any more once its handler has ended, so that what
        // was given up is not whole.
        if let Some(cancelled) = state.cancelled {
            return Poll::Ready(Answer::Failed(cancelled.into()));
        }
        match &state.finished {
            Some(Err(failure)) => return Poll::Ready(Answer::Failed(failure.clone())),
            Some(Ok(())) => {
                let output = std::mem::take(&mut state.output);
                return Poll::Ready(match state.take_head() {
                    Some(head) => Answer::Whole(head, output),
                    None => Answer::Failed(Failure::no_response()),
                });
            }
            None => {}
        }
        let flush = state.eager || state.output.len() >= OUTPUT_FLUSH;
        if flush && let Some(head) = state.take_head() {
            state.eager = true;
            return Poll::Ready(Answer::Streaming(head));
        }
        state.connection = Some(context.waker().clone());
        Poll::Pending
    }

    /// Output after [`Answer::Streaming`]; `None` at its end.
    pub(crate) fn poll_output(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Failure>>> {
        let mut state = self.lock();
        if !state.output.is_empty() {
            let was_full = state.output.len() >= OUTPUT_MAX;
            let output = std::mem::take(&mut state.output);
            state.sent += output.len() as u64;
            if was_full {
                // Also if there is always a thread that waits, the client takes something.
                if state.count_blocked() {
                    state.blocked_since = Some(Instant::now());
                }
                self.tell(state);
            }
            return Poll::Ready(Some(Ok(output.into())));
        }
        match (&state.finished, state.cancelled) {
            (_, Some(cancelled)) => Poll::Ready(Some(Err(cancelled.into()))),
            (Some(Err(failure)), None) => Poll::Ready(Some(Err(failure.clone()))),
            (Some(Ok(())), None) => Poll::Ready(None),
            (None, None) => {
                state.connection = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Drops what the handler still writes: the client has all that it gets.
    pub(crate) fn discard_output(&self) {
        let mut state = self.lock();
        state.bodiless = true;
        state.is_left = true;
        state.output.clear();
        // The connection will not learn of one that there is already.
        let failure = state.failure();
        self.tell(state);
        if let Some(failure) = failure {
            self.report(&failure);
        }
    }

    /// Has the handler's thread look again whether it may go on.
    fn tell(&self, state: MutexGuard<'_, State>) {
        let waiting = state.waiting;
        drop(state);
        if waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Notes that the connection's own thread will handle the request: until
    /// [`Exchange::disown`] is called nobody need be woken or look after it.
    pub(crate) fn own(&self) {
        self.lock().own = true;
    }

    /// Notes that the connection's task may run from now on, and wakes it.
    pub(crate) fn disown(&self) {
        let mut state = self.lock();
        state.own = false;
        let waker = state.connection.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether the connection's own thread will handle the request, or does.
    pub(crate) fn is_own(&self) -> bool {
        self.lock().own
    }

    /// Has what is written sent without waiting for more, if the handler began at
    /// least this long ago.
    pub(crate) fn lose_patience(&self, patience: Duration) -> Progress {
        let mut state = self.lock();
        let Some(started) = state.started else {
            return Progress::Queued(state.submitted.elapsed());
        };
        match patience.checked_sub(started.elapsed()) {
            Some(left) if !left.is_zero() => Progress::Begun(left),
            _ => {
                state.eager = true;
                Progress::Long
            }
        }
    }

    /// Whether a guardian has yet to be started; says so once.
    pub(crate) fn wants_guardian(&self) -> bool {
        let mut state = self.lock();
        state.finished.is_none() && !std::mem::replace(&mut state.guarded, true)
    }

    /// Gives the request up. Says whether it was still under way.
    pub(crate) fn cancel(&self, why: Cancelled) -> bool {
        let mut state = self.lock();
        if state.finished.is_some() || state.cancelled.is_some() {
            return false;
        }
        state.cancelled = Some(why);
        if why == Cancelled::ClientGone {
            // HTTP/2 may keep the response for as long as its connection lives.
            state.output = Vec::new();
        }
        if let Some(interrupt) = &state.interrupt {
            interrupt();
        }
        let wakers = [state.connection.take(), state.pump.take(), state.guardian.take()];
        self.tell(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        true
    }

    /// Looks after the time that the handler takes. It is the guardian's, whose
    /// waker this notes.
    pub(crate) fn watch(
        &self,
        context: &mut Context<'_>,
        time_max: Duration,
        client_max: Duration,
    ) -> Watch {
        /// An interrupt can come just before the call that it is meant for, which
        /// then forgets it; so it is repeated.
        const REPEAT: Duration = Duration::from_millis(10);
        /// How long a guardian may take to notice that the server stops.
        const LONGEST: Duration = Duration::from_millis(250);

        let mut state = self.lock();
        state.guardian = Some(context.waker().clone());
        if state.finished.is_some() {
            return Watch::Done;
        }
        if state.cancelled.is_some() {
            return match &state.interrupt {
                Some(interrupt) => {
                    interrupt();
                    Watch::Again(REPEAT)
                }
                // Nobody has begun, and nobody will.
                None if state.started.is_none() => Watch::Done,
                None => Watch::Again(REPEAT),
            };
        }
        let taken = state.taken();
        let (started, left) = (state.started.is_some(), time_max.saturating_sub(taken));
        // Of HTTP/2 a client can take nothing for as long as it likes.
        let stalled = state.output.len() >= OUTPUT_MAX
            && state.blocked_since.is_some_and(|since| since.elapsed() >= client_max);
        drop(state);
        if self.front.is_stopping_now() {
            self.cancel(Cancelled::Stopping);
            Watch::Again(REPEAT)
        } else if stalled {
            self.cancel(Cancelled::ClientGone);
            Watch::Again(REPEAT)
        } else if left.is_zero() {
            self.cancel(if started { Cancelled::Timeout } else { Cancelled::QueueTimeout });
            Watch::Again(REPEAT)
        } else {
            Watch::Again(left.min(LONGEST))
        }
    }
}

/// For the handler's thread.
impl Exchange {
    /// Notes that a handler begins; `false` if it is too late for that. Says how
    /// long the request waited for it.
    pub(crate) fn start(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now = Instant::now();
        state.started = Some(now);
        match state.cancelled {
            None => Some(now.saturating_duration_since(state.submitted)),
            Some(_) => None,
        }
    }

    /// Notes how a handler ended; says how long it took, without what it waited for
    /// its client.
    pub(crate) fn finish(&self, result: Result<(), Failure>) -> Duration {
        let mut state = self.lock();
        let taken = state.taken();
        state.finished = Some(result);
        // The connection may be late to notice it, or not look any more.
        let looks = state.cancelled.is_none() && !state.is_left;
        let failure = if looks { None } else { state.failure() };
        state.interrupt = None;
        // A thread that the handler has left behind waits for nothing, and does not count.
        state.input_ended = true;
        let blocked = state.count_blocked();
        let wakers = [state.connection_waker(), state.pump.take(), state.guardian.take()];
        self.tell(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        if blocked {
            self.front.workers().unblock();
        }
        if let Some(failure) = failure {
            self.report(&failure);
        }
        taken
    }

    pub(crate) fn cancelled(&self) -> Option<Cancelled> {
        self.lock().cancelled
    }

    /// Sets what is called, perhaps more than once, when the request is given up.
    pub(crate) fn set_interrupt(&self, interrupt: Option<Box<dyn Fn() + Send>>) {
        let mut state = self.lock();
        if state.cancelled.is_some()
            && let Some(interrupt) = &interrupt
        {
            interrupt();
        }
        state.interrupt = interrupt;
    }

    /// Reads of the body without waiting: `Some(0)` at its end, `None` if there
    /// is nothing yet.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> Result<Option<usize>, Cancelled> {
        let mut state = self.lock();
        if let Some(cancelled) = state.cancelled {
            return Err(cancelled);
        }
        let was_full = !state.has_input_room();
        let mut count = 0;
        while count < into.len()
            && let Some(first) = state.input.front_mut()
        {
            let size = first.len().min(into.len() - count);
            first.copy_to_slice(&mut into[count..count + size]);
            count += size;
            if first.is_empty() {
                state.input.pop_front();
            }
        }
        state.input_size -= count;
        let pump = if was_full { state.pump.take() } else { None };
        let ended = state.input_ended;
        drop(state);
        if let Some(pump) = pump {
            pump.wake();
        }
        Ok((count > 0 || ended || into.is_empty()).then_some(count))
    }

    /// Waits until [`Exchange::try_read`] would find something, for at most
    /// `timeout`; says how much, and whether the end is among it.
    pub(crate) fn wait_for_input(&self, timeout: Option<Duration>) -> Option<(usize, bool)> {
        let nothing = |state: &State| {
            state.input_size == 0 && !state.input_ended && state.cancelled.is_none()
        };
        let state = self.wait_while(timeout, nothing);
        let ended = state.input_ended || state.cancelled.is_some();
        (!nothing(&state)).then_some((state.input_size, ended))
    }

    /// Sets the head of the response. What was set before is replaced, if it was
    /// not sent yet.
    pub(crate) fn set_head(&self, head: Head) {
        let mut state = self.lock();
        if !state.head_was_taken {
            state.head = Some(head);
        }
        let waker = if state.eager { state.connection_waker() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Appends to the response's body. Waits while the client is slow.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Cancelled> {
        let (first, rest) = bytes.split_at(bytes.len().min(OUTPUT_MAX));
        self.write_part(first)?;
        rest.chunks(OUTPUT_MAX).try_for_each(|part| self.write_part(part))
    }

    fn write_part(&self, bytes: &[u8]) -> Result<(), Cancelled> {
        let full = |state: &State| {
            let goes_on = state.finished.is_none() && state.cancelled.is_none();
            goes_on && state.output.len() >= OUTPUT_MAX
        };
        let mut state = self.lock();
        if full(&state) {
            drop(state);
            state = self.wait_while(None, full);
        }
        if let Some(cancelled) = state.cancelled {
            return Err(cancelled);
        }
        if state.bodiless || state.finished.is_some() {
            return Ok(());
        }
        state.output.extend_from_slice(bytes);
        let flush = state.eager || state.output.len() >= OUTPUT_FLUSH;
        let waker = if flush { state.connection_waker() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Sends what was written so far without waiting for more.
    pub(crate) fn flush(&self) {
        let mut state = self.lock();
        state.eager = true;
        let ready = state.head.is_some() || !state.output.is_empty();
        let waker = if ready { state.connection_waker() } else { None };
        drop(state);
        if ready {
            // The connection of a request that had to wait may be of the lane too.
            self.front.workers().leave_lane();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits while `busy` says so, for at most `timeout`, and lets another
    /// handler run meanwhile.
    fn wait_while(
        &self,
        timeout: Option<Duration>,
        busy: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        if !busy(&state) || timeout == Some(Duration::ZERO) {
            return state;
        }
        // What the client has not been sent, it cannot react to.
        state.eager = true;
        // Threads of one handler may wait at once: it is counted once.
        state.waiting += 1;
        let first = state.waiting == 1 && state.finished.is_none();
        if first {
            state.blocked_since = Some(Instant::now());
        }
        let waker = state.connection_waker();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        let workers = self.front.workers();
        if first {
            workers.block();
        } else {
            workers.leave_lane();
        }
        let state = self.lock();
        let mut state = match timeout {
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, |state| busy(state));
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait_while(state, |state| busy(state));
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.waiting -= 1;
        if state.waiting == 0 && state.count_blocked() {
            drop(state);
            workers.unblock();
            state = self.lock();
        }
        state
    }
}

impl State {
    fn failure(&self) -> Option<Failure> {
        match (&self.finished, self.cancelled) {
            (_, Some(cancelled)) => Some(cancelled.into()),
            (Some(Err(failure)), None) => Some(failure.clone()),
            _ => None,
        }
    }

    /// Whether more of the request's body is taken.
    fn has_input_room(&self) -> bool {
        self.input_size + self.input.len() * PART_SIZE < INPUT_MAX
    }

    /// Counts a wait that ends; `false` if there was none.
    fn count_blocked(&mut self) -> bool {
        let since = self.blocked_since.take();
        self.blocked += since.map_or(Duration::ZERO, |since| since.elapsed());
        since.is_some()
    }

    /// What wakes the connection's task, if it can do something then.
    fn connection_waker(&mut self) -> Option<Waker> {
        if self.own { None } else { self.connection.take() }
    }

    fn take_head(&mut self) -> Option<Head> {
        let head = self.head.take();
        self.head_was_taken |= head.is_some();
        head
    }

    /// How long the handler has taken, without what it waited for its client; or
    /// how long it has been waited for.
    fn taken(&self) -> Duration {
        match self.started {
            None => self.submitted.elapsed(),
            Some(started) => {
                let blocked = self.blocked_since.map(|since| since.elapsed());
                started.elapsed().saturating_sub(self.blocked + blocked.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
impl Exchange {
    /// Of a front end whose handler does nothing.
    pub(crate) fn of_test() -> Arc<Exchange> {
        Exchange::new(&Front::of_test(), HeaderValue::from_static("test"), false, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// How many parts of this size are kept for a handler that reads none.
    fn fill(exchange: &Exchange, size: usize) -> usize {
        let mut context = Context::from_waker(Waker::noop());
        let mut count = 0;
        while exchange.poll_input_room(&mut context) == Poll::Ready(true) {
            exchange.push_input(vec![0; size].into());
            count += 1;
        }
        count
    }

    #[test]
    fn a_body_in_small_parts_takes_no_more_room_than_others() {
        for size in [1, 100, 10_000] {
            let exchange = Exchange::of_test();
            let count = fill(&exchange, size);
            assert!(count > 10 && count * (size + PART_SIZE) < INPUT_MAX + size + PART_SIZE);
            // There is room again once it is read.
            let mut bytes = vec![0; 2 * INPUT_MAX];
            assert_eq!(exchange.try_read(&mut bytes), Ok(Some(count * size)));
            assert_eq!(fill(&exchange, size), count);
        }
    }
}
