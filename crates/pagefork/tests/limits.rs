//! Limits of stores and engines.

use std::sync::atomic::{AtomicBool, Ordering};

use pagefork::{
    Caller, Config, Engine, Error, ErrorKind, Instance, InstancePre, InterruptHandle, LimitError,
    Linker, Memory, MemoryType, Module, RefType, Result, Store, StoreLimits, Table, TableType,
    Trap, TrapCode, Val,
};

#[test]
fn growth_beyond_a_limit_answers_minus_one() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    store.set_limits(StoreLimits::new().memory_size(3 << 16).table_elements(5));
    let module = Module::new(
        store.engine(),
        r#"(module (memory 1) (table 2 externref)
            (func (export "m") (param i32) (result i32) (memory.grow (local.get 0)))
            (func (export "t") (param i32) (result i32)
                (table.grow (ref.null extern) (local.get 0))))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let m = instance.get_typed_func::<i32, i32>(&mut store, "m")?;
    let t = instance.get_typed_func::<i32, i32>(&mut store, "t")?;
    let mut m = |delta| m.call(&mut store, delta).unwrap();
    assert_eq!([m(3), m(-1), m(2), m(0), m(1)], [-1, -1, 1, 3, -1]);
    let mut t = |delta| t.call(&mut store, delta).unwrap();
    assert_eq!([t(4), t(-1), t(3), t(0), t(1)], [-1, -1, 2, 5, -1]);
    Ok(())
}

#[test]
fn what_begins_beyond_a_limit_is_an_error() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, "(module (memory 2) (table 7 funcref))")?;
    let unlimited = StoreLimits::new();
    for (limits, fits) in [
        (unlimited, true),
        (unlimited.memory_size(2 << 16), true),
        (unlimited.memory_size((2 << 16) - 1), false),
        (unlimited.table_elements(7), true),
        (unlimited.table_elements(6), false),
        (unlimited.memories(0), false),
        (unlimited.tables(0), false),
        (unlimited.instances(0), false),
        (unlimited.instances(1).memories(1).tables(1), true),
    ] {
        let mut store = Store::new(&engine, ());
        store.set_limits(limits);
        let result = Instance::new(&mut store, &module, &[]);
        assert_eq!(result.is_ok(), fits, "{limits:?}");
        if let Err(error) = result {
            assert_eq!(error.kind(), ErrorKind::Limit);
            assert!(error.is::<LimitError>());
        }
        assert_eq!(pagefork::suspend::instance_count(&store), u32::from(fits));
    }
    let mut store = Store::new(&engine, ());
    store.set_limits(unlimited.instances(2));
    let ty = MemoryType::new(0, None);
    Memory::new(&mut store, ty)?;
    let ty = TableType::new(RefType::FUNCREF, 1, None);
    Table::new(&mut store, ty, Val::FuncRef(None))?;
    assert!(Table::new(&mut store, ty, Val::FuncRef(None)).is_err());
    Ok(())
}

#[test]
fn stack_and_tables_have_the_room_that_the_engine_gives() -> Result<()> {
    let depth = |stack_size: u64| -> Result<u32> {
        let engine = Engine::new(Config::new().stack_size(stack_size))?;
        let mut store = Store::new(&engine, ());
        let module = Module::new(
            &engine,
            r#"(module (global (export "depth") (mut i32) (i32.const 0))
                (func $f (export "f") (global.set 0 (i32.add (global.get 0) (i32.const 1)))
                    (call $f) (call $f)))"#,
        )?;
        let instance = Instance::new(&mut store, &module, &[])?;
        let f = instance.get_typed_func::<(), ()>(&mut store, "f")?;
        f.call(&mut store, ()).unwrap_err();
        let depth = instance.get_global(&mut store, "depth").unwrap().get(&mut store);
        Ok(depth.i32().unwrap() as u32)
    };
    let (small, large) = (depth(64 << 10)?, depth(64 << 20)?);
    assert!(large / small > 900, "{small} {large}");

    let engine = Engine::new(Config::new().table_elements(10))?;
    let mut store = Store::new(&engine, ());
    let ty = TableType::new(RefType::FUNCREF, 1, None);
    let table = Table::new(&mut store, ty, Val::FuncRef(None))?;
    table.grow(&mut store, 9, Val::FuncRef(None))?;
    assert!(table.grow(&mut store, 1, Val::FuncRef(None)).is_err());
    Ok(())
}

