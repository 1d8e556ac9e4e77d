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
//! 2. An image never changes. It lies in a sealed memfd, or in a file that no other
//!    user can write; or it is a *branch* of such an image, and holds the pages in
//!    which it differs.
//! 3. How much of a memory is accessible has one owner, the [`Slot`]. What else
//!    shows the size is set from it.
//! 4. A reset gives pages back or restores them; it knows no fields, so there is
//!    none that it can forget. How it does so is a *strategy*.
//! 5. A call that fails leaves nothing half-made, and its error names the limit
//!    that was met and how to raise it.
//! 6. All system calls go through one function, where tests make each of them fail
//!    in turn.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("pagefork-pages needs Linux on x86-64");

// In layers: each imports only from those below it.

/// Slots, and what is made of them, kept between uses.
mod pool;
/// A slot: reserve, fill, grow, reset, drop.
mod slot;
/// How a slot is reset.
mod strategy;
/// The pages of one slot.
mod pages;
/// Immutable page contents: sealed memfds and verified files.
mod image;
/// The operating system: every system call.
mod os;

pub use crate::image::branch::{BRANCH_DEPTH_MAX, BRANCH_PAGES_MAX, HeldRun, ImageForm};
pub use crate::image::code::{CODE_FILES_MAX, CodeFile, CodePages};
pub use crate::image::file::{LARGE_IMAGE, OWN_FILES_LARGE_MAX, OWN_FILES_MAX};
pub use crate::image::incomplete::{IncompletePages, PAGE_GROUP, ResidencyCounts};
pub use crate::image::mapped::FileSpan;
pub use crate::image::{Image, SPAN_COUNT_MAX, SPAN_GAP, check_writers};
pub use crate::os::absent_pages::serves_absent_pages;
pub use crate::os::error::{
    Absence, AbsentPage, Call, Feature, FileProblem, IllegalStrategies, PagesError,
};
pub use crate::os::faults::counts_faults_in_memory;
pub use crate::os::features::HostFeatures;
pub use crate::os::fork::{this_process, working};
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use crate::os::inject;
pub use crate::os::limits::HostLimits;
pub use crate::os::page_faults::{faults_at_touches, faults_in_messages};
pub use crate::os::procmaps;
pub use crate::os::stand_in::{stand_in, stand_in_is_called};
pub use crate::os::write_fault::{faults_at_writes, serve_fault, serve_fault_is_called};
pub use crate::os::write_guard::{lift_protection, lift_protection_is_called, protects_writes};
pub use crate::os::write_watch::notes_writes;
pub use crate::pages::bounds::{FaultPlace, SlotBounds};
pub use crate::pages::budget::Budget;
pub use crate::pages::growth::{CodeBounds, GrowthChoice, GrowthKind, GrowthReason};
pub use crate::pages::growth_file::grows_in_files;
pub use crate::pages::zones::{MemorySize, MemoryZone, SlotConfig};
pub use crate::pool::{Key, LocalPool, Park, Pool, PoolConfig, PoolCounters};
pub use crate::slot::{Discarded, Slot};
pub use crate::strategy::config::{
    Choice, DeltaTracker, FAULT_THREADS_MAX, Reason, ResetKind, STACK_KEPT_MAX, Strategies,
    StrategyConfig,
};
pub use crate::strategy::report::ResetReport;
pub use crate::strategy::stack::Owner;
pub use crate::strategy::writers::ExternalWriter;
