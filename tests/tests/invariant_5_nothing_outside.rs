//! A fault is a trap only if a guest's own instruction meets a guard of its own
//! group. Every other fault goes to the previous handler of the signal, which
//! ends the process unless the embedder knows better.

mod common;
#[path = "common/accesses.rs"]
mod accesses;

#[path = "invariant_5/bounds.rs"]
mod bounds;
#[path = "invariant_5/memories.rs"]
mod memories;
#[path = "invariant_5/stack.rs"]
mod stack;
#[path = "invariant_5/faults.rs"]
mod faults;
#[path = "invariant_5/signals.rs"]
mod signals;

use common::link;
use pagefork::{Caller, Engine};

/// Calls a host function from a guest; the host function gets the guest's base.
pub(crate) fn with_guest(body: impl Fn(usize) + Send + Sync + 'static) -> pagefork::Result<()> {
    let (mut store, instance) = link(
        &Engine::default(),
        (),
        r#"(module (import "host" "f" (func $f)) (memory (export "memory") 1)
            (func (export "run") (call $f)))"#,
        |linker| {
            let function = move |mut caller: Caller<'_, ()>| {
                let memory = caller.get_export("memory").unwrap().into_memory().unwrap();
                body(memory.data(&caller).as_ptr().expose_provenance());
            };
            linker.func_wrap("host", "f", function).unwrap();
        },
    );
    instance.get_typed_func::<(), ()>(&mut store, "run").unwrap().call(&mut store, ())
}

pub(crate) fn read(address: usize) -> u8 {
    let pointer = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: none: the test is about what happens when this faults.
    unsafe { pointer.read_volatile() }
}

pub(crate) fn write(address: usize) {
    let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: none, as above.
    unsafe { pointer.write_volatile(1) };
}
