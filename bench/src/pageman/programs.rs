//! Whole programs with the page manager and without it: what they take of time and memory, and what
//! giving memory back costs and saves.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagefork::{Engine, ExternType, Instance, InstancePre, Linker, Module, Store, Val};

use super::ROUNDS;
use crate::engines;
use crate::grid::{Contestant, Grid, Iteration, Maker};
use crate::measure::{Clock, Effort, Size, Unit};
use crate::process::Process;
use crate::programs::{self, fetched};

/// With malloc on the manager, and what WASI's own C library has, all built by the same compiler.
const MALLOCS: [&str; 3] = ["dlmalloc on the manager", "without it", "mimalloc on the manager"];

/// Guests that ask it for blocks.
pub(super) const MALLOC_GUESTS: [&str; 3] =
    ["pageman_malloc.wasm", "plain_malloc.wasm", "mimalloc_malloc.wasm"];

/// Whole programs.
pub(super) const PROGRAM_GUESTS: [[&str; 3]; 2] = [
    ["compared_sqlite.wasm", "compared_sqlite_plain.wasm", "compared_sqlite_mimalloc.wasm"],
    ["compared_quickjs.wasm", "compared_quickjs_plain.wasm", "compared_quickjs_mimalloc.wasm"],
];

/// Guests that give memory back, or do not.
pub(super) const GUESTS: [&str; 5] = [
    "pageman_bench_discard.wasm",
    "pageman_bench.wasm",
    "pageman_give_back.wasm",
    "pageman_request_discard.wasm",
    "pageman_request.wasm",
];

/// What is asked of malloc: the line, the export, and its arguments: sizes as a power of two, calls
/// and live blocks.
const CALLS: [(&str, &str, (u32, u32, u32)); 7] = [
    ("blocks below 256 bytes come and go", "churn", (8, 200_000, 20_000)),
    ("blocks below 16 KiB come and go", "churn", (14, 200_000, 5_000)),
    ("lists of small blocks", "lists", (7, 200_000, 20_000)),
    ("lists of a few small blocks", "lists", (7, 200_000, 100)),
    ("blocks grow to 64 KiB", "grow", (16, 200_000, 200)),
    ("zeros of 1 to 2 MiB, half of them written", "zeros", (21, 200, 20)),
    ("zeros of 1 to 2 MiB, ten times as often", "zeros", (21, 2000, 20)),
];

/// Time and memory of programs that allocate: no more than 3 % above what they are without the
/// manager.
pub(super) fn malloc(size: Size) -> Grid {
    let mut grid = Grid::new("malloc and programs", 1, MALLOCS);
    grid.beside = 1;
    let files = MALLOC_GUESTS;
    let guests = files.map(|file| fetched(file).map(|wasm| linked(&wasm)));
    for (name, export, (spread, calls, blocks)) in CALLS {
        let calls = if size == Size::Small { calls / 100 } else { calls };
        let arguments = (spread, calls, blocks);
        let ways = MALLOCS.iter().zip(&guests);
        let mut makers: Vec<Maker<'_>> = ways
            .filter_map(|(way, guest)| Some((*way, guest.as_ref()?)))
            .map(|(column, pre)| -> Maker<'_> {
                Box::new(move || {
                    // The memory is there after the first turn.
                    let (mut store, instance) = started(pre);
                    let call = instance.get_typed_func::<(u32, u32, u32), u32>(&mut store, export);
                    let call = call.expect("it is exported");
                    let work =
                        move || call.call(&mut store, arguments).expect("memory is there").into();
                    Some(Contestant { column, work: Iteration::Here(Box::new(work)) })
                })
            })
            .collect();
        let rounds = if size == Size::Small { 1 } else { ROUNDS };
        grid.contest_anew(name, Effort::long(size), rounds, calls.into(), &mut makers).goal(0.97);
        drop(makers);
        // In an engine of its own, because in a slot that others have had their pages are still there.
        let wasms =
            || MALLOCS.iter().zip(files).filter_map(|(way, file)| Some((way, fetched(file)?)));
        let resident = wasms().map(|(column, wasm)| {
            let pre = linked(&wasm);
            let (mut store, instance) = started(&pre);
            let call = instance.get_typed_func::<(u32, u32, u32), u32>(&mut store, export);
            call.and_then(|call| call.call(&mut store, arguments)).expect("memory is there");
            let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
            (*column, vec![resident(memory.data(&store)) as f64])
        });
        let resident = resident.collect();
        grid.add(&format!("{name}: memory"), Unit::Bytes, resident).goal(0.97);
    }
    for (name, files, input) in whole_programs(size) {
        let guests = files.map(|file| {
            fetched(file).map(|wasm| programs::pagefork_side::Runner::new(&wasm, false))
        });
        let ways =
            || MALLOCS.iter().zip(&guests).filter_map(|(way, guest)| Some((way, guest.as_ref()?)));
        let start = || Process::new(vec!["program".to_owned()], input.clone().into_bytes());
        let Some((_, first)) = ways().next() else { continue };
        let expected = programs::hash(&first.run(start()).output);
        let mut contestants: Vec<Contestant<'_>> = ways()
            .map(|(column, runner)| {
                let work = move || programs::hash(&runner.run(start()).output);
                Contestant { column, work: Iteration::Here(Box::new(work)) }
            })
            .collect();
        grid.contest(name, Effort::long(size), expected, &mut contestants).goal(0.97);
        drop(contestants);
        let resident = MALLOCS.iter().zip(files).filter_map(|(column, file)| {
            let runner = programs::pagefork_side::Runner::new(&fetched(file)?, false);
            Some((*column, vec![runner.look_after(start(), resident) as f64]))
        });
        let resident = resident.collect();
        grid.add(&format!("{name}: memory"), Unit::Bytes, resident).goal(0.97);
    }
    grid.notes.push(
        "Built by Debian's clang 19 with its wasi-libc, whose malloc is Doug Lea's, too. Memory is what of a \
         program's memory is resident when it ends. Nothing is given back here, so it is the most that there \
         ever was."
            .to_owned(),
    );
    grid
}

