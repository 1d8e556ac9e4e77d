//! `pagefork doctor`: what this machine can do, and what stands in the way.

mod common;

use std::process::Command;

use common::pagefork;

/// Runs `pagefork doctor` in a shell that sets limits first.
fn with_limits(limits: &str) -> (Option<i32>, String) {
    let command = env!("CARGO_BIN_EXE_pagefork");
    let output = Command::new("sh")
        .args(["-c", &format!("{limits}; exec {command} doctor")])
        .output()
        .expect("a shell");
    (output.status.code(), String::from_utf8(output.stdout).expect("text"))
}

/// State and detail of a line.
fn line<'a>(report: &'a str, name: &str) -> (&'a str, &'a str) {
    let find = |line: &'a str| {
        let (state, rest) = line.trim_start().split_once(' ')?;
        Some((state, rest.trim_start().strip_prefix(name)?.trim_start()))
    };
    report.lines().find_map(find).unwrap_or_else(|| panic!("no {name} in:\n{report}"))
}

#[test]
fn this_machine_runs_guests() {
    let ended = pagefork("doctor");
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{}", ended.stdout);
    assert!(ended.stdout.ends_with("Pagefork can run here.\n"), "{}", ended.stdout);
    for name in ["engine", "guest", "memfd_create", "file seals", "copy-on-write", "growth"] {
        assert_eq!(line(&ended.stdout, name).0, "ok", "{name}");
    }
    // Each has a line with some text, on every machine.
    for name in [
        "processor",
        "MADV_DONTNEED",
        "reset strategy",
        "page faults",
        "MADV_NOHUGEPAGE",
        "MAP_STACK",
        "/proc/self/pagemap",
        "PAGEMAP_SCAN",
        "userfaultfd SIGBUS",
        "TCP Fast Open",
        "userfaultfd WP_ASYNC",
        "read-only pages",
        "userfaultfd write faults",
        "userfaultfd touches",
        "growth by ftruncate",
        "growth by fault",
        "address space",
        "vm.max_map_count",
        "RLIMIT_AS",
        "RLIMIT_NOFILE",
        "vm.overcommit_memory",
    ] {
        let (state, detail) = line(&ended.stdout, name);
        assert!(["ok", "limited", "missing"].contains(&state) && !detail.is_empty(), "{name}");
    }
}

#[test]
fn limits_that_matter_are_named_with_what_raises_them() {
    let (code, report) = with_limits("ulimit -n 100; ulimit -f 100000; ulimit -d 8000000");
    assert_eq!(code, Some(0), "{report}");
    for (name, expected) in [
        ("RLIMIT_NOFILE", "ulimit -n"),
        ("RLIMIT_FSIZE", "ulimit -f"),
        ("read-only pages", "ulimit -d"),
        ("growth by fault", "ulimit -d"),
    ] {
        let (state, detail) = line(&report, name);
        assert!(state == "limited" && detail.contains(expected), "{report}");
    }
}

#[test]
fn the_reset_strategy_is_named_and_what_stands_in_its_way() {
    let report = pagefork("doctor").stdout;
    let (state, detail) = line(&report, "reset strategy");
    assert!(detail.starts_with("auto"), "{detail}");
    assert_eq!(state, line(&report, "PAGEMAP_SCAN").0, "{report}");
    assert_eq!(line(&report, "PAGEFORK_COW").0, "ok");

    let (code, report) = with_limits("export PAGEFORK_COW=0");
    assert_eq!(code, Some(0), "{report}");
    let (state, detail) = line(&report, "reset strategy");
    assert_eq!(
        (state, detail),
        ("limited", "copy (asked for: auto): copy-on-write is switched off")
    );
    let (state, detail) = line(&report, "PAGEFORK_COW");
    assert!(state == "limited" && detail.contains("Unset it"), "{report}");
}

#[test]
fn a_machine_without_room_for_a_slot_cannot_run_guests() {
    let (code, report) = with_limits("ulimit -v 4000000");
    assert_eq!(code, Some(1), "{report}");
    let (state, detail) = line(&report, "guest");
    assert!(state == "missing" && detail.contains("ulimit -v unlimited"), "{report}");
    assert_eq!(line(&report, "RLIMIT_AS").0, "limited");
    assert!(report.contains("cannot run here"), "{report}");
}
