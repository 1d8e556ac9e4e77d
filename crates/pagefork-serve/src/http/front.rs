//! The front end: from a request to its handler and back.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request as HttpRequest, Response, StatusCode, Version, header,
};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::handler::exchange::{Answer, Exchange, Progress, Watch};
use crate::handler::failure::{Cancelled, Failure, FailureKind};
use crate::handler::{BodyReader, Handler, Head, Request, ResponseWriter};
use crate::http::body::{Ending, ResponseBody};
use crate::http::config::Config;
use crate::http::pump::Pump;
use crate::http::talk::{BodyEnd, Turn};
use crate::observe::history::History;
use crate::observe::identity::{self, Identities};
use crate::observe::log::{self, Access, AccessLog, Log, Outcome};
use crate::observe::metrics::Metrics;
use crate::observe::recent::Recent;
use crate::threads::workers::{Job, WorkerLimits, Workers};

/// What all connections share.
pub(crate) struct Front {
    pub(crate) metrics: Metrics,
    pub(crate) recent: Recent,
    pub(crate) history: History,
    pub(crate) log: Arc<Log>,
    pub(crate) access: Option<AccessLog>,
    pub(crate) begun: Instant,
    /// There once the server serves.
    handler: OnceLock<Box<dyn Handler>>,
    workers: Arc<Workers>,
    identities: Identities,
    pub(super) limits: Limits,
    stage: AtomicU8,
    /// Where guardians run that are needed when nothing else of a request is left.
    runtime: OnceLock<tokio::runtime::Handle>,
}

/// What requests are held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) timeout: Duration,
    pub(super) queue_timeout: Duration,
    pub(super) client_timeout: Duration,
    pub(super) patience: Duration,
    pub(super) body_max: u64,
    pub(super) head_max: usize,
    pub(super) fields_max: usize,
}

/// How long a handler may be kept waiting for a body that is not complete.
const BODY_PATIENCE: Duration = Duration::from_millis(2);

/// How long a request may wait before it looks again whether others are stuck.
const QUEUE_LOOK_MAX: Duration = Duration::from_millis(16);

/// Stages of a server's life: it cannot answer requests yet.
const STARTING: u8 = 0;
/// It answers requests.
const SERVING: u8 = 1;
/// Requests under way end.
const STOPPING: u8 = 2;
/// Requests under way are ended.
const STOPPING_NOW: u8 = 3;

