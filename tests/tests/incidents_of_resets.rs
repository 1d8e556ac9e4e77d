//! What the host still has when a store is reset, or a reset of it fails: importers of its
//! memories, references, snapshots, suspended guests and means to interrupt.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{in_own_process, trap_code};
use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{
    CallHook, Caller, CodeBounds, Config, Engine, Error, ExternRef, Func, Global, GlobalType,
    GrowthKind, Instance, InstancePre, InterruptHandle, LimitError, Linker, Memory, MemoryType,
    Module, ResetKind, Store, StoreLimits, StrategyConfig, TrapCode, UsageError, Val, ValType,
    WasmBacktrace,
};
use pagefork_pages::HostFeatures;
use pagefork_pages::inject::{fail_from, half_way};

/// Every kind of growth with each kind of code that can run with it.
const GROWTHS: [(GrowthKind, CodeBounds); 9] = [
    (GrowthKind::Ftruncate, CodeBounds::Guarded),
    (GrowthKind::Fault, CodeBounds::Guarded),
    (GrowthKind::Mprotect, CodeBounds::Guarded),
    (GrowthKind::Mprotect, CodeBounds::Dual),
    (GrowthKind::Mprotect, CodeBounds::Checked),
    (GrowthKind::Kept, CodeBounds::Dual),
    (GrowthKind::Kept, CodeBounds::Checked),
    (GrowthKind::Auto, CodeBounds::Dual),
    (GrowthKind::Checked { accessible: None }, CodeBounds::Checked),
];

fn engine(reset: ResetKind, growth: GrowthKind, code: CodeBounds) -> Engine {
    let config = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    Engine::new(Config::new().strategies(config)).unwrap()
}

/// Does this with each kind of reset and each of [`GROWTHS`], and what to call them.
fn with_each_engine(mut look: impl FnMut(&Engine, &str)) {
    for (growth, code) in GROWTHS {
        for reset in ResetKind::ALL {
            look(&engine(reset, growth, code), &format!("{reset}, {growth:?}, {code:?}"));
        }
    }
}

fn usual_engine(reset: ResetKind) -> Engine {
    engine(reset, GrowthKind::Mprotect, CodeBounds::Guarded)
}

fn pre(engine: &Engine, text: &str) -> InstancePre<()> {
    Linker::new(engine).instantiate_pre(&Module::new(engine, text).unwrap()).unwrap()
}

#[track_caller]
fn assert_usage_error(error: &Error, expected: &UsageError) {
    assert_eq!(error.downcast_ref::<UsageError>(), Some(expected), "{error:?}");
}

/// Has a memory that others import.
const EXPORTER: &str = r#"(module
    (memory (export "memory") 1 9)
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "load") (param i32) (result i32) (i32.load (local.get 0))))"#;

/// Imports a memory of five pages at least, and writes into the fourth of them.
const IMPORTER: &str = r#"(module
    (import "" "memory" (memory 5 9))
    (memory $own 1 1)
    (func (export "constant place") (param i32)
        (i32.store (i32.const 200000) (i32.const 0x5ec4e7)))
    (func (export "any place") (param i32)
        (i32.store (local.get 0) (i32.const 0x5ec4e7))))"#;

/// Where [`IMPORTER`] writes.
const PLACE: i32 = 200_000;

#[track_caller]
fn assert_importer_writes_nothing(store: &mut Store<()>, importer: Instance, what: &str) {
    for name in ["constant place", "any place"] {
        let write = importer.get_typed_func::<i32, ()>(&mut *store, name).unwrap();
        let error = write.call(&mut *store, PLACE).expect_err(what);
        assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds, "{what}: {name}");
    }
}

