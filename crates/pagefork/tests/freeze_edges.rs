//! What must not harm a suspended guest or what was captured of it: hooks, limiters, references
//! from before a reset, stores that are not empty, and memory that earlier runs left accessible.

use std::future::Future;
use std::sync::Arc;

use pagefork::{
    CallHook, CallProgress, Caller, CodeBounds, Config, Engine, Exception, Extern, ExternRef, Func,
    GrowthKind, Instance, Linker, Module, RefType, Result, Store, StoreLimits, StrategyConfig,
    SuspendedAt, Table, TableType, Trap, TrapCode, UsageError, Val, WasmBacktrace,
};

fn finish<T: 'static>(store: &mut Store<T>) -> Result<Vec<Val>> {
    match store.resume()? {
        CallProgress::Finished(values) => Ok(values),
        CallProgress::Suspended => panic!("nothing asks for its suspension"),
    }
}

/// Waits deep in its stack, and comes to a number that is made of all its frames.
const DEEP: &str = r#"(module
    (import "host" "pause" (func $pause))
    (memory (export "memory") 1 16)
    (func $deep (param i64) (result i64)
        (if (result i64) (i64.eqz (local.get 0))
            (then (call $pause) (i64.const 7))
            (else (i64.add (i64.mul (local.get 0) (i64.const 3))
                (call $deep (i64.sub (local.get 0) (i64.const 1)))))))
    (func (export "run") (param i64) (result i64) (call $deep (local.get 0)))
    (func (export "clobber") (param i64) (result i64) (local i64)
        (local.set 1 (i64.mul (local.get 0) (i64.const 0x5555555555)))
        (if (result i64) (i64.eqz (local.get 0))
            (then (local.get 1))
            (else (i64.xor (local.get 1)
                (call 3 (i64.sub (local.get 0) (i64.const 1))))))))"#;

fn deep(depth: i64) -> i64 {
    3 * depth * (depth + 1) / 2 + 7
}

/// An engine, a store in which `run` waits at this depth.
fn paused<T: Default + Send + 'static>(
    engine: &Engine,
    depth: i64,
) -> Result<(Store<T>, Instance)> {
    let module = Module::new(engine, DEEP)?;
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, T>| caller.suspend_after())?;
    let mut store = Store::new(engine, T::default());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let progress = run.call_suspendable(&mut store, &[Val::I64(depth)])?;
    assert!(matches!(progress, CallProgress::Suspended));
    Ok((store, instance))
}

#[test]
fn a_hook_cannot_call_guests_on_the_stack_of_the_one_that_goes_on() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = paused::<Vec<bool>>(&engine, 100)?;
    let clobber = instance.get_typed_func::<i64, i64>(&mut store, "clobber")?;
    store.call_hook(move |mut store, hook| {
        if hook == CallHook::CallingWasm {
            let refused = match clobber.call(&mut store, 200) {
                Ok(_) => false,
                Err(error) => matches!(error.downcast_ref(), Some(UsageError::Suspended)),
            };
            store.data_mut().push(refused);
        }
        Ok(())
    });
    assert_eq!(finish(&mut store)?[0].i64(), Some(deep(100)));
    assert_eq!(store.data(), &[true], "the hook's call is refused");
    // With no guest suspended it may.
    let run = instance.get_typed_func::<i64, i64>(&mut store, "clobber")?;
    run.call(&mut store, 1)?;
    assert_eq!(store.data(), &[true, false]);
    Ok(())
}

