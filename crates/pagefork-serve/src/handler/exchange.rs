//! One request, while it is answered: what the connection's task and the handler's thread share.
//!
//! ```text
//! connection's task                                        handler's thread
//!   pump task: body frames --> input, bounded    --> BodyReader::read
//!   service future         <-- head              <-- ResponseWriter::start
//!   response body          <-- output, bounded   <-- ResponseWriter::write
//!   guardian: time limit   --> cancelled         --> the interrupt, and every wait ends
//! ```
//!
//! An exchange is cancelled before its handler ends or not at all, so a response that looks
//! whole is whole.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::handler::Phase;
use crate::handler::failure::{Failure, FailureKind, Severity};
use crate::handler::lock::lock;

/// Output is sent without waiting for more from this size on, in bytes.
const OUTPUT_FLUSH: usize = 32 * 1024;

/// Bytes of unread response from which on the handler waits for its client.
const OUTPUT_MAX: usize = 256 * 1024;

/// Bytes of unread request body from which on the client waits for the handler.
const INPUT_MAX: usize = 128 * 1024;

/// What each part of a body costs besides its bytes: a chunk can be of one byte.
const PART_SIZE: usize = 64;

/// What an exchange needs of the server around it.
pub(crate) trait ExchangeHost: Send + Sync {
    /// Counts and logs that the request failed.
    fn report(&self, id: &HeaderValue, kind: FailureKind, detail: &str);

    /// Notes how long a request waited for its handler.
    fn record_wait(&self, time: Duration);

    /// Notes how long a phase of the handler took.
    fn record(&self, phase: Phase, time: Duration);

    /// Writes a record about the request to the log.
    fn log(&self, severity: Severity, id: &HeaderValue, text: &str);

    /// Whether requests under way are to be interrupted.
    fn is_stopping_now(&self) -> bool;

    /// The calling handler's client is to see what was written: its connection may be of the
    /// event loop that this thread has left.
    fn detach(&self);

    /// The calling handler begins to wait for its client.
    fn block(&self);

    /// The handler goes on.
    fn unblock(&self);
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

pub(crate) struct Exchange {
    host: Arc<dyn ExchangeHost>,
    id: HeaderValue,
    submitted: Instant,
    state: Mutex<ExchangeState>,
    /// Notified whenever a handler's thread that waits may go on.
    changed: Condvar,
}

#[derive(Default)]
struct ExchangeState {
    input: VecDeque<Bytes>,
    input_size: usize,
    input_ended: bool,
    pump: Option<Waker>,

    head: Option<ResponseHead>,
    head_was_taken: bool,
    /// Whether the response has no body: then writes are dropped.
    bodiless: bool,
    output: Vec<u8>,
    /// Bytes of the body that the connection has taken of a response that streams.
    sent: u64,
    /// Whether the connection has all that it will take.
    is_left: bool,
    /// Whether it was counted and logged that the request failed.
    is_reported: bool,
    /// Whether output is sent at once, without waiting for more.
    eager: bool,
    connection: Option<Waker>,
    /// Whether the thread that drives the connection's event loop handles the request: then
    /// the response cannot be taken before that thread comes back.
    is_inline: bool,
    /// How many threads of the handler wait.
    waiting: usize,

