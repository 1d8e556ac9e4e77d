//! The threads that connections are served on and handlers run on.

/// Whether a handler takes long by itself.
mod usage;
/// A share of the connections, and the thread that serves it.
pub(crate) mod event_loop;
/// A thread that sees when an event loop has no leader for too long.
mod monitor;
/// Which thread handles a request.
pub(crate) mod workers;
