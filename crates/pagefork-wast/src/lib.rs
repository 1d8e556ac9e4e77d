//! Runs WebAssembly test scripts (`.wast`), the form in which the specification's
//! own tests are written.
//!
//! A script is a list of directives. Each is carried out in order and either
//! passes or is reported with its place in the file; a failure does not end the
//! script, since later directives may not depend on it. Directives of features
//! that the engine does not have fail by name, they are never skipped silently.

#![forbid(unsafe_code)]

mod runner;
mod spectest;
mod value;

pub use runner::{Report, ScriptError, ScriptFailure, WastRunner, World};
