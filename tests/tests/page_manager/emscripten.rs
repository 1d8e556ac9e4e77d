//! The library built by Debian's emscripten, and programs of it under Node.js: with threads, which Pagefork has not, and with
//! files, which modules of this emscripten without JavaScript have not. Random calls of what it builds are done in
//! Pagefork, by `pagefork_fuzz::page_manager_by_emscripten`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::clang::dlmalloc;
use super::guests::{fetched, host_program, repository, scratch};

const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
/// For programs that take all of memory.
const LARGE: [&str; 3] = ["-sALLOW_MEMORY_GROWTH", "-sMAXIMUM_MEMORY=4GB", "-sEXIT_RUNTIME"];

/// A program of the library and these sources. `None` is a printed skip.
fn compiled(name: &str, flags: &[&str], sources: &[&Path]) -> Option<PathBuf> {
    let emcc = host_program("emcc")?;
    let root = repository().join("guest/pageman");
    let program = scratch(&format!("pageman-emscripten-{name}")).join("program.js");
    let mut command = Command::new(emcc);
    // Debian's modules, for a Node.js that is not Debian's.
    command.env("NODE_PATH", "/usr/share/nodejs");
    command.args(["-std=gnu17", "-O2"]).args(flags).arg("-I").arg(root.join("include"));
    let library = ["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_wasm.c"];
    command.args(library.map(|file| root.join("src").join(file)));
    command.args(sources.iter().map(|source| root.join(source))).arg("-o").arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// What it prints under Node.js; it must succeed. `None` is a printed skip.
fn run(program: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(host_program("node")?);
    // Emscripten 3.1.6 takes Node's own `fetch` for a browser's.
    command.arg("--no-experimental-fetch").arg(program).args(arguments);
    let output = command.output().expect("Node.js starts");
    let (said, printed) =
        (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}: {said}{printed}", output.status);
    Some(printed.into_owned())
}

/// POSIX's cases, files among them.
#[test]
#[ignore = "needs emscripten: a part of `cargo xtask soak`"]
fn single_processes_of_emscripten_see_what_posix_says() {
    for shift in 12..=16 {
        let pages = format!("-DPAGEMAN_PAGE_SHIFT={shift}");
        let flags = [&WARNINGS[..], &LARGE, &[&pages]].concat();
        let sources = [Path::new("test/posix.c")];
        let Some(program) = compiled(&format!("posix-{shift}"), &flags, &sources) else { return };
        let Some(printed) = run(&program, &["/"]) else { return };
        assert_eq!(printed, "27 cases as POSIX has them\n", "{shift}");
    }
}

/// A program whose malloc stands on the manager, and which takes all of 4 GiB, with the least and the largest pages.
#[test]
#[ignore = "needs emscripten: a part of `cargo xtask soak`"]
fn programs_of_emscripten_have_malloc_on_the_manager() {
    let Some(_) = fetched("pageman.wasm") else { return };
    let folder = format!("-I{}", dlmalloc().display());
    for (shift, checks) in [(12, "-DPAGEMAN_MALLOC_CHECKS"), (16, "-UPAGEMAN_MALLOC_CHECKS")] {
        let pages = format!("-DPAGEMAN_PAGE_SHIFT={shift}");
        // What the compiler says of malloc is not ours to heed.
        let flags = [&LARGE[..], &["-w", "-DDLMALLOC", &folder, &pages, checks]].concat();
        let sources = [Path::new("src/malloc_dlmalloc.c"), Path::new("test/program.c")];
        let Some(program) = compiled(&format!("malloc-{shift}"), &flags, &sources) else { return };
        let Some(printed) = run(&program, &["20000", "/", "all"]) else { return };
        assert!(printed.ends_with("all is as promised\n"), "{shift}: {printed}");
    }
}

/// The example that collects garbage does what it does in Pagefork.
#[test]
#[ignore = "needs emscripten: a part of `cargo xtask soak`"]
fn a_collector_of_emscripten_trims_its_maps() {
    let sources = [Path::new("examples/collector.c")];
    let flags = [&WARNINGS[..], &LARGE, &["-fno-strict-aliasing"]].concat();
    let Some(program) = compiled("collector", &flags, &sources) else { return };
    let Some(printed) = run(&program, &["200"]) else { return };
    assert!(printed.ends_with(" 0 blocks left\n"), "{printed}");
}

/// Four threads map, unmap, move and allocate at a time.
#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn threads_share_the_manager() {
    let Some(_) = fetched("pageman.wasm") else { return };
    let folder = format!("-I{}", dlmalloc().display());
    let flags = ["-w", &folder, "-pthread", "-sPROXY_TO_PTHREAD", "-sEXIT_RUNTIME"];
    let memory = ["-sALLOW_MEMORY_GROWTH", "-sMAXIMUM_MEMORY=1GB", "-Wno-pthreads-mem-growth"];
    let sources = [Path::new("src/malloc_dlmalloc.c"), Path::new("test/threads.c")];
    let Some(program) = compiled("threads", &[&flags[..], &memory].concat(), &sources) else {
        return;
    };
    // First many threads that begin and end: emscripten's own code allocates and frees for each.
    let Some(printed) = run(&program, &["1000000", "500"]) else { return };
    assert_eq!(printed, "1000000 operations of 4 threads\n");
}
