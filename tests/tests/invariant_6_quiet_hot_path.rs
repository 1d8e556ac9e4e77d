//! Spawn, call and reset of a warm slot map nothing, unmap nothing, protect nothing
//! unless a memory has grown under `Mprotect`, allocate nothing, and wait for no other thread:
//! under every strategy but `Remap`.
//!
//! A filter of system calls ends a process that makes one it may not make. A lock that
//! others hold is seen by the futex(2) that waits for it.

mod common;
#[path = "invariant_6/traced.rs"]
mod traced;
#[path = "invariant_6/whole_requests.rs"]
mod whole_requests;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::in_own_process;
use pagefork::{
    AsContextMut, CallProgress, Caller, CodeBounds, Config, Engine, Extern, Func, FuncType,
    GrowthKind, Instance, InstancePre, Linker, Module, PoolConfig, ResetKind, Store, StoreLimits,
    StrategyConfig, Val, ValRaw, ValType,
};

/// Counts what the current thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is done by the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: by the contract of `GlobalAlloc::alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: by the contract of `GlobalAlloc::dealloc`: the system allocated it.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A guest that writes to all zones, calls the host, and grows.
const GUEST: &str = r#"(module
    (import "host" "add" (func $add (param i32)))
    (import "host" "wait" (func $wait))
    (tag $tag)
    (memory (export "memory") 4 40)
    (data (i32.const 1000) "contents")
    (table 10 funcref)
    (elem (i32.const 0) $run)
    (global $count (mut i32) (i32.const 0))
    (func $run (export "run") (param $grow i32) (result i32)
        (local $at i32)
        (loop $next
            (i32.store (local.get $at) (i32.const 7))
            (local.set $at (i32.add (local.get $at) (i32.const 9000)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 100000))))
        (if (local.get $grow) (then
            (drop (memory.grow (local.get $grow)))
            (i32.store (i32.const 262144) (i32.const 7))))
        (table.set (i32.const 3) (ref.func $run))
        (call $add (i32.const 1))
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (global.get $count))
    ;; Has an exception and something of each page that it has written to hold across the wait.
    (func (export "wait_and_run") (result i32) (local $held exnref)
        (block $caught (result exnref)
            (try_table (catch_all_ref $caught) (throw $tag)) (unreachable))
        (local.set $held)
        (i32.store (i32.const 50000) (i32.const 9))
        (call $wait)
        (drop (call $run (i32.const 0)))
        (block $again (try_table (catch_all $again) (throw_ref (local.get $held))))
        (if (i32.ne (i32.load (i32.const 50000)) (i32.const 9)) (then unreachable))
        (global.get $count)))"#;

#[derive(Default)]
struct Data {
    count: u32,
    /// Whether its guest is to wait.
    waits: bool,
    limits: StoreLimits,
}

fn pre(reset: ResetKind, growth: GrowthKind) -> InstancePre<Data> {
    let code = match growth {
        _ if growth.is_exact() => CodeBounds::Guarded,
        GrowthKind::Checked { .. } => CodeBounds::Checked,
        _ => CodeBounds::Dual,
    };
    let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    // What looks after idle slots allocates, and takes locks, in a thread of its own.
    let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies).pool(pool)).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    let mut linker = Linker::new(&engine);
    let add = |mut caller: Caller<'_, Data>, value: i32| caller.data_mut().count += value as u32;
    linker.func_wrap("host", "add", add).unwrap();
    let wait = |mut caller: Caller<'_, Data>| match caller.data().waits {
        true => Err(caller.suspend_before()),
        false => Ok(()),
    };
    linker.func_wrap("host", "wait", wait).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

/// Spawns, calls, resets, calls, and drops, which resets.
fn work(pre: &InstancePre<Data>, grow: i32) {
    let (mut store, instance) = pre.spawn(Data::default()).unwrap();
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, grow).unwrap(), 1);
    assert_eq!(store.reset(Data::default()).unwrap().count, 1);
    assert_eq!(run.call(&mut store, grow).unwrap(), 1);
    assert_eq!(store.data().count, 1);
}

/// So often something is done until all is warm, and all of `Auto` has been tried.
const WARM: u32 = 200;

