//! What a store is, without the embedder's data: instances in their slots, and what the host
//! keeps about them.

pub(crate) mod group;
pub(crate) mod broken;
pub(crate) mod memories;
pub(crate) mod absent;
pub(crate) mod tables;
pub(crate) mod globals;
pub(crate) mod exception_zone;
pub(crate) mod exception;
pub(crate) mod handle;
pub(crate) mod called;
pub(crate) mod buffers;
pub(crate) mod value;
pub(crate) mod references;
pub(crate) mod host_func;
pub(crate) mod activation;
pub(crate) mod frame;
pub(crate) mod function_import;
pub(crate) mod foreign;
pub(crate) mod suspended;
pub(crate) mod frozen;
pub(crate) mod record;
pub(crate) mod pending;
pub(crate) mod turns;
pub(crate) mod interrupt;
pub(crate) mod epoch;
pub(crate) mod call_hook;
pub(crate) mod limits;
pub(crate) mod limiter;
pub(crate) mod thread;
