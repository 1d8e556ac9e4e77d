//! A stack that is used up is a trap, in every way of using it up, and as often as it
//! happens.

use pagefork::{Caller, TrapCode};

use crate::common::{engine_with_stack, link, spawn, trap_code};

#[test]
fn stack_overflow_is_a_trap_a_thousand_times() {
    let (mut store, instance) = spawn(
        &engine_with_stack(64 << 10),
        r#"(module
            (func $down (export "down") (result i64)
                (i64.add (call $down) (i64.const 1)))
            (func (export "fine") (result i32) (i32.const 5)))"#,
    );
    let down = instance.get_typed_func::<(), i64>(&mut store, "down").unwrap();
    let fine = instance.get_typed_func::<(), i32>(&mut store, "fine").unwrap();
    for _ in 0..1_000 {
        let error = down.call(&mut store, ()).unwrap_err();
        assert_eq!(trap_code(&error), TrapCode::StackOverflow);
        assert_eq!(fine.call(&mut store, ()).unwrap(), 5);
    }
}

#[test]
fn the_stack_may_end_at_any_instruction() {
    // Frames of different sizes end the stack in prologues, in calls, in stubs of
    // imports and services, and in the thunks behind them.
    for local_count in 0..24 {
        let locals = " i64".repeat(local_count);
        let set: String = (0..local_count)
            .map(|i| format!("(local.set {} (i64.load (i32.const {})))", i + 1, 8 * i))
            .collect();
        let sum: String = (0..local_count)
            .map(|i| format!("(i64.store (i32.const {}) (local.get {}))", 8 * i, i + 1))
            .collect();
        let many = format!("(call $many (i32.const 1)) {}", "(drop)".repeat(10));
        for what in ["(call $host)", "(drop (memory.grow (i32.const 0)))", &many, ""] {
            let wat = format!(
                r#"(module (import "host" "f" (func $host)) (memory 1)
                    (func $many (param i32) (result i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)
                        (local.get 0) (local.get 0) (local.get 0) (local.get 0) (local.get 0)
                        (local.get 0) (local.get 0) (local.get 0) (local.get 0) (local.get 0))
                    (func $down (export "down") (param i32) (local{locals})
                        {set} {what} (call $down (i32.const 1)) {sum}))"#
            );
            let engine = engine_with_stack(16 << 10);
            let (mut store, instance) = link(&engine, 0u32, &wat, |linker| {
                linker
                    .func_wrap("host", "f", |mut caller: Caller<'_, u32>| *caller.data_mut() += 1)
                    .unwrap();
            });
            let down = instance.get_typed_func::<i32, ()>(&mut store, "down").unwrap();
            for _ in 0..3 {
                let error = down.call(&mut store, 1).unwrap_err();
                assert_eq!(trap_code(&error), TrapCode::StackOverflow, "{local_count}: {what}");
            }
        }
    }
}

#[test]
fn huge_frames_do_not_step_over_the_guard() {
    // Values that are live across the recursive call: frames of 1 KiB to 1 MiB,
    // which is far more than the guard.
    for (ty, count, size) in
        [("i64", 128, 8), ("i64", 3_000, 8), ("v128", 1_000, 16), ("v128", 6_000, 16)]
    {
        let locals = format!(" {ty}").repeat(count);
        let each = |f: &dyn Fn(usize) -> String| (0..count).map(f).collect::<String>();
        let load = each(&|i| format!("(local.set {} ({ty}.load (i32.const {})))", i + 1, i * size));
        let save =
            each(&|i| format!("({ty}.store (i32.const {}) (local.get {}))", i * size, i + 1));
        let wat = format!(
            r#"(module (memory 2)
                (func $down (export "down") (param i32) (local{locals})
                    {load}
                    (if (local.get 0)
                        (then (call $down (i32.sub (local.get 0) (i32.const 1)))))
                    {save}))"#
        );
        let (mut store, instance) = spawn(&engine_with_stack(256 << 10), &wat);
        let down = instance.get_typed_func::<u32, ()>(&mut store, "down").unwrap();
        down.call(&mut store, 1).unwrap();
        for _ in 0..3 {
            let error = down.call(&mut store, 1_000_000).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::StackOverflow, "{count} {ty}");
        }
        down.call(&mut store, 1).unwrap();
    }
}

#[test]
fn one_frame_larger_than_the_whole_stack_is_a_stack_overflow() {
    let count = 6_000;
    let locals = " v128".repeat(count);
    let load: String =
        (0..count).map(|i| format!("(local.set {i} (v128.load (i32.const {})))", 16 * i)).collect();
    let save: String = (0..count)
        .map(|i| format!("(v128.store (i32.const {}) (local.get {i}))", 16 * i))
        .collect();
    let wat = format!(
        r#"(module (import "host" "f" (func $host)) (memory 2)
            (func (export "run") (local{locals}) {load} (call $host) {save}))"#
    );
    let (mut store, instance) = link(&engine_with_stack(16 << 10), (), &wat, |linker| {
        linker.func_wrap("host", "f", || ()).unwrap();
    });
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    for _ in 0..3 {
        let error = run.call(&mut store, ()).unwrap_err();
        assert_eq!(trap_code(&error), TrapCode::StackOverflow);
    }
}

#[test]
fn recursion_through_the_host_ends_in_a_trap_as_well() {
    // Both stacks grow here, and either may end first.
    for stack in [64 << 10, 64 << 20] {
        let (mut store, instance) = link(
            &engine_with_stack(stack),
            (),
            r#"(module (import "host" "again" (func $again))
                (func (export "down") (call $again)))"#,
            |linker| {
                linker
                    .func_wrap("host", "again", |mut caller: Caller<'_, ()>| {
                        let down = caller.get_export("down").unwrap().into_func().unwrap();
                        down.call(&mut caller, &[], &mut [])
                    })
                    .unwrap();
            },
        );
        let down = instance.get_typed_func::<(), ()>(&mut store, "down").unwrap();
        for _ in 0..3 {
            let error = down.call(&mut store, ()).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::StackOverflow);
        }
    }
}