const ROUNDS: u32 = 400;

/// How a process ends that makes a forbidden call.
const FORBIDDEN: i32 = 77;

/// What maps, unmaps and protects, and what waits.
const MAPS: [libc::c_long; 5] =
    [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_brk, libc::SYS_futex];

/// From here on the current thread ends its process when it makes one of these calls,
/// and says which.
fn forbid(calls: &[libc::c_long]) {
    extern "C" fn end(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // The number of the call lies behind the address of the instruction.
        // SAFETY: the kernel passes whole information; only safe calls are made.
        unsafe {
            let number = info.cast::<i32>().add(6).read();
            let digits = [100, 10, 1].map(|place| b'0' + (number / place % 10) as u8);
            libc::write(2, b"system call ".as_ptr().cast(), 12);
            libc::write(2, digits.as_ptr().cast(), 3);
            libc::write(2, b" is forbidden here\n".as_ptr().cast(), 19);
            libc::_exit(FORBIDDEN);
        }
    }
    // SAFETY: the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = end as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()), 0);
    }
    filter(calls, libc::SECCOMP_RET_TRAP);
}

/// From here on the kernel refuses this call to the current thread and those that it starts.
fn refuse(call: libc::c_long) {
    filter(&[call], libc::SECCOMP_RET_ERRNO | libc::EACCES as u32);
}

