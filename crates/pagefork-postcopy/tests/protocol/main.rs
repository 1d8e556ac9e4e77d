//! Both sides of the protocol, with a network in memory between them: it delays, cuts and reorders
//! what it may, and peers may be hostile.

#![allow(clippy::single_range_in_vec_init)]

mod fetching;
mod here;
mod hostile;
mod migrations;
mod network;
mod tokens;
