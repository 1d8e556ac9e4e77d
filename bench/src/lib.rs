//! Benchmarks, each also a test: it checks what it computes, and has a small
//! size for CI beside the large one for measuring.

// Only a peer's user needs any: to have the kernel discard a peer's pages.
#![cfg_attr(not(feature = "peer"), forbid(unsafe_code))]
#![cfg_attr(feature = "peer", deny(unsafe_code))]

/// Samples, medians, and what is printed of them.
pub mod measure;
/// Tables with many columns, measured in turn.
pub mod grid;
/// What is shown and kept of a benchmark.
pub mod report;
/// The same on many threads at a time.
mod crowd;
/// Drawings of tables.
mod plot;
/// The two engines, set up alike.
mod engines;
/// Modules that are spawned.
mod shapes;
/// A module on either side, and requests to it.
mod sides;
/// Entering functions, and calling the host from them.
pub mod call;
/// A new store with an instance, a call in it, and dropping both.
pub mod spawn;
/// A large module's empty function called, and a mebibyte written, on many threads.
pub mod dirty;
/// Memories that grow, and are reset.
pub mod growth;
/// Many live instances and modules.
pub mod density;
/// HTTP servers that answer each request by a fresh instance.
pub mod serve;
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

use measure::Size;
use report::Report;

/// A benchmark: its name and what it measures.
pub type Benchmark = (&'static str, fn(Size) -> Report);

/// All benchmarks.
pub const ALL: &[Benchmark] = &[
    ("call", |size| Report::of_rows("call", &call::run(size))),
    ("spawn", spawn::run),
    ("strategies", spawn::strategies),
    ("call_empty_function", dirty::empty),
    ("dirty_1mb_of_memory", dirty::mebibyte),
    ("growth", growth::run),
    ("density", density::run),
    ("serve", serve::run),
    ("compile", |size| Report::of_rows("compile", &compile::run(size))),
    ("runtime", |size| Report::of_rows("runtime", &runtime::interruptible(size))),
    ("runtime-plain", |size| Report::of_rows("runtime-plain", &runtime::plain(size))),
];
