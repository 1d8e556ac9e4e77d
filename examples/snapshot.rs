//! A snapshot between calls: an interpreter boots once, and each program starts
//! from the booted state, whatever the one before left behind.

use pagefork::{Engine, Linker, Module, Result};

/// Runs programs of one-letter instructions on a stack: digits, `+`, `*`, `=` (sets
/// the variable) and `v` (its value). `boot` is what takes long in real ones.
const INTERPRETER: &str = r#"(module
    (memory (export "memory") 1)
    (global $boots (export "boots") (mut i32) (i32.const 0))
    (global $v (mut i32) (i32.const 1))
    (global $top (mut i32) (i32.const 4096))
    (func $push (param i32)
        (i32.store (global.get $top) (local.get 0))
        (global.set $top (i32.add (global.get $top) (i32.const 4))))
    (func $pop (result i32)
        (global.set $top (i32.sub (global.get $top) (i32.const 4)))
        (i32.load (global.get $top)))
    (func (export "boot")
        (global.set $boots (i32.add (global.get $boots) (i32.const 1)))
        (global.set $v (i32.const 9)))
    (func (export "run") (param $at i32) (param $end i32) (result i32)
        (local $c i32)
        (loop $next
            (local.set $c (i32.load8_u (local.get $at)))
            (block $done
                (if (i32.eq (local.get $c) (i32.const 43)) ;; +
                    (then (call $push (i32.add (call $pop) (call $pop))) (br $done)))
                (if (i32.eq (local.get $c) (i32.const 42)) ;; *
                    (then (call $push (i32.mul (call $pop) (call $pop))) (br $done)))
                (if (i32.eq (local.get $c) (i32.const 61)) ;; =
                    (then (global.set $v (call $pop)) (br $done)))
                (if (i32.eq (local.get $c) (i32.const 118)) ;; v
                    (then (call $push (global.get $v)) (br $done)))
                (call $push (i32.sub (local.get $c) (i32.const 48))))
            (local.set $at (i32.add (local.get $at) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $at) (local.get $end))))
        (call $pop)))"#;

fn main() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, INTERPRETER)?;
    let pre = Linker::new(&engine).instantiate_pre(&module)?;

    // Boot once.
    let (mut store, instance) = pre.spawn(())?;
    instance.get_typed_func::<(), ()>(&mut store, "boot")?.call(&mut store, ())?;
    let booted = store.snapshot()?;

    let run = instance.get_typed_func::<(u32, u32), i32>(&mut store, "run")?;
    let memory = instance.get_memory(&mut store, "memory").expect("it exports one");
    let boots = instance.get_global(&mut store, "boots").expect("it exports one");
    for program in ["v", "34+2*=v", "v", "7=v", "v"] {
        memory.write(&mut store, 1024, program.as_bytes())?;
        let value = run.call(&mut store, (1024, 1024 + program.len() as u32))?;
        let count = boots.get(&mut store).i32().expect("it is an i32");
        println!("{program} = {value}, booted {count} time");
        // Back to the booted state: only the pages that the program wrote are copied.
        store.reset_to(&booted, ())?;
    }

    // Another store of the same `InstancePre` can start there too.
    let (mut other, instance) = pre.spawn(())?;
    other.reset_to(&booted, ())?;
    let run = instance.get_typed_func::<(u32, u32), i32>(&mut other, "run")?;
    let memory = instance.get_memory(&mut other, "memory").expect("it exports one");
    memory.write(&mut other, 1024, b"v")?;
    println!("in another store: v = {}", run.call(&mut other, (1024, 1025))?);
    Ok(())
}
