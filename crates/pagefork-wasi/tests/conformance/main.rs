//! Every function of WASI preview 1, called on the core as a guest would:
//! with numbers and addresses.

#[path = "../standard/imports.rs"]
mod imports;

mod harness;

mod bad_pointers;
mod clock;
mod fd;
mod fifo;
mod functions;
mod open;
mod path;
mod poll;
mod process;
mod readdir;
mod rights;
mod put_off;
mod races;
mod sandbox;
mod saved;
mod saved_hostile;
mod session;
mod session_images;
mod sockets;
mod stat;
mod state;
mod stdio;
mod transfer;