#[test]
fn proposals_can_be_switched_off() -> Result<()> {
    let cases: [(fn(&mut Config, bool) -> &mut Config, &str); 6] = [
        (Config::wasm_simd, "(module (func (drop (v128.const i64x2 0 0))))"),
        (Config::wasm_multi_value, "(module (func (result i32 i32) (i32.const 0) (i32.const 0)))"),
        (Config::wasm_sign_extension, "(module (func (drop (i32.extend8_s (i32.const 0)))))"),
        (
            Config::wasm_saturating_float_to_int,
            "(module (func (drop (i32.trunc_sat_f32_s (f32.const 0)))))",
        ),
        (Config::wasm_reference_types, "(module (table 1 externref))"),
        (Config::wasm_mutable_global, r#"(module (global (export "g") (mut i32) (i32.const 0)))"#),
    ];
    for (switch, wat) in cases {
        Module::new(&Engine::default(), wat)?;
        let engine = Engine::new(switch(&mut Config::new(), false))?;
        let error = Module::new(&engine, wat).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Compile, "{error}");
    }
    Ok(())
}

#[test]
fn the_limit_of_all_memories_counts_those_of_guests_and_of_the_host() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    store.set_limits(StoreLimits::new().memory_total(10 << 16));
    let text = r#"(module (memory (export "memory") 1 50) (memory $second 2 50)
        (func (export "first") (param i32) (result i32) (memory.grow (local.get 0)))
        (func (export "second") (param i32) (result i32) (memory.grow $second (local.get 0))))"#;
    let module = Module::new(&engine, text)?;
    let requested = |error: Error| {
        let error = error.downcast_ref::<LimitError>().expect("a limit").clone();
        assert_eq!((error.what, error.limit), (LimitError::MEMORY_TOTAL, 10 << 16));
        error.requested >> 16
    };
    // Three pages.
    let instance = Instance::new(&mut store, &module, &[])?;
    let first = instance.get_typed_func::<i32, i32>(&mut store, "first")?;
    let second = instance.get_typed_func::<i32, i32>(&mut store, "second")?;
    assert_eq!(first.call(&mut store, 8)?, -1);
    assert_eq!(second.call(&mut store, 8)?, -1);
    assert_eq!(second.call(&mut store, 2)?, 2);
    // Five, and two of the host.
    let own = Memory::new(&mut store, MemoryType::new(2, Some(50)))?;
    let error = Memory::new(&mut store, MemoryType::new(4, Some(50))).unwrap_err();
    assert_eq!(requested(error), 11);
    assert_eq!(requested(own.grow(&mut store, 4).unwrap_err()), 11);
    assert_eq!(first.call(&mut store, 4)?, -1);
    // Seven, and three of another instance.
    Instance::new(&mut store, &module, &[])?;
    assert_eq!(requested(Instance::new(&mut store, &module, &[]).unwrap_err()), 13);
    assert_eq!(requested(own.grow(&mut store, 1).unwrap_err()), 11);
    assert_eq!([first.call(&mut store, 1)?, first.call(&mut store, 0)?], [-1, 1]);
    assert_eq!(pagefork::suspend::instance_count(&store), 3);
    // What is imported is not counted again.
    let importer = Module::new(&engine, r#"(module (import "" "" (memory 1)))"#)?;
    Instance::new(&mut store, &importer, &[own.into()])?;
    // A reset gives back what was added.
    store.reset(())?;
    assert_eq!(first.call(&mut store, 3)?, -1);
    assert_eq!(first.call(&mut store, 2)?, 1);
    Ok(())
}

/// Starts with two memories of a page each; its start function does what the host says.
fn with_start(engine: &Engine, body: &str) -> Result<InstancePre<()>> {
    let text = format!(
        r#"(module (memory 1 50) (memory $second 1 50)
            (global (export "grown") (mut i32) (i32.const 0))
            (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
            (func $start {body})
            (start $start))"#
    );
    Linker::new(engine).instantiate_pre(&Module::new(engine, &text)?)
}

