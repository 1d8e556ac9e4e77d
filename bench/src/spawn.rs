//! A new store with an instance, a call in it, and dropping both.

use std::collections::VecDeque;

use crate::grid::{Contestant, Grid, Iteration, percentile};
use crate::measure::{Clock, Effort, Size, Unit};
use crate::programs::fetched;
use crate::report::Report;
use crate::shapes::{Action, IMAGE_WORD, Pages, Shape, with_run};
use crate::sides::{Engines, PAGEFORK, STRATEGIES, Side, Sides, contestants};

/// Instances that live at a time while others come and go.
const LIVE: u32 = 1000;
/// Modules that are spawned in turn.
const MODULES: u32 = 50;
/// What instances do whose slot is new, and how many pages they write.
const FIRST: [(&str, u32); 2] = [("nop", 0), ("1 page written", 1)];

/// How many times quicker than the peer's best a row should be, if there is a goal for it.
pub(crate) fn goal(row: &str) -> Option<f64> {
    const GOALS: [(&str, f64); 12] = [
        ("nop", 20.0),
        ("1 page written", 8.0),
        ("16 pages in a row written", 2.5),
        ("64 pages in a row written", 1.5),
        ("256 pages in a row written", 1.36),
        ("1 of 1024 pages, others each time", 3.0),
        ("30 of 1024 pages, others each time", 3.0),
        ("100 of 1024 pages, others each time", 2.0),
        ("400 of 1024 pages, others each time", 1.0),
        ("cold slot, nothing kept: nop", 0.75),
        ("500 pages written, now and then", 0.6),
        ("500 pages written, and then 1 page by 1,000 requests, together", 20.0),
    ];
    GOALS.iter().find(|(name, _)| *name == row).map(|(_, goal)| *goal)
}

/// Times a new store, an instance, a call and dropping all: of modules of several
/// kinds, and with this many pages written.
pub fn run(size: Size) -> Report {
    let engines = Engines::new(LIVE + 100);
    let mut grid = Grid::new("new store, instance, call, drop", 1, Engines::columns());
    modules(&engines, size, &mut grid);
    cold(&engines, size, &mut grid);
    new_slots(&engines, size, &mut grid);
    programs(&engines, size, &mut grid);
    flatness(&engines, size, &mut grid);
    churn(&engines, size, &mut grid);
    turns(&engines, size, &mut grid);
    sticky(&engines, size, &mut grid);
    Report::of_grid("spawn", &grid).and(&other_pages(size), "spawn")
}

/// Times the same with other pages written in each request, which a generator chooses, and
/// with more pages than fit a small budget, the same in each.
fn other_pages(size: Size) -> Grid {
    let engines = Engines::that_keep(16);
    let what = "new store, instance, call, drop; pages read and written";
    let mut grid = Grid::new(what, 1, engines.names());
    let effort = Effort::short(size);
    let mut add = |memory: u32, of: u32, counts: &[u32]| {
        let shape = Shape { memory, run: Action::Chosen, ..Shape::usual() };
        let sides = engines.sides(&shape.wasm());
        for &count in counts {
            let mut contestants = contestants(&sides, |side| {
                let mut seed = 0u32;
                move || {
                    // The golden ratio spreads seeds over all numbers.
                    seed = seed.wrapping_add(0x9e37_79b9);
                    let first = (seed ^ seed >> 15).wrapping_mul(0x85eb_ca6b);
                    side.request(Pages { first, count, step: of })
                }
            });
            let large = if memory > 256 { ", 64 MiB memory" } else { "" };
            let name = format!("{count} of {of} pages, others each time{large}");
            grid.contest(&name, effort, count.into(), &mut contestants).goal = goal(&name);
        }
    };
    add(256, 256, &[1, 3, 10, 30, 100]);
    add(256, 1024, &[1, 3, 10, 30, 100, 400]);
    add(256, 4096, &[1, 3, 10, 30, 100, 400]);
    add(1024, 1024, &[30, 400]);
    for memory in [256, 1024] {
        let sides = engines.sides(&Shape { memory, ..Shape::usual() }.wasm());
        for count in [1, 600, 2000, 4000] {
            let pages = Pages::row(count);
            let expected = IMAGE_WORD.wrapping_mul(count.min(256).into());
            let mut contestants = contestants(&sides, |side| move || side.request(pages));
            let name = format!("{count} pages, the same each time, {} MiB memory", memory / 16);
            grid.contest(&name, effort, expected, &mut contestants);
        }
    }
    grid
}

