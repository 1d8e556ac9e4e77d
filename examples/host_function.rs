//! Functions of the host: guests call them, they see the guest's memory and the
//! embedder's data, and their errors end the guest's call.

use pagefork::{Caller, Engine, Error, Linker, Module, Result, Store};

fn main() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "print" (func $print (param i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 8) "Hello from the guest")
            (func (export "run")
                (call $print (i32.const 8) (i32.const 20))
                (call $print (i32.const 65530) (i32.const 100))))"#,
    )?;

    let mut linker: Linker<Vec<String>> = Linker::new(&engine);
    linker.func_wrap(
        "host",
        "print",
        |mut caller: Caller<'_, Vec<String>>, at: u32, length: u32| -> Result<()> {
            let memory = caller.get_export("memory").and_then(|export| export.into_memory());
            let memory = memory.ok_or_else(|| Error::msg("the guest exports no memory"))?;
            let (bytes, lines) = memory.data_and_store_mut(&mut caller);
            let bytes = bytes.get(at as usize..).and_then(|rest| rest.get(..length as usize));
            let bytes = bytes.ok_or_else(|| Error::msg("the text is not within the memory"))?;
            lines.push(String::from_utf8_lossy(bytes).into_owned());
            Ok(())
        },
    )?;

    // The store's data are the embedder's own: here, the lines printed so far.
    let mut store = Store::new(&engine, Vec::new());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    let outcome = run.call(&mut store, ());

    println!("printed: {:?}", store.data());
    println!("then: {:#}", outcome.expect_err("the second text is not in the memory"));
    Ok(())
}
