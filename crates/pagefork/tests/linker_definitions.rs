//! Linkers: what is defined can be asked for, named twice, and made up where it is missing.

use pagefork::{
    Engine, Extern, ExternType, Func, FuncType, Instance, LimitError, LinkError, Linker, Memory,
    MemoryType, Module, RefType, Result, Store, StoreLimits, Table, TableType, UsageError, Val,
    ValType,
};

fn link_error(error: &pagefork::Error) -> &LinkError {
    error.downcast_ref().unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn an_alias_is_the_same_thing_under_another_name() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    linker.define(&store, "a", "memory", memory)?;
    linker.func_wrap("a", "seven", || 7)?;
    linker.alias("a", "memory", "b", "m")?.alias_module("a", "c")?;
    memory.write(&mut store, 5, &[9])?;
    for (module, name) in [("a", "memory"), ("b", "m"), ("c", "memory")] {
        let found = linker.get(&mut store, module, name)?.into_memory().unwrap();
        assert_eq!(found.data(&store)[5], 9, "{module} {name}");
    }
    let seven = linker.get(&mut store, "c", "seven")?.into_func().unwrap();
    assert_eq!(seven.typed::<(), i32>(&store)?.call(&mut store, ())?, 7);
    // What is defined later is no part of the alias.
    linker.func_wrap("a", "eight", || 8)?;
    assert!(linker.get(&mut store, "c", "eight").is_err());
    linker.alias_module("nothing", "d")?;
    Ok(())
}

#[test]
fn aliases_shadow_only_where_that_is_allowed_and_need_something_to_name() -> Result<()> {
    let engine = Engine::default();
    let mut linker = Linker::<()>::new(&engine);
    linker.func_wrap("a", "f", || ())?.func_wrap("b", "f", || 1)?;
    let error = linker.alias("a", "f", "b", "f").err().unwrap();
    assert!(matches!(link_error(&error), LinkError::AlreadyDefined { .. }));
    let error = linker.alias_module("a", "b").unwrap_err();
    assert!(matches!(link_error(&error), LinkError::AlreadyDefined { .. }));
    let error = linker.alias("a", "g", "c", "g").err().unwrap();
    assert!(matches!(link_error(&error), LinkError::NotDefined { .. }));
    assert_eq!(error.to_string(), r#"nothing is defined as "a" "g""#);
    linker.allow_shadowing(true).alias("a", "f", "b", "f")?;
    let mut store = Store::new(&engine, ());
    let ty = linker.get(&mut store, "b", "f")?.ty(&store);
    assert_eq!(ty, ExternType::Func(FuncType::default()));
    Ok(())
}

#[test]
fn definitions_are_found_by_names_and_by_imports_and_listed() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let text = r#"(module (import "a" "f" (func)) (import "a" "g" (func)))"#;
    let module = Module::new(&engine, text)?;
    linker.func_wrap("a", "f", || ())?;
    let found: Vec<bool> = module
        .imports()
        .map(|import| linker.get_by_import(&mut store, &import).is_some())
        .collect();
    assert_eq!(found, [true, false]);
    let error = linker.get(&mut store, "a", "g").unwrap_err();
    assert!(matches!(link_error(&error), LinkError::NotDefined { .. }));
    linker.alias("a", "f", "b", "f")?;
    let mut all: Vec<_> = linker.iter(&mut store).map(|(a, b, _)| format!("{a} {b}")).collect();
    all.sort();
    assert_eq!(all, ["a f", "b f"]);
    // Listing makes nothing new of the store: the functions are the same each time.
    let functions = |store: &mut Store<()>| -> Vec<Extern> {
        linker.iter(store).map(|(_, _, value)| value).collect()
    };
    assert_eq!(format!("{:?}", functions(&mut store)), format!("{:?}", functions(&mut store)));
    Ok(())
}

#[test]
#[should_panic(expected = "another engine's store")]
fn definitions_of_another_engine_cannot_be_listed() {
    let linker = Linker::<()>::new(&Engine::default());
    let mut store = Store::new(&Engine::default(), ());
    linker.iter(&mut store).for_each(drop);
}

const ALL_KINDS: &str = r#"
    (import "a" "f" (func $f (param i32) (result i32 f64 externref v128)))
    (import "a" "g" (global $g i64)) (import "a" "v" (global (mut funcref)))
    (import "a" "t" (table $t 2 4 externref)) (import "a" "m" (memory 1 2))
    (import "a" "e" (tag (param i32)))
    (import "a" "f" (func $same (param i32) (result i32 f64 externref v128)))
    (func (export "run") (result i64)
        (call $f (i32.const 5))
        (drop) (if (i32.eqz (ref.is_null)) (then (unreachable)))
        (drop) (drop)
        (i64.add (global.get $g) (i64.load (i32.const 65528)))
        (i64.extend_i32_u (table.size $t)) (i64.add))"#;

#[test]
fn imports_that_nothing_defines_can_be_made_up_of_zeros_and_nulls() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let module = Module::new(&engine, format!("(module {ALL_KINDS})"))?;
    linker.define_unknown_imports_as_default_values(&mut store, &module)?;
    // Once more changes nothing.
    linker.define_unknown_imports_as_default_values(&mut store, &module)?;
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<(), i64>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, ())?, 2);
    Ok(())
}

