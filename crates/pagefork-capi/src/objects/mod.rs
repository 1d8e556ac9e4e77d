//! What C's pointers lead to.

pub(crate) mod engine;
pub(crate) mod types;
pub(crate) mod host_info;
pub(crate) mod object;
pub(crate) mod trap;
pub(crate) mod saved_program;
pub(crate) mod shape;
pub(crate) mod store;
pub(crate) mod value;
pub(crate) mod waiting;
pub(crate) mod callback;
pub(crate) mod host_functions;
pub(crate) mod fallible;
pub(crate) mod wasi;
pub(crate) mod linker;
