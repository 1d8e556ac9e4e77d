//! The state of a guest: what the embedder granted, and the descriptors that are open.

pub(crate) mod build_error;
pub(crate) mod strings;
pub(crate) mod inherited;
pub(crate) mod stdio;
pub(crate) mod socket;
pub(crate) mod path;
pub(crate) mod listing;
pub(crate) mod sources;
pub(crate) mod grants;
pub(crate) mod identity;
pub(crate) mod tree;
pub(crate) mod session;
pub(crate) mod descriptor;
pub(crate) mod table;
pub(crate) mod ctx;
pub(crate) mod builder;
mod listen_fds;
pub(crate) mod saved;
pub(crate) mod program_state;
pub(crate) mod archive;
pub(crate) mod save;
pub(crate) mod restore;
