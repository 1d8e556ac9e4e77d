//! Logs, metrics and history of one server.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderValue;

use crate::handler::failure::FailureKind;
use crate::observe::history::{FailureHistory, History};
use crate::observe::log::{AccessFormat, AccessLog, Log, LogOutput};
use crate::observe::metrics::Metrics;

pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    pub(crate) failures: FailureHistory,
    pub(crate) history: History,
    pub(crate) log: Arc<Log>,
    pub(crate) access: Option<AccessLog>,
    pub(crate) begun: Instant,
}

impl Telemetry {
    pub(crate) fn new(log: LogOutput, access: Option<(AccessFormat, LogOutput)>) -> Telemetry {
        let log = Arc::new(Log::new(log));
        let access = access.map(|(format, to)| AccessLog::new(format, to, Arc::clone(&log)));
        Telemetry {
            metrics: Metrics::default(),
            failures: FailureHistory::default(),
            history: History::default(),
            log,
            access,
            begun: Instant::now(),
        }
    }

    /// Counts, logs and remembers that a request failed: to be called once for each.
    pub(crate) fn report(&self, id: &HeaderValue, kind: FailureKind, detail: &str) {
        let text = match detail {
            "" => kind.name().to_owned(),
            detail => format!("{}: {detail}", kind.name()),
        };
        self.metrics.count_failure(kind);
        self.log.request(kind.severity(), id, &text);
        self.failures.add(kind, String::from_utf8_lossy(id.as_bytes()).into_owned(), detail);
    }

    /// Opens the logs' files again by their names.
    pub(crate) fn reopen_logs(&self) {
        self.log.reopen();
        self.access.iter().for_each(AccessLog::reopen);
    }

    /// Writes the buffered lines of the access log.
    pub(crate) fn flush(&self) {
        self.access.iter().for_each(AccessLog::flush);
    }
}
