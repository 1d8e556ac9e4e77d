//! What people can observe of a server: ids of requests, logs, metrics and the status page.

pub(crate) mod identity;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod history;
pub(crate) mod telemetry;
pub(crate) mod descriptors;
pub(crate) mod admin;