    started: Option<Instant>,
    finished: Option<Result<(), Failure>>,
    cancelled: Option<FailureKind>,
    interrupt: Option<Box<dyn Fn() + Send>>,
    guardian: Option<Waker>,
    guarded: bool,
    /// Since when the handler waits for its client, and how long it did before.
    blocked_since: Option<Instant>,
    blocked: Duration,
}

/// The beginning of a response, as the connection's task gets it.
pub(crate) enum ResponseStart {
    /// All of it.
    Whole(ResponseHead, Vec<u8>),
    /// Its head; the rest comes by [`Exchange::poll_output`].
    Streaming(ResponseHead),
    /// There is none.
    Failed(Failure),
}

/// How far a request without a response is.
pub(crate) enum HandlerProgress {
    /// It has waited this long for its handler.
    Queued(Duration),
    /// Its handler has begun, and its deadline is this far away.
    Begun(Duration),
    /// Its handler has exceeded the deadline.
    Late,
}

impl Exchange {
    pub(crate) fn new(
        host: Arc<dyn ExchangeHost>,
        id: HeaderValue,
        bodiless: bool,
        submitted: Instant,
    ) -> Arc<Exchange> {
        let state = Mutex::new(ExchangeState { bodiless, ..ExchangeState::default() });
        Arc::new(Exchange { host, id, submitted, state, changed: Condvar::new() })
    }

    pub(crate) fn host(&self) -> &dyn ExchangeHost {
        &*self.host
    }

    /// Why the request has no complete response, as far as is known.
    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.state).failure()
    }

    /// Counts and logs that the request failed. Of several reports the first counts.
    pub(crate) fn report(&self, failure: &Failure) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_reported, true) {
            return;
        }
        let taken = state.taken(self.submitted);
        let stopped = state.cancelled.is_some();
        let what = match (failure.detail(), state.started) {
            ("", Some(_)) if stopped => format!("stopped after {taken:.1?}"),
            ("", None) if stopped => format!("it waited for {taken:.1?}"),
            (detail, _) => detail.to_owned(),
        };
        // Nothing was sent of a request that was refused.
        let sent = state.sent;
        let broke =
            if sent > 0 { format!("after {sent} bytes of the body") } else { String::new() };
        drop(state);
        let parts = [&*broke, &*what];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.host.report(&self.id, failure.kind(), &parts.join(": "));
    }
}

/// For the connection's tasks.
impl Exchange {
    /// Appends to the request's body, even if there is no room for it.
    pub(crate) fn push_input(&self, bytes: Bytes) {
        let mut state = lock(&self.state);
        state.input_size += bytes.len();
        state.input.push_back(bytes);
        self.notify(state, []);
    }

    /// Ends the request's body.
    pub(crate) fn end_input(&self) {
        let mut state = lock(&self.state);
        state.input_ended = true;
        self.notify(state, []);
    }

    /// The size of a body that is complete.
    pub(crate) fn complete_input_size(&self) -> Option<usize> {
        let state = lock(&self.state);
        state.input_ended.then_some(state.input_size)
    }

    /// Waits until the handler has read enough for more to be pushed. `false`
    /// if it will read no more.
    pub(crate) fn poll_input_room(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = lock(&self.state);
        if state.finished.is_some() || state.cancelled.is_some() {
            return Poll::Ready(false);
        }
        if state.has_input_room() {
            return Poll::Ready(true);
        }
        state.pump = Some(context.waker().clone());
        Poll::Pending
    }

    pub(crate) fn poll_start(&self, context: &mut Context<'_>) -> Poll<ResponseStart> {
        let mut state = lock(&self.state);
        // A request is not given up any more once its handler has ended, so that what
        // was given up is not whole.
        if let Some(failure) = state.failure() {
            return Poll::Ready(ResponseStart::Failed(failure));
        }
        if state.finished.is_some() {
            let output = std::mem::take(&mut state.output);
            return Poll::Ready(match state.take_head() {
                Some(head) => ResponseStart::Whole(head, output),
                None => ResponseStart::Failed(Failure::new(
                    FailureKind::NoResponse,
                    "it wrote no head of a response",
                )),
            });
        }
        let flush = state.eager || state.output.len() >= OUTPUT_FLUSH;
        if flush && let Some(head) = state.take_head() {
            state.eager = true;
            return Poll::Ready(ResponseStart::Streaming(head));
        }
        state.connection = Some(context.waker().clone());
        Poll::Pending
    }

