//! What `run` takes a program from, and what it gives to it.

mod common;

use std::process::Command;

use common::{assert_fails, file, pagefork, pagefork_with_input};

/// What a module imports to write a line, and a function that writes `text`.
fn says(text: &str) -> String {
    format!(
        r#"(import "wasi_snapshot_preview1" "fd_write"
            (func $fd_write (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\{:02x}\00\00\00")
        (data (i32.const 16) "{text}\0a")
        (func $say
            (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))"#,
        text.len() + 1
    )
}

#[test]
fn a_module_that_has_run_when_it_is_instantiated_has_done_its_work() {
    let started = file("started.wat", format!("(module {} (start $say))", says("started")));
    let ended = pagefork(&started);
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "started\n", ""));
    let traps = file("start_traps.wat", "(module (func $f unreachable) (start $f))");
    assert_fails(&traps, 134, &["unreachable"]);
    // With a name to call, the name must be there.
    assert_fails(&format!("--invoke f {started}"), 1, &["no function is exported as \"f\""]);
    assert_fails(&file("nothing.wat", "(module)"), 1, &["no `_start`"]);
}

#[test]
fn a_module_is_read_from_standard_input() {
    let text = format!("(module {} (func (export \"_start\") (call $say)))", says("from a pipe"));
    for words in ["run -", "-"] {
        let ended = pagefork_with_input(words, &text);
        assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "from a pipe\n", ""));
    }
    let add = r#"(func (export "add") (param i32 i32) (result i32)
        (i32.add (local.get 0) (local.get 1)))"#;
    let ended = pagefork_with_input("--invoke add - 1 -3", add);
    assert_eq!((ended.code, &*ended.stdout), (0, "-2\n"));
    let ended = pagefork_with_input("inspect -", add);
    assert!(ended.code == 0 && ended.stdout.contains("add"), "{}", ended.stderr);

    let ended = pagefork_with_input("-", "");
    assert_eq!(ended.code, 1);
    assert!(ended.stderr.contains("standard input is empty"), "{}", ended.stderr);
    let ended = pagefork_with_input("-", "(module (func (frob)))");
    assert!(ended.code == 1 && ended.stderr.contains("standard input:1"), "{}", ended.stderr);
    let ended = pagefork_with_input("compile -", add);
    assert!(ended.code == 1 && ended.stderr.contains("`-o`"), "{}", ended.stderr);
    let image = file("from_stdin.pfc", "");
    assert_eq!(pagefork_with_input(&format!("compile -o {image} -"), add).code, 0);
    assert_eq!(pagefork(&format!("--invoke add {image} 1 2")).stdout, "3\n");
}

/// Opens a new file in the first directory; its exit code is the error number.
const CREATES: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "made")
    (func (export "_start")
        (call $exit (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 4)
            (i32.const 1) (i64.const 0x40) (i64.const 0) (i32.const 0) (i32.const 8)))))"#;

#[test]
fn a_directory_may_be_for_reading_only() {
    let program = file("creates.wat", CREATES);
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("read_only");
    std::fs::create_dir_all(&directory).unwrap();
    let made = directory.join("made");
    let _ = std::fs::remove_file(&made);
    let directory = directory.display();
    // Perm.
    assert_fails(&format!("--dir {directory}::/data:ro {program}"), 63, &[]);
    assert!(!made.exists());
    let ended = pagefork(&format!("--dir {directory}::/src:ro guest/built/survey.wasm /src"));
    assert_eq!((ended.code, &*ended.stderr), (0, ""), "it is seen under its name");
    assert_eq!(pagefork(&format!("--dir {directory}::/data {program}")).code, 0);
    assert!(made.exists());
    assert_fails(&format!("--dir {directory}:::ro {program}"), 2, &["HOST::GUEST"]);
}

/// Writes 64 KiB again and again; its exit code is the number of the error that ends this.
const WRITES: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 2)
    (data (i32.const 0) "\00\00\01\00\00\00\01\00")
    (func (export "_start") (local $error i32)
        (loop $next
            (local.set $error
                (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
            (br_if $next (i32.eqz (local.get $error))))
        (call $exit (local.get $error))))"#;

#[test]
fn a_program_that_writes_too_long_a_file_gets_an_error() {
    let program = file("writes.wat", WRITES);
    let written = file("written_too_long", "");
    let limited = r#"ulimit -f 8192 && exec "$0" run --no-cache "$1" > "$2""#;
    let ended = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_pagefork"), &program, &written])
        .status()
        .expect("the command starts");
    // Fbig.
    assert_eq!(ended.code(), Some(22), "{ended}");
    let size = std::fs::metadata(&written).expect("it was written").len();
    assert!(size > 0 && size.is_multiple_of(512 * 1024), "all that may be: {size}");
}

#[test]
fn other_modules_are_loaded_before_the_program() {
    // It keeps a count, is set up, and writes.
    let library = file(
        "library.wat",
        format!(
            r#"(module {} (global $count (mut i32) (i32.const 0))
            (func (export "_initialize") (global.set $count (i32.const 40)) (call $say))
            (func (export "next") (result i32)
                (global.set $count (i32.add (global.get $count) (i32.const 1)))
                (global.get $count)))"#,
            says("library")
        ),
    );
    let between = file(
        "between.wat",
        r#"(module (import "library" "next" (func $next (result i32)))
            (func (export "twice") (result i32) (drop (call $next)) (call $next)))"#,
    );
    let program = file(
        "program.wat",
        r#"(module (import "between" "twice" (func $twice (result i32)))
            (func (export "run") (result i32) (call $twice)))"#,
    );
    let both = format!("--preload library={library} --preload between={between}");
    let ended = pagefork(&format!("{both} --invoke run {program}"));
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "library\n42\n", ""));

    let images = file("between.pfc", "");
    assert_eq!(pagefork(&format!("compile -o {images} {between}")).code, 0);
    let compiled = format!("--preload library={library} --preload between={images}");
    assert_eq!(pagefork(&format!("{compiled} --invoke run {program}")).stdout, "library\n42\n");

    let missing = format!("--preload between={between} --invoke run {program}");
    assert_fails(&missing, 1, &["between.wat imports", "library   next", "--preload"]);
    assert_fails(
        &format!("--invoke run {program}"),
        1,
        &["between   twice", "--preload NAME=FILE"],
    );
    assert_fails(&format!("--preload a=none.wasm {program}"), 1, &["no file none.wasm"]);
    assert_fails(&format!("--preload {program} {program}"), 2, &["NAME=FILE"]);
    let twice = format!("--preload a={library} --preload a={library} --invoke run {program}");
    assert_fails(&twice, 1, &["library.wat", "defined"]);
    let traps = file("preload_traps.wat", "(module (func $f unreachable) (start $f))");
    assert_fails(&format!("--preload a={traps} --invoke run {program}"), 134, &["unreachable"]);
}

/// As in wasmtime: a command is done after one call, so the next one gets an instance of its own.
#[test]
fn each_call_of_a_preloaded_command_gets_a_fresh_instance() {
    let command = file(
        "preload_command.wat",
        r#"(module (global $count (mut i32) (i32.const 0)) (func (export "_start"))
            (func (export "next") (result i32)
                (global.set $count (i32.add (global.get $count) (i32.const 1)))
                (global.get $count)))"#,
    );
    let program = file(
        "preload_command_user.wat",
        r#"(module (import "command" "next" (func $next (result i32)))
            (func (export "run") (result i32) (drop (call $next)) (call $next)))"#,
    );
    let ended = pagefork(&format!("--preload command={command} --invoke run {program}"));
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (0, "1\n", ""));
}
