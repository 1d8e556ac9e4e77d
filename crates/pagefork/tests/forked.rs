//! A process that was forked has none of the threads of its parent but one, and counters and
//! page maps of its own: what needs those works there all the same.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use pagefork::{
    Caller, Config, Engine, GrowthKind, Instance, InstancePre, Linker, Module, PoolConfig,
    ResetKind, Store, StrategyConfig, Trap, TrapCode,
};

/// Runs a test in a process of its own, where no other test's thread is in a call.
fn in_own_process(name: &str, body: impl FnOnce()) {
    const MARK: &str = "PAGEFORK_FORKING";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(MARK, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "no such test: {name}\n{text}");
}

/// How a process is forked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// By the C library, which tells whoever wants to know.
    Library,
    /// By a system call, which it does not.
    Call,
}

/// Makes a process; the result is 0 there.
fn fork(how: How) -> libc::pid_t {
    // SAFETY: no other thread of this process is in a call of Pagefork's, nor of the
    // allocator's, for longer than the alarm of the child.
    unsafe {
        match how {
            How::Library => libc::fork(),
            How::Call => libc::syscall(libc::SYS_fork) as libc::pid_t,
        }
    }
}

/// Ends a child: well, if `body` does not panic, and in time.
fn end(body: impl FnOnce()) -> ! {
    // SAFETY: concerns this child alone.
    unsafe { libc::alarm(20) };
    let ended = catch_unwind(AssertUnwindSafe(body));
    // SAFETY: concerns this child alone; nothing of the parent's is done twice.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

#[track_caller]
fn wait(child: libc::pid_t, what: &str) {
    assert!(child > 0, "{what}: fork failed");
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "{what}: the child ended otherwise (14 is the alarm)");
}

#[track_caller]
fn in_child(how: How, what: &str, body: impl FnOnce()) {
    match fork(how) {
        0 => end(body),
        child => wait(child, what),
    }
}

const GUEST: &str = r#"(module
    (import "host" "fork" (func $fork))
    (memory (export "memory") 4)
    (data (i32.const 70000) "seventy")
    (func (export "write") (param i32) (i32.store (local.get 0) (i32.const 77)))
    (func (export "fork") (call $fork) (loop (br 0)))
    (func (export "spin") (loop (br 0))))"#;

/// The host function forks; the data is what the guest's process then is.
fn pre(engine: &Engine) -> InstancePre<libc::pid_t> {
    let module = Module::new(engine, GUEST).unwrap();
    let mut linker = Linker::new(engine);
    let forks = |mut caller: Caller<'_, libc::pid_t>| *caller.data_mut() = fork(How::Library);
    linker.func_wrap("host", "fork", forks).unwrap();
    linker.instantiate_pre(&module).unwrap()
}

fn times_out(store: &mut Store<libc::pid_t>, instance: Instance, name: &str) {
    store.set_timeout(Some(Duration::from_millis(20))).unwrap();
    let function = instance.get_typed_func::<(), ()>(&mut *store, name).unwrap();
    let error = function.call(&mut *store, ()).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
}

#[test]
fn timeouts_fire_in_forked_processes_and_in_those_that_they_fork() {
    in_own_process("timeouts_fire_in_forked_processes_and_in_those_that_they_fork", || {
        let engine = Engine::default();
        let (mut store, instance) = pre(&engine).spawn(-1).unwrap();
        times_out(&mut store, instance, "spin");
        for how in [How::Library, How::Call] {
            in_child(how, "a child", || {
                times_out(&mut store, instance, "spin");
                in_child(how, "a grandchild", || times_out(&mut store, instance, "spin"));
                times_out(&mut store, instance, "spin");
            });
        }
        times_out(&mut store, instance, "spin");
    });
}

#[test]
fn the_time_limit_of_a_call_that_forks_holds_in_both_processes() {
    in_own_process("the_time_limit_of_a_call_that_forks_holds_in_both_processes", || {
        let engine = Engine::default();
        let (mut store, instance) = pre(&engine).spawn(-1).unwrap();
        for _ in 0..20 {
            let ended = catch_unwind(AssertUnwindSafe(|| times_out(&mut store, instance, "fork")));
            match *store.data() {
                0 => end(|| assert!(ended.is_ok())),
                child => wait(child, "a call that forked"),
            }
            ended.unwrap();
        }
    });
}

/// The threads that compile are the parent's.
#[test]
fn modules_are_compiled_in_forked_processes() {
    in_own_process("modules_are_compiled_in_forked_processes", || {
        let engine = Engine::default();
        drop(pre(&engine));
        for how in [How::Library, How::Call] {
            in_child(how, "compiling", || {
                for number in 0..3 {
                    let text = format!(
                        r#"(module {} (func (export "f") (result i32) (i32.const {number})))"#,
                        "(func (result i32) (i32.const 1))".repeat(300),
                    );
                    let module = Module::new(&engine, text).unwrap();
                    let mut store = Store::new(&engine, ());
                    let instance = Instance::new(&mut store, &module, &[]).unwrap();
                    let f = instance.get_typed_func::<(), i32>(&mut store, "f").unwrap();
                    assert_eq!(f.call(&mut store, ()).unwrap(), number);
                }
            });
        }
    });
}