#[test]
fn nor_on_that_of_one_that_waits_in_a_task() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, DEEP)?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "pause", |_: Caller<'_, u32>, (): ()| {
        let mut polled = false;
        Box::new(std::future::poll_fn(move |_| match std::mem::replace(&mut polled, true) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }))
    })?;
    let mut store = Store::new(&engine, 0u32);
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<i64, i64>(&mut store, "run")?;
    let clobber = instance.get_typed_func::<i64, i64>(&mut store, "clobber")?;
    store.call_hook(move |mut store, hook| {
        if hook == CallHook::CallingWasm && clobber.call(&mut store, 200).is_err() {
            *store.data_mut() += 1;
        }
        Ok(())
    });
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut call = Box::pin(run.call_async(&mut store, 100));
    assert!(call.as_mut().poll(&mut context).is_pending());
    let std::task::Poll::Ready(result) = call.as_mut().poll(&mut context) else {
        panic!("what it waits for is ready")
    };
    assert_eq!(result?, deep(100));
    drop(call);
    // On the way in it may, on the way back into the guest not.
    assert_eq!(*store.data(), 1);
    Ok(())
}

#[test]
fn a_hook_that_panics_gives_the_suspended_guest_up() -> Result<()> {
    let engine = Engine::default();
    let (mut store, _) = paused::<()>(&engine, 10)?;
    store.call_hook(|_, _| panic!("by the hook"));
    let resume = std::panic::AssertUnwindSafe(|| store.resume());
    assert!(std::panic::catch_unwind(resume).is_err());
    assert!(store.suspended().is_none());
    Ok(())
}

#[test]
fn a_hook_that_fails_gives_the_suspended_guest_up() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = paused::<()>(&engine, 10)?;
    store.call_hook(|_, _| Err(pagefork::Error::msg("the hook refuses")));
    assert_eq!(store.resume().unwrap_err().to_string(), "the hook refuses");
    assert!(store.suspended().is_none());
    store.call_hook(|_, _| Ok(()));
    let clobber = instance.get_typed_func::<i64, i64>(&mut store, "clobber")?;
    assert_eq!(clobber.call(&mut store, 0)?, 0);
    Ok(())
}

#[test]
fn a_store_that_a_limiter_refuses_is_empty_and_no_guest_of_it_is_suspended() -> Result<()> {
    let engine = Engine::default();
    let (mut source, _) = paused::<StoreLimits>(&engine, 10)?;
    let pre = source.snapshot()?.instance_pre()?;
    let mut store = Store::new(&engine, StoreLimits::new().memory_size(0));
    store.limiter(|limits| limits);
    for _ in 0..2 {
        assert!(pre.instantiate(&mut store).is_err());
        assert!(store.suspended().is_none());
        let error = store.resume().unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(UsageError::NotSuspended)), "{error}");
        store.abandon();
    }
    // As good as new.
    *store.data_mut() = StoreLimits::new();
    pre.instantiate(&mut store)?;
    assert_eq!(finish(&mut store)?[0].i64(), Some(deep(10)));
    Ok(())
}

#[test]
fn handles_of_a_store_that_could_not_be_spawned_lead_nowhere() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "tell" (func $tell))
        (func (export "f") (param i64 i64) (result i64) (local.get 1))
        (func (export "pagefork_after_restore") (call $tell)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "tell", |mut caller: Caller<'_, Option<Func>>| -> Result<()> {
        let function = caller.get_export("f").and_then(Extern::into_func);
        *caller.data_mut() = function;
        Err(pagefork::Error::msg("no"))
    })?;
    let mut source = Store::new(&engine, None);
    linker.instantiate(&mut source, &module)?;
    let pre = source.snapshot()?.instance_pre()?;
    let mut store = Store::new(&engine, None);
    assert!(pre.instantiate(&mut store).is_err());
    let function = store.data_mut().take().expect("the host function has found it");
    let other = Module::new(&engine, r#"(module (func (export "f") (result f32) unreachable))"#)?;
    Instance::new(&mut store, &other, &[])?;
    let mut results = [Val::I64(0)];
    let params = [Val::I64(1), Val::I64(2)];
    let error = function.call(&mut store, &params, &mut results).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. })), "{error}");
    Ok(())
}

const HOLDER: &str = r#"(module (global (export "value") (mut externref) (ref.null extern)))"#;