/// Times the same on Pagefork's side alone, with every way of resetting: a small memory
/// and the usual one, and with this many pages written.
pub fn strategies(size: Size) -> Report {
    let engines = Engines::new(1);
    let ours = STRATEGIES.len();
    let columns = STRATEGIES.iter().map(|(name, _)| &**name);
    let mut grid = Grid::new("new store, instance, call, drop", ours, columns);
    let small = Shape { memory: 1, image: 1, ..Shape::default() };
    let usual = Shape::usual();
    let all = |count| (format!("16 MiB memory, {count} pages written"), &usual, Pages::row(count));
    let lines = [
        ("64 KiB memory".to_owned(), &small, Pages::NONE),
        ("64 KiB memory, 1 page written".to_owned(), &small, Pages::row(1)),
        all(0),
        all(1),
        all(16),
        all(64),
        ("64 pages, every other".to_owned(), &usual, Pages { step: 2, ..Pages::row(64) }),
        all(256),
    ];
    for (name, shape, pages) in lines {
        let mut sides = engines.strategies(&shape.wasm());
        sides.truncate(ours);
        let expected = IMAGE_WORD.wrapping_mul(u64::from(pages.count));
        let mut contestants = contestants(&sides, |side| move || side.request(pages));
        grid.contest(&name, Effort::short(size), expected, &mut contestants);
    }
    Report::of_grid("strategies", &grid)
}

/// Repeats on Pagefork's side alone what a profiler is to look at: requests that write
/// this many pages, after one that wrote more; in cold slots, if asked.
pub fn spin(pages: u32, before: u32, requests: u32, cold: bool) {
    let (engines, wasm) = (Engines::new(1), Shape::usual().wasm());
    let sides = if cold { engines.cold(&wasm) } else { engines.sides(&wasm) };
    let side = &sides[0].side;
    side.request(Pages::row(pages));
    side.request(Pages::row(before));
    for _ in 0..requests {
        side.request(Pages::row(pages));
    }
}

fn modules(engines: &Engines, size: Size, grid: &mut Grid) {
    let effort = Effort::short(size);
    let mut add = |name: &str, shape: &Shape, pages: Pages, expected: u64, goal: Option<f64>| {
        let sides = engines.sides(&shape.wasm());
        let mut contestants = contestants(&sides, |side| move || side.request(pages));
        grid.contest(name, effort, expected, &mut contestants).goal = goal;
    };
    add("empty module", &Shape::default(), Pages::NONE, 0, None);
    let memory = Shape { memory: 1, ..Shape::default() };
    add("one memory", &memory, Pages::NONE, 0, None);
    let usual = Shape::usual();
    let name = "16 MiB memory, 1 MiB image, table, 20 globals";
    add(name, &usual, Pages::NONE, 0, Some(20.0));
    for count in [1, 16, 64, 256] {
        let name = if count == 1 { "1 page".to_owned() } else { format!("{count} pages in a row") };
        let expected = IMAGE_WORD.wrapping_mul(count);
        let name = format!("{name} written");
        add(&name, &usual, Pages::row(count as u32), expected, goal(&name));
    }
    let alternate = Pages { step: 2, ..Pages::row(64) };
    add(
        "64 pages, every other, written",
        &usual,
        alternate,
        IMAGE_WORD.wrapping_mul(64),
        Some(1.5),
    );
    let globals = Shape { run: Action::Globals, ..Shape::usual() };
    add("20 globals written", &globals, Pages::NONE, (0..20).sum(), None);
    let table = Shape { run: Action::Table, ..Shape::usual() };
    add("table element written", &table, Pages::NONE, 1, None);
}

/// Requests of which each maps its slot and unmaps it, against what is not pooled
/// either.
pub(crate) fn cold(engines: &Engines, size: Size, grid: &mut Grid) {
    let sides = engines.cold(&Shape::usual().wasm());
    for (name, count) in FIRST {
        let pages = Pages::row(count);
        let expected = IMAGE_WORD.wrapping_mul(u64::from(count));
        let mut contestants = contestants(&sides, |side| move || side.request(pages));
        let name = format!("cold slot, nothing kept: {name}");
        grid.contest(&name, Effort::short(size), expected, &mut contestants).goal = goal(&name);
    }
}

