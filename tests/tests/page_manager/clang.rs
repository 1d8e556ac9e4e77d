//! The library built by Debian's clang with WASI's own C library, and what is built by it at work.

use std::path::{Path, PathBuf};
use std::process::Command;

use pagefork::{Engine, Module};

use super::guests::{Invocation, fetched, host_program, repository, scratch, skip};

/// Debian's clang, where WASI's C library is there, too: packages clang-19, lld-19, wasi-libc and
/// libclang-rt-19-dev-wasm32.
fn clang() -> Option<&'static str> {
    let versioned = Command::new("clang-19").arg("--version").output().is_ok();
    let name = host_program(if versioned { "clang-19" } else { "clang" })?;
    if Path::new("/usr/lib/wasm32-wasi/libc.a").exists() {
        return Some(name);
    }
    skip("wasi-libc is not installed")
}

/// A program of the library and these sources.
fn compiled(clang: &str, name: &str, flags: &[&str], sources: &[&Path]) -> Module {
    let root = repository().join("guest/pageman");
    let program = scratch(&format!("pageman-clang-{name}")).join("program.wasm");
    let mut command = Command::new(clang);
    command.args(["--target=wasm32-wasi", "-std=gnu17", "-O2"]).args(flags);
    command.arg("-I").arg(root.join("include"));
    let library = ["tables.c", "manager.c", "calls.c", "statistics.c", "posix.c", "port_wasm.c"];
    command.args(library.map(|file| root.join("src").join(file)));
    command.args(sources.iter().map(|source| root.join(source))).arg("-o").arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Module::from_file(&Engine::default(), program).expect("a valid module")
}

/// The folder that Doug Lea's `malloc.c` was fetched to.
pub(super) fn dlmalloc() -> PathBuf {
    let guests = std::env::var_os("PAGEFORK_GUESTS").map(PathBuf::from);
    let guests = guests.unwrap_or_else(|| repository().join("target/guests"));
    guests.join("dlmalloc/vendor/portable-dlmalloc-1.2.1")
}

/// With each size of pages, with and without optimisation across files, beside the C library's malloc and
/// below Doug Lea's.
#[test]
#[ignore = "needs Debian's clang: a part of `cargo xtask soak`"]
fn debians_clang_builds_it() {
    const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
    let (Some(clang), Some(_)) = (clang(), fetched("pageman.wasm")) else { return };
    let (posix, malloc) = (Path::new("test/posix.c"), Path::new("src/malloc_dlmalloc.c"));
    for shift in 12..=16 {
        let pages = format!("-DPAGEMAN_PAGE_SHIFT={shift}");
        let across = if shift % 2 == 0 { "-flto" } else { "-fno-lto" };
        let directory = scratch(&format!("pageman-clang-files-{shift}"));
        let flags = [&WARNINGS[..], &[&pages, across]].concat();
        let guest = compiled(clang, &format!("posix-{shift}"), &flags, &[posix]);
        let invocation = Invocation { args: vec!["/"], stdin: "", directory: Some(&directory) };
        let outcome = invocation.guest(&guest);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (0, "27 cases as POSIX has them\n"),
            "{shift}"
        );

        // What the compiler says of malloc is not ours to heed.
        let folder = format!("-I{}", dlmalloc().display());
        let sources = [malloc, Path::new("test/program.c")];
        let flags = ["-w", "-DDLMALLOC", &folder, &pages, across];
        let guest = compiled(clang, &format!("program-{shift}"), &flags, &sources);
        let args = vec!["2000", "/", "all"];
        let outcome = Invocation { args, ..invocation }.guest(&guest);
        assert_eq!(outcome.code, 0, "{shift}");
        assert!(outcome.stdout.ends_with("all is as promised\n"), "{shift}: {}", outcome.stdout);
    }
}
