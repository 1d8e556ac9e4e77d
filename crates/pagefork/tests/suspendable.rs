//! Calls that end suspended: before a host call, after one, or where another thread asked for it;
//! and what the guest is resumed with.

use std::sync::mpsc;
use std::time::Duration;

use pagefork::{
    CallHook, CallProgress, Caller, Config, Engine, Exception, Func, FuncType, Instance, Linker,
    Module, Result, Store, SuspendedAt, Tag, Trap, TrapCode, UsageError, Val, ValType,
};

fn finished(progress: CallProgress) -> Vec<Val> {
    match progress {
        CallProgress::Finished(values) => values,
        CallProgress::Suspended => panic!("the guest is suspended"),
    }
}

fn is_suspended(progress: Result<CallProgress>) -> bool {
    matches!(progress.unwrap(), CallProgress::Suspended)
}

/// A host function with this many queued answers; without one it puts the call off.
type Answers = Vec<i64>;

const MANY: &str = r#"(module
    (import "host" "ask" (func $ask (param i32 i64 f32 f64 i32) (result i64)))
    (func (export "run") (param i32) (result i64)
        (i64.add
            (call $ask (local.get 0) (i64.const -2) (f32.const 1.5) (f64.const -0.25) (i32.const 5))
            (call $ask (i32.const 1) (i64.const 2) (f32.const 3) (f64.const 4) (local.get 0)))))"#;

fn answer(x: i32, y: i64, z: f32, w: f64, v: i32, factor: i64) -> i64 {
    let floats = (f64::from(z) + w) * 4.0;
    factor * (i64::from(x) * 1000 + y * 100 + floats as i64 * 10 + i64::from(v))
}

/// Each kind of host function: called directly, with cells, untyped, and around a hook.
fn kinds() -> Vec<(&'static str, Store<Answers>, Func)> {
    let engine = Engine::default();
    let module = Module::new(&engine, MANY).unwrap();
    ["direct", "untyped", "hooked"]
        .into_iter()
        .map(|kind| {
            let mut store = Store::new(&engine, Answers::new());
            let typed = |mut caller: Caller<'_, Answers>, x, y, z, w, v| -> Result<i64> {
                match caller.data_mut().pop() {
                    Some(factor) => Ok(answer(x, y, z, w, v, factor)),
                    None => Err(caller.suspend_before()),
                }
            };
            let ask = match kind {
                "untyped" => {
                    use ValType::{F32, F64, I32, I64};
                    let params = [I32, I64, F32, F64, I32].into();
                    let ty = FuncType { params, results: [I64].into() };
                    Func::new(&mut store, ty, move |caller, params, results| {
                        let [Val::I32(x), Val::I64(y), Val::F32(z), Val::F64(w), Val::I32(v)] =
                            *params
                        else {
                            panic!("{params:?}")
                        };
                        let (z, w) = (f32::from_bits(z), f64::from_bits(w));
                        results[0] = Val::I64(typed(caller, x, y, z, w, v)?);
                        Ok(())
                    })
                }
                _ => Func::wrap(&mut store, typed),
            };
            if kind == "hooked" {
                store.call_hook(|_, _: CallHook| Ok(()));
            }
            let instance = Instance::new(&mut store, &module, &[ask.into()]).unwrap();
            let run = instance.get_func(&mut store, "run").unwrap();
            (kind, store, run)
        })
        .collect()
}

#[test]
fn a_call_that_was_put_off_is_made_again_with_its_arguments() {
    for (kind, mut store, run) in kinds() {
        assert!(is_suspended(run.call_suspendable(&mut store, &[Val::I32(7)])), "{kind}");
        let suspended = store.suspended().unwrap();
        assert_eq!(suspended.at(), SuspendedAt::BeforeHostCall);
        let shown = format!("{:?}", suspended.arguments());
        let args = [
            Val::I32(7),
            Val::I64(-2),
            Val::F32(1.5f32.to_bits()),
            Val::F64((-0.25f64).to_bits()),
            Val::I32(5),
        ];
        assert_eq!(shown, format!("{args:?}"), "{kind}");
        assert_eq!(suspended.host_function().unwrap().ty(&store).params.len(), 5);
        // Again and again, on other threads too.
        assert!(is_suspended(store.resume()), "{kind}");
        let mut store = std::thread::spawn(move || {
            assert!(is_suspended(store.resume()));
            store
        })
        .join()
        .unwrap();
        store.data_mut().push(3);
        assert!(is_suspended(store.resume()), "the second call: {kind}");
        let result = store.resume_with(Ok(&[Val::I64(1)])).unwrap();
        let expected = answer(7, -2, 1.5, -0.25, 5, 3) + 1;
        assert_eq!(finished(result)[0].i64(), Some(expected), "{kind}");
        assert!(store.suspended().is_none());
        store.data_mut().extend([1, 1]);
        finished(run.call_suspendable(&mut store, &[Val::I32(1)]).unwrap());
    }
}

