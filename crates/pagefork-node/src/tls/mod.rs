//! TLS over TCP, one stream for all.

/// Whose first bytes go along with TCP's handshake.
pub(crate) mod early;
/// With limits of time.
pub(crate) mod channel;
/// On which both sides speak whenever they want to.
pub(crate) mod duplex;
