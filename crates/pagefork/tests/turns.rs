//! The embedder can have turns of guests run where it wants: whoever runs them, they mean the same,
//! and a runner that does not do its work ends the call alone.

mod executor;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use pagefork::{Caller, Engine, Linker, Module, Result, Store, Trap, TrapCode, UsageError};

use crate::executor::{block_on, poll_once, polls};

/// Waits twice and writes in between; `spoil` does as its argument says.
const GUEST: &str = r#"(module
    (import "host" "wait" (func $wait (param i32) (result i32)))
    (memory (export "memory") 4)
    (func (export "run") (param i32) (result i32) (local $sum i32)
        (if (i32.load (i32.const 70000)) (then unreachable))
        (i32.store (i32.const 70000) (local.get 0))
        (local.set $sum (call $wait (local.get 0)))
        (i32.store (i32.const 140000) (local.get $sum))
        (i32.add (local.get $sum) (call $wait (i32.const 1))))
    (func (export "spoil") (param i32) (result i32)
        (drop (call $wait (local.get 0)))
        (unreachable)))"#;

/// The data counts the polls of host functions that were done on the thread of the test.
fn linker(engine: &Engine) -> Result<Linker<u32>> {
    let home = thread::current().id();
    let mut linker = Linker::new(engine);
    linker.func_wrap_async("host", "wait", move |mut caller: Caller<'_, u32>, (x,): (i32,)| {
        Box::new(async move {
            assert!(x != -1, "this is the panic");
            *caller.data_mut() += u32::from(thread::current().id() == home);
            polls(1).await;
            *caller.data_mut() += u32::from(thread::current().id() == home);
            x * 10
        })
    })?;
    Ok(linker)
}

/// Runs a turn on a thread of its own.
fn elsewhere(turn: &mut (dyn FnMut() + Send)) {
    thread::scope(|scope| scope.spawn(turn).join().expect("a panic is the poll's"));
}

#[test]
fn turns_run_on_other_threads() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let pre = linker(&engine)?.instantiate_pre(&module)?;
    let run = module.get_typed_export::<i32, i32>("run")?;
    let turns = Arc::new(AtomicU32::new(0));
    // The same slot each time, of which nothing may be left that any thread wrote.
    for round in 0..40 {
        let (mut store, instance) = pre.spawn(0)?;
        let run = instance.get_typed_export(&store, &run)?;
        let own_turns = round % 4 != 3;
        if own_turns {
            let turns = Arc::clone(&turns);
            store.run_turns_with(move |turn| {
                turns.fetch_add(1, Ordering::Relaxed);
                elsewhere(turn);
                // Once more is nothing.
                turn();
            });
        }
        turns.store(0, Ordering::Relaxed);
        assert_eq!(block_on(run.call_async(&mut store, 4))?, 50);
        assert_eq!(turns.load(Ordering::Relaxed), if own_turns { 3 } else { 0 });
        // The first poll of a host function is part of a turn.
        assert_eq!(*store.data(), if own_turns { 2 } else { 4 });
    }
    Ok(())
}

#[test]
fn traps_and_panics_in_turns_are_the_polls() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, 0);
    let instance = linker(&engine)?.instantiate(&mut store, &Module::new(&engine, GUEST)?)?;
    let spoil = instance.get_typed_func::<i32, i32>(&mut store, "spoil")?;
    store.run_turns_with(elsewhere);
    for _ in 0..2 {
        let error = block_on(spoil.call_async(&mut store, 0)).unwrap_err();
        assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Unreachable);
        let call = AssertUnwindSafe(|| block_on(spoil.call_async(&mut store, -1)));
        let panic = catch_unwind(call).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"this is the panic"));
    }
    Ok(())
}

/// What a runner does wrong at its turn number `at`.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Nothing,
    PanicsBefore,
    PanicsAfter,
}

#[test]
fn a_runner_that_fails_ends_the_call_alone() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let linker = linker(&engine)?;
    for wrong in [Wrong::Nothing, Wrong::PanicsBefore, Wrong::PanicsAfter] {
        for at in 0..3 {
            let mut store = Store::new(&engine, 0);
            let instance = linker.instantiate(&mut store, &module)?;
            let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
            let turns = AtomicU32::new(0);
            store.run_turns_with(move |turn| {
                match (turns.fetch_add(1, Ordering::Relaxed) == at, wrong) {
                    (true, Wrong::Nothing) => {}
                    (true, Wrong::PanicsBefore) => panic!("this is the runner"),
                    (true, Wrong::PanicsAfter) => {
                        turn();
                        panic!("this is the runner")
                    }
                    (false, _) => turn(),
                }
            });
            let ended = catch_unwind(AssertUnwindSafe(|| block_on(run.call_async(&mut store, 4))));
            match (wrong, ended) {
                (Wrong::Nothing, Ok(Err(error))) => {
                    assert_eq!(error.downcast_ref(), Some(&UsageError::TurnNotRun), "{at}");
                }
                (Wrong::PanicsBefore | Wrong::PanicsAfter, Err(panic)) => {
                    assert_eq!(panic.downcast_ref(), Some(&"this is the runner"), "{at}");
                }
                (_, ended) => panic!("{wrong:?} at {at}: {ended:?}"),
            }
            // The guest is given up, and the store can be used.
            let memory = instance.get_memory(&mut store, "memory").expect("an export");
            memory.write(&mut store, 70000, &[0; 4])?;
            assert_eq!(block_on(run.call_async(&mut store, 4))?, 50, "{wrong:?} at {at}");
        }
    }
    Ok(())
}

/// A call that is dropped between its turns is given up, whoever has run them.
#[test]
fn calls_are_dropped_between_turns() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, GUEST)?;
    let pre = linker(&engine)?.instantiate_pre(&module)?;
    let run = module.get_typed_export::<i32, i32>("run")?;
    for polls in 0..3 {
        let (mut store, instance) = pre.spawn(0)?;
        store.run_turns_with(elsewhere);
        let run = instance.get_typed_export(&store, &run)?;
        let mut call = run.call_async(&mut store, 4);
        (0..polls).for_each(|_| assert!(poll_once(&mut call).is_pending()));
        drop(call);
        drop(store);
        let (mut store, instance) = pre.spawn(0)?;
        let memory = instance.get_memory(&mut store, "memory").expect("an export");
        assert!(memory.data(&store).iter().all(|byte| *byte == 0), "after {polls} polls");
    }
    Ok(())
}
