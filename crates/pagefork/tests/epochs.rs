//! Guests come to their stores' deadlines in epochs of their engine, and to no others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pagefork::{
    Caller, Config, Engine, Error, Instance, Linker, Module, Result, Store, Trap, TrapCode,
    UpdateDeadline, WasmBacktrace, bail,
};

const GUEST: &str = r#"(module
    (import "host" "tick" (func $tick))
    (func $spin (export "spin") (loop (br 0)))
    (func (export "once") (result i32) (i32.const 7))
    (func (export "ticking") (loop (call $tick) (br 0)))
    (func (export "sum") (param $n i64) (result i64 f64)
        (local $i i64) (local $sum i64) (local $product f64)
        (local.set $product (f64.const 1))
        (loop $next
            (local.set $i (i64.add (local.get $i) (i64.const 1)))
            (local.set $sum (i64.add (local.get $sum) (i64.mul (local.get $i) (local.get $i))))
            (local.set $product (f64.mul (local.get $product) (f64.const 1.0000001)))
            (br_if $next (i64.lt_u (local.get $i) (local.get $n))))
        (local.get $sum) (local.get $product)))"#;

fn linker<T: 'static>(engine: &Engine, tick: fn(Caller<'_, T>)) -> (Linker<T>, Module) {
    let mut linker = Linker::new(engine);
    linker.func_wrap("host", "tick", tick).unwrap();
    (linker, Module::new(engine, GUEST).unwrap())
}

fn instance(engine: &Engine) -> (Store<u32>, Instance) {
    let (linker, module) = linker(engine, |mut caller: Caller<'_, u32>| {
        *caller.data_mut() += 1;
        caller.engine().increment_epoch();
    });
    let mut store = Store::new(engine, 0);
    let instance = linker.instantiate(&mut store, &module).unwrap();
    (store, instance)
}

fn call<T: 'static>(store: &mut Store<T>, instance: Instance, name: &str) -> Result<()> {
    instance.get_typed_func::<(), ()>(&mut *store, name)?.call(store, ())
}

fn once<T: 'static>(store: &mut Store<T>, instance: Instance) -> Result<i32> {
    instance.get_typed_func::<(), i32>(&mut *store, "once")?.call(store, ())
}

fn is_interrupt(error: &Error) -> bool {
    error.downcast_ref::<Trap>().is_some_and(|trap| trap.code() == TrapCode::Interrupt)
}

/// Advances an engine's epoch again and again while `body` runs.
fn while_ticking<R>(engine: &Engine, body: impl FnOnce() -> R) -> R {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_micros(200));
                engine.increment_epoch();
            }
        });
        let _stop = Stop(&ended);
        body()
    })
}

#[test]
fn a_guest_traps_when_the_deadline_comes_and_whenever_it_is_called_afterwards() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = instance(&engine);
    store.set_epoch_deadline(5);
    assert_eq!(once(&mut store, instance)?, 7);
    let error = while_ticking(&engine, || call(&mut store, instance, "spin")).unwrap_err();
    assert!(is_interrupt(&error), "{error:?}");
    assert_eq!(error.backtrace().unwrap().frames()[0].function_name(), Some("spin"));
    for _ in 0..2 {
        assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    }
    // Neither an interrupt that is forgotten nor a reset changes that.
    store.interrupt_handle()?.interrupt();
    assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    store.reset(0)?;
    assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    store.set_epoch_deadline(1_000_000);
    assert_eq!(once(&mut store, instance)?, 7);
    // A deadline of no epochs has come already.
    store.set_epoch_deadline(0);
    assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    Ok(())
}

#[test]
fn the_deadline_comes_after_as_many_epochs_and_not_before() -> Result<()> {
    for ticks in [1, 2, 7] {
        let engine = Engine::default();
        let (mut store, instance) = instance(&engine);
        store.set_epoch_deadline(ticks);
        let error = call(&mut store, instance, "ticking").unwrap_err();
        assert!(is_interrupt(&error));
        assert!(u64::from(*store.data()) >= ticks, "{} of {ticks}", store.data());
    }
    Ok(())
}

