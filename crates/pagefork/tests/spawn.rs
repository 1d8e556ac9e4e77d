//! Spawned instances are fresh, whatever the one before did; stores that are reset are
//! as at first.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagefork::{
    Caller, Config, Engine, ExternRef, Global, GlobalType, Instance, InstancePre, Linker, Memory,
    MemoryType, Module, PoolConfig, Reason, ResetKind, Store, StoreLimits, StrategyConfig,
    TrapCode, UsageError, Val, ValType,
};

/// Something of each kind that a guest can change.
const EVERYTHING: &str = r#"(module
    (import "host" "log" (func $log (param i32)))
    (memory (export "memory") 1 10)
    (data (i32.const 100) "initial")
    (data $passive "passive")
    (table (export "table") 4 20 funcref)
    (elem (i32.const 0) $one $two)
    (elem $spare func $two)
    (global $number (export "number") (mut i64) (i64.const 7))
    (global $reference (mut externref) (ref.null extern))
    (func $one (result i32) (i32.const 1))
    (func $two (result i32) (i32.const 2))
    (func (export "mess") (param $what externref)
        (i32.store (i32.const 100) (i32.const -1))
        (i32.store (i32.const 65532) (i32.const -1))
        (drop (memory.grow (i32.const 2)))
        (i32.store (i32.const 190000) (i32.const -1))
        (memory.init $passive (i32.const 0) (i32.const 0) (i32.const 7))
        (data.drop $passive)
        (table.set (i32.const 0) (ref.func $two))
        (drop (table.grow (ref.func $one) (i32.const 5)))
        (elem.drop $spare)
        (global.set $number (i64.const 8))
        (global.set $reference (local.get $what))
        (call $log (i32.const 5)))
    (func (export "sum") (result i64)
        (local $at i32) (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (i64.rotl (local.get $sum) (i64.const 5))
                (i64.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $next (i32.lt_u (local.get $at) (i32.mul (memory.size) (i32.const 65536)))))
        (i64.add (i64.add (local.get $sum) (global.get $number))
            (i64.add (i64.extend_i32_u (table.size))
                (i64.extend_i32_u (i32.add (ref.is_null (global.get $reference))
                    (call_indirect (result i32) (i32.const 0)))))))
    (func (export "segments") (result i32)
        ;; Traps if a segment is dropped.
        (memory.init $passive (i32.const 200) (i32.const 0) (i32.const 7))
        (table.init $spare (i32.const 3) (i32.const 0) (i32.const 1))
        (i32.load8_u (i32.const 200)))
    (func (export "spin") (loop (br 0)))
    (func (export "trap") (i32.store (i32.const 8) (i32.const 1)) unreachable))"#;

