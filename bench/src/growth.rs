//! Memories that grow, and are reset.

use pagefork::{GrowthKind, ResetKind};

use crate::crowd;
use crate::grid::Grid;
use crate::measure::{Options, Size};
use crate::report::Report;
use crate::shapes::{Action, Pages, Shape};
use crate::sides::pagefork::{Module, engine_with, strategies};
use crate::sides::{Engines, Side};

/// How slots are reset, for each way that memories grow.
const RESETS: [ResetKind; 2] = [ResetKind::Auto, ResetKind::Discard];

/// Bytes that are accessible from the start where code compares: so far growth needs no system call.
const ACCESSIBLE: u64 = 128 << 20;

/// Times growth, and what it costs the reset: by one page a thousand times, and once
/// by 1 MiB. The first word of each growth is written, and of 1 MiB a word of each 4 KiB, too.
pub fn run(options: &Options) -> Report {
    let wasm = Shape { memory: 1, image: 1, run: Action::Grow, ..Shape::default() }.wasm();
    let ours = ours(&wasm);
    let theirs = Engines::new(100).sides(&wasm).split_off(1);
    let columns = ours.iter().map(|(column, _)| &**column);
    let columns = columns.chain(theirs.iter().map(|theirs| theirs.column));
    let mut grid = Grid::new("spawn, grow, write, drop", ours.len(), columns);
    let times = if options.size == Size::Small { 10 } else { 1000 };
    let ways = [
        ("by 1 MiB", 16, 1, 1),
        ("by 1 MiB, a word a page", 16, 1, 256),
        ("by 64 KiB, 1000 times", 1, times, 1),
    ];
    for (name, step, count, first) in ways {
        let grow = Pages { first, count, step };
        let job = |side: &dyn Side| assert_eq!(side.request(grow), 0, "new pages are zero");
        let ours = ours.iter().map(|(column, side)| (&**column, &**side));
        let sides = ours.chain(theirs.iter().map(|theirs| (theirs.column, &*theirs.side)));
        let makers = crowd::makers(sides, |side| {
            Box::new(move || {
                job(side);
                []
            })
        });
        for threads in options.threads(&crowd::THREADS) {
            let name = format!("{name}, {}", crowd::on_threads(threads));
            crowd::contest(&mut grid, &name, options.size, threads, &makers);
        }
    }
    Report::of_grid("growth", &grid)
}

/// Pagefork's ways, with their names.
fn ours(wasm: &[u8]) -> Vec<(String, Box<dyn Side>)> {
    let growths = GrowthKind::ALL.map(|growth| match growth {
        GrowthKind::Checked { .. } => GrowthKind::Checked { accessible: Some(ACCESSIBLE) },
        growth => growth,
    });
    let ways = growths.iter().zip(GrowthKind::ALL);
    let ways = ways.flat_map(|(growth, named)| RESETS.map(|reset| (*growth, named, reset)));
    ways.map(|(growth, named, reset)| -> (String, Box<dyn Side>) {
        let engine = engine_with(strategies(reset, growth));
        (format!("{named}, {reset}"), Box::new(Module::new(&engine, wasm)))
    })
    .collect()
}