/// Whether there is a store to be taken by the next spawn.
fn is_warm(engine: &Engine) -> bool {
    engine.pool_counters().parked > 0
}

#[test]
fn a_start_function_that_loops_is_interrupted() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module
        (import "" "loops" (func $loops (result i32)))
        (func $start (loop $again (br_if $again (call $loops))))
        (start $start))"#;
    let mut linker = Linker::<bool>::new(&engine);
    linker.func_wrap("", "loops", |caller: Caller<'_, bool>| i32::from(*caller.data()))?;
    let pre = linker.instantiate_pre(&Module::new(&engine, text)?)?;
    for round in 0..4 {
        assert_eq!(is_warm(&engine), round > 0);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watch = |handle: InterruptHandle| {
                let ended = &ended;
                // What comes before the function starts is forgotten.
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        handle.interrupt();
                        std::thread::yield_now();
                    }
                });
            };
            let result = pre.spawn_limited(0, true, StoreLimits::new(), watch);
            ended.store(true, Ordering::Relaxed);
            let error = result.map(drop).unwrap_err();
            let code = error.downcast_ref::<Trap>().map(Trap::code);
            assert_eq!(code, Some(TrapCode::Interrupt), "{round}: {error:?}");
        });
        // What is spawned next is not interrupted.
        drop(pre.spawn(false)?);
    }
    Ok(())
}

#[test]
fn a_start_function_that_grows_memory_meets_the_limit() -> Result<()> {
    let engine = Engine::default();
    let grow = "(global.set 0 (memory.grow (i32.const 7)))";
    let pre = with_start(&engine, grow)?;
    let unlimited = StoreLimits::new();
    for (limits, grown) in [
        (unlimited, 1),
        (unlimited.memory_size(8 << 16), 1),
        (unlimited.memory_size(7 << 16), -1),
        (unlimited.memory_total(9 << 16), 1),
        (unlimited.memory_total(8 << 16), -1),
    ] {
        engine.purge_pool();
        for warm in [false, true, true] {
            assert_eq!(is_warm(&engine), warm);
            let (mut store, instance) = pre.spawn_limited(0, (), limits, |_| ())?;
            let found = instance.get_global(&mut store, "grown").unwrap().get(&mut store);
            assert_eq!(found.i32(), Some(grown), "{limits:?}, warm: {warm}");
            assert_eq!(store.limits(), limits);
        }
        // The limits went with the store that had them.
        let (mut store, instance) = pre.spawn(())?;
        let found = instance.get_global(&mut store, "grown").unwrap().get(&mut store);
        assert_eq!((found.i32(), store.limits()), (Some(1), unlimited));
    }
    Ok(())
}

#[test]
fn what_starts_with_more_than_the_limits_is_refused_cold_and_warm() -> Result<()> {
    let unlimited = StoreLimits::new();
    for (limits, fits) in [
        (unlimited.memory_size(1 << 16), true),
        (unlimited.memory_size((1 << 16) - 1), false),
        (unlimited.memory_total(2 << 16), true),
        (unlimited.memory_total((2 << 16) - 1), false),
        (unlimited.memories(2), true),
        (unlimited.memories(1), false),
        (unlimited.instances(0), false),
    ] {
        let engine = Engine::default();
        let pre = with_start(&engine, "")?;
        for warm in [false, true] {
            assert_eq!(is_warm(&engine), warm);
            let result = pre.spawn_limited(0, (), limits, |_| ());
            assert_eq!(result.is_ok(), fits, "{limits:?}, warm: {warm}");
            if let Err(error) = result {
                assert!(error.is::<LimitError>(), "{limits:?}, warm: {warm}: {error:?}");
                assert_eq!(is_warm(&engine), warm, "{limits:?}");
            }
            let (mut store, instance) = pre.spawn(())?;
            let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow")?;
            assert_eq!(grow.call(&mut store, 20)?, 1);
        }
    }
    Ok(())
}
