//! When a slot is handed out again, every zone but link and stack is as it was the
//! first time, byte by byte, after all that the tenant before, the host, other threads and
//! the kernel did to it; and the stack shows no other tenant's bytes.

mod common;

#[path = "invariant_4/signals.rs"]
mod signals;

use std::sync::mpsc;
use std::time::Duration;

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{
    Caller, CodeBounds, Config, Engine, ExternRef, GrowthKind, Instance, InstancePre, Linker,
    Module, PoolConfig, ResetKind, Store, StrategyConfig, Val,
};

/// Something of each kind that a guest can change, and ways to end badly.
const GUEST: &str = r#"(module
    (import "host" "pause" (func $pause (param i32)))
    (memory (export "memory") 2 40)
    (memory (export "further") 1 3)
    (data (i32.const 100) "initial")
    (data (memory 1) (i32.const 70) "further")
    (data (i32.const 70000) "more of it")
    (data $passive "passive")
    (table (export "table") 4 4000 funcref)
    (table $references 3 30 externref)
    (elem (i32.const 0) $one $two)
    (elem $spare func $two)
    (tag $tag (param i64 externref))
    (global $number (mut i64) (i64.const 7))
    (global $vector (mut v128) (v128.const i64x2 1 2))
    (global $function (mut funcref) (ref.func $one))
    (func $one (result i32) (i32.const 1))
    (func $two (result i32) (i32.const 2))
    (func (export "stores") (param $at i32) (param $step i32) (param $count i32)
        (loop $next
            (i64.store (i32.and (local.get $at) (i32.const 0x1fff0)) (i64.const -1))
            (i32.store8 1 (i32.and (local.get $at) (i32.const 0xffff)) (i32.const 255))
            (local.set $at (i32.add (local.get $at) (local.get $step)))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1))))))
    (func (export "grow") (param $pages i32)
        (drop (memory.grow (local.get $pages)))
        (drop (memory.grow 1 (i32.const 1)))
        (memory.fill (i32.const 131072) (i32.const 0xaa)
            (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 131072))))
    (func (export "tables") (param $value externref)
        (table.set (i32.const 0) (ref.func $two))
        (drop (table.grow (ref.func $one) (i32.const 700)))
        (table.fill (i32.const 3) (ref.func $two) (i32.const 600))
        (table.set $references (i32.const 1) (local.get $value))
        (drop (table.grow $references (local.get $value) (i32.const 20))))
    (func (export "globals")
        (global.set $number (i64.const 8))
        (global.set $vector (v128.const i64x2 -1 -1))
        (global.set $function (ref.null func)))
    (func (export "segments")
        (memory.init $passive (i32.const 0) (i32.const 0) (i32.const 7))
        (data.drop $passive)
        (table.init $spare (i32.const 2) (i32.const 0) (i32.const 1))
        (elem.drop $spare))
    (func (export "throw") (param $value externref)
        (throw $tag (i64.const 0x5ec2e75ec2e7) (local.get $value)))
    (func (export "trap") (i32.store (i32.const 8) (i32.const 1)) unreachable)
    (func (export "outside") (i64.store (i32.const -8) (i64.const 1)))
    (func (export "spin") (loop (i32.store (i32.const 200) (i32.const 5)) (br 0)))
    (func $deep (export "deep") (param $depth i32) (param $secret i64) (result i64)
        (if (i32.eqz (local.get $depth)) (then
            (call $pause (i32.const 0))
            (return (local.get $secret))))
        (i64.add (local.get $secret)
            (call $deep (i32.sub (local.get $depth) (i32.const 1)) (local.get $secret))))
    (func (export "pauses") (param $at i32)
        (i32.store (local.get $at) (i32.const 77))
        (call $pause (i32.const 1))
        (i32.store (i32.add (local.get $at) (i32.const 5000)) (i32.const 77))
        (call $pause (i32.const 2))
        (i32.store (i32.add (local.get $at) (i32.const 10000)) (i32.const 77))))"#;

