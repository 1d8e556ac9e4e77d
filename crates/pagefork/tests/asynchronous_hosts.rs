//! Host functions that wait and are called by the embedder or by start functions: what guests get
//! from them, these get, too.

mod executor;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pagefork::{
    Caller, Engine, Extern, ExternRef, Func, FuncType, Instance, Linker, Module, Result, Store,
    StoreLimits, Trap, TrapCode, UsageError, Val, ValType,
};

use crate::executor::{block_on, poll_once, polls};

fn usage<T>(result: Result<T>) -> UsageError {
    let error = result.err().expect("it fails");
    error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error}")).clone()
}

type Six = (i32, i64, f32, f64, u128, Option<ExternRef>);

/// Returns what it gets, changed, after so many polls, of which it counts the last.
fn echo(store: &mut Store<u32>, wait: u32) -> Func {
    Func::wrap_async(store, move |mut caller: Caller<'_, u32>, (a, b, c, d, e, f): Six| {
        Box::new(async move {
            polls(wait).await;
            *caller.data_mut() += 1;
            (a + 1, b + 1, c + 1.0, d + 1.0, e + 1, f)
        })
    })
}

/// The same, as a function of a type that Rust does not know.
fn untyped_echo(store: &mut Store<u32>, wait: u32) -> Func {
    let (i32, i64, f32, f64) = (ValType::I32, ValType::I64, ValType::F32, ValType::F64);
    let types = [i32, i64, f32, f64, ValType::V128, ValType::EXTERNREF];
    let ty = FuncType::new(types, types);
    Func::new_async(store, ty, move |mut caller: Caller<'_, u32>, arguments, results| {
        Box::new(async move {
            polls(wait).await;
            *caller.data_mut() += 1;
            let float = |value: &Val| value.f64().expect("it is one") + 1.0;
            results[0] = (arguments[0].i32().expect("it is one") + 1).into();
            results[1] = (arguments[1].i64().expect("it is one") + 1).into();
            results[2] = (arguments[2].f32().expect("it is one") + 1.0).into();
            results[3] = float(&arguments[3]).into();
            results[4] = (arguments[4].v128().expect("it is one") + 1).into();
            results[5] = arguments[5];
            Ok(())
        })
    })
}

#[test]
fn the_embedder_gets_what_a_host_function_comes_to() -> Result<()> {
    for (wait, make) in [0, 1, 3]
        .into_iter()
        .flat_map(|wait| [(wait, echo as fn(&mut Store<u32>, u32) -> Func), (wait, untyped_echo)])
    {
        let mut store = Store::new(&Engine::default(), 0);
        let echo = make(&mut store, wait);
        let held = ExternRef::new(&mut store, "held")?;
        let given: Six = (1, 2, 3.0, f64::MAX, 5 << 100, Some(held));
        let typed = echo.typed::<Six, Six>(&store)?;
        for round in 1..3 {
            let mut call = typed.call_async(&mut store, given);
            for _ in 0..wait {
                assert!(poll_once(&mut call).is_pending());
            }
            // The last poll may come on another thread.
            let last = thread::scope(|scope| scope.spawn(|| poll_once(&mut call)).join());
            let Poll::Ready(result) = last.expect("no poll panics") else { panic!("it is ready") };
            drop(call);
            let (a, b, c, d, e, f) = result?;
            assert_eq!((a, b, c, d, e), (2, 3, 4.0, f64::MAX, (5 << 100) + 1));
            let held = f.expect("it comes back");
            assert_eq!(held.data(&store)?.downcast_ref::<&str>(), Some(&"held"));
            assert_eq!(*store.data(), round);
        }
        let given =
            [1.into(), 2i64.into(), 3f32.into(), 4f64.into(), 5u128.into(), Val::ExternRef(None)];
        let mut results = [Val::I32(0); 6];
        block_on(echo.call_async(&mut store, &given, &mut results))?;
        assert_eq!((results[0].i32(), results[4].v128()), (Some(2), Some(6)));
    }
    Ok(())
}

