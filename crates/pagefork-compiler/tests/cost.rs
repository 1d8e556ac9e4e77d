//! What compiling costs grows with the module.

#[path = "cost/shapes.rs"]
mod shapes;

use std::fs;
use std::process::Command;
use std::time::Duration;

use pagefork_compiler::{
    Bounds, CompileError, CompileLimits, CompileOptions, CompiledModule, compile, initial_image,
};

/// Processor time so far in milliseconds, and the most memory so far in KiB.
fn used() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    (ticks * 10, peak.trim().trim_end_matches(" kB").parse().unwrap())
}

/// Compiles one module, in a process of its own: told which by its environment.
#[test]
#[ignore = "a part of the next one"]
fn one_shape() {
    let Ok(asked) = std::env::var("PAGEFORK_SHAPE") else { return };
    let mut asked = asked.split('/');
    let number: usize = asked.next().unwrap().parse().unwrap();
    let size: u32 = asked.next().unwrap().parse().unwrap();
    let bounds = if asked.next() == Some("both") { Bounds::Dual } else { Bounds::Guarded };
    let wasm = shapes::SHAPES[number].1(size);
    let options = CompileOptions { bounds, verify_ir: false, ..CompileOptions::default() };
    let before = used();
    let outcome = match compile(&wasm, &options) {
        Ok(module) => {
            let middle = used();
            let zeros = vec![Some(0); module.info.imported_globals as usize];
            drop(initial_image(&module, module.code.behind(), &zeros));
            format!("image {} ms", used().0 - middle.0)
        }
        Err(error) => error.to_string().chars().take(150).collect(),
    };
    let after = used();
    println!(
        "@{:9} bytes {:7} ms {:8} MiB  {outcome}",
        wasm.len(),
        after.0 - before.0,
        (after.1 - before.1) / 1024
    );
}

fn built(name: &str, size: u32) -> Vec<u8> {
    shapes::SHAPES.iter().find(|shape| shape.0 == name).expect("a shape").1(size)
}

fn compiled(name: &str, size: u32) -> CompiledModule {
    compile(&built(name, size), &CompileOptions::default()).unwrap()
}

/// Values that a `br_table` carries are in the code once for each target, not for each entry.
#[test]
fn entries_of_a_br_table_cost_the_same_whatever_they_carry() {
    for name in ["a br_table that carries 1000 values", "a br_table that carries 1000 locals"] {
        let [small, large] =
            [1_000, 100_000].map(|entries| compiled(name, entries).code.text.len() as u32);
        // An entry of the table takes four bytes.
        assert!(large - small <= 4 * 99_000 + 4096, "{name}: {small} {large}");
    }
}

/// What looks at every global for each that is used, at every function for each type, at every
/// block for each other, or at what a constant expression has come to for each of its steps, does not end in this century.
#[test]
fn modules_of_a_megabyte_are_compiled() {
    for (name, size) in [
        ("a br_table with a block for each target", 50_000),
        ("a long constant expression", 300_000),
        ("globals", 50_000),
        ("imports with types of 150 parameters", 500),
        ("functions with types of their own", 20_000),
    ] {
        compiled(name, size);
    }
}

/// What Cranelift would take minutes or gigabytes for is refused, with the place and the limit.
#[test]
fn what_cranelift_is_quadratic_in_is_refused_beyond_a_limit() {
    let both = CompileOptions { bounds: Bounds::Dual, ..CompileOptions::default() };
    let cost = CompileLimits { memory: 256 << 20, ..CompileLimits::default() };
    let small = CompileOptions { cost, ..CompileOptions::default() };
    for (name, size, options) in [
        ("nested loops", 40_000, &CompileOptions::default()),
        ("nested loops that use a local", 4_000, &CompileOptions::default()),
        ("live values", 16_000, &both),
        ("live values across a call", 16_000, &both),
        ("locals in many blocks", 16_000, &small),
        ("locals live in loops", 8_000, &small),
    ] {
        let wasm = built(name, size);
        let error = compile(&wasm, options).unwrap_err();
        let CompileError::TooCostly { function, offset, estimate, limit, .. } = error else {
            panic!("{name}: {error}");
        };
        assert_eq!(function, 1, "{name}");
        assert!((1..wasm.len() as u64).contains(&offset), "{name}: {offset}");
        assert!(estimate > limit, "{name}: {error}");
    }
}

/// What is stored once and again needs no register between: as in what compilers generate to fill
/// tables.
#[test]
fn tables_that_code_fills_are_compiled() {
    for name in ["constants stored in memory", "constants stored as bytes"] {
        compiled(name, 100_000);
    }
}

