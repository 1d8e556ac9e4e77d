//! The functions as a module finds them: by name, with the types of the
//! standard, and with the memory of the caller.

use std::sync::Arc;

use pagefork::{Engine, Linker, Module, ResetKind, Store};
use pagefork_wasi::{Exit, OutputKind, StdinKind, WasiCtx, add_to_linker};

#[path = "standard/imports.rs"]
mod imports;

use imports::IMPORTS;

/// Instantiates a module, calls its `run` and returns how that ended.
fn run(wat: &str, ctx: WasiCtx) -> Result<(), pagefork::Error> {
    let engine = Engine::default();
    let module = Module::new(&engine, wat)?;
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx)?;
    let mut store = Store::new(&engine, ctx);
    let instance = linker.instantiate(&mut store, &module)?;
    instance.get_typed_func::<(), ()>(&mut store, "run")?.call(&mut store, ())
}

#[test]
fn every_function_links_with_the_type_of_the_standard() {
    assert_eq!(IMPORTS.len(), 46);
    let imports: String = IMPORTS
        .iter()
        .map(|(name, params, results)| {
            format!(
                "(import \"wasi_snapshot_preview1\" \"{name}\" \
                 (func (param {params}) (result {results})))\n"
            )
        })
        .collect();
    let wat = format!("(module {imports} (func (export \"run\")))");
    run(&wat, WasiCtx::builder().build().unwrap()).unwrap();
}

#[test]
fn a_guest_writes_and_exits() {
    let wat = r#"(module
        (import "wasi_snapshot_preview1" "fd_write"
            (func $fd_write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\06\00\00\00")
        (data (i32.const 16) "hello\n")
        (func (export "run")
            (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))
            ;; Success, and all six bytes.
            (if (i32.or (i32.ne (i32.load (i32.const 8)) (i32.const 6)))
                (then unreachable))
            ;; A bad descriptor is a result, not an error.
            (if (i32.ne (i32.const 8)
                    (call $fd_write (i32.const 9) (i32.const 0) (i32.const 1) (i32.const 8)))
                (then unreachable))
            (call $proc_exit (i32.const 42))
            unreachable))"#;
    let (output, stdout) = OutputKind::pipe();
    let error = run(wat, WasiCtx::builder().stdout(stdout).build().unwrap()).unwrap_err();
    assert_eq!(error.downcast_ref::<Exit>(), Some(&Exit(42)));
    assert_eq!(output.contents(), b"hello\n");
}

#[test]
fn a_module_without_memory_is_told_what_it_lacks() {
    let wat = r#"(module
        (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
        (memory 1)
        (func (export "run") (drop (call $yield))))"#;
    let error = run(wat, WasiCtx::builder().build().unwrap()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("sched_yield") && text.contains("memory"), "{text}");
    assert!(error.downcast_ref::<pagefork_wasi::NoMemory>().is_some());
}

#[test]
fn memory_that_has_grown_is_reached() {
    let wat = r#"(module
        (import "wasi_snapshot_preview1" "random_get"
            (func $random_get (param i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "run")
            ;; EFAULT before, success after.
            (if (i32.ne (i32.const 21) (call $random_get (i32.const 65536) (i32.const 16)))
                (then unreachable))
            (drop (memory.grow (i32.const 1)))
            (if (call $random_get (i32.const 65536) (i32.const 16)) (then unreachable))
            (if (i64.eqz (i64.load (i32.const 65536))) (then unreachable))))"#;
    run(wat, WasiCtx::builder().build().unwrap()).unwrap();
}

/// What the kernel writes to a guest takes no page fault of the guest's: after that, a
/// reset has to search for what was written. Most programs ask for a few random bytes, or
/// read a short request.
#[test]
fn small_results_of_the_kernel_spare_resets_the_search() {
    let wat = |random: u32, read: u32| {
        format!(
            r#"(module
        (import "wasi_snapshot_preview1" "random_get"
            (func $random_get (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_read"
            (func $fd_read (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 2)
        (func (export "run")
            (i32.store (i32.const 0) (i32.const 1024))
            (i32.store (i32.const 4) (i32.const {read}))
            (if (call $random_get (i32.const 1024) (i32.const {random})) (then unreachable))
            (if (i64.eqz (i64.load (i32.const 1024))) (then unreachable))
            (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
                (then unreachable))
            ;; Four bytes: "data".
            (if (i32.ne (i32.load (i32.const 8)) (i32.const 4)) (then unreachable))
            (if (i32.ne (i32.load (i32.const 1024)) (i32.const 0x61746164))
                (then unreachable))))"#
        )
    };
    // How many of a hundred resets found what was written by its faults.
    let spared = |random: u32, read: u32| {
        let engine = Engine::default();
        let mut linker = Linker::new(&engine);
        add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
        let pre =
            linker.instantiate_pre(&Module::new(&engine, wat(random, read)).unwrap()).unwrap();
        let mut spared = 0;
        for round in 0..121 {
            let stdin = StdinKind::Bytes(Arc::from(*b"data"));
            let ctx = WasiCtx::builder().stdin(stdin).build().unwrap();
            let (mut store, instance) = pre.spawn(ctx).unwrap();
            let by_faults = instance.strategy(&store).used == ResetKind::Resident;
            spared += u32::from(by_faults && round > 20);
            let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
            run.call(&mut store, ()).unwrap();
        }
        spared
    };
    // `Auto` searches for whole windows of runs, as soon as it often had to, and on a busy machine
    // also after what it cannot tell from a write, such as a page that the kernel moved.
    let all_searched = spared(1025, 1024);
    assert!(spared(1024, 1024) > all_searched);
    // There is less to read than is asked for.
    assert!(spared(1024, 8192) > all_searched);
}
