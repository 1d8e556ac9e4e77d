//! How a slot becomes equal to its image again, and how its memories grow.
//!
//! ```text
//!             finds what was written by      gives back by          system calls of a warm reset
//!  Remap      -                              fresh maps             several
//!  Discard    -                              MADV_DONTNEED          1
//!  Scan       PAGEMAP_SCAN                   copying in place       1
//!  Resident   page faults counted, or Scan   copying in place       1, cheaper
//!  Protect    as Resident; pages written seldom are write-protected, not looked at
//!  Copy       PAGEMAP_SCAN; no copy-on-write copying in place       1
//!  Auto       one of Scan, Resident, Protect, Discard
//! ```
//!
//! Strategies that copy in place keep pages private, so a later run takes no fault on them;
//! `dirty_set` says which are kept. What a kernel lacks is replaced by what is nearest:
//! [`Slot::strategy`](crate::Slot::strategy) says what and why.

// In layers: each imports only from those above it.

/// What is asked for, and what was chosen.
pub(crate) mod config;
/// What a reset did.
pub(crate) mod report;
/// The numbers that strategies go by.
mod tuning;
/// Who could write to a slot since its last reset.
pub(crate) mod writers;
/// What a slot keeps of its stack for the same owner.
pub(crate) mod stack;
/// For how long it pays to keep pages.
mod returns;
/// Pages that were evicted, remembered for a while.
mod evicted;
/// Pages that are kept under write protection.
mod protection;
/// The life of a page: which are private, kept, evicted.
mod dirty_set;
/// Whether it costs less to discard all pages than to find those that were written.
mod blind;
/// `Auto` chooses how written pages are found.
mod auto;
/// Resets that find private pages and restore them in place.
mod search;
/// How one slot is reset.
pub(crate) mod reset;
/// What of a configuration this machine can do.
pub(crate) mod choose;
