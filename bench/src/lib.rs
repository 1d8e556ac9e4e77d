//! Benchmarks, each also a test: it checks what it computes, and has a small
//! size for CI beside the large one for measuring.

#![forbid(unsafe_code)]

/// Samples, medians, and what is printed of them.
pub mod measure;
/// The two engines, set up alike.
mod engines;
/// Entering functions, and calling the host from them.
pub mod call;
/// A new store with an instance, a call in it, and dropping both.
pub mod spawn;
/// From a module's bytes to code.
pub mod compile;
/// How fast code is: kernels and programs.
pub mod runtime;
/// Loops of a few lines.
mod kernels;
/// Programs that others wrote.
mod programs;
/// What those programs have for a host.
mod process;

use measure::{Row, Size};

/// A benchmark: its name and what it measures.
pub type Benchmark = (&'static str, fn(Size) -> Vec<Row>);

/// All benchmarks.
pub const ALL: &[Benchmark] = &[
    ("call", call::run),
    ("spawn", spawn::run),
    ("compile", compile::run),
    ("runtime", runtime::interruptible),
    ("runtime-plain", runtime::plain),
];