/// The memory had grown when it was linked, so that its importer takes as much for granted.
#[test]
fn an_importer_writes_nothing_beyond_a_memory_that_a_reset_made_smaller() {
    with_each_engine(|engine, what| {
        let importer = Module::new(engine, IMPORTER).unwrap();
        let pre = pre(engine, EXPORTER);
        let (mut store, exporter) = pre.spawn_for(1, ()).unwrap();
        let grow = exporter.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
        grow.call(&mut store, 4).unwrap();
        let memory = exporter.get_memory(&mut store, "memory").unwrap();
        let importer = Instance::new(&mut store, &importer, &[memory.into()]).unwrap();
        store.reset(()).unwrap();
        assert_eq!(memory.size(&store), 1, "{what}");
        assert_importer_writes_nothing(&mut store, importer, what);
        drop(store);
        // Another tenant, whose memory grows to there.
        let (mut store, exporter) = pre.spawn_for(2, ()).unwrap();
        let grow = exporter.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
        assert_eq!(grow.call(&mut store, 4).unwrap(), 1, "{what}");
        let load = exporter.get_typed_func::<i32, i32>(&mut store, "load").unwrap();
        assert_eq!(load.call(&mut store, PLACE).unwrap(), 0, "{what}");
    });
}

#[test]
fn an_importer_writes_nothing_beyond_a_memory_of_the_host_that_a_reset_made_smaller() {
    with_each_engine(|engine, what| {
        let importer = Module::new(engine, IMPORTER).unwrap();
        let mut store = Store::new(engine, ());
        let memory = Memory::new(&mut store, MemoryType::new(1, Some(9))).unwrap();
        memory.grow(&mut store, 4).unwrap();
        let importer = Instance::new(&mut store, &importer, &[memory.into()]).unwrap();
        store.reset(()).unwrap();
        assert_importer_writes_nothing(&mut store, importer, what);
        memory.grow(&mut store, 4).unwrap();
        assert!(memory.data(&store).iter().all(|byte| *byte == 0), "{what}");
        let write = importer.get_typed_func::<i32, ()>(&mut store, "constant place").unwrap();
        write.call(&mut store, PLACE).unwrap();
    });
}

/// Throws exceptions, gives them to the host and takes them back.
const THROWER: &str = r#"(module
    (tag $number (param i64))
    (tag $value (param externref))
    (global (export "global") (mut exnref) (ref.null exn))
    (func (export "throw number") (result exnref)
        (block $caught (result exnref)
            (try_table (catch_all_ref $caught) (throw $number (i64.const 0x1234)))
            unreachable))
    (func (export "throw value") (param externref) (result exnref)
        (block $caught (result exnref)
            (try_table (catch_all_ref $caught) (throw $value (local.get 0)))
            unreachable))
    (func (export "number") (param exnref) (result i64)
        (block $caught (result i64)
            (try_table (catch $number $caught) (throw_ref (local.get 0)))
            unreachable)))"#;

#[test]
fn references_to_exceptions_mean_nothing_after_a_reset() {
    let engine = Engine::default();
    let (mut store, instance) = common::spawn(&engine, THROWER);
    let throw_number = instance.get_func(&mut store, "throw number").unwrap();
    let throw_value = instance.get_func(&mut store, "throw value").unwrap();
    let number = instance.get_func(&mut store, "number").unwrap();
    let global = instance.get_global(&mut store, "global").unwrap();
    let given_up = UsageError::ReferenceGivenUp;
    let mut results = [Val::I32(0)];
    for round in 0..3 {
        throw_number.call(&mut store, &[], &mut results).unwrap();
        let Val::ExnRef(Some(old)) = results[0] else { panic!("no exception") };
        number.call(&mut store, &[Val::ExnRef(Some(old))], &mut [Val::I64(0)]).unwrap();
        let snapshot = store.snapshot().unwrap();
        match round {
            0 => store.reset_to(&snapshot, ()).unwrap(),
            _ => store.reset(()).unwrap(),
        }
        // As long as nothing was thrown, and when something else lies where it was.
        for thrown_again in [false, true] {
            if thrown_again {
                let value = ExternRef::new(&mut store, 42).unwrap();
                let arguments = [Val::ExternRef(Some(value))];
                throw_value.call(&mut store, &arguments, &mut results).unwrap();
            }
            assert_usage_error(&old.exception(&mut store).unwrap_err(), &given_up);
            let old = Val::ExnRef(Some(old));
            let called = number.call(&mut store, std::slice::from_ref(&old), &mut [Val::I64(0)]);
            assert_usage_error(&called.unwrap_err(), &given_up);
            assert_usage_error(&global.set(&mut store, old).unwrap_err(), &given_up);
        }
        store.reset(()).unwrap();
    }
}

