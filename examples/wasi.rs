//! A WASI program: given arguments and a directory, its output caught, its exit
//! status known.

use std::path::Path;

use pagefork::{Engine, Linker, Module, Store};
use pagefork_wasi::{Exit, OutputKind, Permissions, WasiCtx};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let engine = Engine::default();
    // A C program that surveys the files below a directory.
    let module = Module::from_file(&engine, project.join("guest/built/survey.wasm"))?;

    let mut linker = Linker::new(&engine);
    pagefork_wasi::add_to_linker(&mut linker, |wasi: &mut WasiCtx| wasi)?;

    // The program sees what it is given here, and nothing else.
    let (output, stdout) = OutputKind::pipe();
    let wasi = WasiCtx::builder()
        .args(["survey", "/examples"])
        .preopened_dir(project.join("examples"), "/examples", Permissions::ReadOnly)?
        .stdout(stdout)
        .build()?;

    let mut store = Store::new(&engine, wasi);
    let instance = linker.instantiate(&mut store, &module)?;
    let start = instance.get_typed_func::<(), ()>(&mut store, "_start")?;
    let status = match start.call(&mut store, ()) {
        Ok(()) => 0,
        Err(error) => error.downcast_ref::<Exit>().ok_or_else(|| error.to_string())?.0,
    };
    println!("status {status}, {} bytes of output:", output.contents().len());
    print!("{}", String::from_utf8_lossy(&output.contents()));
    Ok(())
}
