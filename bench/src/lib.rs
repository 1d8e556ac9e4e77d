//! Benchmarks, each also a test: it checks what it computes, and has a small
//! size for CI beside the large one for measuring.

// Only calls that check nothing need any, and peers that have the kernel discard pages or tell of faults.
#![deny(unsafe_code)]

pub mod measure;
pub mod grid;
pub mod report;
mod crowd;
mod waiting;
mod signatures;
mod plot;
mod engines;
mod shapes;
mod sides;
pub mod call;
pub mod capi;
pub mod spawn;
pub mod dirty;
pub mod growth;
pub mod trackers;
pub mod density;
pub mod serve;
pub mod compile;
pub mod fork;
pub mod pageman;
pub mod image;
pub mod postcopy;
pub mod runtime;
mod kernels;
mod programs;
mod process;

use measure::Size;
use report::Report;

/// A benchmark: its name and what it measures.
pub type Benchmark = (&'static str, fn(Size) -> Report);

/// All benchmarks.
pub const ALL: &[Benchmark] = &[
    ("call", |size| Report::of_rows("call", &call::run(size))),
    ("capi", capi::run),
    ("spawn", spawn::run),
    ("strategies", spawn::strategies),
    ("call_empty_function", dirty::empty),
    ("dirty_1mb_of_memory", dirty::mebibyte),
    ("growth", growth::run),
    ("trackers", trackers::run),
    ("density", density::run),
    ("serve", serve::run),
    ("fork", |size| Report::of_rows("fork", &fork::run(size))),
    ("pageman", pageman::run),
    ("image", image::run),
    ("postcopy", postcopy::run),
    ("compile", |size| Report::of_rows("compile", &compile::run(size))),
    ("runtime", |size| Report::of_rows("runtime", &runtime::interruptible(size))),
    ("runtime-plain", |size| Report::of_rows("runtime-plain", &runtime::plain(size))),
];
