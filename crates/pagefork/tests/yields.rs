//! Guests that compute let others run where their turns end, or at their deadlines in epochs: at once, or,
//! where host functions run between their frames, as soon as these have returned or were left.

mod executor;

use std::time::Duration;

use pagefork::{
    Caller, Engine, Exception, Extern, Func, FuncType, Linker, Module, Result, Store, Tag, Trap,
    TrapCode, UpdateDeadline, UsageError, Val, ValType,
};

use crate::executor::{block_on, poll_once};

/// `inner` computes long enough for many turns. The others call it by host functions, catch what one of these
/// throws, and compute for ever.
const GUEST: &str = r#"(module
    (import "host" "direct" (func $direct))
    (import "host" "cells" (func $cells (result i32 i32)))
    (import "host" "slices" (func $slices (param i32) (result i32)))
    (import "host" "throws" (func $throws))
    (import "host" "e" (tag $e))
    (func (export "inner") (local $left i32)
        (local.set $left (i32.const 50_000_000))
        (loop $again
            (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
    (func (export "spin") (loop $again (br $again)))
    (func $forever (loop $again (br $again)))
    (func (export "direct") (call $direct) (call $forever))
    (func (export "cells") (call $cells) (drop) (drop) (call $forever))
    (func (export "slices") (drop (call $slices (i32.const 1))) (call $forever))
    (func (export "throws")
        (block $caught
            (try_table (catch $e $caught) (call $throws) (unreachable)))
        (call $forever)))"#;

const HOST_FUNCTIONS: [&str; 4] = ["direct", "cells", "slices", "throws"];

/// Calls `inner` of the guest that has called.
fn call_inner(caller: &mut Caller<'_, ()>) -> Result<()> {
    let inner = caller.get_export("inner").and_then(Extern::into_func).expect("it is exported");
    inner.typed::<(), ()>(&*caller)?.call(caller, ())
}

fn start(engine: &Engine) -> Result<(Store<()>, pagefork::Instance)> {
    let module = Module::new(engine, GUEST)?;
    let (mut linker, mut store) = (Linker::new(engine), Store::new(engine, ()));
    let tag = Tag::new(&mut store, FuncType::new([], []))?;
    linker.define(&store, "host", "e", tag)?;
    linker.func_wrap("host", "direct", |mut caller: Caller<'_, ()>| call_inner(&mut caller))?;
    linker.func_wrap("host", "cells", |mut caller: Caller<'_, ()>| {
        call_inner(&mut caller).map(|()| (1i32, 2i32))
    })?;
    linker.func_new(
        "host",
        "slices",
        FuncType::new([ValType::I32], [ValType::I32]),
        |mut caller: Caller<'_, ()>, _: &[Val], results: &mut [Val]| {
            results[0] = Val::I32(3);
            call_inner(&mut caller)
        },
    )?;
    let throws = Func::wrap(&mut store, move |mut caller: Caller<'_, ()>| -> Result<()> {
        call_inner(&mut caller)?;
        Err(Exception::new(&mut caller, &tag, &[])?.into())
    });
    linker.define(&store, "host", "throws", throws)?;
    let instance = linker.instantiate(&mut store, &module)?;
    // So that a guest which never yields ends.
    store.set_timeout(Some(Duration::from_secs(120)))?;
    Ok((store, instance))
}

#[test]
fn a_yield_that_falls_due_below_a_host_function_comes_afterwards() -> Result<()> {
    for name in HOST_FUNCTIONS {
        let (mut store, instance) = start(&Engine::default())?;
        store.set_yield_interval(Some(Duration::from_millis(1)))?;
        let run = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let mut call = run.call_async(&mut store, ());
        for round in 0..3 {
            assert!(poll_once(&mut call).is_pending(), "{name}, round {round}");
        }
    }
    Ok(())
}

#[test]
fn a_guest_yields_at_each_deadline_and_goes_on() -> Result<()> {
    for name in HOST_FUNCTIONS.into_iter().chain(["spin"]) {
        let engine = Engine::default();
        let (mut store, instance) = start(&engine)?;
        store.epoch_deadline_async_yield_and_update(1);
        store.set_epoch_deadline(1);
        let run = instance.get_typed_func::<(), ()>(&mut store, name)?;
        let mut call = run.call_async(&mut store, ());
        for round in 0..3 {
            engine.increment_epoch();
            assert!(poll_once(&mut call).is_pending(), "{name}, round {round}");
        }
    }
    Ok(())
}

#[test]
fn a_callback_says_each_time_whether_a_guest_yields() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = start(&engine)?;
    let (mut asked, clock) = (0, engine.clone());
    store.epoch_deadline_callback(move |_| {
        asked += 1;
        // The next deadline has come as soon as this one is over.
        clock.increment_epoch();
        Ok(match asked {
            1..=3 => UpdateDeadline::Continue(0),
            4 | 5 => UpdateDeadline::Yield(0),
            _ => UpdateDeadline::Interrupt,
        })
    });
    store.set_epoch_deadline(0);
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    let mut call = spin.call_async(&mut store, ());
    assert!(poll_once(&mut call).is_pending());
    assert!(poll_once(&mut call).is_pending());
    let error = block_on(&mut call).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
    Ok(())
}

#[test]
fn who_was_not_called_to_wait_cannot_yield_at_a_deadline() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = start(&engine)?;
    store.epoch_deadline_async_yield_and_update(1);
    store.set_epoch_deadline(0);
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
    let error = spin.call(&mut store, ()).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&UsageError::CannotYield));
    store.set_epoch_deadline(0);
    let error = instance
        .get_func(&mut store, "spin")
        .expect("it is exported")
        .call_suspendable(&mut store, &[])
        .unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&UsageError::CannotYield));
    // The next deadline is set, and its guests run.
    let inner = instance.get_typed_func::<(), ()>(&mut store, "inner")?;
    inner.call(&mut store, ())
}
