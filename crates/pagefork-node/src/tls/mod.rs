//! TLS over TCP, one stream for all.

/// With limits of time.
pub(crate) mod channel;
/// On which both sides speak whenever they want to.
pub(crate) mod duplex;
