//! How imports are matched, and what a failed instantiation leaves behind.

use pagefork::{
    Engine, ErrorKind, Extern, Func, Global, GlobalType, Instance, LinkError, Linker, Memory,
    MemoryType, Module, RefType, Result, Store, Table, TableType, Trap, TrapCode, Val, ValType,
};

fn store() -> Store<()> {
    Store::new(&Engine::default(), ())
}

/// Whether a module with this import can be given this.
fn matches(store: &mut Store<()>, import: &str, given: impl Into<Extern>) -> bool {
    let module = Module::new(store.engine(), format!(r#"(module (import "m" "n" {import}))"#));
    match Instance::new(&mut *store, &module.unwrap(), &[given.into()]) {
        Ok(_) => true,
        Err(error) => {
            let Some(LinkError::IncompatibleImport { module, name, .. }) = error.downcast_ref()
            else {
                panic!("{error:?}")
            };
            assert_eq!((module.as_str(), name.as_str()), ("m", "n"));
            assert!(error.to_string().starts_with("incompatible import type"));
            false
        }
    }
}

#[test]
fn memories_match_by_their_present_size_and_maximum() -> Result<()> {
    let mut store = store();
    let bounded = Memory::new(&mut store, MemoryType::new(1, Some(3)))?;
    assert!(matches(&mut store, "(memory 1)", bounded));
    assert!(matches(&mut store, "(memory 0 3)", bounded));
    assert!(!matches(&mut store, "(memory 2)", bounded));
    assert!(!matches(&mut store, "(memory 1 2)", bounded));
    bounded.grow(&mut store, 1)?;
    assert!(matches(&mut store, "(memory 2 4)", bounded));
    let unbounded = Memory::new(&mut store, MemoryType::new(1, None))?;
    assert!(!matches(&mut store, "(memory 1 65536)", unbounded));
    assert!(!matches(&mut store, "(func)", unbounded));
    for (minimum, maximum) in [(2, Some(1)), (65537, None), (0, Some(65537)), (u32::MAX, None)] {
        assert!(Memory::new(&mut store, MemoryType::new(minimum, maximum)).is_err());
    }
    Ok(())
}

#[test]
fn tables_globals_and_functions_match_by_type() -> Result<()> {
    let mut store = store();
    let ty = TableType::new(RefType::EXTERNREF, 1, Some(2));
    let table = Table::new(&mut store, ty, Val::ExternRef(None))?;
    assert!(matches(&mut store, "(table 1 externref)", table));
    assert!(!matches(&mut store, "(table 1 funcref)", table));
    assert!(!matches(&mut store, "(table 1 1 externref)", table));
    table.grow(&mut store, 1, Val::ExternRef(None))?;
    assert!(matches(&mut store, "(table 2 2 externref)", table));

    let ty = GlobalType { content: ValType::I32, mutable: true };
    let global = Global::new(&mut store, ty, Val::I32(0))?;
    assert!(matches(&mut store, "(global (mut i32))", global));
    assert!(!matches(&mut store, "(global i32)", global));
    assert!(!matches(&mut store, "(global (mut i64))", global));

    let function = Func::wrap(&mut store, |_: i32| 0f32);
    assert!(matches(&mut store, "(func (param i32) (result f32))", function));
    assert!(!matches(&mut store, "(func (param i32))", function));
    assert!(!matches(&mut store, "(global i32)", function));
    Ok(())
}

#[test]
fn errors_of_linking_name_both_types() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let module =
        Module::new(store.engine(), r#"(module (import "a" "b" (func (param i32 f64))))"#)?;
    let error = linker.instantiate(&mut store, &module).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Link);
    assert_eq!(
        error.to_string(),
        r#"unknown import: "a" "b" is not defined; a func (i32, f64) -> () is needed"#
    );
    linker.func_wrap("a", "b", |_: i64| 1i32)?;
    let error = linker.instantiate(&mut store, &module).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"incompatible import type for "a" "b": expected func (i32, f64) -> (), found func (i64) -> (i32)"#
    );
    let error = linker.func_wrap("a", "b", || ()).err().unwrap();
    assert!(matches!(error.downcast_ref(), Some(LinkError::AlreadyDefined { .. })));
    linker.allow_shadowing(true).func_wrap("a", "b", |_: i32, _: f64| ())?;
    linker.instantiate(&mut store, &module)?;
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(LinkError::ImportCount { expected: 1, found: 0 })));
    Ok(())
}