#[test]
fn what_functions_cost_adds_up() {
    let with = |functions, work| {
        let cost = CompileLimits { work, ..CompileLimits::default() };
        let options = CompileOptions { cost, verify_ir: false, ..CompileOptions::default() };
        compile(&built("functions with 1000 live values", functions), &options)
    };
    let enough_for_one = (0..).map(|bits| 1 << bits).find(|work| with(1, *work).is_ok()).unwrap();
    let error = with(20, enough_for_one).unwrap_err();
    let CompileError::TooCostly { function, estimate, limit, .. } = error else {
        panic!("{error}");
    };
    assert!((2..=20).contains(&function) && estimate > enough_for_one && limit == enough_for_one);
    assert!(error.to_string().contains("steps in all"), "{error}");
    assert!(with(20, 5 * enough_for_one).is_ok());
}

/// Code that is finished counts too.
#[test]
fn what_functions_leave_adds_up() {
    let with = |functions| {
        let cost = CompileLimits { memory: 1 << 20, ..CompileLimits::default() };
        let options = CompileOptions { cost, verify_ir: false, ..CompileOptions::default() };
        compile(&built("functions", functions), &options)
    };
    assert!(with(100).is_ok());
    let message = with(50_000).unwrap_err().to_string();
    assert!(message.contains("bytes of finished code"), "{message}");
}

#[test]
fn functions_of_ordinary_size_are_far_below_the_limits() {
    let cost = CompileLimits { memory: 20 << 20, work: 4 << 20, ..CompileLimits::default() };
    let options = CompileOptions { cost, ..CompileOptions::default() };
    for (name, _) in shapes::SHAPES {
        if !name.contains("1000") && !name.contains("100 ") {
            compile(&built(name, 100), &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

#[test]
fn limits_can_be_lowered_and_raised() {
    let wasm = built("live values", 2_000);
    let with = |cost| compile(&wasm, &CompileOptions { cost, ..CompileOptions::default() });
    let default = CompileLimits::default();
    let text = with(default).unwrap().code.text;
    let refused = |cost: CompileLimits, setting: &str| {
        let message = with(cost).unwrap_err().to_string();
        assert!(message.contains(setting) && message.contains("function 1"), "{message}");
    };
    refused(CompileLimits { work: 100_000, ..default }, "limit of work for compiling");
    refused(CompileLimits { memory: 100_000, ..default }, "limit of memory for compiling");
    // The code is the same whatever the limits are.
    let most = CompileLimits { memory: u64::MAX, work: u64::MAX, time: Some(Duration::MAX) };
    assert_eq!(with(most).unwrap().code.text, text);
}

/// Functions that need all the memory there is are compiled one after the other.
#[test]
fn functions_wait_for_memory() {
    let wasm = built("functions with loops", 8);
    let with = |memory| {
        let cost = CompileLimits { memory, ..CompileLimits::default() };
        compile(&wasm, &CompileOptions { cost, ..CompileOptions::default() })
    };
    let text = with(u64::MAX).unwrap().code.text;
    let least = (1..).map(|step| step << 12).find(|memory| with(*memory).is_ok()).unwrap();
    assert_eq!(with(least).unwrap().code.text, text);
}

#[test]
fn compiling_ends_when_its_time_is_over() {
    let cost = CompileLimits { time: Some(Duration::ZERO), ..CompileLimits::default() };
    let options = CompileOptions { cost, ..CompileOptions::default() };
    for name in ["live values", "functions", "imports"] {
        let error = compile(&built(name, 5_000), &options).unwrap_err();
        assert_eq!(error, CompileError::TimedOut { limit: Duration::ZERO }, "{name}");
    }
}

/// For people: how time and memory grow as each shape doubles.
#[test]
#[ignore = "a table for people; PAGEFORK_SHAPES chooses by name"]
fn growth() {
    let chosen = std::env::var("PAGEFORK_SHAPES").unwrap_or_default();
    let bounds = std::env::var("PAGEFORK_BOUNDS").unwrap_or_default();
    let limit: u32 = std::env::var("PAGEFORK_SIZE").map_or(32_000, |size| size.parse().unwrap());
    for (number, (name, _)) in shapes::SHAPES.iter().enumerate() {
        if !name.contains(&chosen) {
            continue;
        }
        println!("{name}");
        for size in [limit / 4, limit / 2, limit] {
            let output = Command::new("timeout")
                .arg("60")
                .arg(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "one_shape", "--nocapture"])
                .env("PAGEFORK_SHAPE", format!("{number}/{size}/{bounds}"))
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find_map(|line| line.split_once('@')).map(|line| line.1);
            println!("  {size:8} {}", line.unwrap_or("ended without a word"));
        }
    }
}
