//! What everything else stands on: errors, traps, backtraces, cells.

/// Everything that can go wrong.
pub(crate) mod error;
/// Why guests stop.
pub(crate) mod trap;
/// Where they stopped.
pub(crate) mod frames;
/// The cells in which host and guest pass values.
pub(crate) mod cell;
/// Names that were perhaps meant.
pub(crate) mod similar;