/// The line, the guests, and what they read.
fn whole_programs(size: Size) -> [(&'static str, [&'static str; 3], String); 2] {
    let scale = if size == Size::Small { 1 } else { 10 };
    let sql = include_str!("../programs/work.sql").replace("SCALE", &scale.to_string());
    let js = format!("globalThis.scale = {scale};\n{}", include_str!("../programs/work.js"));
    [("SQLite", PROGRAM_GUESTS[0], sql), ("QuickJS", PROGRAM_GUESTS[1], js)]
}

/// Requests that free memory: served by fresh instances, in the slots of those before them.
const REQUESTS: [(&str, u32, u32, f64); 4] = [
    ("spawn, map, write and unmap 64 KiB", 64, 1, 0.97),
    ("spawn, map, write and unmap 1 MiB 300 times", 1 << 10, 300, 0.97),
    ("spawn, map, write and unmap 16 MiB 5 times", 16 << 10, 5, 0.97),
    ("spawn, map, write and unmap 64 MiB twice", 64 << 10, 2, 0.97),
];

/// The same as answers of a server: so many KiB, so many times.
const ANSWERS: [(&str, [&str; 2]); 3] = [
    ("answer, having written 1 MiB 300 times", ["1024", "300"]),
    ("answer, having written 16 MiB 5 times", ["16384", "5"]),
    ("answer, having written 64 MiB twice", ["65536", "2"]),
];

/// A guest that gives memory back is served no more slowly than one that does not.
pub(super) fn requests(size: Size) -> Grid {
    const WAYS: [&str; 2] = ["gives memory back", "keeps it"];
    let mut grid = Grid::new("requests", 1, WAYS);
    let guests = [GUESTS[0], GUESTS[1]].map(|file| fetched(file).map(|wasm| linked(&wasm)));
    for (name, kib, count, goal) in REQUESTS {
        if size == Size::Small && kib > 1 << 10 {
            continue;
        }
        let ways = WAYS.iter().zip(&guests).filter_map(|(way, guest)| Some((way, guest.as_ref()?)));
        let mut contestants: Vec<Contestant<'_>> = ways
            .map(|(column, pre)| {
                let work = move || {
                    let (mut store, instance) = pre.spawn(()).expect("a slot");
                    let call = instance
                        .get_typed_func::<(u32, u32, u32), u32>(&mut store, "map_and_unmap");
                    let call = call.expect("it is exported");
                    call.call(&mut store, (kib, count, 1)).expect("memory is there").into()
                };
                Contestant { column, work: Iteration::Here(Box::new(work)) }
            })
            .collect();
        grid.contest(name, Effort::short(size), count.into(), &mut contestants).goal(goal);
    }
    for (name, arguments) in ANSWERS {
        if size == Size::Small && arguments[0] != "1024" {
            continue;
        }
        let ways = WAYS.iter().zip(&GUESTS[3..]);
        let ways = ways.filter_map(|(way, file)| Some((way, fetched(file)?)));
        let mut contestants: Vec<Contestant<'_>> = ways
            .map(|(column, wasm)| Contestant {
                column,
                work: Iteration::Here(Box::new(crate::serve::asked(&wasm, &arguments))),
            })
            .collect();
        let length = format!("{} times\n", arguments[1]).len() as u64;
        // Most of it is the server's thread's.
        let effort = Effort { clock: Clock::Process, ..Effort::short(size) };
        grid.contest(name, effort, length, &mut contestants).goal(0.97);
    }
    grid
}

