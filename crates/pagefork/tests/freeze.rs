//! A store that was captured, a suspended guest included, goes on in others as it would have by
//! itself; neither knows of the other.

mod program;

use std::future::Future;
use std::sync::Arc;

use pagefork::suspend::{self, Zone};
use pagefork::{
    CallProgress, Caller, CodeBounds, Config, Engine, ExternRef, Func, GrowthKind, Instance,
    InstancePre, LimitError, Linker, Memory, MemoryType, Module, ResetKind, Result, Snapshot,
    Store, StoreLimits, StrategyConfig, Trap, TrapCode, UsageError, Val,
};
use program::{PARAM, compile, count_points, shown, start, undisturbed};

fn finish<T: 'static>(store: &mut Store<T>) -> Result<Vec<Val>> {
    match store.resume()? {
        CallProgress::Finished(values) => Ok(values),
        CallProgress::Suspended => panic!("nothing asks for its suspension"),
    }
}

/// A store that is suspended at this point, captured.
fn captured(
    engine: &Engine,
    modules: &(Module, Module),
    point: u64,
) -> (Store<u64>, Snapshot<u64>) {
    let (mut store, instance) = start(engine, modules).unwrap();
    let run = instance.get_func(&mut store, "run").unwrap();
    let progress = suspend::call(&mut store, &run, &PARAM, Some(point)).unwrap();
    assert!(matches!(progress, CallProgress::Suspended));
    let snapshot = store.snapshot().unwrap();
    (store, snapshot)
}

