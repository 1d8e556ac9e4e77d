//! CGI/1.1 (RFC 3875): the variables of a program, the meaning of its output, and programs in
//! WebAssembly.
//!
//! The program is the root of the server: `SCRIPT_NAME` is empty and `PATH_INFO`
//! the whole path. Its arguments are its own, never words of the query string.

mod variables;
mod output;
mod scgi;
mod streams;
pub(crate) mod started;
pub(crate) mod program;

use http::HeaderName;

pub use output::{CgiOutput, Redirect};
pub use variables::{VariableOptions, variables};

/// Whether a field is about the connection: neither the program nor its client gets it from the
/// other.
fn is_of_the_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}