/// What is resident of a program that has freed 448 of 512 MiB.
pub(super) fn given_back(size: Size) -> Grid {
    const WAYS: [&str; 3] = ["Pagefork", "Pagefork, declining", "wasmtime"];
    let mut grid = Grid::new("giving back", 1, WAYS);
    if size == Size::Small {
        return grid;
    }
    let Some(wasm) = fetched(GUESTS[2]) else { return grid };
    let start = || Process::new(vec!["program".to_owned()], Vec::new());
    let look = |takes_back| {
        let module = Module::new(&engines::pagefork::engine(false), &wasm).expect("a valid module");
        let runner = programs::pagefork_side::Runner::defining(module, false, |linker| {
            if takes_back {
                linker.define_memory_discard().expect("it may be shadowed");
            }
        });
        vec![runner.look_after(start(), resident) as f64]
    };
    let cells = vec![(WAYS[0], look(true)), (WAYS[1], look(false))];
    #[cfg(feature = "peer")]
    let cells = {
        let runner = programs::wasmtime_side::Runner::new(&wasm, false);
        let resident = vec![runner.look_after(start(), resident) as f64];
        [cells, vec![(WAYS[2], resident)]].concat()
    };
    grid.add("resident after 448 of 512 MiB were freed", Unit::Bytes, cells);
    grid
}

/// An instance whose constructors have run.
fn started(pre: &InstancePre<()>) -> (Store<()>, Instance) {
    let mut store = Store::new(pre.module().engine(), ());
    let instance = pre.instantiate(&mut store).expect("a slot");
    let begin = instance.get_typed_func::<(), ()>(&mut store, "_initialize");
    begin.and_then(|begin| begin.call(&mut store, ())).expect("a library of WASI's begins so");
    (store, instance)
}

fn linked(wasm: &[u8]) -> InstancePre<()> {
    let engine: Engine = engines::pagefork::engine(false);
    let module = Module::new(&engine, wasm).expect("a valid module");
    let mut linker = Linker::new(&engine);
    linker.define_memory_discard().expect("a new name");
    for import in module.imports().filter(|import| import.module() != "pagefork") {
        let ExternType::Func(ty) = import.ty() else { panic!("{} is no function", import.name()) };
        // What C libraries ask of their system when a guest starts: all is well.
        let zero = |_: pagefork::Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
            results.fill(Val::I32(0));
            Ok(())
        };
        linker.func_new(import.module(), import.name(), ty, zero).expect("a new name");
    }
    linker.instantiate_pre(&module).expect("all is linked")
}

/// Bytes in pages of this process's own that lie in memory, as the kernel's table of pages has them.
fn resident(bytes: &[u8]) -> usize {
    const PAGE: usize = 4096;
    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;
    let table = File::open("/proc/self/pagemap").expect("Linux has it");
    let mut entries = vec![0; bytes.len() / PAGE * 8];
    let start = bytes.as_ptr().addr() / PAGE * 8;
    table.read_exact_at(&mut entries, start as u64).expect("the range is mapped");
    let entries = entries
        .chunks_exact(8)
        .map(|entry| u64::from_le_bytes(entry.try_into().expect("eight bytes")));
    entries.filter(|entry| entry & (PRESENT | EXCLUSIVE) == PRESENT | EXCLUSIVE).count() * PAGE
}
