//! What the command says when nothing can be said: its reader is gone, its disk is full, its
//! streams are closed.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::file;

/// Runs a line of the shell in the repository's root, with the command as `$0`; gives its
/// exit code and what it writes to standard error.
fn shell(line: &str) -> (i32, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("bash")
        .args(["-c", line, env!("CARGO_BIN_EXE_pagefork")])
        .current_dir(root)
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches"))
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(!stderr.contains("panicked"), "{line}: {stderr}");
    (output.status.code().expect("no signal ends the shell"), stderr)
}

/// Command lines that print, and how they end.
fn printing() -> Vec<(String, i32)> {
    let script = "(module (func (export \"one\") (result i32) (i32.const 1)))\n\
                  (assert_return (invoke \"one\") (i32.const 2))\n";
    let wrong = file("said_wrong.wast", script);
    let right = file("said_right.wast", "(module)\n");
    // More than a pipe or a buffer holds.
    let results = file(
        "many_results.wat",
        format!(
            "(module (func (export \"f\") (result {}) {}))",
            "i64 ".repeat(1000),
            "(i64.const -1) ".repeat(1000)
        ),
    );
    let mut lines = vec![
        ("doctor".to_owned(), 0),
        ("inspect --all guest/wat/fib.wat".to_owned(), 0),
        ("completions zsh".to_owned(), 0),
        ("--help".to_owned(), 0),
        ("--version".to_owned(), 0),
        ("run --help".to_owned(), 0),
        ("--invoke fib guest/wat/fib.wat 10".to_owned(), 0),
        (format!("--invoke f {results}"), 0),
        (format!("wast {right}"), 0),
    ];
    lines.push((format!("wast {wrong}"), 1));
    lines
}

#[test]
fn a_reader_that_is_gone_is_no_error() {
    for (line, code) in printing() {
        // The pipe's other end is closed before the command starts.
        let closed =
            format!("(sleep 0.1; exec \"$0\" {line}) | exec true; exit ${{PIPESTATUS[0]}}");
        let (ended, stderr) = shell(&closed);
        assert_eq!(ended, code, "{line}: {stderr}");
        let both =
            format!("(sleep 0.1; exec \"$0\" {line}) 2>&1 | exec true; exit ${{PIPESTATUS[0]}}");
        assert_eq!(shell(&both).0, code, "{line}");
    }
}

#[test]
fn a_full_disk_is_said_and_ends_with_1() {
    for (line, _) in printing() {
        let (ended, stderr) = shell(&format!("exec \"$0\" {line} >/dev/full"));
        assert_eq!(ended, 1, "{line}: {stderr}");
        assert!(stderr.contains("cannot write to standard output: No space left"), "{stderr}");
        // Nor can that be said here.
        assert_eq!(shell(&format!("exec \"$0\" {line} >/dev/full 2>&1")).0, 1, "{line}");
    }
}

#[test]
fn closed_streams_are_no_error() {
    for (line, code) in printing() {
        assert_eq!(shell(&format!("exec \"$0\" {line} <&- >&- 2>&-")).0, code, "{line}");
    }
}

#[test]
fn what_cannot_be_said_changes_no_exit_code() {
    for stderr in ["/dev/full", "&-"] {
        for (line, code) in [
            ("guest/wat/crash.wat", 134),
            ("--timeout 50ms guest/wat/spin.wat", 134),
            ("--fuel 100 guest/wat/spin.wat", 134),
            ("--core-dump /dev/null guest/wat/crash.wat", 134),
            ("--cache /proc/none guest/wat/hello.wat", 0),
            ("--tcplisten 127.0.0.1:0 guest/wat/hello.wat", 0),
            ("none.wasm", 1),
            ("--frob", 2),
        ] {
            assert_eq!(shell(&format!("exec \"$0\" {line} 2>{stderr}")).0, code, "{line}");
        }
    }
}

#[test]
fn a_core_dump_that_cannot_be_written_leaves_the_exit_code_of_a_trap() {
    for place in ["/dev/full", "/nowhere/core", "guest"] {
        let line = format!("exec \"$0\" --core-dump {place} guest/wat/crash.wat");
        let (code, stderr) = shell(&line);
        assert_eq!(code, 134, "{stderr}");
        let said = format!("cannot write the core dump to {place}");
        assert!(stderr.contains("out of bounds") && stderr.contains(&said), "{stderr}");
    }
}
