//! What is compiled: engines, modules and machine code, and the place where slots wait for
//! the next instance.

pub(crate) mod config;
pub(crate) mod engine;
pub(crate) mod epochs;
pub(crate) mod types;
pub(crate) mod matching;
pub(crate) mod host_entity;
pub(crate) mod module;
pub(crate) mod memory_image;
pub(crate) mod code_file;
pub(crate) mod serialized;
#[cfg(feature = "compiler")]
pub(crate) mod compile;
#[cfg(feature = "compiler")]
pub(crate) mod cache;
pub(crate) mod code_memory;
pub(crate) mod profile;
pub(crate) mod pool;
