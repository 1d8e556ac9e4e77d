//! A call writes to its own store and its own thread, and to nothing that calls of other threads
//! use: so any number of threads call at once without waiting for each other.
//!
//! All memory of the process that could be written is made read-only, but for the pages of the
//! store, those of its slots and the stacks of its thread. What a call writes elsewhere is a fault.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::{io, ptr};

use common::in_own_process;
use pagefork::{
    Caller, Config, Engine, Func, FuncType, Instance, Linker, Module, PoolConfig, Store, TypedFunc,
    Val, ValRaw, ValType,
};
use pagefork_pages::procmaps::{self, Map};

const PAGE_SIZE: usize = 4096;

/// Bytes of what is allocated for the store.
const OWN_SIZE: usize = 16 << 20;

/// Puts what is allocated for the store into pages of its own.
struct Separating;

/// Whether what is allocated now is the store's.
static IS_OWN: AtomicBool = AtomicBool::new(false);

/// The pages for it, and how many bytes of them are taken.
static OWN: AtomicUsize = AtomicUsize::new(0);
static OWN_USED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does what it does; the pages are mapped before they are given out,
// no byte of them is given out twice, and none is taken back.
unsafe impl GlobalAlloc for Separating {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !IS_OWN.load(Ordering::Relaxed) {
            // SAFETY: by the contract of `GlobalAlloc::alloc`, which is the same.
            return unsafe { System.alloc(layout) };
        }
        let size = layout.size() + layout.align();
        let at = OWN_USED.fetch_add(size, Ordering::Relaxed);
        match at + size <= OWN_SIZE {
            true => {
                let start = OWN.load(Ordering::Relaxed) + at;
                ptr::with_exposed_provenance_mut(start.next_multiple_of(layout.align()))
            }
            false => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        let own = OWN.load(Ordering::Relaxed);
        if !(own..own + OWN_SIZE).contains(&place.addr()) {
            // SAFETY: by the contract of `GlobalAlloc::dealloc`: the system allocated it.
            unsafe { System.dealloc(place, layout) }
        }
    }
}

#[global_allocator]
static ALLOCATOR: Separating = Separating;

/// Where writes were caught: in the store's pages, so that noting one is none.
struct Caught {
    count: AtomicUsize,
    places: [AtomicUsize; 16],
}

static CAUGHT: AtomicPtr<Caught> = AtomicPtr::new(ptr::null_mut());

/// Notes a write to a page that is read-only, and lets it happen.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler what has happened, and nothing else has the record.
    unsafe {
        let at = (*info).si_addr();
        let caught = &*CAUGHT.load(Ordering::Relaxed);
        let count = caught.count.fetch_add(1, Ordering::Relaxed);
        match caught.places.get(count) {
            Some(place) => place.store(at.addr(), Ordering::Relaxed),
            None => libc::_exit(98),
        }
        let page = at.map_addr(|at| at & !(PAGE_SIZE - 1));
        if libc::mprotect(page, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::_exit(99);
        }
    }
}

/// What can be written.
fn writable() -> Vec<Map> {
    let maps = procmaps::read().expect("the kernel lists maps");
    maps.into_iter().filter(|map| map.write).collect()
}

/// Where this thread's signal handlers run.
fn signal_stack() -> usize {
    // SAFETY: only reads what is registered.
    unsafe {
        let mut stack = std::mem::zeroed::<libc::stack_t>();
        assert_eq!(libc::sigaltstack(ptr::null(), &mut stack), 0);
        stack.ss_sp.addr()
    }
}

fn protect(maps: &[Map], access: libc::c_int) {
    for map in maps {
        let (start, size) = (map.range.start as usize, map.range.end - map.range.start);
        // SAFETY: the range is mapped; what is written to it meanwhile is caught.
        let done = unsafe {
            libc::mprotect(ptr::with_exposed_provenance_mut(start), size as usize, access)
        };
        assert_eq!(done, 0, "{map:?}: {}", io::Error::last_os_error());
    }
}

/// Makes a call while nothing that is `outside` can be written; returns where it has written
/// there.
fn writes_outside(outside: &[Map], calls: &mut Calls, call: fn(&mut Calls)) -> Vec<usize> {
    // SAFETY: the record is there as long as the process.
    let caught = unsafe { &*CAUGHT.load(Ordering::Relaxed) };
    caught.count.store(0, Ordering::Relaxed);
    protect(outside, libc::PROT_READ);
    call(calls);
    protect(outside, libc::PROT_READ | libc::PROT_WRITE);
    let count = caught.count.load(Ordering::Relaxed);
    caught.places[..count].iter().map(|place| place.load(Ordering::Relaxed)).collect()
}