#[test]
fn unknown_functions_can_be_made_to_trap_and_nothing_else() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let text = r#"(module (import "a" "b" (func $f (param i32) (result i64)))
        (import "a" "known" (func $known (result i32)))
        (func (export "run") (drop (call $f (i32.const 1))))
        (func (export "known") (result i32) (call $known)))"#;
    let module = Module::new(store.engine(), text)?;
    linker.func_wrap("a", "known", || 7)?;
    linker.define_unknown_imports_as_traps(&module)?;
    // Once more changes nothing.
    linker.define_unknown_imports_as_traps(&module)?;
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    let error = run.call(&mut store, ()).unwrap_err();
    let Some(LinkError::UndefinedFunction { module, name }) = error.downcast_ref() else {
        panic!("{error:?}")
    };
    assert_eq!((module.as_str(), name.as_str()), ("a", "b"));
    assert!(error.to_string().contains(r#""a" "b" was called"#), "{error}");
    assert_eq!(error.backtrace().map(|trace| trace.frames().len()), Some(1));
    let known = instance.get_typed_func::<(), i32>(&mut store, "known")?;
    assert_eq!(known.call(&mut store, ())?, 7, "the instance goes on, and knows what is defined");

    for import in ["(memory 1)", "(table 1 funcref)", "(global i32)"] {
        let text = format!(r#"(module (import "a" "other" {import}))"#);
        let module = Module::new(store.engine(), text)?;
        linker.define_unknown_imports_as_traps(&module)?;
        let error = linker.instantiate(&mut store, &module).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(LinkError::UnknownImport { .. })), "{error}");
    }
    Ok(())
}

#[test]
fn imports_of_imports_are_the_same_thing() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let a = r#"(module (memory (export "m") 1) (table (export "t") 1 funcref)
        (global (export "g") (mut i32) (i32.const 1)) (func (export "f") (result i32) (global.get 0)))"#;
    let b = r#"(module (import "a" "m" (memory 1)) (import "a" "t" (table 1 funcref))
        (import "a" "g" (global (mut i32))) (import "a" "f" (func (result i32)))
        (export "m" (memory 0)) (export "t" (table 0)) (export "g" (global 0)) (export "f" (func 0)))"#;
    let c = r#"(module (import "b" "m" (memory 1)) (import "b" "t" (table 1 funcref))
        (import "b" "g" (global $g (mut i32))) (import "b" "f" (func $f (result i32)))
        (func (export "run") (result i32)
            (global.set $g (i32.const 5)) (i32.store (i32.const 4) (i32.const 6))
            (drop (memory.grow (i32.const 1))) (call $f)))"#;
    for (name, wat) in [("a", a), ("b", b), ("c", c)] {
        let module = Module::new(store.engine(), wat)?;
        linker.module(&mut store, name, &module)?;
    }
    let run = linker.get(&mut store, "c", "run").unwrap().into_func().unwrap();
    assert_eq!(run.typed::<(), i32>(&store)?.call(&mut store, ())?, 5);
    let m = linker.get(&mut store, "a", "m").unwrap().into_memory().unwrap();
    assert_eq!((m.size(&store), m.data(&store)[4]), (2, 6));
    Ok(())
}

