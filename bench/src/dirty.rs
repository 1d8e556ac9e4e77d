//! A large module's empty function called, and a mebibyte written, on many threads.

use crate::crowd;
use crate::grid::Grid;
use crate::measure::Size;
use crate::report::Report;
use crate::shapes::{IMAGE_WORD, Pages, Shape};
use crate::sides::{Engines, STRATEGIES, Sides};

/// Host pages in a mebibyte, which is how long the image is.
const MEBIBYTE: u32 = 256;

/// Times a call of an empty function in a new instance of a large module, as
/// substrate's `call_empty_function` does: on many threads, with every strategy.
pub fn empty(size: Size) -> Report {
    let mut bench = Bench::new("empty call", size);
    for threads in crowd::threads(size) {
        bench.measure(&named("", *threads), *threads, Pages::NONE, 0);
    }
    Report::of_grid("call_empty_function", &bench.grid)
}

/// Times a call that writes to each host page of a mebibyte, as substrate's
/// `dirty_1mb_of_memory` does: pages of the image, zero pages, and half of each.
pub fn mebibyte(size: Size) -> Report {
    let mut bench = Bench::new("1 MiB written", size);
    for (kind, first) in [("image", 0), ("zero", MEBIBYTE), ("mixed", MEBIBYTE / 2)] {
        let pages = Pages { first, ..Pages::row(MEBIBYTE) };
        let expected = IMAGE_WORD.wrapping_mul(u64::from(MEBIBYTE - first));
        for threads in crowd::threads(size) {
            bench.measure(&named(&format!("{kind}, "), *threads), *threads, pages, expected);
        }
    }
    Report::of_grid("dirty_1mb_of_memory", &bench.grid)
}

fn named(kind: &str, threads: u32) -> String {
    format!("{kind}{threads} thread{}", if threads == 1 { "" } else { "s" })
}

struct Bench {
    size: Size,
    /// For new instances.
    sides: Sides,
    /// For instances that are used again.
    kept: Sides,
    grid: Grid,
}

impl Bench {
    fn new(what: &str, size: Size) -> Self {
        let functions = if size == Size::Small { 50 } else { 5000 };
        let wasm = Shape::interpreter(functions).wasm();
        let engines = Engines::new(100);
        let (sides, kept) = (engines.strategies(&wasm), engines.kept(&wasm));
        let ours = STRATEGIES.len();
        let names = |sides: &Sides| sides.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let (mut columns, mut kept_columns) = (names(&sides), names(&kept));
        let theirs = columns.split_off(ours);
        columns.push(kept_columns.remove(0));
        columns.extend(theirs);
        columns.extend(kept_columns);
        Self { size, sides, kept, grid: Grid::new(what, ours + 1, columns) }
    }

    fn measure(&mut self, name: &str, threads: u32, pages: Pages, expected: u64) {
        const WRONG: &str = "pages are as at first";
        let mut makers = crowd::makers(&self.sides, |side| {
            Box::new(move || assert_eq!(side.request(pages), expected, "{WRONG}"))
        });
        makers.extend(crowd::makers(&self.kept, |side| {
            let mut request = side.reused();
            Box::new(move || assert_eq!(request(pages), expected, "{WRONG}"))
        }));
        crowd::contest(&mut self.grid, name, self.size, threads, &makers);
    }
}
