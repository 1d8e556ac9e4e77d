//! What every function needs: the numbers of the interface, the guest's memory, and waiting.

pub(crate) mod errno;
pub(crate) mod abi;
pub(crate) mod plain;
pub(crate) mod guest_memory;
pub(crate) mod waiting;