#[test]
fn what_is_defined_is_not_made_up() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    let text = r#"(module (import "a" "one" (func $one (result i32)))
        (import "a" "zero" (func $zero (result i32)))
        (func (export "run") (result i32) (i32.add (call $one) (call $zero))))"#;
    let module = Module::new(&engine, text)?;
    linker.func_wrap("a", "one", || 1)?;
    linker.define_unknown_imports_as_default_values(&mut store, &module)?;
    // Functions belong to no store, so instances can be spawned.
    let (mut store, instance) = linker.instantiate_pre(&module)?.spawn(())?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert_eq!(run.call(&mut store, ())?, 1);
    Ok(())
}

#[test]
fn nothing_is_made_up_for_references_that_must_not_be_null_and_beyond_limits() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    for import in
        ["(global (ref extern))", "(func (result i32 (ref func)))", "(table 1 (ref func))"]
    {
        let module = Module::new(&engine, format!(r#"(module (import "a" "b" {import}))"#))?;
        let mut linker = Linker::new(&engine);
        let error = linker.define_unknown_imports_as_default_values(&mut store, &module);
        let error = error.unwrap_err();
        assert!(matches!(link_error(&error), LinkError::NoDefault { .. }), "{import}: {error}");
    }
    store.set_limits(StoreLimits::new().memory_size(1));
    let module = Module::new(&engine, r#"(module (import "a" "m" (memory 1)))"#)?;
    let mut linker = Linker::new(&engine);
    let error = linker.define_unknown_imports_as_default_values(&mut store, &module).unwrap_err();
    assert!(error.is::<LimitError>(), "{error:?}");
    Ok(())
}

#[test]
fn tags_are_exports_like_all_others() -> Result<()> {
    let mut store = Store::<()>::default();
    let text = r#"(module (tag (export "tag") (param i32)) (func (export "f")))"#;
    let module = Module::new(store.engine(), text)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let tag = instance.get_tag(&mut store, "tag").unwrap();
    assert_eq!(tag.ty(&store), FuncType::new([ValType::I32], []));
    assert!(instance.get_tag(&mut store, "f").is_none());
    assert!(instance.get_tag(&mut store, "none").is_none());
    Ok(())
}

fn numbers(store: &mut Store<()>, table: &Table) -> Vec<Option<i32>> {
    (0..table.size(&*store))
        .map(|index| {
            let function = *table.get(&mut *store, index).unwrap().unwrap_funcref()?;
            let function = function.typed::<(), i32>(&*store).unwrap();
            Some(function.call(&mut *store, ()).unwrap())
        })
        .collect()
}

#[test]
fn ranges_of_tables_are_copied_within_and_between_them() -> Result<()> {
    let mut store = Store::<()>::default();
    let ty = TableType::new(RefType::FUNCREF, 4, None);
    let table = Table::new(&mut store, ty, Val::null_func_ref())?;
    for index in 0..3 {
        let function = Func::wrap(&mut store, move || index as i32);
        table.set(&mut store, index, function.into())?;
    }
    Table::copy(&mut store, &table, 1, &table, 0, 3)?;
    assert_eq!(numbers(&mut store, &table), [Some(0), Some(0), Some(1), Some(2)]);

    // A module's own functions are found by their place, which is another after the copy.
    let text = r#"(module (table (export "t") 3 funcref) (elem (i32.const 0) $a $b)
        (func $a (result i32) (i32.const 10)) (func $b (result i32) (i32.const 11)))"#;
    let module = Module::new(store.engine(), text)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let other = instance.get_table(&mut store, "t").unwrap();
    Table::copy(&mut store, &table, 2, &other, 1, 2)?;
    assert_eq!(numbers(&mut store, &table), [Some(0), Some(0), Some(11), None]);
    Table::copy(&mut store, &other, 1, &table, 1, 2)?;
    assert_eq!(numbers(&mut store, &other), [Some(10), Some(0), Some(11)]);
    Ok(())
}

#[test]
fn nothing_is_copied_that_does_not_fit() -> Result<()> {
    let mut store = Store::<()>::default();
    let ty = TableType::new(RefType::FUNCREF, 2, None);
    let one = Func::wrap(&mut store, || 1);
    let full = Table::new(&mut store, ty, one.into())?;
    let empty = Table::new(&mut store, ty, Val::null_func_ref())?;
    let cases = [(0, 1, 2), (1, 0, 2), (0, 3, 0), (3, 0, 0), (u64::MAX, 0, 1), (0, u64::MAX, 2)];
    for (destination, source, length) in cases {
        let error = Table::copy(&mut store, &empty, destination, &full, source, length);
        let error = error.unwrap_err();
        let outside = matches!(error.downcast_ref(), Some(UsageError::OutsideTable { .. }));
        assert!(outside, "{destination} {source} {length}: {error}");
    }
    Table::copy(&mut store, &empty, 2, &full, 2, 0)?;
    assert_eq!(numbers(&mut store, &empty), [None, None]);
    let externals = TableType::new(RefType::EXTERNREF, 2, None);
    let externals = Table::new(&mut store, externals, Val::null_extern_ref())?;
    let error = Table::copy(&mut store, &externals, 0, &full, 0, 1).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::TypeMismatch { .. })), "{error}");
    let error = Table::copy(&mut Store::<()>::default(), &empty, 0, &full, 0, 1).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. })), "{error}");
    Ok(())
}
