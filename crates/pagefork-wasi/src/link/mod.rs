//! What connects the functions with modules and their instances.

pub(crate) mod linker;
pub(crate) mod program;
