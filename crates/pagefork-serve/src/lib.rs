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

mod handler;
mod observe;
mod threads;
mod http;
pub mod cgi;

pub use crate::http::config::ServerConfig;
pub use crate::http::server::{LogHandle, Server, StartError, Starting, StopHandle, Summary};
pub use crate::http::signals::Signals;
pub use cgi::program::{CgiProgramError, Program, ProgramOptions};
pub use cgi::started::{ForkError, ForkGuest, ForkStreams, StartedProgram, add_fork_to_linker};
pub use handler::failure::{Failure, FailureKind, GivenUp, Severity};
pub use handler::request::{BodyReader, Request};
pub use handler::response::{GiveUpGuard, ResponseWriter};
pub use handler::{Handler, Phase, PoolGauges};
pub use observe::descriptors::raise_descriptor_limit;
pub use observe::log::{AccessFormat, LogOutput, record};
