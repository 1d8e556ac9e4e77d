//! Closing and dropping give all address space back. One test, so that nothing
//! else in the process maps meanwhile.

use std::sync::Arc;

use pagefork::{
    Engine, Func, Global, GlobalType, Instance, Linker, Memory, MemoryType, Module, RefType,
    Result, Store, Table, TableType, Val, ValType,
};

/// Bytes mapped, and bytes mapped executable.
fn mapped() -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut sizes = (0, 0);
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let size = address(end) - address(start);
        // The heap of the C library comes and goes as it pleases.
        if !line.contains("[heap]") {
            sizes.0 += size;
        }
        if words.next().unwrap().contains('x') {
            sizes.1 += size;
        }
    }
    sizes
}

fn use_everything(engine: &Engine, close: bool) -> Result<()> {
    let shared = Arc::new(());
    let module = Module::new(
        engine,
        r#"(module (import "" "f" (func $f)) (import "" "m" (memory 1)) (table 5 100 funcref)
            (data (i32.const 5) "data") (elem (i32.const 1) $f)
            (func (export "run") (call $f) (drop (memory.grow (i32.const 1))))
            (func (export "trap") (unreachable)))"#,
    )?;
    let mut store = Store::new(engine, Arc::clone(&shared));
    let mut linker = Linker::new(engine);
    linker.func_wrap("", "f", || ())?;
    let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
    linker.define(&store, "", "m", memory)?;
    let ty = TableType::new(RefType::FUNCREF, 1, None);
    Table::new(&mut store, ty, Val::FuncRef(None))?;
    let ty = GlobalType { content: ValType::I32, mutable: true };
    Global::new(&mut store, ty, Val::I32(1))?;
    let instance = linker.instantiate(&mut store, &module)?;
    for name in ["run", "trap"] {
        // Either way: what was mapped goes.
        let _ = instance.get_typed_func::<(), ()>(&mut store, name)?.call(&mut store, ());
    }
    // Failures at different steps.
    let bad = Module::new(engine, r#"(module (memory 1) (data (i32.const -1) "x"))"#)?;
    assert!(Instance::new(&mut store, &bad, &[]).is_err());
    let wrong = Func::wrap(&mut store, |_: i32| ());
    assert!(Instance::new(&mut store, &module, &[wrong.into(), memory.into()]).is_err());
    if close {
        store.close();
    } else {
        drop(Arc::try_unwrap(store.into_data()));
    }
    assert_eq!(Arc::strong_count(&shared), 1);
    Ok(())
}

/// Runs the test again in a process whose threads share one heap: else a thread
/// of the compiler that starts late maps a heap of its own while we count.
fn in_quiet_process() -> bool {
    const MARK: &str = "PAGEFORK_QUIET_PROCESS";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .env(MARK, "1")
        .env("MALLOC_ARENA_MAX", "1")
        .env("RAYON_NUM_THREADS", "1")
        .status()
        .unwrap();
    assert!(status.success());
    false
}

#[test]
fn dropped_and_closed_stores_leave_nothing_mapped() -> Result<()> {
    if !in_quiet_process() {
        return Ok(());
    }
    let engine = Engine::default();
    for i in 0..3 {
        use_everything(&engine, i == 0)?;
    }
    let before = mapped();
    for i in 0..50 {
        use_everything(&engine, i % 2 == 0)?;
    }
    let after = mapped();
    // A slot is at least 8 GiB, or 2 MiB where there is no memory.
    assert!(after.0 < before.0 + (1 << 20), "{before:?} {after:?}");
    assert_eq!(after.1, before.1);

    // Threads give their signal stacks back.
    let before = mapped();
    for _ in 0..50 {
        let engine = engine.clone();
        std::thread::spawn(move || use_everything(&engine, true)).join().unwrap()?;
    }
    let after = mapped();
    // The C library keeps a few stacks and heaps of threads.
    assert!(after.0 < before.0 + (160 << 20), "{before:?} {after:?}");
    let signal_stacks = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(signal_stacks.lines().count() < 400, "{signal_stacks}");

    // Code stays as long as an instance needs it, though the module is dropped.
    let module =
        Module::new(&engine, r#"(module (func (export "f") (result i32) (i32.const 3)))"#)?;
    let mut store = Store::new(&engine, ());
    let f = Instance::new(&mut store, &module, &[])?;
    drop(module);
    let f = f.get_typed_func::<(), i32>(&mut store, "f")?;
    assert_eq!(f.call(&mut store, ())?, 3);
    Ok(())
}
