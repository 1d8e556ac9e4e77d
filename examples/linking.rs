//! Two modules that share a memory and call each other's functions.

use pagefork::{Engine, Linker, Module, Result, Store};

fn main() -> Result<()> {
    let engine = Engine::default();
    let library = Module::new(
        &engine,
        r#"(module
            (memory (export "memory") 1)
            (func (export "sum") (param $at i32) (param $count i32) (result i32)
                (local $sum i32)
                (loop $next
                    (if (local.get $count)
                        (then
                            (local.set $sum
                                (i32.add (local.get $sum) (i32.load (local.get $at))))
                            (local.set $at (i32.add (local.get $at) (i32.const 4)))
                            (local.set $count (i32.sub (local.get $count) (i32.const 1)))
                            (br $next))))
                (local.get $sum)))"#,
    )?;
    let program = Module::new(
        &engine,
        r#"(module
            (import "library" "memory" (memory 1))
            (import "library" "sum" (func $sum (param i32 i32) (result i32)))
            (func (export "run") (result i32)
                (i32.store (i32.const 0) (i32.const 20))
                (i32.store (i32.const 4) (i32.const 22))
                (call $sum (i32.const 0) (i32.const 2))))"#,
    )?;

    let mut store = Store::new(&engine, ());
    let mut linker = Linker::new(&engine);
    // What the first instance exports is what the second one can import.
    let library = linker.instantiate(&mut store, &library)?;
    linker.instance(&mut store, "library", library)?;
    let program = linker.instantiate(&mut store, &program)?;

    let run = program.get_typed_func::<(), i32>(&mut store, "run")?;
    println!("20 + 22 = {}", run.call(&mut store, ())?);
    Ok(())
}