    /// Output after [`ResponseStart::Streaming`]; `None` at its end.
    pub(crate) fn poll_output(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Failure>>> {
        let mut state = lock(&self.state);
        if !state.output.is_empty() {
            let was_full = state.output.len() >= OUTPUT_MAX;
            let output = std::mem::take(&mut state.output);
            state.sent += output.len() as u64;
            if was_full {
                // Also if there is always a thread that waits, the client takes something.
                if state.count_blocked() {
                    state.blocked_since = Some(Instant::now());
                }
                self.notify(state, []);
            }
            return Poll::Ready(Some(Ok(output.into())));
        }
        if let Some(failure) = state.failure() {
            return Poll::Ready(Some(Err(failure)));
        }
        if state.finished.is_some() {
            return Poll::Ready(None);
        }
        state.connection = Some(context.waker().clone());
        Poll::Pending
    }

    /// Drops what the handler still writes: the client has all that it gets.
    pub(crate) fn discard_output(&self) {
        let mut state = lock(&self.state);
        state.bodiless = true;
        state.is_left = true;
        state.output.clear();
        // The connection will not learn of one that there is already.
        let failure = state.failure();
        self.notify(state, []);
        if let Some(failure) = failure {
            self.report(&failure);
        }
    }

    /// Wakes tasks, and the handler's threads: they look again whether they may go on.
    fn notify<const N: usize>(
        &self,
        state: MutexGuard<'_, ExchangeState>,
        tasks: [Option<Waker>; N],
    ) {
        let waiting = state.waiting;
        wake(state, tasks);
        if waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// The thread that drives the connection's event loop will handle the request: until
    /// [`Exchange::detach`] the connection's task need not be woken.
    pub(crate) fn run_inline(&self) {
        lock(&self.state).is_inline = true;
    }

    /// A thread drives the connection's event loop again: wakes the connection's task.
    pub(crate) fn detach(&self) {
        let mut state = lock(&self.state);
        state.is_inline = false;
        let waker = state.connection.take();
        wake(state, [waker]);
    }

    pub(crate) fn is_inline(&self) -> bool {
        lock(&self.state).is_inline
    }

    /// Says how far the handler is. If it began at least `patience` ago, output is sent
    /// without waiting for more from now on.
    pub(crate) fn check_deadline(&self, patience: Duration) -> HandlerProgress {
        let mut state = lock(&self.state);
        let Some(started) = state.started else {
            return HandlerProgress::Queued(self.submitted.elapsed());
        };
        match patience.checked_sub(started.elapsed()) {
            Some(left) if !left.is_zero() => HandlerProgress::Begun(left),
            _ => {
                state.eager = true;
                HandlerProgress::Late
            }
        }
    }

    /// Whether a guardian has yet to be started; says so once.
    pub(crate) fn wants_guardian(&self) -> bool {
        let mut state = lock(&self.state);
        state.finished.is_none() && !std::mem::replace(&mut state.guarded, true)
    }

    /// Gives the request up. Says whether it was still under way.
    pub(crate) fn cancel(&self, why: FailureKind) -> bool {
        let mut state = lock(&self.state);
        if state.finished.is_some() || state.cancelled.is_some() {
            return false;
        }
        state.cancelled = Some(why);
        if why == FailureKind::ClientGone {
            // HTTP/2 may keep the response for as long as its connection lives.
            state.output = Vec::new();
        }
        if let Some(interrupt) = &state.interrupt {
            interrupt();
        }
        let wakers = [state.connection.take(), state.pump.take(), state.guardian.take()];
        self.notify(state, wakers);
        true
    }

    /// Enforces the time limits of the handler. For the guardian, whose waker this notes, and
    /// which looks again after the time that it gets, unless there is none.
    pub(crate) fn watch(
        &self,
        context: &mut Context<'_>,
        time_max: Duration,
        client_max: Duration,
    ) -> Option<Duration> {
        /// An interrupt that comes just before the guest is called is forgotten; so it is
        /// repeated.
        const REPEAT: Duration = Duration::from_millis(10);
        /// How long a guardian may take to notice that the server stops.
        const LONGEST: Duration = Duration::from_millis(250);

        let mut state = lock(&self.state);
        state.guardian = Some(context.waker().clone());
        if state.finished.is_some() {
            return None;
        }
        if state.cancelled.is_some() {
            if let Some(interrupt) = &state.interrupt {
                interrupt();
            } else if state.started.is_none() {
                // No handler has begun, and none will.
                return None;
            }
            return Some(REPEAT);
        }
        let taken = state.taken(self.submitted);
        let (started, left) = (state.started.is_some(), time_max.saturating_sub(taken));
        // Of HTTP/2 a client can take nothing for as long as it likes.
        let stalled = state.output.len() >= OUTPUT_MAX
            && state.blocked_since.is_some_and(|since| since.elapsed() >= client_max);
        drop(state);
        if self.host.is_stopping_now() {
            self.cancel(FailureKind::Stopping);
        } else if stalled {
            self.cancel(FailureKind::ClientGone);
        } else if left.is_zero() {
            self.cancel(if started { FailureKind::Timeout } else { FailureKind::QueueTimeout });
        } else {
            return Some(left.min(LONGEST));
        }
        Some(REPEAT)
    }
}

/// For the handler's thread.
impl Exchange {
    /// Notes that a handler begins; `false` if it is too late for that. Says how
    /// long the request waited for it.
    pub(crate) fn start(&self) -> Option<Duration> {
        let mut state = lock(&self.state);
        let now = Instant::now();
        state.started = Some(now);
        match state.cancelled {
            None => Some(now.saturating_duration_since(self.submitted)),
            Some(_) => None,
        }
    }

    /// Notes how a handler ended; says how long it took, without what it waited for
    /// its client.
    pub(crate) fn finish(&self, result: Result<(), Failure>) -> Duration {
        let mut state = lock(&self.state);
        let taken = state.taken(self.submitted);
        state.finished = Some(result);
        // The connection may be late to notice it, or not look any more.
        let looks = state.cancelled.is_none() && !state.is_left;
        let failure = if looks { None } else { state.failure() };
        state.interrupt = None;
        // A thread that the handler has left behind waits for nothing, and does not count.
        state.input_ended = true;
        let blocked = state.count_blocked();
        let wakers = [state.connection_waker(), state.pump.take(), state.guardian.take()];
        self.notify(state, wakers);
        if blocked {
            self.host.unblock();
        }
        if let Some(failure) = failure {
            self.report(&failure);
        }
        taken
    }

    pub(crate) fn cancelled(&self) -> Option<FailureKind> {
        lock(&self.state).cancelled
    }

    /// Sets the closure that is called, perhaps more than once, when the request is given up.
    pub(crate) fn set_interrupt(&self, interrupt: Option<Box<dyn Fn() + Send>>) {
        let mut state = lock(&self.state);
        if state.cancelled.is_some()
            && let Some(interrupt) = &interrupt
        {
            interrupt();
        }
        state.interrupt = interrupt;
    }

    /// Reads of the body without waiting: `Some(0)` at its end, `None` if there
    /// is nothing yet.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> Result<Option<usize>, FailureKind> {
        let mut state = lock(&self.state);
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
        wake(state, [pump]);
        Ok((count > 0 || ended || into.is_empty()).then_some(count))
    }

    /// Waits until [`Exchange::try_read`] would find something, for at most
    /// `timeout`; says how much, and whether the end is among it.
    pub(crate) fn wait_for_input(&self, timeout: Option<Duration>) -> Option<(usize, bool)> {
        let nothing = |state: &ExchangeState| {
            state.input_size == 0 && !state.input_ended && state.cancelled.is_none()
        };
        let state = self.wait_while(timeout, nothing);
        let ended = state.input_ended || state.cancelled.is_some();
        (!nothing(&state)).then_some((state.input_size, ended))
    }

    /// Sets the head of the response. What was set before is replaced, if it was
    /// not sent yet.
    pub(crate) fn set_head(&self, head: ResponseHead) {
        let mut state = lock(&self.state);
        if !state.head_was_taken {
            state.head = Some(head);
        }
        let waker = if state.eager { state.connection_waker() } else { None };
        wake(state, [waker]);
    }

    /// Appends to the response's body. Waits while the client is slow.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), FailureKind> {
        let (first, rest) = bytes.split_at(bytes.len().min(OUTPUT_MAX));
        self.write_part(first)?;
        rest.chunks(OUTPUT_MAX).try_for_each(|part| self.write_part(part))
    }