const SECRET: i64 = 0x5ec2_e75e_c2e7_5ec2;

fn pre(engine: &Engine) -> InstancePre<u32> {
    let module = Module::new(engine, GUEST).unwrap();
    let mut linker = Linker::new(engine);
    let pause = |mut caller: Caller<'_, u32>, value: i32| *caller.data_mut() += value as u32;
    linker.func_wrap("host", "pause", pause).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

/// Every strategy with every kind of growth.
fn engines() -> impl Iterator<Item = (String, Engine)> {
    let growths = [
        GrowthKind::Mprotect,
        GrowthKind::Checked { accessible: None },
        GrowthKind::Checked { accessible: Some(4 << 16) },
        GrowthKind::Kept,
        GrowthKind::Ftruncate,
        GrowthKind::Fault,
    ];
    let pairs = ResetKind::ALL.into_iter().flat_map(move |reset| growths.map(|g| (reset, g)));
    pairs.map(|(reset, growth)| {
        let code = match growth {
            _ if growth.is_exact() => CodeBounds::Guarded,
            GrowthKind::Checked { .. } => CodeBounds::Checked,
            _ => CodeBounds::Dual,
        };
        let config = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
        // What looks after idle slots would have them for a moment now and then.
        let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
        let mut all = Config::new();
        all.strategies(config).pool(pool).stack_size(256 << 10);
        let engine = Engine::new(&all).unwrap();
        (format!("{reset}, {growth:?}"), engine)
    })
}

/// Every byte that an instance can see or change.
fn pages(store: &Store<u32>) -> Vec<Vec<u8>> {
    [Zone::Exceptions, Zone::Tables, Zone::State, Zone::Memory(0), Zone::Memory(1)]
        .map(|zone| suspend::zone_bytes(store, 1, zone).1)
        .into()
}

#[track_caller]
fn assert_fresh(store: &Store<u32>, fresh: &[Vec<u8>], what: &str) {
    for ((found, wanted), zone) in pages(store).iter().zip(fresh).zip(0..) {
        assert_eq!(found.len(), wanted.len(), "{what}: zone {zone}");
        if let Some(at) = found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            panic!(
                "{what}: byte {at:#x} of zone {zone} is {:#x}, not {:#x}",
                found[at], wanted[at]
            );
        }
    }
}

type Mutation = fn(&mut Store<u32>, Instance, u64);

