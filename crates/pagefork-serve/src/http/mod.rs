//! HTTP: from a connection to a request, and from a response back to the connection.

pub(crate) mod config;
mod front;
mod connection_state;
mod stream;
mod pump;
mod body;
mod answer;
mod connections;
pub(crate) mod server;
pub(crate) mod signals;
