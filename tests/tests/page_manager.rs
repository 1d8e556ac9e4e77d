//! The guest page manager, `guest/pageman`: its calls do what the host kernel's do, and programs
//! with it get what it promises.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;
#[path = "page_manager/clang.rs"]
mod clang;
#[path = "page_manager/emscripten.rs"]
mod emscripten;
#[path = "page_manager/giving_back.rs"]
mod giving_back;
#[path = "page_manager/lies.rs"]
mod lies;
mod partner;
#[path = "page_manager/shuttle.rs"]
mod shuttle;
#[path = "page_manager/snapshots.rs"]
mod snapshots;
#[path = "page_manager/travel.rs"]
mod travel;

use std::path::PathBuf;
use std::process::Command;

use pagefork::{Instance, Linker, Store};
use pagefork_wasi::{WasiCtx, WasiCtxBuilder};

use guests::{Invocation, Outcome, built, fetched, host_program, repository, scratch};

/// Sizes of pages as powers of two.
const PAGE_SHIFTS: [u32; 4] = [12, 13, 14, 16];

/// Compiles a test of `guest/pageman/test` for the host. `None` is a printed skip.
fn native(test: &str, page_shift: u32, flags: &[&str]) -> Option<PathBuf> {
    let compiler = host_program("cc")?;
    let root = repository().join("guest/pageman");
    let program = scratch(&format!("pageman-{test}-{page_shift}-{}", flags.len())).join(test);
    let library = ["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_native.c"];
    let mut command = Command::new(compiler);
    command.args(["-std=gnu17", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]).args(flags);
    command.arg(format!("-DPAGEMAN_PAGE_SHIFT={page_shift}"));
    command.arg("-I").arg(root.join("include")).arg("-I").arg(root.join("src"));
    command.arg(root.join("test").join(test).with_extension("c"));
    command.args(library.map(|file| root.join("src").join(file))).arg("-o").arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs it with these arguments; it must succeed.
fn run(program: PathBuf, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("the test starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// What POSIX says of single processes is so in the manager, on the host and as a guest; the host's
/// own kernel shows that the cases are right.
#[test]
fn single_processes_see_what_posix_says() {
    let directory = scratch("pageman-posix-files");
    let files = directory.to_str().expect("text");
    for shift in PAGE_SHIFTS {
        let Some(program) = native("posix", shift, &["-DPAGEMAN_OWNS_HEAP"]) else { return };
        run(program, &[files]);
    }
    let Some(program) = native("posix", 12, &["-DHOST", "-Wno-unused-function"]) else { return };
    run(program, &[files]);
    let Some(guest) = fetched("pageman_posix.wasm") else { return };
    let outcome = Invocation { args: vec!["/"], stdin: "", directory: Some(&directory) };
    let outcome = outcome.guest(&guest);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "27 cases as POSIX has them\n"));
}

fn like_the_kernel(operations: &str, seed: &str) {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("kernel", shift, &[]) else { return };
        run(program, &[operations, seed]);
    }
}

/// Random sequences of mmap, munmap, mprotect, mremap, madvise, msync, mincore and sbrk have the
/// errors and contents that they have in Linux, and all that is derived from the tables of pages
/// is right after each.
#[test]
fn random_calls_do_what_the_kernels_do() {
    like_the_kernel("50000", "1");
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn a_million_random_calls_do_what_the_kernels_do() {
    like_the_kernel("1000000", "2");
}

#[test]
fn random_calls_have_no_undefined_behaviour() {
    const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover"];
    let Some(program) = native("kernel", 12, &SANITIZERS) else { return };
    run(program, &["3000", "3"]);
}

/// What the summaries find is what a look at every page finds, in tables of several levels.
#[test]
fn runs_of_pages_are_found() {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("runs", shift, &[]) else { return };
        run(program, &["3000"]);
    }
}

/// Pages are given back when they stay free, and not when they are used again; texts are cut off where
/// their room ends.
#[test]
fn what_stays_free_is_given_back() {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("decay", shift, &[]) else { return };
        run(program, &[]);
    }
}

/// Memory grows as it is said to, wishes take the pages that cost least, the check notices each bit that is wrong, a
/// small program pays for no tables, what is switched off is not there, and JSON is JSON with the numbers in it.
#[test]
fn the_manager_keeps_its_rules() {
    for shift in PAGE_SHIFTS {
        let Some(program) = native("rules", shift, &[]) else { return };
        run(program, &[]);
    }
}