/// Writes its memory, lets it grow, and runs for ever.
const GUEST: &str = r#"(module
    (memory (export "memory") 2 30)
    (func (export "grow") (param i32) (result i32)
        (memory.fill (i32.const 0) (i32.const 1) (i32.const 131072))
        (memory.grow (local.get 0)))
    (func (export "spin") (loop (br 0))))"#;

/// A store whose reset has failed at each of its calls, as far as it has some.
fn each_broken_store(mut look: impl FnMut(Store<()>, Instance, InterruptHandle)) {
    HostFeatures::get().unwrap();
    let mut broken = 0;
    for reset in ResetKind::ALL {
        for from in 0..6 {
            let (mut store, instance) = common::spawn(&usual_engine(reset), GUEST);
            let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
            grow.call(&mut store, 2).unwrap();
            let handle = store.interrupt_handle().unwrap();
            if fail_from(from, libc::ENOMEM, || store.reset(()).is_err()).value {
                broken += 1;
                look(store, instance, handle);
            }
        }
    }
    assert!(broken > 5, "{broken}");
}

/// Interrupts until the guest that runs for ever has ended.
fn interrupt_spinning(store: &mut Store<()>, instance: Instance, handle: &InterruptHandle) {
    let spin = instance.get_typed_func::<(), ()>(&mut *store, "spin").unwrap();
    let error = interrupted(handle, || spin.call(&mut *store, ()).unwrap_err());
    assert_eq!(trap_code(&error), TrapCode::Interrupt);
}

/// What `body` makes while another thread interrupts again and again.
fn interrupted<R>(handle: &InterruptHandle, body: impl FnOnce() -> R) -> R {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                handle.interrupt();
                std::thread::yield_now();
            }
        });
        // Also if it panics.
        let _end = AtTheEnd(&ended);
        body()
    })
}

struct AtTheEnd<'a>(&'a AtomicBool);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_store_whose_reset_failed_is_interrupted_without_harm_and_again_after_the_next_reset() {
    in_own_process(
        "a_store_whose_reset_failed_is_interrupted_without_harm_and_again_after_the_next_reset",
        || {
            each_broken_store(|mut store, instance, handle| {
                handle.interrupt();
                store.reset(()).unwrap();
                interrupt_spinning(&mut store, instance, &handle);
            });
        },
    );
}

#[test]
fn a_store_whose_reset_failed_dumps_no_pages() {
    in_own_process("a_store_whose_reset_failed_dumps_no_pages", || {
        each_broken_store(|mut store, instance, _| {
            let dump = |store: &Store<()>| store.core_dump("x", &WasmBacktrace::default()).len();
            assert!(dump(&store) < 1000);
            store.reset(()).unwrap();
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            memory.data_mut(&mut store).fill(1);
            assert!(dump(&store) > 2 << 16);
        });
    });
}

