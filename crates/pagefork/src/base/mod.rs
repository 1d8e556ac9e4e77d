//! What everything else stands on: errors, traps, backtraces, cells.

pub(crate) mod error;
pub(crate) mod trap;
pub(crate) mod frames;
pub(crate) mod cell;
pub(crate) mod similar;
pub(crate) mod trace;