/// A long run like a collector's leaves no less of memory in use, and no shorter free run, than
/// is published of a like manager.
#[test]
fn memory_is_not_fragmented() {
    let Some(program) = native("fragmentation", 16, &[]) else { return };
    run(program, &["60000", "10"]);
}

/// Nor does a collector of garbage that trims what it maps: the example, run for long by each policy, of which the one
/// that is there by default is held to the same.
#[test]
fn the_memory_of_a_collector_is_not_fragmented() {
    let Some(program) = native("collected", 16, &["-fno-strict-aliasing"]) else { return };
    run(program, &["by length", "8000", "128"]);
}

/// A program whose malloc stands on the manager: what `munmap` freed malloc can have and back,
/// zeros where they are promised, files, `sbrk`, foreign memory, and all of 4 GiB.
fn program(name: &str) {
    let Some(guest) = fetched(&format!("{name}.wasm")) else { return };
    let directory = scratch(name);
    let args = vec!["5000", "/", "all"];
    let outcome = Invocation { args, stdin: "", directory: Some(&directory) }.guest(&guest);
    assert_eq!(outcome.code, 0);
    assert!(outcome.stdout.ends_with("all is as promised\n"), "{}", outcome.stdout);
}

#[test]
fn a_program_with_malloc_on_the_manager() {
    program("pageman");
}

#[test]
fn a_program_with_mimalloc_on_the_manager() {
    program("pageman_mimalloc");
}

/// What a program prints with the manager, with it switched off where the program runs, and without
/// it.
fn with_and_without(names: [&str; 2], invocation: &Invocation<'_>) -> Option<[Outcome; 3]> {
    let [with, without] = names.map(|name| fetched(&format!("{name}.wasm")));
    let (with, without) = (with?, without?);
    let off = invocation.guest_in(&with, &[("PAGEMAN", "off")], |_| ());
    Some([invocation.guest(&with), off, invocation.guest(&without)])
}

/// A program in C that maps a file and has a table that grows where it is. Switched off, the manager
/// maps nothing, and the program says so.
#[test]
fn an_example_counts_words() {
    let directory = scratch("pageman-words");
    let text: String = (0..40_000).map(|n| format!("{} the ", name_of(n % 7_001))).collect();
    std::fs::write(directory.join("text"), text).expect("a file");
    let invocation = Invocation { args: vec!["/text"], stdin: "", directory: Some(&directory) };
    let names = ["pageman_words", "plain_words"];
    let Some([with, off, without]) = with_and_without(names, &invocation) else { return };
    let lines: Vec<&str> = with.stdout.lines().collect();
    assert_eq!((with.code, lines[0], lines[1]), (0, "7002 words", "40000 the"));
    assert_eq!(with, without);
    assert_eq!(off, Outcome { code: 1, stdout: String::new() });
}

/// What malloc has taken before the program begins does not keep the manager from being switched off.
#[test]
fn programs_with_malloc_on_the_manager_can_switch_it_off() {
    for name in ["pageman", "pageman_mimalloc"] {
        let Some(program) = fetched(&format!("{name}.wasm")) else { continue };
        let off = Invocation { args: vec![], stdin: "", directory: None };
        let off = off.guest_in(&program, &[("PAGEMAN", "off")], |_| ());
        assert_ne!(off.code, 0, "{name} looks whether it is active");
    }
}

/// A word of letters for each number.
fn name_of(mut number: u32) -> String {
    let mut name = "w".to_owned();
    while number > 0 {
        name.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
    }
    name + "x"
}

#[test]
fn an_example_collects_garbage() {
    let invocation = Invocation { args: vec!["200"], stdin: "", directory: None };
    let (with, without) = ("pageman_collector.wasm", "plain_collector.wasm");
    let (Some(with), Some(without)) = (fetched(with), fetched(without)) else { return };
    let (with, without) = (invocation.guest(&with), invocation.guest(&without));
    assert_eq!(with.code, 0);
    assert!(with.stdout.ends_with(" 0 blocks left\n"), "{}", with.stdout);
    assert_eq!(with, without);
}

