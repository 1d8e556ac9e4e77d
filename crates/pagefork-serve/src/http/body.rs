//! Bodies of responses, and what is noted when they end.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};

use crate::handler::failure::{Failure, FailureKind};
use crate::http::front::{Front, UnderWay};
use crate::http::talk::Turn;
use crate::observe::log::{Access, Outcome};

/// The body of a response.
pub(crate) struct ResponseBody {
    kind: Kind,
    ending: Ending,
}

enum Kind {
    /// All of it.
    Whole(Bytes),
    Streaming {
        under_way: UnderWay,
        /// How much of what was announced is left.
        promised: Option<u64>,
    },
    Done,
}

/// A response that breaks off: its connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
#[error("the response broke off: {}", .0.kind().message())]
pub(crate) struct BrokenOff(Failure);

impl ResponseBody {
    pub(crate) fn whole(bytes: Bytes, ending: Ending) -> ResponseBody {
        ResponseBody { kind: Kind::Whole(bytes), ending }
    }

    pub(crate) fn streaming(
        under_way: UnderWay,
        promised: Option<u64>,
        ending: Ending,
    ) -> ResponseBody {
        ResponseBody { kind: Kind::Streaming { under_way, promised }, ending }
    }

    fn fail(&mut self, failure: Failure) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        if let Kind::Streaming { under_way: UnderWay(Some(exchange)), .. } = &self.kind {
            exchange.report(&failure);
        }
        self.ending.broke_off(failure.kind());
        self.done();
        Poll::Ready(Some(Err(BrokenOff(failure))))
    }

    /// All that there is was given to the HTTP library.
    fn done(&mut self) {
        if let Kind::Streaming { under_way, .. } = std::mem::replace(&mut self.kind, Kind::Done) {
            under_way.disarm();
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        match &self.kind {
            Kind::Done => {}
            Kind::Whole(bytes) if bytes.is_empty() => {}
            Kind::Whole(_) => self.ending.was_not_taken(),
            Kind::Streaming { under_way, .. } => {
                let failure = under_way.0.as_ref().and_then(|exchange| exchange.failure());
                let kind = failure.map_or(FailureKind::ClientGone, |failure| failure.kind());
                self.ending.outcome = Outcome::Broken(kind);
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
        let (under_way, promised) = match &mut this.kind {
            Kind::Done => return Poll::Ready(None),
            Kind::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                this.kind = Kind::Done;
                this.ending.sent += bytes.len() as u64;
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
            Kind::Streaming { under_way, promised } => (under_way, promised),
        };
        let Some(exchange) = &under_way.0 else { return Poll::Ready(None) };
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
                    // Nobody asks for the end. The handler may still be at work.
                    exchange.discard_output();
                    this.done();
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Streaming { .. } => false,
            Kind::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Streaming { promised: Some(left), .. } => SizeHint::with_exact(*left),
            Kind::Streaming { promised: None, .. } => SizeHint::default(),
            Kind::Done => SizeHint::with_exact(0),
        }
    }
}

/// Notes when it is dropped what became of a request: in the metrics, and in the
/// access log.
pub(crate) struct Ending {
    front: Arc<Front>,
    line: Option<Box<Line>>,
    begun: Instant,
    /// 0 if there was no response.
    status: u16,
    sent: u64,
    id: HeaderValue,
    outcome: Outcome,
    /// Whether a body has no other end than its connection's, as in HTTP/1.0.
    ends_with_connection: bool,
    turn: Turn,
}

/// What only the access log is told.
struct Line {
    method: Method,
    uri: Uri,
    version: Version,
    remote: SocketAddr,
}

impl Ending {
    pub(crate) fn new(
        front: &Arc<Front>,
        head: &Parts,
        id: &HeaderValue,
        remote: SocketAddr,
        begun: Instant,
        turn: Turn,
    ) -> Ending {
        front.metrics.in_flight.add(1);
        let line = front.access.is_some().then(|| {
            let Parts { method, uri, version, .. } = head;
            let (method, uri) = (method.clone(), uri.clone());
            Box::new(Line { method, uri, version: *version, remote })
        });
        let id = id.clone();
        let ends_with_connection = head.version == Version::HTTP_10;
        let front = Arc::clone(front);
        // As long as there is no response.
        let outcome = Outcome::Broken(FailureKind::ClientGone);
        Ending { front, line, begun, status: 0, sent: 0, id, outcome, ends_with_connection, turn }
    }

    /// There is a response, of the handler's.
    pub(crate) fn status(mut self, status: StatusCode) -> Ending {
        self.status = status.as_u16();
        self.outcome = Outcome::Complete;
        self
    }

    /// There is a response that says why there is no other.
    pub(crate) fn refused(mut self, kind: FailureKind) -> Ending {
        self.status = kind.status().as_u16();
        self.outcome = Outcome::Refused(kind);
        self
    }

    fn broke_off(&mut self, kind: FailureKind) {
        if self.ends_with_connection {
            self.turn.break_off();
        }
        self.outcome = Outcome::Broken(kind);
    }

    /// The HTTP library has dropped a response that was complete.
    fn was_not_taken(&mut self) {
        let kind = FailureKind::ClientGone;
        if self.outcome == Outcome::Complete {
            self.front.report(&self.id, kind, "it was gone before it was sent the response");
        }
        self.outcome = Outcome::Broken(kind);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        /// What others note for clients that went away.
        const CLIENT_GONE: u16 = 499;

        let (metrics, time) = (&self.front.metrics, self.begun.elapsed());
        metrics.in_flight.add(-1);
        metrics.sent.add(self.sent);
        metrics.request.observe(time);
        metrics.count_status(self.status);
        if let (Some(access), Some(line)) = (&self.front.access, &self.line) {
            access.write(&Access {
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