/// The first spawn of all in a slot, which is kept afterwards: what it takes that more
/// requests than ever run at a time.
fn new_slots(engines: &Engines, size: Size, grid: &mut Grid) {
    /// Instances that live at a time, so that none gets the slot of another.
    const TOGETHER: u32 = 32;
    let effort = Effort::short(size);
    let sides = engines.on_demand(&Shape::usual().wasm());
    for (name, count) in FIRST {
        let expected = IMAGE_WORD.wrapping_mul(u64::from(count));
        let together = |side: &dyn Side| {
            side.purge();
            let mut held = Vec::with_capacity(TOGETHER as usize);
            let start = effort.clock.now();
            for _ in 0..TOGETHER {
                let (store, result) = side.hold(Pages::row(count)).expect("a slot");
                assert_eq!(result, expected, "a new instance is as the image");
                held.push(store);
            }
            held.clear();
            (effort.clock.now() - start) / f64::from(TOGETHER)
        };
        let mut samples: Vec<_> = sides.iter().map(|side| (side.column, Vec::new())).collect();
        // The first round makes the image, and does not count.
        for round in 0..=effort.samples {
            for (side, (_, samples)) in sides.iter().zip(&mut samples) {
                let time = side.run(together);
                samples.extend((round > 0).then_some(time));
            }
        }
        grid.add(&format!("first spawn in a new slot: {name}"), Unit::Nanoseconds, samples);
    }
}

/// Programs that others wrote, with a function added that does nothing.
fn programs(engines: &Engines, size: Size, grid: &mut Grid) {
    if size == Size::Small {
        return;
    }
    for (name, file) in [("CPython", "python.wasm"), ("Ruby", "ruby.wasm")] {
        let Some(wasm) = fetched(file) else { continue };
        let sides = engines.sides(&with_run(&wasm));
        for (work, count) in [("nop", 0), ("16 pages written", 16)] {
            let pages = Pages::row(count);
            let expected = sides[0].run(|side| side.request(pages));
            let mut contestants = contestants(&sides, |side| move || side.request(pages));
            let name = format!("{name}: {work}");
            grid.contest(&name, Effort::short(size), expected, &mut contestants);
        }
    }
}

/// What must not cost more if there is more of it.
fn flatness(engines: &Engines, size: Size, grid: &mut Grid) {
    let effort = Effort::short(size);
    let many = if size == Size::Small { 100 } else { 10_000 };
    let base = Shape { memory: 1, ..Shape::default() };
    let shapes = [
        ("10 functions".to_owned(), Shape { functions: 10, ..base.clone() }),
        (format!("{many} functions"), Shape { functions: many, ..base.clone() }),
        ("10 table elements".to_owned(), Shape { table: 10, ..base.clone() }),
        (format!("{many} table elements"), Shape { table: many, ..base.clone() }),
        ("1 import".to_owned(), Shape { imports: 1, ..base.clone() }),
        ("100 imports".to_owned(), Shape { imports: 100, ..base }),
    ];
    for (name, shape) in shapes {
        let sides = engines.sides(&shape.wasm());
        let mut all = contestants(&sides, |side| move || side.request(Pages::NONE));
        grid.contest(&name, effort, 0, &mut all);
        if shape.imports == 100 {
            let mut all = contestants(&sides, |side| move || side.request_by_linker(Pages::NONE));
            grid.contest("100 imports, linked by each request", effort, 0, &mut all);
        }
    }
}

/// Each request drops the oldest of a thousand live instances and makes one.
fn churn(engines: &Engines, size: Size, grid: &mut Grid) {
    let live = if size == Size::Small { 10 } else { LIVE };
    let sides = engines.sides(&Shape::usual().wasm());
    let mut all = contestants(&sides, |side| {
        let mut held = VecDeque::new();
        move || {
            if held.len() == live as usize {
                held.pop_front();
            }
            let (store, result) = side.hold(Pages::row(1)).expect("a slot");
            held.push_back(store);
            result
        }
    });
    // The first iterations fill.
    let effort = Effort::short(size);
    for contestant in &mut all {
        contestant.work.time(live, IMAGE_WORD, effort.clock);
    }
    let name = format!("1 page written, {live} others live");
    grid.contest(&name, effort, IMAGE_WORD, &mut all);
}

/// Each request is for the next of fifty modules.
fn turns(engines: &Engines, size: Size, grid: &mut Grid) {
    let count = if size == Size::Small { 3 } else { MODULES };
    let modules: Vec<Sides> = (0..count)
        .map(|number| engines.sides(&Shape { number, ..Shape::usual() }.wasm()))
        .collect();
    let mut all: Vec<Contestant<'_>> = Vec::new();
    for (i, column) in Engines::columns().into_iter().enumerate() {
        let mut turn = modules.iter().cycle();
        let work = move || {
            let sides = turn.next().expect("it goes round");
            sides[i].side.request(Pages::row(1))
        };
        let work = Iteration::There(engines.thread(column), Box::new(work));
        all.push(Contestant { column, work });
    }
    let effort = Effort::short(size);
    // Images are made when they are first used.
    for contestant in &mut all {
        contestant.work.time(2 * count, IMAGE_WORD, effort.clock);
    }
    let name = format!("1 page written, {count} modules in turn");
    let before = engines.counters();
    grid.contest(&name, effort, IMAGE_WORD, &mut all);
    let after = engines.counters();
    // Each spawn of the row ends in the pool, and asks there for one slot or two.
    let found = (after.taken - before.taken) as f64 / (after.put - before.put) as f64;
    grid.notes.push(format!(
        "{count} modules in turn: {:.1} % of the spawns found a slot of their module.",
        100.0 * found
    ));
}