impl Front {
    pub(crate) fn new(config: &mut Config) -> Arc<Front> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let busy = config.concurrency.max(1);
        let limits = WorkerLimits {
            running: processors.min(busy),
            busy,
            queued: config.queue,
            patience: config.patience,
        };
        let log = Arc::new(Log::new(config.take_log()));
        let access = config.take_access_log();
        let access = access.map(|(format, to)| AccessLog::new(format, to, Arc::clone(&log)));
        Arc::new(Front {
            metrics: Metrics::default(),
            recent: Recent::default(),
            history: History::default(),
            log,
            access,
            begun: Instant::now(),
            handler: OnceLock::new(),
            workers: Arc::new(Workers::new(limits, run)),
            identities: Identities::new(config.keep_request_ids),
            limits: Limits {
                timeout: config.timeout,
                queue_timeout: config.queue_timeout,
                client_timeout: config.client_timeout,
                patience: config.patience,
                body_max: config.body_max,
                head_max: config.head_max,
                fields_max: config.fields_max,
            },
            stage: AtomicU8::new(STARTING),
            runtime: OnceLock::new(),
        })
    }

    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// What answers requests, once the server serves.
    pub(crate) fn handler(&self) -> Option<&dyn Handler> {
        self.handler.get().map(|handler| &**handler)
    }

    /// Names what answers requests; from then on the server serves.
    pub(crate) fn set_handler(&self, handler: Box<dyn Handler>) {
        let _ = self.handler.set(handler);
        self.stage.fetch_max(SERVING, Ordering::Release);
    }

    /// Names the runtime that outlives all connections.
    pub(crate) fn set_runtime(&self, runtime: tokio::runtime::Handle) {
        let _ = self.runtime.set(runtime);
    }

    pub(crate) fn stop(&self) {
        self.stage.fetch_max(STOPPING, Ordering::Relaxed);
    }

    pub(crate) fn stop_now(&self) {
        self.stage.fetch_max(STOPPING_NOW, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping_now(&self) -> bool {
        self.stage.load(Ordering::Relaxed) >= STOPPING_NOW
    }

    /// What the server does, in a word.
    pub(crate) fn stage(&self) -> &'static str {
        match self.stage.load(Ordering::Acquire) {
            STARTING => "starting",
            SERVING => "serving",
            _ => "stopping",
        }
    }

    /// Goes on with the logs in the files that have their names now.
    pub(crate) fn reopen_logs(&self) {
        self.log.reopen();
        self.access.iter().for_each(AccessLog::reopen);
    }

    /// Counts, logs and remembers that a request failed: to be called once for each.
    pub(crate) fn report(&self, id: &HeaderValue, kind: FailureKind, detail: &str) {
        let text = match detail {
            "" => kind.name().to_owned(),
            detail => format!("{}: {detail}", kind.name()),
        };
        self.metrics.count_failure(kind);
        self.log.request(kind.severity(), id, &text);
        self.recent.add(kind, String::from_utf8_lossy(id.as_bytes()).into_owned(), detail);
    }

    /// An answer to a request that the HTTP library has refused: what is known of it is that it
    /// failed.
    pub(crate) fn refuse(&self, kind: FailureKind, detail: &str, remote: SocketAddr) -> Vec<u8> {
        let id = self.identities.fresh();
        self.report(&id, kind, detail);
        let status = kind.status();
        self.metrics.count_status(status.as_u16());
        let text = explanation(kind, &id);
        if let Some(access) = &self.access {
            access.write(&Access {
                remote: &remote.ip().to_string(),
                request: None,
                status: status.as_u16(),
                sent: text.len() as u64,
                time: Duration::ZERO,
                id: &id,
                outcome: Outcome::Refused(kind),
            });
        }
        format!(
            "HTTP/1.1 {} {}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\
             {}: {}\r\nconnection: close\r\ndate: {}\r\n\r\n{text}",
            status.as_u16(),
            status.canonical_reason().unwrap_or_default(),
            text.len(),
            identity::FIELD,
            String::from_utf8_lossy(id.as_bytes()),
            log::time::http(SystemTime::now()),
        )
        .into_bytes()
    }

    /// Answers a request.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: HttpRequest<Incoming>,
        remote: SocketAddr,
        local: SocketAddr,
        turn: Turn,
    ) -> Response<ResponseBody> {
        let begun = Instant::now();
        let (mut head, body) = request.into_parts();
        let excess = self.limits.head_excess(&head);
        let id = self.identities.of(&head.headers);
        head.headers.insert(identity::FIELD, id.clone());
        let hosts = head.headers.get_all(header::HOST).iter().count();
        let fits = hosts == 1 || hosts == 0 && head.version != Version::HTTP_11;
        // What the target names is what the client means, and HTTP/2 has nothing else.
        if let Some(authority) = head.uri.authority() {
            let host = authority.as_str().rsplit('@').next().unwrap_or_default();
            if let Ok(host) = HeaderValue::from_str(host) {
                head.headers.insert(header::HOST, host);
            }
        }
        let bodiless = head.method == Method::HEAD;
        let body_end = turn.body();
        let ending = Ending::new(&self, &head, &id, remote, begun, turn);

        let announced = body.size_hint().exact();
        let failure = if head.method == Method::CONNECT {
            Some(Failure::new(FailureKind::NotImplemented, "CONNECT is for proxies"))
        } else if !fits {
            let detail = format!("{hosts} fields `Host`, where there must be one");
            Some(Failure::new(FailureKind::BadRequest, detail))
        } else if let Some(detail) = excess {
            Some(Failure::new(FailureKind::HeadTooLarge, detail))
        } else if let Some(size) = announced.filter(|size| *size > self.limits.body_max) {
            let detail = format!("{size} bytes are announced");
            Some(Failure::new(FailureKind::BodyTooLarge, detail))
        } else {
            None
        };
        if let Some(failure) = failure {
            self.report(&id, failure.kind(), failure.detail());
            return self.refusal(failure.kind(), bodiless, &id, ending);
        }

        let exchange = Exchange::new(&self, id.clone(), bodiless, begun);
        self.receive(&exchange, body, body_end).await;
        let complete = exchange.complete_input_size().map(|size| size as u64);
        let request = Request {
            head,
            body: BodyReader(Arc::clone(&exchange)),
            body_size: complete.or(announced),
            id: id.clone(),
            remote,
            local,
        };
        // From here on, being dropped means that the client went away.
        let under_way = UnderWay(Some(Arc::clone(&exchange)));
        let may_wait = complete.is_none();
        let job = Box::new(Job { request, exchange: Arc::clone(&exchange), may_wait });
        if self.workers.submit(job).is_err() {
            under_way.disarm();
            exchange.report(&Failure::new(FailureKind::QueueFull, ""));
            return self.refusal(FailureKind::QueueFull, bodiless, &id, ending);
        }
        let failure = match self.await_answer(&exchange).await {
            Answer::Whole(head, output) => match is_as_announced(&head, &output, bodiless) {
                Ok(()) => {
                    under_way.disarm();
                    return whole(head, output, bodiless, &id, ending);
                }
                Err(failure) => failure,
            },
            Answer::Streaming(head) => {
                return self.streaming(head, under_way, bodiless, &id, ending);
            }
            Answer::Failed(failure) => failure,
        };
        under_way.disarm();
        exchange.report(&failure);
        self.refusal(failure.kind(), bodiless, &id, ending)
    }

    /// Waits for the beginning of a response. Handlers that take long get a
    /// guardian, and are not waited for by others.
    async fn await_answer(self: &Arc<Self>, exchange: &Arc<Exchange>) -> Answer {
        let patience = self.limits.patience;
        let mut look = pin!(tokio::time::sleep(patience));
        let mut interval = patience;
        let mut is_patient = true;
        poll_fn(|context| {
            loop {
                if let Poll::Ready(answer) = exchange.poll_answer(context) {
                    return Poll::Ready(answer);
                }
                // Asked first, because to set a timer costs a system call.
                if exchange.is_own() || !is_patient || look.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let next = match exchange.lose_patience(patience) {
                    Progress::Queued(waited) => {
                        if self.is_stopping_now() {
                            exchange.cancel(Cancelled::Stopping);
                        } else if waited >= self.limits.queue_timeout {
                            exchange.cancel(Cancelled::QueueTimeout);
                        } else {
                            self.workers.relieve();
                        }
                        interval = (interval * 2).min(QUEUE_LOOK_MAX).max(patience);
                        interval = interval.max(Duration::from_millis(1));
                        interval
                    }
                    Progress::Begun(left) => left,
                    Progress::Long => {
                        is_patient = false;
                        self.workers.relieve();
                        self.guard(exchange);
                        continue;
                    }
                };
                look.as_mut().reset(tokio::time::Instant::now() + next);
            }
        })
        .await
    }

    /// Starts the guardian of a request, if there is none yet.
    fn guard(self: &Arc<Self>, exchange: &Arc<Exchange>) {
        if !exchange.wants_guardian() {
            return;
        }
        let Some(runtime) = self.runtime.get() else { return };
        let (exchange, time_max) = (Arc::clone(exchange), self.limits.timeout);
        let client_max = self.limits.client_timeout;
        runtime.spawn(async move {
            let mut again = pin!(tokio::time::sleep(Duration::ZERO));
            poll_fn(|context| {
                loop {
                    match exchange.watch(context, time_max, client_max) {
                        Watch::Done => return Poll::Ready(()),
                        Watch::Again(time) => {
                            again.as_mut().reset(tokio::time::Instant::now() + time);
                            if again.as_mut().poll(context).is_pending() {
                                return Poll::Pending;
                            }
                        }
                    }
                }
            })
            .await;
        });
    }

    /// Takes the beginning of a request's body, and has the rest taken by a task.
    /// Most bodies are complete after a moment, so that their size is known.
    async fn receive(
        self: &Arc<Self>,
        exchange: &Arc<Exchange>,
        body: Incoming,
        body_end: BodyEnd,
    ) {
        if body.is_end_stream() {
            exchange.end_input();
            return;
        }
        let mut pump = Pump { front: Arc::clone(self), body, body_end, received: 0 };
        let mut patience = pin!(tokio::time::sleep(self.limits.patience.min(BODY_PATIENCE)));
        let done = poll_fn(|context| {
            if pump.poll(exchange, context).is_ready() {
                return Poll::Ready(true);
            }
            let full = exchange.poll_input_room(context).is_pending();
            let waited = patience.as_mut().poll(context).is_ready();
            if full || waited { Poll::Ready(false) } else { Poll::Pending }
        })
        .await;
        if !done {
            let exchange = Arc::clone(exchange);
            tokio::spawn(pump.run(exchange));
        }
    }

    fn streaming(
        self: &Arc<Self>,
        head: Head,
        under_way: UnderWay,
        bodiless: bool,
        id: &HeaderValue,
        ending: Ending,
    ) -> Response<ResponseBody> {
        let promised = content_length(&head.headers);
        let status = head.status;
        let without_body = bodiless || promised == Some(0) || has_no_body(status);
        if let Some(exchange) = &under_way.0 {
            self.guard(exchange);
            if without_body {
                exchange.discard_output();
            }
        }
        if without_body {
            // Nobody asks for a body, and the handler may still be at work.
            under_way.disarm();
            return respond(head, ResponseBody::whole(Bytes::new(), ending.status(status)), id);
        }
        let body = ResponseBody::streaming(under_way, promised, ending.status(head.status));
        respond(head, body, id)
    }

    /// A response that says why there is no other.
    fn refusal(
        &self,
        kind: FailureKind,
        bodiless: bool,
        id: &HeaderValue,
        ending: Ending,
    ) -> Response<ResponseBody> {
        let mut headers = HeaderMap::new();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        if kind.is_passing() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        let body = if bodiless { String::new() } else { explanation(kind, id) };
        let body = ResponseBody::whole(body.into(), ending.refused(kind));
        respond(Head { status: kind.status(), headers }, body, id)
    }
}

