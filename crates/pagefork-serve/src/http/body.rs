//! Bodies of responses, and the record of each request when its response ends.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};

use crate::handler::exchange::Exchange;
use crate::handler::failure::{Failure, FailureKind};
use crate::http::connection_state::RequestTurn;
use crate::http::front::Front;
use crate::observe::log::{AccessRecord, RequestOutcome};
use crate::observe::telemetry::Telemetry;

/// The body of a response.
pub(crate) struct ResponseBody {
    content: BodyContent,
    pub(super) ending: Ending,
}

enum BodyContent {
    /// All of it.
    Whole(Bytes),
    Streaming {
        under_way: UnderWay,
        /// The rest of the size that was announced.
        promised: Option<u64>,
    },
    Done,
}

/// A request that has a handler, or will have one. Dropped before its response is complete, it is
/// given up.
pub(crate) struct UnderWay {
    front: Arc<Front>,
    /// `None` once the response is complete.
    exchange: Option<Arc<Exchange>>,
}

impl UnderWay {
    pub(crate) fn new(front: &Arc<Front>, exchange: &Arc<Exchange>) -> UnderWay {
        UnderWay { front: Arc::clone(front), exchange: Some(Arc::clone(exchange)) }
    }

    /// The response is complete, or there is none.
    pub(crate) fn disarm(mut self) {
        self.exchange = None;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(exchange) = self.exchange.take() else { return };
        if exchange.cancel(FailureKind::ClientGone) {
            self.front.guard(&exchange);
        }
        // Also if the handler had ended: its response was not taken.
        let failure = exchange.failure();
        exchange.report(&failure.unwrap_or_else(|| Failure::new(FailureKind::ClientGone, "")));
    }
}

/// A response that breaks off: its connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
#[error("the response broke off: {}", .0.kind().message())]
pub(crate) struct BrokenOff(Failure);

impl ResponseBody {
    pub(crate) fn whole(bytes: Bytes, ending: Ending) -> ResponseBody {
        ResponseBody { content: BodyContent::Whole(bytes), ending }
    }

    pub(crate) fn streaming(
        under_way: UnderWay,
        promised: Option<u64>,
        ending: Ending,
    ) -> ResponseBody {
        ResponseBody { content: BodyContent::Streaming { under_way, promised }, ending }
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if let BodyContent::Streaming {
            under_way: UnderWay { exchange: Some(exchange), .. }, ..
        } = &self.content
        {
            exchange.report(&failure);
        }
        self.ending.broke_off(failure.kind());
        self.done();
        Poll::Ready(Some(Err(BrokenOff(failure))))
    }

