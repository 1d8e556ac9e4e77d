//! The compile cache: what it saves, whom it trusts, and that nothing that can
//! happen to it does more harm than compiling again.

#![cfg(debug_assertions)]

mod support;

mod files;
mod processes;
mod space;
mod trust;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use pagefork::{Cache, CacheStats, Config, Engine, Instance, Module, Store, Trap};
use support::{MODULE, cached, counts, engine, entries, private_directory, run};

#[test]
fn a_second_start_compiles_nothing() {
    let directory = private_directory("second_start");
    let first = Cache::new(&directory);
    let module = Module::new(&engine(&first), MODULE).unwrap();
    assert_eq!(run(&module), 42);
    assert_eq!(counts(&first.stats()), [0, 1, 1, 0, 0]);
    assert_eq!(first.directory(), &*directory);

    let second = Cache::new(&directory);
    let module = Module::new(&engine(&second), MODULE).unwrap();
    assert_eq!(run(&module), 42);
    assert_eq!(counts(&second.stats()), [1, 0, 0, 0, 0]);
    assert_eq!(entries(&directory).len(), 1);
}

#[test]
fn code_is_mapped_from_the_entry_and_not_copied() {
    let directory = private_directory("mapped");
    // The process that compiles maps the same pages as later ones.
    for _ in 0..2 {
        let module = cached(&directory, MODULE).0;
        let entry = std::fs::metadata(&entries(&directory)[0]).unwrap();
        let start = module.text().as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{start:x}-"))).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields[1], "r-xp");
        assert_eq!(fields[4].parse::<u64>().unwrap(), entry.ino(), "{line}");
    }
}

#[test]
fn entries_are_private_and_read_only() {
    let parent = private_directory("modes");
    let directory = parent.join("a/b");
    cached(&directory, MODULE);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&entries(&directory)[0]), 0o400);
    assert_eq!((mode(&directory), mode(&parent.join("a"))), (0o700, 0o700));
}

/// A module from the cache is as it was when it was compiled.
#[test]
fn a_module_from_the_cache_behaves_the_same() {
    let text = r#"(module $named
        (import "host" "add" (func $add (param i32) (result i32)))
        (memory (export "memory") 2)
        (data (i32.const 70000) "far")
        (table (export "table") 4 funcref)
        (elem (i32.const 1) $seven $trap)
        (global (export "global") (mut v128) (v128.const i64x2 1 2))
        (func $seven (result i32) (i32.const 7))
        (func $trap (result i32) (i32.load (i32.const -1)))
        (func (export "call") (param i32) (result i32)
            (call $add (call_indirect (result i32) (local.get 0)))))"#;
    let directory = private_directory("same");
    let observe = |module: &Module| {
        let mut store = Store::new(module.engine(), ());
        let add = pagefork::Func::wrap(&mut store, |x: i32| x + 1);
        let instance = Instance::new(&mut store, module, &[add.into()]).unwrap();
        let call = instance.get_typed_func::<i32, i32>(&mut store, "call").unwrap();
        let outcomes: Vec<String> = (0..5)
            .map(|index| match call.call(&mut store, index) {
                Ok(value) => value.to_string(),
                Err(error) => format!("{error:?} {}", error.is::<Trap>()),
            })
            .collect();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let imports: Vec<String> = module.imports().map(|i| format!("{i:?}")).collect();
        let exports: Vec<String> = module.exports().map(|e| format!("{e:?}")).collect();
        (outcomes, memory.data(&store)[69_999..70_004].to_vec(), imports, exports)
    };
    let plain = Module::new(&Engine::default(), text).unwrap();
    let expected = observe(&plain);
    assert!(expected.0[2].contains("named!trap"), "{:?}", expected.0);
    for _ in 0..2 {
        let module = cached(&directory, text).0;
        assert_eq!(observe(&module), expected);
        assert_eq!(module.compiled(), plain.compiled());
        assert_eq!(module.text(), plain.text());
        // Its code works at any other address too.
        assert_eq!(observe(&module.clone_code().unwrap()), expected);
    }
}

#[test]
fn other_settings_are_other_entries() {
    let directory = private_directory("settings");
    let cache = Cache::new(&directory);
    for stack in [1 << 16, 1 << 17] {
        for interruption in [false, true] {
            let mut config = Config::new();
            config.cache(cache.clone()).stack_size(stack).interruption(interruption);
            assert_eq!(run(&Module::new(&Engine::new(&config).unwrap(), MODULE).unwrap()), 42);
        }
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, entries(&directory).len()), (0, 4, 4));
}

#[test]
fn what_is_no_module_is_no_entry() {
    let directory = private_directory("invalid");
    let cache = Cache::new(&directory);
    for _ in 0..2 {
        Module::new(&engine(&cache), "(module (func (result i32)))").unwrap_err();
    }
    assert_eq!(cache.stats(), CacheStats::default());
    assert!(entries(&directory).is_empty());
}

#[test]
fn threads_share_a_cache() {
    let directory = private_directory("threads");
    let cache = Cache::new(&directory);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let engine = engine(&cache);
                for number in 0..20 {
                    let module = Module::new(&engine, support::numbered(number)).unwrap();
                    assert_eq!(run(&module), number);
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!((stats.hits + stats.misses, stats.damaged, stats.errors), (80, 0, 0), "{stats:?}");
    assert_eq!((stats.written, entries(&directory).len()), (20, 20));
}

/// With the switch for tests, every module has been through the cache, or is an
/// error.
#[test]
fn a_round_trip_is_wanted_or_an_error() {
    let directory = private_directory("round_trip");
    let with = |cache: &Cache| {
        Engine::new(Config::new().cache(cache.clone()).cache_round_trip(true)).unwrap()
    };
    let cache = Cache::new(&directory);
    assert_eq!(run(&Module::new(&with(&cache), MODULE).unwrap()), 42);
    let refused = Cache::new("/proc/self/no such directory");
    let error = Module::new(&with(&refused), MODULE).unwrap_err();
    assert!(error.to_string().contains("Unusable"), "{error}");
}