/// Spawns three times, each time in the slots of the one before if they are kept, and compares the
/// ends.
fn check_spawned(pre: &InstancePre<u64>, expected: &(String, Vec<u8>)) {
    for _ in 0..3 {
        let (mut store, instance) = pre.spawn(0).unwrap();
        assert_eq!(shown(&finish(&mut store).unwrap()), expected.0);
        let (memory, library) = (Zone::Memory(0), 1);
        assert!(suspend::zone_bytes(&store, library, memory).1 == expected.1);
        // Another call, with more host functions and instances than were captured.
        let run = instance.get_func(&mut store, "run").unwrap();
        let more =
            Module::new(store.engine(), r#"(module (memory 2) (func (export "f")))"#).unwrap();
        Instance::new(&mut store, &more, &[]).unwrap();
        Func::wrap(&mut store, || 5);
        run.call(&mut store, &PARAM, &mut [Val::I32(0), Val::I32(0), Val::I32(0)]).unwrap();
    }
}

#[test]
fn a_guest_captured_at_any_point_goes_on_in_other_slots() -> Result<()> {
    let engine = Engine::default();
    let modules = compile(&engine)?;
    let expected = undisturbed(&engine, &modules)?;
    for point in 1..=count_points(&engine, &modules)? {
        let (mut store, snapshot) = captured(&engine, &modules, point);
        check_spawned(&snapshot.instance_pre()?, &expected);
        // The original goes on too.
        assert_eq!(shown(&finish(&mut store)?), expected.0, "point {point}");
    }
    Ok(())
}

#[test]
fn a_captured_guest_goes_on_by_each_strategy_and_kind_of_growth() -> Result<()> {
    let growths = [
        (GrowthKind::Mprotect, CodeBounds::Guarded),
        (GrowthKind::Ftruncate, CodeBounds::Guarded),
        (GrowthKind::Ftruncate, CodeBounds::Dual),
        (GrowthKind::Fault, CodeBounds::Guarded),
        (GrowthKind::Mprotect, CodeBounds::Dual),
        (GrowthKind::Kept, CodeBounds::Dual),
        (GrowthKind::Auto, CodeBounds::Dual),
        (GrowthKind::Checked { accessible: None }, CodeBounds::Checked),
        (GrowthKind::Checked { accessible: None }, CodeBounds::Dual),
    ];
    for (growth, code) in growths {
        for reset in ResetKind::ALL {
            let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
            let engine = Engine::new(Config::new().strategies(strategies))?;
            let modules = compile(&engine)?;
            let expected = undisturbed(&engine, &modules)?;
            for point in (1..count_points(&engine, &modules)?).step_by(41) {
                let (mut store, snapshot) = captured(&engine, &modules, point);
                check_spawned(&snapshot.instance_pre()?, &expected);
                // And back in time, in the store itself.
                assert_eq!(shown(&finish(&mut store)?), expected.0);
                store.reset_to(&snapshot, 0)?;
                assert_eq!(shown(&finish(&mut store)?), expected.0, "{growth:?} {code:?} {reset}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_spawned_guest_is_captured_again() -> Result<()> {
    let engine = Engine::default();
    let modules = compile(&engine)?;
    let expected = undisturbed(&engine, &modules)?;
    let count = count_points(&engine, &modules)?;
    let (_, mut snapshot) = captured(&engine, &modules, 1);
    for _ in 1..count {
        let (mut store, _) = snapshot.instance_pre()?.spawn(0)?;
        let progress = suspend::resume(&mut store, Some(1))?;
        assert!(matches!(progress, CallProgress::Suspended));
        snapshot = store.snapshot()?;
    }
    check_spawned(&snapshot.instance_pre()?, &expected);
    Ok(())
}

#[test]
fn a_reset_of_a_spawned_store_returns_to_where_it_was_captured() -> Result<()> {
    let engine = Engine::default();
    let modules = compile(&engine)?;
    let expected = undisturbed(&engine, &modules)?;
    let (_, snapshot) = captured(&engine, &modules, 50);
    let (mut store, _) = snapshot.instance_pre()?.spawn(1)?;
    assert_eq!(shown(&finish(&mut store)?), expected.0);
    store.reset_to(&snapshot, 2)?;
    for round in 0..3 {
        assert_eq!(shown(&finish(&mut store)?), expected.0, "round {round}");
        assert!(store.suspended().is_none());
        let other = Module::new(&engine, "(module (func $f) (start $f))")?;
        Instance::new(&mut store, &other, &[])?;
        store.reset(2)?;
        assert!(store.suspended().is_some());
    }
    // Where it has got to meanwhile is another time.
    suspend::resume(&mut store, Some(20))?;
    let later = store.snapshot()?;
    finish(&mut store)?;
    store.reset_to(&later, 3)?;
    assert_eq!(shown(&finish(&mut store)?), expected.0);
    Ok(())
}

/// Waits in its first function with a frame that relies on guards, then reads where it is told.
const READER: &str = r#"(module
    (import "host" "next" (func $next (result i32)))
    (memory (export "memory") 1 64)
    (func (export "run") (result i32) (local $at i32)
        (loop $l
            (local.set $at (call $next))
            (if (i32.eq (local.get $at) (i32.const -1))
                (then (drop (memory.grow (i32.const 15))) (br $l))))
        (i32.load (local.get $at)))
    (func (export "grow") (drop (memory.grow (i32.const 15)))))"#;

#[test]
fn frames_that_rely_on_guards_never_go_on_where_more_is_accessible() -> Result<()> {
    for growth in [GrowthKind::Kept, GrowthKind::Auto, GrowthKind::Checked { accessible: None }] {
        let code = CodeBounds::Dual;
        let strategies = StrategyConfig { growth, code, ..StrategyConfig::default() };
        // What is captured has frames that rely on guards, and is spawned by this growth.
        let engine = Engine::new(
            Config::new().strategies(StrategyConfig { growth: GrowthKind::Mprotect, ..strategies }),
        )?;
        let module = Module::new(&engine, READER)?;
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "next", |mut caller: Caller<'_, Vec<i32>>| -> Result<i32> {
            caller.data_mut().pop().ok_or_else(|| caller.suspend_before())
        })?;
        let mut store = Store::new(&engine, Vec::new());
        let instance = linker.instantiate(&mut store, &module)?;
        let run = instance.get_func(&mut store, "run").unwrap();
        run.call_suspendable(&mut store, &[])?;
        let pre = store.snapshot()?.instance_pre()?.with_strategies(strategies)?;
        for round in 0..20 {
            // This run has more, and the next must not see it.
            let (mut grown, _) = pre.spawn(vec![15 << 16, -1])?;
            finish(&mut grown)?;
            drop(grown);
            let (mut store, _) = pre.spawn(vec![15 << 16])?;
            let error = finish(&mut store).unwrap_err();
            let code = error.downcast_ref::<Trap>().expect("a trap").code();
            assert_eq!(code, TrapCode::MemoryOutOfBounds, "{growth:?}, round {round}");
        }
        // As after a reset to what was captured.
        let (mut store, _) = pre.spawn(vec![15 << 16, -1])?;
        let snapshot = store.snapshot()?;
        finish(&mut store)?;
        store.reset_to(&snapshot, vec![15 << 16])?;
        assert!(finish(&mut store).is_err());
        store.reset(vec![15 << 16])?;
        assert!(finish(&mut store).is_err());
    }
    Ok(())
}

#[test]
fn forks_are_independent_and_each_has_its_own_answer() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "secret" (func $secret (result i64)))
        (memory (export "memory") 4)
        (func (export "run") (result i64) (local $x i64)
            (i64.store (i32.const 8) (i64.const 7))
            (local.set $x (call $secret))
            (i64.store (i32.const 100000) (local.get $x))
            (i64.store (i32.const 16) (call $secret))
            (i64.add (i64.load (i32.const 8)) (i64.load (i32.const 100000)))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "secret", |mut caller: Caller<'_, Option<i64>>| -> Result<i64> {
        caller.data().ok_or_else(|| caller.suspend_before())
    })?;
    let mut store = Store::new(&engine, None);
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let secret = |number: usize| 0x5ec2_e700_0000_0000 + number as i64;
    let mut forks = store.fork(100, |number| Some(secret(number)))?;
    for (number, fork) in forks.iter_mut().enumerate() {
        let results = finish(fork)?;
        assert_eq!(results[0].i64(), Some(secret(number) + 7));
    }
    // No fork has a byte of another one's, nor has the original, nor a slot that is used again.
    let has = |store: &Store<_>, number: usize| {
        let zones = [Zone::Stack, Zone::State, Zone::Tables, Zone::Memory(0)];
        let needle = secret(number).to_le_bytes();
        zones.iter().any(|zone| {
            let bytes = suspend::zone_bytes(store, 1, *zone).1;
            bytes.windows(8).any(|window| window == needle)
        })
    };
    for (number, fork) in forks.iter().enumerate() {
        assert!(has(fork, number) && !has(fork, (number + 1) % 100), "fork {number}");
    }
    assert!((0..100).all(|number| !has(&store, number)));
    drop(forks);
    let again = store.fork(100, |_| None)?;
    assert!(again.iter().all(|fork| (0..100).all(|number| !has(fork, number))));
    Ok(())
}

