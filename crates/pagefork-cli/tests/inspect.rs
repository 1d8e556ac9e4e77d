//! `pagefork inspect`: what a module is made of, and its slot, in text.

mod common;

use common::{file, pagefork};

const MODULE: &str = r#"(module $demo
    (import "env" "log" (func $log (param i32 i64) (result i32)))
    (import "env" "at" (global $at i32))
    (memory (export "memory") 2 100)
    (table 10 funcref) (table 3 3 externref)
    (global (mut i64) (i64.const 3))
    (data (i32.const 1024) "hello") (data (global.get $at) "x") (data "passive")
    (elem (i32.const 1) $log $f)
    (start $g)
    (func $f (export "run\1b[2J") (param i32 i64) (result i32)
        (call $log (local.get 0) (local.get 1)))
    (func $g) (func (export "nameless")))"#;

/// The report, with each run of spaces as one: tests are about words.
fn report(options: &str, name: &str, text: &str) -> String {
    let ended = pagefork(&format!("inspect {options}{}", file(name, text)));
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    ended.stdout.lines().map(words).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_module_is_described() {
    let report = report("", "demo.wat", MODULE);
    for line in [
        "module demo",
        "needs bulk-memory-operations, reference-types",
        "start function 2, g",
        "Imports: 2",
        "function 0 env log (i32, i64) -> (i32)",
        "global 0 env at i32, constant",
        "Exports: 3",
        "memory 0 memory 2 pages (128 KiB), at most 100",
        "function 1 run\\u{1b}[2J (i32, i64) -> (i32)",
        "table 0 funcref, 10 elements, can grow",
        "table 1 externref, 3 elements, at most 3",
        "global 1 i64, mutable",
        "data 0 5 B copied to memory 0 at 0x400",
        "data 1 1 B copied to memory 0 at what global 0 says",
        "data 2 7 B passive",
        "element 0 2 elements funcref, copied to table 0 at 0x1",
    ] {
        assert!(report.lines().any(|found| found == line), "no {line:?} in:\n{report}");
    }
    for part in ["exported as nameless () -> ()", "functions 3 ", "descriptors 5 "] {
        assert!(report.contains(part), "no {part:?} in:\n{report}");
    }
}

#[test]
fn a_slot_is_drawn_zone_by_zone_without_a_gap() {
    let report = report("", "zones.wat", MODULE);
    // Offset and name of each zone; of their parts, names are not looked at.
    let zones = [
        ("64 KiB", "low guard"),
        // Up to where the link starts, which ends with a page.
        ("1.0 MiB", "stack, grows down"),
        ("192 B", "link"),
        ("512 KiB", "tables: room to grow"),
        ("4 KiB", "state"),
        ("4 GiB", "memory 0"),
    ];
    let mut end: Option<i64> = None;
    for (size, name) in zones {
        let found = report.lines().find(|line| line.contains(&format!(" {size} {name}")));
        let line = found.unwrap_or_else(|| panic!("no zone {name:?} of {size} in:\n{report}"));
        let offset = number(line.split(' ').nth(1).expect("an offset"));
        assert!(end.is_none_or(|end| end == offset), "{name} does not adjoin:\n{report}");
        end = (!size.contains('.')).then(|| offset + bytes(size));
    }
    assert_eq!(end, Some(4 << 30));
    assert!(report.contains("| 0x100000000 4.0 GiB guard no access |"), "{report}");
    assert!(report.contains("+ base"), "{report}");
    assert!(report.contains("table 0: 10 now, room for 65536"), "{report}");
    assert!(report.contains("| -0x40 64 B header |"), "{report}");
}

#[test]
fn further_memories_and_exceptions_have_zones_of_their_own() {
    let text = r#"(module (import "e" "t" (tag (param i32))) (tag $own (param i64))
        (memory 1) (memory i64 1 3) (memory 0) (export "own" (tag $own)))"#;
    let report = report("", "several.wat", text);
    for line in [
        "needs multi-memory, memory64, exception-handling",
        "tag 0 e t (i32) -> ()",
        "tag 1 own (i64) -> ()",
        "memory 1 1 page (64 KiB), at most 3, 64-bit",
    ] {
        assert!(report.lines().any(|found| found == line), "no {line:?} in:\n{report}");
    }
    for zone in ["64 KiB exceptions", "4 GiB memory 0", "memory 1", "4 GiB memory 2"] {
        assert!(report.contains(&format!("{zone} ")), "no {zone:?} in:\n{report}");
    }
    assert_eq!(report.matches(" guard no access |").count(), 4, "{report}");
}

#[test]
fn a_module_without_anything_has_a_small_slot() {
    let report = report("", "nothing.wat", "(module)");
    assert!(
        report.contains("module (none)\n") && report.contains("needs WebAssembly 1.0 alone"),
        "{report}"
    );
    assert!(!report.contains("memory 0 ") && report.contains("2 MiB of address space"), "{report}");
}

#[test]
fn some_functions_and_globals_are_listed_or_all() {
    let functions: String = (0..12)
        .map(|i| format!("(func $f{i} (result i32) i32.const 1 {})", "i32.popcnt ".repeat(i)))
        .collect();
    let globals = "(global i32 (i32.const 1))".repeat(12);
    let text = format!("(module {functions} {globals})");
    let some = report("", "some.wat", &text);
    assert!(some.contains("10 of 12; `--all` lists all"), "{some}");
    assert!(some.contains("f11 () -> (i32)") && !some.contains("f0 () -> (i32)"), "{some}");
    assert!(some.contains("and 2 more") && !some.contains("global 11 "), "{some}");
    let all = report("--all ", "all.wat", &text);
    assert!((0..12).all(|i| all.contains(&format!("f{i} () -> (i32)"))), "{all}");
    assert!(all.contains("global 11 i32, constant"), "{all}");
}

fn number(text: &str) -> i64 {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let digits = digits.strip_prefix("0x").expect("a hexadecimal number");
    sign * i64::from_str_radix(digits, 16).expect("a number")
}

fn bytes(size: &str) -> i64 {
    let (number, unit) = size.split_once(' ').expect("a number and a unit");
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => panic!("what is a {unit}?"),
    };
    number.parse::<i64>().expect("a whole number") << shift
}
