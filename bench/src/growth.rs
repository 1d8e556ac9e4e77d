//! Memories that grow, and are reset.

use pagefork::{CodeBounds, GrowthKind, ResetKind, StrategyConfig};

use crate::crowd;
use crate::grid::Grid;
use crate::measure::Size;
use crate::report::Report;
use crate::shapes::{Action, Pages, Shape};
use crate::sides::{self, Engines, Side, Sides};

/// How a memory grows, and how the slot is reset.
const WAYS: [(&str, GrowthKind, ResetKind); 6] = [
    ("mprotect, auto", GrowthKind::Mprotect, ResetKind::Auto),
    ("mprotect, discard", GrowthKind::Mprotect, ResetKind::Discard),
    ("ftruncate, auto", GrowthKind::Ftruncate, ResetKind::Auto),
    ("ftruncate, discard", GrowthKind::Ftruncate, ResetKind::Discard),
    ("checked, auto", CHECKED, ResetKind::Auto),
    ("checked, discard", CHECKED, ResetKind::Discard),
];

/// Up to 128 MiB without a system call.
const CHECKED: GrowthKind = GrowthKind::Checked { accessible: Some(128 << 20) };

/// Times growth, and what it costs the reset: by one page a thousand times, and once
/// by 1 MiB. Each new page is written.
pub fn run(size: Size) -> Report {
    let wasm = Shape { memory: 1, image: 1, run: Action::Grow, ..Shape::default() }.wasm();
    let sides = sides(&wasm);
    let columns: Vec<&str> = sides.iter().map(|(column, _)| *column).collect();
    let mut grid = Grid::new("spawn, grow, write, drop", WAYS.len(), columns);
    let times = if size == Size::Small { 10 } else { 1000 };
    for (name, step, count) in [("by 16 pages", 16, 1), ("by 1 page, 1000 times", 1, times)] {
        for threads in crowd::threads(size) {
            let grow = Pages { first: 0, count, step };
            let makers = crowd::makers(&sides, |side| {
                Box::new(move || assert_eq!(side.request(grow), 0, "new pages are zero"))
            });
            let name = format!("{name}, {threads} thread{}", if *threads == 1 { "" } else { "s" });
            crowd::contest(&mut grid, &name, size, *threads, &makers);
        }
    }
    Report::of_grid("growth", &grid)
}

fn sides(wasm: &[u8]) -> Sides {
    let ours = WAYS.map(|(name, growth, reset)| -> (&str, Box<dyn Side>) {
        let code = match growth {
            GrowthKind::Checked { .. } => CodeBounds::Checked,
            _ => CodeBounds::Guarded,
        };
        let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
        let mut config = sides::pagefork::config();
        config.strategies(strategies);
        let engine = pagefork::Engine::new(&config).expect("the parts go together");
        (name, Box::new(sides::pagefork::Module::new(&engine, wasm)))
    });
    let theirs = Engines::new(100).sides(wasm).into_iter().skip(1);
    ours.into_iter().chain(theirs).collect()
}