const MUTATIONS: [(&str, Mutation); 15] = [
    ("nothing", |_, _, _| ()),
    ("stores", |store, instance, round| {
        let count = [1, 5, 20][round as usize % 3];
        run(store, instance, "stores", &[i32(round * 40), i32(4096 * 3 + 8), i32(count)]);
    }),
    ("growth", |store, instance, round| {
        run(store, instance, "grow", &[i32(round % 30)]);
    }),
    ("tables", |store, instance, _| {
        let value = reference(store);
        run(store, instance, "tables", &[value]);
    }),
    ("globals", |store, instance, _| run(store, instance, "globals", &[])),
    ("segments", |store, instance, _| run(store, instance, "segments", &[])),
    ("an exception", |store, instance, _| {
        let value = reference(store);
        fail(store, instance, "throw", &[value]);
    }),
    ("a trap", |store, instance, _| fail(store, instance, "trap", &[])),
    ("an access outside", |store, instance, _| fail(store, instance, "outside", &[])),
    ("a timeout", |store, instance, _| {
        store.set_timeout(Some(Duration::from_millis(1))).unwrap();
        fail(store, instance, "spin", &[]);
    }),
    ("no more stack", |store, instance, _| {
        fail(store, instance, "deep", &[i32(1 << 20), Val::I64(SECRET)]);
    }),
    ("the host", |store, instance, round| {
        let memory = instance.get_memory(&mut *store, "memory").unwrap();
        memory.write(&mut *store, (round * 999) as usize, &[0xdd; 6000]).unwrap();
        memory.grow(&mut *store, 1).unwrap();
        memory.data_mut(&mut *store)[140_000..].fill(3);
        let table = instance.get_table(&mut *store, "table").unwrap();
        table.set(&mut *store, 3, Val::FuncRef(None)).unwrap();
        table.grow(&mut *store, 100, Val::FuncRef(None)).unwrap();
    }),
    ("another thread", |store, instance, round| {
        // One that enters the guest, and one that only has its bytes.
        std::thread::scope(|scope| {
            let store = &mut *store;
            scope.spawn(move || {
                run(store, instance, "stores", &[i32(round * 4096 + 9), i32(4104), i32(4)]);
            });
        });
        let memory = instance.get_memory(&mut *store, "memory").unwrap();
        let data = memory.data_mut(&mut *store);
        std::thread::scope(|scope| {
            scope.spawn(|| data[(round * 4096 % 120_000) as usize..][..9].fill(0x99));
        });
    }),
    ("suspended, and moved to another thread", |store, instance, round| {
        let pauses = instance.get_func(&mut *store, "pauses").unwrap();
        let at = i32(round * 4096 % 100_000);
        let progress = suspend::call(&mut *store, &pauses, &[at], Some(1)).unwrap();
        assert!(matches!(progress, CallProgress::Suspended), "{progress:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| suspend::resume(&mut *store, Some(1)).unwrap());
        });
        if round % 2 == 0 {
            suspend::abandon(&mut *store);
        }
    }),
    ("huge pages, and the kernel", |store, instance, round| {
        let memory = instance.get_memory(&mut *store, "memory").unwrap();
        memory.grow(&mut *store, 35).unwrap();
        let data = memory.data_mut(&mut *store);
        // SAFETY: this keeps the contents of pages.
        unsafe { libc::madvise(data.as_mut_ptr().cast(), data.len(), libc::MADV_COLLAPSE) };
        let at = (round * 4096) as usize;
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        std::io::Read::read_exact(&mut &file, &mut data[at..at + 9000]).unwrap();
    }),
];

fn i32(value: u64) -> Val {
    Val::I32(value as i32)
}

fn reference(store: &mut Store<u32>) -> Val {
    Val::ExternRef(Some(ExternRef::new(store, "a secret").unwrap()))
}

fn run(store: &mut Store<u32>, instance: Instance, name: &str, arguments: &[Val]) {
    let function = instance.get_func(&mut *store, name).unwrap();
    function.call(store, arguments, &mut []).unwrap();
}

fn fail(store: &mut Store<u32>, instance: Instance, name: &str, arguments: &[Val]) {
    let function = instance.get_func(&mut *store, name).unwrap();
    let mut results = vec![Val::I64(0); function.ty(&*store).results.len()];
    function.call(store, arguments, &mut results).unwrap_err();
}

#[test]
fn whatever_was_done_to_it_a_slot_is_fresh_when_it_is_handed_out() {
    for (what, engine) in engines() {
        let pre = pre(&engine);
        let fresh = pages(&pre.spawn(0).unwrap().0);
        for round in 0..4 * MUTATIONS.len() as u64 {
            let (name, mutate) = MUTATIONS[round as usize % MUTATIONS.len()];
            let (also, mutate_also) = MUTATIONS[(round * 7 / 3) as usize % MUTATIONS.len()];
            let what = format!("{what}, round {round}: {name}, {also}");
            let (mut store, instance) = pre.spawn(0).unwrap();
            assert_fresh(&store, &fresh, &what);
            mutate(&mut store, instance, round);
            match round % 4 {
                // The same store again.
                0 => {
                    store.reset(0).unwrap();
                    assert_fresh(&store, &fresh, &what);
                    mutate_also(&mut store, instance, round);
                }
                1 if suspend::suspension(&store).is_none() => {
                    store.set_timeout(None).unwrap();
                    mutate_also(&mut store, instance, round);
                }
                _ => (),
            }
            drop(store);
            let (mut store, instance) = pre.spawn(0).unwrap();
            assert_fresh(&store, &fresh, &what);
            if round % 5 == 0 {
                let memory = instance.get_memory(&mut store, "memory").unwrap();
                let size = memory.data_size(&store);
                memory.grow(&mut store, 38).unwrap();
                assert!(memory.data(&store)[size..].iter().all(|byte| *byte == 0), "{what}");
            }
        }
        let counters = engine.pool_counters();
        assert_eq!(counters.parked, 1, "{what}: one slot served all: {counters:?}");
    }
}

