//! For anything given as a module or as an import: a clear error or a working
//! instance, never a panic, and nothing left behind.

use std::fs;
use std::path::Path;

use pagefork::{Engine, Error, Instance, Linker, Module, Store};
use pagefork_pages::procmaps;

/// Real modules: C, C++ and Rust programs.
const MODULES: [&str; 3] = ["survey.wasm", "words.wasm", "pretty.wasm"];

#[test]
fn mutations_of_real_modules_are_refused_or_spawned_and_leave_nothing() {
    mutations_leave_nothing(500);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn ten_thousand_mutations_of_real_modules_are_refused_or_spawned_and_leave_nothing() {
    mutations_leave_nothing(3_400);
}

/// Makes this many mutations of each module.
fn mutations_leave_nothing(count: usize) {
    let engine = Engine::default();
    let linker: Linker<()> = Linker::new(&engine);
    let mut refused = 0;
    let mut before = None;
    for name in MODULES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/built").join(name);
        let original = fs::read(path).unwrap();
        // George Marsaglia, "Xorshift RNGs", 2003: the same mutations every time.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        for round in 0..count {
            let mut wasm = original.clone();
            match round % 4 {
                0 => wasm.truncate(random() % original.len()),
                1 => {
                    let at = random() % original.len();
                    wasm.splice(at..at, [random() as u8]);
                }
                _ => {
                    for _ in 0..=random() % 8 {
                        let at = random() % wasm.len();
                        wasm[at] = random() as u8;
                    }
                }
            }
            match Module::new(&engine, &wasm) {
                Ok(module) => {
                    let mut store = Store::new(&engine, ());
                    let _ = linker.instantiate(&mut store, &module);
                }
                Err(error) => {
                    refused += 1;
                    let message = format!("{error:#}");
                    assert!(message.contains("module"), "{message}");
                }
            }
            // The first rounds allocate what stays: threads, arenas, tables.
            if round == 100 && before.is_none() {
                before = Some(left_behind());
            }
        }
    }
    assert!(refused > count * MODULES.len() / 2, "only {refused} mutations were refused");
    let (before, after) = (before.unwrap(), left_behind());
    assert_eq!(before.1, after.1, "file descriptors are left open");
    // The allocator may keep arenas of its own, but no slot and no code.
    assert_eq!(before.0, after.0, "maps of slots or code are left behind");
}

/// How many maps are slots, images or code, and how many descriptors are open.
fn left_behind() -> (usize, usize) {
    let ours = |map: &procmaps::Map| {
        let reserved = !map.read && !map.write && map.range.end - map.range.start > 64 << 20;
        reserved && map.range.end - map.range.start != 128 << 20 || map.name.contains("pagefork:")
    };
    let maps = procmaps::read().unwrap().iter().filter(|map| ours(map)).count();
    (maps, fs::read_dir("/proc/self/fd").unwrap().count())
}

fn instantiation_error(wat: &str, define: impl Fn(&mut Linker<()>)) -> Error {
    let engine = Engine::default();
    let module = Module::new(&engine, wat).unwrap();
    let mut linker = Linker::new(&engine);
    define(&mut linker);
    let mut store = Store::new(&engine, ());
    linker.instantiate(&mut store, &module).unwrap_err()
}

#[test]
fn a_missing_import_is_named() {
    let error = instantiation_error(r#"(module (import "env" "log" (func (param i32))))"#, |_| {});
    let message = format!("{error:#}");
    for word in ["env", "log", "i32"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn a_mistyped_import_names_what_is_expected_and_what_is_there() {
    let wat = r#"(module (import "env" "log" (func (param i32))))"#;
    let error = instantiation_error(wat, |linker| {
        linker.func_wrap("env", "log", |_: i64| 0i32).unwrap();
    });
    let message = format!("{error:#}");
    for word in ["env", "log", "i32", "i64"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn too_few_imports_are_an_error() {
    let engine = Engine::default();
    let module = Module::new(&engine, r#"(module (import "a" "b" (func)))"#).unwrap();
    let mut store = Store::new(&engine, ());
    let error = Instance::new(&mut store, &module, &[]).unwrap_err();
    assert!(format!("{error:#}").contains('1'), "{error:#}");
}

#[test]
fn what_is_no_module_at_all_is_refused() {
    let engine = Engine::default();
    for bytes in [&b""[..], b"\0", b"\0asm", b"MZ\x90\0", b"(module", b"\0asm\x02\0\0\0"] {
        assert!(Module::new(&engine, bytes).is_err(), "{bytes:?}");
    }
}
