//! An instance a request: a guest that counts never gets beyond 1, because each
//! request runs in a fresh instance. How many there are in a second is printed.

use std::time::Instant;

use pagefork::{Caller, Engine, InstancePre, Linker, Module, Result, TypedExport};

/// Doubles what the host says, and counts in a global and in its memory.
const GUEST: &str = r#"(module
    (import "host" "input" (func $input (result i32)))
    (memory 1)
    (global $count (mut i32) (i32.const 0))
    (func (export "handle") (result i32 i32 i32)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 64) (i32.add (i32.load (i32.const 64)) (i32.const 1)))
        (i32.mul (call $input) (i32.const 2))
        (global.get $count)
        (i32.load (i32.const 64))))"#;

/// What the host knows of a request: the data of the store.
struct Request {
    input: u32,
}

/// A module, and its one export.
struct Guest {
    pre: InstancePre<Request>,
    handle: TypedExport<(), (u32, u32, u32)>,
}

fn main() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "input", |caller: Caller<'_, Request>| caller.data().input)?;
    // Names are looked up and types compared here, once.
    let guest =
        Guest { handle: module.get_typed_export("handle")?, pre: linker.instantiate_pre(&module)? };

    for input in [3, 20, 21] {
        let (answer, global, memory) = guest.handle(Request { input })?;
        println!("{input} doubled is {answer}; the guest counted {global} and {memory}");
    }

    let requests = 100_000;
    let begun = Instant::now();
    for input in 0..requests {
        assert_eq!(guest.handle(Request { input })?, (2 * input, 1, 1));
    }
    println!("{:.0} requests a second", f64::from(requests) / begun.elapsed().as_secs_f64());
    Ok(())
}

impl Guest {
    fn handle(&self, request: Request) -> Result<(u32, u32, u32)> {
        // The store is dropped at the end: its pages become equal to the module's
        // image again, and the next request runs in them.
        let (mut store, instance) = self.pre.spawn(request)?;
        instance.get_typed_export(&store, &self.handle)?.call(&mut store, ())
    }
}
