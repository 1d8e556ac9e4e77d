//! Runs a compiled module. It needs no compiler: build it with `--no-default-features`, and make
//! the file beforehand with `pagefork compile add.wat -o add.image`.

use pagefork::{Engine, Instance, Module, Result, Store};

fn main() -> Result<()> {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: code_image FILE, a compiled module that exports add(i32, i32) -> i32");
        std::process::exit(2);
    };
    let engine = Engine::default();
    let module = Module::from_code_image_file(&engine, path)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    let add = instance.get_typed_func::<(i32, i32), i32>(&mut store, "add")?;
    println!("2 + 3 = {}", add.call(&mut store, (2, 3))?);
    Ok(())
}
