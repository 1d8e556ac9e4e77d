//! The comparison with wasmtime: a short run, and that it would show a difference.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use pagefork_fuzz::differential::{CASE_TIME_MAX, Campaign};
use pagefork_fuzz::features::FeatureSet;
use pagefork_fuzz::generate::{Case, Source};
use pagefork_fuzz::ours::{Engines, Ours};
use pagefork_fuzz::peer::{Library, Peer};
use pagefork_fuzz::subject::{Transcript, difference, run};
use pagefork_fuzz::supported;

const PROGRAM: &str = env!("CARGO_BIN_EXE_differential");

/// An empty directory of this test's own.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    // It need not exist.
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn campaign(name: &str, seed: u64, cases: u64) -> Campaign {
    Campaign {
        seed,
        cases,
        features: supported(),
        processes: 2,
        case_time_max: CASE_TIME_MAX,
        directory: directory(name),
    }
}

fn library() -> &'static Library {
    Library::open().unwrap_or_else(|message| panic!("{message}"))
}

#[test]
fn a_thousand_cases_do_not_differ() {
    library();
    let campaign = campaign("smoke", 0, 1_000);
    let worker = |seeds: Range<u64>| {
        let mut command = Command::new(PROGRAM);
        command.arg("--work").arg(seeds.start.to_string()).arg(seeds.end.to_string());
        command.arg("--features").arg(campaign.features.to_string());
        command
    };
    let report = campaign.run(worker, |_| {}).unwrap();
    for (seed, text) in &report.differences {
        eprintln!("seed {seed} differs in {text}\n  cargo xtask differential --show {seed}");
    }
    assert_eq!(report.differences.len(), 0);
    assert_eq!(report.cases, 1_000);
    // Nothing of what is compared is missing.
    for what in [
        "calls that return",
        "calls of table elements",
        "host calls",
        "host errors",
        "failed instantiations",
        "globals compared",
        "memories compared",
        "tables compared",
        "trap: memory out of bounds",
        "trap: table out of bounds",
        "trap: indirect call to null",
        "trap: indirect call type mismatch",
        "trap: integer overflow",
        "trap: integer division by zero",
        "trap: bad conversion to integer",
        "trap: unreachable",
        "trap: null reference",
        "uncaught exceptions",
    ] {
        assert!(report.counts.get(what).is_some_and(|count| *count > 0), "no {what}");
    }
    for feature in pagefork_fuzz::features::FEATURES {
        let (name, what) = (feature.name, format!("modules with {}", feature.name));
        if campaign.features.has(name) {
            assert!(report.counts.get(&what).is_some_and(|count| *count > 0), "no {what}");
        }
    }
}

/// A case of one module in the text format.
fn case(text: &str) -> Case {
    let source = Source::new(wat::parse_str(text).unwrap()).unwrap();
    Case {
        seed: 1,
        features: FeatureSet::NONE,
        deterministic: false,
        fuel: 1_000,
        modules: vec![source],
    }
}

fn ours(text: &str) -> Transcript {
    let case = case(text);
    run(&mut Ours::new(&Engines::new(), &case), &case)
}

fn theirs(text: &str) -> Transcript {
    let case = case(text);
    run(&mut Peer::new(library(), &case), &case)
}

