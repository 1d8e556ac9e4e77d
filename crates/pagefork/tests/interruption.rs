//! Interrupts from other threads, and timeouts.

use std::time::{Duration, Instant};

use pagefork::{
    Caller, Config, Engine, Error, Func, Instance, Module, Result, Store, Trap, TrapCode,
};

const WAT: &str = r#"(module
    (import "" "sleep" (func $sleep))
    (func (export "spin") (loop $l (br $l)))
    (func (export "recurse") (param i32) (result i32)
        (block (br_if 0 (i32.eqz (local.get 0)))
            (loop $l (drop (call 2 (i32.sub (local.get 0) (i32.const 1)))) (br $l)))
        (i32.const 0))
    (func (export "quick") (result i32) (i32.const 1))
    (func (export "sleep") (call $sleep) (loop $l (br $l))))"#;

fn instance(store: &mut Store<()>) -> Result<Instance> {
    let module = Module::new(store.engine(), WAT)?;
    let sleep = Func::wrap(&mut *store, |mut caller: Caller<'_, ()>| -> Result<()> {
        std::thread::sleep(Duration::from_millis(30));
        let quick = caller.get_export("quick").unwrap().into_func().unwrap();
        // The interrupt is the outer call's: it may come in here already.
        quick.typed::<(), i32>(&caller)?.call(&mut caller, ()).map(drop)
    });
    Instance::new(store, &module, &[sleep.into()])
}

fn is_interrupt(error: &Error) -> bool {
    error.downcast_ref::<Trap>().is_some_and(|trap| trap.code() == TrapCode::Interrupt)
}

#[test]
fn a_loop_is_interrupted_from_another_thread() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let instance = instance(&mut store)?;
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    for _ in 0..3 {
        let handle = store.interrupt_handle();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            handle.interrupt();
        });
        let error = spin.call(&mut store, ()).unwrap_err();
        assert!(is_interrupt(&error));
        assert_eq!(error.backtrace().unwrap().frames()[0].function_index(), 1);
        thread.join().unwrap();
    }
    Ok(())
}

#[test]
fn an_interrupt_that_comes_too_late_is_forgotten() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let instance = instance(&mut store)?;
    let quick = instance.get_typed_func::<(), i32>(&mut store, "quick")?;
    let handle = store.interrupt_handle();
    for _ in 0..100 {
        handle.interrupt();
        assert_eq!(quick.call(&mut store, ())?, 1);
    }
    drop(store);
    handle.interrupt();
    Ok(())
}

#[test]
fn timeouts_interrupt_loops_recursion_and_what_follows_a_host_call() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let instance = instance(&mut store)?;
    let quick = instance.get_typed_func::<(), i32>(&mut store, "quick")?;
    store.set_timeout(Some(Duration::from_millis(20)));
    for name in ["spin", "sleep"] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let start = Instant::now();
        assert!(is_interrupt(&function.call(&mut store, ()).unwrap_err()), "{name}");
        assert!(start.elapsed() >= Duration::from_millis(19));
        assert_eq!(quick.call(&mut store, ())?, 1);
    }
    let recurse = instance.get_typed_func::<i32, i32>(&mut store, "recurse")?;
    assert!(is_interrupt(&recurse.call(&mut store, 50).unwrap_err()));
    store.set_timeout(Some(Duration::MAX));
    assert_eq!(quick.call(&mut store, ())?, 1);
    store.set_timeout(None);
    std::thread::sleep(Duration::from_millis(40));
    assert_eq!(quick.call(&mut store, ())?, 1);
    Ok(())
}

/// Calls that end about when their time does: none is hit by another one's
/// timeout, and stores that are gone by no one's.
#[test]
fn a_storm_of_late_timeouts_hits_only_its_own_call() -> Result<()> {
    let engine = Engine::default();
    let end = Instant::now() + Duration::from_millis(500);
    let storm = move |engine: Engine| -> Result<(u32, u32)> {
        let (mut interrupted, mut finished) = (0, 0);
        while Instant::now() < end {
            let mut store = Store::new(&engine, ());
            let module = Module::new(
                &engine,
                r#"(module (func (export "count") (param i32)
                    (loop $l
                        (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
                        (br_if $l (local.get 0)))))"#,
            )?;
            let instance = Instance::new(&mut store, &module, &[])?;
            let count = instance.get_typed_func::<i32, ()>(&mut store, "count")?;
            let handle = store.interrupt_handle();
            for i in 0..20 {
                store.set_timeout(Some(Duration::from_micros(50)));
                match count.call(&mut store, 1000 << (i % 12)) {
                    Ok(()) => finished += 1,
                    Err(error) if is_interrupt(&error) => interrupted += 1,
                    Err(error) => return Err(error),
                }
                store.set_timeout(None);
                count.call(&mut store, 1000)?;
            }
            std::thread::spawn(move || handle.interrupt());
        }
        Ok((interrupted, finished))
    };
    let other = std::thread::spawn({
        let engine = engine.clone();
        move || storm(engine)
    });
    let (interrupted, finished) = storm(engine)?;
    assert!(interrupted > 0 && finished > 0, "{interrupted} {finished}");
    other.join().unwrap()?;
    Ok(())
}

#[test]
fn instances_made_meanwhile_are_interrupted_too() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let spin = Module::new(store.engine(), r#"(module (func (export "spin") (loop $l (br $l))))"#)?;
    let outer = Module::new(
        store.engine(),
        r#"(module (import "" "f" (func $f)) (func (export "run") (call $f)))"#,
    )?;
    let f = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| -> Result<()> {
        caller.interrupt_handle().interrupt();
        let instance = Instance::new(&mut caller, &spin, &[])?;
        instance.get_typed_func::<(), ()>(&mut caller, "spin")?.call(&mut caller, ())
    });
    let instance = Instance::new(&mut store, &outer, &[f.into()])?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    assert!(is_interrupt(&run.call(&mut store, ()).unwrap_err()));
    Ok(())
}

#[test]
fn engines_without_interruption_run_as_well() -> Result<()> {
    let engine = Engine::new(Config::new().interruption(false))?;
    let mut store = Store::new(&engine, ());
    let quick = instance(&mut store)?.get_typed_func::<(), i32>(&mut store, "quick")?;
    assert_eq!(quick.call(&mut store, ())?, 1);
    Ok(())
}
