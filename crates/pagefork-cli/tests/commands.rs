//! The command as a person uses it: output, exit codes, and messages that say
//! what to do.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

/// Runs `pagefork` in the repository's root, with these words and this input.
fn pagefork_with_input(words: &str, input: &str) -> Ended {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .args(words.split(' '))
        .current_dir(root)
        .env("PAGEFORK_TEST_VARIABLE", "inherited")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("the command reads its input");
    drop(stdin);
    let output = child.wait_with_output().expect("the command ends");
    Ended {
        code: output.status.code().expect("no signal ends the command"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn pagefork(words: &str) -> Ended {
    pagefork_with_input(words, "")
}

#[track_caller]
fn assert_fails(words: &str, code: i32, messages: &[&str]) {
    let ended = pagefork(words);
    assert_eq!(ended.code, code, "{words}: {}", ended.stderr);
    for message in messages {
        assert!(ended.stderr.contains(message), "{words}: no {message:?} in: {}", ended.stderr);
    }
}

#[test]
fn programs_run_on_a_directory_and_on_input() {
    for run in ["run ", ""] {
        let ended = pagefork(&format!("{run}--dir guest::/src guest/built/survey.wasm /src"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
        assert!(
            ended.stdout.contains("WebAssembly text") && ended.stdout.contains("total"),
            "{}",
            ended.stdout
        );
    }
    let ended = pagefork_with_input("guest/built/words.wasm 2", "to be or not to be, or\n");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "       2  be\n       2  or\n"));
    let ended = pagefork("guest/wat/hello.wat");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "hello\n"));
}

#[test]
fn the_programs_exit_code_is_the_commands() {
    assert_fails("guest/built/words.wasm x", 2, &["words: x is no number of words"]);
    assert_fails("--dir guest guest/built/survey.wasm guest none", 1, &["survey: none"]);
    assert_fails("guest/built/survey.wasm /", 1, &["survey: /"]);
}

#[test]
fn a_trap_ends_with_134_and_a_backtrace() {
    let ended = pagefork("guest/wat/crash.wat");
    assert_eq!((ended.code, ended.stdout.as_str()), (134, ""));
    assert!(ended.stderr.contains("out of bounds memory access"), "{}", ended.stderr);
    let at = |name| ended.stderr.find(name).unwrap_or_else(|| panic!("{name}: {}", ended.stderr));
    assert!(at("read_far") < at("work") && at("work") < at("main"), "{}", ended.stderr);
}

#[test]
fn a_timeout_ends_an_endless_loop() {
    let start = Instant::now();
    assert_fails("--timeout 300ms guest/wat/spin.wat", 134, &["interrupted", "--timeout", "300ms"]);
    let ran = start.elapsed();
    assert!(ran >= Duration::from_millis(300) && ran < Duration::from_secs(20), "{ran:?}");
}

#[test]
fn a_timeout_ends_a_program_that_sleeps() {
    assert_fails("--timeout 300ms guest/wat/sleep.wat", 134, &["interrupted", "--timeout"]);
}

#[test]
fn invoke_calls_one_function_and_prints_its_results() {
    let ended = pagefork("--invoke fib guest/wat/fib.wat 20");
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "6765\n"));
    assert_fails("--invoke fib guest/wat/fib.wat", 1, &["takes 1 arguments, 0 are given"]);
    assert_fails("--invoke fib guest/wat/fib.wat x", 1, &["\"x\" is no value of type i32"]);
    assert_fails("--invoke fob guest/wat/fib.wat 1", 1, &["fob", "only: fib"]);
    assert_fails("guest/wat/fib.wat", 1, &["_start", "--invoke", "fib"]);
}

#[test]
fn mistakes_are_explained() {
    assert_fails("none.wasm", 1, &["none.wasm", "No such file"]);
    assert_fails("README.md", 1, &["README.md"]);
    assert_fails("--dir none guest/wat/hello.wat", 1, &["none", "must exist"]);
    assert_fails("--frob guest/wat/hello.wat", 2, &["--frob", "--help"]);
    assert_fails("--timeout 5 guest/wat/hello.wat", 2, &["500ms, 10s, 2m"]);
    assert_fails("--env PAGEFORK_NO_SUCH guest/wat/hello.wat", 2, &["PAGEFORK_NO_SUCH=VALUE"]);
    assert_eq!(pagefork("--env PAGEFORK_TEST_VARIABLE guest/wat/hello.wat").code, 0);
    let help = pagefork("--help");
    assert!(help.code == 0 && help.stdout.contains("run") && help.stdout.contains("wast"));
}

#[test]
fn scripts_are_counted_and_failures_have_lines() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let script = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("the directory can be written");
        path.display().to_string()
    };
    let module = "(module (func (export \"one\") (result i32) (i32.const 1)))\n";
    let right =
        script("right.wast", &format!("{module}(assert_return (invoke \"one\") (i32.const 1))\n"));
    let wrong =
        script("wrong.wast", &format!("{module}(assert_return (invoke \"one\") (i32.const 2))\n"));
    let ended = pagefork(&format!("wast {right}"));
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "2 directives passed, 0 failed\n"));
    let ended = pagefork(&format!("wast {right} {wrong}"));
    assert_eq!((ended.code, ended.stdout.as_str()), (1, "3 directives passed, 1 failed\n"));
    assert!(ended.stderr.contains("wrong.wast:2: result 0"), "{}", ended.stderr);
    assert_fails("wast none.wast", 1, &["none.wast"]);
}
