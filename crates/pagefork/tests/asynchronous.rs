//! Guests wait for host functions as pages, on any executor, and what ends a wait ends it: a
//! result, an error, an exception, a trap, a timeout, an interrupt, or that nobody waits.

mod executor;

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use pagefork::{
    Caller, Engine, Exception, Extern, ExternRef, Func, FuncType, Instance, Linker, Module, Result,
    Store, Tag, Trap, TrapCode, UsageError, Val, ValType,
};

use crate::executor::{block_on, poll_once, polls};

/// A store with a guest whose `run` calls `host.f`, made by `define`, with this text as module.
fn start<T: 'static>(
    data: T,
    text: &str,
    define: impl FnOnce(&mut Linker<T>) -> Result<()>,
) -> Result<(Store<T>, Instance)> {
    let engine = Engine::default();
    let module = Module::new(&engine, text)?;
    let mut linker = Linker::new(&engine);
    define(&mut linker)?;
    let mut store = Store::new(&engine, data);
    let instance = linker.instantiate(&mut store, &module)?;
    Ok((store, instance))
}

/// Adds up what the host function returns for 1 to 4, with live values across each call.
const SUM: &str = r#"(module
    (import "host" "f" (func $f (param i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (result i32) (local $i i32) (local $sum i32) (local $x f64)
        (local.set $x (f64.const 0.5))
        (loop $next
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (local.set $x (f64.mul (local.get $x) (f64.const 2)))
            (local.set $sum (i32.add (local.get $sum) (call $f (local.get $i))))
            (i32.store (i32.mul (local.get $i) (i32.const 4)) (local.get $sum))
            (br_if $next (i32.lt_u (local.get $i) (i32.const 4))))
        (i32.add (local.get $sum) (i32.trunc_f64_s (local.get $x))))
    (func (export "spin") (param i32) (loop $l
        (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
        (br_if $l (local.get 0))))
    (func (export "plain") (result i32) (i32.const 5)))"#;

/// A store in which `host.f` waits for as many polls as its argument says, and multiplies it.
fn summing(wait: u32) -> Result<(Store<u32>, Instance)> {
    start(0, SUM, |linker| {
        linker.func_wrap_async("host", "f", move |mut caller: Caller<'_, u32>, (i,): (i32,)| {
            Box::new(async move {
                polls(wait).await;
                *caller.data_mut() += 1;
                i * 100
            })
        })?;
        Ok(())
    })
}

/// A store in which `host.f` waits for what never comes.
fn waiting_forever() -> Result<(Store<()>, Instance)> {
    start((), SUM, |linker| {
        linker.func_wrap_async("host", "f", |_: Caller<'_, ()>, (i,): (i32,)| {
            Box::new(async move {
                std::future::pending::<()>().await;
                i
            })
        })?;
        Ok(())
    })
}

#[test]
fn a_guest_gets_what_its_host_functions_come_to() -> Result<()> {
    for wait in [0, 1, 3] {
        let (mut store, instance) = summing(wait)?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        for round in 1..4 {
            assert_eq!(block_on(run.call_async(&mut store, ()))?, 1008);
            assert_eq!(*store.data(), 4 * round);
        }
        let run = instance.get_func(&mut store, "run").expect("an export");
        let mut results = [Val::I32(0)];
        block_on(run.call_async(&mut store, &[], &mut results))?;
        assert_eq!(results[0].i32(), Some(1008));
    }
    Ok(())
}

#[test]
fn what_is_ready_at_once_suspends_nothing() -> Result<()> {
    let (mut store, instance) = summing(0)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let mut call = run.call_async(&mut store, ());
    assert!(matches!(poll_once(&mut call), Poll::Ready(Ok(1008))));
    Ok(())
}

#[test]
fn each_poll_may_come_on_another_thread() -> Result<()> {
    let (mut store, instance) = summing(2)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let mut call = run.call_async(&mut store, ());
    let mut polls = 1;
    let result = loop {
        let polled = thread::scope(|scope| scope.spawn(|| poll_once(&mut call)).join());
        match polled.expect("no poll panics") {
            Poll::Ready(result) => break result,
            Poll::Pending => polls += 1,
        }
    };
    assert_eq!(result?, 1008);
    assert_eq!(polls, 9);
    Ok(())
}

