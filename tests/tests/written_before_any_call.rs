//! Stores into which no guest was called. Nobody announces then that code runs in their slots, so the
//! thread that drops them says so, and its page faults tell what was written. What others have
//! written until then has to be announced by whoever did: here each way to write to a store is gone
//! alone, on another thread than the one that spawns and drops, which sees no page fault of it.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefork::{
    CallProgress, Caller, Config, Engine, Func, Global, GrowthKind, Instance, InstancePre, Linker,
    Memory, Module, ResetKind, Store, StrategyConfig, Table, Val,
};

/// Large enough that pages are given back where a slot keeps them.
const PAGES: u64 = 100;

const GUEST: &str = r#"(module
    (import "host" "write" (func $host_writes))
    (import "host" "wait" (func $wait))
    (import "host" "answer" (func $answer (param i32) (result i32)))
    (memory (export "memory") 100 110)
    (data (i32.const 70000) "contents")
    (global $number (export "number") (mut i32) (i32.const 7))
    (table (export "table") 3 2000 funcref)
    (elem (i32.const 0) $write)
    (func (export "ask") (result i32) (call $answer (i32.const 5)))
    (func $write (export "write") (i32.store (i32.const 70000) (i32.const 1)))
    (func (export "wait") (result i32) (call $wait) (i32.load (i32.const 70000)))
    (func (export "size") (result i32) (memory.size))
    (func (export "let the host write") (call $host_writes)))"#;

/// As above, with a start function.
const STARTED: &str = r#"(module
    (import "host" "write" (func $host_writes))
    (memory (export "memory") 100 110)
    (data (i32.const 70000) "contents")
    (global $number (export "number") (mut i32) (i32.const 7))
    (table (export "table") 3 2000 funcref)
    (elem (i32.const 0) $start)
    (func $start
        (if (i32.load (i32.const 200000)) (then unreachable))
        (i32.store (i32.const 200000) (i32.const 1)))
    (start $start))"#;

/// What imports the memory and writes to it when it is made.
const IMPORTER: &str =
    r#"(module (import "" "memory" (memory 1)) (data (i32.const 90000) "other"))"#;

type Data = ();

/// A way to write to a store.
type Way = fn(&mut Store<Data>, Instance);

fn memory(store: &mut Store<Data>, instance: Instance) -> Memory {
    instance.get_memory(store, "memory").unwrap()
}

fn table(store: &mut Store<Data>, instance: Instance) -> Table {
    instance.get_table(store, "table").unwrap()
}

fn global(store: &mut Store<Data>, instance: Instance) -> Global {
    instance.get_global(store, "number").unwrap()
}

fn ways() -> Vec<(&'static str, Way)> {
    vec![
        ("Memory::write", |store, instance| {
            memory(store, instance).write(store, 70_000, b"other").unwrap();
        }),
        ("Memory::data_mut", |store, instance| {
            memory(store, instance).data_mut(store)[70_000..70_005].fill(1);
        }),
        ("a pointer that a third thread has", |store, instance| {
            let address = memory(store, instance).data_mut(store).as_mut_ptr().expose_provenance();
            std::thread::scope(|scope| {
                let write = move || {
                    let place = std::ptr::with_exposed_provenance_mut::<u8>(address + 70_000);
                    // SAFETY: the byte is in the memory, and nobody else uses that now.
                    unsafe { place.write(1) }
                };
                scope.spawn(write).join().unwrap();
            });
        }),
        ("LocalMemory::bytes_mut", |store, instance| {
            let memory = memory(store, instance);
            memory.local_and_store_mut(store).0.bytes_mut()[70_000] = 1;
        }),
        ("the kernel, into LocalMemory::part_mut", |store, instance| {
            let memory = memory(store, instance);
            let mut local = memory.local_and_store_mut(store).0;
            let part = local.part_mut(70_000..70_100).unwrap();
            File::open("/proc/self/exe").unwrap().read_exact(part).unwrap();
        }),
        ("Memory::grow", |store, instance| {
            memory(store, instance).grow(store, 3).unwrap();
        }),
        ("Memory::discard", |store, instance| {
            memory(store, instance).discard(store, 65_536, 6 << 20).unwrap();
        }),
        ("Global::set", |store, instance| {
            global(store, instance).set(store, Val::I32(9)).unwrap();
        }),
        ("Table::set", |store, instance| {
            table(store, instance).set(store, 0, Val::FuncRef(None)).unwrap();
        }),
        ("Table::fill", |store, instance| {
            table(store, instance).fill(store, 0, Val::FuncRef(None), 3).unwrap();
        }),
        ("Table::copy", |store, instance| {
            let table = table(store, instance);
            Table::copy(store, &table, 1, &table, 0, 1).unwrap();
        }),
        ("Table::grow", |store, instance| {
            table(store, instance).grow(store, 1000, Val::FuncRef(None)).unwrap();
        }),
        ("a guest", |store, instance| {
            let write = instance.get_typed_func::<(), ()>(&mut *store, "write").unwrap();
            write.call(store, ()).unwrap();
        }),
        ("a host function that a guest calls", |store, instance| {
            let name = "let the host write";
            let write = instance.get_typed_func::<(), ()>(&mut *store, name).unwrap();
            write.call(store, ()).unwrap();
        }),
        ("a host function that no guest calls", |store, instance| {
            let memory = memory(store, instance);
            let write = move |mut caller: Caller<'_, Data>| {
                memory.write(&mut caller, 70_000, b"other").map_err(pagefork::Error::new)
            };
            Func::wrap(&mut *store, write).call(store, &[], &mut []).unwrap();
        }),
        ("a segment of what is linked", |store, instance| {
            let module = Module::new(store.engine(), IMPORTER).unwrap();
            let memory = memory(store, instance);
            Instance::new(store, &module, &[memory.into()]).unwrap();
        }),
        ("Store::reset", |store, instance| {
            memory(store, instance).write(&mut *store, 70_000, b"other").unwrap();
            store.reset(()).unwrap();
            memory(store, instance).write(store, 70_000, b"again").unwrap();
        }),
        ("nothing", |_, _| ()),
    ]
}

