//! A runner that passes everything would pass the specification's tests: here
//! each kind of directive is wrong, and must be reported, at its line.

use pagefork::Engine;
use pagefork_wast::{Report, WastRunner};

const MODULE: &str = r#"(module $m
  (func (export "one") (result i32) (i32.const 1))
  (func (export "nan") (result f32) (f32.const nan:0x200000))
  (func (export "null") (result externref) (ref.null extern))
  (func (export "self") (param externref) (result externref) (local.get 0))
  (func (export "vector") (result v128) (v128.const i32x4 1 2 3 4))
  (func (export "trap") (unreachable))
  (func $recurse (export "recurse") (call $recurse))
  (global (export "g") i64 (i64.const 5)))
"#;

fn run(directive: &str) -> Report {
    let script = format!("{MODULE}{directive}");
    let mut runner = WastRunner::new(&Engine::default()).expect("spectest");
    runner.run("t.wast", &script).expect("a script")
}

#[test]
fn what_is_right_passes() {
    for directive in [
        r#"(assert_return (invoke "one") (i32.const 1))"#,
        r#"(assert_return (invoke $m "nan") (f32.const nan:0x200000))"#,
        r#"(assert_return (invoke "null") (ref.null extern))"#,
        r#"(assert_return (invoke "self" (ref.extern 7)) (ref.extern 7))"#,
        r#"(assert_return (invoke "vector") (v128.const i64x2 0x200000001 0x400000003))"#,
        r#"(assert_return (get "g") (i64.const 5))"#,
        r#"(assert_trap (invoke "trap") "unreachable")"#,
        r#"(assert_trap (module (func $f unreachable) (start $f)) "unreachable")"#,
        r#"(assert_exhaustion (invoke "recurse") "call stack exhausted")"#,
        r#"(assert_unlinkable (module (import "x" "y" (func))) "unknown import")"#,
        r#"(assert_invalid (module (func (result i32))) "type mismatch")"#,
        r#"(assert_malformed (module quote "(func (nonsense))") "unknown operator")"#,
        r#"(assert_malformed (module binary "\00asm") "unexpected end")"#,
        r#"(module definition $d (func (export "f"))) (module instance $i $d) (invoke $i "f")"#,
        r#"(register "other" $m) (module (import "other" "g" (global i64)))"#,
        r#"(module (import "spectest" "memory" (memory 1 2)) (import "spectest" "print" (func)))"#,
    ] {
        let report = run(directive);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert!(report.passed >= 2);
    }
}

#[test]
fn what_is_wrong_is_reported() {
    for (directive, expected) in [
        (r#"(assert_return (invoke "one") (i32.const 2))"#, "result 0"),
        (r#"(assert_return (invoke "one") (i64.const 1))"#, "result 0"),
        (r#"(assert_return (invoke "one"))"#, "1 results, expected 0"),
        (r#"(assert_return (invoke "one") (i32.const 1) (i32.const 1))"#, "1 results, expected 2"),
        (r#"(assert_return (invoke "nan") (f32.const nan:canonical))"#, "result 0"),
        (r#"(assert_return (invoke "nan") (f32.const nan:arithmetic))"#, "result 0"),
        (r#"(assert_return (invoke "null") (ref.null func))"#, "result 0"),
        (r#"(assert_return (invoke "null") (ref.extern 0))"#, "result 0"),
        (r#"(assert_return (invoke "self" (ref.extern 7)) (ref.extern 8))"#, "externref Some(7)"),
        (r#"(assert_return (invoke "vector") (v128.const i32x4 1 2 3 5))"#, "result 0"),
        (r#"(assert_return (get "g") (i64.const 6))"#, "result 0"),
        (r#"(assert_return (get "h") (i64.const 6))"#, "no exported global"),
        (r#"(assert_return (invoke "trap"))"#, "failed instead of returning"),
        (r#"(invoke "trap")"#, "failed"),
        (r#"(invoke "none")"#, "no exported function"),
        (r#"(invoke $n "one")"#, "no instance is named"),
        (r#"(assert_trap (invoke "trap") "integer overflow")"#, "trapped with"),
        (r#"(assert_trap (invoke "one") "unreachable")"#, "returned"),
        (r#"(assert_trap (module) "unreachable")"#, "returned"),
        (r#"(assert_exhaustion (invoke "trap") "call stack exhausted")"#, "trapped with"),
        (r#"(assert_exhaustion (invoke "one") "call stack exhausted")"#, "returned"),
        (r#"(assert_unlinkable (module) "unknown import")"#, "was linked"),
        (
            r#"(assert_unlinkable (module (import "x" "y" (func))) "incompatible import type")"#,
            "expected",
        ),
        (
            r#"(assert_unlinkable (module (func $f unreachable) (start $f)) "x")"#,
            "was linked, but failed",
        ),
        (r#"(assert_invalid (module) "type mismatch")"#, "was accepted"),
        (r#"(assert_malformed (module quote "(func)") "unknown operator")"#, "was accepted"),
        (r#"(assert_malformed (module binary "\00asm\01\00\00\00") "magic")"#, "was accepted"),
        (r#"(module (func (result i32)))"#, "was refused"),
        (r#"(module (import "x" "y" (func)))"#, "could not be instantiated"),
        (r#"(module instance $i $d)"#, "no module definition"),
        (r#"(register "other" $n)"#, "no instance is named"),
        (r#"(thread $t (invoke "one"))"#, "threads proposal"),
    ] {
        let report = run(directive);
        let [failure] = &report.failures[..] else {
            panic!("{directive}: {} failures", report.failures.len());
        };
        assert_eq!((report.passed, failure.line), (1, 10), "{directive}");
        assert!(failure.to_string().starts_with("t.wast:10: "), "{failure}");
        assert!(failure.message.contains(expected), "{directive}: {failure}");
    }
}

#[test]
fn what_is_no_script_is_an_error() {
    let mut runner = WastRunner::new(&Engine::default()).expect("spectest");
    let error = runner.run("t.wast", "(module)\n(assert_nothing)").expect_err("no such directive");
    assert!(error.to_string().contains("t.wast:2"), "{error}");
}
