//! What went wrong in other runtimes when slots were used again, and must not here:
//! each test names the incident. What concerns pages alone is tested with them.

mod common;

use common::{held, in_own_process, trap_code};
use pagefork::suspend::{self, Zone};
use pagefork::{
    AsContextMut, Caller, CodeBounds, Config, Engine, Extern, ExternRef, GrowthKind, Instance,
    InstancePre, Linker, Module, PoolConfig, ResetKind, Result, Store, StrategyConfig, TrapCode,
    UsageError, Val,
};
use pagefork_pages::inject::{fail_from, fail_nth, half_way};
use pagefork_pages::{Call, HostFeatures};

/// Tables that hold references, globals, a start function that writes, growth.
const GUEST: &str = r#"(module
    (memory (export "memory") 2 30)
    (data (i32.const 70000) "contents")
    (table (export "table") 6 600 externref)
    (global $kept (export "global") (mut externref) (ref.null extern))
    (global $number (mut i32) (i32.const 5))
    (func $start
        (i32.store (i32.const 16) (global.get $number))
        (global.set $number (i32.const 6)))
    (start $start)
    (func (export "keep") (param $value externref) (param $pages i32)
        (global.set $kept (local.get $value))
        (table.fill (i32.const 0) (local.get $value) (i32.const 6))
        (drop (table.grow (local.get $value) (i32.const 500)))
        (i32.store (i32.const 70000) (i32.const -1))
        (drop (memory.grow (local.get $pages)))
        (memory.fill (i32.const 100) (i32.const 0xcc) (i32.const 60000)))
    (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
    (func (export "far") (param i32) (result i64) (i64.load offset=0xfffffff0 (local.get 0)))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;

fn pre(engine: &Engine, text: &str) -> InstancePre<()> {
    let module = Module::new(engine, text).unwrap();
    Linker::new(engine).instantiate_pre(&module).unwrap()
}

fn engine(reset: ResetKind, growth: GrowthKind) -> Engine {
    let code = match growth {
        _ if growth.is_exact() => CodeBounds::Guarded,
        GrowthKind::Checked { .. } => CodeBounds::Checked,
        _ => CodeBounds::Dual,
    };
    let config = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    // Nothing happens by itself.
    let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
    Engine::new(Config::new().strategies(config).pool(pool)).unwrap()
}

/// Every strategy with every kind of growth.
fn pairs() -> Vec<(ResetKind, GrowthKind)> {
    let growths = [
        GrowthKind::Mprotect,
        GrowthKind::Checked { accessible: None },
        GrowthKind::Checked { accessible: Some(3 << 16) },
        GrowthKind::Kept,
        GrowthKind::Ftruncate,
        GrowthKind::Fault,
    ];
    ResetKind::ALL.into_iter().flat_map(|reset| growths.map(|growth| (reset, growth))).collect()
}

fn pages(store: &Store<()>) -> Vec<Vec<u8>> {
    [Zone::Exceptions, Zone::Tables, Zone::State, Zone::Memory(0)]
        .map(|zone| suspend::zone_bytes(store, 1, zone).1)
        .into()
}

/// Leaves references and bytes of a tenant in every zone.
fn keep(store: &mut Store<()>, instance: Instance) {
    try_keep(store, instance).unwrap();
}

/// The same; if a growth can neither be done nor undone, the guest traps.
fn try_keep(store: &mut Store<()>, instance: Instance) -> Result<()> {
    let value = Some(ExternRef::new(&mut *store, "a secret")?);
    let keep = instance.get_typed_func::<(Option<ExternRef>, i32), ()>(&mut *store, "keep")?;
    keep.call(&mut *store, (value, 9))
}

/// Runs a step with its first, second, ... system call failing, and then all from
/// there on, until it makes fewer; `step` says whether it has succeeded.
fn each_failure(mut step: impl FnMut(&str) -> bool, mut fails: impl FnMut(&str)) {
    HostFeatures::get().unwrap();
    for all in [false, true] {
        for nth in 0.. {
            let what = format!("{} call {nth} fails", if all { "from" } else { "" });
            let outcome = match all {
                true => fail_from(nth, libc::ENOMEM, || step(&what)),
                false => fail_nth(nth, libc::ENOMEM, || step(&what)),
            };
            if outcome.failed.is_none() {
                assert!(outcome.value, "{what}");
                break;
            }
            fails(&what);
        }
    }
}

#[test]
fn cve_2022_23636_and_wasmtime_13374_13579_13634_a_spawn_fails_at_every_step() {
    in_own_process(
        "cve_2022_23636_and_wasmtime_13374_13579_13634_a_spawn_fails_at_every_step",
        || {
            for (reset, growth) in pairs() {
                let what = format!("{reset}, {growth:?}");
                let engine = engine(reset, growth);
                let module = Module::new(&engine, GUEST).unwrap();
                let linker = Linker::<()>::new(&engine);
                let pre = linker.instantiate_pre(&module).unwrap();
                let fresh = pages(&pre.spawn(()).unwrap().0);
                drop(pre.spawn(()).unwrap());
                engine.purge_pool();
                let before = held();
                let check = |when: &str| {
                    let (mut store, instance) = pre.spawn(()).unwrap();
                    assert!(pages(&store) == fresh, "{what}: {when}");
                    let size = instance.get_table(&mut store, "table").unwrap().size(&store);
                    assert_eq!(size, 6);
                    for index in 0..6 {
                        let table = instance.get_table(&mut store, "table").unwrap();
                        let element = table.get(&mut store, index).unwrap();
                        assert!(matches!(element, Val::ExternRef(None)), "{what}: {when}");
                    }
                    keep(&mut store, instance);
                };
                // A cold spawn, with and without a slot that is there.
                each_failure(
                    |_| {
                        engine.purge_pool();
                        pre.spawn(()).is_ok()
                    },
                    |when| {
                        check(when);
                        assert_eq!(engine.pool_counters().parked, 1, "{what}: {when}");
                    },
                );
                // Into a plain store, several at once: all or nothing of each.
                each_failure(
                    |_| {
                        engine.purge_pool();
                        let mut store = Store::new(&engine, ());
                        (0..3).all(|_| pre.instantiate(&mut store).is_ok())
                    },
                    |when| check(when),
                );
                // A warm spawn after a reset while parking that failed.
                each_failure(
                    |_| {
                        let Ok((mut store, instance)) = pre.spawn(()) else { return false };
                        let kept = try_keep(&mut store, instance).is_ok();
                        drop(store);
                        kept && pre.spawn(()).is_ok()
                    },
                    |when| check(when),
                );
                engine.purge_pool();
                let counters = engine.pool_counters();
                assert_eq!((counters.parked, counters.resident), (0, 0), "{what}");
                // What could not be released at once is released with the next slot.
                drop(pre.spawn(()).unwrap());
                engine.purge_pool();
                let after = held();
                assert_eq!((after.mapped, after.maps), (before.mapped, before.maps), "{what}");
                assert_eq!(after.descriptors, before.descriptors, "{what}");
            }
        },
    );
}

#[test]
fn wasmtime_13070_and_12888_what_could_not_be_reset_is_not_handed_out() {
    HostFeatures::get().unwrap();
    for (reset, growth) in pairs() {
        let engine = engine(reset, growth);
        let pre = pre(&engine, GUEST);
        let fresh = pages(&pre.spawn(()).unwrap().0);
        let mut failures = 0;
        for (all, nth) in [false, true].into_iter().flat_map(|all| (0..12).map(move |n| (all, n))) {
            let what = format!("{reset}, {growth:?}, {all} {nth}");
            let fail = |body: &mut dyn FnMut() -> bool| match all {
                true => fail_from(nth, libc::ENOMEM, body).value,
                false => fail_nth(nth, libc::ENOMEM, body).value,
            };
            // While it is dropped.
            let (mut store, instance) = pre.spawn(()).unwrap();
            keep(&mut store, instance);
            let mut store = Some(store);
            fail(&mut || {
                drop(store.take());
                true
            });
            let (mut store, instance) = pre.spawn(()).unwrap();
            assert!(pages(&store) == fresh, "{what}");

            // While it is reset on purpose: then it refuses to be used.
            keep(&mut store, instance);
            let load = instance.get_typed_func::<i32, i32>(&mut store, "load").unwrap();
            if !fail(&mut || store.reset(()).is_ok()) {
                failures += 1;
                let error = load.call(&mut store, 0).unwrap_err();
                let expected = Some(&UsageError::ResetIncomplete);
                assert_eq!(error.downcast_ref(), expected, "{what}");
                let error = store.as_context_mut().check_reset().unwrap_err();
                assert_eq!(error.downcast_ref(), expected, "{what}");
                assert!(pre.instantiate(&mut store).is_err(), "{what}");
                store.reset(()).unwrap();
            }
            assert!(pages(&store) == fresh, "{what}: after a reset");
            load.call(&mut store, 0).unwrap();

            // And when it is dropped instead, the next tenant sees nothing of it.
            fail(&mut || store.reset(()).is_ok());
            drop(store);
            let (mut store, instance) = pre.spawn(()).unwrap();
            assert!(pages(&store) == fresh, "{what}: after one that failed");
            let load = instance.get_typed_func::<i32, i32>(&mut store, "load").unwrap();
            load.call(&mut store, 0).unwrap();
        }
        // Where few faults show what was written and memories stay accessible, a reset makes
        // no call that could fail.
        let calls = !(matches!(reset, ResetKind::Resident | ResetKind::Protect | ResetKind::Auto)
            && matches!(growth, GrowthKind::Checked { .. } | GrowthKind::Kept)
            && pagefork_pages::counts_faults_in_memory());
        assert!(failures > 0 || !calls, "{reset}, {growth:?}: nothing failed");
    }
}

#[test]
fn cve_2026_34988_and_2022_39392_code_is_stopped_at_the_end_of_a_slot_that_had_grown() {
    let sized = |initial: u32, maximum: u32| {
        GUEST
            .replace("2 30)", &format!("{initial} {maximum})"))
            .replace(r#"(data (i32.const 70000) "contents")"#, "")
            .replace("(start $start)", "")
    };
    for (reset, growth) in pairs() {
        let engine = engine(reset, growth);
        for (initial, maximum) in [(1, 30), (0, 0), (0, 30), (3, 3), (1, 65536)] {
            let pre = pre(&engine, &sized(initial, maximum));
            for round in 0..4 {
                let (mut store, instance) = pre.spawn(()).unwrap();
                let what = format!("{reset}, {growth:?}, {initial} {maximum}, {round}");
                let load = instance.get_typed_func::<u32, i32>(&mut store, "load").unwrap();
                let end = initial << 16;
                for at in [0, 1, 4095, 4096, 65535, 65536, 29 << 16, 1 << 31, u32::MAX - end] {
                    let error = load.call(&mut store, end + at).unwrap_err();
                    assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{what}: {at:#x}");
                }
                let far = instance.get_typed_func::<u32, i64>(&mut store, "far").unwrap();
                for at in [0, 8, 16, 0x7fff_ffff, u32::MAX] {
                    let error = far.call(&mut store, at).unwrap_err();
                    assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{what}: {at:#x}");
                }
                let grow = instance.get_typed_func::<u32, i32>(&mut store, "grow").unwrap();
                let pages = maximum.min(30) - initial.min(maximum);
                assert_eq!(grow.call(&mut store, pages).unwrap(), initial as i32, "{what}");
                let memory = instance.get_memory(&mut store, "memory").unwrap();
                let grown = &mut memory.data_mut(&mut store)[end as usize..];
                assert!(grown.iter().all(|byte| *byte == 0), "{what}");
                grown.fill(0xee);
            }
        }
    }
}

/// The kernel changes the access of one map and not of the next, and not back either: what
/// is accessible beyond the memory's size must not be used, by this run or a later one.
#[test]
fn a_growth_that_is_neither_done_nor_undone_ends_the_run() {
    HostFeatures::get().unwrap();
    let text = r#"(module
        (import "host" "grow" (func $grow))
        (memory (export "memory") 1 30)
        (func (export "grow")
            (drop (memory.grow (i32.const 2)))
            (i32.store (i32.const 65536) (i32.const 1)))
        (func (export "host")
            (call $grow)
            (i32.store (i32.const 65536) (i32.const 1))))"#;
    for growth in [GrowthKind::Mprotect, GrowthKind::Kept] {
        let engine = engine(ResetKind::Auto, growth);
        let mut linker = Linker::new(&engine);
        let grow = |mut caller: Caller<'_, ()>| {
            let memory = caller.get_export("memory").and_then(Extern::into_memory);
            // The host function makes nothing of it.
            let _ = memory.unwrap().grow(&mut caller, 2);
        };
        linker.func_wrap("host", "grow", grow).unwrap();
        let pre = linker.instantiate_pre(&Module::new(&engine, text).unwrap()).unwrap();
        for (from, ends) in [(None, false), (Some(0), true)] {
            for name in ["grow", "host"] {
                // In a new slot nothing is accessible yet.
                engine.purge_pool();
                let (mut store, instance) = pre.spawn(()).unwrap();
                let run = instance.get_typed_func::<(), ()>(&mut store, name).unwrap();
                let mut call = || run.call(&mut store, ()).unwrap_err();
                let error = half_way(|| match from {
                    None => fail_nth(0, libc::ENOMEM, &mut call).value,
                    Some(from) => fail_from(from, libc::ENOMEM, &mut call).value,
                });
                assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{name}");
                let error = run.call(&mut store, ());
                let broken = matches!(
                    error.as_ref().map_err(|error| error.downcast_ref::<UsageError>()),
                    Err(Some(UsageError::ResetIncomplete))
                );
                assert_eq!(broken, ends, "{name}, {growth:?}: {error:?}");
                store.reset(()).unwrap();
                run.call(&mut store, ()).unwrap();
            }
        }
    }
}

#[test]
fn freenet_3633_what_is_kept_goes_when_it_is_closed_purged_or_its_module_is_gone() {
    in_own_process(
        "freenet_3633_what_is_kept_goes_when_it_is_closed_purged_or_its_module_is_gone",
        || {
            for (reset, growth) in pairs() {
                let what = format!("{reset}, {growth:?}");
                let engine = engine(reset, growth);
                let warm = pre(&engine, GUEST);
                drop(warm.spawn(()).unwrap());
                engine.purge_pool();
                let before = held();
                let some = || -> Vec<_> { (0..20).map(|_| warm.spawn(()).unwrap()).collect() };
                let same = |when: &str| {
                    let now = held();
                    assert_eq!(
                        (now.mapped, now.maps),
                        (before.mapped, before.maps),
                        "{what}: {when}"
                    );
                    assert_eq!(now.descriptors, before.descriptors, "{what}: {when}");
                };

                some().into_iter().for_each(|(store, _)| store.close());
                assert_eq!(engine.pool_counters().parked, 0, "{what}");
                same("closed");

                drop(some());
                assert_eq!(engine.pool_counters().parked, 20, "{what}");
                assert!(held().mapped > before.mapped + (20 << 30), "{what}: nothing is kept");
                assert_eq!(engine.purge_pool(), 20);
                same("purged");

                drop(some());
                let pool = engine.config().pool_config();
                engine.set_pool(PoolConfig { kept_max: 0, ..pool });
                same("none are kept");
                drop(some());
                same("none are kept any more");
            }
        },
    );
}

/// A tenant that was suspended and dropped, in a slot that is used again.
#[test]
fn cve_2026_27195_a_half_run_call_is_no_matter_to_the_next_tenant() {
    let text = GUEST.replace(
        "(func (export \"load\")",
        r#"(func (export "wait") (param i32)
            (loop (i32.store (i32.const 300) (local.get 0)) (br 0)))
        (func (export "load")"#,
    );
    for (reset, growth) in pairs() {
        let engine = engine(reset, growth);
        let pre = pre(&engine, &text);
        let fresh = pages(&pre.spawn(()).unwrap().0);
        for stop_at in 1..12 {
            let (mut store, instance) = pre.spawn(()).unwrap();
            let wait = instance.get_func(&mut store, "wait").unwrap();
            suspend::call(&mut store, &wait, &[Val::I32(stop_at)], Some(stop_at as u64)).unwrap();
            assert!(suspend::suspension(&store).is_some());
            match stop_at % 3 {
                0 => (),
                1 => drop(store.reset(())),
                _ => suspend::abandon(&mut store),
            }
            drop(store);
            let (mut store, instance) = pre.spawn(()).unwrap();
            assert!(pages(&store) == fresh, "{reset}, {growth:?}: {stop_at}");
            assert!(suspend::suspension(&store).is_none());
            let load = instance.get_typed_func::<i32, i32>(&mut store, "load").unwrap();
            assert_eq!(load.call(&mut store, 300).unwrap(), 0);
        }
        assert_eq!(engine.pool_counters().parked, 1);
    }
}

/// A release that fails is made good later, when address space is next given back.
#[test]
fn a_slot_that_could_not_be_released_is_released_later() {
    in_own_process("a_slot_that_could_not_be_released_is_released_later", || {
        let engine = engine(ResetKind::Auto, GrowthKind::Mprotect);
        let pre = pre(&engine, GUEST);
        drop(pre.spawn(()).unwrap());
        engine.purge_pool();
        let before = held();
        drop(pre.spawn(()).unwrap());
        let outcome = fail_nth(0, libc::ENOMEM, || engine.purge_pool());
        assert_eq!((outcome.value, outcome.failed), (1, Some(Call::Release)));
        assert_ne!(held(), before);
        drop(pre.spawn(()).unwrap());
        engine.purge_pool();
        assert_eq!(held(), before);
    });
}