#[test]
fn results_of_another_type_are_refused_and_the_guest_stays_suspended() {
    for (kind, mut store, run) in kinds() {
        assert!(is_suspended(run.call_suspendable(&mut store, &[Val::I32(7)])));
        for wrong in [&[][..], &[Val::I32(1)], &[Val::I64(1), Val::I64(1)]] {
            let error = store.resume_with(Ok(wrong)).unwrap_err();
            let usage = error.downcast_ref::<UsageError>().unwrap();
            let expected = matches!(
                usage,
                UsageError::ValueCount { what: "results", .. } | UsageError::TypeMismatch { .. }
            );
            assert!(expected, "{kind}: {error}");
            assert_eq!(store.suspended().unwrap().at(), SuspendedAt::BeforeHostCall);
        }
        assert!(is_suspended(store.resume_with(Ok(&[Val::I64(1)]))));
        assert_eq!(store.suspended().unwrap().arguments()[4].i32(), Some(7));
        store.abandon();
        assert!(store.resume().unwrap_err().to_string().contains("no suspended guest"));
    }
}

#[test]
fn an_error_is_delivered_where_the_guest_waits() {
    for (kind, mut store, run) in kinds() {
        assert!(is_suspended(run.call_suspendable(&mut store, &[Val::I32(7)])));
        let error = store.resume_with(Err(pagefork::Error::msg("no more"))).unwrap_err();
        assert!(error.to_string().contains("no more"), "{kind}: {error}");
        assert!(error.backtrace().is_some_and(|frames| !frames.frames().is_empty()), "{kind}");
        assert!(store.suspended().is_none());
        store.data_mut().extend([1, 1]);
        finished(run.call_suspendable(&mut store, &[Val::I32(1)]).unwrap());
    }
}

#[test]
fn an_exception_is_caught_where_the_guest_waits() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "tag" (tag $tag (param i32)))
        (import "host" "ask" (func $ask (result i32)))
        (func (export "run") (result i32)
            (block $caught (result i32)
                (try_table (result i32) (catch $tag $caught) (call $ask))
                (return))
            (i32.add (i32.const 1))))"#,
    )?;
    let mut store = Store::new(&engine, ());
    let ty = FuncType { params: [ValType::I32].into(), results: [].into() };
    let tag = Tag::new(&mut store, ty)?;
    let ask = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| -> Result<i32> {
        Err(caller.suspend_before())
    });
    let instance = Instance::new(&mut store, &module, &[tag.into(), ask.into()])?;
    let run = instance.get_func(&mut store, "run").unwrap();
    assert!(is_suspended(run.call_suspendable(&mut store, &[])));
    let exception = Exception::new(&store, &tag, &[Val::I32(40)])?;
    let results = finished(store.resume_with(Err(exception.into()))?);
    assert_eq!(results[0].i32(), Some(41));
    Ok(())
}

const SPIN: &str = r#"(module
    (import "host" "call" (func $call (result i32)))
    (memory (export "memory") 1)
    (func (export "spin") (result i32)
        (loop $l
            (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
            (br_if $l (i32.eqz (i32.load8_u (i32.const 8)))))
        (i32.load8_u (i32.const 8)))
    (func (export "outer") (result i32) (i32.mul (call $call) (i32.const 2))))"#;

/// A guest that spins until its memory says so, and one that has the host call it.
fn spinner(config: &Config) -> Result<(Store<Option<Func>>, Instance)> {
    let engine = Engine::new(config)?;
    let module = Module::new(&engine, SPIN)?;
    let mut store = Store::new(&engine, None);
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "call", |mut caller: Caller<'_, Option<Func>>| -> Result<i32> {
        let spin = caller.data().expect("it is set");
        let mut results = [Val::I32(0)];
        spin.call(&mut caller, &[], &mut results)?;
        Ok(results[0].i32().expect("one"))
    })?;
    let instance = linker.instantiate(&mut store, &module)?;
    *store.data_mut() = instance.get_func(&mut store, "spin");
    Ok((store, instance))
}