/// A mutable global of the host, which the guest clears.
#[test]
fn what_the_host_said_is_there_after_a_snapshot_and_a_reset() {
    let engine = Engine::default();
    let text = r#"(module
        (import "" "global" (global $global (mut externref)))
        (func (export "clear") (global.set $global (ref.null extern)))
        (func (export "get") (result externref) (global.get $global)))"#;
    let module = Module::new(&engine, text).unwrap();
    let mut store = Store::new(&engine, ());
    let value = ExternRef::new(&mut store, 7i32).unwrap();
    let ty = GlobalType { content: ValType::EXTERNREF, mutable: true };
    let global = Global::new(&mut store, ty, Val::ExternRef(Some(value))).unwrap();
    let instance = Instance::new(&mut store, &module, &[global.into()]).unwrap();
    let clear = instance.get_typed_func::<(), ()>(&mut store, "clear").unwrap();
    let get = instance.get_typed_func::<(), Option<ExternRef>>(&mut store, "get").unwrap();
    clear.call(&mut store, ()).unwrap();
    let snapshot = store.snapshot().unwrap();
    for _ in 0..3 {
        store.reset_to(&snapshot, ()).unwrap();
        assert!(get.call(&mut store, ()).unwrap().is_none());
        store.reset(()).unwrap();
        let found = get.call(&mut store, ()).unwrap().expect("what the host said");
        assert_eq!(found.data(&store).unwrap().downcast_ref::<i32>(), Some(&7));
    }
}

#[test]
fn a_snapshot_beyond_the_limits_is_refused_and_nothing_changes() {
    for reset in ResetKind::ALL {
        let pre = pre(&usual_engine(reset), GUEST);
        let (mut store, instance) = pre.spawn(()).unwrap();
        let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
        grow.call(&mut store, 20).unwrap();
        let snapshot = store.snapshot().unwrap();
        drop(store);
        let (mut store, instance) = pre.spawn(()).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        memory.write(&mut store, 5, b"present").unwrap();
        let unlimited = StoreLimits::new();
        let too_small = [unlimited.memory_size(21 << 16), unlimited.memory_total(21 << 16)];
        for limits in too_small {
            store.set_limits(limits);
            let error = store.reset_to(&snapshot, ()).unwrap_err();
            let found = error.downcast_ref::<LimitError>().map(|error| error.requested);
            assert_eq!(found, Some(22 << 16), "{reset}, {limits:?}: {error:?}");
            assert_eq!(memory.size(&store), 2, "{reset}, {limits:?}");
            assert_eq!(&memory.data(&store)[5..12], b"present", "{reset}, {limits:?}");
        }
        store.set_limits(unlimited.memory_size(22 << 16).memory_total(22 << 16));
        store.reset_to(&snapshot, ()).unwrap();
        assert_eq!(memory.size(&store), 22, "{reset}");
    }
}

#[test]
fn a_snapshot_with_a_longer_table_than_is_allowed_is_refused() {
    let text = r#"(module
        (table (export "table") 1 funcref) (table (export "long") 2 funcref)
        (func (export "grow") (drop (table.grow 1 (ref.null func) (i32.const 9)))))"#;
    let (mut store, instance) = common::spawn(&Engine::default(), text);
    let grow = instance.get_typed_func::<(), ()>(&mut store, "grow").unwrap();
    grow.call(&mut store, ()).unwrap();
    let snapshot = store.snapshot().unwrap();
    store.reset(()).unwrap();
    store.set_limits(StoreLimits::new().table_elements(10));
    let error = store.reset_to(&snapshot, ()).unwrap_err();
    let found = error.downcast_ref::<LimitError>().map(|error| (error.requested, error.limit));
    assert_eq!(found, Some((11, 10)));
    let table = instance.get_table(&mut store, "long").unwrap();
    assert_eq!(table.size(&store), 2);
    store.set_limits(StoreLimits::new().table_elements(11));
    store.reset_to(&snapshot, ()).unwrap();
    assert_eq!(table.size(&store), 11);
}

/// A table that a guest calls through, and one import that is in it already.
const CALLS_TABLE: &str = r#"(module
    (type $int (func (result i32)))
    (import "host" "known" (func $known (type $int)))
    (table (export "table") 3 funcref)
    (elem (i32.const 0) $known)
    (func (export "call") (param i32) (result i32)
        (call_indirect (type $int) (local.get 0))))"#;

