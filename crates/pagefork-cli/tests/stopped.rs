//! What a person learns of a program that was stopped: fuel, lines of source
//! code, a core dump.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{assert_fails, file, pagefork};

#[test]
fn fuel_that_is_used_up_ends_a_program() {
    let messages = ["all fuel consumed", "of 10000 units of fuel 0 were left (`--fuel`)"];
    assert_fails("--fuel 10000 guest/wat/spin.wat", 134, &messages);
    let ended = pagefork("--fuel 1000000 --invoke fib guest/wat/fib.wat 10");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "55\n"));
}

#[test]
fn a_backtrace_names_lines_of_source_code() {
    let messages = ["out of bounds memory access", "read_at at", "guest/c/crash.c:7"];
    assert_fails("--invoke crash guest/built/crash.wasm 0", 134, &messages);
}

#[test]
fn a_core_dump_is_written_for_its_owner_when_a_program_traps() {
    let path = file("dump.wasm", "an older file");
    assert_fails(&format!("--core-dump {path} guest/wat/crash.wat"), 134, &[&path]);
    let dump = std::fs::read(&path).unwrap();
    assert!(dump.starts_with(b"\0asm") && dump.windows(9).any(|bytes| bytes == b"corestack"));

    let fresh = format!("{path}.fresh");
    let _ = std::fs::remove_file(&fresh);
    assert_fails(&format!("--core-dump {fresh} guest/wat/crash.wat"), 134, &[&fresh]);
    let mode = std::fs::metadata(&fresh).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let _ = std::fs::remove_file(&fresh);
    assert_eq!(pagefork(&format!("--core-dump {fresh} guest/wat/hello.wat")).code, 0);
    assert!(!std::path::Path::new(&fresh).exists(), "nothing trapped");

    let nowhere = "--core-dump /nowhere/dump guest/wat/crash.wat";
    assert_fails(nowhere, 134, &["cannot write the core dump to /nowhere/dump"]);
}

#[test]
fn a_deterministic_program_runs() {
    let ended = pagefork("--deterministic --invoke fib guest/wat/fib.wat 10");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "55\n"));
}

/// A program that makes one call of WASI, takes no notice of what it says, and exits with 0.
fn careless(call: &str) -> String {
    format!(
        r#"(module
            (import "wasi_snapshot_preview1" "poll_oneoff"
                (func $poll (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_read"
                (func $read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write"
                (func $write (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 32)
            (data (i32.const 16) "\01\00\00\00\00\00\00\00\ff\ff\ff\ff\ff\ff\ff\7f")
            ;; An iovec of 1 MiB.
            (data (i32.const 128) "\00\10\00\00\00\00\10\00")
            (func (export "_start") (drop {call}) (call $exit (i32.const 0))))"#
    )
}

#[test]
fn a_program_that_ran_into_its_time_limit_cannot_hide_it() {
    let sleeps = "(call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 512))";
    let reads = "(call $read (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 512))";
    let writes = "(call $write (i32.const 1) (i32.const 128) (i32.const 1) (i32.const 512))";
    for (name, call) in [("sleeps", sleeps), ("reads", reads), ("writes", writes)] {
        let path = file(&format!("careless-{name}.wat"), careless(call));
        // Its input stays empty and its output is not read, and both stay open.
        let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
            .args(["--timeout", "200ms", "--no-cache", &path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                panic!("it {name} for ever");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(134), "it {name}: {text}");
        assert!(text.contains("interrupted") && text.contains("--timeout"), "it {name}: {text}");
    }
}
