//! What it costs to know which pages were written: between two snapshots of a guest, by Pagefork's trackers;
//! and by what the kernel offers, in memory of this program.

mod engine;
mod native;

use crate::measure::Options;
use crate::report::Report;

/// Of 16 MiB, as many pages are written as this, and this far apart.
struct Share {
    name: &'static str,
    count: u32,
    step: u32,
}

const PAGES: u32 = 4096;

const fn share(name: &'static str, count: u32, step: u32) -> Share {
    Share { name, count, step }
}

/// The first two are runs that take less time than it does to begin to notice what they write.
const SHARES: [Share; 7] = [
    share("none, all read", 0, 1),
    share("1 page", 1, 1),
    share("1 %, apart", 41, 99),
    share("1 %, side by side", 41, 1),
    share("10 %, apart", 410, 9),
    share("50 %, apart", 2048, 2),
    share("100 %", PAGES, 1),
];

const THREADS: [u32; 4] = [1, 8, 24, 64];

/// Times both, on many threads.
///
/// # Panics
/// If a snapshot has not what the guest has, or a tracker does not find what was written and nothing else.
pub fn run(options: &Options) -> Report {
    Report::of_grid("trackers", &engine::table(options)).and(&native::table(options), "trackers")
}