fn pre(engine: &Engine) -> InstancePre<u32> {
    let module = Module::new(engine, EVERYTHING).unwrap();
    let mut linker = Linker::new(engine);
    let log = |mut caller: Caller<'_, u32>, value: i32| *caller.data_mut() += value as u32;
    linker.func_wrap("host", "log", log).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

/// What a fresh instance looks like; `sum` runs in the guest, the rest outside.
fn look(store: &mut Store<u32>, instance: Instance) -> (i64, Vec<u8>, u64, Option<i64>, i32) {
    let sum = instance.get_typed_func::<(), i64>(&mut *store, "sum").unwrap();
    let segments = instance.get_typed_func::<(), i32>(&mut *store, "segments").unwrap();
    let memory = instance.get_memory(&mut *store, "memory").unwrap();
    let before = memory.data(&*store).to_vec();
    let length = instance.get_table(&mut *store, "table").unwrap().size(&*store);
    let number = instance.get_global(&mut *store, "number").unwrap().get(&mut *store).i64();
    let sum = sum.call(&mut *store, ()).unwrap();
    (sum, before, length, number, segments.call(&mut *store, ()).unwrap())
}

fn mess(store: &mut Store<u32>, instance: Instance) {
    let value = ExternRef::new(&mut *store, "secret").unwrap();
    let mess = instance.get_typed_func::<Option<ExternRef>, ()>(&mut *store, "mess").unwrap();
    mess.call(&mut *store, Some(value)).unwrap();
    assert_eq!(*store.data(), 5);
}

#[test]
fn an_instance_says_how_its_slot_is_reset_and_why() {
    let choices = |reset| {
        let config = StrategyConfig { reset, ..StrategyConfig::default() };
        let pre = pre(&Engine::new(Config::new().strategies(config)).unwrap());
        let spawn = |_| {
            let (mut store, instance) = pre.spawn(0).unwrap();
            let segments = instance.get_typed_func::<(), i32>(&mut store, "segments").unwrap();
            segments.call(&mut store, ()).unwrap();
            instance.strategy(&store)
        };
        (0..40).map(spawn).collect::<Vec<_>>()
    };
    let asked = choices(ResetKind::Discard);
    assert!(asked.iter().all(|choice| choice.used == ResetKind::Discard));
    assert!(asked.iter().all(|choice| choice.reason == Reason::Asked));
    let auto = choices(ResetKind::Auto);
    assert!(auto.iter().all(|choice| choice.asked == ResetKind::Auto));
    assert_eq!((auto[0].used, auto[0].reason), (ResetKind::Scan, Reason::Start));
    let learned = auto[39];
    assert_eq!(learned.used, ResetKind::Resident, "{learned}");
    assert!(learned.to_string().contains("found no page that was not known"), "{learned}");
}

#[test]
fn a_spawned_instance_is_fresh_whatever_the_one_before_did() {
    for reset in ResetKind::ALL {
        let config = StrategyConfig { reset, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(config)).unwrap();
        let pre = pre(&engine);
        let (mut store, instance) = pre.spawn(0).unwrap();
        let fresh = look(&mut store, instance);
        drop(store);
        for round in 0..40 {
            let (mut store, instance) = pre.spawn(0).unwrap();
            assert_eq!(look(&mut store, instance), fresh, "{reset}, round {round}");
            drop(store);
            let (mut store, instance) = pre.spawn(0).unwrap();
            match round % 4 {
                0 => mess(&mut store, instance),
                1 => {
                    let trap = instance.get_typed_func::<(), ()>(&mut store, "trap").unwrap();
                    trap.call(&mut store, ()).unwrap_err();
                }
                2 => {
                    let memory = instance.get_memory(&mut store, "memory").unwrap();
                    let data = memory.data_mut(&mut store);
                    std::thread::scope(|scope| {
                        scope.spawn(|| data[60_000..].fill(9));
                    });
                    instance
                        .get_global(&mut store, "number")
                        .unwrap()
                        .set(&mut store, Val::I64(3))
                        .unwrap();
                }
                _ => {
                    // Written by a thread that enters nobody.
                    let memory = instance.get_memory(&mut store, "memory").unwrap();
                    std::thread::scope(|scope| {
                        let store = &mut store;
                        scope.spawn(move || memory.write(store, 30_000, &[1; 9000]).unwrap());
                    });
                }
            }
        }
        let counters = engine.pool_counters();
        // Neither a store nor a slot was there the first time.
        assert_eq!((counters.parked, counters.missed), (1, 2), "{reset}: {counters:?}");
    }
}

#[test]
fn instances_of_plain_stores_are_fresh_too() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let mut store = Store::new(&engine, 0);
    let instance = pre.instantiate(&mut store).unwrap();
    let fresh = look(&mut store, instance);
    drop(store);
    for round in 0..10 {
        let mut store = Store::new(&engine, 0);
        let instance = pre.instantiate(&mut store).unwrap();
        let second = pre.instantiate(&mut store).unwrap();
        assert_eq!(look(&mut store, instance), fresh, "round {round}");
        mess(&mut store, second);
    }
    assert_eq!(engine.pool_counters().parked, 2);
}

#[test]
fn a_reset_store_is_as_at_first_and_its_handles_stay_good() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let mut store = Store::new(&engine, 0);
    let memory = Memory::new(&mut store, MemoryType::new(1, Some(3))).unwrap();
    let ty = GlobalType { content: ValType::FUNCREF, mutable: true };
    let instance = pre.instantiate(&mut store).unwrap();
    let spin = instance.get_func(&mut store, "spin").unwrap();
    let global = Global::new(&mut store, ty, Val::FuncRef(Some(spin))).unwrap();
    let fresh = look(&mut store, instance);
    for _ in 0..3 {
        mess(&mut store, instance);
        memory.write(&mut store, 5, b"secret").unwrap();
        memory.grow(&mut store, 1).unwrap();
        global.set(&mut store, Val::FuncRef(None)).unwrap();
        assert_eq!(store.reset(0).unwrap(), 5, "the old data");
        assert_eq!(look(&mut store, instance), fresh);
        assert!(memory.data(&store).iter().all(|byte| *byte == 0));
        assert_eq!(memory.size(&store), 1);
        assert!(matches!(global.get(&mut store), Val::FuncRef(Some(_))));
        store.reset(0).unwrap();
    }
}

#[test]
fn start_functions_run_at_each_spawn_and_reset() {
    let engine = Engine::default();
    let text = r#"(module
        (import "host" "next" (func $next (result i32)))
        (global $at (export "at") (mut i32) (i32.const 0))
        (func $start (global.set $at (call $next)))
        (start $start))"#;
    let module = Module::new(&engine, text).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let mut linker = Linker::<()>::new(&engine);
    let counted = Arc::clone(&count);
    let next = move || counted.fetch_add(1, Ordering::Relaxed) as i32;
    linker.func_wrap("host", "next", next).unwrap();
    let pre = linker.instantiate_pre(&module).unwrap();
    for round in 0..3 {
        let (mut store, instance) = pre.spawn(()).unwrap();
        let at = instance.get_global(&mut store, "at").unwrap();
        assert_eq!(at.get(&mut store).i32(), Some(2 * round));
        store.reset(()).unwrap();
        assert_eq!(at.get(&mut store).i32(), Some(2 * round + 1));
    }
}