/// What a function of any type is given and sets lies beside its future, and goes with it.
#[test]
fn guests_get_what_a_function_of_any_type_comes_to() -> Result<()> {
    let engine = Engine::default();
    let text = r#"(module
        (import "host" "swap" (func $swap (param i32 funcref) (result funcref i32)))
        (func $own (result i32) (i32.const 30))
        (elem declare func $own)
        (type $number (func (result i32)))
        (table $table 1 funcref)
        (func (export "run") (param i32) (result i32)
            (local $given i32) (local $f funcref)
            (call $swap (local.get 0) (ref.func $own))
            (local.set $given) (local.set $f)
            (table.set $table (i32.const 0) (local.get $f))
            (i32.add (local.get $given) (call_indirect $table (type $number) (i32.const 0)))))"#;
    let module = Module::new(&engine, text)?;
    let count = Arc::new(AtomicU32::new(0));
    let mut linker = Linker::new(&engine);
    let (i32, function) = (ValType::I32, ValType::FUNCREF);
    let ty = FuncType::new([i32, function], [function, i32]);
    let counts = Arc::clone(&count);
    linker.func_new_async("host", "swap", ty, move |_, arguments, results| {
        counts.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&counts));
        Box::new(async move {
            let _counted = counted;
            polls(2).await;
            results[0] = arguments[1];
            match arguments[0].i32() {
                Some(0) => results[1] = Val::I64(0),
                Some(1) => {}
                Some(2) => return Err(pagefork::format_err!("this is the error")),
                _ => results[1] = arguments[0],
            }
            Ok(())
        })
    })?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    assert_eq!(block_on(run.call_async(&mut store, 12))?, 42);
    for (what, text) in [(0, "i64"), (1, "unset"), (2, "this is the error")] {
        let error = block_on(run.call_async(&mut store, what)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    for polls in 0..3 {
        let mut call = run.call_async(&mut store, 12);
        (0..polls).for_each(|_| assert!(poll_once(&mut call).is_pending()));
        drop(call);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
    assert!(matches!(usage(run.call(&mut store, 12)), UsageError::NotAsync));
    assert_eq!(block_on(run.call_async(&mut store, 5))?, 35);
    Ok(())
}

/// Counts how many there are.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn what_ends_a_wait_leaves_nothing_of_it() -> Result<()> {
    let count = Arc::new(AtomicU32::new(0));
    let mut store = Store::new(&Engine::default(), ());
    let counts = Arc::clone(&count);
    let f = Func::wrap_async(&mut store, move |_: Caller<'_, ()>, (what,): (i32,)| {
        counts.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&counts));
        Box::new(async move {
            polls(1).await;
            let _counted = counted;
            match what {
                0 => Err("this is the error"),
                1 => panic!("this is the panic"),
                2 => std::future::pending().await,
                what => Ok(what),
            }
        }) as Box<dyn Future<Output = Result<i32, &'static str>> + Send + '_>
    });
    let f = f.typed::<i32, i32>(&store)?;
    let left = || count.load(Ordering::Relaxed);
    for _ in 0..2 {
        let error = block_on(f.call_async(&mut store, 0)).unwrap_err();
        assert!(error.to_string().contains("this is the error"), "{error}");
        assert_eq!(left(), 0);
        let call = AssertUnwindSafe(|| block_on(f.call_async(&mut store, 1)));
        let panic = catch_unwind(call).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"this is the panic"));
        assert_eq!(left(), 0);
        for polls in 0..3 {
            let mut call = f.call_async(&mut store, 2);
            (0..polls).for_each(|_| assert!(poll_once(&mut call).is_pending()));
            assert_eq!(left(), u32::from(polls > 0));
            drop(call);
            assert_eq!(left(), 0);
        }
        store.set_timeout(Some(Duration::from_millis(20)))?;
        let error = block_on(f.call_async(&mut store, 2)).unwrap_err();
        assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
        store.set_timeout(None)?;
        let handle = store.interrupt_handle()?;
        let mut call = f.call_async(&mut store, 2);
        assert!(poll_once(&mut call).is_pending());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                handle.interrupt();
            });
            let error = block_on(&mut call).unwrap_err();
            assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
        });
        drop(call);
        assert_eq!(block_on(f.call_async(&mut store, 3))?, 3);
        assert_eq!(left(), 0);
    }
    Ok(())
}

