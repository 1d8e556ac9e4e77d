//! `Linker::module`: a reactor is one instance that is initialised first, and of a command
//! each call has an instance of its own.

use pagefork::{Engine, Error, LinkError, Linker, Module, Result, Store, Trap};

const COUNTER: &str = r#"
    (global $count (mut i32) (i32.const 0))
    (func (export "count") (result i32)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (global.get $count))"#;

struct World {
    engine: Engine,
    store: Store<()>,
    linker: Linker<()>,
}

impl World {
    fn new() -> Self {
        let engine = Engine::default();
        Self { store: Store::new(&engine, ()), linker: Linker::new(&engine), engine }
    }

    fn link(&mut self, name: &str, text: &str) -> Result<()> {
        let module = Module::new(&self.engine, format!("(module {text})"))?;
        self.linker.module(&mut self.store, name, &module)?;
        Ok(())
    }

    fn call(&mut self, module: &str, name: &str) -> Result<i32> {
        let function = self.linker.get(&mut self.store, module, name).unwrap();
        let function = function.into_func().unwrap().typed::<(), i32>(&self.store)?;
        function.call(&mut self.store, ())
    }
}

/// Imports `count` of the module `it` and calls it twice.
const TWICE: &str = r#"
    (import "it" "count" (func $count (result i32)))
    (func (export "twice") (result i32) (drop (call $count)) (call $count))"#;

#[test]
fn a_reactor_is_initialised_and_keeps_its_state() -> Result<()> {
    let mut world = World::new();
    let start = r#"(func (export "_initialize") (global.set $count (i32.const 10)))"#;
    world.link("it", &format!("{COUNTER}{start}"))?;
    world.link("user", TWICE)?;
    assert_eq!(world.call("user", "twice")?, 12);
    assert_eq!(world.call("it", "count")?, 13);
    // Without a function to initialise it.
    let mut world = World::new();
    world.link("it", COUNTER)?;
    world.link("user", TWICE)?;
    assert_eq!(world.call("user", "twice")?, 2);
    Ok(())
}

#[test]
fn each_call_of_a_command_has_an_instance_of_its_own() -> Result<()> {
    let mut world = World::new();
    let start = r#"(memory (export "memory") 1) (func (export "_start") (drop (call 0)))"#;
    world.link("it", &format!("{COUNTER}{start}"))?;
    world.link("user", TWICE)?;
    assert_eq!(world.call("user", "twice")?, 1);
    assert_eq!(world.call("it", "count")?, 1);
    let run = world.linker.get_default(&mut world.store, "it")?.typed::<(), ()>(&world.store)?;
    run.call(&mut world.store, ())?;
    run.call(&mut world.store, ())?;
    assert_eq!(world.call("it", "count")?, 1);
    // What is not there does nothing.
    let nothing = world.linker.get_default(&mut world.store, "nowhere")?;
    nothing.typed::<(), ()>(&world.store)?.call(&mut world.store, ())
}

#[test]
fn what_is_neither_or_fails_says_so() {
    let refused = |text: &str, words: &str| {
        let error = World::new().link("it", text).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(LinkError::ProgramKind(_))), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let start = r#"(func (export "_start"))"#;
    refused(&format!(r#"{start}(func (export "_initialize"))"#), "both");
    refused(r#"(memory (export "_start") 1)"#, "no function");
    refused(r#"(memory (export "_initialize") 1)"#, "no function");
    refused(&format!(r#"{start}(global (export "state") i32 (i32.const 1))"#), "state");

    let mut world = World::new();
    let fails = r#"(func (export "_initialize") (unreachable))"#;
    let error: Error = world.link("it", fails).unwrap_err();
    assert!(error.is::<Trap>() && error.to_string().contains("_initialize"), "{error}");
    assert!(error.to_string().contains("unreachable"), "{error}");
    let error = world.link("it", r#"(func (export "_initialize") (param i32))"#).unwrap_err();
    assert!(error.to_string().contains("_initialize"), "{error}");
    assert!(world.linker.get(&mut world.store, "it", "_initialize").is_err());
}
