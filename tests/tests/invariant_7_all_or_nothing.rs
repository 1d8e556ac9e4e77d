//! A spawn that fails leaves nothing half-made: every system call that it makes
//! fails in turn, as does all else that can, and the store, its other instances,
//! the maps, the descriptors and what limits count are as before.

mod common;

use std::fmt::Debug;

use common::{Held, held, in_own_process, trap_code};
use pagefork::suspend::{self, CallProgress};
use pagefork::{
    Config, Engine, Error, ErrorKind, Extern, ExternRef, Func, Global, GlobalType, Instance,
    LimitError, Linker, Memory, MemoryType, Module, PagesError, PoolConfig, RefType, Store,
    StoreLimits, Table, TableType, TrapCode, Val, ValType,
};
use pagefork_pages::inject::fail_nth;
use pagefork_pages::{Call, HostFeatures};

/// An image with a far part, tables, globals, and a memory that grows.
const WITH_EVERYTHING: &str = r#"(module
    (memory (export "memory") 40 100)
    (data (i32.const 0) "near") (data (i32.const 2500000) "far")
    (table (export "table") 10 funcref) (elem (i32.const 0) func $f $f)
    (global (mut v128) (v128.const i64x2 1 2))
    (func $f (export "f") (result i32) (i32.const 7))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"#;

/// A store in use, and how to see that it still works.
struct Used {
    store: Store<()>,
    instance: Instance,
    count: u32,
}

impl Used {
    fn new(engine: &Engine) -> Self {
        let module = Module::new(engine, WITH_EVERYTHING).unwrap();
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let count = suspend::instance_count(&store);
        Self { store, instance, count }
    }

    /// Asserts that the store is as it was, and fit for use.
    #[track_caller]
    fn check(&mut self) {
        assert_eq!(suspend::instance_count(&self.store), self.count);
        self.check_use();
    }

    /// Asserts that the instance of the beginning still works.
    #[track_caller]
    fn check_use(&mut self) {
        let f = self.instance.get_typed_func::<(), i32>(&mut self.store, "f").unwrap();
        assert_eq!(f.call(&mut self.store, ()).unwrap(), 7);
        let memory = self.instance.get_memory(&mut self.store, "memory").unwrap();
        assert_eq!(memory.data(&self.store)[2_500_000..][..3], *b"far");
    }
}

/// Runs `attempt` with its first, second, ... system call failing in several ways,
/// until a run makes fewer calls and succeeds; `check` sees each result. Returns
/// how many calls there are.
fn each_failure<S, R: Debug>(
    state: &mut S,
    mut attempt: impl FnMut(&mut S) -> Result<R, Error>,
    mut check: impl FnMut(&mut S, Option<&Error>),
) -> u64 {
    HostFeatures::get().unwrap();
    for nth in 0.. {
        for code in [libc::ENOMEM, libc::EMFILE, libc::EPERM] {
            let outcome = fail_nth(nth, code, || attempt(state));
            match (outcome.failed, &outcome.value) {
                (None, result) => {
                    result.as_ref().expect("no call fails any more");
                    return nth;
                }
                // What cannot be given back is kept and given back later: no
                // reason to fail, unless it was in the way of a spawn.
                // What cannot be reset when a store is dropped is not kept for others.
                (Some(Call::Release | Call::Scan | Call::Discard | Call::Protect), Ok(_)) => {
                    check(state, None);
                }
                (Some(call), Ok(value)) => panic!("{call} failed, and yet: {value:?}"),
                (Some(_), Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::System, "{error:#}");
                    assert!(error.is::<PagesError>(), "{error:#}");
                    check(state, Some(error));
                }
            }
        }
    }
    unreachable!()
}

/// An engine whose pool does nothing by itself, on a thread that has all that it will ever
/// have: both would be counted otherwise.
fn quiet_engine() -> Engine {
    pagefork_pages::counts_faults_in_memory();
    let pool = PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() };
    Engine::new(Config::new().pool(pool)).unwrap()
}

