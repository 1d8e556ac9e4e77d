//! Slots of address space and the immutable images they are filled from: every
//! memory system call of Pagefork. Nothing here knows WebAssembly; a *slot* is a
//! few zones of pages, and all that is done to an instance is done to pages.
//!
//! ```text
//! 0        stack        link     tables         image                            size
//! | guard  | stack down | link   | room to grow | contents, state | memory 0 | guard |
//! |--none--|----------anonymous, read-write-----|-copy on write---|-anon-rw--|-none--|
//! ```
//!
//! Principles:
//!
//! 1. A slot is one reservation and four kernel maps: the guards of neighbours
//!    are one map. Each further memory costs two, or three with contents. (An
//!    image with wide holes costs two maps a hole, see [`Image`].)
//! 2. An image never changes. It lies in a sealed memfd, or in a file that nobody
//!    else can write.
//! 3. How much of a memory is accessible has one owner, the [`Slot`]. What else
//!    shows the size is set from it.
//! 4. A reset gives pages back or restores them; it knows no fields, so there is
//!    none that it can forget. How it does so is a *strategy*.
//! 5. A call that fails leaves nothing half-made, and its error names the limit
//!    that was met and how to raise it.
//! 6. All system calls go through one file, where tests make each of them fail
//!    in turn.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("pagefork-pages needs Linux on x86-64");

// In reading order: what a slot is filled from, the slot, where an address lies
// in it; then what they stand on, from address space down to the system calls.

/// Immutable page contents: sealed memfds and verified files.
mod image;
/// The files that images lie in: one each, or many in one.
mod image_file;
/// A memfd that many images share.
mod arena;
/// A slot: reserve, fill, grow, reset, drop.
mod slot;
/// Slots, and what is made of them, kept between uses.
mod pool;
/// How a slot is reset and grows.
mod strategy;
/// How much memory slots keep together.
mod budget;
/// What both are written in: the pages of a slot.
mod slot_pages;
/// Pages made equal to others where they differ.
mod mend;
/// Which pages are private.
mod pagemap;
/// Page faults of a thread, noted in memory.
mod fault_ring;
/// Which part of a slot an address lies in, for signal handlers.
mod bounds;
/// Address space that is ours alone; the safe side of `sys`.
mod reservation;
/// Address space that is reserved for slots ahead of time.
mod spare;
/// What this kernel can do, tried on real pages.
mod features;
/// Machine code: in pages that many modules share, or mapped from files.
mod code_arena;
/// The same feature by feature, for showing it.
pub mod probes;
/// userfaultfd and PAGEMAP_SCAN, as far as probes need them.
mod userfault;
/// What can go wrong, and what to do about it.
mod error;
/// From an error number to the limit that was met.
mod limits;
/// Maps that are left to the rest of the process.
mod map_budget;
/// What holds in a process that was forked.
mod fork;
/// The system calls, in page verbs.
mod sys;

/// What the process's allocator keeps.
mod allocator;
/// The maps of this process, as the kernel lists them.
pub mod procmaps;

/// Makes system calls of the current thread fail: for tests, in builds with
/// debug assertions.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod inject;

pub use crate::allocator::limit_arenas;
pub use crate::bounds::{Place, SlotBounds};
pub use crate::budget::Budget;
pub use crate::code_arena::{CODE_FILES_MAX, CodeFile, CodePages};
pub use crate::error::{Call, Feature, FileProblem, IllegalStrategies, PagesError};
pub use crate::features::HostFeatures;
pub use crate::fork::{this_process, working};
pub use crate::image::{Image, SPAN_COUNT_MAX, SPAN_GAP, check_writers};
pub use crate::image_file::{LARGE_IMAGE, OWN_FILES_LARGE_MAX, OWN_FILES_MAX};
pub use crate::pool::{Key, LocalPool, Park, Pool, PoolConfig, PoolCounters};
pub use crate::slot::{MemorySize, MemoryZone, Slot, SlotConfig};
pub use crate::strategy::counts_faults_in_memory;
pub use crate::strategy::{
    Choice, CodeBounds, GrowthKind, Owner, Reason, ResetKind, ResetReport, STACK_KEPT_MAX,
    Strategies, StrategyConfig, View,
};
