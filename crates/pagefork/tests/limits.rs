//! Limits of stores and engines.

use pagefork::{
    Config, Engine, ErrorKind, Instance, LimitError, Memory, MemoryType, Module, RefType, Result,
    Store, StoreLimits, Table, TableType, Val,
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