/// Only the call that the future is of can wait, not what is called synchronously on its way.
#[test]
fn what_cannot_wait_says_so() -> Result<()> {
    let mut store = Store::new(&Engine::default(), 0);
    let waits = |store: &mut Store<u32>, wait| {
        Func::wrap_async(store, move |mut caller: Caller<'_, u32>, (): ()| {
            Box::new(async move {
                polls(wait).await;
                *caller.data_mut() += 1;
            })
        })
    };
    for (wait, works) in [(0, true), (1, false)] {
        let f = waits(&mut store, wait);
        assert!(matches!(usage(f.call(&mut store, &[], &mut [])), UsageError::NotAsync));
        let between = Func::wrap(&mut store, move |mut caller: Caller<'_, u32>| {
            f.call(&mut caller, &[], &mut [])
        });
        let result = block_on(between.call_async(&mut store, &[], &mut []));
        match works {
            true => result?,
            false => assert!(matches!(usage(result), UsageError::NotSuspendable)),
        }
    }
    Ok(())
}

/// While an embedder's call waits no guest is entered, so a host function can call guests, and these
/// can wait, too.
#[test]
fn a_host_function_calls_guests_while_it_waits() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, 0);
    let six = echo(&mut store, 2);
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f (param i32 i64 f32 f64 v128 externref)
                (result i32 i64 f32 f64 v128 externref)))
            (func (export "run") (param i32) (result i32)
                (call $f (local.get 0) (i64.const 0) (f32.const 0) (f64.const 0)
                    (v128.const i64x2 0 0) (ref.null extern))
                drop drop drop drop drop))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[six.into()])?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    let twice = Func::wrap_async(&mut store, move |mut caller: Caller<'_, u32>, (x,): (i32,)| {
        Box::new(async move {
            polls(1).await;
            let once = run.call_async(&mut caller, x).await?;
            polls(1).await;
            run.call_async(&mut caller, once).await
        }) as Box<dyn Future<Output = Result<i32>> + Send + '_>
    });
    let twice = twice.typed::<i32, i32>(&store)?;
    let mut call = twice.call_async(&mut store, 40);
    for polls in 0..6 {
        assert!(poll_once(&mut call).is_pending(), "{polls}");
    }
    assert!(matches!(poll_once(&mut call), Poll::Ready(Ok(42))));
    drop(call);
    for polls in 0..6 {
        let mut call = twice.call_async(&mut store, 40);
        (0..polls).for_each(|_| assert!(poll_once(&mut call).is_pending()));
        drop(call);
        assert_eq!(block_on(run.call_async(&mut store, polls))?, polls + 1);
    }
    // Below a guest it cannot.
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f (param i32) (result i32)))
            (func (export "outer") (param i32) (result i32) (call $f (local.get 0))))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[Extern::from(*twice.func())])?;
    let outer = instance.get_typed_func::<i32, i32>(&mut store, "outer")?;
    let result = block_on(outer.call_async(&mut store, 1));
    assert!(matches!(usage(result), UsageError::Suspended));
    assert_eq!(block_on(run.call_async(&mut store, 1))?, 2);
    Ok(())
}

/// A module whose start function calls `host.f`, and keeps what it comes to.
const STARTING: &str = r#"(module
    (import "host" "f" (func $f (param i32) (result i32)))
    (global $got (mut i32) (i32.const 0))
    (memory (export "memory") 1)
    (func $start
        (i32.store (i32.const 8) (i32.const 5))
        (global.set $got (call $f (i32.const 4)))
        (global.set $got (i32.add (global.get $got) (call $f (global.get $got)))))
    (start $start)
    (func (export "got") (result i32) (global.get $got)))"#;

fn starting(wait: u32) -> Result<(Module, Linker<u32>)> {
    let engine = Engine::default();
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "f", move |mut caller: Caller<'_, u32>, (x,): (i32,)| {
        Box::new(async move {
            polls(wait).await;
            *caller.data_mut() += 1;
            x * 10
        })
    })?;
    Ok((Module::new(&engine, STARTING)?, linker))
}

