//! However many modules are loaded, their code takes few maps and no descriptors,
//! and a program counter still tells which module it is in.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefork::{Cache, Config, Engine, Instance, Module, Result, Store};

/// A module of its own for each number, with contents in its memory.
fn text(number: u32) -> String {
    format!(
        r#"(module $m{number}
          (memory (export "memory") 1)
          (data (i32.const 16) "{number:08}")
          (func $fails (param i32)
            (drop (i32.load (i32.const 0xffff_0000)))
            (unreachable))
          (func (export "get") (param i32) (result i32)
            (if (i32.eqz (local.get 0)) (then (call $fails (local.get 0))))
            (i32.add (local.get 0) (i32.const {number}))))"#
    )
}

fn check(engine: &Engine, module: &Module, number: u32) -> Result<()> {
    let mut store = Store::new(engine, ());
    let instance = Instance::new(&mut store, module, &[])?;
    let get = instance.get_typed_func::<i32, i32>(&mut store, "get")?;
    assert_eq!(get.call(&mut store, 1000)?, 1000 + number as i32);
    let error = get.call(&mut store, 0).unwrap_err();
    let backtrace = error.backtrace().expect("of a trap").to_string();
    assert!(
        backtrace.contains("fails") && backtrace.contains(&format!("m{number}")),
        "{backtrace}"
    );
    let mut found = [0; 8];
    let memory = instance.get_memory(&mut store, "memory").expect("an export");
    memory.read(&store, 16, &mut found)?;
    assert_eq!(found, format!("{number:08}").as_bytes());
    Ok(())
}

/// Tests that count what their process has take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn maps() -> usize {
    fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

#[test]
fn two_thousand_modules_take_few_maps_and_descriptors() -> Result<()> {
    const COUNT: u32 = 400;
    let _turn = alone();
    let engine = Engine::default();
    // Maps that others of this process have: heaps of the threads that compile.
    let first = Module::new(&engine, text(0))?;
    let (maps_before, descriptors_before) = (maps(), descriptors());
    let mut modules = vec![first];
    for number in 1..COUNT {
        modules.push(Module::new(&engine, text(number))?);
    }
    // The code of each five times.
    for number in 0..4 * COUNT {
        modules.push(modules[(number % COUNT) as usize].clone_code()?);
    }
    let (maps_after, descriptors_after) = (maps(), descriptors());
    assert!(maps_after < maps_before + 100, "{maps_before} {maps_after}");
    assert!(descriptors_after < descriptors_before + 150, "{descriptors_after}");
    for number in (0..5 * COUNT).step_by(61) {
        check(&engine, &modules[number as usize], number % COUNT)?;
    }
    Ok(())
}

#[test]
fn of_many_modules_from_files_some_are_mapped_and_the_others_copied() -> Result<()> {
    const COUNT: usize = 1100;
    let _turn = alone();
    let directory = std::env::temp_dir().join(format!("pagefork-many-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&directory).expect("it is new");
    let engine = Engine::new(Config::new().cache(Cache::new(&directory)))?;
    let load = |_| Module::new(&engine, text(7));
    let modules: Vec<Module> = (0..COUNT).map(load).collect::<Result<_>>()?;
    let name = directory.to_str().expect("it is text");
    let lines = fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let mapped = lines.lines().filter(|line| line.contains(name) && line.contains("r-xp"));
    assert_eq!(mapped.count(), 1024);
    for module in modules.iter().step_by(61).chain(modules.last()) {
        check(&engine, module, 7)?;
    }
    fs::remove_dir_all(directory).expect("it was written");
    Ok(())
}
