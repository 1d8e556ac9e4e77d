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

/// What answers requests, and what is known of one while it is answered.
mod handler;
/// What requests are called, the logs, the metrics and the status page.
mod observe;
/// The threads that connections are served on and handlers run on.
mod threads;
/// From a connection to a request, and from a response to the connection.
mod http;
/// CGI/1.1, and CGI programs in WebAssembly.
pub mod cgi;

pub use crate::http::config::Config;
pub use crate::http::server::{LogHandle, Server, StartError, Starting, StopHandle, Summary};
pub use crate::http::signals::Signals;
pub use cgi::program::{Program, ProgramError, ProgramOptions};
pub use handler::failure::{Failure, FailureKind, GivenUp};
pub use handler::{BodyReader, GiveUpGuard, Handler, Phase, PoolGauges, Request, ResponseWriter};
pub use observe::descriptors::raise_descriptor_limit;
pub use observe::log::{AccessFormat, Output, Severity, record};
