//! What must not harm a suspended guest or what was captured of it: hooks, limiters, references
//! from before a reset, stores that are not empty, and memory that earlier runs left accessible.

use std::future::Future;
use std::sync::Arc;

use pagefork::{
    CallHook, CallProgress, Caller, CodeBounds, Config, Engine, Extern, ExternRef, Func,
    GrowthKind, Instance, Linker, Module, Result, Store, StoreLimits, StrategyConfig, Trap,
    TrapCode, UsageError, Val,
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