const GUEST: &str = r#"(module
    (import "host" "direct" (func $direct (param i32) (result i32)))
    (import "host" "caller" (func $caller (param i64) (result i64)))
    (import "host" "cells" (func $cells (param i32 i32 i32 i32 i32 i32) (result i32)))
    (import "host" "slices" (func $slices (param i32) (result i32)))
    (import "host" "unchecked" (func $unchecked (param i32) (result i32)))
    (import "host" "shared" (func $shared))
    (memory 1)
    (global $count (mut i32) (i32.const 0))
    (table 1 funcref)
    (elem (i32.const 0) $direct)
    (type $unary (func (param i32) (result i32)))
    (func (export "nop"))
    (func (export "many") (param i32 i64 f32 f64 v128) (result i32 i64 f32 f64 v128)
        (local.get 0) (local.get 1) (local.get 2) (local.get 3) (local.get 4))
    (func (export "run") (param i32) (result i32)
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 100) (global.get $count))
        (drop (call $direct (local.get 0)))
        (drop (call $caller (i64.const 5)))
        (drop (call $cells (i32.const 1) (i32.const 2) (i32.const 3) (i32.const 4) (i32.const 5)
            (i32.const 6)))
        (drop (call $slices (local.get 0)))
        (drop (call $unchecked (local.get 0)))
        (call_indirect (type $unary) (local.get 0) (i32.const 0)))
    (func (export "shared") (call $shared)))"#;

static SHARED: AtomicU64 = AtomicU64::new(0);

fn linker(engine: &Engine) -> Linker<u64> {
    let mut linker = Linker::new(engine);
    let ty = FuncType::new([ValType::I32], [ValType::I32]);
    let slices = |_: Caller<'_, u64>, params: &[Val], results: &mut [Val]| {
        results[0] = params[0];
        Ok(())
    };
    let caller = |mut caller: Caller<'_, u64>, x: i64| {
        *caller.data_mut() += 1;
        x
    };
    let sum = |a: i32, b: i32, c: i32, d: i32, e: i32, f: i32| a + b + c + d + e + f;
    let shared = || {
        SHARED.fetch_add(1, Ordering::Relaxed);
    };
    linker.func_wrap("host", "direct", |x: i32| x + 1).unwrap();
    linker.func_wrap("host", "caller", caller).unwrap();
    linker.func_wrap("host", "cells", sum).unwrap();
    linker.func_new("host", "slices", ty.clone(), slices).unwrap();
    let unchecked = |_: Caller<'_, u64>, _: &mut [ValRaw]| Ok(());
    // SAFETY: what it gets is of the type that it has to leave.
    unsafe { linker.func_new_unchecked("host", "unchecked", ty, unchecked).unwrap() };
    linker.func_wrap("host", "shared", shared).unwrap();
    linker
}

type Five = (i32, i64, f32, f64, u128);

/// A store and what is called in it.
struct Calls {
    store: Store<u64>,
    nop: TypedFunc<(), ()>,
    many: TypedFunc<Five, Five>,
    run: TypedFunc<i32, i32>,
    untyped: Func,
    host: Func,
    shared: TypedFunc<(), ()>,
}

impl Calls {
    fn new(linker: &Linker<u64>, module: &Module) -> Self {
        let mut store = Store::new(linker.engine(), 0);
        let instance: Instance = linker.instantiate(&mut store, module).unwrap();
        Self {
            nop: instance.get_typed_func(&mut store, "nop").unwrap(),
            many: instance.get_typed_func(&mut store, "many").unwrap(),
            run: instance.get_typed_func(&mut store, "run").unwrap(),
            untyped: instance.get_func(&mut store, "run").unwrap(),
            host: linker.get(&mut store, "host", "direct").unwrap().into_func().unwrap(),
            shared: instance.get_typed_func(&mut store, "shared").unwrap(),
            store,
        }
    }
}

