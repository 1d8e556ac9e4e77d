//! Interrupts from other threads, and timeouts.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagefork::{
    Caller, Config, Engine, Error, Exception, Func, Instance, Linker, Module, Result, Store,
    StoreLimits, Trap, TrapCode, UsageError, Val,
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
        let handle = store.interrupt_handle()?;
        let (ended, wait) = mpsc::channel::<()>();
        // One that comes before the call begins is forgotten.
        let thread = std::thread::spawn(move || {
            while wait.recv_timeout(Duration::from_millis(20)).is_err() {
                handle.interrupt();
            }
        });
        let error = spin.call(&mut store, ()).unwrap_err();
        assert!(is_interrupt(&error));
        assert_eq!(error.backtrace().unwrap().frames()[0].function_index(), 1);
        ended.send(()).unwrap();
        thread.join().unwrap();
    }
    Ok(())
}

#[test]
fn an_interrupt_that_comes_too_late_is_forgotten() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let instance = instance(&mut store)?;
    let quick = instance.get_typed_func::<(), i32>(&mut store, "quick")?;
    let handle = store.interrupt_handle()?;
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
    // Long enough for a call that ends at once, however busy the machine is.
    store.set_timeout(Some(Duration::from_millis(100)))?;
    for name in ["spin", "sleep"] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let start = Instant::now();
        assert!(is_interrupt(&function.call(&mut store, ()).unwrap_err()), "{name}");
        assert!(start.elapsed() >= Duration::from_millis(99));
        assert_eq!(quick.call(&mut store, ())?, 1);
    }
    let recurse = instance.get_typed_func::<i32, i32>(&mut store, "recurse")?;
    assert!(is_interrupt(&recurse.call(&mut store, 50).unwrap_err()));
    store.set_timeout(Some(Duration::MAX))?;
    assert_eq!(quick.call(&mut store, ())?, 1);
    store.set_timeout(None)?;
    std::thread::sleep(Duration::from_millis(150));
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
            let handle = store.interrupt_handle()?;
            for i in 0..20 {
                store.set_timeout(Some(Duration::from_micros(50)))?;
                match count.call(&mut store, 1000 << (i % 12)) {
                    Ok(()) => finished += 1,
                    Err(error) if is_interrupt(&error) => interrupted += 1,
                    Err(error) => return Err(error),
                }
                store.set_timeout(None)?;
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
        caller.interrupt_handle()?.interrupt();
        let instance = Instance::new(&mut caller, &spin, &[])?;
        instance.get_typed_func::<(), ()>(&mut caller, "spin")?.call(&mut caller, ())
    });
    let instance = Instance::new(&mut store, &outer, &[f.into()])?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    assert!(is_interrupt(&run.call(&mut store, ()).unwrap_err()));
    Ok(())
}

/// Of what follows a host call in which the time ran out, nothing runs: no store, no return and
/// no other host function, though no loop and no function entry comes before them.
#[test]
fn a_guest_traps_where_the_host_call_returns_in_which_its_time_ran_out() -> Result<()> {
    const CALLS: &str = r#"(module
        (import "" "wait" (func $wait))
        (import "" "next" (func $next))
        (global (export "after") (mut i32) (i32.const 0))
        (func (export "return") (call $wait))
        (func (export "go_on") (call $wait) (global.set 0 (i32.const 1)))
        (func (export "call") (call $wait) (call $next)))"#;
    let mut store = Store::new(&Engine::default(), 0);
    let module = Module::new(store.engine(), CALLS)?;
    let wait = Func::wrap(&mut store, |caller: Caller<'_, i32>| -> Result<()> {
        let interruption = caller.interruption();
        assert!(!interruption.is_requested(), "what came too late for the last call");
        let start = Instant::now();
        while !interruption.is_requested() {
            assert!(start.elapsed() < Duration::from_secs(20), "no interrupt came");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    });
    let next = Func::wrap(&mut store, |mut caller: Caller<'_, i32>| *caller.data_mut() += 1);
    let instance = Instance::new(&mut store, &module, &[wait.into(), next.into()])?;
    store.set_timeout(Some(Duration::from_millis(100)))?;
    for name in ["return", "go_on", "call"] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let error = function.call(&mut store, ()).unwrap_err();
        assert!(is_interrupt(&error), "{name}: {error:?}");
        assert_eq!(error.backtrace().unwrap().frames().len(), 1, "{name}");
    }
    let after = instance.get_export(&mut store, "after").unwrap().into_global().unwrap();
    assert!(matches!(after.get(&mut store), Val::I32(0)));
    assert_eq!(*store.data(), 0);
    Ok(())
}

/// Neither a host function between its frames nor a handler of exceptions keeps a guest from
/// being stopped.
#[test]
fn an_interrupt_cannot_be_swallowed() -> Result<()> {
    let mut store = Store::new(&Engine::default(), ());
    let module = Module::new(
        store.engine(),
        r#"(module
            (import "" "swallow" (func $swallow))
            (import "" "throw" (func $throw))
            (tag (export "tag"))
            (global (export "after") (mut i32) (i32.const 0))
            (func (export "spin") (loop $l (br $l)))
            (func (export "swallows") (call $swallow) (global.set 0 (i32.const 1)))
            (func (export "catches")
                (block $h (try_table (catch_all $h) (call $throw)))
                (global.set 0 (i32.const 2))))"#,
    )?;
    let swallow = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| -> Result<()> {
        let spin = caller.get_export("spin").unwrap().into_func().unwrap();
        let error = spin.typed::<(), ()>(&caller)?.call(&mut caller, ()).unwrap_err();
        assert!(is_interrupt(&error));
        assert!(caller.interruption().is_requested(), "the guest around has not been stopped");
        Ok(())
    });
    let throw = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| -> Result<()> {
        let tag = caller.get_export("tag").unwrap().into_tag().unwrap();
        while !caller.interruption().is_requested() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Exception::new(&mut caller, &tag, &[])?.into())
    });
    let instance = Instance::new(&mut store, &module, &[swallow.into(), throw.into()])?;
    store.set_timeout(Some(Duration::from_millis(5)))?;
    for name in ["swallows", "catches"] {
        let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let error = function.call(&mut store, ()).unwrap_err();
        assert!(is_interrupt(&error), "{name}: {error:?}");
    }
    let after = instance.get_export(&mut store, "after").unwrap().into_global().unwrap();
    assert!(matches!(after.get(&mut store), Val::I32(0)));
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

/// Rather than a limit that does not hold.
#[test]
fn engines_without_interruption_refuse_timeouts_and_handles() -> Result<()> {
    let engine = Engine::new(Config::new().interruption(false))?;
    let refused = |error: Error| {
        assert_eq!(error.downcast_ref(), Some(&UsageError::NotInterruptible));
        assert!(error.to_string().contains("Config::interruption"), "{error}");
    };
    let mut store = Store::new(&engine, ());
    refused(store.set_timeout(Some(Duration::from_secs(1))).unwrap_err());
    store.set_timeout(None)?;
    refused(store.interrupt_handle().unwrap_err());
    let module = Module::new(&engine, "(module)")?;
    let pre = Linker::new(&engine).instantiate_pre(&module)?;
    refused(pre.spawn_limited(0, (), StoreLimits::new(), |_| ()).map(drop).unwrap_err());
    pre.spawn(())?;
    Ok(())
}