/// Has the kernel answer these calls of the current thread so.
fn filter(calls: &[libc::c_long], answer: u32) {
    let statement = |code: u32, jump: u8, value: u32| libc::sock_filter {
        code: code as u16,
        jt: jump,
        jf: 0,
        k: value,
    };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, call) in calls.iter().enumerate() {
        let to_answer = (calls.len() - index) as u8;
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        program.push(statement(equal, to_answer, *call as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, answer));
    let length = program.len() as u16;
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the filter is valid and only copied.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

/// How a child process ends that does this: nothing of a filter stays.
fn in_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the caller's process has no other thread that could hold a lock for ever.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that hangs is ended.
        // SAFETY: ends this child alone.
        unsafe { libc::alarm(100) };
        let ended = catch_unwind(AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends this child alone, and runs nothing of the parent's at its exit.
        unsafe { libc::_exit(if ended { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -status }
}

/// All that is quiet when nothing grows, or when growth takes no call.
fn quiet() -> Vec<(ResetKind, GrowthKind, i32)> {
    let kinds = ResetKind::ALL.into_iter().filter(|reset| *reset != ResetKind::Remap);
    let checked = GrowthKind::Checked { accessible: None };
    let growths = [
        (GrowthKind::Mprotect, 0),
        (checked, 9),
        (GrowthKind::Kept, 9),
        (GrowthKind::Ftruncate, 9),
        (GrowthKind::Fault, 9),
    ];
    kinds.flat_map(|reset| growths.map(|(growth, grow)| (reset, growth, grow))).collect()
}

#[test]
fn a_warm_slot_is_spawned_called_and_reset_without_a_call_that_maps_or_waits() {
    in_own_process(
        "a_warm_slot_is_spawned_called_and_reset_without_a_call_that_maps_or_waits",
        || {
            for (reset, growth, grow) in quiet() {
                let ended = in_child(|| {
                    let pre = pre(reset, growth);
                    (0..WARM).for_each(|_| work(&pre, grow));
                    forbid(&[&MAPS[..], &[libc::SYS_mprotect]].concat());
                    (0..ROUNDS).for_each(|_| work(&pre, grow));
                    // Its end is not quiet.
                    std::mem::forget(pre);
                });
                assert_eq!(ended, 0, "{reset}, {growth:?}");
            }
        },
    );
}

/// Whoever spawns and drops without a call does not have the slot searched, which takes system calls.
#[test]
fn a_store_into_which_nobody_called_is_dropped_without_a_search() {
    if !pagefork_pages::counts_faults_in_memory() {
        return eprintln!("NOT TESTED: page faults are not counted in memory here");
    }
    in_own_process("a_store_into_which_nobody_called_is_dropped_without_a_search", || {
        for reset in [ResetKind::Auto, ResetKind::Resident, ResetKind::Protect] {
            let ended = in_child(|| {
                let pre = pre(reset, GrowthKind::Mprotect);
                let idle = || drop(pre.spawn(Data::default()).unwrap());
                (0..WARM).for_each(|_| idle());
                let searches = [libc::SYS_ioctl, libc::SYS_pread64, libc::SYS_madvise];
                forbid(&[&MAPS[..], &[libc::SYS_mprotect], &searches].concat());
                (0..ROUNDS).for_each(|_| idle());
                std::mem::forget(pre);
            });
            assert_eq!(ended, 0, "{reset}");
        }
    });
}

#[test]
fn growth_by_mprotect_maps_nothing_either() {
    in_own_process("growth_by_mprotect_maps_nothing_either", || {
        for reset in ResetKind::ALL.into_iter().filter(|reset| *reset != ResetKind::Remap) {
            let ended = in_child(|| {
                let pre = pre(reset, GrowthKind::Mprotect);
                (0..WARM).for_each(|_| work(&pre, 3));
                forbid(&MAPS);
                (0..ROUNDS).for_each(|_| work(&pre, 3));
                std::mem::forget(pre);
            });
            assert_eq!(ended, 0, "{reset}");
        }
    });
}

/// Several threads at once wait for each other at no lock.
#[test]
fn threads_do_not_wait_for_each_other() {
    in_own_process("threads_do_not_wait_for_each_other", || {
        const THREADS: usize = 4;
        for (reset, growth, grow) in quiet() {
            let ended = in_child(|| {
                let (warm, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let pre = pre(reset, growth);
                std::thread::scope(|scope| {
                    for _ in 0..THREADS {
                        scope.spawn(|| {
                            (0..WARM).for_each(|_| work(&pre, grow));
                            warm.fetch_add(1, Ordering::SeqCst);
                            while warm.load(Ordering::SeqCst) < THREADS {
                                std::thread::yield_now();
                            }
                            forbid(&[&MAPS[..], &[libc::SYS_mprotect]].concat());
                            (0..ROUNDS).for_each(|_| work(&pre, grow));
                            done.fetch_add(1, Ordering::SeqCst);
                            // A thread that ends gives its stack back.
                            loop {
                                // SAFETY: only waits.
                                unsafe { libc::pause() };
                            }
                        });
                    }
                    while done.load(Ordering::SeqCst) < THREADS {
                        std::thread::yield_now();
                    }
                    // SAFETY: ends this child with all its threads.
                    unsafe { libc::_exit(0) };
                });
            });
            assert_eq!(ended, 0, "{reset}, {growth:?}");
        }
    });
}

#[test]
fn a_warm_spawn_call_and_reset_allocate_nothing() {
    for (reset, growth, grow) in quiet() {
        let pre = pre(reset, growth);
        let limited = pre.with_limiter(|data| &mut data.limits);
        for pre in [pre, limited] {
            (0..WARM).for_each(|_| work(&pre, grow));
            let before = ALLOCATIONS.get();
            (0..ROUNDS).for_each(|_| work(&pre, grow));
            assert_eq!(ALLOCATIONS.get() - before, 0, "{reset}, {growth:?}");
        }
    }
}

/// A function with arguments, and places for its results.
#[derive(Clone)]
struct Call {
    function: Func,
    params: Vec<Val>,
    results: Vec<Val>,
    raw: Vec<ValRaw>,
}

impl Call {
    /// A call of a function that returns its first arguments.
    fn new(store: &mut Store<()>, function: Func) -> Self {
        let ty = function.ty(&*store);
        let value = |(i, ty): (usize, &ValType)| match ty {
            ValType::I32 => Val::I32(i as i32),
            ValType::I64 => Val::I64(i as i64),
            ValType::F32 => Val::from(i as f32),
            ValType::F64 => Val::from(i as f64),
            _ => Val::V128(i as u128),
        };
        let params: Vec<Val> = ty.params.iter().enumerate().map(value).collect();
        let results = vec![Val::I32(0); ty.results.len()];
        let raw = params.iter().map(|value| value.to_raw(&*store).unwrap()).collect();
        Self { function, params, results, raw }
    }

    fn run(&mut self, mut store: impl AsContextMut) {
        self.function.call(&mut store, &self.params, &mut self.results).unwrap();
        let same = |(result, param): (&Val, &Val)| match (result, param) {
            (Val::I32(a), Val::I32(b)) => a == b,
            (Val::I64(a), Val::I64(b)) => a == b,
            (Val::F32(a), Val::F32(b)) => a == b,
            (Val::F64(a), Val::F64(b)) => a == b,
            (Val::V128(a), Val::V128(b)) => a == b,
            _ => false,
        };
        assert!(self.results.iter().zip(&self.params).all(same));
        // SAFETY: the values are of the function's type, and are the same after the call.
        unsafe { self.function.call_unchecked(&mut store, &raw mut self.raw[..]).unwrap() };
    }
}

/// Calls without types of eight functions of each kind in turn, guests' and the host's, from outside
/// and from within host functions.
#[test]
fn untyped_calls_allocate_nothing() {
    use ValType::{F32, F64, I32, I64, V128};
    let twenty = [I64, F32, V128, I32, F64].repeat(4);
    let kinds: [(&str, &[ValType], &[ValType]); 4] = [
        ("int", &[I32, I64, I32], &[I32]),
        ("float", &[F64, I32, F32], &[F64]),
        ("vector", &[V128, I32], &[V128]),
        ("twenty", &twenty, &twenty),
    ];
    let list = |types: &[ValType]| types.iter().map(|ty| format!(" {ty}")).collect::<String>();
    let gets = |count: usize| (0..count).map(|i| format!(" local.get {i}")).collect::<String>();
    let (mut imports, mut functions) = (String::new(), String::new());
    for (kind, params, results) in kinds {
        let ty = format!("(param{}) (result{})", list(params), list(results));
        imports += &format!("(import \"\" \"{kind}\" (func ${kind} {ty}))");
        let args = gets(params.len());
        functions += &format!("(func (export \"{kind}_out\") {ty} {args} call ${kind})");
        for i in 0..8 {
            // In between are functions that are not called: all eight have the same index modulo 8.
            let values = gets(results.len());
            functions += &format!("(func (export \"{kind}{i}\") {ty} {values})");
            functions += &"(func)".repeat(7);
        }
    }
    let engine = Engine::default();
    let module = Module::new(&engine, format!("(module {imports} {functions})")).unwrap();
    let mut store = Store::new(&engine, ());
    // What the host functions call.
    let inner = Arc::new(Mutex::new(Vec::<Call>::new()));
    let (mut hosts, mut raw_hosts) = (Vec::new(), Vec::new());
    for (_, params, results) in kinds {
        let (ty, inner) = (FuncType::new(params.to_vec(), results.to_vec()), Arc::clone(&inner));
        let nests = move |mut caller: Caller<'_, ()>, params: &[Val], results: &mut [Val]| {
            // A host function that is called meanwhile calls nothing.
            if let Ok(mut calls) = inner.try_lock() {
                calls.iter_mut().for_each(|call| call.run(&mut caller));
            }
            results.copy_from_slice(&params[..results.len()]);
            Ok(())
        };
        hosts.push(Func::new(&mut store, ty.clone(), nests));
        // SAFETY: its first arguments are its results.
        let same = unsafe { Func::new_unchecked(&mut store, ty, |_, _| Ok(())) };
        raw_hosts.push(same);
    }
    let imports: Vec<Extern> = hosts.iter().map(|function| (*function).into()).collect();
    let instance = Instance::new(&mut store, &module, &imports).unwrap();
    let mut calls = Vec::new();
    for (kind, ..) in kinds {
        for i in 0..8 {
            let function = instance.get_func(&mut store, &format!("{kind}{i}")).unwrap();
            calls.push(Call::new(&mut store, function));
        }
    }
    for function in hosts.into_iter().chain(raw_hosts) {
        calls.push(Call::new(&mut store, function));
    }
    *inner.lock().unwrap() = calls.clone();
    for (kind, ..) in kinds {
        let function = instance.get_func(&mut store, &format!("{kind}_out")).unwrap();
        calls.push(Call::new(&mut store, function));
    }
    let mut round = || calls.iter_mut().for_each(|call| call.run(&mut store));
    (0..3).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..50).for_each(|_| round());
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

/// What spawns stores with a guest that waits in the middle of its work: for the host to say
/// by how much to grow.
fn suspended_pre(reset: ResetKind, growth: GrowthKind) -> InstancePre<Data> {
    let pre = pre(reset, growth);
    let (mut store, instance) = pre.spawn(Data { waits: true, ..Data::default() }).unwrap();
    let wait = instance.get_func(&mut store, "wait_and_run").unwrap();
    let progress = wait.call_suspendable(&mut store, &[]).unwrap();
    assert!(matches!(progress, CallProgress::Suspended));
    store.snapshot().unwrap().instance_pre().unwrap()
}

/// As [`work`]: the guest goes on from where it waits.
fn work_on(pre: &InstancePre<Data>) {
    let (mut store, _) = pre.spawn(Data::default()).unwrap();
    for _ in 0..2 {
        // What is returned is in a vector, which is an allocation.
        let CallProgress::Finished(values) = store.resume().unwrap() else { panic!("it goes on") };
        assert_eq!(values[0].i32(), Some(1));
        assert_eq!(store.reset(Data::default()).unwrap().count, 1);
    }
}

#[test]
fn a_suspended_guest_is_spawned_resumed_and_reset_without_a_call_that_maps_or_waits() {
    in_own_process(
        "a_suspended_guest_is_spawned_resumed_and_reset_without_a_call_that_maps_or_waits",
        || {
            for (reset, growth, _) in quiet() {
                let ended = in_child(|| {
                    let pre = suspended_pre(reset, growth);
                    (0..WARM).for_each(|_| work_on(&pre));
                    forbid(&[&MAPS[..], &[libc::SYS_mprotect]].concat());
                    (0..ROUNDS).for_each(|_| work_on(&pre));
                    std::mem::forget(pre);
                });
                assert_eq!(ended, 0, "{reset}, {growth:?}");
            }
        },
    );
}

#[test]
fn a_suspended_guest_is_spawned_and_reset_without_an_allocation() {
    for (reset, growth, _) in quiet() {
        let pre = suspended_pre(reset, growth);
        let idle = || {
            let (mut store, _) = pre.spawn(Data::default()).unwrap();
            store.reset(Data::default()).unwrap();
        };
        (0..WARM).for_each(|_| work_on(&pre));
        (0..WARM).for_each(|_| idle());
        let before = ALLOCATIONS.get();
        (0..ROUNDS).for_each(|_| idle());
        assert_eq!(ALLOCATIONS.get() - before, 0, "{reset}, {growth:?}");
        // The results alone are allocated.
        let before = ALLOCATIONS.get();
        (0..ROUNDS).for_each(|_| work_on(&pre));
        assert_eq!(ALLOCATIONS.get() - before, u64::from(2 * ROUNDS), "{reset}, {growth:?}");
    }
}

/// The filter works: a map or a change of protection is found.
#[test]
fn what_maps_or_protects_is_noticed() {
    in_own_process("what_maps_or_protects_is_noticed", || {
        let remaps = in_child(|| {
            let pre = pre(ResetKind::Remap, GrowthKind::Mprotect);
            (0..WARM).for_each(|_| work(&pre, 0));
            forbid(&MAPS);
            work(&pre, 0);
        });
        assert_eq!(remaps, FORBIDDEN);
        let protects = in_child(|| {
            let pre = pre(ResetKind::Scan, GrowthKind::Mprotect);
            (0..WARM).for_each(|_| work(&pre, 1));
            forbid(&[libc::SYS_mprotect]);
            work(&pre, 1);
        });
        assert_eq!(protects, FORBIDDEN);
        let waits = in_child(|| {
            let lock = std::sync::Mutex::new(());
            let _held = lock.lock().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    forbid(&MAPS);
                    drop(lock.lock());
                });
            });
        });
        assert_eq!(waits, FORBIDDEN);
    });
}