#[test]
fn what_the_host_made_is_captured_too() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "memory" (memory 1))
        (import "host" "pause" (func $pause))
        (func (export "run") (result i32)
            (i32.store (i32.const 4) (i32.const 40))
            (call $pause)
            (i32.add (i32.load (i32.const 4)) (i32.load (i32.const 8)))))"#,
    )?;
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(1, Some(3)))?;
    let pause = Func::wrap(&mut store, |mut caller: Caller<'_, ()>| caller.suspend_after());
    let instance = Instance::new(&mut store, &module, &[memory.into(), pause.into()])?;
    memory.write(&mut store, 8, &[2])?;
    memory.grow(&mut store, 1)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let snapshot = store.snapshot()?;
    memory.write(&mut store, 8, &[3])?;
    for _ in 0..2 {
        let (mut fork, spawned) = snapshot.instance_pre()?.spawn(())?;
        let own = fork.counterpart(memory)?.into_memory().unwrap();
        assert_eq!(own.size(&fork), 2);
        assert_eq!(finish(&mut fork)?[0].i32(), Some(42));
        assert_eq!(own.data(&fork)[4], 40);
        let same = fork.counterpart_instance(instance)?;
        assert!(spawned.get_func(&mut fork, "run").is_some());
        assert!(same.get_func(&mut fork, "run").is_some());
        let late = Memory::new(&mut store, MemoryType::new(1, None))?;
        assert!(fork.counterpart(late).is_err() && store.counterpart(memory).is_err());
    }
    assert_eq!(finish(&mut store)?[0].i32(), Some(43));
    Ok(())
}

#[test]
fn host_values_need_a_hook_that_saves_them() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "pause" (func $pause))
        (import "host" "look" (func $look (param externref)))
        (func (export "run") (param externref) (call $pause) (call $look (local.get 0))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, String>| caller.suspend_after())?;
    linker.func_wrap("host", "look", |mut caller: Caller<'_, String>, it: Option<ExternRef>| {
        let text = it.unwrap().data(&caller).unwrap().downcast_ref::<String>().unwrap().clone();
        *caller.data_mut() = text;
    })?;
    let mut store = Store::new(&engine, String::new());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    let value = ExternRef::new(&mut store, String::from("host's"))?;
    run.call_suspendable(&mut store, &[Val::ExternRef(Some(value))])?;
    // Only a frame holds it, which nothing can be searched for.
    let error = store.snapshot().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::NoSnapshot(_))), "{error}");
    assert!(error.to_string().contains("snapshot_with"), "{error}");
    let error = store.snapshot_with(|_| Err(pagefork::Error::msg("not this one"))).unwrap_err();
    assert!(error.to_string().contains("not this one"));

    let snapshot = store.snapshot_with(|value| {
        let text = value.downcast_ref::<String>().unwrap();
        Ok(Arc::new(text.to_uppercase()))
    })?;
    let pre = snapshot.instance_pre()?;
    for _ in 0..2 {
        let (mut fork, _) = pre.spawn(String::new())?;
        finish(&mut fork)?;
        assert_eq!(fork.data(), "HOST'S");
        // A handle of the source means nothing here.
        assert!(value.data(&fork).is_err());
    }
    finish(&mut store)?;
    assert_eq!(store.data(), "host's");
    store.reset_to(&snapshot, String::new())?;
    finish(&mut store)?;
    assert_eq!(store.data(), "HOST'S");
    Ok(())
}