#[test]
fn results_of_every_type_come_after_a_wait() -> Result<()> {
    let text = r#"(module
        (import "host" "f" (func $f (param i32 i64 f32 f64 v128 externref)
            (result i32 i64 f32 f64 v128 externref)))
        (import "host" "i32" (func $i32 (result i32)))
        (import "host" "i64" (func $i64 (result i64)))
        (import "host" "f32" (func $f32 (result f32)))
        (import "host" "f64" (func $f64 (result f64)))
        (func (export "run") (param i32 i64 f32 f64 v128 externref)
            (result i32 i64 f32 f64 v128 externref)
            (call $f (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4)
                (local.get 5)))
        (func (export "single") (result i32 i64 f32 f64)
            (call $i32) (call $i64) (call $f32) (call $f64)))"#;
    type Six = (i32, i64, f32, f64, u128, Option<ExternRef>);
    let (mut store, instance) = start((), text, |linker| {
        linker.func_wrap_async("host", "f", |_: Caller<'_, ()>, values: Six| {
            Box::new(async move {
                polls(1).await;
                let (a, b, c, d, e, f) = values;
                (a + 1, b + 1, c + 1.0, d + 1.0, e + 1, f)
            })
        })?;
        macro_rules! single {
            ($name:literal, $value:expr) => {
                linker.func_wrap_async("host", $name, |_: Caller<'_, ()>, (): ()| {
                    Box::new(async {
                        polls(1).await;
                        $value
                    })
                })?
            };
        }
        single!("i32", -7i32);
        single!("i64", i64::MIN);
        single!("f32", f32::from_bits(0xffa0_0001));
        single!("f64", f64::from_bits(0x7ff4_0000_0000_0001));
        Ok(())
    })?;
    let held = ExternRef::new(&mut store, "held")?;
    let run = instance.get_typed_func::<Six, Six>(&mut store, "run")?;
    let given = (1, 2, 3.0, 4.0, 5 << 100, Some(held));
    let (a, b, c, d, e, f) = block_on(run.call_async(&mut store, given))?;
    assert_eq!((a, b, c, d, e), (2, 3, 4.0, 5.0, (5 << 100) + 1));
    let held = f.expect("it comes back");
    assert_eq!(held.data(&store)?.downcast_ref::<&str>(), Some(&"held"));
    let single = instance.get_typed_func::<(), (i32, i64, f32, f64)>(&mut store, "single")?;
    let (a, b, c, d) = block_on(single.call_async(&mut store, ()))?;
    assert_eq!(
        (a, b, c.to_bits(), d.to_bits()),
        (-7, i64::MIN, 0xffa0_0001, 0x7ff4_0000_0000_0001)
    );
    Ok(())
}

/// Counts how many there are.
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(count: &Arc<AtomicU32>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_call_can_be_dropped_at_every_poll() -> Result<()> {
    let count = Arc::new(AtomicU32::new(0));
    let define = |linker: &mut Linker<u32>| -> Result<()> {
        let count = Arc::clone(&count);
        linker.func_wrap_async("host", "f", move |mut caller: Caller<'_, u32>, (i,): (i32,)| {
            let counted = Counted::new(&count);
            Box::new(async move {
                polls(2).await;
                *caller.data_mut() += 1;
                drop(counted);
                i
            })
        })?;
        Ok(())
    };
    let engine = Engine::default();
    let module = Module::new(&engine, SUM)?;
    let mut linker = Linker::new(&engine);
    define(&mut linker)?;
    let pre = linker.instantiate_pre(&module)?;
    for polls in 0..9 {
        let (mut store, instance) = pre.spawn(0)?;
        let memory = instance.get_memory(&mut store, "memory").expect("an export");
        assert!(memory.data(&store).iter().all(|byte| *byte == 0), "after {polls} polls");
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        let mut call = run.call_async(&mut store, ());
        for _ in 0..polls {
            assert!(poll_once(&mut call).is_pending());
        }
        drop(call);
        assert_eq!(count.load(Ordering::Relaxed), 0, "after {polls} polls");
        // The store is as after a trap.
        let plain = instance.get_typed_func::<(), i32>(&mut store, "plain")?;
        assert_eq!(plain.call(&mut store, ())?, 5);
        assert_eq!(block_on(run.call_async(&mut store, ()))?, 18);
        if polls % 2 == 0 {
            store.reset(0)?;
        }
    }
    Ok(())
}

