//! What the tests of properties share: guests from text, what a trap was, what
//! the process holds, and processes of their own for tests that count or die.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::{env, fs};

use pagefork::{Config, Engine, Error, Instance, Linker, Module, Store, Trap, TrapCode};
use pagefork_pages::procmaps;

/// Says to a test that it is the only one of its process.
const CHILD: &str = "PAGEFORK_TEST_CHILD";

/// What a child prints right before it is to be killed.
const REACHED: &str = "the deadly line is reached";

/// An engine whose guests have stacks of this many bytes.
pub fn engine_with_stack(size: u64) -> Engine {
    Engine::new(Config::new().stack_size(size)).unwrap()
}

/// An instance of a module without imports, in a store of its own.
pub fn spawn(engine: &Engine, wat: &str) -> (Store<()>, Instance) {
    let module = Module::new(engine, wat).unwrap();
    let mut store = Store::new(engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    (store, instance)
}

/// An instance of a module whose imports a linker has.
pub fn link<T: 'static>(
    engine: &Engine,
    data: T,
    wat: &str,
    define: impl FnOnce(&mut Linker<T>),
) -> (Store<T>, Instance) {
    let module = Module::new(engine, wat).unwrap();
    let mut linker = Linker::new(engine);
    define(&mut linker);
    let mut store = Store::new(engine, data);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (store, instance)
}

/// Why the guest trapped.
#[track_caller]
pub fn trap_code(error: &Error) -> TrapCode {
    match error.downcast_ref::<Trap>() {
        Some(trap) => trap.code(),
        None => panic!("not a trap: {error:#}"),
    }
}

/// The names of the guest's functions that ran, innermost first.
pub fn frame_names(error: &Error) -> Vec<String> {
    let frames = error.backtrace().map(|backtrace| backtrace.frames()).unwrap_or_default();
    frames.iter().map(|frame| frame.function_name().unwrap_or("?").to_owned()).collect()
}

/// Runs `body` in a process of its own, in which no other test runs: `name` is
/// the name of the calling test.
#[track_caller]
pub fn in_own_process(name: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        return body();
    }
    let output = run_alone(name);
    let printed = printed(&output);
    assert!(output.status.success(), "{}\n{printed}", output.status);
    assert!(printed.contains("1 passed"), "no such test: {name}\n{printed}");
}

/// As [`killed_by`], by SIGSEGV.
#[track_caller]
pub fn killed_by_segv(name: &str, body: impl FnOnce()) {
    killed_by(libc::SIGSEGV, name, body);
}

/// Runs `body` in a process of its own and requires that a signal kills it after it
/// has called [`reached`]: `name` is the name of the calling test.
#[track_caller]
pub fn killed_by(signal: libc::c_int, name: &str, body: impl FnOnce()) {
    if env::var_os(CHILD).is_some() {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: only sets a limit of this process.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
        return body();
    }
    let output = run_alone(name);
    let printed = printed(&output);
    assert!(printed.contains(REACHED), "died too early, or not at all\n{printed}");
    let killed_by = output.status.signal();
    assert_eq!(killed_by, Some(signal), "{}\n{printed}", output.status);
}

/// Says that what comes next is to kill the process.
pub fn reached() {
    println!("{REACHED}");
}

fn run_alone(name: &str) -> Output {
    Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        // Of several threads that compile, some could start late, and each gets
        // maps of its own: with one, all is there once a module is compiled.
        .env("RAYON_NUM_THREADS", "1")
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// What a process holds: number of maps, bytes of address space, descriptors.
#[derive(PartialEq, Eq, Debug, Clone, Copy)]
pub struct Held {
    pub maps: usize,
    pub mapped: u64,
    pub descriptors: usize,
}

/// What this process holds. Of use only in a process of its own.
pub fn held() -> Held {
    // Reading allocates; what comes and goes with the heap is not counted.
    let maps = procmaps::read().unwrap();
    let counted = maps.iter().filter(|map| map.name != "[heap]" && map.name != "[stack]");
    Held {
        maps: counted.clone().count(),
        mapped: counted.map(|map| map.range.end - map.range.start).sum(),
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
    }
}
