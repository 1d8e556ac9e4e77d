//! From a request to its handler, and from there to the response.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{
    HeaderMap, HeaderValue, Method, Request as HttpRequest, Response, StatusCode, Version, header,
};
use http_body::Body as _;
use hyper::body::Incoming;

use crate::handler::exchange::{
    Exchange, ExchangeHost, HandlerProgress, ResponseHead, ResponseStart,
};
use crate::handler::failure::{Failure, FailureKind};
use crate::handler::request::{BodyReader, Request};
use crate::handler::response::number;
use crate::http::body::{Ending, ResponseBody, UnderWay};
use crate::http::connection_state::{BodyEnd, RequestTurn};
use crate::http::front::{Front, Stage, explanation};
use crate::http::pump::Pump;
use crate::observe::identity;
use crate::threads::job::Job;

/// How long a handler may be kept waiting for a body that is not complete.
const BODY_PATIENCE: Duration = Duration::from_millis(2);

/// A request that waits looks this often whether the running handlers are slow.
const QUEUE_LOOK_MAX: Duration = Duration::from_millis(16);

/// A response, until its body is known.
struct Reply {
    /// Whether a body is left out, as the request is for the head alone.
    bodiless: bool,
    ending: Ending,
}

/// Answers a request.
pub(crate) async fn answer(
    front: Arc<Front>,
    request: HttpRequest<Incoming>,
    remote: SocketAddr,
    local: SocketAddr,
    turn: RequestTurn,
) -> Response<ResponseBody> {
    let begun = Instant::now();
    let (mut head, body) = request.into_parts();
    let announced = body.size_hint().exact();
    let refusal = refusal(&front, &head, announced);
    let id = front.identities.of(&head.headers);
    head.headers.insert(identity::FIELD, id.clone());
    // What the target names is what the client means, and HTTP/2 has nothing else.
    if let Some(authority) = head.uri.authority() {
        let host = authority.as_str().rsplit('@').next().unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(host) {
            head.headers.insert(header::HOST, host);
        }
    }
    let bodiless = head.method == Method::HEAD;
    let body_end = turn.body();
    let ending = Ending::new(&front.telemetry, &head, &id, remote, begun, turn);
    let reply = Reply { bodiless, ending };
    if let Some(failure) = refusal {
        front.telemetry.report(&id, failure.kind(), failure.detail());
        return reply.refused(failure.kind());
    }

    let host = Arc::clone(&front) as Arc<dyn ExchangeHost>;
    let exchange = Exchange::new(host, id.clone(), bodiless, begun);
    receive(&front, &exchange, body, body_end).await;
    let complete = exchange.complete_input_size().map(|size| size as u64);
    let body = BodyReader(Arc::clone(&exchange));
    let request = Request { head, body, body_size: complete.or(announced), id, remote, local };
    // From here on, being dropped means that the client went away.
    let under_way = UnderWay::new(&front, &exchange);
    let may_wait = complete.is_none();
    let handler = front.handler().expect("requests are accepted once there is one");
    let handler = Arc::clone(handler);
    let job = Box::new(Job { request, exchange: Arc::clone(&exchange), handler, may_wait });
    let start = match front.workers.submit(job) {
        Ok(()) => wait_for_start(&front, &exchange).await,
        Err(_) => ResponseStart::Failed(Failure::new(FailureKind::QueueFull, "")),
    };
    let failure = match start {
        ResponseStart::Whole(head, output) => match check_size(&head, &output, bodiless) {
            Ok(()) => {
                under_way.disarm();
                return reply.whole(head, output);
            }
            Err(failure) => failure,
        },
        ResponseStart::Streaming(head) => {
            front.guard(&exchange);
            return reply.streaming(head, &exchange, under_way);
        }
        ResponseStart::Failed(failure) => failure,
    };
    under_way.disarm();
    exchange.report(&failure);
    reply.refused(failure.kind())
}

/// Why a request gets no handler, if that is so.
fn refusal(front: &Front, head: &Parts, announced: Option<u64>) -> Option<Failure> {
    let hosts = head.headers.get_all(header::HOST).iter().count();
    let (kind, detail) = if head.method == Method::CONNECT {
        (FailureKind::NotImplemented, "CONNECT is for proxies".to_owned())
    } else if hosts > 1 || hosts == 0 && head.version == Version::HTTP_11 {
        let detail = format!("{hosts} fields `Host`, where there must be one");
        (FailureKind::BadRequest, detail)
    } else if let Some(detail) = head_excess(front, head) {
        (FailureKind::HeadTooLarge, detail)
    } else if let Some(size) = announced.filter(|size| *size > front.config.body_max) {
        (FailureKind::BodyTooLarge, format!("{size} bytes are announced"))
    } else {
        return None;
    };
    Some(Failure::new(kind, detail))
}