/// A guest that waits in a frame that catches, and in one that does not.
fn throwing() -> Result<(Store<()>, Instance)> {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let ty = FuncType { params: [ValType::I32].into(), results: [].into() };
    let tag = Tag::new(&mut store, ty)?;
    let f = Func::wrap_async(&mut store, move |mut caller: Caller<'_, ()>, (what,): (i32,)| {
        Box::new(async move {
            polls(1).await;
            match what {
                0 => Err(pagefork::Error::msg("this is the error")),
                1 => Err(Trap::without_backtrace(TrapCode::IntegerOverflow).into()),
                2 => Err(Exception::new(&mut caller, &tag, &[Val::I32(77)])?.into()),
                what => Ok(what),
            }
        }) as Box<dyn Future<Output = Result<i32>> + Send + '_>
    });
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "f" (func $f (param i32) (result i32)))
            (import "host" "tag" (tag $tag (param i32)))
            (func $plain (export "plain") (param i32) (result i32)
                (i32.add (i32.const 1) (call $f (local.get 0))))
            (func $middle (param i32) (result i32) (local $kept i64)
                (local.set $kept (i64.extend_i32_u (local.get 0)))
                (i32.add (call $plain (local.get 0)) (i32.wrap_i64 (local.get $kept))))
            (func (export "catching") (param i32) (result i32) (local $x i32)
                (local.set $x (i32.mul (local.get 0) (i32.const 1000)))
                (block $caught (result i32)
                    (try_table (result i32) (catch $tag $caught) (call $middle (local.get 0)))
                    (return))
                (i32.add (local.get $x))))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[f.into(), tag.into()])?;
    Ok((store, instance))
}

#[test]
fn failures_after_a_wait_reach_the_guest_or_the_caller() -> Result<()> {
    let (mut store, instance) = throwing()?;
    for _ in 0..3 {
        for name in ["plain", "catching"] {
            let run = instance.get_typed_func::<i32, i32>(&mut store, name)?;
            let error = block_on(run.call_async(&mut store, 0)).unwrap_err();
            assert!(error.to_string().contains("this is the error"), "{error}");
            let frames = error.backtrace().expect("the frames that waited").frames();
            assert_eq!(frames[0].function_name(), Some("plain"));
            let error = block_on(run.call_async(&mut store, 1)).unwrap_err();
            let trap = error.downcast_ref::<Trap>().expect("a trap");
            assert_eq!(trap.code(), TrapCode::IntegerOverflow);
            assert_eq!(
                block_on(run.call_async(&mut store, 3))?,
                if name == "plain" { 4 } else { 7 }
            );
        }
        let plain = instance.get_typed_func::<i32, i32>(&mut store, "plain")?;
        let error = block_on(plain.call_async(&mut store, 2)).unwrap_err();
        assert!(error.downcast_ref::<Exception>().is_some(), "{error}");
        let catching = instance.get_typed_func::<i32, i32>(&mut store, "catching")?;
        assert_eq!(block_on(catching.call_async(&mut store, 2))?, 2077);
    }
    Ok(())
}

