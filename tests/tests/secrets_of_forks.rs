//! What one fork is told no other one has: neither in its pages, nor in what is captured of it, nor
//! in a slot that it gets used; and no image has bytes of a tenant who was there before.

use pagefork::suspend;
use pagefork::{
    CallProgress, Caller, CodeBounds, Config, Engine, GrowthKind, InstancePre, Linker, Memory,
    MemoryType, Module, ResetKind, Result, Store, StrategyConfig,
};

/// Learns a secret, has it in every zone and deep in its stack, and waits.
const GUEST: &str = r#"(module
    (import "host" "secret" (func $secret (result i64)))
    (import "host" "pause" (func $pause))
    (memory (export "memory") 2 20)
    (data (i32.const 100) "contents of the image")
    (tag $tag (param i64))
    (global $global (mut i64) (i64.const 0))
    (func $deep (param i32 i64) (result i64) (local i64)
        (local.set 2 (i64.add (local.get 1) (i64.const 0)))
        (if (result i64) (i32.eqz (local.get 0))
            (then (call $pause) (local.get 2))
            (else (i64.xor (local.get 2) (i64.xor (local.get 1)
                (call $deep (i32.sub (local.get 0) (i32.const 1)) (local.get 1)))))))
    (func (export "run") (result i64) (local $s i64) (local $held exnref)
        (local.set $s (call $secret))
        (block $caught (result i64 exnref)
            (try_table (catch_ref $tag $caught) (throw $tag (local.get $s))) (unreachable))
        (local.set $held)
        (drop)
        (i64.store (i32.const 3) (local.get $s))
        (i64.store (i32.const 100000) (local.get $s))
        (drop (memory.grow (i32.const 3)))
        (i64.store (i32.const 200000) (local.get $s))
        (global.set $global (local.get $s))
        (drop (call $deep (i32.const 500) (local.get $s)))
        (block $again (result i64)
            (try_table (catch $tag $again) (throw_ref (local.get $held))) (unreachable))))"#;

type Data = Option<u64>;

/// Numbers that are found by their bytes.
fn secret(number: u64) -> u64 {
    0xa5c3_9b71_0000_002d | (number + 1) << 24
}

fn engine(reset: ResetKind, growth: GrowthKind, code: CodeBounds) -> Engine {
    let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    Engine::new(Config::new().strategies(strategies)).unwrap()
}

fn each_engine() -> impl Iterator<Item = (String, Engine)> {
    let growths = [
        (GrowthKind::Mprotect, CodeBounds::Guarded),
        (GrowthKind::Ftruncate, CodeBounds::Guarded),
        (GrowthKind::Fault, CodeBounds::Guarded),
        (GrowthKind::Kept, CodeBounds::Dual),
        (GrowthKind::Checked { accessible: None }, CodeBounds::Checked),
    ];
    ResetKind::ALL.into_iter().flat_map(move |reset| {
        growths.map(|(growth, code)| {
            (format!("{reset}, {growth:?}, {code:?}"), engine(reset, growth, code))
        })
    })
}

/// A store that waits to be told its secret, spawned from a snapshot.
fn waiting(engine: &Engine) -> InstancePre<Data> {
    let mut linker = Linker::new(engine);
    let secret = |mut caller: Caller<'_, Data>| -> Result<i64> {
        caller.data().map(|secret| secret as i64).ok_or_else(|| caller.suspend_before())
    };
    linker.func_wrap("host", "secret", secret).unwrap();
    linker
        .func_wrap("host", "pause", |mut caller: Caller<'_, Data>| caller.suspend_after())
        .unwrap();
    let mut store = Store::new(engine, None);
    Memory::new(&mut store, MemoryType::new(1, None)).unwrap();
    let module = Module::new(engine, GUEST).unwrap();
    let run = linker.instantiate(&mut store, &module).unwrap().get_func(&mut store, "run").unwrap();
    go_on(run.call_suspendable(&mut store, &[]));
    store.snapshot().unwrap().instance_pre().unwrap()
}

#[track_caller]
fn go_on(progress: Result<CallProgress>) {
    assert!(matches!(progress, Ok(CallProgress::Suspended)), "{progress:?}");
}

