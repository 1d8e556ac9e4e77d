//! What can be seen of a server: ids of requests, logs, metrics and the status page.

/// What requests are called.
pub(crate) mod identity;
/// The log and the access log.
pub(crate) mod log;
/// Counters and histograms.
pub(crate) mod metrics;
/// The last failures.
pub(crate) mod recent;
/// What was counted in the last minutes.
pub(crate) mod history;
/// How many descriptors there may be, and some that are kept.
pub(crate) mod descriptors;
/// The status page and the metrics.
pub(crate) mod admin;