#[test]
fn stores_without_a_deadline_and_those_of_other_engines_go_on() -> Result<()> {
    let (engine, other) = (Engine::default(), Engine::default());
    let (mut ending, ending_instance) = instance(&engine);
    let (mut free, free_instance) = instance(&engine);
    let (mut foreign, foreign_instance) = instance(&other);
    ending.set_epoch_deadline(1);
    foreign.set_epoch_deadline(1);
    let error = while_ticking(&engine, || call(&mut ending, ending_instance, "spin"));
    assert!(is_interrupt(&error.unwrap_err()));
    assert_eq!(once(&mut free, free_instance)?, 7);
    assert_eq!(once(&mut foreign, foreign_instance)?, 7);
    other.increment_epoch();
    assert!(is_interrupt(&call(&mut foreign, foreign_instance, "spin").unwrap_err()));
    Ok(())
}

#[test]
fn a_callback_lets_the_guest_go_on_as_if_nothing_had_happened() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = instance(&engine);
    let sum = instance.get_typed_func::<i64, (i64, f64)>(&mut store, "sum")?;
    let expected = sum.call(&mut store, 300_000)?;
    let calls = |store: &mut Store<u32>, delta| {
        *store.data_mut() = 0;
        store.epoch_deadline_callback(move |mut store| {
            *store.data_mut() += 1;
            Ok(UpdateDeadline::Continue(delta))
        });
    };
    calls(&mut store, 0);
    store.set_epoch_deadline(0);
    assert_eq!(sum.call(&mut store, 300_000)?, expected);
    // At each turn of the loop.
    assert_eq!(*store.data(), 300_001);
    calls(&mut store, 1);
    store.set_epoch_deadline(1);
    while_ticking(&engine, || {
        while *store.data() < 20 {
            assert_eq!(sum.call(&mut store, 300_000).unwrap(), expected);
        }
    });
    // Without the callback it is a trap again.
    store.epoch_deadline_trap();
    store.set_epoch_deadline(0);
    assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    Ok(())
}

#[test]
fn a_callback_ends_the_guest_by_its_word_its_error_or_its_panic() -> Result<()> {
    let engine = Engine::default();
    let (mut store, instance) = instance(&engine);
    store.set_epoch_deadline(0);
    store.epoch_deadline_callback(|mut store| {
        *store.data_mut() += 1;
        match *store.data() {
            1 => Ok(UpdateDeadline::Interrupt),
            2 => bail!("the time is up"),
            3 => panic!("the callback panics"),
            _ => Ok(UpdateDeadline::Continue(1_000_000)),
        }
    });
    let error = call(&mut store, instance, "spin").unwrap_err();
    assert!(is_interrupt(&error));
    assert_eq!(error.backtrace().unwrap().frames()[0].function_name(), Some("spin"));
    let error = call(&mut store, instance, "spin").unwrap_err();
    assert_eq!(error.to_string(), "the time is up");
    assert_eq!(error.backtrace().unwrap().frames()[0].function_name(), Some("spin"));
    let panicked = catch_unwind(AssertUnwindSafe(|| call(&mut store, instance, "spin")));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"the callback panics"));
    assert_eq!(once(&mut store, instance)?, 7);
    Ok(())
}

/// Calls a guest from the callback, whose frames lie below the registers of the first one.
#[test]
fn a_callback_sees_the_guests_frames_and_can_call_guests() -> Result<()> {
    struct State {
        instance: Option<Instance>,
        traces: Vec<Vec<Option<String>>>,
    }
    fn note(store: &mut impl pagefork::AsContextMut<Data = State>) {
        let trace = WasmBacktrace::capture(&*store);
        let names = trace.frames().iter().map(|frame| frame.function_name().map(str::to_owned));
        store.as_context_mut().data_mut().traces.push(names.collect());
    }
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |mut caller: Caller<'_, State>| note(&mut caller));
    let mut store = Store::new(&engine, State { instance: None, traces: Vec::new() });
    let instance = linker.instantiate(&mut store, &module)?;
    store.data_mut().instance = Some(instance);
    let sum = instance.get_typed_func::<i64, (i64, f64)>(&mut store, "sum")?;
    let expected = sum.call(&mut store, 1000)?;
    store.epoch_deadline_callback(move |mut store| {
        note(&mut store);
        store.set_epoch_deadline(1_000_000);
        let instance = store.data().instance.unwrap();
        let ticking = instance.get_typed_func::<(), ()>(&mut store, "ticking")?;
        let handle = store.interrupt_handle()?;
        drop(handle);
        let sum = instance.get_typed_func::<i64, (i64, f64)>(&mut store, "sum")?;
        assert_eq!(sum.call(&mut store, 1000)?, expected);
        // It comes to a deadline within the callback, and traps.
        store.set_epoch_deadline(0);
        assert!(is_interrupt(&ticking.call(&mut store, ()).unwrap_err()));
        note(&mut store);
        let turns = store.data().traces.len() as u64;
        Ok(UpdateDeadline::Continue(if turns < 6 { 0 } else { 1_000_000 }))
    });
    store.set_epoch_deadline(0);
    assert_eq!(sum.call(&mut store, 1000)?, expected);
    assert_eq!(store.data().traces.len(), 6);
    assert!(store.data().traces.iter().all(|trace| *trace == [None]), "{:?}", store.data().traces);
    Ok(())
}

