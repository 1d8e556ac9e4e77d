//! WebAssembly bytes in, a position-independent *code image* out.
//!
//! The pipeline is a list of calls: `compile` parses and validates the module,
//! lays out its slot, translates each function to Cranelift IR, optimises it,
//! proves on the result that no host address is live across a call, and links
//! the machine code into one text. [`initial_image`] makes the bytes that its
//! instances start with.
//!
//! Without the feature `cranelift`, which is on by default, nothing can be compiled: what is left
//! reads [compiled modules from files](mod@file).
//!
//! This is the only crate that knows Cranelift. It neither runs code nor maps
//! memory.

#![forbid(unsafe_code)]

/// What every stage uses: options, errors, limits of cost, the machine.
mod base;
/// From bytes to a description of the module and the bodies of its functions.
#[cfg(feature = "cranelift")]
mod parse;
/// From one function body to Cranelift IR.
#[cfg(feature = "cranelift")]
mod translate;
/// From bodies to machine code, in parallel, and from there to one text.
#[cfg(feature = "cranelift")]
mod build;
/// Compiled modules in files.
pub mod file;

pub use base::error::CompileError;
pub use base::image::{Instantiation, SpawnStep, initial_image};
pub use base::module::{CompiledModule, debug_info};
pub use base::options::{Bounds, CompileLimits, CompileOptions, Features};
#[cfg(feature = "cranelift")]
pub use base::progress::Progress;
pub use base::target::CpuLevel;
#[cfg(feature = "cranelift")]
pub use build::{compile, compile_with_progress, optimised_ir};
#[cfg(feature = "cranelift")]
pub use parse::validate;
