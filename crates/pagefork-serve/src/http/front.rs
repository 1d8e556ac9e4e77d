//! The state that all connections of a server share.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::handler::exchange::{Exchange, ExchangeHost};
use crate::handler::failure::{FailureKind, Severity};
use crate::handler::{Handler, Phase};
use crate::http::config::ServerConfig;
use crate::observe::admin::ServerStatus;
use crate::observe::identity::{self, Identities};
use crate::observe::log::{self, AccessRecord, LogOutput, RequestOutcome};
use crate::observe::telemetry::Telemetry;
use crate::threads::schedule::ScheduleLimits;
use crate::threads::workers::Workers;

/// The life of a server: each stage is later than those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It cannot answer requests yet.
    Starting,
    Serving,
    /// Requests under way end.
    Stopping,
    /// Requests under way are interrupted.
    StoppingNow,
}

pub(crate) struct Front {
    pub(crate) config: ServerConfig,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) identities: Identities,
    pub(crate) stage: watch::Sender<Stage>,
    /// There once the server serves.
    handler: OnceLock<Arc<dyn Handler>>,
    /// Outlives all connections: guardians run there.
    runtime: Handle,
}

impl Front {
    pub(crate) fn new(mut config: ServerConfig, runtime: Handle) -> Arc<Front> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let busy = config.concurrency.max(1);
        let workers = Workers::new(ScheduleLimits {
            running: processors.min(busy),
            busy,
            queued: config.queue,
            patience: config.patience,
        });
        let log = config.log.take();
        let log = log.unwrap_or_else(|| LogOutput::from(Box::new(std::io::stderr())));
        Arc::new(Front {
            telemetry: Arc::new(Telemetry::new(log, config.access_log.take())),
            workers: Arc::new(workers),
            identities: Identities::new(config.keep_request_ids),
            stage: watch::Sender::new(Stage::Starting),
            handler: OnceLock::new(),
            runtime,
            config,
        })
    }

    /// What answers requests. There is one from [`Stage::Serving`] on.
    pub(crate) fn handler(&self) -> Option<&Arc<dyn Handler>> {
        self.handler.get()
    }

    /// Names what answers requests; from then on the server serves.
    pub(crate) fn set_handler(&self, handler: Arc<dyn Handler>) {
        let _ = self.handler.set(handler);
        reach(&self.stage, Stage::Serving);
    }

    pub(crate) fn is_at(&self, stage: Stage) -> bool {
        *self.stage.borrow() >= stage
    }

    /// Waits until a stage is reached.
    pub(crate) fn wait_for(&self, stage: Stage) -> impl Future<Output = ()> + use<> {
        let mut reached = self.stage.subscribe();
        async move {
            let _ = reached.wait_for(|now| *now >= stage).await;
        }
    }

    pub(crate) fn status(&self) -> ServerStatus {
        let (busy, queued) = self.workers.busy_and_queued();
        let stage = match *self.stage.borrow() {
            Stage::Starting => "starting",
            Stage::Serving => "serving",
            Stage::Stopping | Stage::StoppingNow => "stopping",
        };
        ServerStatus {
            stage,
            busy,
            queued,
            pool: self.handler().and_then(|handler| handler.pool()),
        }
    }

    /// The answer to a request that the HTTP library has refused, whose head is unknown.
    pub(crate) fn refuse(&self, kind: FailureKind, detail: &str, remote: SocketAddr) -> Vec<u8> {
        let id = self.identities.fresh();
        self.telemetry.report(&id, kind, detail);
        let status = kind.status();
        self.telemetry.metrics.count_status(status.as_u16());
        let text = explanation(kind, &id);
        if let Some(access) = &self.telemetry.access {
            access.write(&AccessRecord {
                remote: &remote.ip().to_string(),
                request: None,
                status: status.as_u16(),
                sent: text.len() as u64,
                time: Duration::ZERO,
                id: &id,
                outcome: RequestOutcome::Refused(kind),
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

    /// Starts the guardian of a request, if there is none yet. Only requests that take long have
    /// one: it holds the time limit, and repeats the interrupt until the handler has ended.
    pub(crate) fn guard(&self, exchange: &Arc<Exchange>) {
        if !exchange.wants_guardian() {
            return;
        }
        let (exchange, time_max) = (Arc::clone(exchange), self.config.timeout);
        let client_max = self.config.client_timeout;
        self.runtime.spawn(async move {
            let mut again = pin!(tokio::time::sleep(Duration::ZERO));
            poll_fn(|context| {
                while let Some(time) = exchange.watch(context, time_max, client_max) {
                    again.as_mut().reset(tokio::time::Instant::now() + time);
                    if again.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                }
                Poll::Ready(())
            })
            .await;
        });
    }
}

/// Goes on to a stage, unless a later one is reached already.
pub(crate) fn reach(stage: &watch::Sender<Stage>, next: Stage) {
    stage.send_if_modified(|now| {
        let is_later = next > *now;
        *now = next.max(*now);
        is_later
    });
}

/// What a client is told about a request that failed.
pub(crate) fn explanation(kind: FailureKind, id: &HeaderValue) -> String {
    let status = kind.status();
    format!(
        "{} {}\n{}\nrequest id: {}\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default(),
        kind.message(),
        String::from_utf8_lossy(id.as_bytes())
    )
}

impl ExchangeHost for Front {
    fn report(&self, id: &HeaderValue, kind: FailureKind, detail: &str) {
        self.telemetry.report(id, kind, detail);
    }

    fn record_wait(&self, time: Duration) {
        self.telemetry.metrics.wait.observe(time);
    }

    fn record(&self, phase: Phase, time: Duration) {
        match phase {
            Phase::Spawn => self.telemetry.metrics.spawn.observe(time),
            Phase::Run => self.telemetry.metrics.run.observe(time),
        }
    }

    fn log(&self, severity: Severity, id: &HeaderValue, text: &str) {
        self.telemetry.log.request(severity, id, text);
    }

    fn is_stopping_now(&self) -> bool {
        self.is_at(Stage::StoppingNow)
    }

    fn detach(&self) {
        self.workers.detach();
    }

    fn block(&self) {
        self.workers.block();
    }

    fn unblock(&self) {
        self.workers.unblock();
    }
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("stage", &self.stage).finish_non_exhaustive()
    }
}
