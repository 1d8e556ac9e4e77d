//! Captured, spawned, forked, reset and parked with a suspended guest, while every system call
//! fails in turn: the source goes on as it would have, nothing half-made is left, and what is
//! spawned next is whole.

mod common;

use common::{held, in_own_process};
use pagefork::suspend::{self, Zone};
use pagefork::{
    CallProgress, Caller, Config, Engine, Error, InstancePre, Linker, Memory, MemoryType, Module,
    PoolConfig, ResetKind, Result, Store, StrategyConfig, UsageError,
};
use pagefork_pages::HostFeatures;
use pagefork_pages::inject::{Injected, fail_from, fail_nth};

/// Writes here and there, grows, and waits deep in its stack with all of it still to be seen.
const GUEST: &str = r#"(module
    (import "host" "next" (func $next (result i32)))
    (memory (export "memory") 40 100)
    (data (i32.const 0) "near") (data (i32.const 2500000) "far")
    (table 10 funcref) (elem (i32.const 0) func $deep $deep)
    (global $sum (mut i64) (i64.const 1))
    (func $deep (param i32) (result i64)
        (i32.store (i32.mul (local.get 0) (i32.const 8192)) (local.get 0))
        (if (result i64) (i32.eqz (local.get 0))
            (then (i64.extend_i32_s (call $next)))
            (else (i64.add (i64.extend_i32_s (i32.load (i32.mul (local.get 0) (i32.const 8192))))
                (call $deep (i32.sub (local.get 0) (i32.const 1)))))))
    (func (export "run") (result i64)
        (drop (memory.grow (i32.const 3)))
        (i32.store (i32.const 2800000) (i32.const 1000))
        (global.set $sum (call $deep (i32.const 60)))
        (drop (memory.grow (i32.const 2)))
        (i64.add (global.get $sum) (i64.extend_i32_s (i32.load (i32.const 2800000))))))"#;

/// What it comes to if the host says this.
fn result(next: i32) -> Option<i64> {
    Some(60 * 61 / 2 + 1000 + i64::from(next))
}

type Data = Option<i32>;

fn engine(reset: ResetKind) -> Engine {
    pagefork_pages::counts_faults_in_memory();
    HostFeatures::get().unwrap();
    let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
    let strategies = StrategyConfig { reset, ..StrategyConfig::default() };
    Engine::new(Config::new().strategies(strategies).pool(pool)).unwrap()
}

/// A store of a linked group that waits, spawned so that it can be reset and parked.
fn suspended(engine: &Engine) -> Store<Data> {
    let mut linker = Linker::new(engine);
    let next = |mut caller: Caller<'_, Data>| caller.data().ok_or_else(|| caller.suspend_before());
    linker.func_wrap("host", "next", next).unwrap();
    let mut store = Store::new(engine, None);
    Memory::new(&mut store, MemoryType::new(2, None)).unwrap();
    let module = Module::new(engine, GUEST).unwrap();
    let run = linker.instantiate(&mut store, &module).unwrap().get_func(&mut store, "run");
    let progress = run.unwrap().call_suspendable(&mut store, &[]).unwrap();
    assert!(matches!(progress, CallProgress::Suspended));
    store
}

/// Every byte that the guest can find.
fn pages(store: &Store<Data>) -> Vec<Vec<u8>> {
    let zones = [Zone::Tables, Zone::State, Zone::Memory(0)];
    let of = |ordinal| zones.map(|zone| suspend::zone_bytes(store, ordinal, zone).1);
    (1..=suspend::instance_count(store)).flat_map(of).collect()
}

#[track_caller]
fn finish(store: &mut Store<Data>, next: i32) {
    *store.data_mut() = Some(next);
    let progress = store.resume().unwrap();
    let CallProgress::Finished(values) = progress else { panic!("it has a number") };
    assert_eq!(values[0].i64(), result(next));
}

/// Spawns, compares with what was captured, and goes on to the end.
#[track_caller]
fn check_spawned(pre: &InstancePre<Data>, expected: &[Vec<u8>]) {
    let (mut store, _) = pre.spawn(None).unwrap();
    assert!(pages(&store) == expected, "a spawned store is as what was captured");
    finish(&mut store, 5);
}

/// Runs `attempt` with its first, second, ... system call failing, and with all from that one on,
/// until it makes fewer. Returns how many there are.
fn each_failure<R>(
    mut attempt: impl FnMut() -> Result<R>,
    mut check: impl FnMut(Result<R, Error>),
) -> u64 {
    for nth in 0.. {
        let mut is_over = false;
        for code in [libc::ENOMEM, libc::EMFILE, libc::EPERM] {
            for all in [false, true] {
                let Injected { value, failed } = match all {
                    true => fail_from(nth, code, &mut attempt),
                    false => fail_nth(nth, code, &mut attempt),
                };
                is_over = failed.is_none();
                check(value);
            }
        }
        if is_over {
            return nth;
        }
    }
    unreachable!()
}