#[test]
fn timeouts_and_interrupts_end_a_wait() -> Result<()> {
    let (mut store, instance) = waiting_forever()?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let interrupted = |error: pagefork::Error| {
        let trap = error.downcast_ref::<Trap>().expect("a trap");
        assert_eq!(trap.code(), TrapCode::Interrupt);
    };
    store.set_timeout(Some(Duration::from_millis(20)))?;
    for _ in 0..2 {
        interrupted(block_on(run.call_async(&mut store, ())).unwrap_err());
    }
    store.set_timeout(None)?;
    let handle = store.interrupt_handle()?;
    let mut call = run.call_async(&mut store, ());
    assert!(poll_once(&mut call).is_pending());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            handle.interrupt();
        });
        interrupted(block_on(&mut call).unwrap_err());
    });
    drop(call);
    let plain = instance.get_typed_func::<(), i32>(&mut store, "plain")?;
    assert_eq!(plain.call(&mut store, ())?, 5);
    Ok(())
}

#[test]
fn a_guest_that_computes_yields_if_asked() -> Result<()> {
    let (mut store, instance) = summing(1)?;
    let spin = instance.get_typed_func::<i32, ()>(&mut store, "spin")?;
    // Unasked it does not.
    assert!(poll_once(&mut spin.call_async(&mut store, 10_000_000)).is_ready());
    store.set_yield_interval(Some(Duration::from_millis(1)))?;
    let mut call = spin.call_async(&mut store, 500_000_000);
    let mut yields = 0;
    while yields < 5 {
        assert!(poll_once(&mut call).is_pending(), "after {yields}");
        yields += 1;
    }
    drop(call);
    assert_eq!(block_on(spin.call_async(&mut store, 50_000_000)).ok(), Some(()));
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert_eq!(block_on(run.call_async(&mut store, ()))?, 1008);
    Ok(())
}

fn usage<T>(result: Result<T>) -> UsageError {
    let error = result.err().expect("it fails");
    error.downcast_ref::<UsageError>().unwrap_or_else(|| panic!("{error}")).clone()
}

#[test]
fn what_cannot_wait_says_so() -> Result<()> {
    let (mut store, instance) = summing(1)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert!(matches!(usage(run.call(&mut store, ())), UsageError::NotAsync));

    // A host function between.
    let text = r#"(module
        (import "host" "f" (func $f (param i32) (result i32)))
        (import "host" "between" (func $between (result i32)))
        (func (export "inner") (result i32) (call $f (i32.const 3)))
        (func (export "run") (result i32) (call $between)))"#;
    for (wait, works) in [(0, true), (1, false)] {
        let (mut store, instance) = start((), text, |linker| {
            linker.func_wrap_async("host", "f", move |_: Caller<'_, ()>, (i,): (i32,)| {
                Box::new(async move {
                    polls(wait).await;
                    i
                })
            })?;
            linker.func_wrap("host", "between", |mut caller: Caller<'_, ()>| -> Result<i32> {
                let Some(Extern::Func(inner)) = caller.get_export("inner") else { panic!() };
                inner.typed::<(), i32>(&caller)?.call(&mut caller, ())
            })?;
            Ok(())
        })?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        let result = block_on(run.call_async(&mut store, ()));
        match works {
            true => assert_eq!(result?, 3),
            false => assert!(matches!(usage(result), UsageError::Nested)),
        }
    }
    Ok(())
}

/// While its guest waits, a host function has the store, but cannot call guests.
#[test]
fn a_host_function_has_the_store_while_it_waits() -> Result<()> {
    let (mut store, instance) = start(0u64, SUM, |linker| {
        linker.func_wrap_async("host", "f", |mut caller: Caller<'_, u64>, (i,): (i32,)| {
            Box::new(async move {
                let Some(Extern::Memory(memory)) = caller.get_export("memory") else { panic!() };
                memory.data_mut(&mut caller)[100] = i as u8;
                polls(1).await;
                assert_eq!(memory.data(&caller)[100], i as u8);
                memory.grow(&mut caller, 1)?;
                polls(1).await;
                *caller.data_mut() = memory.size(&caller);
                let Some(Extern::Func(plain)) = caller.get_export("plain") else { panic!() };
                let plain = plain.typed::<(), i32>(&caller)?;
                assert!(matches!(usage(plain.call(&mut caller, ())), UsageError::Suspended));
                Ok(i)
            }) as Box<dyn Future<Output = Result<i32>> + Send + '_>
        })?;
        Ok(())
    })?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    assert_eq!(block_on(run.call_async(&mut store, ()))?, 18);
    assert_eq!(*store.data(), 5);
    Ok(())
}

