//! How a slot becomes equal to its image again, and how its memories grow.
//!
//! ```text
//!             finds what was written by      gives back by          system calls of a warm reset
//!  Remap      -                              fresh maps             several
//!  Discard    -                              MADV_DONTNEED          1
//!  Scan       PAGEMAP_SCAN                   copying in place       1
//!  Resident   page faults counted, or Scan   copying in place       1, cheaper
//!  Copy       PAGEMAP_SCAN; no copy-on-write copying in place       1
//!  Auto       one of Scan, Resident, Discard
//! ```
//!
//! Strategies that copy in place keep pages private, so a later run takes no fault
//! on them; [`Restorer`] says which are kept. What a kernel lacks is replaced by
//! what is nearest: [`Slot::strategy`](crate::Slot::strategy) tells what and why.

/// What is asked for, and what was chosen.
pub(crate) mod config;
/// What every way to reset a slot has in common.
pub(crate) mod reset;
/// What a strategy may know about a run: who entered, who else can write.
pub(crate) mod writers;
/// The pages of the stack that outlive a reset.
pub(crate) mod stack;
/// For how long it pays to keep pages.
mod returns;
/// Private pages that are kept, restored and let go.
mod dirty_set;

/// Chooses between others by what it sees.
mod auto;
/// No copy-on-write: what differs from the image is copied.
mod copy;
/// The kernel throws written pages away.
pub(crate) mod discard;
/// Fresh maps each time.
mod remap;
/// Restores in place, and searches only if page faults were counted.
mod resident;
/// Restores in place what the kernel finds.
mod scan;
/// What of that this machine can do.
pub(crate) mod choose;
