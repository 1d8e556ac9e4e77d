//! What a store is, without the embedder's data: instances in their slots, and what the host
//! keeps about them.

/// The group of instances that make a store.
pub(crate) mod group;
/// Memories of a store.
pub(crate) mod memories;
/// Tables of a store.
pub(crate) mod tables;
/// Globals of a store.
pub(crate) mod globals;
/// Where exceptions lie.
pub(crate) mod exception_zone;
/// Exceptions as values.
pub(crate) mod exception;
/// Functions and tags as a store knows them.
pub(crate) mod handle;
/// Values.
pub(crate) mod value;
/// References to values of the host, and the values.
pub(crate) mod references;
/// Host functions as a store calls them.
pub(crate) mod host_func;
/// What compiled code and assembly read of a store.
pub(crate) mod activation;
/// What entering and leaving passes to assembly and back.
pub(crate) mod frame;
/// What is known of a suspended guest.
pub(crate) mod suspended;
/// Interrupts from other threads, and timeouts.
pub(crate) mod interrupt;
/// How much a store may use.
pub(crate) mod limits;
/// What each thread has: its signal stack, and the end of its own.
pub(crate) mod thread;
