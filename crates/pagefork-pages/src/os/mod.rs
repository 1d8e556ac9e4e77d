//! The operating system: system calls, what they can do here, and what their failures mean.

// In reading order.

/// What can go wrong, and what to do about it.
pub(crate) mod error;
/// Locks.
pub(crate) mod lock;
/// Words that threads wait on.
pub(crate) mod word;
/// How system calls are made, and those on files.
pub(crate) mod sys;
/// From an error number to the limit that was met.
pub(crate) mod limits;
/// Address space that is ours alone, in page verbs.
pub(crate) mod reservation;
/// Files in memory.
pub(crate) mod memfd;
/// The PAGEMAP_SCAN request.
pub(crate) mod pagemap_scan;
/// Which pages are private.
pub(crate) mod pagemap;
/// Page faults of a thread, noted in memory.
pub(crate) mod fault_ring;
/// Whether the current thread has taken a page fault.
pub(crate) mod faults;
/// What this kernel can do, tried on real pages.
pub(crate) mod features;
/// Pages of files that were cut short, while they are looked at.
pub(crate) mod stand_in;
/// What happens at page faults in ranges that are registered.
pub(crate) mod userfaultfd;
/// Pages of files that are not here yet.
pub(crate) mod absent_pages;
/// Descriptors that become readable when they are raised.
pub(crate) mod signal_file;
/// Which pages were written, as the kernel notes it.
pub(crate) mod write_watch;
/// What handlers of signals look up.
pub(crate) mod address_list;
/// Which pages were written: by a handler of SIGSEGV.
pub(crate) mod write_guard;
/// Threads that give pages their contents when others touch them.
pub(crate) mod fault_threads;
/// Pages that get their contents when they are touched: by a handler of SIGBUS, or by such threads.
pub(crate) mod page_faults;
/// Which pages were written: by a handler of SIGBUS.
pub(crate) mod write_fault;
/// What holds in a process that was forked.
pub(crate) mod fork;
/// The maps of this process, as the kernel lists them.
pub mod procmaps;

/// What faults and searches take, as tests say it.
#[cfg_attr(not(debug_assertions), allow(dead_code, unreachable_pub))]
pub(crate) mod times;
/// Makes system calls of the current thread fail: for tests, in builds with debug assertions.
#[cfg(debug_assertions)]
pub mod inject;