/// A call of each kind.
const CALLS: [(&str, fn(&mut Calls)); 7] = [
    ("typed, in registers", |calls| calls.nop.call(&mut calls.store, ()).unwrap()),
    ("typed, in cells", |calls| {
        let five = (1, 2, 3.0, 4.0, 5);
        assert_eq!(calls.many.call(&mut calls.store, five).unwrap(), five);
    }),
    ("typed, with host calls of every kind", |calls| {
        assert_eq!(calls.run.call(&mut calls.store, 7).unwrap(), 8);
    }),
    ("untyped", |calls| {
        let mut results = [Val::I32(0)];
        calls.untyped.call(&mut calls.store, &[Val::I32(7)], &mut results).unwrap();
        assert_eq!(results[0].i32(), Some(8));
    }),
    ("unchecked", |calls| {
        let mut values = [ValRaw::i32(7)];
        // SAFETY: the function takes and returns an `i32`.
        unsafe { calls.untyped.call_unchecked(&mut calls.store, &raw mut values[..]).unwrap() };
        assert_eq!(values[0].get_i32(), 8);
    }),
    ("of a host function", |calls| {
        let mut results = [Val::I32(0)];
        calls.host.call(&mut calls.store, &[Val::I32(7)], &mut results).unwrap();
        assert_eq!(results[0].i32(), Some(8));
    }),
    ("asynchronous", |calls| {
        let mut call = pin!(calls.run.call_async(&mut calls.store, 7));
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(8))));
    }),
];

/// What is done in a process with one thread. Says what went wrong.
fn observe(module: &Module) -> Result<(), String> {
    // SAFETY: a fresh map; the store's allocations alone are in it.
    let own = unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), OWN_SIZE, access, flags, -1, 0)
    };
    assert!(own != libc::MAP_FAILED);
    OWN.store(own.expose_provenance(), Ordering::Relaxed);
    let linker = linker(module.engine());
    // What a second store and its calls share with the first is there already.
    let mut other = Calls::new(&linker, module);
    CALLS.iter().for_each(|(_, call)| call(&mut other));
    let before = writable();

    IS_OWN.store(true, Ordering::Relaxed);
    let caught = Caught { count: AtomicUsize::new(0), places: Default::default() };
    CAUGHT.store(Box::leak(Box::new(caught)), Ordering::Relaxed);
    let mut calls = Calls::new(&linker, module);
    let all = CALLS.iter().map(|(_, call)| call);
    all.cycle().take(3 * CALLS.len()).for_each(|call| call(&mut calls));
    calls.shared.call(&mut calls.store, ()).unwrap();
    IS_OWN.store(false, Ordering::Relaxed);

    // SAFETY: the handler does what is allowed in one.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
    }
    let marker = 0u8;
    let (stack, signal_stack) = ((&raw const marker).addr(), signal_stack());
    let mut outside = writable();
    // The store's slots were mapped since; nothing else was, as the other store needed the rest.
    outside.retain(|map| {
        let is_new = !before.iter().any(|old| old.range.contains(&map.range.start));
        let keeps = [stack, signal_stack, own.addr()];
        !is_new && !keeps.iter().any(|place| map.range.contains(&(*place as u64)))
    });
    let where_is = |places: Vec<usize>| -> String {
        let line = |place: &usize| {
            let map = outside.iter().find(|map| map.range.contains(&(*place as u64)));
            format!("{place:#x}, in {map:?}\n")
        };
        places.iter().map(line).collect()
    };
    let mut wrong = String::new();
    for (name, call) in CALLS {
        for _ in 0..3 {
            let places = writes_outside(&outside, &mut calls, call);
            if !places.is_empty() {
                wrong += &format!("a call, {name}, has written to\n{}", where_is(places));
            }
        }
    }
    // What is shared would be seen.
    let shared: fn(&mut Calls) = |calls| calls.shared.call(&mut calls.store, ()).unwrap();
    let places = writes_outside(&outside, &mut calls, shared);
    let expected = (&raw const SHARED).addr();
    if places != [expected] {
        wrong +=
            &format!("not only {expected:#x} was seen to be written, but\n{}", where_is(places));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

#[test]
fn a_call_writes_to_its_store_and_its_thread_alone() {
    in_own_process("a_call_writes_to_its_store_and_its_thread_alone", || {
        // What looks after idle slots is a thread of its own, and so are those that compile.
        let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
        let engine = Engine::new(Config::new().pool(pool)).unwrap();
        let module = Module::new(&engine, GUEST).unwrap();
        // No other thread is to find its memory read-only.
        // SAFETY: the forked process uses nothing that other threads of this one had locked: the
        // one that waits for the test is all that there is.
        match unsafe { libc::fork() } {
            0 => {
                let seen = catch_unwind(AssertUnwindSafe(|| observe(&module)));
                let code = match &seen {
                    Ok(Ok(())) => 0,
                    Ok(Err(wrong)) => {
                        eprintln!("{wrong}");
                        1
                    }
                    Err(_) => 2,
                };
                // SAFETY: ends the process without what others have left to do at its end.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child.
                let waited = unsafe { libc::waitpid(child, &mut status, 0) };
                assert_eq!((waited, status), (child, 0), "see above");
            }
        }
    });
}
