//! The functions of the interface, as methods of `WasiCtx`.

// The interface determines their parameters.
#![allow(clippy::too_many_arguments)]

mod clock;
mod fs;
mod poll;
pub(crate) mod process;
mod random;
mod sock;