#[test]
fn a_spawn_whose_system_calls_fail_leaves_everything_as_it_was() {
    in_own_process("a_spawn_whose_system_calls_fail_leaves_everything_as_it_was", || {
        let engine = quiet_engine();
        let mut used = Used::new(&engine);
        // The image is made by the first spawn of a module, so each attempt needs
        // a module of its own.
        let fresh = || Module::new(&engine, WITH_EVERYTHING);
        let spawn = |used: &mut Used| Instance::new(&mut used.store, &fresh()?, &[]);
        let attempt = |used: &mut Used| -> Result<(), Error> {
            // Dropping the store belongs to what is attempted.
            let mut store = Store::new(used.store.engine(), ());
            let instance = Instance::new(&mut store, &fresh()?, &[])?;
            assert!(instance.get_func(&mut store, "f").is_some());
            Ok(())
        };
        // What stays from the first time: buffers, and what was asked of the host.
        attempt(&mut used).unwrap();
        used.check();
        let before = held();
        let calls = each_failure(&mut used, attempt, |used, _| {
            used.check();
            // A range that could not be given back is, with the next one.
            attempt(used).unwrap();
            assert_eq!(held(), before);
        });
        assert!(calls >= 9, "{calls} calls");

        // The same within the store that is in use: what succeeds stays there.
        for nth in 0..calls {
            let outcome = fail_nth(nth, libc::ENOMEM, || spawn(&mut used));
            match outcome.value {
                Ok(_) => used.count += 1,
                Err(_) => used.check(),
            }
            used.check();
        }
        let mut last = used.store;
        last.set_limits(StoreLimits::new().instances(used.count as usize));
        let error = Instance::new(&mut last, &fresh().unwrap(), &[]).unwrap_err();
        assert!(error.is::<LimitError>(), "counted: {error:#}");
        last.set_limits(StoreLimits::new().instances(used.count as usize + 1));
        Instance::new(&mut last, &fresh().unwrap(), &[]).unwrap();
    });
}

#[test]
fn what_the_host_creates_is_made_wholly_or_not_at_all() {
    in_own_process("what_the_host_creates_is_made_wholly_or_not_at_all", || {
        let engine = quiet_engine();
        let mut used = Used::new(&engine);
        used.check();
        let memory = |store: &mut Store<()>| -> Result<(), Error> {
            Memory::new(store, MemoryType::new(2, None)).map(drop)
        };
        let table = |store: &mut Store<()>| -> Result<(), Error> {
            let ty = TableType::new(RefType::EXTERNREF, 9, None);
            let element = ExternRef::new(&mut *store, "element")?;
            Table::new(store, ty, element.into()).map(drop)
        };
        let global = |store: &mut Store<()>| -> Result<(), Error> {
            let ty = GlobalType { content: ValType::V128, mutable: true };
            Global::new(store, ty, Val::V128(u128::MAX)).map(drop)
        };
        type Create = dyn Fn(&mut Store<()>) -> Result<(), Error>;
        let all: [&Create; 3] = [&memory, &table, &global];
        for create in all {
            create(&mut Store::new(&engine, ())).unwrap();
            let before = held();
            let attempt = |used: &mut Used| create(&mut Store::new(used.store.engine(), ()));
            let calls = each_failure(&mut used, attempt, |used, _| {
                used.check();
                attempt(used).unwrap();
                assert_eq!(held(), before);
            });
            assert!(calls >= 3, "{calls} calls");

            for nth in 0.. {
                let outcome = fail_nth(nth, libc::ENOMEM, || create(&mut used.store));
                if outcome.value.is_ok() {
                    used.count += 1;
                }
                used.check();
                if outcome.failed.is_none() {
                    break;
                }
            }
        }
    });
}

#[test]
fn a_memory_that_cannot_grow_is_as_before() {
    let mut used = Used::new(&quiet_engine());
    let grow = used.instance.get_typed_func::<i32, i32>(&mut used.store, "grow").unwrap();
    let memory = used.instance.get_memory(&mut used.store, "memory").unwrap();
    HostFeatures::get().unwrap();
    let outcome = fail_nth(0, libc::ENOMEM, || grow.call(&mut used.store, 5));
    assert_eq!(outcome.failed, Some(Call::Commit));
    assert_eq!(outcome.value.unwrap(), -1, "the guest is told, and goes on");
    let outcome = fail_nth(0, libc::ENOMEM, || memory.grow(&mut used.store, 5));
    assert!(outcome.value.unwrap_err().is::<PagesError>());
    assert_eq!(memory.size(&used.store), 40);
    assert_eq!(grow.call(&mut used.store, 0).unwrap(), 40);
    used.check();
    assert_eq!(grow.call(&mut used.store, 5).unwrap(), 40);
    assert_eq!(memory.grow(&mut used.store, 55).unwrap(), 45);
    assert_eq!(grow.call(&mut used.store, 1).unwrap(), -1, "the module's maximum");
}