/// Instances in plain stores come from slots that were used for others.
#[test]
fn slots_of_dropped_stores_are_fresh_too() {
    for (what, engine) in engines() {
        let pre = pre(&engine);
        let mut fresh = Vec::new();
        for round in 0..2 * MUTATIONS.len() as u64 {
            let (name, mutate) = MUTATIONS[round as usize % MUTATIONS.len()];
            let mut store = Store::new(&engine, 0);
            let instance = pre.instantiate(&mut store).unwrap();
            if fresh.is_empty() {
                fresh = pages(&store);
            }
            assert_fresh(&store, &fresh, &format!("{what}, before {name}"));
            mutate(&mut store, instance, round);
        }
        assert_eq!(engine.pool_counters().parked, 1, "{what}");
    }
}

/// The bytes of the whole stack, used or not.
fn stack(store: &Store<u32>) -> Vec<u8> {
    stack_of(store, 1)
}

fn stack_of(store: &Store<u32>, ordinal: u32) -> Vec<u8> {
    let view = suspend::slot(store, ordinal);
    let zone = view.layout.stack.start as usize..view.layout.stack.end as usize;
    let start = std::ptr::with_exposed_provenance::<u8>(view.start + zone.start);
    // SAFETY: the zone is accessible as long as the store lives, and no guest runs.
    unsafe { std::slice::from_raw_parts(start, zone.len()) }.to_vec()
}

fn shows_secret(stack: &[u8]) -> bool {
    stack.windows(8).any(|word| word == SECRET.to_le_bytes())
}

#[test]
fn the_stack_shows_no_other_tenants_bytes_and_few_of_its_own() {
    for (what, engine) in engines() {
        let pre = pre(&engine);
        let kept = StrategyConfig::default().stack_kept as usize;
        let mut seen = false;
        for round in 0..40 {
            let (mut store, instance) = pre.spawn_for(round / 4, 0).unwrap();
            let stack = stack(&store);
            if round % 4 == 0 {
                assert!(stack.iter().all(|byte| *byte == 0), "{what}: round {round}");
            }
            let (low, _) = stack.split_at(stack.len() - kept);
            assert!(low.iter().all(|byte| *byte == 0), "{what}: round {round}, below");
            let deep = instance.get_func(&mut store, "deep").unwrap();
            let depth = [3, 1000][round as usize % 2];
            let arguments = [Val::I32(depth), Val::I64(SECRET)];
            deep.call(&mut store, &arguments, &mut [Val::I64(0)]).unwrap();
            seen |= shows_secret(&self::stack(&store));
        }
        assert!(seen, "{what}: nothing was there to be seen");
    }
}

#[test]
fn instances_that_are_added_to_a_spawned_store_are_its_tenants_too() {
    for (what, engine) in engines() {
        let pre = pre(&engine);
        for tenant in 0..12 {
            let (mut store, _) = pre.spawn_for(tenant, 0).unwrap();
            let added = pre.instantiate(&mut store).unwrap();
            let stack = stack_of(&store, 2);
            assert!(stack.iter().all(|byte| *byte == 0), "{what}: tenant {tenant}");
            let deep = added.get_func(&mut store, "deep").unwrap();
            let arguments = [Val::I32(3), Val::I64(SECRET)];
            deep.call(&mut store, &arguments, &mut [Val::I64(0)]).unwrap();
        }
    }
}

