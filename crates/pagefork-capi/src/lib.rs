//! Pagefork as a C library: the standard `wasm.h`, and `pagefork.h` for everything else.
//!
//! What each function does, who owns what it takes and gives, and what it answers on failure is
//! said in `include/wasm.h` and `include/pagefork.h`. This crate has no Rust API.
//!
//! 1. Objects keep their store alive, and are all of one Rust type: the pointers by which C tells
//!    a function from a reference lead to the same thing.
//! 2. A store is reached by what its cell says is the present context: its own, or that of the
//!    host function which runs. So callbacks, which get no store, use all objects.
//! 3. No panic and no error crosses the border but as a value: see `base/border.rs`.
//! 4. Arguments have types for what the headers promise of them, so that `unsafe` is where memory
//!    of C's is read, and nowhere else.

// The names are C's.
#![allow(non_camel_case_types)]

// Layers, each of which uses only those below it.

mod pagefork_h;
mod wasm_h;
mod objects;
mod base;