/// A host function that the guest within a callback calls sees the frames of both.
#[test]
fn frames_of_a_guest_that_waits_for_a_callback_are_around_those_that_it_calls() -> Result<()> {
    static FRAMES: OnceLock<Vec<Option<String>>> = OnceLock::new();
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |caller: Caller<'_, Option<Instance>>| {
        let trace = WasmBacktrace::capture(&caller);
        let names = trace.frames().iter().map(|frame| frame.function_name().map(str::to_owned));
        FRAMES.get_or_init(|| names.collect());
    });
    let mut store = Store::new(&engine, None);
    let instance = linker.instantiate(&mut store, &module)?;
    *store.data_mut() = Some(instance);
    store.epoch_deadline_callback(|mut store| {
        store.set_epoch_deadline(1_000_000);
        let instance = store.data().unwrap();
        let ticking = instance.get_typed_func::<(), ()>(&mut store, "ticking")?;
        let handle = store.interrupt_handle()?;
        let ended = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if FRAMES.get().is_some() {
                        handle.interrupt();
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let error = ticking.call(&mut store, ()).unwrap_err();
            ended.store(true, Ordering::Relaxed);
            error
        });
        assert_eq!(error.backtrace().unwrap().frames().len(), 2);
        Ok(UpdateDeadline::Continue(1_000_000))
    });
    store.set_epoch_deadline(0);
    // The interrupt was meant for the whole call.
    assert!(is_interrupt(&call(&mut store, instance, "spin").unwrap_err()));
    let names = FRAMES.get().expect("the host was called");
    assert_eq!(*names, [None, Some("spin".to_owned())]);
    Ok(())
}

#[test]
fn a_host_function_can_put_the_deadline_off() -> Result<()> {
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |mut caller: Caller<'_, u32>| {
        caller.engine().increment_epoch();
        *caller.data_mut() += 1;
        let ticks = if *caller.data() < 100 { 2 } else { 0 };
        caller.as_context_mut().set_epoch_deadline(ticks);
    });
    let mut store = Store::new(&engine, 0);
    let instance = linker.instantiate(&mut store, &module)?;
    store.set_epoch_deadline(2);
    assert!(is_interrupt(&call(&mut store, instance, "ticking").unwrap_err()));
    assert_eq!(*store.data(), 100);
    Ok(())
}

/// What waits in a host function hears of the deadline.
#[test]
fn host_functions_that_wait_are_told_if_the_deadline_is_a_trap() -> Result<()> {
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |caller: Caller<'_, ()>| {
        while !caller.interruption().is_requested() {
            caller.engine().increment_epoch();
            thread::sleep(Duration::from_millis(1));
        }
    });
    let mut store = Store::new(&engine, ());
    let instance = linker.instantiate(&mut store, &module)?;
    store.set_epoch_deadline(3);
    assert!(is_interrupt(&call(&mut store, instance, "ticking").unwrap_err()));
    Ok(())
}

#[test]
fn a_deadline_goes_with_its_store_and_reaches_no_other_in_its_slot() -> Result<()> {
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |_: Caller<'_, u32>| ());
    let pre = linker.instantiate_pre(&module)?;
    for turn in 0..20 {
        let (mut store, instance) = pre.spawn(0)?;
        assert_eq!(once(&mut store, instance)?, 7, "turn {turn}");
        store.set_epoch_deadline(turn % 3);
        if turn % 2 == 0 {
            store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Interrupt));
        }
        let error = while_ticking(&engine, || call(&mut store, instance, "spin"));
        assert!(is_interrupt(&error.unwrap_err()));
        store.set_epoch_deadline(1);
        drop(store);
        // Nobody is reached by these.
        (0..3).for_each(|_| engine.increment_epoch());
    }
    Ok(())
}