#[test]
fn a_failed_instantiation_leaves_what_it_wrote() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let host = Module::new(
        store.engine(),
        r#"(module (memory (export "m") 1) (table (export "t") 4 funcref)
            (func (export "call") (param i32) (result i32)
                (call_indirect (result i32) (local.get 0))))"#,
    )?;
    linker.module(&mut store, "h", &host)?;
    let get = |store: &mut Store<()>, name| linker.get(store, "h", name).unwrap();
    let call = get(&mut store, "call").into_func().unwrap().typed::<i32, i32>(&store)?;
    let memory = get(&mut store, "m").into_memory().unwrap();

    // The first segment is applied, the second does not fit.
    let elements = Module::new(
        store.engine(),
        r#"(module (import "h" "t" (table 4 funcref)) (memory 1)
            (elem (i32.const 1) $f) (elem (i32.const 4) $f)
            (func $f (result i32) (i32.const 77)))"#,
    )?;
    let error = linker.instantiate(&mut store, &elements).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::TableOutOfBounds);
    assert_eq!(call.call(&mut store, 1)?, 77);

    let data = Module::new(
        store.engine(),
        r#"(module (import "h" "m" (memory 1))
            (data (i32.const 7) "abc") (data (i32.const 65535) "de"))"#,
    )?;
    let error = linker.instantiate(&mut store, &data).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::MemoryOutOfBounds);
    assert_eq!((&memory.data(&store)[7..10], memory.data(&store)[65535]), (&b"abc"[..], 0));

    let start = Module::new(
        store.engine(),
        r#"(module (import "h" "t" (table 4 funcref)) (memory 1)
            (elem declare func $f)
            (func $f (result i32) (i32.load (i32.const 0)))
            (func $start (i32.store (i32.const 0) (i32.const 78))
                (table.set (i32.const 2) (ref.func $f)) (unreachable))
            (start $start))"#,
    )?;
    let error = linker.instantiate(&mut store, &start).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Unreachable);
    assert_eq!(call.call(&mut store, 2)?, 78);
    Ok(())
}

#[test]
fn a_failed_instantiation_that_nobody_saw_is_gone() -> Result<()> {
    let mut store = store();
    let module = Module::new(
        store.engine(),
        r#"(module (memory (export "m") 1) (data (i32.const 65536) "x"))"#,
    )?;
    let before = pagefork::suspend::instance_count(&store);
    for _ in 0..3 {
        assert!(Instance::new(&mut store, &module, &[]).unwrap_err().is::<Trap>());
    }
    assert_eq!(pagefork::suspend::instance_count(&store), before);
    let module = Module::new(store.engine(), r#"(module (func (export "f")))"#)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    instance.get_typed_func::<(), ()>(&mut store, "f")?.call(&mut store, ())
}

#[test]
fn initialisers_see_imported_globals() -> Result<()> {
    let mut store = store();
    let module = Module::new(
        store.engine(),
        r#"(module (import "" "" (global $at i32)) (memory (export "m") 1)
            (table (export "t") 9 funcref)
            (global (export "g") i32 (global.get $at))
            (func $f (result i32) (global.get $at)) (elem (global.get $at) $f)
            (data (global.get $at) "here"))"#,
    )?;
    for at in [3, 8, 3] {
        let ty = GlobalType { content: ValType::I32, mutable: false };
        let global = Global::new(&mut store, ty, Val::I32(at))?;
        let instance = Instance::new(&mut store, &module, &[global.into()])?;
        let memory = instance.get_memory(&mut store, "m").unwrap();
        let data = memory.data(&store);
        assert_eq!(&data[at as usize..][..4], b"here");
        assert_eq!(data.iter().filter(|byte| **byte != 0).count(), 4);
        let g = instance.get_global(&mut store, "g").unwrap();
        assert_eq!(g.get(&mut store).i32(), Some(at));
        let table = instance.get_table(&mut store, "t").unwrap();
        let Some(Val::FuncRef(Some(f))) = table.get(&mut store, at as u64) else { panic!() };
        assert_eq!(f.typed::<(), i32>(&store)?.call(&mut store, ())?, at);
    }
    Ok(())
}