/// By what a head of HTTP/2 is too large. The HTTP library checks heads of HTTP/1.
fn head_excess(front: &Front, head: &Parts) -> Option<String> {
    if head.version != Version::HTTP_2 {
        return None;
    }
    // Each field counts as RFC 9113 has it.
    let size = |name: usize, value: usize| name + value + 32;
    let fields = head.headers.iter();
    let fields: usize = fields.map(|(name, value)| size(name.as_str().len(), value.len())).sum();
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let bytes = fields + size(5, target);
    if bytes > front.config.head_max {
        return Some(format!("{bytes} bytes"));
    }
    let count = head.headers.len();
    (count > front.config.fields_max).then(|| format!("{count} fields"))
}

/// Takes the beginning of a request's body; a task takes the rest. Most bodies are complete after
/// a moment, so that their size is known.
async fn receive(front: &Arc<Front>, exchange: &Arc<Exchange>, body: Incoming, body_end: BodyEnd) {
    if body.is_end_stream() {
        exchange.end_input();
        return;
    }
    let mut pump = Pump { front: Arc::clone(front), body, body_end, received: 0 };
    let mut patience = pin!(tokio::time::sleep(front.config.patience.min(BODY_PATIENCE)));
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
        tokio::spawn(pump.run(Arc::clone(exchange)));
    }
}

/// Waits for the beginning of a response. A handler that takes long gets a guardian, and other
/// requests do not wait for it.
async fn wait_for_start(front: &Arc<Front>, exchange: &Arc<Exchange>) -> ResponseStart {
    let patience = front.config.patience;
    let mut look = pin!(tokio::time::sleep(patience));
    let mut interval = patience;
    let mut is_late = false;
    poll_fn(|context| {
        loop {
            if let Poll::Ready(start) = exchange.poll_start(context) {
                return Poll::Ready(start);
            }
            // Asked first, because setting a timer costs a system call.
            if exchange.is_inline() || is_late || look.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            let next = match exchange.check_deadline(patience) {
                HandlerProgress::Queued(waited) => {
                    if front.is_at(Stage::StoppingNow) {
                        exchange.cancel(FailureKind::Stopping);
                    } else if waited >= front.config.queue_timeout {
                        exchange.cancel(FailureKind::QueueTimeout);
                    } else {
                        front.workers.relieve();
                    }
                    interval = (interval * 2).min(QUEUE_LOOK_MAX).max(patience);
                    interval = interval.max(Duration::from_millis(1));
                    interval
                }
                HandlerProgress::Begun(left) => left,
                HandlerProgress::Late => {
                    is_late = true;
                    front.workers.relieve();
                    front.guard(exchange);
                    continue;
                }
            };
            look.as_mut().reset(tokio::time::Instant::now() + next);
        }
    })
    .await
}

impl Reply {
    /// A response that is complete.
    fn whole(self, head: ResponseHead, output: Vec<u8>) -> Response<ResponseBody> {
        let bodiless = self.bodiless || has_no_body(head.status);
        let output = if bodiless { Bytes::new() } else { output.into() };
        let body = ResponseBody::whole(output, self.ending.status(head.status));
        respond(head, body)
    }

    /// A response whose body the handler still writes.
    fn streaming(
        self,
        head: ResponseHead,
        exchange: &Exchange,
        under_way: UnderWay,
    ) -> Response<ResponseBody> {
        let promised = content_length(&head.headers);
        if self.bodiless || promised == Some(0) || has_no_body(head.status) {
            // The library does not ask for a body. The handler may still be at work.
            exchange.discard_output();
            under_way.disarm();
            return self.whole(head, Vec::new());
        }
        let body = ResponseBody::streaming(under_way, promised, self.ending.status(head.status));
        respond(head, body)
    }

    /// A response that says why there is no other.
    fn refused(self, kind: FailureKind) -> Response<ResponseBody> {
        let mut headers = HeaderMap::new();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, text);
        if kind.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        let body = if self.bodiless { String::new() } else { explanation(kind, &self.ending.id) };
        let body = ResponseBody::whole(body.into(), self.ending.refused(kind));
        respond(ResponseHead { status: kind.status(), headers }, body)
    }
}

/// Checks that a response that is complete has the size that it announces.
fn check_size(head: &ResponseHead, output: &[u8], bodiless: bool) -> Result<(), Failure> {
    match content_length(&head.headers).filter(|_| !bodiless && !has_no_body(head.status)) {
        Some(announced) if announced != output.len() as u64 => {
            let detail = format!("it announced {announced} bytes and wrote {}", output.len());
            Err(Failure::new(FailureKind::BadResponse, detail))
        }
        _ => Ok(()),
    }
}

/// Whether responses of this status end with their head.
fn has_no_body(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn respond(mut head: ResponseHead, body: ResponseBody) -> Response<ResponseBody> {
    if head.status == StatusCode::NO_CONTENT {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    head.headers.insert(identity::FIELD, body.ending.id.clone());
    let mut response = Response::new(body);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    response
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(number)
}