/// The ring of page faults and the page map that are open are the parent's.
#[test]
fn what_forked_processes_write_is_restored() {
    in_own_process("what_forked_processes_write_is_restored", || {
        // What is served when it is touched is the process's own.
        for reset in ResetKind::ALL.into_iter().filter(|reset| *reset != ResetKind::Fault) {
            let config = StrategyConfig { reset, ..StrategyConfig::default() };
            let engine = Engine::new(Config::new().strategies(config)).unwrap();
            let pre = pre(&engine);
            let run = |at: u32| {
                let (mut store, instance) = pre.spawn(-1).unwrap();
                let memory = instance.get_memory(&mut store, "memory").unwrap();
                let data = memory.data(&store);
                let written = data.iter().enumerate().filter(|(_, byte)| **byte != 0);
                assert_eq!(
                    written.map(|(at, _)| at).collect::<Vec<_>>(),
                    Vec::from_iter(70000..70007)
                );
                let write = instance.get_typed_func::<u32, ()>(&mut store, "write").unwrap();
                write.call(&mut store, at).unwrap();
            };
            let many = |first: u32| (0..40).for_each(|round| run((first + round / 2) * 4096));
            many(1);
            for how in [How::Library, How::Call] {
                in_child(how, &format!("{reset}, {how:?}"), || {
                    many(20);
                    in_child(how, &format!("{reset}, {how:?}, again"), || many(5));
                    many(30);
                });
            }
            many(9);
        }
    });
}

/// As the thread does that looks after idle things.
#[test]
fn what_lies_idle_in_a_forked_process_is_given_back() {
    in_own_process("what_lies_idle_in_a_forked_process_is_given_back", || {
        let idle_max = Some(Duration::from_millis(100));
        let pool = PoolConfig { idle_max, heed_pressure: false, ..PoolConfig::default() };
        let engine = Engine::new(Config::new().pool(pool)).unwrap();
        let pre = pre(&engine);
        let goes = || {
            drop(pre.spawn(-1).unwrap());
            let start = Instant::now();
            while engine.pool_counters().parked > 0 {
                assert!(start.elapsed() < Duration::from_secs(30), "it stays");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        goes();
        // Whatever the threads of the parent are at just then.
        for _ in 0..30 {
            drop(pre.spawn(-1).unwrap());
            std::thread::sleep(Duration::from_millis(7));
            in_child(How::Library, "trimming", goes);
        }
    });
}

/// What memories have grown by would be the parent's in a child, which would write to it, and empty
/// it when it ends.
#[test]
fn memories_that_grow_in_files_stay_with_their_process() {
    in_own_process("memories_that_grow_in_files_stay_with_their_process", || {
        let growth = GrowthKind::Ftruncate;
        stay_with_their_process(StrategyConfig { growth, ..StrategyConfig::default() });
    });
}

/// Pages that get their contents when they are touched would be zero in a child.
#[test]
fn pages_that_are_served_stay_with_their_process() {
    in_own_process("pages_that_are_served_stay_with_their_process", || {
        for fault_threads in [0, 1, 2] {
            let config = StrategyConfig { fault_threads, ..StrategyConfig::default() };
            stay_with_their_process(StrategyConfig { reset: ResetKind::Fault, ..config });
        }
    });
}

/// So would what memories grow by.
#[test]
fn memories_that_grow_by_faults_stay_with_their_process() {
    in_own_process("memories_that_grow_by_faults_stay_with_their_process", || {
        let growth = GrowthKind::Fault;
        stay_with_their_process(StrategyConfig { growth, ..StrategyConfig::default() });
    });
}

fn stay_with_their_process(strategies: StrategyConfig) {
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let pre = pre(&engine);
    let (mut store, instance) = pre.spawn(-1).unwrap();
    let growth = instance.growth(&store).used;
    if strategies.reset == ResetKind::Fault && instance.strategy(&store).used != ResetKind::Fault {
        eprintln!("NOT TESTED: this kernel raises no signals at touches");
        return;
    }
    if strategies.growth == GrowthKind::Fault && growth != GrowthKind::Fault {
        eprintln!("NOT TESTED: memories that grow by faults");
        return;
    }
    assert_eq!(growth, strategies.growth);
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.grow(&mut store, 3).unwrap();
    let place = 5 * 65536 + 7;
    memory.write(&mut store, place, b"parent").unwrap();
    drop(pre.spawn(-1).unwrap());
    let is_refused = |error: &pagefork::Error| {
        let text = format!("{error:?}");
        text.contains("make a new instance")
    };
    for how in [How::Library, How::Call] {
        in_child(how, &format!("{how:?}"), || {
            let write = instance.get_typed_func::<u32, ()>(&mut store, "write").unwrap();
            assert!(is_refused(&write.call(&mut store, 9).unwrap_err()));
            assert!(memory.write(&mut store, place, b"child").is_err());
            assert!(memory.read(&store, place, &mut [0; 5]).is_err());
            assert!(memory.grow(&mut store, 1).is_err());
            assert!(store.reset(-1).is_err());
            // New ones are its own.
            let own = Engine::new(Config::new().strategies(strategies)).unwrap();
            let module = Module::new(&own, "(module (memory (export \"m\") 1))").unwrap();
            let mut store = Store::new(&own, ());
            let instance = Instance::new(&mut store, &module, &[]).unwrap();
            let memory = instance.get_memory(&mut store, "m").unwrap();
            memory.grow(&mut store, 2).unwrap();
            memory.write(&mut store, 2 * 65536, b"own").unwrap();
        });
        let mut found = [0; 6];
        memory.read(&store, place, &mut found).unwrap();
        assert_eq!(&found, b"parent");
    }
    // A host function that forks: the guest goes on in the parent alone.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        store.set_timeout(Some(Duration::from_millis(50))).unwrap();
        let function = instance.get_typed_func::<(), ()>(&mut store, "fork").unwrap();
        function.call(&mut store, ()).unwrap_err()
    }));
    match *store.data() {
        0 => end(|| assert!(is_refused(&ended.unwrap()))),
        child => wait(child, "a call that forked"),
    }
    let error = ended.unwrap();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::Interrupt);
}