#[test]
fn a_snapshot_that_fails_leaves_its_source_as_it_was() {
    in_own_process("a_snapshot_that_fails_leaves_its_source_as_it_was", || {
        for reset in ResetKind::ALL {
            let engine = engine(reset);
            let mut source = suspended(&engine);
            let expected = pages(&source);
            // Of what was never captured, and of a branch.
            for round in 0..2 {
                drop(source.snapshot().unwrap());
                let before = held();
                each_failure(
                    || source.snapshot().map(drop),
                    |_| assert_eq!(held(), before, "{reset}, {round}"),
                );
                assert!(pages(&source) == expected && source.suspended().is_some());
                let pre = source.snapshot().unwrap().instance_pre().unwrap();
                check_spawned(&pre, &expected);
                source = pre.spawn(None).unwrap().0;
            }
            finish(&mut source, 9);
        }
    });
}

#[test]
fn a_spawn_or_fork_that_fails_leaves_nothing() {
    in_own_process("a_spawn_or_fork_that_fails_leaves_nothing", || {
        for reset in ResetKind::ALL {
            let engine = engine(reset);
            let mut source = suspended(&engine);
            let expected = pages(&source);
            let snapshot = source.snapshot().unwrap();
            // Each time one of which nothing is parked.
            let attempt = || snapshot.instance_pre()?.spawn(None).map(drop);
            attempt().unwrap();
            let before = held();
            let calls = each_failure(attempt, |_| {
                // A range that could not be given back is, with the next one.
                attempt().unwrap();
                assert_eq!(held(), before, "{reset}");
            });
            assert!(calls >= 4, "{calls} calls");
            let into_empty = || {
                let mut store = Store::new(&engine, None);
                let made = snapshot.instance_pre()?.instantiate(&mut store);
                if made.is_err() {
                    assert_eq!(suspend::instance_count(&store), 0);
                    assert!(store.suspended().is_none());
                    let error = store.resume().unwrap_err();
                    assert!(matches!(error.downcast_ref(), Some(UsageError::NotSuspended)));
                }
                made.map(drop)
            };
            into_empty().unwrap();
            each_failure(into_empty, |_| {
                into_empty().unwrap();
                assert_eq!(held(), before, "{reset}");
            });
            drop(source.fork(3, |_| None).unwrap());
            let before = held();
            each_failure(
                || source.fork(3, |_| None).map(drop),
                |_| {
                    drop(source_fork(&snapshot));
                    assert_eq!(held(), before, "{reset}");
                },
            );
            assert!(pages(&source) == expected);
            let forks = source.fork(3, |number| Some(number as i32)).unwrap();
            for (mut fork, number) in forks.into_iter().zip(0..) {
                finish(&mut fork, number);
            }
            finish(&mut source, 9);
        }
    });
}

/// Something that maps and unmaps what a spawn does.
fn source_fork(snapshot: &pagefork::Snapshot<Data>) -> Store<Data> {
    snapshot.instance_pre().unwrap().spawn(None).unwrap().0
}

#[test]
fn what_was_parked_while_calls_failed_is_whole_when_it_is_spawned_again() {
    in_own_process("what_was_parked_while_calls_failed_is_whole_when_it_is_spawned_again", || {
        for reset in ResetKind::ALL {
            let engine = engine(reset);
            let mut source = suspended(&engine);
            let expected = pages(&source);
            let pre = source.snapshot().unwrap().instance_pre().unwrap();
            let attempt = || {
                let (mut store, _) = pre.spawn(None)?;
                *store.data_mut() = Some(1);
                store.resume().map(drop)
            };
            (0..40).for_each(|_| attempt().unwrap());
            each_failure(attempt, |_| {
                for _ in 0..2 {
                    check_spawned(&pre, &expected);
                }
            });
            finish(&mut source, 9);
        }
    });
}

#[test]
fn a_reset_that_fails_can_be_made_again() {
    in_own_process("a_reset_that_fails_can_be_made_again", || {
        for reset in ResetKind::ALL {
            let engine = engine(reset);
            let mut source = suspended(&engine);
            let expected = pages(&source);
            let pre = source.snapshot().unwrap().instance_pre().unwrap();
            let (mut store, _) = pre.spawn(None).unwrap();
            let here = store.snapshot().unwrap();
            for to_snapshot in [false, true] {
                let mut calls = 1;
                for nth in 0.. {
                    finish(&mut store, 3);
                    let Injected { value, failed } =
                        fail_nth(nth, libc::ENOMEM, || match to_snapshot {
                            true => store.reset_to(&here, None),
                            false => store.reset(None),
                        });
                    // As before or broken: no guest of a broken one goes on.
                    if value.is_err() {
                        assert!(store.suspended().is_none());
                        let error = store.resume().unwrap_err();
                        let error = error.downcast_ref::<UsageError>();
                        assert!(
                            matches!(
                                error,
                                Some(UsageError::ResetIncomplete | UsageError::NotSuspended)
                            ),
                            "{error:?}"
                        );
                    }
                    store.reset_to(&here, None).unwrap();
                    assert!(pages(&store) == expected, "{reset}, {nth}");
                    if failed.is_none() {
                        break;
                    }
                    calls += 1;
                }
                assert!(calls > 1 || !to_snapshot, "{reset}: maps are made anew");
            }
            finish(&mut store, 9);
            finish(&mut source, 9);
        }
    });
}