fn pre(reset: ResetKind, text: &str) -> InstancePre<Data> {
    let strategies =
        StrategyConfig { reset, growth: GrowthKind::Mprotect, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let module = Module::new(&engine, text).unwrap();
    let mut linker = Linker::new(&engine);
    let write = |mut caller: Caller<'_, Data>| {
        let memory = caller.get_export("memory").and_then(|it| it.into_memory()).unwrap();
        memory.write(&mut caller, 70_000, b"other").map_err(pagefork::Error::new)
    };
    linker.func_wrap("host", "write", write).unwrap();
    let wait = |mut caller: Caller<'_, Data>| Err::<(), _>(caller.suspend_before());
    linker.func_wrap("host", "wait", wait).unwrap();
    // Answers by a suspension, and then so that the guest is suspended behind the call.
    let is_first = AtomicBool::new(true);
    let answer = move |mut caller: Caller<'_, Data>, asked: i32| {
        if is_first.swap(false, Ordering::Relaxed) {
            return Err(caller.suspend_before());
        }
        caller.suspend_after()?;
        Ok(asked + 100)
    };
    linker.func_wrap("host", "answer", answer).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

/// Asserts that a store is as its module says.
fn check(store: &mut Store<Data>, instance: Instance, what: &str) {
    let memory = memory(store, instance);
    assert_eq!(memory.size(&*store), PAGES, "{what}");
    let bytes = memory.data(&*store);
    assert_eq!(&bytes[70_000..70_008], b"contents", "{what}");
    let other = bytes[..70_000].iter().chain(&bytes[70_008..200_000]).chain(&bytes[200_001..]);
    assert!(other.copied().all(|byte| byte == 0), "{what}: a byte of the memory is not zero");
    assert_eq!(global(store, instance).get(&mut *store).i32(), Some(7), "{what}");
    let table = table(store, instance);
    assert_eq!(table.size(&*store), 3, "{what}");
    let null: Vec<bool> = (0..3)
        .map(|index| matches!(table.get(&mut *store, index), Some(Val::FuncRef(None))))
        .collect();
    assert_eq!(null, [false, true, true], "{what}");
}

/// Asserts that guests find the memory as long as its module says.
fn check_size(store: &mut Store<Data>, instance: Instance, what: &str) {
    let size = instance.get_typed_func::<(), i32>(&mut *store, "size").unwrap();
    assert_eq!(size.call(store, ()).unwrap(), PAGES as i32, "{what}");
}

/// Drops so many stores into which nobody was called that every strategy has settled.
fn warm(pre: &InstancePre<Data>) {
    for _ in 0..300 {
        pre.spawn(()).unwrap();
    }
}

/// On another thread, which ends.
fn elsewhere<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// Asserts that so many stores are spawned in slots that others have left.
fn are_taken(pre: &InstancePre<Data>, count: u64, spawns: impl FnOnce()) {
    let before = pre.module().engine().pool_counters();
    spawns();
    let after = pre.module().engine().pool_counters();
    assert!(after.taken - before.taken >= count, "{before:?}, {after:?}");
}

