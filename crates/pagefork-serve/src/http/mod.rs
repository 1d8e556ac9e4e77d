//! HTTP: accepting connections, parsing requests, sending responses, stopping.

/// What a server is told before it starts.
pub(crate) mod config;
/// Listening, and stopping.
pub(crate) mod server;
/// Accepting connections, and serving each.
mod connections;
/// What the two ends of a connection tell each other past the HTTP library.
mod talk;
/// The byte stream of a connection.
mod stream;
/// From a request to its handler and back.
pub(crate) mod front;
/// The bodies of requests.
mod pump;
/// Bodies of responses, and what is noted when they end.
mod body;
/// Signals that end the server or reopen its logs.
pub(crate) mod signals;
