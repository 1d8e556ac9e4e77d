//! The threads that drive event loops and run handlers.
//!
//! ```text
//! accept --> event loop --> parse --> schedule --> handler --> response
//!            (driven by one thread       |
//!             at a time)                 +- inline: by the thread that drives the loop
//!                                        +- detached: by a thread that drives none
//! ```
//!
//! [`schedule`] has the rule which of the two it is, and [`workers`] carries it out.

/// A request with its handler.
pub(crate) mod job;
/// The processor time of a thread.
mod usage;
/// Which thread handles a request, and when.
pub(crate) mod schedule;
/// Some of the connections, and the thread that serves them.
pub(crate) mod event_loop;
/// A thread that notices event loops without a driver.
mod monitor;
/// The threads themselves.
pub(crate) mod workers;
