//! Three ways to stop a guest that does not stop by itself: a timeout, an
//! interrupt from another thread, and fuel.

use std::time::Duration;

use pagefork::{Config, Engine, Instance, Module, Result, Store, Trap, TypedFunc};

const SPIN: &str = r#"(module (func (export "spin") (loop (br 0))))"#;

fn main() -> Result<()> {
    let (mut store, spin) = guest(&Config::new())?;

    store.set_timeout(Some(Duration::from_millis(20)))?;
    println!("after the timeout: {}", why_it_stopped(&mut store, &spin));

    store.set_timeout(None)?;
    let interrupt = store.interrupt_handle()?;
    let watchdog = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        interrupt.interrupt();
    });
    println!("after the interrupt: {}", why_it_stopped(&mut store, &spin));
    watchdog.join().expect("the watchdog does not panic");

    // Fuel counts what the guest does, not the time: the same on every machine.
    let (mut store, spin) = guest(Config::new().fuel(true))?;
    store.set_fuel(1_000_000)?;
    println!("without fuel: {}", why_it_stopped(&mut store, &spin));
    Ok(())
}

fn guest(config: &Config) -> Result<(Store<()>, TypedFunc<(), ()>)> {
    let engine = Engine::new(config)?;
    let module = Module::new(&engine, SPIN)?;
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[])?;
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    Ok((store, spin))
}

fn why_it_stopped(store: &mut Store<()>, spin: &TypedFunc<(), ()>) -> String {
    let error = spin.call(store, ()).expect_err("it spins for ever");
    let trap = error.downcast_ref::<Trap>().expect("it trapped");
    trap.code().to_string()
}