/// What one run that writes 500 pages costs the runs after it, which write one.
pub(crate) fn sticky(engines: &Engines, size: Size, grid: &mut Grid) {
    /// Requests after the large one that are timed one by one, and that there are in all.
    const AFTER: usize = 32;
    const BETWEEN: u32 = 1000;
    let rounds = if size == Size::Small { 1 } else { 31 };
    let sides = engines.sides(&Shape::usual().wasm());
    let timed = |side: &dyn Side, pages: u32, expected: u64| {
        let start = Clock::Wall.now();
        assert_eq!(side.request(Pages::row(pages)), expected, "pages are as the image");
        Clock::Wall.now() - start
    };
    let once = |side: &dyn Side| timed(side, 1, IMAGE_WORD);
    let mut usual = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (side, usual) in sides.iter().zip(&mut usual) {
            usual.push(side.run(|side| {
                (0..BETWEEN).for_each(|_| _ = once(side));
                once(side)
            }));
        }
    }
    // The first time and the second of each.
    let mut large = [vec![Vec::new(); sides.len()], vec![Vec::new(); sides.len()]];
    let mut all = large.clone();
    let mut after = vec![vec![Vec::new(); AFTER]; sides.len()];
    for _ in 0..rounds {
        for (i, side) in sides.iter().enumerate() {
            side.run(|side| {
                // What the other sides have done meanwhile has left nothing of this one in the processor's
                // caches: so after the first time that would count for what a large request leaves.
                for time in [0, 1] {
                    let begun = Clock::Wall.now();
                    large[time][i].push(timed(side, 500, IMAGE_WORD.wrapping_mul(256)));
                    let few: Vec<f64> = (0..AFTER).map(|_| once(side)).collect();
                    if size == Size::Large {
                        (AFTER as u32..BETWEEN).for_each(|_| _ = once(side));
                    }
                    all[time][i].push(Clock::Wall.now() - begun);
                    if time == 1 {
                        after[i].iter_mut().zip(few).for_each(|(samples, one)| samples.push(one));
                    }
                }
            });
        }
    }
    let columns: Vec<&str> = sides.iter().map(|side| side.column).collect();
    let line = |cells: Vec<Vec<f64>>| columns.iter().copied().zip(cells).collect();
    let [cold, warm] = large;
    let name = "500 pages written, now and then";
    grid.add(name, Unit::Nanoseconds, line(cold)).goal = goal(name);
    grid.add("500 pages written, now and then, in warm caches", Unit::Nanoseconds, line(warm));
    let name = "500 pages written, and then 1 page by 1,000 requests, together";
    let [cold, warm] = all;
    grid.add(name, Unit::Nanoseconds, line(cold)).goal = goal(name);
    grid.add(&format!("{name}, in warm caches"), Unit::Nanoseconds, line(warm));
    for position in [1, 2, 8, AFTER] {
        let cells = after.iter().map(|samples| samples[position - 1].clone()).collect();
        let name = format!("1 page written, request {position} after one that wrote 500");
        grid.add(&name, Unit::Nanoseconds, line(cells));
    }
    let back = |i: usize| {
        let median = |samples: &Vec<f64>| percentile(samples, 50).expect("there are rounds");
        let bound = 1.5 * median(&usual[i]);
        let count = after[i].iter().position(|samples| median(samples) <= bound);
        count.map(|count| count as f64).into_iter().collect()
    };
    let cells: Vec<Vec<f64>> = (0..sides.len()).map(back).collect();
    if size == Size::Large {
        let never = columns.iter().zip(&cells).filter(|(_, cell)| cell.is_empty());
        let never: Vec<&str> = never.map(|(column, _)| *column).collect();
        grid.add(
            "requests that take more than 1.5 times the usual (goal 0)",
            Unit::Count,
            line(cells),
        )
        .alone = true;
        if !never.is_empty() {
            grid.notes.push(format!("Not back within {AFTER} requests: {}.", never.join("; ")));
        }
    }
    assert_eq!(columns[0], PAGEFORK, "ours is the first");
}
