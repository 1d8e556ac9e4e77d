//! Benchmarks, each also a test: it checks what it computes, and has a small
//! size for CI beside the large one for measuring.

// Only calls that check nothing need any, and peers that have the kernel discard pages or tell of faults.
#![deny(unsafe_code)]

pub mod measure;
pub mod grid;
pub mod report;
mod crowd;
mod waiting;
pub mod signatures;
mod plot;
mod engines;
mod shapes;
mod sides;
pub mod call;
pub mod capi;
pub mod spawn;
pub mod contained;
pub mod dirty;
pub mod growth;
pub mod faultspeed;
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
mod kernel;
mod programs;
mod process;

use measure::Options;
use report::Report;

/// A benchmark: its name and what it measures.
pub type Benchmark = (&'static str, fn(&Options) -> Report);

/// All benchmarks.
pub const ALL: &[Benchmark] = &[
    ("call", |asked| Report::of_rows("call", &call::run(asked.size))),
    ("call_on_threads", call::on_threads),
    ("capi", |asked| capi::run(asked.size)),
    ("spawn", |asked| spawn::run(asked.size)),
    ("strategies", |asked| spawn::strategies(asked.size)),
    ("contained", |asked| contained::run(asked.size)),
    ("call_empty_function", dirty::empty),
    ("dirty_1mb_of_memory", dirty::mebibyte),
    ("growth", growth::run),
    ("faultspeed", faultspeed::run),
    ("trackers", trackers::run),
    ("density", |asked| density::run(asked.size)),
    ("serve", |asked| serve::run(asked.size)),
    ("fork", |asked| Report::of_rows("fork", &fork::run(asked.size))),
    ("pageman", |asked| pageman::run(asked.size)),
    ("image", |asked| image::run(asked.size)),
    ("postcopy", |asked| postcopy::run(asked.size)),
    ("first", |asked| postcopy::first_instruction(asked.size)),
    ("moves", |asked| postcopy::moves(asked.size)),
    ("compile", |asked| Report::of_rows("compile", &compile::run(asked.size))),
    ("runtime", |asked| Report::of_rows("runtime", &runtime::interruptible(asked.size))),
    ("runtime-plain", |asked| Report::of_rows("runtime-plain", &runtime::plain(asked.size))),
];