#[test]
fn panics_of_futures_leave_the_store_usable() -> Result<()> {
    for wait in [0, 2] {
        let (mut store, instance) = start((), SUM, |linker| {
            linker.func_wrap_async("host", "f", move |_: Caller<'_, ()>, (i,): (i32,)| {
                Box::new(async move {
                    polls(wait).await;
                    assert!(i != 2, "this is the panic");
                    i
                })
            })?;
            Ok(())
        })?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        for _ in 0..2 {
            let call = AssertUnwindSafe(|| block_on(run.call_async(&mut store, ())));
            let panic = catch_unwind(call).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"this is the panic"));
        }
        let plain = instance.get_typed_func::<(), i32>(&mut store, "plain")?;
        assert_eq!(plain.call(&mut store, ())?, 5);
    }
    Ok(())
}

#[test]
fn a_call_that_is_forgotten_leaves_the_store_suspended() -> Result<()> {
    let (mut store, instance) = summing(1)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let mut call = run.call_async(&mut store, ());
    assert!(poll_once(&mut call).is_pending());
    std::mem::forget(call);
    assert!(matches!(usage(run.call(&mut store, ())), UsageError::Suspended));
    assert!(matches!(usage(block_on(run.call_async(&mut store, ()))), UsageError::Suspended));
    store.reset(0)?;
    Ok(())
}

/// The guest waits in the instance that it did not begin in.
#[test]
fn a_guest_waits_in_another_instance() -> Result<()> {
    let engine = Engine::default();
    let library = Module::new(
        &engine,
        r#"(module (import "host" "f" (func $f (param i32) (result i32)))
            (func (export "twice") (param i32) (result i32)
                (i32.add (call $f (local.get 0)) (call $f (local.get 0)))))"#,
    )?;
    let main = Module::new(
        &engine,
        r#"(module (import "library" "twice" (func $twice (param i32) (result i32)))
            (func (export "run") (param i32) (result i32)
                (i32.mul (call $twice (local.get 0)) (local.get 0))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "f", |_: Caller<'_, ()>, (i,): (i32,)| {
        Box::new(async move {
            polls(2).await;
            i + 1
        })
    })?;
    let mut store = Store::new(&engine, ());
    linker.module(&mut store, "library", &library)?;
    let instance = linker.instantiate(&mut store, &main)?;
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run")?;
    assert_eq!(block_on(run.call_async(&mut store, 10))?, 220);
    Ok(())
}

/// Many guests wait at once, polled by two threads; none takes one.
#[test]
fn thousands_of_guests_wait_at_once() -> Result<()> {
    const GUESTS: usize = 2_000;
    let engine = Engine::default();
    let module = Module::new(&engine, SUM)?;
    let mut linker = Linker::new(&engine);
    let gate = Arc::new(AtomicU32::new(0));
    let opened = Arc::clone(&gate);
    linker.func_wrap_async("host", "f", move |mut caller: Caller<'_, i32>, (i,): (i32,)| {
        let gate = Arc::clone(&opened);
        Box::new(async move {
            poll_fn(|_| match gate.load(Ordering::Relaxed) {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            })
            .await;
            *caller.data_mut() += i;
            *caller.data()
        })
    })?;
    let pre = linker.instantiate_pre(&module)?;
    let mut calls = Vec::new();
    for number in 0..GUESTS {
        let (mut store, instance) = pre.spawn(number as i32)?;
        let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
        calls.push(Box::pin(async move { run.call_async(&mut store, ()).await }));
    }
    let polled = |calls: &mut Vec<_>| -> Vec<Poll<Result<i32>>> {
        let (first, second) = calls.split_at_mut(GUESTS / 2);
        let poll = |part: &mut [Pin<Box<dyn Future<Output = Result<i32>> + Send>>]| -> Vec<_> {
            part.iter_mut().map(poll_once).collect()
        };
        let halves = thread::scope(|scope| {
            let other = scope.spawn(|| poll(second));
            (poll(first), other.join().expect("no poll panics"))
        });
        halves.0.into_iter().chain(halves.1).collect()
    };
    let mut calls: Vec<_> = calls
        .into_iter()
        .map(|call| call as Pin<Box<dyn Future<Output = Result<i32>> + Send>>)
        .collect();
    for _ in 0..2 {
        assert!(polled(&mut calls).iter().all(Poll::is_pending));
    }
    gate.store(1, Ordering::Relaxed);
    for (number, polled) in polled(&mut calls).into_iter().enumerate() {
        let Poll::Ready(result) = polled else { panic!("guest {number} waits") };
        assert_eq!(result?, 4 * number as i32 + 1 + 3 + 6 + 10 + 8);
    }
    Ok(())
}

