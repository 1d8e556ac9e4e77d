//! What an embedder touches: stores with data, instances and what they export, linkers,
//! snapshots, and host functions made of closures.

mod engine;
pub(crate) mod store;
mod needs;
pub(crate) mod limiter;
mod epoch;
mod call_hook;
pub(crate) mod linker;
mod unknown_imports;
mod discard;
mod backtrace;
pub(crate) mod core_dump;
pub(crate) mod instance;
pub(crate) mod export;
pub(crate) mod imports;
pub(crate) mod pre;
pub(crate) mod ahead;
pub(crate) mod snapshot;
pub(crate) mod stored;
pub(crate) mod incomplete;
pub(crate) mod func;
pub(crate) mod host_func;
pub(crate) mod typed;
pub(crate) mod raw;
pub(crate) mod registers;
pub(crate) mod register_export;
pub(crate) mod foreign;
pub(crate) mod untyped;
pub(crate) mod future;
pub(crate) mod memory;
pub(crate) mod table;
pub(crate) mod global;
pub(crate) mod tag;
pub(crate) mod exception;
pub(crate) mod externref;
pub mod suspend;
pub(crate) mod suspendable;
