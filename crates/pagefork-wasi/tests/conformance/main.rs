//! Every function of WASI preview 1, called on the core as a guest would:
//! with numbers and addresses.

/// The functions of the standard.
#[path = "../standard/imports.rs"]
mod imports;

/// A guest without code: memory, state and calls.
mod harness;

/// Addresses that are no good.
mod bad_pointers;
/// Clocks and random numbers.
mod clock;
/// Descriptors: numbers, flags, offsets, sizes.
mod fd;
/// FIFOs, and who waits for their other ends.
mod fifo;
/// Each function by its name: good calls and bad ones.
mod functions;
/// Opening files.
mod open;
/// Names: create, rename, link, remove.
mod path;
/// Waiting.
mod poll;
/// Arguments, environment, exit.
mod process;
/// Listing directories.
mod readdir;
/// Rights and permissions.
mod rights;
/// Ways out of a directory that is being changed, all closed.
mod races;
/// Ways out of a directory, all closed.
mod sandbox;
/// Sockets.
mod sockets;
/// Attributes and timestamps.
mod stat;
/// Saving, resetting, opening again.
mod state;
/// Standard streams.
mod stdio;
/// Reading and writing.
mod transfer;
