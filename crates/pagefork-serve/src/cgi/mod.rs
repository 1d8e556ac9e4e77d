//! CGI/1.1 (RFC 3875), whatever runs the program: which variables it gets, and
//! what its output means.
//!
//! The program is the root of the server: `SCRIPT_NAME` is empty and `PATH_INFO`
//! the whole path. Its arguments are its own, never words of the query string.

/// What the program is told.
mod variables;
/// What it answers.
mod output;
/// CGI programs in WebAssembly.
pub(crate) mod program;

pub use output::{CgiOutput, Redirect};
pub use variables::{VariableOptions, variables};
