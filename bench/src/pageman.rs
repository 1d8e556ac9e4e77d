//! What `mmap` costs in a guest: with the page manager, and with what C libraries have instead.

mod programs;
mod unmapping;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::grid::{Contestant, Grid, Iteration, Maker};
use crate::measure::{Effort, Size};
use crate::programs::{fetched, is_there};
use crate::report::Report;

/// A way to have `mmap`, and the guests that are built so.
struct Way {
    column: &'static str,
    /// As the compiler links it.
    plain: &'static str,
    /// For many small maps.
    small_pages: &'static str,
    /// With 16 MiB of memory at first, as emscripten links any.
    roomy: &'static str,
}

const WAYS: [Way; 3] = [
    Way {
        column: "manager",
        plain: "pageman_bench.wasm",
        small_pages: "pageman_bench_4k.wasm",
        roomy: "pageman_bench_16m.wasm",
    },
    Way {
        column: "emulated by wasi-libc",
        plain: "emulated_bench.wasm",
        small_pages: "emulated_bench.wasm",
        roomy: "emulated_bench_16m.wasm",
    },
    Way {
        column: "emulated by emscripten",
        plain: "emscripten_bench.wasm",
        small_pages: "emscripten_bench.wasm",
        roomy: "emscripten_bench.wasm",
    },
];

/// One iteration of a case.
type Run = Box<dyn FnMut() -> u64>;

/// How often instances are made anew, with other memory of the machine.
const ROUNDS: u32 = 8;

/// The same where much is cleared: in one place of the machine's memory that takes up to twice as long as
/// in another.
const ROUNDS_OF_LARGE: u32 = 93;

/// What is called, and how quick the manager should be.
struct Case {
    name: &'static str,
    export: &'static str,
    kib: u32,
    count: u32,
    /// What is done with memory: 1 if a byte of each page is written, 2 if zeros are not wanted.
    written: u32,
    /// Maps of 4 KiB or 64 KiB that live beside.
    live: u32,
    guest: fn(&Way) -> &'static str,
    /// What is to be reached.
    goal: f64,
    /// Others cannot do it.
    alone: bool,
    /// Memories stay accessible as far as the last runs have grown them, in engines that can.
    keeps: bool,
}

const fn case(name: &'static str, kib: u32, count: u32, written: u32, goal: f64) -> Case {
    let (live, alone) = (0, false);
    let guest = |way: &Way| way.plain;
    let (export, keeps) = ("map_and_unmap", false);
    Case { name, export, kib, count, written, live, guest, goal, alone, keeps }
}

const fn fresh(name: &'static str, kib: u32, count: u32, written: u32, goal: f64) -> Case {
    Case { guest: |way| way.roomy, ..grown(name, kib, count, written, goal) }
}

/// As [`fresh`], with as much memory at first as each compiler gives: emscripten 16 MiB, others little.
const fn grown(name: &'static str, kib: u32, count: u32, written: u32, goal: f64) -> Case {
    Case { export: "map_fresh", ..case(name, kib, count, written, goal) }
}

/// As [`grown`], by engines that keep memory accessible.
const fn kept(name: &'static str, kib: u32, count: u32, written: u32, goal: f64) -> Case {
    Case { keeps: true, ..grown(name, kib, count, written, goal) }
}

const fn many(name: &'static str, live: u32) -> Case {
    let guest = |way: &Way| way.small_pages;
    Case { export: "one_of_many", live, guest, ..case(name, 4, 1000, 0, 0.95) }
}

/// Nothing has to be cleared: the time is that of finding and noting pages. C libraries' emulations
/// have no maps without access.
const fn reserved(name: &'static str, live: u32) -> Case {
    Case { written: 1, alone: true, ..many(name, live) }
}

