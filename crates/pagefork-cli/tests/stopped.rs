//! What a person learns of a program that was stopped: fuel, lines of source
//! code, a core dump.

mod common;

use std::os::unix::fs::PermissionsExt;

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