fn held(store: &mut Store<()>, instance: &Instance) -> Result<Option<i32>> {
    let global = instance.get_global(&mut *store, "value").unwrap();
    let Val::ExternRef(reference) = global.get(&mut *store) else { panic!("it is one") };
    let Some(reference) = reference else { return Ok(None) };
    Ok(reference.data(&*store)?.downcast_ref().copied())
}

fn hold(store: &mut Store<()>, instance: &Instance, reference: ExternRef) -> Result<()> {
    let global = instance.get_global(&mut *store, "value").unwrap();
    global.set(&mut *store, Val::ExternRef(Some(reference)))
}

#[test]
fn a_store_that_has_given_out_references_is_not_empty() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, HOLDER)?;
    let mut source = Store::new(&engine, ());
    let instance = Instance::new(&mut source, &module, &[])?;
    let reference = ExternRef::new(&mut source, 1)?;
    hold(&mut source, &instance, reference)?;
    let same = |value: &(dyn std::any::Any + Send + Sync)| -> Result<Arc<_>> {
        Ok(Arc::new(value.downcast_ref::<i32>().copied().expect("there are no others")))
    };
    let pre = source.snapshot_with(|value| Ok(same(value)?))?.instance_pre()?;
    let mut store = Store::new(&engine, ());
    let own = ExternRef::new(&mut store, 2)?;
    // What the guest holds would be the store's own value.
    let error = pre.instantiate(&mut store).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::TargetNotEmpty)), "{error}");
    assert_eq!(own.data(&store)?.downcast_ref(), Some(&2));
    let mut store = Store::new(&engine, ());
    let instance = pre.instantiate(&mut store)?;
    assert_eq!(held(&mut store, &instance)?, Some(1));
    Ok(())
}

#[test]
fn references_from_before_a_reset_name_nothing_that_came_later() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(&engine, HOLDER)?;
    let given_up = |error: pagefork::Error| {
        assert!(matches!(error.downcast_ref(), Some(UsageError::ReferenceGivenUp)), "{error}");
    };
    // Back to what has no references.
    let (mut store, instance) = Linker::<()>::new(&engine).instantiate_pre(&module)?.spawn(())?;
    let empty = store.snapshot()?;
    for round in 0..3 {
        let old = ExternRef::new(&mut store, round)?;
        store.reset_to(&empty, ())?;
        let new = ExternRef::new(&mut store, 10 + round)?;
        given_up(old.data(&store).unwrap_err());
        hold(&mut store, &instance, new)?;
        assert_eq!(held(&mut store, &instance)?, Some(10 + round));
        store.reset_to(&empty, ())?;
        assert_eq!(held(&mut store, &instance)?, None);
    }
    // Back to what has some.
    let first = ExternRef::new(&mut store, 1)?;
    hold(&mut store, &instance, first)?;
    let snapshot = store.snapshot_with(|_| Ok(Arc::new(2)))?;
    let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
    let snapshot = store.snapshot_with(|_| Ok(Arc::new(2)))?;
    for round in 0..3 {
        assert_eq!(held(&mut store, &instance)?, Some(2));
        let old = ExternRef::new(&mut store, round)?;
        hold(&mut store, &instance, old)?;
        assert_eq!(held(&mut store, &instance)?, Some(round));
        match round {
            0 => store.reset(())?,
            _ => store.reset_to(&snapshot, ())?,
        };
        let new = ExternRef::new(&mut store, 10 + round)?;
        given_up(old.data(&store).unwrap_err());
        assert_eq!(new.data(&store)?.downcast_ref(), Some(&(10 + round)));
    }
    // What was captured of a store with references of several ages has all of them.
    let newer = ExternRef::new(&mut store, 3)?;
    hold(&mut store, &instance, newer)?;
    let copy = |value: &(dyn std::any::Any + Send + Sync)| -> Result<Arc<i32>> {
        Ok(Arc::new(value.downcast_ref::<i32>().copied().expect("there are no others") * 10))
    };
    let snapshot = store.snapshot_with(|value| Ok(copy(value)?))?;
    let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
    assert_eq!(held(&mut store, &instance)?, Some(30));
    Ok(())
}

