//! What people can observe of a server: ids of requests, logs, metrics and the status page.

/// The ids of requests.
pub(crate) mod identity;
/// The log and the access log.
pub(crate) mod log;
/// Counters and histograms.
pub(crate) mod metrics;
/// The last failures, and what was counted in the last minutes.
pub(crate) mod history;
/// All of these for one server.
pub(crate) mod telemetry;
/// The limit of descriptors, and some that are kept.
pub(crate) mod descriptors;
/// The status page and the metrics.
pub(crate) mod admin;