#[test]
fn start_functions_wait() -> Result<()> {
    for wait in [0, 2] {
        let (module, linker) = starting(wait)?;
        let pre = linker.instantiate_pre(&module)?;
        let got = module.get_typed_export::<(), i32>("got")?;
        let mut store = Store::new(linker.engine(), 0);
        let first = block_on(linker.instantiate_async(&mut store, &module))?;
        let second = block_on(pre.instantiate_async(&mut store))?;
        for instance in [first, second] {
            assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
        }
        assert_eq!(*store.data(), 4);
        for _ in 0..3 {
            let (mut store, instance) = block_on(pre.spawn_async(100))?;
            assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
            assert_eq!(*store.data(), 102);
        }
        // Not where nothing waits for it.
        assert!(matches!(usage(linker.instantiate(&mut store, &module)), UsageError::NotAsync));
        assert!(matches!(usage(pre.spawn(0)), UsageError::NotAsync));
        assert!(matches!(usage(pre.instantiate(&mut store)), UsageError::NotAsync));
    }
    Ok(())
}

/// Limits hold from the start, and what waits then can be interrupted.
#[test]
fn start_functions_that_wait_have_limits_and_are_interrupted() -> Result<()> {
    let (module, linker) = starting(2)?;
    let pre = linker.instantiate_pre(&module)?;
    let got = module.get_typed_export::<(), i32>("got")?;
    let page = StoreLimits::new().memory_total(1 << 16);
    for tenant in [3, 4, 3] {
        let (mut store, instance) = block_on(pre.spawn_for_async(tenant, 0))?;
        assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
        let (mut store, instance) = block_on(pre.spawn_limited_async(tenant, 0, page, |_| ()))?;
        assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
        let memory = instance.get_memory(&mut store, "memory").expect("an export");
        assert!(memory.grow(&mut store, 1).is_err());
    }
    let small = StoreLimits::new().memory_total(1);
    let refused = block_on(pre.spawn_limited_async(0, 0, small, |_| ())).err();
    assert!(refused.is_some_and(|error| error.to_string().contains("limit")));
    let (send, receive) = mpsc::channel();
    let watch = |handle| send.send(handle).expect("it is awaited");
    let mut spawning = Box::pin(pre.spawn_limited_async(0, 0, page, watch));
    assert!(poll_once(&mut spawning).is_pending());
    receive.try_recv().expect("it was given before the guest ran").interrupt();
    let error = block_on(spawning).expect_err("it was interrupted");
    assert!(error.to_string().contains("interrupted"), "{error}");
    Ok(())
}

/// What was given up while it started is nothing to the next one.
#[test]
fn starts_can_be_dropped_at_every_poll() -> Result<()> {
    let (module, linker) = starting(2)?;
    let pre = linker.instantiate_pre(&module)?;
    let got = module.get_typed_export::<(), i32>("got")?;
    for polls in 0..5 {
        let mut spawning = Box::pin(pre.spawn_async(0));
        for _ in 0..polls {
            assert!(poll_once(&mut spawning).is_pending());
        }
        drop(spawning);
        let (mut store, instance) = block_on(pre.spawn_async(0))?;
        assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
        assert_eq!(*store.data(), 2);

        let mut store = Store::new(linker.engine(), 0);
        let mut instantiating = Box::pin(linker.instantiate_async(&mut store, &module));
        for _ in 0..polls {
            assert!(poll_once(&mut instantiating).is_pending());
        }
        drop(instantiating);
        // The store is as after a trap.
        let instance = block_on(pre.instantiate_async(&mut store))?;
        assert_eq!(instance.get_typed_export(&store, &got)?.call(&mut store, ())?, 440);
    }
    Ok(())
}

/// A start function may be imported: no guest is around it then, and its caller is the instance.
#[test]
fn an_imported_start_function_waits() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "start" (func $start)) (memory (export "memory") 1)
            (start $start))"#,
    )?;
    for wait in [0, 2] {
        let mut linker = Linker::new(&engine);
        linker.func_wrap_async("host", "start", move |mut caller: Caller<'_, ()>, (): ()| {
            Box::new(async move {
                polls(wait).await;
                let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!() };
                memory.data_mut(&mut caller)[7] = 9;
            })
        })?;
        let pre = linker.instantiate_pre(&module)?;
        for _ in 0..2 {
            let (mut store, instance) = block_on(pre.spawn_async(()))?;
            let memory = instance.get_memory(&mut store, "memory").expect("an export");
            assert_eq!(memory.data(&store)[..9], [0, 0, 0, 0, 0, 0, 0, 9, 0]);
        }
    }
    Ok(())
}

