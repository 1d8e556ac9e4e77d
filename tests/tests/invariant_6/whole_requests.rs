//! A whole warm request of the default (spawn, find the function, call, drop) makes no system call and
//! allocates nothing. Where page faults are not counted in memory it makes the one that counts them; and where
//! many pages are kept, one in eight asks a clock.
//!
//! Memory is locked twice, by one instruction each, though no other thread wants it.
//!
//! The parent traces the child and notes each call that it makes, or each instruction, whatever it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefork::{Config, Engine, InstancePre, Linker, Module, PoolConfig};

use super::traced::{MARK, Stopped, Traced, mark};
use super::{ALLOCATIONS, in_own_process};

/// Functions that write to none, one, some and many pages of a memory, and one that calls the host.
const GUEST: &str = r#"(module
    (import "host" "id" (func $id (param i32) (result i32)))
    (memory (export "memory") 64)
    (data (i32.const 1000) "contents")
    (global $count (mut i32) (i32.const 0))
    (func $write (param $pages i32)
        (loop $next
            (if (local.get $pages) (then
                (local.set $pages (i32.sub (local.get $pages) (i32.const 1)))
                (i32.store (i32.mul (local.get $pages) (i32.const 8192)) (i32.const 7))
                (br $next)))))
    (func (export "nop"))
    (func (export "global") (global.set $count (i32.add (global.get $count) (i32.const 1))))
    (func (export "host") (drop (call $id (i32.const 1))))
    (func (export "read") (drop (i32.load (i32.const 1000))))
    (func (export "page") (call $write (i32.const 1)))
    (func (export "pages") (call $write (i32.const 16)))
    (func (export "many") (call $write (i32.const 200))))"#;

const KINDS: [&str; 7] = ["nop", "global", "host", "read", "page", "pages", "many"];

/// So often something is done until all is warm, and all of `Auto` has been tried.
const WARM: u32 = 400;
const ROUNDS: u32 = 200;

/// An engine with the default in all that requests are made of.
fn pre() -> InstancePre<()> {
    // What looks after idle slots does so in a thread of its own, for whose lock a request may wait.
    let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
    let engine = Engine::new(Config::new().pool(pool)).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "id", |value: i32| value).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

fn request(pre: &InstancePre<()>, kind: &str) {
    let (mut store, instance) = pre.spawn(()).unwrap();
    let function = instance.get_typed_func::<(), ()>(&mut store, kind).unwrap();
    function.call(&mut store, ()).unwrap();
}

/// What the child does: requests until all is warm, then those that are looked at. Returns its exit code.
fn requests(kind: &str) -> i32 {
    let pre = pre();
    (0..WARM).for_each(|_| request(&pre, kind));
    let before = ALLOCATIONS.get();
    mark();
    (0..ROUNDS).for_each(|_| request(&pre, kind));
    mark();
    let allocations = ALLOCATIONS.get() - before;
    // Its end is not looked at.
    std::mem::forget(pre);
    i32::from(allocations > 0)
}

/// The system calls by their number, and how often each is made, that a child makes between two marks of
/// `body`, which returns its exit code; and how it ends. `None` where no process may trace another.
fn calls_of(body: impl FnOnce() -> i32) -> Option<(BTreeMap<i64, u32>, i32)> {
    let mut child = Traced::new(body)?;
    let (mut calls, mut marks, mut is_inside) = (BTreeMap::new(), 0, false);
    loop {
        if let Stopped::Ended(code) = child.next_call() {
            assert_eq!(marks, 2, "it has ended too early: {code}");
            return Some((calls, code));
        }
        // Each call stops twice: where it begins and where it ends.
        is_inside = !is_inside;
        if is_inside {
            let number = child.registers().orig_rax as i64;
            match (number == MARK, marks) {
                (true, _) => marks += 1,
                (false, 1) => *calls.entry(number).or_insert(0) += 1,
                (false, _) => (),
            }
        }
    }
}

/// How many instructions that lock memory a child carries out between two marks of `body`, and how many of any kind. `None`
/// where no process may trace another.
fn locked_of(body: impl FnOnce() -> i32) -> Option<(u32, u32)> {
    let mut child = Traced::new(body)?;
    while child.registers().orig_rax as i64 != MARK {
        assert!(matches!(child.next_call(), Stopped::There), "it has ended too early");
    }
    assert!(matches!(child.next_call(), Stopped::There), "the mark has an end");
    let (mut locked, mut all) = (0, 0);
    loop {
        assert!(matches!(child.step(), Stopped::There), "it has ended too early");
        let registers = child.registers();
        let code = child.bytes(registers.rip);
        if code.starts_with(&[0x0f, 0x05]) && registers.rax as i64 == MARK {
            return Some((locked, all));
        }
        locked += u32::from(locks(&code));
        all += 1;
    }
}