    fn write_part(&self, bytes: &[u8]) -> Result<(), FailureKind> {
        let full = |state: &ExchangeState| {
            let goes_on = state.finished.is_none() && state.cancelled.is_none();
            goes_on && state.output.len() >= OUTPUT_MAX
        };
        let mut state = lock(&self.state);
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
        wake(state, [waker]);
        Ok(())
    }

    /// Sends what was written so far without waiting for more.
    pub(crate) fn flush(&self) {
        let mut state = lock(&self.state);
        state.eager = true;
        let ready = state.head.is_some() || !state.output.is_empty();
        let waker = if ready { state.connection_waker() } else { None };
        drop(state);
        if ready {
            self.host.detach();
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
        busy: impl Fn(&ExchangeState) -> bool,
    ) -> MutexGuard<'_, ExchangeState> {
        let mut state = lock(&self.state);
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
        wake(state, [waker]);
        if first {
            self.host.block();
        } else {
            self.host.detach();
        }
        let state = lock(&self.state);
        let timeout = timeout.unwrap_or(Duration::MAX);
        let waited = self.changed.wait_timeout_while(state, timeout, |state| busy(state));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        if state.waiting == 0 && state.count_blocked() {
            drop(state);
            self.host.unblock();
            state = lock(&self.state);
        }
        state
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Wakes tasks once the lock is free.
fn wake<const N: usize>(state: MutexGuard<'_, ExchangeState>, tasks: [Option<Waker>; N]) {
    drop(state);
    tasks.into_iter().flatten().for_each(Waker::wake);
}

impl ExchangeState {
    fn failure(&self) -> Option<Failure> {
        match (&self.finished, self.cancelled) {
            (_, Some(cancelled)) => Some(Failure::new(cancelled, "")),
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
        if self.is_inline { None } else { self.connection.take() }
    }

    fn take_head(&mut self) -> Option<ResponseHead> {
        let head = self.head.take();
        self.head_was_taken |= head.is_some();
        head
    }

    /// How long the handler has taken, without what it waited for its client; or
    /// how long it has been waited for.
    fn taken(&self, submitted: Instant) -> Duration {
        match self.started {
            None => submitted.elapsed(),
            Some(started) => {
                let blocked = self.blocked_since.map(|since| since.elapsed());
                started.elapsed().saturating_sub(self.blocked + blocked.unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Exchange {
        /// Of a host that does nothing.
        pub(crate) fn of_test() -> Arc<Exchange> {
            struct Idle;
            impl ExchangeHost for Idle {
                fn report(&self, _: &HeaderValue, _: FailureKind, _: &str) {}
                fn record_wait(&self, _: Duration) {}
                fn record(&self, _: Phase, _: Duration) {}
                fn log(&self, _: Severity, _: &HeaderValue, _: &str) {}
                fn is_stopping_now(&self) -> bool {
                    false
                }
                fn detach(&self) {}
                fn block(&self) {}
                fn unblock(&self) {}
            }
            Exchange::new(Arc::new(Idle), HeaderValue::from_static("test"), false, Instant::now())
        }
    }

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