#[test]
fn what_differs_is_found() {
    for (place, one, other) in [
        (
            "function 0([]) = Ok",
            r#"(module (func (export "f") (result i32) (i32.const 1)))"#,
            r#"(module (func (export "f") (result i32) (i32.const 2)))"#,
        ),
        (
            "function 0([]) = Ok",
            r#"(module (func (export "f") (result f64) (f64.const 0)))"#,
            r#"(module (func (export "f") (result f64) (f64.const -0)))"#,
        ),
        (
            "unreachable",
            r#"(module (func (export "f") unreachable))"#,
            r#"(module (func (export "f")))"#,
        ),
        (
            "integer division by zero",
            r#"(module (func (export "f") unreachable))"#,
            r#"(module (func (export "f") (drop (i32.div_u (i32.const 1) (i32.const 0)))))"#,
        ),
        (
            "first different at 0xfffe: [07, 00]",
            r#"(module (memory (export "m") 1) (data (i32.const 0xfffe) "\06"))"#,
            r#"(module (memory (export "m") 1) (data (i32.const 0xfffe) "\07"))"#,
        ),
        (
            "65536 bytes",
            r#"(module (memory (export "m") 1))"#,
            r#"(module (memory (export "m") 2))"#,
        ),
        (
            "global 0",
            r#"(module (global (export "g") i64 (i64.const 1)))"#,
            r#"(module (global (export "g") i64 (i64.const -1)))"#,
        ),
        (
            "table 0[1]",
            r#"(module (table (export "t") 2 funcref) (elem (i32.const 1) $f)
                 (func $f (export "f")))"#,
            r#"(module (table (export "t") 2 funcref) (func $f (export "f")))"#,
        ),
        (
            "Func(Some(1))",
            r#"(module (table (export "t") 1 funcref) (elem (i32.const 0) $f)
                 (func $f (export "f")) (func $g (export "g")))"#,
            r#"(module (table (export "t") 1 funcref) (elem (i32.const 0) $g)
                 (func $f (export "f")) (func $g (export "g")))"#,
        ),
        (
            "2 elements",
            r#"(module (table (export "t") 2 externref))"#,
            r#"(module (table (export "t") 3 externref))"#,
        ),
        (
            "host calls",
            r#"(module (import "" "" (func $h (param i32)))
                 (func (export "f") (call $h (i32.const 1))))"#,
            r#"(module (import "" "" (func $h (param i32)))
                 (func (export "f") (call $h (i32.const 2))))"#,
        ),
        (
            "module 0 instantiated",
            r#"(module (func $f unreachable) (start $f))"#,
            r#"(module (func $f) (start $f))"#,
        ),
        ("module 0 is refused", "(module (memory 1 1 shared))", "(module)"),
    ] {
        let (ours, equal, differs) = (ours(one), theirs(one), theirs(other));
        let refused = ours.refusal.is_some();
        assert!(refused || difference(&ours, &equal).is_none(), "{one} differs from itself");
        let text = difference(&ours, &differs).unwrap_or_else(|| panic!("{other} is like {one}"));
        assert!(text.contains(place), "{place:?} is not in {text}");
    }
}

#[test]
fn a_crash_and_a_hang_are_differences_of_their_seed_alone() {
    let mut campaign = campaign("crash", 0, 10);
    campaign.case_time_max = Duration::from_secs(2);
    let worker = |seeds: Range<u64>| {
        let mut command = Command::new("bash");
        command.arg("-c").arg(format!(
            r#"for ((i = {}; i < {}; i++)); do
                printf 'begin\t%d\n' $i
                case $i in (3) kill -SEGV $$;; (6) exec sleep 1000;; esac
                printf 'end\t%d\n' $i
            done"#,
            seeds.start, seeds.end
        ));
        command
    };
    let report = campaign.run(worker, |_| {}).unwrap();
    assert_eq!(report.cases, 10);
    let seeds: Vec<_> = report.differences.iter().map(|(seed, _)| *seed).collect();
    assert_eq!(seeds, [3, 6]);
    assert!(report.differences[0].1.contains("SIGSEGV"), "{:?}", report.differences);
    assert!(report.differences[1].1.contains("hangs"), "{:?}", report.differences);
}

#[test]
fn a_campaign_goes_on_where_it_was_ended() {
    let started = Mutex::new(Vec::new());
    let worker = |seeds: Range<u64>| {
        started.lock().unwrap().push(seeds.start);
        let mut command = Command::new("bash");
        command.arg("-c").arg(format!(
            r#"for ((i = {}; i < {}; i++)); do
                printf 'begin\t%d\ncount\t2\tsteps\n' $i
                [ $i != 1100 ] || printf 'differ\t%d\t"one \\"word\\"\\nand more"\n' $i
                printf 'end\t%d\n' $i
            done"#,
            seeds.start, seeds.end
        ));
        command
    };
    let mut campaign = campaign("resumed", 1_000, 400);
    let first = campaign.run(worker, |_| {}).unwrap();
    assert_eq!((first.cases, first.resumed, first.counts["steps"]), (400, 0, 800));
    let difference = [(1_100, "one \"word\"\nand more".to_owned())];
    assert_eq!(first.differences, difference);
    campaign.cases = 900;
    let second = campaign.run(worker, |_| {}).unwrap();
    assert_eq!((second.cases, second.resumed, second.counts["steps"]), (900, 400, 1_800));
    assert_eq!(second.differences, difference);
    let mut started = started.into_inner().unwrap();
    started.sort();
    assert_eq!(started, [1_000, 1_200, 1_400, 1_600, 1_800]);
}