/// Asks for the guest's suspension until it is told to stop.
fn ask_from_outside(store: &Store<Option<Func>>) -> impl FnOnce() + use<> {
    let handle = store.interrupt_handle().unwrap();
    let (done, stop) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        while stop.recv_timeout(Duration::from_micros(200)).is_err() {
            handle.suspend();
        }
    });
    move || {
        done.send(()).unwrap();
        thread.join().unwrap();
    }
}

#[test]
fn another_thread_suspends_a_guest_that_computes() -> Result<()> {
    let (mut store, instance) = spinner(&Config::new())?;
    let spin = instance.get_func(&mut store, "spin").unwrap();
    let stop = ask_from_outside(&store);
    assert!(is_suspended(spin.call_suspendable(&mut store, &[])));
    for _ in 0..20 {
        assert_eq!(store.suspended().unwrap().at(), SuspendedAt::InterruptionPoint);
        assert!(is_suspended(store.resume()));
    }
    stop();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.data_mut(&mut store)[8] = 9;
    assert_eq!(finished(store.resume()?)[0].i32(), Some(9));
    Ok(())
}

#[test]
fn a_late_request_reaches_nobody() -> Result<()> {
    let (mut store, instance) = spinner(&Config::new())?;
    let spin = instance.get_func(&mut store, "spin").unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.data_mut(&mut store)[8] = 1;
    let handle = store.interrupt_handle()?;
    for _ in 0..3 {
        handle.suspend();
        finished(spin.call_suspendable(&mut store, &[])?);
        handle.suspend();
        // Neither does a call end so that was not made to.
        spin.call(&mut store, &[], &mut [Val::I32(0)])?;
    }
    Ok(())
}

#[test]
fn a_request_waits_until_host_functions_between_frames_have_returned() -> Result<()> {
    let (mut store, instance) = spinner(&Config::new())?;
    let outer = instance.get_func(&mut store, "outer").unwrap();
    store.set_timeout(Some(Duration::from_millis(50)))?;
    let stop = ask_from_outside(&store);
    let mut progress = outer.call_suspendable(&mut store, &[]);
    while let Ok(CallProgress::Suspended) = progress {
        // It came before the outer guest had called the host.
        assert_eq!(store.suspended().unwrap().at(), SuspendedAt::InterruptionPoint);
        progress = store.resume();
    }
    // The inner guest is not suspended: the time ends it.
    let error = progress.unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
    stop();

    // It comes while the inner guest runs, and waits until the outer one goes on.
    let engine = store.engine().clone();
    let text = r#"(module
        (import "host" "call" (func $call (result i32)))
        (import "host" "tick" (func $tick (result i32)))
        (func (export "spin") (result i32) (loop $l (br_if $l (call $tick))) (i32.const 3))
        (func (export "outer") (result i32) (i32.mul (call $call) (i32.const 2))))"#;
    let mut linker = Linker::new(&engine);
    linker.func_wrap(
        "host",
        "call",
        |mut caller: Caller<'_, (i32, Option<Func>)>| -> Result<i32> {
            let (spin, mut results) = (caller.data().1.expect("it is set"), [Val::I32(0)]);
            spin.call(&mut caller, &[], &mut results)?;
            Ok(results[0].i32().expect("one"))
        },
    )?;
    linker.func_wrap(
        "host",
        "tick",
        |mut caller: Caller<'_, (i32, Option<Func>)>| -> Result<i32> {
            caller.data_mut().0 += 1;
            if caller.data().0 == 10 {
                caller.interrupt_handle()?.suspend();
            }
            Ok(i32::from(caller.data().0 < 100))
        },
    )?;
    let mut store = Store::new(&engine, (0, None));
    let instance = linker.instantiate(&mut store, &Module::new(&engine, text)?)?;
    store.data_mut().1 = instance.get_func(&mut store, "spin");
    let outer = instance.get_func(&mut store, "outer").unwrap();
    assert!(is_suspended(outer.call_suspendable(&mut store, &[])));
    assert_eq!(store.data().0, 100);
    assert_eq!(store.suspended().unwrap().at(), SuspendedAt::AfterHostCall);
    assert_eq!(finished(store.resume()?)[0].i32(), Some(6));
    Ok(())
}