#[test]
fn a_start_function_that_fails_fails_the_spawn_and_spoils_nothing() {
    let engine = Engine::default();
    let text = r#"(module
        (import "host" "fails" (func $fails (result i32)))
        (memory (export "memory") 1)
        (func $start
            (i32.store (i32.const 0) (i32.const 99))
            (if (call $fails) (then unreachable)))
        (start $start))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut linker = Linker::<bool>::new(&engine);
    let fails = |caller: Caller<'_, bool>| i32::from(*caller.data());
    linker.func_wrap("host", "fails", fails).unwrap();
    let pre = linker.instantiate_pre(&module).unwrap();
    for _ in 0..3 {
        assert_eq!(pre.spawn(true).unwrap_err().kind(), pagefork::ErrorKind::Trap);
        drop(pre.spawn(false).unwrap());
    }
    assert_eq!(engine.pool_counters().parked, 1);
}

#[test]
fn handles_of_an_earlier_store_mean_nothing_in_the_next() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let (mut store, instance) = pre.spawn(0).unwrap();
    let sum = instance.get_typed_func::<(), i64>(&mut store, "sum").unwrap();
    let late = store.interrupt_handle().unwrap();
    store.set_limits(StoreLimits::new().memory_size(0));
    store.set_timeout(Some(std::time::Duration::from_secs(1000))).unwrap();
    drop(store);
    late.interrupt();
    let (mut store, instance) = pre.spawn(0).unwrap();
    late.interrupt();
    let error = sum.call(&mut store, ()).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongStore { .. })), "{error:?}");
    assert_eq!(store.limits(), StoreLimits::default());
    let again = instance.get_typed_func::<(), i64>(&mut store, "sum").unwrap();
    late.interrupt();
    again.call(&mut store, ()).unwrap();
}

#[test]
fn a_late_interrupt_never_hits_the_next_tenant() {
    let engine = Engine::default();
    let pre = pre(&engine);
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::sync_channel::<pagefork::InterruptHandle>(0);
        scope.spawn(move || {
            for handle in receive {
                for _ in 0..50 {
                    handle.interrupt();
                }
            }
        });
        for _ in 0..300 {
            let (store, _) = pre.spawn(0).unwrap();
            send.send(store.interrupt_handle().unwrap()).unwrap();
            drop(store);
            // It is stormed upon while this one runs.
            let (mut store, instance) = pre.spawn(0).unwrap();
            let sum = instance.get_typed_func::<(), i64>(&mut store, "sum").unwrap();
            sum.call(&mut store, ()).unwrap();
        }
    });
}

#[test]
fn timeouts_of_one_run_do_not_reach_the_next() {
    let engine = Engine::default();
    let pre = pre(&engine);
    for _ in 0..20 {
        let (mut store, instance) = pre.spawn(0).unwrap();
        store.set_timeout(Some(std::time::Duration::from_millis(2))).unwrap();
        let spin = instance.get_typed_func::<(), ()>(&mut store, "spin").unwrap();
        let error = spin.call(&mut store, ()).unwrap_err();
        let trap = error.downcast_ref::<pagefork::Trap>().unwrap();
        assert_eq!(trap.code(), TrapCode::Interrupt);
        drop(store);
        let (mut store, instance) = pre.spawn(0).unwrap();
        let sum = instance.get_typed_func::<(), i64>(&mut store, "sum").unwrap();
        sum.call(&mut store, ()).unwrap();
    }
}

#[test]
fn what_belongs_to_a_store_cannot_be_imported_by_what_is_spawned() {
    let engine = Engine::default();
    let module = Module::new(&engine, r#"(module (import "a" "b" (memory 1)))"#).unwrap();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
    let mut linker = Linker::new(&engine);
    linker.define(&store, "a", "b", memory).unwrap();
    let pre = linker.instantiate_pre(&module).unwrap();
    let error = pre.spawn(()).unwrap_err();
    let expected = UsageError::ImportOfStore { module: "a".to_owned(), name: "b".to_owned() };
    assert_eq!(error.downcast_ref(), Some(&expected));
    pre.instantiate(&mut store).unwrap();
}

#[test]
fn what_is_added_to_a_spawned_store_goes_when_it_is_dropped() {
    let engine = Engine::default();
    let pre = pre(&engine);
    for _ in 0..5 {
        let (mut store, _) = pre.spawn(0).unwrap();
        let second = pre.instantiate(&mut store).unwrap();
        Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
        mess(&mut store, second);
    }
    let (store, _) = pre.spawn(0).unwrap();
    assert_eq!(pagefork::suspend::instance_count(&store), 1);
}

#[test]
fn nothing_is_kept_for_what_nobody_will_spawn_again() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let (late, _) = pre.spawn(0).unwrap();
    drop(pre.spawn(0).unwrap());
    assert_eq!(engine.pool_counters().parked, 1);
    drop(pre);
    assert_eq!(engine.pool_counters().parked, 0);
    drop(late);
    assert_eq!(engine.pool_counters().parked, 0);
}

