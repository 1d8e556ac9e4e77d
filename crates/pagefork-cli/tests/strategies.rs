//! `--reset` and `--growth`: whatever is chosen, a program does the same.

mod common;

use std::process::Command;

use common::{assert_fails, file, pagefork};

const RESETS: [&str; 12] = [
    "auto",
    "remap",
    "discard",
    "scan",
    "resident",
    "protect",
    "copy",
    "fault",
    "fault=1",
    "fault=2",
    "fault=cores",
    "fault=eager",
];
const GROWTHS: [&str; 7] =
    ["auto", "mprotect", "kept", "checked", "checked=128KiB", "ftruncate", "fault"];

/// Grows its memory, and gives what it finds and then leaves there; or reads behind its end.
const GROWS: &str = r#"(module (memory 1)
    (func $grow (export "grow") (result i32)
        (drop (memory.grow (i32.const 1)))
        (i32.store8 (i32.const 0) (i32.add (i32.load8_u (i32.const 0)) (i32.const 1)))
        (i32.store8 (i32.const 65536) (i32.add (i32.load8_u (i32.const 65536)) (i32.const 20)))
        (i32.add (i32.load8_u (i32.const 0)) (i32.load8_u (i32.const 65536))))
    (func (export "behind") (result i32)
        (drop (call $grow))
        (i32.load8_u (i32.const 131072))))"#;

#[test]
fn a_program_does_the_same_by_each_strategy_and_traps_behind_its_memory() {
    let module = file("grows_by_strategy.wat", GROWS);
    let resets = RESETS.map(|reset| format!("--reset {reset}"));
    let growths = GROWTHS.map(|growth| format!("--growth {growth}"));
    let both = [
        "--reset copy --growth kept",
        "--reset remap --growth checked",
        "--reset fault=2 --growth fault",
        "--reset fault=1,eager --growth fault",
    ]
    .map(str::to_owned);
    for options in resets.iter().chain(&growths).chain(&both) {
        let ended = pagefork(&format!("run {options} --invoke grow {module}"));
        assert_eq!((ended.code, &*ended.stdout), (0, "21\n"), "{options}: {}", ended.stderr);
        assert_fails(&format!("run {options} --invoke behind {module}"), 134, &["out of bounds"]);
    }
}

#[test]
fn what_is_done_and_why_is_said_if_that_is_asked_for() {
    let module = file("says_strategies.wat", GROWS);
    let line = "run --say-strategies --reset discard --growth kept --invoke";
    for (function, code) in [("grow", 0), ("behind", 134)] {
        let ended = pagefork(&format!("{line} {function} {module}"));
        assert_eq!(ended.code, code, "{}", ended.stderr);
        for said in ["reset by discard: asked for\n", "grow by kept: asked for\n"] {
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
    }
    let forked = counts("counts_and_says.wat");
    let ended = pagefork(&format!("fork --say-strategies -j 1 -n 200 {forked}"));
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("(asked for: auto): "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("what it starts with"), "{}", ended.stderr);
    let said = pagefork(&format!("fork -j 1 -n 2 {forked}")).stderr;
    assert_eq!(said, "");
}

/// A program that can be forked, and prints how often its fork ran.
fn counts(name: &str) -> String {
    file(
        name,
        r#"(module
            (import "wasi_snapshot_preview1" "fd_read"
                (func $fd_read (param i32 i32 i32 i32) (result i32)))
            (import "wasi_snapshot_preview1" "fd_write"
                (func $fd_write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "\20\00\00\00\02\00\00\00\40\00\00\00\10\00\00\00")
            (data (i32.const 32) "0\0a")
            (func (export "_start")
                (i32.store8 (i32.const 32) (i32.const 0x31))
                (drop (call $fd_read (i32.const 0) (i32.const 8) (i32.const 1) (i32.const 16)))
                (i32.store8 (i32.const 32) (i32.add (i32.load8_u (i32.const 32)) (i32.const 1)))
                (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))))"#,
    )
}

#[test]
fn each_fork_is_fresh_by_each_strategy() {
    let module = counts("counts_by_strategy.wat");
    for reset in RESETS {
        let ended = pagefork(&format!("fork --reset {reset} -j 1 -n 4 {module}"));
        assert_eq!((ended.code, &*ended.stdout), (0, "2\n2\n2\n2\n"), "{reset}: {}", ended.stderr);
    }
}

#[test]
fn a_strategy_that_cannot_be_had_is_said_and_nothing_if_none_was_asked_for() {
    let module = file("said.wat", GROWS);
    let said = |options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagefork"));
        command.env("PAGEFORK_COW", "0").args(options.split(' '));
        let ended = command.args(["--invoke", "grow", &module]).output().unwrap();
        assert_eq!(ended.stdout, b"21\n", "{options}");
        String::from_utf8(ended.stderr).unwrap()
    };
    for reset in ["auto", "remap", "discard", "scan", "resident", "protect", "fault"] {
        let expected =
            format!("reset by copy (asked for: {reset}): copy-on-write is switched off\n");
        let stderr = said(&format!("run --no-cache --reset {reset}"));
        assert!(stderr.ends_with(&expected), "{stderr}");
    }
    assert_eq!(said("run --no-cache --reset copy"), "");
    assert_eq!(said("run --no-cache"), "");
}

#[test]
fn compiled_programs_run_by_the_growth_that_they_were_compiled_for() {
    let module = file("compiled_for_growth.wat", GROWS);
    let image = module.replace(".wat", ".pfc");
    for (compiled, runs, bounds) in [
        ("mprotect", &["mprotect", "ftruncate", "fault"][..], "Guarded"),
        ("checked", &["checked", "checked=128KiB"], "Checked"),
        ("kept", &["kept", "auto"], "Dual"),
    ] {
        assert_eq!(pagefork(&format!("compile --growth {compiled} {module}")).code, 0);
        for growth in GROWTHS {
            let line = format!("run --growth {growth} --invoke grow {image}");
            if runs.contains(&growth) {
                let ended = pagefork(&line);
                assert_eq!((ended.code, &*ended.stdout), (0, "21\n"), "{line}: {}", ended.stderr);
            } else {
                assert_fails(
                    &line,
                    1,
                    &["other settings", &format!("bounds: {bounds} instead of")],
                );
            }
        }
    }
}

#[test]
fn what_does_not_go_together_is_explained() {
    let module = file("together.wat", GROWS);
    assert_fails(&format!("serve --warm --growth kept {module}"), 1, &["--growth", "anew"]);
    assert_fails("run --growth kept --from none", 1, &["--growth is settled", "leave it out"]);
    assert_fails(
        &format!("run --reset fast {module}"),
        2,
        &["remap, discard, scan, resident, protect"],
    );
    assert_fails(&format!("compile --growth fast {module}"), 2, &["mprotect, kept, checked"]);
}