/// A guest that is suspended for the embedder does not wait for host functions besides.
#[test]
fn a_suspendable_call_cannot_wait() -> Result<()> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, 0);
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f)) (func (export "run") (call $f)))"#,
    )?;
    let f = Func::wrap_async(&mut store, |_: Caller<'_, u32>, (): ()| Box::new(polls(1)));
    let instance = Instance::new(&mut store, &module, &[f.into()])?;
    let run = instance.get_func(&mut store, "run").expect("an export");
    assert!(matches!(usage(run.call_suspendable(&mut store, &[])), UsageError::NotAsync));
    // Not even where somebody polls.
    let outer = Func::wrap_async(&mut store, move |mut caller: Caller<'_, u32>, (): ()| {
        Box::new(async move { run.call_suspendable(&mut caller, &[]).map(|_| ()) })
            as Box<dyn Future<Output = Result<()>> + Send + '_>
    });
    let result = block_on(outer.call_async(&mut store, &[], &mut []));
    assert!(matches!(usage(result), UsageError::NotAsync));
    assert_eq!(store.into_data(), 0);
    Ok(())
}

/// What a host function calls for itself, while the guest that has called it could wait, is not what that guest
/// waits for: it would find the results of another function, of other types, as its own.
#[test]
fn a_host_function_of_a_guest_that_can_wait_calls_nothing_that_waits_in_its_place() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f (result funcref)))
            (func (export "run") (result i32) (ref.is_null (call $f))))"#,
    )?;
    for (wait, works) in [(0, true), (1, false)] {
        let mut store = Store::new(&engine, 0);
        let many = FuncType::new([], vec![ValType::I64; 100]);
        let waits = Func::new_async(&mut store, many, move |_, _, results| {
            Box::new(async move {
                polls(wait).await;
                results.fill(0x1234_5678_i64.into());
                Ok(())
            })
        });
        let ty = FuncType::new([], [ValType::FUNCREF]);
        let between = Func::new(&mut store, ty, move |mut caller: Caller<'_, u32>, _, results| {
            results[0] = Val::FuncRef(None);
            let mut own = vec![Val::I64(0); 100];
            waits.call(&mut caller, &[], &mut own)
        });
        let instance = Instance::new(&mut store, &module, &[between.into()])?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        let result = block_on(run.call_async(&mut store, ()));
        match works {
            true => assert_eq!(result?, 1),
            false => assert!(matches!(usage(result), UsageError::Nested)),
        }
    }
    Ok(())
}

/// A host function of a guest's waits for another one, and then for something else: it can be interrupted still.
#[test]
fn a_host_function_waits_for_another_one_and_its_guest_is_interrupted_after_that() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "" "f" (func $f (param i32) (result i32)))
            (func (export "run") (param i32) (result i32) (call $f (local.get 0))))"#,
    )?;
    for before in [0, 2] {
        let mut store = Store::new(&engine, 0);
        let inner = Func::wrap_async(&mut store, |_: Caller<'_, u32>, (x,): (i32,)| {
            Box::new(async move {
                polls(2).await;
                x + 1
            })
        });
        let inner = inner.typed::<i32, i32>(&store)?;
        let outer =
            Func::wrap_async(&mut store, move |mut caller: Caller<'_, u32>, (x,): (i32,)| {
                Box::new(async move {
                    polls(before).await;
                    let found = inner.call_async(&mut caller, x).await?;
                    if found > 100 {
                        std::future::pending::<()>().await;
                    }
                    Ok::<i32, pagefork::Error>(found * 2)
                })
            });
        let instance = Instance::new(&mut store, &module, &[outer.into()])?;
        let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
        assert_eq!(block_on(run.call_async(&mut store, 4))?, 10);
        store.set_timeout(Some(Duration::from_millis(50)))?;
        let error = block_on(run.call_async(&mut store, 100)).unwrap_err();
        assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
    }
    Ok(())
}