/// Each is done in an instance of its own, which is there already; fresh memory in a new one.
const CASES: [Case; 28] = [
    case("map and unmap 64 KiB, 1000 times", 64, 1000, 0, 0.95),
    case("map and unmap 1 MiB, 100 times", 1 << 10, 100, 0, 0.95),
    case("map and unmap 64 MiB, 4 times", 64 << 10, 4, 0, 0.95),
    case("map, write each page and unmap 64 KiB, 1000 times", 64, 1000, 1, 0.95),
    case("map, write each page and unmap 1 MiB, 100 times", 1 << 10, 100, 1, 0.95),
    case("map, write each page and unmap 64 MiB, 4 times", 64 << 10, 4, 1, 0.95),
    case("map without zeros and unmap 64 KiB, 1000 times", 64, 1000, 2, 0.95),
    case("map without zeros and unmap 1 MiB, 100 times", 1 << 10, 100, 2, 0.95),
    case("map without zeros and unmap 64 MiB, 4 times", 64 << 10, 4, 2, 0.95),
    case("map without zeros, write each page and unmap 64 KiB, 1000 times", 64, 1000, 3, 0.95),
    case("map without zeros, write each page and unmap 1 MiB, 100 times", 1 << 10, 100, 3, 0.95),
    case("map without zeros, write each page and unmap 64 MiB, 4 times", 64 << 10, 4, 3, 0.95),
    fresh("new instance, map 64 KiB 64 times", 64, 64, 0, 10.0),
    fresh("new instance, map 1 MiB 32 times", 1 << 10, 32, 0, 10.0),
    fresh("new instance, map 256 MiB", 256 << 10, 1, 0, 10.0),
    fresh("new instance, map 64 KiB 64 times and write each page", 64, 64, 1, 1.3),
    fresh("new instance, map 1 MiB 32 times and write each page", 1 << 10, 32, 1, 1.3),
    grown("little memory at first, map 64 KiB 64 times", 64, 64, 0, 10.0),
    grown("little memory at first, map 64 KiB 64 times and write each page", 64, 64, 1, 1.3),
    kept("the same, where growth keeps memory accessible, and write each page", 64, 64, 1, 1.3),
    many("unmap and map one of 10 live maps, 1000 times", 10),
    many("unmap and map one of 1000 live maps, 1000 times", 1000),
    many("unmap and map one of 10000 live maps, 1000 times", 10_000),
    many("unmap and map one of 100000 live maps, 1000 times", 100_000),
    reserved("unmap and reserve one of 10 live maps, 1000 times", 10),
    reserved("unmap and reserve one of 1000 live maps, 1000 times", 1000),
    reserved("unmap and reserve one of 10000 live maps, 1000 times", 10_000),
    reserved("unmap and reserve one of 100000 live maps, 1000 times", 100_000),
];

/// The guests that are not there, and what builds them: rows or columns are left out without them.
pub fn missing() -> Vec<String> {
    let others = WAYS.iter().flat_map(|way| [way.plain, way.small_pages, way.roomy]);
    let others = others.chain(programs::GUESTS).map(|file| (file, "guests"));
    let compared = programs::MALLOC_GUESTS.iter().chain(programs::PROGRAM_GUESTS.iter().flatten());
    let compared = compared.map(|file| (*file, "guests --compared"));
    let all: BTreeSet<(&str, &str)> = others.chain(compared).collect();
    let missing = all.into_iter().filter(|(file, _)| !is_there(file));
    missing.map(|(file, command)| format!("{file} (`cargo xtask {command}`)")).collect()
}

/// Times each case in every guest that is there and has room for it.
pub fn run(size: Size) -> Report {
    let mut columns: Vec<String> = WAYS.iter().map(|way| way.column.to_owned()).collect();
    if cfg!(feature = "peer") {
        columns.extend(WAYS.iter().map(|way| in_peer(way.column)));
    }
    let mut grid = Grid::new("in Pagefork", 1, &columns);
    grid.beside = columns.len() - WAYS.len();
    for case in &CASES {
        if size == Size::Small && (case.kib > 1 << 10 || case.live > 1000) {
            continue;
        }
        let mut makers: Vec<Maker<'_>> = Vec::new();
        let ways = if case.alone { &WAYS[..1] } else { &WAYS };
        for (index, way) in ways.iter().enumerate() {
            let Some(wasm) = fetched((case.guest)(way)).map(Rc::new) else { continue };
            let mut add = |column: usize, work: fn(&[u8], &'static Case) -> Option<Run>| {
                let (column, wasm) = (&*columns[column], Rc::clone(&wasm));
                makers.push(Box::new(move || {
                    Some(Contestant { column, work: Iteration::Here(work(&wasm, case)?) })
                }));
            };
            add(index, pagefork_side::work);
            #[cfg(feature = "peer")]
            add(WAYS.len() + index, wasmtime_side::work);
        }
        let (effort, count) = (Effort::short(size), case.count.into());
        let rounds = match size {
            Size::Small => 1,
            Size::Large if case.export == "map_and_unmap" && case.kib > 1 << 10 => ROUNDS_OF_LARGE,
            Size::Large => ROUNDS,
        };
        let line = grid.contest_anew(case.name, effort, rounds, count, &mut makers);
        line.goal(case.goal);
        line.alone = case.alone;
    }
    let further = [
        unmapping::table(size),
        programs::malloc(size),
        programs::requests(size),
        programs::given_back(size),
    ];
    let further = further.iter().filter(|grid| !grid.lines.is_empty());
    let report = Report::of_grid("pageman", &grid);
    let mut report = further.fold(report, |report, grid| report.and(grid, "pageman"));
    let missing = missing();
    if !missing.is_empty() {
        report.text += &format!("\nLeft out, as they are not there: {}.\n", missing.join(", "));
    }
    report
}