/// SQLite has the same results with malloc on the manager, with the manager switched off, which malloc
/// does not feel, and without it.
#[test]
fn sqlite_is_the_same_with_the_manager() {
    let script = include_str!("guests/everyday.sql");
    let directory = scratch("pageman-sqlite");
    let invocation =
        Invocation { args: vec![":memory:"], stdin: script, directory: Some(&directory) };
    let names = ["pageman_sqlite", "sqlite"];
    let Some([with, off, without]) = with_and_without(names, &invocation) else { return };
    assert!(with.stdout.len() > 1_000, "{}", with.stdout);
    assert_eq!((&with, &off), (&without, &without));
}

/// QuickJS, the same.
#[test]
fn quickjs_is_the_same_with_the_manager() {
    let script =
        format!("globalThis.scale = 1;\n{}", include_str!("../../bench/src/programs/work.js"));
    let invocation = Invocation { args: Vec::new(), stdin: &script, directory: None };
    let names = ["pageman_quickjs", "plain_quickjs"];
    let Some([with, off, without]) = with_and_without(names, &invocation) else { return };
    assert_eq!(with.code, 0);
    assert!(with.stdout.trim().parse::<u32>().is_ok(), "{}", with.stdout);
    assert_eq!((&with, &off), (&without, &without));
}

/// In Rust, with the manager as global allocator and pages beside it. It has 16 MiB of memory at first, of which the C
/// library has a part: what that keeps of variables and files is left alone.
#[test]
fn a_program_in_rust() {
    let directory = scratch("pageman-rust");
    let invocation = Invocation { args: Vec::new(), stdin: "", directory: Some(&directory) };
    let module = built("pageman_mixed.wasm");
    let outcome = invocation.guest_in(&module, &[("MARK", "as it was given")], |_| ());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "all is as promised\n"));
}

/// The same without WASI: the module imports nothing.
#[test]
fn a_module_in_rust_without_imports() {
    let module = built("pageman_exported.wasm");
    assert_eq!(module.imports().count(), 0);
    let mut store = Store::new(module.engine(), ());
    let instance = Instance::new(&mut store, &module, &[]).expect("it needs nothing");
    let work = instance.get_typed_func::<u32, u32>(&mut store, "work").expect("it is exported");
    for count in [1, 1_000, 300_000, 7] {
        assert_eq!(work.call(&mut store, count).expect("it does not trap"), 1, "{count}");
    }
}

/// With the feature `discard` it has one import, by which what is free goes back to a host that takes it; to one that does
/// not, nothing does, and what is taken again is zero all the same.
#[test]
fn a_module_in_rust_gives_memory_back() {
    const MIB: usize = 24;
    let module = built("pageman_discarding.wasm");
    let imports: Vec<_> = module.imports().map(|it| (it.module(), it.name())).collect();
    assert_eq!(imports, [("pagefork", "memory_discard")]);
    for takes in [true, false] {
        let mut linker: Linker<()> = Linker::new(module.engine());
        if takes {
            linker.define_memory_discard().expect("a new name");
        } else {
            let declines = |_address: u32, _length: u32| -1_i32;
            linker.func_wrap("pagefork", "memory_discard", declines).expect("a new name");
        }
        let mut store = Store::new(module.engine(), ());
        let instance = linker.instantiate(&mut store, &module).expect("it is all there");
        let give_back = instance.get_typed_func::<u32, u32>(&mut store, "give_back");
        let zeros = instance.get_typed_func::<u32, u32>(&mut store, "zeros").expect("exported");
        let taken = give_back.expect("exported").call(&mut store, MIB as u32).expect("no trap");
        let memory = instance.get_memory(&mut store, "memory").expect("it is exported");
        let written = memory.data(&store).chunks(64 << 10);
        let written = written.filter(|page| page.iter().any(|byte| *byte != 0)).count();
        // The program's stack and data lie in the first 2 MiB.
        let (freed, others) = (2 * MIB * 16, 32);
        if takes {
            assert!(taken as usize >= freed && written <= others, "{taken}, {written} pages");
        } else {
            assert!(taken == 0 && written >= freed, "{taken}, {written} pages");
        }
        assert_eq!(zeros.call(&mut store, 2 * MIB as u32).expect("it does not trap"), 1);
    }
}

fn context() -> WasiCtx {
    WasiCtxBuilder::new().build().expect("a context")
}

#[test]
fn a_program_with_small_pages() {
    program("pageman_4k");
}
