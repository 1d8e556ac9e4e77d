//! A program before and after `docs/from_wasmtime.sed`, which changes names alone: what
//! is here is ported without a change by hand.

use wasmtime::{Caller, Config, Engine, Error, Extern, ExternRef, Func, FuncType};
use wasmtime::{GcHeapOutOfMemory, Global, GlobalType, Strategy};
use wasmtime::{Linker, Module, Mutability, Result, Store, Trap, Val, ValType, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p1::{self, WasiP1Ctx};
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

const GUEST: &str = r#"(module
    (import "host" "log" (func $log (param i32 i32)))
    (import "host" "add" (func $add (param i32 i32) (result i32)))
    (import "host" "base" (global $base (mut i32)))
    (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "hello")
    (func (export "run") (param i32) (result i32)
        (call $log (i32.const 8) (i32.const 5))
        (call $add (local.get 0) (global.get $base)))
    (func (export "spin") (loop (br 0)))
    (func $crash (export "crash") unreachable)
    (func (export "exit") (call $exit (i32.const 3))))"#;

struct Host {
    calls: u32,
    wasi: WasiP1Ctx,
}

fn main() -> Result<()> {
    let mut config = Config::new();
    config.strategy(Strategy::Cranelift);
    config.consume_fuel(true).epoch_interruption(false).max_wasm_stack(512 << 10);
    let engine = Engine::new(&config)?;
    let module = Module::new(&engine, GUEST)?;
    let mut linker: Linker<Host> = Linker::new(&engine);
    p1::add_to_linker_sync(&mut linker, |host: &mut Host| &mut host.wasi)?;
    linker.func_wrap("host", "log", log)?;
    let ints = [ValType::I32, ValType::I32];
    let ty = FuncType::new(&engine, ints, [ValType::I32]);
    linker.func_new("host", "add", ty, |_caller, params, results| {
        results[0] = Val::I32(params[0].unwrap_i32() + params[1].unwrap_i32());
        Ok(())
    })?;

    let mut builder = WasiCtxBuilder::new();
    builder.arg("ported").env("A", "b").inherit_stdio();
    builder.preopened_dir("/", "/", FsPerms::ReadOnly)?;
    let wasi = builder.build_p1();
    let mut store = Store::new(&engine, Host { calls: 0, wasi });
    store.set_fuel(10_000)?;
    let ty = GlobalType::new(ValType::I32, Mutability::Var);
    let base = Global::new(&mut store, ty, Val::I32(100))?;
    linker.define(&mut store, "host", "base", base)?;

    let label = match ExternRef::new(&mut store, "a label") {
        Ok(label) => label,
        Err(error) => match error.downcast::<GcHeapOutOfMemory<&str>>() {
            Ok(full) => {
                let (label, full) = full.take_inner();
                store.gc(Some(&full))?;
                ExternRef::new(&mut store, label)?
            }
            Err(error) => return Err(error),
        },
    };
    assert!(label.data(&store).is_ok());
    store.gc(None)?;

    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    println!("typed: {}", run.call(&mut store, 11)?);
    let run: &Func = run.func();
    let mut results = [Val::I32(0)];
    run.call(&mut store, &[Val::I32(1)], &mut results)?;
    println!("untyped: {}, calls: {}", results[0].unwrap_i32(), store.data().calls);

    for name in ["crash", "spin", "exit"] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let Err(error) = function.call(&mut store, ()) else { continue };
        let frames = error.downcast_ref::<WasmBacktrace>().map_or(0, |trace| trace.frames().len());
        match error.downcast_ref::<Trap>() {
            Some(&Trap::UnreachableCodeReached) => println!("{name}: {frames} frame"),
            Some(&Trap::OutOfFuel) => println!("{name}: {} fuel", store.get_fuel()?),
            _ => println!("{name}: {:?}", error.downcast_ref::<I32Exit>().map(|exit| exit.0)),
        }
        store.set_fuel(10_000)?;
    }
    Ok(())
}

fn log(mut caller: Caller<'_, Host>, at: u32, length: u32) -> Result<()> {
    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
        return Err(Error::msg("no memory"));
    };
    let (bytes, host) = memory.data_and_store_mut(&mut caller);
    host.calls += 1;
    let bytes = &bytes[at as usize..][..length as usize];
    println!("guest: {}", String::from_utf8_lossy(bytes));
    Ok(())
}
