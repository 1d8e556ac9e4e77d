//! Takes the body of a request from its connection.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::Body as _;
use hyper::body::Incoming;

use crate::handler::exchange::Exchange;
use crate::handler::failure::FailureKind;
use crate::http::connection_state::BodyEnd;
use crate::http::front::Front;

/// A client gets another second for each of this many bytes of its body, as many as Apache's
/// `mod_reqtimeout` asks for. Otherwise one byte now and then would hold a handler.
const BODY_RATE_MIN: u64 = 500;

pub(super) struct Pump {
    pub(super) front: Arc<Front>,
    pub(super) body: Incoming,
    pub(super) body_end: BodyEnd,
    pub(super) received: u64,
}

impl Pump {
    /// Takes the bytes that are there, while there is room for them. Ready at the body's end.
    pub(super) fn poll(&mut self, exchange: &Exchange, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match exchange.poll_input_room(context) {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    self.body_end.reached();
                    exchange.end_input();
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Err(_))) => {
                    exchange.cancel(FailureKind::BadRequest);
                    return Poll::Ready(());
                }
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            if self.body.is_end_stream() {
                self.body_end.reached();
            }
            // Frames without data are trailers, for which CGI has no place.
            let Ok(data) = frame.into_data() else { continue };
            self.received += data.len() as u64;
            self.front.telemetry.metrics.received.add(data.len() as u64);
            if self.received > self.front.config.body_max {
                exchange.cancel(FailureKind::BodyTooLarge);
                return Poll::Ready(());
            }
            exchange.push_input(data);
        }
    }

    /// Takes the rest of the body. Cancels the request if the client pauses for too long, or for
    /// too long in all.
    pub(super) async fn run(mut self, exchange: Arc<Exchange>) {
        let time_max = self.front.config.client_timeout;
        let mut stalled = pin!(tokio::time::sleep(time_max));
        let (mut before, mut full) = (self.received, false);
        // How long the client has kept the handler waiting, and until when it may pause.
        let (mut waited, mut last) = (Duration::ZERO, tokio::time::Instant::now());
        let mut pause_end = last + time_max;
        poll_fn(|context| {
            let now = tokio::time::Instant::now();
            // While there is no room, it is not the client that pauses.
            waited += if full { Duration::ZERO } else { now - last };
            last = now;
            if self.poll(&exchange, context).is_ready() {
                return Poll::Ready(());
            }
            full = exchange.poll_input_room(context).is_pending();
            if self.received != before || full {
                before = self.received;
                pause_end = now + time_max;
            }
            let bought = Duration::from_secs(self.received / BODY_RATE_MIN);
            let left = (time_max + bought).saturating_sub(waited);
            if left.is_zero() && !full {
                exchange.cancel(FailureKind::BodyTimeout);
                return Poll::Ready(());
            }
            let end = if full { pause_end } else { pause_end.min(now + left) };
            if stalled.deadline() != end {
                stalled.as_mut().reset(end);
            }
            if stalled.as_mut().poll(context).is_ready() && !full {
                exchange.cancel(FailureKind::BodyTimeout);
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}
