//! `pagefork run --profile`: what `perf` reads is there, and names the code.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use common::file;

const MODULE: &str = r#"(module
    (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
    (memory (export "memory") 1)
    (func $quick (param i32) (result i32) (i32.popcnt (local.get 0)))
    (func (param i32) (result i32) (call $quick (local.get 0)))
    (func (export "_start") (drop (call 2 (call $yield)))))"#;

/// Runs the module with a profile; gives the process's number.
fn run(profile: &str, directory: &Path) -> u32 {
    let path = file(&format!("{profile}.wat"), MODULE);
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .args(["run", "--profile", profile, &path])
        .env("JITDUMPDIR", directory)
        .stdout(Stdio::null())
        .spawn()
        .expect("the command starts");
    let number = child.id();
    assert!(child.wait().expect("it ends").success());
    number
}

/// What every profile must name, of the module above.
fn check(pieces: &BTreeMap<u64, (u64, String)>) {
    for name in
        ["quick", "wasm-function[2]", "import wasi_snapshot_preview1.sched_yield", "entry () -> ()"]
    {
        assert!(pieces.values().any(|(_, found)| found == name), "no {name} in {pieces:?}");
    }
    let mut end = 0;
    for (start, (size, name)) in pieces {
        assert!(*start >= end && *size > 0, "{name} overlaps another piece: {pieces:?}");
        end = start + size;
    }
}

#[test]
fn a_perf_map_names_functions_and_stubs() {
    let number = run("perfmap", Path::new("/"));
    let path = format!("/tmp/perf-{number}.map");
    let text = std::fs::read_to_string(&path).expect("the map was written");
    std::fs::remove_file(&path).expect("it is ours");
    let hexadecimal = |text| u64::from_str_radix(text, 16).expect("a hexadecimal number");
    let pieces = text.lines().map(|line| {
        let mut words = line.splitn(3, ' ');
        let mut next = || words.next().expect("three words");
        (hexadecimal(next()), (hexadecimal(next()), next().to_owned()))
    });
    check(&pieces.collect());
}

#[test]
fn a_jitdump_names_functions_and_stubs_and_has_their_code() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let number = run("jitdump", directory);
    let path = directory.join(format!("jit-{number}.dump"));
    let bytes = std::fs::read(&path).expect("the dump was written");
    std::fs::remove_file(&path).expect("it is ours");
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!((half(0), half(4), half(12), half(20)), (0x4a69_5444, 1, 62, number));
    let (mut at, mut pieces) = (half(8) as usize, BTreeMap::new());
    while at < bytes.len() {
        let (kind, size) = (half(at), half(at + 4) as usize);
        assert_eq!((kind, half(at + 16)), (0, number));
        let (address, length) = (word(at + 32), word(at + 40));
        let rest = &bytes[at + 56..at + size];
        let name_end = rest.iter().position(|byte| *byte == 0).expect("a name ends");
        let name = std::str::from_utf8(&rest[..name_end]).expect("text").to_owned();
        let code = &rest[name_end + 1..];
        assert!(code.len() as u64 == length && code.iter().any(|byte| *byte != 0), "{name}");
        assert_eq!(word(at + 48), pieces.len() as u64, "pieces are numbered");
        pieces.insert(address, (length, name));
        at += size;
    }
    check(&pieces);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let path = file("unwritable.wat", MODULE);
    let output = Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .args(["run", "--profile", "jitdump", &path])
        .env("JITDUMPDIR", "/nowhere")
        .output()
        .expect("the command starts");
    let message = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("/nowhere/jit-") && message.contains("JITDUMPDIR"), "{message}");
}