/// What could be suspended and saved by others shows nothing of earlier runs at all.
#[test]
fn a_stack_can_be_cleared_at_each_reset() {
    let config = StrategyConfig { clear_stack: true, ..StrategyConfig::default() };
    for reset in ResetKind::ALL {
        let config = StrategyConfig { reset, ..config };
        let engine = Engine::new(Config::new().strategies(config)).unwrap();
        let pre = pre(&engine);
        for round in 0..20 {
            let (mut store, instance) = pre.spawn(0).unwrap();
            for _ in 0..2 {
                assert!(stack(&store).iter().all(|byte| *byte == 0), "{reset}: round {round}");
                let deep = instance.get_func(&mut store, "deep").unwrap();
                let arguments = [Val::I32(9), Val::I64(SECRET)];
                deep.call(&mut store, &arguments, &mut [Val::I64(0)]).unwrap();
                store.reset(0).unwrap();
            }
        }
    }
}

/// The comparison that engines for tests make finds what is wrong.
#[test]
#[should_panic(expected = "not as its image")]
fn a_slot_that_is_not_as_its_image_is_not_handed_out_by_an_engine_for_tests() {
    let engine = Engine::new(Config::new().poison(true)).unwrap();
    let pre = pre(&engine);
    let (store, _) = pre.spawn(0).unwrap();
    let base = suspend::slot(&store, 1).base;
    drop(store);
    // SAFETY: the slot is parked, and stays mapped as long as the engine lives.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(base + 5000).write(1) };
    drop(pre.spawn(0));
}

/// A host function may leave its guest's store to another thread for a while. What that makes
/// is written by the guest afterwards, on the guest's own thread, and no call announces that.
#[test]
fn instances_that_a_host_function_makes_on_another_thread_are_restored() {
    type Job = Box<dyn FnOnce() + Send>;
    const MAIN: &str = r#"(module
        (import "host" "make" (func $make))
        (table (export "table") 1 funcref)
        (func (export "run") (param i32)
            (call $make)
            (call_indirect (param i32) (local.get 0) (i32.const 0))))"#;
    const LATE: &str = r#"(module
        (import "main" "table" (table 1 funcref))
        (memory (export "memory") 4)
        (elem (i32.const 0) $write)
        (func $write (param i32) (i32.store (local.get 0) (i32.const 77))))"#;
    let (jobs, todo) = mpsc::channel::<Job>();
    let worker = std::thread::spawn(move || todo.into_iter().for_each(|job| job()));
    let elsewhere = move |job: &mut (dyn FnMut() + Send)| {
        let (done, wait) = mpsc::channel();
        let job: Box<dyn FnOnce() + Send + '_> = Box::new(move || {
            job();
            done.send(()).unwrap();
        });
        // SAFETY: this function does not return before the job has ended.
        let job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        jobs.send(job).unwrap();
        wait.recv().unwrap();
    };
    for (what, engine) in engines() {
        let [main, late] = [MAIN, LATE].map(|text| Module::new(&engine, text).unwrap());
        for round in 0..24 {
            let mut linker = Linker::<u32>::new(&engine);
            let (late, makes, what) = (late.clone(), elsewhere.clone(), what.clone());
            let make = move |mut caller: Caller<'_, u32>| {
                let table = caller.get_export("table").unwrap();
                makes(&mut || {
                    let made = Instance::new(&mut caller, &late, &[table]).unwrap();
                    let memory = made.get_memory(&mut caller, "memory").unwrap();
                    let dirty = memory.data(&caller).iter().position(|&byte| byte != 0);
                    assert_eq!(dirty, None, "{what}, round {round}");
                });
            };
            linker.func_wrap("host", "make", make).unwrap();
            let mut store = Store::new(&engine, 0);
            let instance = linker.instantiate(&mut store, &main).unwrap();
            let run = instance.get_typed_func::<i32, ()>(&mut store, "run").unwrap();
            // Another page each time: what is known to have been written is restored anyway.
            run.call(&mut store, round * 8192).unwrap();
            drop(linker);
            let mut store = Some(store);
            elsewhere(&mut || drop(store.take()));
        }
    }
    drop(elsewhere);
    worker.join().unwrap();
}
