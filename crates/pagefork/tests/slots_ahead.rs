//! What is spawned in slots that were filled ahead is what it would be in new ones.

use std::sync::atomic::{AtomicU32, Ordering};

use pagefork::{
    CallProgress, Caller, Engine, Instance, Linker, Memory, Module, Result, Snapshot, Store,
    StoreLimits, UsageError,
};

/// How often guests were told that they go on.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// A guest of 40 pages of 64 KiB, whose `run` is suspended until there is a number.
const GUEST: &str = r#"(module
    (import "host" "number" (func $number (result i32)))
    (import "host" "told" (func $told))
    (memory (export "memory") 40 60)
    (global $runs (mut i32) (i32.const 0))
    (func (export "pagefork_after_restore") (call $told))
    (func (export "run") (result i32)
        (global.set $runs (i32.add (global.get $runs) (i32.const 1)))
        (i32.add (i32.mul (i32.const 10) (global.get $runs)) (call $number))))"#;

fn linker(engine: &Engine) -> Linker<Option<i32>> {
    let mut linker = Linker::new(engine);
    let number = |mut caller: Caller<'_, Option<i32>>| -> Result<i32> {
        caller.data().ok_or_else(|| caller.suspend_before())
    };
    linker.func_wrap("host", "number", number).unwrap();
    let told = || {
        TOLD.fetch_add(1, Ordering::Relaxed);
    };
    linker.func_wrap("host", "told", told).unwrap();
    linker
}

fn limits() -> StoreLimits {
    StoreLimits::new().memory_total(60 << 16)
}

/// The store as it is, spawned: what is in its memory, and what its guest comes to.
fn look(store: &mut Store<Option<i32>>, memory: Memory) -> (Vec<u8>, Option<i32>) {
    let bytes = memory.data(&*store).to_vec();
    *store.data_mut() = Some(7);
    let result = match store.suspended() {
        Some(_) => match store.resume().unwrap() {
            CallProgress::Finished(results) => results[0].i32(),
            CallProgress::Suspended => panic!("it has a number"),
        },
        None => None,
    };
    (bytes, result)
}

#[test]
fn what_is_spawned_in_slots_filled_with_an_earlier_state_is_the_later_one_also_after_resets() {
    let engine = Engine::default();
    let linker = linker(&engine);
    let module = Module::new(&engine, GUEST).unwrap();
    let (mut store, instance) = linker.instantiate_pre(&module).unwrap().spawn(None).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.data_mut(&mut store).fill(1);
    let run = instance.get_func(&mut store, "run").unwrap();
    // Each state with pages that differ: none, new ones, the same ones again, and more memory.
    let mut states: Vec<Snapshot<Option<i32>>> = vec![store.snapshot().unwrap()];
    for (pages, byte) in [(3..9, 2_u8), (5..12, 3), (0..1, 4)] {
        for page in pages {
            memory.write(&mut store, page * 4096, &[byte; 4096]).unwrap();
        }
        states.push(store.snapshot().unwrap());
    }
    run.call_suspendable(&mut store, &[]).unwrap();
    states.push(store.snapshot().unwrap());
    memory.grow(&mut store, 5).unwrap();
    memory.write(&mut store, 42 << 16, b"grown").unwrap();
    states.push(store.snapshot().unwrap());

    let memory_of = |store: &mut Store<Option<i32>>, instance: Instance| {
        instance.get_memory(store, "memory").unwrap()
    };
    for (number, last) in states.iter().enumerate() {
        let pre = last.instance_pre().unwrap();
        let (mut usual, instance) = pre.spawn(None).unwrap();
        let memory = memory_of(&mut usual, instance);
        let expected = look(&mut usual, memory);
        for first in 0..states.len() {
            let told = TOLD.load(Ordering::Relaxed);
            // One after the other comes ahead.
            let mut slots = None;
            for state in &states[first.min(number)..=first] {
                let filled = state.instance_pre().unwrap().fill_ahead(&limits(), slots.take());
                slots = Some(filled.unwrap());
            }
            assert_eq!(TOLD.load(Ordering::Relaxed), told, "nothing runs in slots");
            let spawned = pre.spawn_in(slots.unwrap(), 9, None, limits(), |_| ());
            let (mut store, instance) = spawned.unwrap();
            assert_eq!(TOLD.load(Ordering::Relaxed), told + 1);
            let memory = memory_of(&mut store, instance);
            assert!(look(&mut store, memory) == expected, "{number} over {first}");
            memory.data_mut(&mut store).fill(9);
            store.reset(None).unwrap();
            assert!(look(&mut store, memory) == expected, "{number} over {first}, after a reset");
        }
    }
}

#[test]
fn slots_that_do_not_fit_are_not_used_and_nothing_is_filled_beyond_the_limits() {
    let engine = Engine::default();
    let module = |text: &str| Module::new(&engine, text).unwrap();
    let state = |text: &str| {
        let linker = Linker::<()>::new(&engine);
        let (mut store, _) = linker.instantiate_pre(&module(text)).unwrap().spawn(()).unwrap();
        store.snapshot().unwrap().instance_pre().unwrap()
    };
    let small = state(r#"(module (memory (export "memory") 1) (data (i32.const 0) "small"))"#);
    let large = state(r#"(module (memory (export "memory") 9) (data (i32.const 0) "large"))"#);
    let slots = small.fill_ahead(&limits(), None).unwrap();
    let slots = large.fill_ahead(&limits(), Some(slots)).unwrap();
    for (pre, expected) in [(&small, b"small"), (&large, b"large")] {
        let slots = match expected {
            b"small" => large.fill_ahead(&limits(), None).unwrap(),
            _ => small.fill_ahead(&limits(), None).unwrap(),
        };
        let (mut store, instance) = pre.spawn_in(slots, 0, (), limits(), |_| ()).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        assert_eq!(&memory.data(&store)[..5], expected);
    }
    let little = StoreLimits::new().memory_total(1 << 16);
    let refused = large.fill_ahead(&little, None).unwrap_err();
    assert!(refused.to_string().contains("memor"), "{refused}");
    let refused = large.spawn_in(slots, 0, (), little, |_| ()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("memor"), "{refused}");
    let pre = Linker::<()>::new(&engine).instantiate_pre(&module("(module)")).unwrap();
    let refused = pre.fill_ahead(&limits(), None).unwrap_err();
    assert!(matches!(refused.downcast_ref(), Some(UsageError::WrongSnapshot(_))), "{refused}");
}