/// Tells a store its secret, which it has everywhere then.
fn tell(store: &mut Store<Data>, number: u64) {
    *store.data_mut() = Some(secret(number));
    go_on(store.resume());
    assert!(count(store, number) > 500, "the secret is on the stack and in memory");
}

/// How often a secret is in all that is accessible of a store's slots, dead stacks and links
/// included.
fn count(store: &Store<Data>, number: u64) -> usize {
    let mut found = 0;
    for ordinal in 1..=suspend::instance_count(store) {
        let slot = suspend::slot(store, ordinal);
        let layout = &slot.layout;
        let below = layout.stack.start..layout.base;
        // SAFETY: all from the stack to the base is accessible, and no guest runs.
        let bytes = unsafe {
            let start: *const u8 = std::ptr::with_exposed_provenance(slot.start);
            std::slice::from_raw_parts(
                start.add(below.start as usize),
                (below.end - below.start) as usize,
            )
        };
        found += count_in(bytes, number);
        for memory in 0..layout.memories.len() as u32 {
            let zone = suspend::Zone::Memory(memory);
            found += count_in(&suspend::zone_bytes(store, ordinal, zone).1, number);
        }
    }
    found
}

/// Secrets are whole words everywhere but in memories.
fn count_in(bytes: &[u8], number: u64) -> usize {
    let secret = secret(number).to_le_bytes();
    memchr(bytes, secret[3])
        .filter(|at| {
            at.checked_sub(3).and_then(|start| bytes.get(start..start + 8)) == Some(&secret[..])
        })
        .count()
}

fn memchr(bytes: &[u8], byte: u8) -> impl Iterator<Item = usize> {
    bytes.iter().enumerate().filter(move |(_, other)| **other == byte).map(|(at, _)| at)
}

#[test]
fn a_fork_has_no_secret_of_another() {
    for (name, engine) in each_engine() {
        let pre = waiting(&engine);
        let (mut source, _) = pre.spawn(None).unwrap();
        let before = source.snapshot().unwrap();
        let mut forks = source.fork(3, |_| None).unwrap();
        for (fork, number) in forks.iter_mut().zip(0..) {
            tell(fork, number);
        }
        for (fork, own) in forks.iter().zip(0..) {
            for number in (0..3).filter(|number| *number != own) {
                assert_eq!(count(fork, number), 0, "{name}: {own} has what {number} was told");
            }
        }
        // The source was told nothing, nor was what is made of it, before or now.
        let now = source.snapshot().unwrap();
        for snapshot in [before, now] {
            let (store, _) = snapshot.instance_pre().unwrap().spawn(None).unwrap();
            assert!((0..3).all(|number| count(&store, number) == 0), "{name}");
        }
        // What is captured of a fork has its own secret and no other.
        let captured = forks[1].snapshot().unwrap();
        let (store, _) = captured.instance_pre().unwrap().spawn(None).unwrap();
        assert!(count(&store, 1) > 500, "{name}");
        assert!(count(&store, 0) == 0 && count(&store, 2) == 0, "{name}");
    }
}

#[test]
fn a_tenant_finds_nothing_of_another_in_a_used_slot_nor_has_an_image_of_it() {
    for (name, engine) in each_engine() {
        let pre = waiting(&engine);
        for round in 0..12 {
            let (mut store, _) = pre.spawn_for(round, None).unwrap();
            let earlier = || 0..round;
            assert!(earlier().all(|number| count(&store, number) == 0), "{name}, {round}");
            // Before its secret, and after.
            let images = [store.snapshot().unwrap(), {
                tell(&mut store, round);
                store.snapshot().unwrap()
            }];
            for image in images {
                let (copy, _) = image.instance_pre().unwrap().spawn_for(round, None).unwrap();
                assert!(earlier().all(|number| count(&copy, number) == 0), "{name}, {round}");
            }
            match round % 3 {
                // Dropped while it is suspended, given up, or reset and told again.
                0 => {}
                1 => store.abandon(),
                _ => {
                    store.reset(None).unwrap();
                    tell(&mut store, round);
                }
            }
        }
    }
}