/// A wait is ended by the deadline in epochs, too.
#[test]
fn epochs_end_a_wait() -> Result<()> {
    let (mut store, instance) = waiting_forever()?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    store.set_epoch_deadline(1);
    let engine = store.engine().clone();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            engine.increment_epoch();
        });
        let error = block_on(run.call_async(&mut store, ())).unwrap_err();
        let trap = error.downcast_ref::<Trap>().expect("a trap");
        assert_eq!(trap.code(), TrapCode::Interrupt);
    });
    Ok(())
}

/// A hook that fails ends the call, at any of the times at which the guest is entered or left.
#[test]
fn hooks_are_told_each_time_the_guest_runs() -> Result<()> {
    let (mut store, instance) = summing(1)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let told = Arc::new(AtomicU32::new(0));
    let fails_at = Arc::new(AtomicU32::new(u32::MAX));
    let (count, limit) = (Arc::clone(&told), Arc::clone(&fails_at));
    store.call_hook(move |_, _| match count.fetch_add(1, Ordering::Relaxed) {
        number if number == limit.load(Ordering::Relaxed) => Err(pagefork::Error::msg("enough")),
        _ => Ok(()),
    });
    assert_eq!(block_on(run.call_async(&mut store, ()))?, 1008);
    let times = told.load(Ordering::Relaxed);
    assert!(times >= 10, "{times}");
    for number in 0..times {
        told.store(0, Ordering::Relaxed);
        fails_at.store(number, Ordering::Relaxed);
        let error = block_on(run.call_async(&mut store, ())).unwrap_err();
        assert!(error.to_string().contains("enough"), "{number}: {error}");
        fails_at.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(block_on(run.call_async(&mut store, ()))?, 1008, "{number}");
    }
    Ok(())
}

/// Counts how often it is woken, and tells by its count of references who else has it.
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_keeps_a_task_whose_call_has_ended() -> Result<()> {
    let woken = Arc::new(Woken(AtomicU32::new(0)));
    let (mut store, instance) = summing(1)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    let waker = Waker::from(Arc::clone(&woken));
    for polls in [1, 2, 10] {
        let mut call = run.call_async(&mut store, ());
        for _ in 0..polls {
            if Pin::new(&mut call).poll(&mut Context::from_waker(&waker)).is_ready() {
                break;
            }
            assert!(Arc::strong_count(&woken) > 2, "an interrupt would wake it");
        }
        drop(call);
        assert_eq!(Arc::strong_count(&woken), 2);
    }
    Ok(())
}

/// A request to let others run that comes after the call's end is not the next one's.
#[test]
fn calls_without_an_interval_never_yield() -> Result<()> {
    let (mut store, instance) = summing(0)?;
    let spin = instance.get_typed_func::<i32, ()>(&mut store, "spin")?;
    for _ in 0..3 {
        store.set_yield_interval(Some(Duration::ZERO))?;
        let plain = instance.get_typed_func::<(), i32>(&mut store, "plain")?;
        assert_eq!(block_on(plain.call_async(&mut store, ()))?, 5);
        thread::sleep(Duration::from_millis(2));
        store.set_yield_interval(None)?;
        assert!(poll_once(&mut spin.call_async(&mut store, 1000)).is_ready());
    }
    Ok(())
}