/// A reference to a host function is its number in the store: in another store that number
/// may be another function's, even of another type.
#[test]
fn a_snapshot_names_no_host_function_of_another_store() {
    let engine = Engine::default();
    let module = Module::new(&engine, CALLS_TABLE).unwrap();
    let mut linker = Linker::new(&engine);
    linker.func_wrap("host", "known", || 1).unwrap();
    linker.func_wrap("host", "shared", || 2).unwrap();
    let pre = linker.instantiate_pre(&module).unwrap();

    let (mut store, instance) = pre.spawn(()).unwrap();
    let plain = store.snapshot().unwrap();
    let table = instance.get_table(&mut store, "table").unwrap();
    let shared = linker.get(&mut store, "host", "shared").unwrap().into_func().unwrap();
    table.set(&mut store, 1, shared.into()).unwrap();
    let with_shared = store.snapshot().unwrap();
    let own = Func::wrap(&mut store, || 3);
    table.set(&mut store, 2, own.into()).unwrap();
    let with_own = store.snapshot().unwrap();
    store.reset_to(&with_own, ()).unwrap();
    let call = instance.get_typed_func::<i32, i32>(&mut store, "call").unwrap();
    assert_eq!([0, 1, 2].map(|i| call.call(&mut store, i).unwrap()), [1, 2, 3]);

    // As many functions, of which one is another.
    let (mut other, instance) = pre.spawn(()).unwrap();
    linker.get(&mut other, "host", "shared").unwrap();
    Func::wrap(&mut other, |a: i64, b: i64| a + b);
    for _ in 0..2 {
        let error = other.reset_to(&with_own, ()).unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(UsageError::WrongSnapshot(_))), "{error:?}");
        assert!(error.to_string().contains("host function"), "{error}");
        // What no guest refers to need not be the same.
        other.reset_to(&with_shared, ()).unwrap();
        let call = instance.get_typed_func::<i32, i32>(&mut other, "call").unwrap();
        assert_eq!([0, 1].map(|i| call.call(&mut other, i).unwrap()), [1, 2]);
        assert_eq!(trap_code(&call.call(&mut other, 2).unwrap_err()), TrapCode::IndirectCallToNull);
    }
    // Fewer functions.
    let (mut other, _) = pre.spawn(()).unwrap();
    other.reset_to(&plain, ()).unwrap();
    other.reset_to(&with_shared, ()).unwrap_err();
    linker.get(&mut other, "host", "shared").unwrap();
    other.reset_to(&with_shared, ()).unwrap();
}

/// Calls the host, and then touches its memory.
const SUSPENDED: &str = r#"(module
    (import "" "pause" (func $pause))
    (memory (export "memory") 1 30)
    (func (export "run") (result i32)
        (call $pause)
        (i32.store (i32.const 65536) (i32.const 7))
        (i32.load (i32.const 65536))))"#;

