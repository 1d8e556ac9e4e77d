//! An HTTP front end that answers each request by a handler, on a thread that it
//! may block; and on top of it, CGI programs in WebAssembly, each request in a
//! fresh instance.
//!
//! ```text
//! client -- HTTP/1.1, HTTP/2 --> server -- Request, ResponseWriter --> Handler
//!                                                                        |
//!                              Program: spawn, variables, _start, CGI output
//! ```
//!
//! The front end knows nothing of WebAssembly, so that what runs behind it can be
//! compared.

#![forbid(unsafe_code)]

/// What a server is told before it starts.
mod config;
/// Listening, and stopping.
mod server;
/// Accepting connections, and serving each.
mod connections;
/// How many descriptors there may be, and some that are kept.
mod descriptors;
/// What the two ends of a connection tell each other past the HTTP library.
mod talk;
/// Connections whose clients do not take what they are sent.
mod stall;
/// From a request to its handler and back.
mod front;
/// One request on its way, between a connection's task and a handler's thread.
mod exchange;
/// Bodies of responses, and what is noted when they end.
mod body;
/// The threads that connections are served on and handlers run on.
mod workers;
/// A share of the connections, and the thread that serves it.
mod lane;
/// A thread that sees when a lane has no leader for too long.
mod lookout;
/// Whether a handler takes long by itself.
mod used;

/// What answers requests, and what it is given for that.
mod handler;
/// Requests that are not answered by their handler.
mod failure;
/// CGI/1.1, whatever runs the program.
pub mod cgi;
/// CGI programs in WebAssembly.
mod program;

/// What requests are called.
mod identity;
/// The log and the access log.
mod log;
/// Counters and histograms.
mod metrics;
/// The last failures.
mod recent;
/// What was counted in the last minutes.
mod history;
/// The status page and the metrics.
mod admin;
/// Signals that end the server or reopen its logs.
mod signals;

pub use config::Config;
pub use descriptors::raise_descriptor_limit;
pub use failure::{Failure, FailureKind, GivenUp};
pub use handler::{BodyReader, GiveUpGuard, Handler, Phase, PoolGauges, Request, ResponseWriter};
pub use log::{AccessFormat, Output, Severity, record};
pub use program::{Program, ProgramError, ProgramOptions};
pub use server::{LogHandle, Server, StartError, Starting, StopHandle, Summary};
pub use signals::Signals;