impl Limits {
    /// By what a head is too large. Of HTTP/1 the library sees to that.
    fn head_excess(&self, head: &http::request::Parts) -> Option<String> {
        if head.version != Version::HTTP_2 {
            return None;
        }
        // Each field counts as RFC 9113 has it.
        let size = |name: usize, value: usize| name + value + 32;
        let fields = head.headers.iter();
        let fields: usize =
            fields.map(|(name, value)| size(name.as_str().len(), value.len())).sum();
        let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
        let bytes = fields + size(5, target);
        if bytes > self.head_max {
            return Some(format!("{bytes} bytes"));
        }
        (head.headers.len() > self.fields_max).then(|| format!("{} fields", head.headers.len()))
    }
}

/// What a client is told of a request that failed.
fn explanation(kind: FailureKind, id: &HeaderValue) -> String {
    let status = kind.status();
    format!(
        "{} {}\n{}\nrequest id: {}\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        kind.message(),
        String::from_utf8_lossy(id.as_bytes())
    )
}

/// Whether a response that is complete has the size that it says.
fn is_as_announced(head: &Head, output: &[u8], bodiless: bool) -> Result<(), Failure> {
    let announced = content_length(&head.headers).filter(|_| !bodiless);
    match announced.filter(|_| !has_no_body(head.status)) {
        Some(announced) if announced != output.len() as u64 => {
            let detail = format!("it announced {announced} bytes and wrote {}", output.len());
            Err(Failure::new(FailureKind::BadResponse, detail))
        }
        _ => Ok(()),
    }
}