#[test]
fn exceptions_in_flight_are_captured() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "pause" (func $pause))
        (tag $tag (param i32 i64))
        (table $kept 1 exnref)
        (func $throw (throw $tag (i32.const 40) (i64.const 2)))
        (func (export "run") (result i32) (local $e exnref)
            (block $caught (result exnref)
                (try_table (catch_all_ref $caught) (call $throw))
                (unreachable))
            (local.set $e)
            (table.set $kept (i32.const 0) (local.get $e))
            (call $pause)
            (block $again (result i32 i64)
                (try_table (catch $tag $again) (throw_ref (table.get $kept (i32.const 0))))
                (unreachable))
            (i32.wrap_i64)
            (i32.add)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, ()>| caller.suspend_after())?;
    let mut store = Store::new(&engine, ());
    let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let pre = store.snapshot()?.instance_pre()?;
    for _ in 0..3 {
        let (mut fork, _) = pre.spawn(())?;
        assert_eq!(finish(&mut fork)?[0].i32(), Some(42));
    }
    assert_eq!(finish(&mut store)?[0].i32(), Some(42));
    Ok(())
}

#[test]
fn limits_hold_for_what_is_spawned() -> Result<()> {
    let engine = Engine::default();
    let modules = compile(&engine)?;
    let (_, snapshot) = captured(&engine, &modules, 100);
    let pre = snapshot.instance_pre()?;
    let limits = [
        StoreLimits::new().instances(1),
        StoreLimits::new().memory_size(1 << 16),
        StoreLimits::new().table_elements(2),
    ];
    for round in 0..2 {
        for limit in &limits {
            let error = pre.spawn_limited(0, 0, *limit, |_| ()).map(|_| ()).unwrap_err();
            assert!(error.downcast_ref::<LimitError>().is_some(), "{round}: {error}");
        }
        // The second time there are slots to use again.
        finish(&mut pre.spawn(0)?.0)?;
    }
    let limited = pre.with_limiter(|limits: &mut u64| {
        let _ = limits;
        unreachable!("it is not asked before there is a store")
    });
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limited.spawn(0)));
    assert!(caught.is_err());
    // A store that has something cannot become what was captured.
    let mut store = Store::new(&engine, 0);
    Memory::new(&mut store, MemoryType::new(1, None))?;
    let error = pre.instantiate(&mut store).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::TargetNotEmpty)), "{error}");
    assert!(Store::new(&engine, 0u64).snapshot()?.instance_pre().is_err());
    Ok(())
}

#[test]
fn a_snapshot_of_a_suspended_store_does_not_fit_others() -> Result<()> {
    let engine = Engine::default();
    let modules = compile(&engine)?;
    let (_, snapshot) = captured(&engine, &modules, 30);
    let (mut other, _) = start(&engine, &modules)?;
    let error = other.reset_to(&snapshot, 0).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongSnapshot(_))), "{error}");
    // Of the same kind they do.
    let pre = snapshot.instance_pre()?;
    let (mut a, _) = pre.spawn(0)?;
    let (mut b, _) = pre.spawn(0)?;
    suspend::resume(&mut a, Some(60))?;
    let later = a.snapshot()?;
    let expected = undisturbed(&engine, &modules)?;
    b.reset_to(&later, 0)?;
    assert_eq!(shown(&finish(&mut b)?), expected.0);
    assert_eq!(shown(&finish(&mut a)?), expected.0);
    Ok(())
}

