//! A request with its handler, ready to be run by a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::handler::Handler;
use crate::handler::exchange::Exchange;
use crate::handler::failure::{Failure, FailureKind};
use crate::handler::request::Request;
use crate::handler::response::ResponseWriter;

pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) handler: Arc<dyn Handler>,
    /// Whether the handler may wait for its client, because the body is not complete.
    pub(crate) may_wait: bool,
}

impl Job {
    /// Runs the handler on the calling thread. Gives how long it took, without the time that it
    /// waited for its client.
    pub(crate) fn run(self) -> Duration {
        let Job { request, exchange, handler, .. } = self;
        let Some(waited) = exchange.start() else {
            exchange.finish(Ok(()));
            return Duration::ZERO;
        };
        exchange.host().record_wait(waited);
        let response = ResponseWriter(Arc::clone(&exchange));
        let handled = catch_unwind(AssertUnwindSafe(|| handler.handle(request, &response)));
        let result = handled.unwrap_or_else(|payload| {
            let message = payload.downcast_ref::<&str>().copied();
            let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let detail = format!("the handler panicked: {}", message.unwrap_or("no message"));
            Err(Failure::new(FailureKind::Trap, detail))
        });
        exchange.finish(result)
    }
}
