//! Benchmarks, each also a test: it checks what it computes, and has a small
//! size for CI beside the large one for measuring.

#![forbid(unsafe_code)]

/// Samples, medians, and what is printed of them.
pub mod measure;
/// Entering functions, and calling the host from them.
pub mod call;
/// A new store with an instance, a call in it, and dropping both.
pub mod spawn;
/// From a module's bytes to code.
pub mod compile;

use measure::{Row, Size};

/// A benchmark: its name and what it measures.
pub type Benchmark = (&'static str, fn(Size) -> Vec<Row>);

/// All benchmarks.
pub const ALL: &[Benchmark] =
    &[("call", call::run), ("spawn", spawn::run), ("compile", compile::run)];
