//! What an embedder touches: stores with data, instances and what they export, linkers,
//! snapshots, and host functions made of closures.

/// Making engines.
mod engine;
/// Stores with the embedder's data, and how they are borrowed.
pub(crate) mod store;
/// Definitions by name, for imports.
pub(crate) mod linker;
/// Instances and their exports.
pub(crate) mod instance;
/// Imports as given, matched with what a module declares.
pub(crate) mod imports;
/// Modules with their imports, and instances in stores of their own.
pub(crate) mod pre;
/// Stores as at some other time.
pub(crate) mod snapshot;
/// Functions, and what they know of their callers.
pub(crate) mod func;
/// Closures as functions.
pub(crate) mod host_func;
/// Functions whose type the compiler knows.
pub(crate) mod typed;
/// Linear memories.
pub(crate) mod memory;
/// Tables.
pub(crate) mod table;
/// Globals.
pub(crate) mod global;
/// Tags of exceptions.
pub(crate) mod tag;
/// Exceptions as embedders make and read them.
pub(crate) mod exception;
/// References to values of the host.
pub(crate) mod externref;
/// Suspended guests, for tests and tools.
pub mod suspend;
