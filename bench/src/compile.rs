//! From a module's bytes to code.

use crate::engines;
use crate::measure::{Effort, Row, Size, Work, compare};
use crate::programs::fetched;

/// Times compilation, on all cores on both sides: of many small functions, of one
/// large `br_table`, and of CPython; and says how long the code is.
pub fn run(size: Size) -> Vec<Row> {
    let count = if size == Size::Small { 10 } else { 2000 };
    let mut rows = Vec::new();
    compare_modules(&format!("{count} functions"), &functions(count), size, &mut rows);
    let entries = if size == Size::Small { 10 } else { 4000 };
    compare_modules(&format!("br_table of {entries} blocks"), &br_table(entries), size, &mut rows);
    if size == Size::Large
        && let Some(wasm) = fetched("python.wasm")
    {
        compare_modules("CPython", &wasm, size, &mut rows);
        rows.push(start_from_cache(&wasm, size));
    }
    rows
}

fn compare_modules(name: &str, wasm: &[u8], size: Size, rows: &mut Vec<Row>) {
    let engine = engines::pagefork::engine(true);
    let mut ours = || u64::from(pagefork::Module::new(&engine, wasm).is_ok());
    #[cfg(feature = "peer")]
    let peer_engine = engines::wasmtime::engine(true);
    #[cfg(feature = "peer")]
    let mut theirs = || u64::from(wasmtime::Module::new(&peer_engine, wasm).is_ok());
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    let effort = if wasm.len() < 1 << 20 { Effort::short(size) } else { Effort::long(size) };
    let effort = effort.on_the_wall();
    rows.push(compare(&format!("{name}: compiling"), effort, 1, &mut ours, peer));

    let module = pagefork::Module::new(&engine, wasm).expect("a valid module");
    let text = module.text().len();
    #[cfg(feature = "peer")]
    let peer_text = {
        let module = wasmtime::Module::new(&peer_engine, wasm).expect("a valid module");
        Some(module.text().len())
    };
    #[cfg(not(feature = "peer"))]
    let peer_text = None;
    rows.push(Row::bytes(&format!("{name}: machine code"), text, peer_text));
}

/// Times what a second process does: the module is in the cache.
fn start_from_cache(wasm: &[u8], size: Size) -> Row {
    let directory = std::env::temp_dir().join(format!("pagefork-bench-{}", std::process::id()));
    let mut config = pagefork::Config::new();
    config.cache(pagefork::Cache::new(directory.join("pagefork")));
    let engine = pagefork::Engine::new(&config).expect("this machine runs guests");
    let mut ours = || u64::from(pagefork::Module::new(&engine, wasm).is_ok());
    #[cfg(feature = "peer")]
    let peer_engine = {
        let mut cache = wasmtime::CacheConfig::new();
        cache.with_directory(directory.join("wasmtime"));
        let mut config = wasmtime::Config::new();
        config.epoch_interruption(true);
        config.cache(Some(wasmtime::Cache::new(cache).expect("a directory")));
        wasmtime::Engine::new(&config).expect("this machine runs guests")
    };
    #[cfg(feature = "peer")]
    let mut theirs = || u64::from(wasmtime::Module::new(&peer_engine, wasm).is_ok());
    #[cfg(feature = "peer")]
    let peer: Option<Work<'_>> = Some(&mut theirs);
    #[cfg(not(feature = "peer"))]
    let peer: Option<Work<'_>> = None;
    let effort = Effort::short(size).on_the_wall();
    let row = compare("CPython: start from the cache", effort, 1, &mut ours, peer);
    // What is left behind is in the directory for temporary files.
    let _ = std::fs::remove_dir_all(directory);
    row
}

/// A function that chooses between `count` blocks, as interpreters are.
fn br_table(count: u32) -> Vec<u8> {
    let mut text = String::from("(module (memory 1) (func (param i32) (result i32)");
    text += &"block ".repeat(count as usize + 1);
    text += "local.get 0 br_table";
    (0..=count).for_each(|entry| text += &format!(" {entry}"));
    for entry in 0..=count {
        text += &format!(
            " end (i32.store (local.get 0) (i32.const {entry}))
            (return (i32.load offset={entry} (local.get 0)))"
        );
    }
    text += " unreachable))";
    wat::parse_str(&text).expect("a module")
}

/// A module of `count` functions of a few lines.
fn functions(count: u32) -> Vec<u8> {
    let mut text = String::from("(module (memory 1)");
    for i in 0..count {
        text += &format!(
            "(func (param i32 i64) (result i64)
                (if (i32.gt_s (local.get 0) (i32.const {i}))
                    (then (i64.store (local.get 0) (local.get 1))))
                (loop $next
                    (local.set 1 (i64.add (local.get 1) (i64.load (local.get 0))))
                    (br_if $next (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
                (i64.mul (local.get 1) (i64.const {i})))"
        );
    }
    text += ")";
    wat::parse_str(&text).expect("a module")
}
