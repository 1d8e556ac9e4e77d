//! A host of plugins that it does not trust: one loops, one waits, one takes all
//! memory, one traps, one tries to keep state. None of them stops the host, takes
//! more than its limits, or finds anything of an earlier call.

use std::time::Duration;

use pagefork::{Config, Engine, Instance, Linker, Module, Result, Store, StoreLimits, Trap};

/// Each plugin is a function of a number; all of them may ask the host to wait.
const PLUGINS: [(&str, &str); 6] = [
    ("honest", "(i32.mul (local.get $x) (i32.const 2))"),
    ("loops", "(loop (br 0)) (unreachable)"),
    ("waits", "(loop (call $wait) (br 0)) (unreachable)"),
    // Until growing is refused, which is no trap; then it says how many pages it has.
    ("grows", "(loop (br_if 0 (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)))) memory.size"),
    ("traps", "(i32.div_s (local.get $x) (i32.const 0))"),
    ("keeps", "(i32.load (i32.const 8)) (i32.store (i32.const 8) (local.get $x))"),
];

/// A plugin in a store of its own, with what it may use.
struct Plugin {
    store: Store<()>,
    instance: Instance,
}

fn main() -> Result<()> {
    let engine = Engine::new(Config::new().fuel(true))?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "wait", || std::thread::sleep(Duration::from_millis(1)))?;

    let limits = StoreLimits::new().memory_total(1 << 20).table_elements(100);
    let mut plugins = Vec::new();
    for (tenant, (name, body)) in (1..).zip(PLUGINS) {
        let text = format!(
            r#"(module (import "host" "wait" (func $wait)) (memory 1)
                (func (export "run") (param $x i32) (result i32) {body}))"#
        );
        let pre = linker.instantiate_pre(&Module::new(&engine, text)?)?;
        // The limits hold before anything of the plugin runs.
        let (store, instance) = pre.spawn_limited(tenant, (), limits, drop)?;
        plugins.push((name, Plugin { store, instance }));
    }
    for input in [21, 4] {
        for (name, plugin) in &mut plugins {
            println!("{name}({input}): {}", plugin.run(input)?);
        }
    }
    Ok(())
}

impl Plugin {
    fn run(&mut self, input: i32) -> Result<String> {
        let Self { store, instance } = self;
        // Fuel counts what the guest does; the timeout counts waiting too.
        store.set_fuel(100_000)?;
        store.set_timeout(Some(Duration::from_millis(500)))?;
        let run = instance.get_typed_func::<i32, i32>(&mut *store, "run")?;
        let text = match run.call(&mut *store, input) {
            Ok(output) => output.to_string(),
            Err(error) => match error.downcast_ref::<Trap>() {
                Some(trap) => format!("stopped: {}", trap.code()),
                None => return Err(error),
            },
        };
        // Whatever it did to its memory, tables and globals, it did not.
        store.reset(())?;
        Ok(text)
    }
}
