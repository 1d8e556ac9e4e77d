//! The pages of one slot: where they lie, what they hold, how much of them is accessible.

// In reading order.

/// Where the zones of a slot lie, and how large its memories are.
pub(crate) mod zones;
/// How memories grow.
pub(crate) mod growth;
/// Files that memories grow in.
pub(crate) mod growth_file;
/// Which part of a slot an address lies in, for signal handlers.
pub(crate) mod bounds;
/// The pages of a slot, in the verbs that slots and reset strategies are written in.
pub(crate) mod slot_pages;
/// Pages made equal to others where they differ.
pub(crate) mod restore;
/// Address space that is reserved for slots ahead of time.
pub(crate) mod spare;
/// Maps that are left to the rest of the process.
pub(crate) mod map_budget;
/// Pages of a slot whose writes the kernel notes.
pub(crate) mod watched_pages;
/// Pages that are read-only until a handler of signals notes a write.
pub(crate) mod guarded_pages;
/// Pages that are write-protected until a handler of signals notes a write.
pub(crate) mod faulted_pages;
/// How much memory slots keep together.
pub(crate) mod budget;
