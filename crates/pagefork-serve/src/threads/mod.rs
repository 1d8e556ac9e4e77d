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

pub(crate) mod job;
mod usage;
pub(crate) mod schedule;
pub(crate) mod event_loop;
mod monitor;
pub(crate) mod workers;