/// A response that is complete.
fn whole(
    head: Head,
    output: Vec<u8>,
    bodiless: bool,
    id: &HeaderValue,
    ending: Ending,
) -> Response<ResponseBody> {
    let bodiless = bodiless || has_no_body(head.status);
    let output = if bodiless { Vec::new() } else { output };
    let body = ResponseBody::whole(output.into(), ending.status(head.status));
    respond(head, body, id)
}

/// Whether responses of this status end with their head.
fn has_no_body(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn respond(mut head: Head, body: ResponseBody, id: &HeaderValue) -> Response<ResponseBody> {
    if head.status == StatusCode::NO_CONTENT {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response.headers_mut().insert(identity::FIELD, id.clone());
    response
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(number)
}

/// The number that a field says.
pub(crate) fn number(value: &HeaderValue) -> Option<u64> {
    // `parse` would take a sign.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok()
}

/// Does a job, on a thread of the workers. Says how long it took.
fn run(job: Box<Job>) -> Duration {
    let Job { request, exchange, .. } = *job;
    let front = Arc::clone(exchange.front());
    let Some(waited) = exchange.start() else {
        exchange.finish(Ok(()));
        return Duration::ZERO;
    };
    front.metrics.wait.observe(waited);
    let response = ResponseWriter(Arc::clone(&exchange));
    let handled = catch_unwind(AssertUnwindSafe(|| {
        let handler = front.handler().expect("requests are accepted once there is one");
        handler.handle(request, &response)
    }));
    let result = handled.unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let detail = format!("the handler panicked: {}", message.unwrap_or("no message"));
        Err(Failure::new(FailureKind::Trap, detail))
    });
    exchange.finish(result)
}

/// A request that has a handler, or will have one. Dropped before its response is
/// complete, it is given up.
pub(crate) struct UnderWay(pub(crate) Option<Arc<Exchange>>);

impl UnderWay {
    /// The request is done.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(exchange) = self.0.take() else { return };
        if exchange.cancel(Cancelled::ClientGone) {
            exchange.front().guard(&exchange);
        }
        // Also if the handler had ended: its response was not taken.
        let failure = exchange.failure();
        exchange.report(&failure.unwrap_or_else(|| Cancelled::ClientGone.into()));
    }
}

#[cfg(test)]
impl Front {
    /// With a handler that does nothing.
    pub(crate) fn of_test() -> Arc<Front> {
        struct Nothing;
        impl Handler for Nothing {
            fn handle(&self, _: Request, _: &ResponseWriter) -> Result<(), Failure> {
                Ok(())
            }
        }
        let front = Front::new(&mut Config::new(([127, 0, 0, 1], 0).into()));
        front.set_handler(Box::new(Nothing));
        front
    }
}
