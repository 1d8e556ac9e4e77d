//! However many modules are loaded, their code takes few maps and no descriptors,
//! and a program counter still tells which module it is in.

use std::fs;

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
    assert!(backtrace.contains("fails") && backtrace.contains(&format!("m{number}")), "{backtrace}");
    let mut found = [0; 8];
    let memory = instance.get_memory(&mut store, "memory").expect("an export");
    memory.read(&store, 16, &mut found)?;
    assert_eq!(found, format!("{number:08}").as_bytes());
    Ok(())
}

fn maps() -> usize {
    fs::read_to_string("/proc/self/maps").expect("Linux has it").lines().count()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

#[test]
fn two_thousand_modules_take_few_maps_and_descriptors() -> Result<()> {
    const COUNT: u32 = 2000;
    let directory = std::env::temp_dir().join(format!("pagefork-many-{}", std::process::id()));
    let engine = Engine::default();
    // Maps that others of this process have: heaps of the threads that compile.
    let first = Module::new(&engine, text(0))?;
    let (maps_before, descriptors_before) = (maps(), descriptors());
    let mut modules = vec![first];
    for number in 1..COUNT {
        modules.push(Module::new(&engine, text(number))?);
    }
    let (maps_after, descriptors_after) = (maps(), descriptors());
    assert!(maps_after < maps_before + 100, "{maps_before} {maps_after}");
    assert!(descriptors_after < descriptors_before + 150, "{descriptors_after}");
    for number in (0..COUNT).step_by(61) {
        check(&engine, &modules[number as usize], number)?;
    }

    // From a cache, some are mapped and the others copied.
    let cached = Engine::new(Config::new().cache(Cache::new(&directory)))?;
    let load = |number| Module::new(&cached, text(number));
    for number in 0..COUNT {
        drop(load(number)?);
    }
    let maps_before = maps();
    let loaded: Vec<Module> = (0..COUNT).map(load).collect::<Result<_>>()?;
    let maps_after = maps();
    assert!(maps_after < maps_before + 1024 + 100, "{maps_before} {maps_after}");
    for number in (0..COUNT).step_by(61) {
        check(&cached, &loaded[number as usize], number)?;
    }
    fs::remove_dir_all(directory).expect("the cache is there");
    Ok(())
}
