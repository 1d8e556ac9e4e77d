//! Commands and reactors: what is called by itself, and what is not.

use pagefork::{Engine, Instance, Linker, Module, Store};
use pagefork_wasi::{Exit, InitializeError, ProgramKind, WasiCtx, add_to_linker, initialize};

fn instantiate(wat: &str) -> (Store<WasiCtx>, Instance) {
    let engine = Engine::default();
    let module = Module::new(&engine, wat).unwrap();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let mut store = Store::new(&engine, WasiCtx::builder().build().unwrap());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (store, instance)
}

/// How often `_start` (low digit) and `_initialize` (high digit) were called.
fn calls(store: &mut Store<WasiCtx>, instance: &Instance) -> i32 {
    instance.get_typed_func::<(), i32>(&mut *store, "calls").unwrap().call(store, ()).unwrap()
}

fn counting(exports: &str) -> String {
    format!(
        r#"(module
            (global $calls (mut i32) (i32.const 0))
            (func $start (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
            (func $initialize (global.set $calls (i32.add (global.get $calls) (i32.const 10))))
            (func (export "calls") (result i32) (global.get $calls))
            {exports})"#
    )
}

#[test]
fn a_reactor_is_initialized_once() {
    let (mut store, instance) =
        instantiate(&counting(r#"(export "_initialize" (func $initialize))"#));
    assert_eq!(calls(&mut store, &instance), 0);
    assert_eq!(initialize(&mut store, &instance).unwrap(), ProgramKind::Reactor);
    assert_eq!(calls(&mut store, &instance), 10);
    // It keeps its state between calls.
    assert_eq!(calls(&mut store, &instance), 10);
}

#[test]
fn a_command_is_not_started() {
    let (mut store, instance) = instantiate(&counting(r#"(export "_start" (func $start))"#));
    assert_eq!(initialize(&mut store, &instance).unwrap(), ProgramKind::Command);
    assert_eq!(calls(&mut store, &instance), 0);
    instance.get_typed_func::<(), ()>(&mut store, "_start").unwrap().call(&mut store, ()).unwrap();
    assert_eq!(calls(&mut store, &instance), 1);
}

#[test]
fn a_module_with_neither_is_a_reactor_that_needs_nothing() {
    let (mut store, instance) = instantiate(&counting(""));
    assert_eq!(initialize(&mut store, &instance).unwrap(), ProgramKind::Reactor);
    assert_eq!(calls(&mut store, &instance), 0);
}

#[test]
fn a_module_with_both_is_refused_before_anything_is_called() {
    let (mut store, instance) = instantiate(&counting(
        r#"(export "_start" (func $start)) (export "_initialize" (func $initialize))"#,
    ));
    let error = initialize(&mut store, &instance).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&InitializeError::Both));
    assert_eq!(calls(&mut store, &instance), 0);
}

#[test]
fn what_is_no_beginning_is_refused_by_name() {
    for (name, export) in [
        ("_start", r#"(func (export "_start") (param i32))"#),
        ("_start", r#"(global (export "_start") i32 (i32.const 0))"#),
        ("_initialize", r#"(func (export "_initialize") (result i32) (i32.const 0))"#),
        ("_initialize", r#"(memory (export "_initialize") 1)"#),
    ] {
        let (mut store, instance) = instantiate(&counting(export));
        let error = initialize(&mut store, &instance).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&InitializeError::NotAFunction { name }), "{export}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_reactor_may_exit_while_it_is_initialized() {
    let (mut store, instance) = instantiate(
        r#"(module
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 1)
            (func (export "_initialize") (call $exit (i32.const 7))))"#,
    );
    let error = initialize(&mut store, &instance).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Exit(7)));
}
