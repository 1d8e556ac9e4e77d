//! The smallest embedding: compile a module, make an instance, call a function.

use pagefork::{Engine, Instance, Module, Result, Store};

fn main() -> Result<()> {
    // An engine compiles; a module is compiled once and instantiated often.
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (func (export "add") (param i32 i32) (result i32)
                local.get 0
                local.get 1
                i32.add))"#,
    )?;

    // A store owns instances and everything that is theirs.
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;

    // The types are checked here, so that calls need not check them again.
    let add = instance.get_typed_func::<(i32, i32), i32>(&mut store, "add")?;
    println!("3 + 4 = {}", add.call(&mut store, (3, 4))?);
    Ok(())
}
