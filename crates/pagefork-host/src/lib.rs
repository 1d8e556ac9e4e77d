//! What the `pagefork` command asks of its host. The runtime does not depend on this crate:
//! it is here so that the command needs no `unsafe` code.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("pagefork-host needs Linux on x86-64");

/// Kernel features, tried one by one on real pages.
pub mod probes;

/// Settings of the process's allocator.
mod allocator;
/// Pages and files that probes try things on.
mod scratch;
/// userfaultfd and PAGEMAP_SCAN, as far as probes need them.
mod userfault;

pub use crate::allocator::limit_arenas;