#[test]
fn a_move_that_fails_leaves_the_target_empty_and_the_source_suspended() {
    in_own_process("a_move_that_fails_leaves_the_target_empty_and_the_source_suspended", || {
        let engine = quiet_engine();
        let module = Module::new(
            &engine,
            r#"(module (import "host" "f" (func $f)) (memory 1)
                (func (export "run") (result i32) (call $f) (i32.const 9)))"#,
        )
        .unwrap();
        let mut source = Store::new(&engine, ());
        let host = Func::wrap(&mut source, || ());
        let instance = Instance::new(&mut source, &module, &[host.into()]).unwrap();
        Memory::new(&mut source, MemoryType::new(1, None)).unwrap();
        let run = instance.get_func(&mut source, "run").unwrap();
        // The first point is the function's entry, the second the host call.
        let progress = suspend::call(&mut source, &run, &[], Some(2));
        assert!(matches!(progress, Ok(CallProgress::Suspended)), "{progress:?}");

        let copy = |source: &mut Store<()>| -> Result<Store<()>, Error> {
            let mut target = Store::new(source.engine(), ());
            let result = suspend::copy_to(source, &mut target, true);
            let expected = if result.is_ok() { 2 } else { 0 };
            assert_eq!(suspend::instance_count(&target), expected);
            result.map(|()| target)
        };
        drop(copy(&mut source).unwrap());
        let before = held();
        let calls = each_failure(&mut source, copy, |source, _| {
            drop(copy(source).unwrap());
            assert_eq!(held(), before);
        });
        assert!(calls >= 4, "{calls} calls");

        let target = copy(&mut source).unwrap();
        for mut store in [source, target] {
            match suspend::resume(&mut store, None) {
                Ok(CallProgress::Finished(results)) => assert_eq!(results[0].i32(), Some(9)),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Attempts that fail before any page is touched, or while segments are applied.
fn refused(used: &mut Used, wat: &str, imports: &[Extern]) -> Error {
    let module = Module::new(used.store.engine(), wat).unwrap();
    Instance::new(&mut used.store, &module, imports).unwrap_err()
}

#[test]
fn refused_imports_and_trapping_segments_leave_everything_as_it_was() {
    in_own_process("refused_imports_and_trapping_segments_leave_everything_as_it_was", || {
        let engine = quiet_engine();
        let mut used = Used::new(&engine);
        let import = r#"(module (import "a" "b" (func (param i32))))"#;
        let outside_data = r#"(module (memory 1) (data (i32.const 65533) "four"))"#;
        let outside_elements =
            "(module (table 2 funcref) (elem (i32.const 1) func $f $f) (func $f))";
        let all = |used: &mut Used| {
            let wrong = Func::wrap(&mut used.store, |_: i64| ());
            // Nothing given, something else, something of another store.
            assert_eq!(refused(used, import, &[]).kind(), ErrorKind::Link);
            assert_eq!(refused(used, import, &[wrong.into()]).kind(), ErrorKind::Link);
            let mut other = Store::new(used.store.engine(), ());
            let foreign = Func::wrap(&mut other, |_: i32| ());
            assert_eq!(refused(used, import, &[foreign.into()]).kind(), ErrorKind::Usage);
            let mut linker: Linker<()> = Linker::new(used.store.engine());
            linker.func_wrap("a", "c", |_: i32| ()).unwrap();
            let module = Module::new(used.store.engine(), import).unwrap();
            let error = linker.instantiate(&mut used.store, &module).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Link);
            // Segments that do not fit.
            let error = refused(used, outside_data, &[]);
            assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
            let error = refused(used, outside_elements, &[]);
            assert_eq!(trap_code(&error), TrapCode::TableOutOfBounds);
        };
        all(&mut used);
        used.check();
        let before = held();
        for _ in 0..20 {
            all(&mut used);
            used.check();
            assert_eq!(held(), before);
        }
    });
}

#[test]
fn limits_count_what_there_is_and_nothing_that_failed() {
    let engine = quiet_engine();
    let mut used = Used::new(&engine);
    let limits = StoreLimits::new()
        .instances(3)
        .memories(2)
        .tables(2)
        .memory_size(50 * 65536)
        .table_elements(20);
    used.store.set_limits(limits);
    let too_much = |used: &mut Used, wat: &str| {
        let error = refused(used, wat, &[]);
        assert_eq!(error.kind(), ErrorKind::Limit, "{wat}: {error:#}");
        used.check();
    };
    for _ in 0..10 {
        too_much(&mut used, "(module (memory 51))");
        too_much(&mut used, "(module (table 21 funcref))");
        too_much(&mut used, "(module (table 1 funcref) (table 1 funcref))");
        // Failures of other kinds do not count either.
        let trap = refused(&mut used, r#"(module (memory 0) (data (i32.const 0) "x"))"#, &[]);
        assert_eq!(trap.kind(), ErrorKind::Trap);
        let link = refused(&mut used, r#"(module (import "a" "b" (memory 1)))"#, &[]);
        assert_eq!(link.kind(), ErrorKind::Link);
        let module = Module::new(&engine, "(module (memory 1) (table 1 funcref))").unwrap();
        HostFeatures::get().unwrap();
        // Some of the calls that make its image.
        for nth in 0..3 {
            let outcome =
                fail_nth(nth, libc::ENOMEM, || Instance::new(&mut used.store, &module, &[]));
            assert_eq!(outcome.value.unwrap_err().kind(), ErrorKind::System);
            used.check();
        }
    }
    // Exactly what the limits say is still possible.
    let memory = |used: &mut Used| Memory::new(&mut used.store, MemoryType::new(1, None));
    let table = |used: &mut Used| {
        let ty = TableType::new(RefType::FUNCREF, 20, None);
        Table::new(&mut used.store, ty, Val::FuncRef(None))
    };
    let first = memory(&mut used).unwrap();
    assert_eq!(memory(&mut used).unwrap_err().kind(), ErrorKind::Limit);
    let elements = table(&mut used).unwrap();
    assert_eq!(table(&mut used).unwrap_err().kind(), ErrorKind::Limit);
    used.count += 2;
    too_much(&mut used, "(module)");
    // Growth stops at the limits as well, and tells.
    assert_eq!(first.grow(&mut used.store, 50).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(first.grow(&mut used.store, 49).unwrap(), 1);
    let error = elements.grow(&mut used.store, 1, Val::FuncRef(None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let grow = used.instance.get_typed_func::<i32, i32>(&mut used.store, "grow").unwrap();
    assert_eq!(grow.call(&mut used.store, 11).unwrap(), -1);
    assert_eq!(grow.call(&mut used.store, 10).unwrap(), 40);
}

#[test]
fn a_start_function_that_fails_leaves_the_store_usable_and_nothing_when_it_is_gone() {
    in_own_process(
        "a_start_function_that_fails_leaves_the_store_usable_and_nothing_when_it_is_gone",
        || {
            let engine = quiet_engine();
            let start = |body: &str| {
                let wat = format!(
                    r#"(module (import "host" "f" (func $f)) (memory 1) (func $start {body})
                        (start $start))"#
                );
                Module::new(&engine, wat).unwrap()
            };
            let trapping = start("unreachable");
            let overflowing = start("(call $start)");
            let beyond = start("(drop (i32.load (i32.const 65536)))");
            let failing = start("(call $f)");
            let round = || {
                let mut used = Used::new(&engine);
                let host = Func::wrap(&mut used.store, || -> Result<(), Error> {
                    Err(Error::msg("refused"))
                });
                for (module, code) in [
                    (&trapping, TrapCode::Unreachable),
                    (&overflowing, TrapCode::StackOverflow),
                    (&beyond, TrapCode::MemoryOutOfBounds),
                ] {
                    let error = Instance::new(&mut used.store, module, &[host.into()]).unwrap_err();
                    assert_eq!(trap_code(&error), code);
                    used.check_use();
                }
                let error = Instance::new(&mut used.store, &failing, &[host.into()]).unwrap_err();
                assert_eq!((error.kind(), error.to_string()), (ErrorKind::Host, "refused".into()));
                // A start function that panics does not tear the store.
                let panicking = Func::wrap(&mut used.store, || -> () {
                    std::panic::resume_unwind(Box::new("on purpose"));
                });
                let imports = [panicking.into()];
                let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    Instance::new(&mut used.store, &failing, &imports)
                }))
                .unwrap_err();
                assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
                used.check_use();
                let module = Module::new(&engine, WITH_EVERYTHING).unwrap();
                Instance::new(&mut used.store, &module, &[]).unwrap();
            };
            round();
            let before = held();
            for _ in 0..5 {
                round();
                assert_eq!(held(), before);
            }
        },
    );
}

#[test]
fn segments_for_other_instances_stay_written_as_the_specification_says() {
    // All of a segment or nothing of it; those before it stay. What can call the
    // instance keeps it alive.
    let engine = quiet_engine();
    let mut used = Used::new(&engine);
    let memory = used.instance.get_memory(&mut used.store, "memory").unwrap();
    let table = used.instance.get_table(&mut used.store, "table").unwrap();
    let error = refused(
        &mut used,
        r#"(module
            (import "a" "memory" (memory 1)) (import "a" "table" (table 1 funcref))
            (elem (i32.const 4) func $g) (elem (i32.const 9) func $g $g)
            (data (i32.const 10) "written") (func $g (result i32) (i32.const 8)))"#,
        &[memory.into(), table.into()],
    );
    assert_eq!(trap_code(&error), TrapCode::TableOutOfBounds);
    let element = table.get(&mut used.store, 4).unwrap();
    let mut result = [Val::I32(0)];
    element.funcref().unwrap().unwrap().call(&mut used.store, &[], &mut result).unwrap();
    assert_eq!(result[0].i32(), Some(8));
    let element = table.get(&mut used.store, 9).unwrap();
    assert!(matches!(element, Val::FuncRef(None)));
    assert_eq!(memory.data(&used.store)[10..17], [0; 7], "data come after elements");

    // Without a reference to it left behind, the instance goes.
    let before = suspend::instance_count(&used.store);
    let error = refused(
        &mut used,
        r#"(module (import "a" "memory" (memory 1))
            (data (i32.const 10) "written") (data (i32.const 0x7fffffff) "not"))"#,
        &[memory.into()],
    );
    assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
    assert_eq!(memory.data(&used.store)[10..17], *b"written");
    assert_eq!(suspend::instance_count(&used.store), before);
}

#[test]
fn threads_that_fail_and_succeed_at_once_leave_nothing() {
    in_own_process("threads_that_fail_and_succeed_at_once_leave_nothing", || {
        let engine = &quiet_engine();
        let good = &Module::new(engine, WITH_EVERYTHING).unwrap();
        let bad = &Module::new(engine, r#"(module (memory 1) (data (i32.const -1) "x"))"#).unwrap();
        let round = || -> Held {
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    scope.spawn(move || {
                        for nth in 0..30 {
                            let mut store = Store::new(engine, ());
                            let outcome = fail_nth(nth % 7 + thread, libc::ENOMEM, || {
                                Instance::new(&mut store, good, &[])
                            });
                            if let Err(error) = outcome.value {
                                assert_eq!(error.kind(), ErrorKind::System);
                            }
                            let error = Instance::new(&mut store, bad, &[]).unwrap_err();
                            assert_eq!(error.kind(), ErrorKind::Trap);
                            Instance::new(&mut store, good, &[]).unwrap();
                        }
                    });
                }
            });
            drop(common::spawn(engine, "(module (memory 1))"));
            engine.purge_pool();
            held()
        };
        // The allocator makes arenas for the threads of the first rounds.
        round();
        let before = round();
        let after = round();
        assert_eq!(after.descriptors, before.descriptors);
        assert!(after.mapped < before.mapped + (1 << 30), "a slot is left: {before:?} {after:?}");
    });
}