/// Waits with a frame that relies on guards, then reads where it is told.
const READER: &str = r#"(module
    (import "host" "next" (func $next (result i32)))
    (memory (export "memory") 1 64)
    (func (export "run") (result i32) (i32.load (call $next)))
    (func (export "grow") (drop (memory.grow (i32.const 15)))))"#;

#[test]
fn a_store_goes_back_to_frames_that_rely_on_guards_with_its_guards() -> Result<()> {
    for growth in [GrowthKind::Kept, GrowthKind::Auto] {
        let code = CodeBounds::Dual;
        let strategies = StrategyConfig { growth, code, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies))?;
        let module = Module::new(&engine, READER)?;
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "next", |mut caller: Caller<'_, Option<i32>>| -> Result<i32> {
            (*caller.data()).ok_or_else(|| caller.suspend_before())
        })?;
        let pre = linker.instantiate_pre(&module)?;
        let beyond = Some(15 << 16);
        let (mut store, instance) = pre.spawn(None)?;
        let run = instance.get_func(&mut store, "run").unwrap();
        run.call_suspendable(&mut store, &[])?;
        let snapshot = store.snapshot()?;
        store.abandon();
        let check = |store: &mut Store<_>, round| {
            let error = finish(store).unwrap_err();
            let code = error.downcast_ref::<Trap>().expect("a trap").code();
            assert_eq!(code, TrapCode::MemoryOutOfBounds, "{growth:?}, round {round}");
        };
        for round in 0..20 {
            // Leaves more accessible than the memory has afterwards.
            let grow = instance.get_typed_func::<(), ()>(&mut store, "grow")?;
            grow.call(&mut store, ())?;
            if round % 2 == 0 {
                store.reset(None)?;
            }
            store.reset_to(&snapshot, beyond)?;
            check(&mut store, round);
            // And so do other stores of the same kind.
            let (mut other, instance) = pre.spawn(None)?;
            let grow = instance.get_typed_func::<(), ()>(&mut other, "grow")?;
            grow.call(&mut other, ())?;
            other.reset(None)?;
            other.reset_to(&snapshot, beyond)?;
            check(&mut other, round);
        }
    }
    Ok(())
}

#[test]
fn stacks_that_are_nearly_full_are_captured_and_spawned() -> Result<()> {
    for stack_size in [None, Some(256 << 10), Some(8 << 20)] {
        let mut config = Config::new();
        if let Some(size) = stack_size {
            config.stack_size(size);
        }
        let engine = Engine::new(&config)?;
        // As deep as it gets.
        let (mut low, mut high) = (1, 1 << 20);
        while high - low > 1 {
            let depth = (low + high) / 2;
            match paused::<()>(&engine, depth) {
                Ok(_) => low = depth,
                Err(_) => high = depth,
            }
        }
        let (mut store, _) = paused::<()>(&engine, low)?;
        let pre = store.snapshot()?.instance_pre()?;
        for _ in 0..3 {
            let (mut fork, _) = pre.spawn(())?;
            assert_eq!(finish(&mut fork)?[0].i64(), Some(deep(low)));
        }
        assert_eq!(finish(&mut store)?[0].i64(), Some(deep(low)));
    }
    Ok(())
}

