//! HTTP: from a connection to a request, and from a response back to the connection.

/// The configuration of a server.
pub(crate) mod config;
/// The state that all connections share.
mod front;
/// What a connection's service and its byte stream tell each other.
mod connection_state;
/// The byte stream of a connection.
mod stream;
/// The bodies of requests.
mod pump;
/// The bodies of responses, and the record of each request.
mod body;
/// From a request to its handler, and from there to the response.
mod answer;
/// Accepting connections, and serving each.
mod connections;
/// Starting, listening and stopping.
pub(crate) mod server;
/// Signals that stop the server or reopen its logs.
pub(crate) mod signals;