#[test]
fn whatever_has_written_to_a_store_without_a_call_is_gone_in_the_next() {
    for reset in ResetKind::ALL {
        let pre = pre(reset, GUEST);
        for (name, write) in ways() {
            warm(&pre);
            are_taken(&pre, 6, || {
                for on_other_thread in [true, false, true] {
                    let what = format!("{reset}, {name}, other thread: {on_other_thread}");
                    let (mut store, instance) = pre.spawn(()).unwrap();
                    match on_other_thread {
                        true => elsewhere(|| write(&mut store, instance)),
                        false => write(&mut store, instance),
                    }
                    drop(store);
                    let (mut store, instance) = pre.spawn(()).unwrap();
                    check(&mut store, instance, &what);
                    check_size(&mut store, instance, &what);
                }
            });
        }
    }
}

/// A store in which one thread has written, and another instance was made after that: the slot of
/// the first is not taken for one that nobody has announced to write to.
#[test]
fn what_was_written_before_an_instance_was_added_is_gone_in_the_next() {
    for reset in ResetKind::ALL {
        let pre = pre(reset, GUEST);
        warm(&pre);
        are_taken(&pre, 6, || {
            for _ in 0..3 {
                let (mut store, instance) = pre.spawn(()).unwrap();
                elsewhere(|| {
                    global(&mut store, instance).set(&mut store, Val::I32(9)).unwrap();
                    let module = Module::new(store.engine(), "(module (memory 1))").unwrap();
                    Instance::new(&mut store, &module, &[]).unwrap();
                });
                drop(store);
                let (mut store, instance) = pre.spawn(()).unwrap();
                check(&mut store, instance, &reset.to_string());
            }
        });
    }
}

/// What writes when it is spawned does so on the thread that spawns.
#[test]
fn what_a_start_function_has_written_on_another_thread_is_gone_in_the_next() {
    for reset in ResetKind::ALL {
        let pre = pre(reset, STARTED);
        warm(&pre);
        for _ in 0..20 {
            // The start function traps where it finds what an earlier one has written.
            let store = elsewhere(|| pre.spawn(()).unwrap().0);
            drop(store);
            let (mut store, instance) = pre.spawn(()).unwrap();
            check(&mut store, instance, &reset.to_string());
        }
    }
}

/// Frames, tables and memories of a suspended guest are put into a slot by who spawns it.
#[test]
fn a_suspended_guest_that_nobody_resumes_leaves_nothing() {
    for reset in ResetKind::ALL {
        let pre = pre(reset, GUEST);
        let (mut store, instance) = pre.spawn(()).unwrap();
        let wait = instance.get_func(&mut store, "wait").unwrap();
        let progress = wait.call_suspendable(&mut store, &[]).unwrap();
        assert!(matches!(progress, CallProgress::Suspended));
        let suspended = store.snapshot().unwrap().instance_pre().unwrap();
        drop(store);
        for _ in 0..100 {
            suspended.spawn(()).unwrap();
        }
        for _ in 0..20 {
            let (store, _) = elsewhere(|| suspended.spawn(()).unwrap());
            drop(store);
            let (mut store, instance) = suspended.spawn(()).unwrap();
            check(&mut store, instance, &reset.to_string());
            elsewhere(|| {
                let memory = memory(&mut store, instance);
                memory.write(&mut store, 70_000, b"other").unwrap();
            });
        }
    }
}

/// The results of a host function that a guest was suspended before are in the slot before the guest goes
/// on, which it does not here.
#[test]
fn what_a_host_function_has_answered_on_another_thread_is_gone_in_the_next() {
    for reset in ResetKind::ALL {
        let pre = pre(reset, GUEST);
        let (mut store, instance) = pre.spawn(()).unwrap();
        let ask = instance.get_func(&mut store, "ask").unwrap();
        let progress = ask.call_suspendable(&mut store, &[]).unwrap();
        assert!(matches!(progress, CallProgress::Suspended));
        let suspended = store.snapshot().unwrap().instance_pre().unwrap();
        drop(store);
        for _ in 0..100 {
            suspended.spawn(()).unwrap();
        }
        for _ in 0..5 {
            let (mut store, _) = suspended.spawn(()).unwrap();
            elsewhere(|| {
                let progress = store.resume().unwrap();
                assert!(matches!(progress, CallProgress::Suspended), "{reset}");
            });
            drop(store);
            let (mut store, instance) = suspended.spawn(()).unwrap();
            let guest = store.suspended().unwrap();
            assert_eq!(guest.arguments()[0].i32(), Some(5), "{reset}");
            check(&mut store, instance, &reset.to_string());
        }
    }
}