#[test]
fn results_of_another_store_are_refused_and_the_guest_stays_where_it_is() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "get" (func $get (result funcref externref i32)))
        (func (export "run") (result i32) (call $get) (i32.add (i32.const 1))
            (return)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    type Three = (Option<Func>, Option<ExternRef>, i32);
    linker.func_wrap("host", "get", |mut caller: Caller<'_, ()>| -> Result<Three> {
        Err(caller.suspend_before())
    })?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let mut other = Store::new(&engine, ());
    let function = Val::FuncRef(Some(Func::wrap(&mut other, || ())));
    let value = Val::ExternRef(Some(ExternRef::new(&mut other, 1)?));
    let (no_function, no_value) = (Val::FuncRef(None), Val::ExternRef(None));
    for (function, value) in [(function, no_value), (no_function, value)] {
        let error = store.resume_with(Ok(&[function, value, Val::I32(3)])).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. })), "{error}");
        assert_eq!(store.suspended().unwrap().at(), SuspendedAt::BeforeHostCall);
    }
    // Its own ones are not.
    let own = ExternRef::new(&mut store, 2)?;
    let values = [Val::FuncRef(Some(run)), Val::ExternRef(Some(own)), Val::I32(3)];
    let CallProgress::Finished(results) = store.resume_with(Ok(&values))? else {
        panic!("it ends")
    };
    assert_eq!(results[0].i32(), Some(4));
    Ok(())
}

#[test]
fn what_was_captured_outlives_its_engine_its_store_and_threads() -> Result<()> {
    let pre = {
        let engine = Engine::default();
        let (mut store, _) = paused::<()>(&engine, 50)?;
        let pre = store.snapshot()?.instance_pre()?;
        store.close();
        pre
    };
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel::<Store<()>>();
        for _ in 0..3 {
            let (pre, send) = (&pre, send.clone());
            scope.spawn(move || {
                for round in 0..100 {
                    let (mut store, _) = pre.spawn_for(round % 3, ()).unwrap();
                    match round % 2 {
                        0 => assert_eq!(finish(&mut store).unwrap()[0].i64(), Some(deep(50))),
                        // Another thread goes on with it, and parks it.
                        _ => send.send(store).unwrap(),
                    }
                }
            });
        }
        drop(send);
        for mut store in receive {
            assert_eq!(finish(&mut store).unwrap()[0].i64(), Some(deep(50)));
        }
    });
    Ok(())
}

#[test]
fn many_instances_with_many_frames_are_captured() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "next" "down" (func $down (param i64) (result i64)))
        (global $count (mut i64) (i64.const 0))
        (func (export "down") (param i64) (result i64)
            (global.set $count (i64.add (global.get $count) (i64.const 1)))
            (i64.add (global.get $count) (call $down (local.get 0)))))"#,
    )?;
    let last = Module::new(
        &engine,
        r#"(module
        (import "host" "pause" (func $pause))
        (import "host" "again" (table 1 funcref))
        (type $down (func (param i64) (result i64)))
        (func (export "down") (param i64) (result i64)
            (if (result i64) (i64.eqz (local.get 0))
                (then (call $pause) (i64.const 0))
                (else (call_indirect (type $down)
                    (i64.sub (local.get 0) (i64.const 1)) (i32.const 0))))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, ()>| caller.suspend_after())?;
    let mut store = Store::new(&engine, ());
    let ty = TableType::new(RefType::FUNCREF, 1, Some(1));
    let again = Table::new(&mut store, ty, Val::FuncRef(None))?;
    linker.define(&store, "host", "again", again)?;
    let mut next = linker.instantiate(&mut store, &last)?;
    for _ in 0..400 {
        let down = next.get_func(&mut store, "down").unwrap();
        next = Instance::new(&mut store, &module, &[down.into()])?;
    }
    let down = next.get_func(&mut store, "down").unwrap();
    again.set(&mut store, 0, Val::FuncRef(Some(down)))?;
    // Around all instances, again and again.
    let (rounds, expected) = (20, 400 * (21 * 22 / 2));
    let progress = down.call_suspendable(&mut store, &[Val::I64(rounds)])?;
    assert!(matches!(progress, CallProgress::Suspended));
    let pre = store.snapshot()?.instance_pre()?;
    for _ in 0..2 {
        let (mut fork, _) = pre.spawn(())?;
        assert_eq!(finish(&mut fork)?[0].i64(), Some(expected));
    }
    assert_eq!(finish(&mut store)?[0].i64(), Some(expected));
    Ok(())
}