#[test]
fn host_functions_that_cannot_suspend_their_caller_say_so() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "off" (func $off (param i32)))
            (import "host" "call" (func $call))
            (func (export "inner") (call $off (i32.const 1)))
            (func (export "outer") (call $call)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap(
        "host",
        "off",
        |mut caller: Caller<'_, Option<Func>>, _: i32| -> Result<()> {
            assert!(!caller.can_suspend());
            let after = caller.suspend_after().unwrap_err();
            let before = caller.suspend_before();
            assert_eq!(after.to_string(), before.to_string());
            Err(before)
        },
    )?;
    linker.func_wrap("host", "call", |mut caller: Caller<'_, Option<Func>>| -> Result<()> {
        let inner = caller.data().unwrap();
        inner.call(&mut caller, &[], &mut [])
    })?;
    let mut store = Store::new(&engine, None);
    let instance = linker.instantiate(&mut store, &module)?;
    let [inner, outer] =
        ["inner", "outer"].map(|name| instance.get_func(&mut store, name).unwrap());
    *store.data_mut() = Some(inner);
    let error = inner.call(&mut store, &[], &mut []).unwrap_err();
    assert!(error.to_string().contains("not called to be"), "{error}");
    let error = outer.call_suspendable(&mut store, &[]).unwrap_err();
    assert!(error.to_string().contains("by a host function"), "{error}");
    assert!(store.suspended().is_none());
    Ok(())
}

#[test]
fn fuel_and_the_rest_of_a_timeout_go_on() -> Result<()> {
    let (mut store, instance) = spinner(Config::new().fuel(true))?;
    let spin = instance.get_func(&mut store, "spin").unwrap();
    store.set_fuel(u64::MAX / 4)?;
    store.set_timeout(Some(Duration::from_millis(400)))?;
    let stop = ask_from_outside(&store);
    let mut fuel = store.fuel()?;
    assert!(is_suspended(spin.call_suspendable(&mut store, &[])));
    let (start, mut times) = (std::time::Instant::now(), 0u64);
    let error = loop {
        let left = store.fuel()?;
        assert!(left <= fuel, "fuel is given back by nothing");
        fuel = left;
        // Time passes, but not the guest's.
        std::thread::sleep(Duration::from_millis(1));
        match store.resume() {
            Ok(progress) => assert!(matches!(progress, CallProgress::Suspended)),
            Err(error) => break error,
        }
        times += 1;
        assert!(start.elapsed() < Duration::from_secs(60), "the timeout starts anew each time");
    };
    stop();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
    assert!(times > 0 && fuel < u64::MAX / 4 - times, "{times} times, {fuel}");

    store.set_timeout(None)?;
    store.set_fuel(10_000)?;
    let error = spin.call_suspendable(&mut store, &[]).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::OutOfFuel);
    Ok(())
}

#[test]
fn a_panic_in_a_call_that_is_made_again_gives_the_guest_up() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "off" (func $off))
            (func (export "run") (call $off)))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, false);
    let off = Func::wrap(&mut store, |mut caller: Caller<'_, bool>| -> Result<()> {
        assert!(!caller.data(), "it is told to panic");
        Err(caller.suspend_before())
    });
    let instance = Instance::new(&mut store, &module, &[off.into()]).unwrap();
    let run = instance.get_func(&mut store, "run").unwrap();
    assert!(is_suspended(run.call_suspendable(&mut store, &[])));
    *store.data_mut() = true;
    let resumed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.resume()));
    assert!(resumed.is_err());
    assert!(store.suspended().is_none());
    *store.data_mut() = false;
    assert!(is_suspended(run.call_suspendable(&mut store, &[])));
    // Nor can another guest of the store be called now, and what cannot be is said.
    let error = run.call(&mut store, &[], &mut []).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::Suspended)), "{error}");
    let error = run.call_suspendable(&mut store, &[]).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::Suspended)), "{error}");
    store.reset(false).unwrap();
    assert!(store.suspended().is_none());
}

#[test]
fn an_interrupt_ends_a_call_that_is_made_again() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module (import "host" "wait" (func $wait))
        (func (export "run") (call $wait)))"#;
    let module = Module::new(&engine, text)?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "wait", |mut caller: Caller<'_, bool>| -> Result<()> {
        while *caller.data() && !caller.interruption().is_requested() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(caller.suspend_before())
    })?;
    let mut store = Store::new(&engine, false);
    let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    assert!(is_suspended(run.call_suspendable(&mut store, &[])));
    *store.data_mut() = true;
    store.set_timeout(Some(Duration::from_millis(20)))?;
    let error = store.resume().unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
    assert!(store.suspended().is_none());
    // In the first call, too.
    let error = run.call_suspendable(&mut store, &[]).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
    Ok(())
}