fn in_peer(column: &str) -> String {
    format!("{column}, in wasmtime")
}

macro_rules! side {
    ($module:ident, $engine:ident) => {
        mod $module {
            use $engine::{
                ExternType, Instance, InstancePre, Linker, Module, Store, TypedFunc, Val,
            };

            use super::{Case, Rc, RefCell, Run};

            type Call = TypedFunc<(u32, u32, u32), u32>;

            /// One iteration of a case; `None` if there is no room for all that lives beside.
            pub(super) fn work(wasm: &[u8], case: &'static Case) -> Option<Run> {
                let pre = linked(wasm, case);
                let arguments = (case.kib, case.count, case.written);
                if case.export == "map_fresh" {
                    return Some(Box::new(move || {
                        let (mut store, instance) =
                            start(&pre, case).expect("nothing lives beside");
                        let call = find(&mut store, &instance, case.export);
                        call.call(&mut store, arguments).expect("memory is there").into()
                    }));
                }
                let (mut store, instance) = start(&pre, case)?;
                let call = find(&mut store, &instance, case.export);
                Some(Box::new(move || {
                    call.call(&mut store, arguments).expect("memory is there").into()
                }))
            }

            /// The calls of a case, and what makes up for what they unmap; `None` as above.
            pub(super) fn two_calls(wasm: &[u8], case: &'static Case) -> Option<(Run, Run)> {
                let pre = linked(wasm, case);
                let (mut store, instance) = start(&pre, case)?;
                let call = find(&mut store, &instance, case.export);
                let refill = find(&mut store, &instance, "refill");
                let store = Rc::new(RefCell::new(store));
                let arguments = (case.kib, case.count, case.written);
                let run = |call: Call| -> Run {
                    let store = Rc::clone(&store);
                    Box::new(move || {
                        let done = call.call(&mut *store.borrow_mut(), arguments);
                        done.expect("memory is there").into()
                    })
                };
                Some((run(call), run(refill)))
            }

            fn find(store: &mut Store<()>, instance: &Instance, name: &str) -> Call {
                instance.get_typed_func(store, name).expect("it is exported")
            }

            fn start(pre: &InstancePre<()>, case: &Case) -> Option<(Store<()>, Instance)> {
                let mut store = Store::new(pre.module().engine(), ());
                let instance = pre.instantiate(&mut store).expect("a slot");
                if case.live > 0 {
                    let fill = find(&mut store, &instance, "fill");
                    let live = fill.call(&mut store, (case.kib, case.live, 0));
                    if live.expect("it does not trap") < case.live {
                        return None;
                    }
                }
                Some((store, instance))
            }

            fn linked(wasm: &[u8], case: &Case) -> InstancePre<()> {
                let engine = if case.keeps {
                    crate::engines::$engine::engine_that_keeps()
                } else {
                    crate::engines::$engine::engine(false)
                };
                let module = Module::new(&engine, wasm).expect("a valid module");
                let mut linker = Linker::new(&engine);
                for import in module.imports() {
                    let ExternType::Func(ty) = import.ty() else {
                        panic!("{} is no function", import.name())
                    };
                    // What C libraries ask of their system when a guest starts: all is well.
                    let zero = |_: $engine::Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
                        results.fill(Val::I32(0));
                        Ok(())
                    };
                    linker.func_new(import.module(), import.name(), ty, zero).expect("a new name");
                }
                linker.instantiate_pre(&module).expect("all is linked")
            }
        }
    };
}

side!(pagefork_side, pagefork);
#[cfg(feature = "peer")]
side!(wasmtime_side, wasmtime);