#[test]
fn what_is_told_on_a_nearly_full_stack_fails_and_harms_nothing() -> Result<()> {
    let engine = Engine::default();
    let module = |recurses: &str| {
        let text = DEEP.trim_end().strip_suffix(')').unwrap().to_owned()
            + r#"(func $down (export "pagefork_after_restore") "#
            + recurses
            + "))";
        Module::new(&engine, text)
    };
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, ()>| caller.suspend_after())?;
    // A function that calls nothing, one that calls another, and one that calls itself.
    for recurses in ["", "(drop (call 2 (i64.const 3)))", "call $down"] {
        let module = module(recurses)?;
        let start = |depth| -> Result<Store<()>> {
            let mut store = Store::new(&engine, ());
            let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
            run.call_suspendable(&mut store, &[Val::I64(depth)])?;
            Ok(store)
        };
        let (mut low, mut high) = (1, 1 << 20);
        while high - low > 1 {
            let depth = (low + high) / 2;
            match start(depth) {
                Ok(_) => low = depth,
                Err(_) => high = depth,
            }
        }
        for depth in [low, low - 1, low - 2, low - 3] {
            let mut store = start(depth)?;
            let pre = store.snapshot()?.instance_pre()?;
            for _ in 0..3 {
                match pre.spawn(()) {
                    Ok((mut fork, _)) => {
                        assert_eq!(finish(&mut fork)?[0].i64(), Some(deep(depth)));
                    }
                    Err(error) => {
                        let code = error.downcast_ref::<Trap>().expect("a trap").code();
                        assert_eq!(code, TrapCode::StackOverflow);
                    }
                }
            }
            if recurses == "call $down" {
                assert!(pre.spawn(()).is_err());
            }
            assert_eq!(finish(&mut store)?[0].i64(), Some(deep(depth)));
        }
    }
    Ok(())
}

#[test]
fn an_exception_comes_to_the_instance_that_has_called_the_one_that_waits() -> Result<()> {
    let engine = Engine::default();
    let inner = Module::new(
        &engine,
        r#"(module
        (import "host" "wait" (func $wait (result i32)))
        (global $count (mut i32) (i32.const 10))
        (func (export "f") (result i32)
            (global.set $count (i32.add (global.get $count) (i32.const 1)))
            (i32.add (call $wait) (global.get $count))))"#,
    )?;
    let outer = Module::new(
        &engine,
        r#"(module
        (import "inner" "f" (func $f (result i32)))
        (tag $tag (export "tag") (param i32))
        (global $own (mut i32) (i32.const 7))
        (func (export "run") (result i32)
            (i32.add (global.get $own)
                (block $caught (result i32)
                    (try_table (result i32) (catch $tag $caught) (call $f))))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    // Also what is asked for in a call that is made again has no frames that it could go astray in.
    linker.func_wrap("host", "wait", |mut caller: Caller<'_, i32>| -> Result<i32> {
        drop(format!("{}", WasmBacktrace::capture(&caller)));
        match *caller.data() {
            0 => Err(caller.suspend_before()),
            answer => Ok(answer),
        }
    })?;
    let mut store = Store::new(&engine, 0);
    linker.module(&mut store, "inner", &inner)?;
    let instance = linker.instantiate(&mut store, &outer)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let pre = store.snapshot()?.instance_pre()?;
    for round in 0..3 {
        let (mut fork, instance) = pre.spawn(0)?;
        let tag = instance.get_tag(&mut fork, "tag").unwrap();
        let exception = Exception::new(&fork, &tag, &[Val::I32(100 + round)])?;
        let progress = fork.resume_with(Err(exception.into()))?;
        let CallProgress::Finished(results) = progress else { panic!("it is caught") };
        assert_eq!(results[0].i32(), Some(107 + round));
        let (mut fork, _) = pre.spawn(5 + round)?;
        assert_eq!(finish(&mut fork)?[0].i32(), Some(7 + 5 + round + 11));
    }
    Ok(())
}
