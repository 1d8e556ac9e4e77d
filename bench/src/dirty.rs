//! Modules' empty function called, and a mebibyte written, on many threads.

use crate::crowd;
use crate::grid::Grid;
use crate::measure::{Options, Size};
use crate::report::Report;
use crate::shapes::{Action, IMAGE_WORD, Pages, Shape};
use crate::sides::{Engines, Workers};

/// Host pages in a mebibyte, which is how long the image is.
const MEBIBYTE: u32 = 256;

/// Times a call of an empty function in a new instance of a large module, as
/// substrate's `call_empty_function` does, and of a small one: on many threads, with every strategy.
pub fn empty(options: &Options) -> Report {
    let mut bench = Bench::new("empty call", options);
    for (name, shape) in [large(options.size), small()] {
        bench.measure(&format!("{name}, "), &shape, &[("", Pages::NONE, 0)]);
    }
    Report::of_grid("call_empty_function", &bench.grid)
}

/// Times a call that writes to each host page of a mebibyte, as substrate's
/// `dirty_1mb_of_memory` does: pages of the image, zero pages, and half of each. A word of each page is
/// written, or all of it.
pub fn mebibyte(options: &Options) -> Report {
    let mut bench = Bench::new("1 MiB written", options);
    let lines = [("image, ", 0), ("zero, ", MEBIBYTE), ("mixed, ", MEBIBYTE / 2)];
    let lines = lines.map(|(kind, first)| {
        let expected = IMAGE_WORD.wrapping_mul(u64::from(MEBIBYTE - first));
        (kind, Pages { first, ..Pages::row(MEBIBYTE) }, expected)
    });
    let (name, large) = large(options.size);
    bench.measure(&format!("{name}, a word a page, "), &large, &lines);
    bench.measure(&format!("{name}, all bytes, "), &Shape { run: Action::Fill, ..large }, &lines);
    let (name, small) = small();
    bench.measure(&format!("{name}, a word a page, "), &small, &lines);
    bench.measure(&format!("{name}, all bytes, "), &Shape { run: Action::Fill, ..small }, &lines);
    Report::of_grid("dirty_1mb_of_memory", &bench.grid)
}

/// A large module.
fn large(size: Size) -> (&'static str, Shape) {
    ("large", Shape::interpreter(if size == Size::Small { 50 } else { 5000 }))
}

/// A small one with the same memory.
fn small() -> (&'static str, Shape) {
    let few = Shape { table: 10, globals: 1, functions: 10, imports: 1, ..Shape::interpreter(0) };
    ("small", few)
}

struct Bench<'a> {
    options: &'a Options,
    engines: Engines,
    grid: Grid,
}

impl<'a> Bench<'a> {
    fn new(what: &str, options: &'a Options) -> Self {
        let engines = Engines::new(100);
        let (ours, theirs) = engines.workers(&small().1.wasm());
        let names = |workers: &Workers| workers.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let grid = Grid::new(what, ours.len(), [names(&ours), names(&theirs)].concat());
        Self { options, engines, grid }
    }

    /// Adds lines of a module: what each writes, and what it finds.
    fn measure(&mut self, module: &str, shape: &Shape, lines: &[(&str, Pages, u64)]) {
        let (mut workers, theirs) = self.engines.workers(&shape.wasm());
        workers.extend(theirs);
        for &(kind, pages, expected) in lines {
            let makers = workers.iter().map(|(column, worker)| -> crowd::Maker<'_> {
                let job = move || -> crowd::Job<'_> {
                    let mut request = worker.requests();
                    Box::new(move || {
                        assert_eq!(request(pages), expected, "pages are as at first");
                        []
                    })
                };
                (column, Box::new(job))
            });
            let makers: Vec<_> = makers.collect();
            for threads in self.options.threads(&crowd::THREADS) {
                let name = format!("{module}{kind}{}", crowd::on_threads(threads));
                crowd::contest(&mut self.grid, &name, self.options.size, threads, &makers);
            }
        }
    }
}
