//! Runs WebAssembly test scripts (`.wast`), as the tests of the specification are written.
//!
//! A script is a list of directives. Each is executed in order, and passes or is reported with
//! its line. A failure does not end the script, because later directives may not depend on it.
//! A directive that needs a feature which the engine lacks fails with the feature's name. No
//! directive is skipped silently.

#![forbid(unsafe_code)]

mod runner;
mod spectest;
mod value;

pub use runner::{Report, ScriptError, ScriptFailure, WastRunner, World};
pub use spectest::linker;