#[test]
fn pools_are_adjusted_while_they_are_used() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let some: Vec<_> = (0..10).map(|_| pre.spawn(0).unwrap()).collect();
    drop(some);
    assert_eq!(engine.pool_counters().parked, 10);
    assert!(engine.pool_counters().resident > 0);
    engine.set_pool(PoolConfig { kept_max: 3, ..PoolConfig::default() });
    assert_eq!(engine.pool_counters().parked, 3);
    engine.set_pool(PoolConfig { resident_max: 0, ..PoolConfig::default() });
    for _ in 0..10 {
        let (mut store, instance) = pre.spawn(0).unwrap();
        mess(&mut store, instance);
    }
    assert_eq!(engine.pool_counters().resident, 0);
    engine.purge_pool();
    assert_eq!(engine.pool_counters().parked, 0);
    drop(pre.spawn(0).unwrap());
}

#[test]
fn a_snapshot_brings_back_what_was() {
    for reset in ResetKind::ALL {
        let config = StrategyConfig { reset, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(config)).unwrap();
        let pre = pre(&engine);
        let (mut store, instance) = pre.spawn(0).unwrap();
        let fresh = look(&mut store, instance);
        store.reset(0).unwrap();
        let mess = |store: &mut Store<u32>| {
            let mess = instance.get_typed_func::<Option<ExternRef>, ()>(&mut *store, "mess");
            mess.unwrap().call(&mut *store, None).unwrap();
        };
        mess(&mut store);
        let snapshot = store.snapshot().unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let was = memory.data(&store).to_vec();
        assert_eq!(was.len(), 3 * 65_536);
        for _ in 0..3 {
            memory.grow(&mut store, 1).unwrap();
            memory.write(&mut store, 0, &[7; 1000]).unwrap();
            store.reset_to(&snapshot, 1).unwrap();
            assert_eq!(memory.data(&store), was, "{reset}");
            assert_eq!(*store.data(), 1);
            let table = instance.get_table(&mut store, "table").unwrap();
            assert_eq!(table.size(&store), 9);
            let segments = instance.get_typed_func::<(), i32>(&mut store, "segments").unwrap();
            segments.call(&mut store, ()).unwrap_err();
        }
        // Into another store of the same.
        let (mut other, copy) = pre.spawn(0).unwrap();
        other.reset_to(&snapshot, 2).unwrap();
        let memory = copy.get_memory(&mut other, "memory").unwrap();
        assert_eq!(memory.data(&other), was);
        // What is spawned next knows nothing of it.
        drop((store, other));
        for _ in 0..3 {
            let (mut store, instance) = pre.spawn(0).unwrap();
            assert_eq!(look(&mut store, instance), fresh, "{reset}");
        }
    }
}

#[test]
fn what_cannot_be_in_a_snapshot_is_refused() {
    let engine = Engine::default();
    let pre = pre(&engine);
    let (mut store, instance) = pre.spawn(0).unwrap();
    let empty = store.snapshot().unwrap();
    mess(&mut store, instance);
    let error = store.snapshot().unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::NoSnapshot(_))), "{error:?}");
    let mut other = Store::new(&engine, 0);
    let error = other.reset_to(&empty, 0).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::WrongSnapshot(_))), "{error:?}");
}

#[test]
fn a_snapshot_of_what_another_linker_made_is_refused() {
    let engine = Engine::default();
    let (one, other) = (pre(&engine), pre(&engine));
    let (mut store, _) = one.spawn(0).unwrap();
    let snapshot = store.snapshot().unwrap();
    let (mut same, _) = one.spawn(0).unwrap();
    same.reset_to(&snapshot, 0).unwrap();
    // Also where the module is the same: its imports need not be.
    let module = one.module().clone();
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "log", |_: i32| ()).unwrap();
    let linked_again = linker.instantiate_pre(&module).unwrap();
    for pre in [&other, &linked_again] {
        let (mut store, _) = pre.spawn(0).unwrap();
        let error = store.reset_to(&snapshot, 0).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(UsageError::WrongSnapshot(_))), "{error:?}");
    }
}
