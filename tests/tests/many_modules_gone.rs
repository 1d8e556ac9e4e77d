//! Of a module that is gone nothing stays: an engine that loads one after the other
//! becomes no larger.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefork::{
    Engine, Func, FuncType, Global, GlobalType, Instance, Linker, Module, Result, Store, Table,
    TableType, Tag, Val, ValType,
};

/// A module of its own for each number: types, names, contents, tables, tags.
fn text(number: u32, types: u32) -> String {
    let results = |seed: u32| {
        let bits = (0..20).map(|bit| if seed >> bit & 1 == 0 { "i32 " } else { "f64 " });
        format!("(param {})", bits.collect::<String>())
    };
    let types: String = (0..types)
        .map(|i| {
            let ty = results(number * types + i);
            format!("(type $t{i} (func {ty}))(type $u{i} (func (param (ref $t{i}))))")
        })
        .collect();
    format!(
        r#"(module $m{number}
          {types}
          (type $self (func (param (ref null $self) i64)))
          (import "host" "call" (func (param i32)))
          (memory (export "memory") 1)
          (table 4 (ref null $u0))
          (tag (type $t0))
          (data (i32.const 16) "{number:08}")
          (func $function{number} (export "get") (result i32) (i32.const {number})))"#
    )
}

/// Loads a module, and runs it in each way that there is.
fn load(engine: &Engine, number: u32, types: u32) -> Result<()> {
    let module = Module::new(engine, text(number, types))?;
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "call", |_: i32| ())?;
    let run = |store: &mut Store<()>, instance: Instance| -> Result<()> {
        let get = instance.get_typed_func::<(), i32>(&mut *store, "get")?;
        assert_eq!(get.call(store, ())?, number as i32);
        Ok(())
    };
    let mut store = Store::new(engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    run(&mut store, instance)?;
    drop(store);
    let pre = linker.instantiate_pre(&module)?;
    for _ in 0..2 {
        let (mut store, instance) = pre.spawn(())?;
        run(&mut store, instance)?;
    }
    Ok(())
}

/// Tests that look at what their process has take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("and this line");
    let number = line.split_whitespace().nth(1).expect("a number");
    number.parse().expect("in decimal")
}

fn count(path: &str) -> usize {
    match path {
        "/proc/self/maps" => fs::read_to_string(path).expect("Linux has it").lines().count(),
        _ => fs::read_dir(path).expect("Linux has it").count(),
    }
}

#[test]
fn ten_thousand_modules_leave_nothing() -> Result<()> {
    let _turn = alone();
    let engine = Engine::default();
    let own = || (count("/proc/self/maps"), count("/proc/self/fd"), resident_kib());
    // What is made once, and the heaps of the threads that compile.
    for number in 0..500 {
        load(&engine, number, 2)?;
    }
    let (maps, descriptors, resident) = own();
    for number in 500..10_000 {
        load(&engine, number, 2)?;
        if number % 1000 == 0 {
            assert_eq!(engine.type_count(), 0);
        }
    }
    assert_eq!(engine.type_count(), 0);
    let (maps_after, descriptors_after, resident_after) = own();
    assert!(maps_after < maps + 50, "{maps} maps became {maps_after}");
    assert!(descriptors_after < descriptors + 20, "{descriptors} became {descriptors_after}");
    // What stays of a module would be a kilobyte at least.
    assert!(resident_after < resident + (9500 << 10 >> 10), "{resident} became {resident_after}");
    Ok(())
}

#[test]
fn modules_of_many_types_give_them_back() -> Result<()> {
    let _turn = alone();
    let engine = Engine::default();
    let first = Module::new(&engine, text(0, 5000))?;
    // Two a number, one that names itself, one of the import.
    assert_eq!(engine.type_count(), 2 * 5000 + 2 + 1);
    let second = Module::new(&engine, text(0, 5000))?;
    let count = engine.type_count();
    assert_eq!(count, 2 * 5000 + 2 + 1, "equal types are there once");
    drop(first);
    assert_eq!(engine.type_count(), count);
    let third = Module::new(&engine, text(1, 5000))?;
    assert!(engine.type_count() > count);
    drop((second, third));
    assert_eq!(engine.type_count(), 0);
    Ok(())
}

#[test]
fn types_live_as_long_as_what_the_host_made_of_them() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let text = r#"(module
        (type $inner (func (param i32)))
        (func (export "f") (type $inner))
        (global (export "g") (ref null $inner) (ref.null $inner)))"#;
    let module = Module::new(&engine, text)?;
    let Some(pagefork::ExternType::Global(GlobalType { content, .. })) = module.get_export("g")
    else {
        panic!("it is exported")
    };
    assert_eq!(engine.type_count(), 1);
    let ValType::Ref(element) = content else { panic!("a reference") };
    let null = Val::default_for_ty(&content).expect("it may be null");
    let ty = FuncType { params: [content].into(), results: [].into() };
    let function = Func::new(&mut store, ty.clone(), |_, _, _| Ok(()));
    Tag::new(&mut store, ty)?;
    Global::new(&mut store, GlobalType { content, mutable: true }, null)?;
    Table::new(&mut store, TableType { element, minimum: 1, maximum: None, table64: false }, null)?;
    drop(module);
    // A module that comes later means the same by the same type.
    let text = r#"(module
        (type $inner (func (param i32)))
        (import "" "" (func (param (ref null $inner)))))"#;
    let module = Module::new(&engine, text)?;
    Instance::new(&mut store, &module, &[function.into()])?;
    drop((module, store));
    engine.purge_pool();
    assert_eq!(engine.type_count(), 0);
    Ok(())
}