/// Whether an instruction of x86-64 locks memory: by its prefix, or since it exchanges a register with memory.
fn locks(code: &[u8; 8]) -> bool {
    const PREFIXES: [u8; 11] = [0xf2, 0xf3, 0x66, 0x67, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65, 0xf0];
    let behind = code.iter().position(|byte| !PREFIXES.contains(byte)).unwrap_or(code.len());
    let (prefixes, rest) = code.split_at(behind);
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    prefixes.contains(&0xf0) || matches!(rest, [0x86 | 0x87, 0..=0xbf, ..])
}

/// The calls of as many requests as [`ROUNDS`] that are made by design. Whoever keeps many pages asks the clock of the
/// thread, before and after, what a look at one costs, at one reset in eight.
fn calls_by_design(kind: &str, of_faults: &[(i64, u32)]) -> Vec<(i64, u32)> {
    let clock = (kind == "many").then_some((libc::SYS_clock_gettime, ROUNDS / 8 * 2));
    of_faults.iter().copied().chain(clock).collect()
}

/// Asserts that requests make these calls and allocate nothing. A page fault that is not the guest's, as where the
/// system takes pages of the program away, may cost calls: so they are made again, twice at most.
fn assert_calls(kind: &str, by: &str, expected: &[(i64, u32)], body: impl Fn() -> i32) {
    let mut found = Vec::new();
    for _ in 0..3 {
        let Some((calls, code)) = calls_of(&body) else {
            return eprintln!("NOT TESTED: calls of a {kind}: no process may trace another here");
        };
        assert_eq!(code, 0, "{kind}, faults counted {by}: a request allocates, or has failed");
        found = calls.into_iter().collect();
        if found == expected {
            return;
        }
    }
    panic!("{kind}, faults counted {by}: calls and how often: {found:?} in place of {expected:?}");
}

#[test]
fn a_whole_warm_request_of_the_default_makes_no_system_call() {
    let name = "whole_requests::a_whole_warm_request_of_the_default_makes_no_system_call";
    in_own_process(name, || {
        if !pagefork_pages::counts_faults_in_memory() {
            return eprintln!("NOT TESTED: page faults are not counted in memory here");
        }
        for kind in KINDS {
            assert_calls(kind, "in memory", &calls_by_design(kind, &[]), || requests(kind));
        }
    });
}

/// One more than elsewhere, which counts page faults: once a request, as its end is where the next begins.
#[test]
fn where_faults_are_not_counted_in_memory_a_warm_request_makes_one_call() {
    let name =
        "whole_requests::where_faults_are_not_counted_in_memory_a_warm_request_makes_one_call";
    in_own_process(name, || {
        for kind in KINDS {
            let expected = calls_by_design(kind, &[(libc::SYS_getrusage, ROUNDS)]);
            assert_calls(kind, "by a call", &expected, || {
                super::refuse(libc::SYS_perf_event_open);
                assert!(!pagefork_pages::counts_faults_in_memory());
                requests(kind)
            });
        }
    });
}

/// Where a store is taken and where it is parked: threads that enforce limits look into the same place.
#[test]
fn a_whole_warm_request_locks_memory_twice() {
    const ROUNDS: u32 = 8;
    in_own_process("whole_requests::a_whole_warm_request_locks_memory_twice", || {
        for kind in ["nop", "global", "host", "read", "page", "pages"] {
            let found = locked_of(|| {
                let pre = pre();
                (0..WARM).for_each(|_| request(&pre, kind));
                mark();
                (0..ROUNDS).for_each(|_| request(&pre, kind));
                mark();
                0
            });
            let Some((locked, all)) = found else {
                return eprintln!(
                    "NOT TESTED: locks of a {kind}: no process may trace another here"
                );
            };
            assert!(all > ROUNDS * 100, "{kind}: {all} instructions");
            assert_eq!(locked, 2 * ROUNDS, "{kind}");
        }
    });
}

/// The parent sees each instruction that locks memory.
#[test]
fn locked_instructions_are_noticed() {
    in_own_process("whole_requests::locked_instructions_are_noticed", || {
        let count = AtomicU64::new(1);
        let found = locked_of(|| {
            mark();
            count.fetch_add(1, Ordering::Relaxed);
            std::hint::black_box(count.swap(2, Ordering::Relaxed));
            let _ = count.compare_exchange(2, 3, Ordering::Relaxed, Ordering::Relaxed);
            count.store(4, Ordering::Relaxed);
            mark();
            0
        });
        let Some((locked, _)) = found else { return };
        assert_eq!(locked, 3);
    });
}

/// The parent sees each call, and what allocates.
#[test]
fn calls_and_allocations_are_noticed() {
    in_own_process("whole_requests::calls_and_allocations_are_noticed", || {
        let found = calls_of(|| {
            mark();
            // SAFETY: calls without arguments, which change nothing.
            (0..3).for_each(|_| _ = unsafe { libc::getpid() });
            let before = ALLOCATIONS.get();
            drop(std::hint::black_box(Box::new(1)));
            let allocations = ALLOCATIONS.get() - before;
            mark();
            allocations as i32
        });
        let Some(found) = found else { return };
        assert_eq!(found, (BTreeMap::from([(libc::SYS_getpid, 3)]), 1));
    });
}