    /// The HTTP library has all of the body.
    fn done(&mut self) {
        if let BodyContent::Streaming { under_way, .. } =
            std::mem::replace(&mut self.content, BodyContent::Done)
        {
            under_way.disarm();
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        match &self.content {
            BodyContent::Done => {}
            BodyContent::Whole(bytes) if bytes.is_empty() => {}
            BodyContent::Whole(_) => self.ending.was_not_taken(),
            BodyContent::Streaming { under_way, .. } => {
                let failure = under_way.exchange.as_ref().and_then(|exchange| exchange.failure());
                let kind = failure.map_or(FailureKind::ClientGone, |failure| failure.kind());
                self.ending.outcome = RequestOutcome::Broken(kind);
            }
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = &mut *self;
        let (under_way, promised) = match &mut this.content {
            BodyContent::Done => return Poll::Ready(None),
            BodyContent::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                this.content = BodyContent::Done;
                this.ending.sent += bytes.len() as u64;
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
            BodyContent::Streaming { under_way, promised } => (under_way, promised),
        };
        let Some(exchange) = &under_way.exchange else { return Poll::Ready(None) };
        match exchange.poll_output(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                let missing = promised.filter(|left| *left > 0);
                if let Some(missing) = missing {
                    let detail = format!("of what it announced, {missing} bytes are missing");
                    return this.fail(Failure::new(FailureKind::BadResponse, detail));
                }
                this.done();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(failure))) => this.fail(failure),
            Poll::Ready(Some(Ok(bytes))) => {
                let size = bytes.len() as u64;
                if let Some(left) = promised {
                    if size > *left {
                        let detail = "it wrote more than it announced";
                        return this.fail(Failure::new(FailureKind::BadResponse, detail));
                    }
                    *left -= size;
                }
                let complete = *promised == Some(0);
                this.ending.sent += size;
                if complete {
                    // The library does not ask for the end. The handler may still be at work.
                    exchange.discard_output();
                    this.done();
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            BodyContent::Whole(bytes) => bytes.is_empty(),
            BodyContent::Streaming { .. } => false,
            BodyContent::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyContent::Streaming { promised: Some(left), .. } => SizeHint::with_exact(*left),
            BodyContent::Streaming { promised: None, .. } => SizeHint::default(),
            BodyContent::Done => SizeHint::with_exact(0),
        }
    }
}

/// Records the outcome of a request in the metrics and in the access log when it is dropped.
pub(crate) struct Ending {
    telemetry: Arc<Telemetry>,
    line: Option<Box<AccessLine>>,
    begun: Instant,
    /// 0 if there was no response.
    status: u16,
    sent: u64,
    pub(super) id: HeaderValue,
    outcome: RequestOutcome,
    /// Whether a body ends with its connection, as in HTTP/1.0.
    ends_with_connection: bool,
    turn: RequestTurn,
}

/// The part of a request that only the access log needs.
struct AccessLine {
    method: Method,
    uri: Uri,
    version: Version,
    remote: SocketAddr,
}

impl Ending {
    pub(crate) fn new(
        telemetry: &Arc<Telemetry>,
        head: &Parts,
        id: &HeaderValue,
        remote: SocketAddr,
        begun: Instant,
        turn: RequestTurn,
    ) -> Ending {
        telemetry.metrics.in_flight.add(1);
        let line = telemetry.access.is_some().then(|| {
            let Parts { method, uri, version, .. } = head;
            let (method, uri) = (method.clone(), uri.clone());
            Box::new(AccessLine { method, uri, version: *version, remote })
        });
        Ending {
            telemetry: Arc::clone(telemetry),
            line,
            begun,
            status: 0,
            sent: 0,
            id: id.clone(),
            // Until there is a response.
            outcome: RequestOutcome::Broken(FailureKind::ClientGone),
            ends_with_connection: head.version == Version::HTTP_10,
            turn,
        }
    }

    /// There is a response from the handler.
    pub(crate) fn status(mut self, status: StatusCode) -> Ending {
        self.status = status.as_u16();
        self.outcome = RequestOutcome::Complete;
        self
    }

    /// There is a response that says why there is no other.
    pub(crate) fn refused(mut self, kind: FailureKind) -> Ending {
        self.status = kind.status().as_u16();
        self.outcome = RequestOutcome::Refused(kind);
        self
    }

    fn broke_off(&mut self, kind: FailureKind) {
        if self.ends_with_connection {
            self.turn.reset_on_close();
        }
        self.outcome = RequestOutcome::Broken(kind);
    }

    /// The HTTP library has dropped a response that was complete.
    fn was_not_taken(&mut self) {
        let kind = FailureKind::ClientGone;
        if self.outcome == RequestOutcome::Complete {
            self.telemetry.report(&self.id, kind, "it was gone before it was sent the response");
        }
        self.outcome = RequestOutcome::Broken(kind);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        /// The status that other servers log for clients that went away.
        const CLIENT_GONE: u16 = 499;

        let (metrics, time) = (&self.telemetry.metrics, self.begun.elapsed());
        metrics.in_flight.sub(1);
        metrics.sent.add(self.sent);
        metrics.request.observe(time);
        metrics.count_status(self.status);
        if let (Some(access), Some(line)) = (&self.telemetry.access, &self.line) {
            access.write(&AccessRecord {
                remote: &line.remote.ip().to_string(),
                request: Some((&line.method, &line.uri, line.version)),
                status: if self.status == 0 { CLIENT_GONE } else { self.status },
                sent: self.sent,
                time,
                id: &self.id,
                outcome: self.outcome,
            });
        }
    }
}