#[test]
fn a_callback_goes_with_its_store() -> Result<()> {
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |_: Caller<'_, u32>| ());
    let pre = linker.instantiate_pre(&module)?;
    for _ in 0..3 {
        let (mut store, _) = pre.spawn(0)?;
        let held = std::sync::Arc::new(());
        let held_too = held.clone();
        store.epoch_deadline_callback(move |_| {
            assert_eq!(*held_too, ());
            Ok(UpdateDeadline::Interrupt)
        });
        drop(store);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
    // What is spawned then traps at its deadline.
    let (mut store, instance) = pre.spawn(0)?;
    store.set_epoch_deadline(0);
    assert!(is_interrupt(&once(&mut store, instance).unwrap_err()));
    Ok(())
}

#[test]
fn threads_have_deadlines_of_their_own() {
    let engine = Engine::default();
    let (linker, module) = linker(&engine, |_: Caller<'_, u32>| ());
    let pre = linker.instantiate_pre(&module).unwrap();
    while_ticking(&engine, || {
        thread::scope(|scope| {
            for number in 0..4 {
                let pre = &pre;
                scope.spawn(move || {
                    for turn in 0..50 {
                        let (mut store, instance) = pre.spawn(0).unwrap();
                        store.set_epoch_deadline(1 + (number + turn) % 4);
                        let error = call(&mut store, instance, "spin").unwrap_err();
                        assert!(is_interrupt(&error));
                    }
                });
            }
        });
    });
}

#[test]
#[should_panic(expected = "cannot be interrupted")]
fn code_that_cannot_be_interrupted_has_no_deadline() {
    let engine = Engine::new(Config::new().interruption(false)).unwrap();
    Store::new(&engine, ()).set_epoch_deadline(1);
}

/// Runs a test in a process of its own: signals and forks concern all threads.
fn in_own_process(name: &str, body: impl FnOnce()) {
    const MARK: &str = "PAGEFORK_EPOCHS";
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

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// Has a signal handler advance the epoch of [`ENGINE`] every millisecond: wherever the thread
/// is, in a lock of this crate or the allocator too.
fn tick_by_signals() {
    extern "C" fn on_alarm(_: libc::c_int) {
        if let Some(engine) = ENGINE.get() {
            engine.increment_epoch();
        }
    }
    // SAFETY: the handler does what handlers may, and runs on the signal stack.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
        let millisecond = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let every = libc::itimerval { it_interval: millisecond, it_value: millisecond };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &every, std::ptr::null_mut()), 0);
    }
}

#[test]
fn a_signal_handler_can_advance_the_epoch() {
    in_own_process("a_signal_handler_can_advance_the_epoch", || {
        let engine = ENGINE.get_or_init(Engine::default);
        let (mut store, instance) = instance(engine);
        tick_by_signals();
        for turn in 0..50 {
            // Takes the locks that deadlines take, again and again, under fire.
            (0..100).for_each(|_| store.set_epoch_deadline(1_000_000));
            store.set_epoch_deadline(1 + turn % 3);
            assert!(is_interrupt(&call(&mut store, instance, "spin").unwrap_err()));
        }
    });
}

#[test]
fn deadlines_hold_in_a_forked_process_too() {
    in_own_process("deadlines_hold_in_a_forked_process_too", || {
        let engine = ENGINE.get_or_init(Engine::default);
        let (mut store, instance) = instance(engine);
        store.set_epoch_deadline(1);
        // SAFETY: no other thread of this process is in a call for long.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let well = catch_unwind(AssertUnwindSafe(|| {
                tick_by_signals();
                // The one that was set before, and another one.
                assert!(is_interrupt(&call(&mut store, instance, "spin").unwrap_err()));
                store.set_epoch_deadline(2);
                assert!(is_interrupt(&call(&mut store, instance, "spin").unwrap_err()));
            }));
            // SAFETY: concerns this child alone; nothing of the parent's is done twice.
            unsafe { libc::_exit(i32::from(well.is_err())) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child failed");
        // Epochs of the child are no epochs here.
        assert_eq!(once(&mut store, instance).unwrap(), 7);
    });
}
