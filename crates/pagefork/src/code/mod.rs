//! What is compiled: engines, modules and machine code, and the place where slots wait for
//! the next instance.

/// Which proposals are accepted, and how much room guests get.
pub(crate) mod config;
/// What modules are compiled with.
pub(crate) mod engine;
/// Types of functions, by number.
pub(crate) mod types;
/// Compiled modules, and how their instances start.
pub(crate) mod module;
/// Compiled modules in files.
pub(crate) mod code_file;
/// Compiled modules that later processes find again.
pub(crate) mod cache;
/// Machine code, mapped.
pub(crate) mod code_memory;
/// Names of functions, for profilers.
pub(crate) mod profile;
/// What is kept for the next instance.
pub(crate) mod pool;