/// A store of [`SUSPENDED`], whose guest is suspended.
fn suspended(reset: ResetKind) -> (Store<()>, Instance) {
    let (mut store, instance) = common::link(&usual_engine(reset), (), SUSPENDED, |linker| {
        linker.func_wrap("", "pause", |_: Caller<'_, ()>| {}).unwrap();
    });
    let run = instance.get_func(&mut store, "run").unwrap();
    let progress = suspend::call(&mut store, &run, &[], Some(2)).unwrap();
    assert!(matches!(progress, CallProgress::Suspended), "{progress:?}");
    (store, instance)
}

/// After a growth that can be neither done nor undone, or a reset that has failed.
#[test]
fn the_suspended_guest_of_a_broken_store_is_not_resumed() {
    in_own_process("the_suspended_guest_of_a_broken_store_is_not_resumed", || {
        HostFeatures::get().unwrap();
        let mut failed_resets = 0;
        for reset in ResetKind::ALL {
            let (mut store, instance) = suspended(reset);
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            let grow = || fail_from(0, libc::ENOMEM, || memory.grow(&mut store, 2)).value;
            half_way(grow).unwrap_err();
            assert_no_guest_is_resumed(&mut store);

            for from in 0..6 {
                let (mut store, _) = suspended(reset);
                if fail_from(from, libc::ENOMEM, || store.reset(()).is_err()).value {
                    failed_resets += 1;
                    assert_no_guest_is_resumed(&mut store);
                }
            }
        }
        assert!(failed_resets > 5, "{failed_resets}");
    });
}

#[track_caller]
/// The hook has made more of a memory accessible than that has, which cannot be undone.
#[test]
fn a_guest_is_not_entered_after_a_hook_that_has_broken_its_store() {
    in_own_process("a_guest_is_not_entered_after_a_hook_that_has_broken_its_store", || {
        HostFeatures::get().unwrap();
        for is_suspended in [false, true] {
            let (mut store, instance) = suspended(ResetKind::Scan);
            if !is_suspended {
                suspend::abandon(&mut store);
            }
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            let has_run = Arc::new(AtomicBool::new(false));
            let runs = Arc::clone(&has_run);
            store.call_hook(move |mut store, hook| {
                runs.fetch_or(hook == CallHook::CallingHost, Ordering::Relaxed);
                if hook == CallHook::CallingWasm {
                    let grow = || fail_from(0, libc::ENOMEM, || memory.grow(&mut store, 2)).value;
                    half_way(grow).unwrap_err();
                }
                Ok(())
            });
            let error = match is_suspended {
                true => suspend::resume(&mut store, None).unwrap_err(),
                false => {
                    let run = instance.get_func(&mut store, "run").unwrap();
                    run.call(&mut store, &[], &mut [Val::I32(0)]).unwrap_err()
                }
            };
            assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
            assert!(!has_run.load(Ordering::Relaxed), "the guest has called the host");
            assert_no_guest_is_resumed(&mut store);
        }
    });
}

#[track_caller]
fn assert_no_guest_is_resumed(store: &mut Store<()>) {
    let error = suspend::resume(&mut *store, None).unwrap_err();
    assert_usage_error(&error, &UsageError::ResetIncomplete);
    // Nor does anything lead to its pages, which may not be mapped.
    let mut copy = Store::new(store.engine(), ());
    let error = suspend::copy_to(store, &mut copy, false).unwrap_err();
    assert_usage_error(&error, &UsageError::ResetIncomplete);
    let looks: [fn(&Store<()>); 2] = [
        |store| _ = suspend::instance(store, 1),
        |store| _ = suspend::zone_bytes(store, 1, Zone::Memory(0)),
    ];
    for look in looks {
        assert!(catch_unwind(AssertUnwindSafe(|| look(store))).is_err());
    }
    store.reset(()).unwrap();
}

/// Interrupts write words into pages that a reset may map anew meanwhile.
#[test]
fn interrupts_during_resets_do_no_harm() {
    in_own_process("interrupts_during_resets_do_no_harm", || {
        for reset in ResetKind::ALL {
            let pre = pre(&usual_engine(reset), GUEST);
            for _ in 0..60 {
                let (mut store, instance) = pre.spawn(()).unwrap();
                let handle = store.interrupt_handle().unwrap();
                let snapshot = store.snapshot().unwrap();
                let spin = instance.get_typed_func::<(), ()>(&mut store, "spin").unwrap();
                interrupted(&handle, || {
                    let error = spin.call(&mut store, ()).unwrap_err();
                    assert_eq!(trap_code(&error), TrapCode::Interrupt);
                    for _ in 0..2 {
                        store.reset_to(&snapshot, ()).unwrap();
                        store.reset(()).unwrap();
                    }
                    let error = spin.call(&mut store, ()).unwrap_err();
                    assert_eq!(trap_code(&error), TrapCode::Interrupt);
                    // Nor while it is made ready for the next one, which means to map it anew.
                    store.reset_to(&snapshot, ()).unwrap();
                    drop(store);
                });
            }
        }
    });
}