#[test]
fn fuel_goes_on_in_what_is_spawned() -> Result<()> {
    let engine = Engine::new(Config::new().fuel(true))?;
    let modules = compile(&engine)?;
    let (mut store, instance) = start(&engine, &modules)?;
    let run = instance.get_func(&mut store, "run").unwrap();
    store.set_fuel(1 << 30)?;
    suspend::call(&mut store, &run, &PARAM, Some(70))?;
    let (left, pre) = (store.fuel()?, store.snapshot()?.instance_pre()?);
    finish(&mut store)?;
    let end = store.fuel()?;
    for _ in 0..2 {
        let (mut fork, _) = pre.spawn(0)?;
        assert_eq!(fork.fuel()?, left);
        finish(&mut fork)?;
        assert_eq!(fork.fuel()?, end);
    }
    Ok(())
}

#[test]
fn a_store_whose_task_was_forgotten_is_neither_resumed_nor_captured() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "wait" (func $wait)) (func (export "run") (call $wait)))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap_async("host", "wait", |_: Caller<'_, ()>, (): ()| {
        Box::new(std::future::pending::<()>())
    })?;
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    let run = instance.get_typed_func::<(), ()>(&mut store, "run")?;
    let mut call = Box::pin(run.call_async(&mut store, ()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    std::mem::forget(call);
    assert!(matches!(
        store.snapshot().unwrap_err().downcast_ref(),
        Some(UsageError::NoSnapshot(_))
    ));
    assert!(matches!(store.resume().unwrap_err().downcast_ref(), Some(UsageError::Suspended)));
    assert!(store.suspended().is_none());
    Ok(())
}

#[test]
fn guests_are_told_that_they_were_restored_and_the_suspended_one_does_not_notice() -> Result<()> {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
        (import "host" "pause" (func $pause))
        (import "host" "seed" (func $seed (result i64)))
        (tag $tag (param i64))
        (global $seed (mut i64) (i64.const 1))
        (func $deep (param i64 i64) (result i64) (local $x i64)
            (local.set $x (i64.mul (local.get 0) (local.get 1)))
            (if (result i64) (i64.eqz (local.get 0))
                (then (local.get 1))
                (else (i64.add (local.get $x)
                    (call $deep (i64.sub (local.get 0) (i64.const 1)) (local.get 1))))))
        ;; Fills the room for exceptions again and again.
        (func (export "pagefork_after_restore") (local $i i32)
            (drop (call $deep (i64.const 3000) (i64.const 0x5555555555555555)))
            (loop $l
                (block $caught (result exnref)
                    (try_table (catch_all_ref $caught) (throw $tag (i64.const -1)))
                    (unreachable))
                drop
                (br_if $l (i32.lt_u
                    (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 9000))))
            (global.set $seed (call $seed)))
        (func (export "run") (result i64) (local $e exnref) (local $x i64)
            (local.set $x (call $deep (i64.const 50) (i64.const 3)))
            (block $caught (result exnref)
                (try_table (catch_all_ref $caught) (throw $tag (i64.const 1000)))
                (unreachable))
            (local.set $e)
            (call $pause)
            (block $again (result i64)
                (try_table (catch $tag $again) (throw_ref (local.get $e)))
                (unreachable))
            (i64.add (i64.add (local.get $x) (global.get $seed)))))"#,
    )?;
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "pause", |mut caller: Caller<'_, i64>| caller.suspend_after())?;
    linker.func_wrap("host", "seed", |caller: Caller<'_, i64>| match caller.data() {
        0 => Err(pagefork::Error::msg("there is no seed")),
        seed => Ok(*seed),
    })?;
    let mut store = Store::new(&engine, 0);
    let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    run.call_suspendable(&mut store, &[])?;
    let (snapshot, pre) = (store.snapshot()?, store.snapshot()?.instance_pre()?);
    let result = finish(&mut store)?[0].i64().unwrap();
    assert_eq!(result, 3 * (50 * 51 / 2 + 1) + 1000 + 1, "nothing was restored");
    for seed in [100, 200, 300] {
        let (mut fork, _) = pre.spawn(seed)?;
        assert_eq!(finish(&mut fork)?[0].i64(), Some(result - 1 + seed));
        fork.reset(seed + 1)?;
        assert_eq!(finish(&mut fork)?[0].i64(), Some(result + seed));
        // What fails is told, and a later try finds all as it was.
        assert!(pre.spawn(0).is_err() && fork.reset(0).is_err());
    }
    store.reset_to(&snapshot, 500)?;
    assert_eq!(finish(&mut store)?[0].i64(), Some(result - 1 + 500));
    Ok(())
}
