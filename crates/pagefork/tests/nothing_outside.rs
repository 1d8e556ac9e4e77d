//! A signal is a trap only if guest code raised it at an address of its own stack
//! guard or beyond its own memory. All others go to who handled them before; most
//! tests here run in a process of their own, and look at how it ends.

mod child;

use std::os::unix::process::ExitStatusExt;

use pagefork::{Caller, Engine, Func, Instance, Module, Store, Trap, TrapCode};

use child::in_child;

/// Calls a host function from a guest, with the guest's memory.
fn call_host(f: impl Fn(Caller<'_, ()>) + Send + Sync + 'static) {
    let mut store = Store::new(&Engine::default(), ());
    let wat = r#"(module (import "" "f" (func $f)) (memory (export "m") 1)
        (func (export "run") (call $f)))"#;
    let module = Module::new(store.engine(), wat).unwrap();
    let f = Func::wrap(&mut store, f);
    let instance = Instance::new(&mut store, &module, &[f.into()]).unwrap();
    let run = instance.get_typed_func::<(), ()>(&mut store, "run").unwrap();
    run.call(&mut store, ()).unwrap();
}

fn trap_once() {
    let mut store = Store::new(&Engine::default(), ());
    let wat = r#"(module (memory 1) (func (export "f") (drop (i32.load (i32.const -1)))))"#;
    let module = Module::new(store.engine(), wat).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let f = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
    let error = f.call(&mut store, ()).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::MemoryOutOfBounds);
}

fn read(address: usize) {
    let pointer = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: none; the process is to end here.
    std::hint::black_box(unsafe { pointer.read_volatile() });
}

#[test]
fn a_host_functions_own_fault_ends_the_process() {
    let status = in_child("a_host_functions_own_fault_ends_the_process", || {
        call_host(|_| read(16));
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_host_functions_fault_beyond_the_guests_memory_ends_the_process() {
    let status =
        in_child("a_host_functions_fault_beyond_the_guests_memory_ends_the_process", || {
            call_host(|mut caller| {
                let memory = caller.get_export("m").unwrap().into_memory().unwrap();
                let end = memory.data(&caller).as_ptr_range().end.expose_provenance();
                read(end);
            });
        });
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_hosts_stack_overflow_is_reported_as_such() {
    #[expect(unconditional_recursion, reason = "the process is to end here")]
    fn overflow(x: &mut [u8; 1024]) {
        let mut y = *x;
        overflow(std::hint::black_box(&mut y));
        std::hint::black_box(x);
    }
    // The standard library's handler tells a stack overflow by its address.
    let status = in_child("a_hosts_stack_overflow_is_reported_as_such", || {
        call_host(|_| overflow(&mut [0; 1024]));
    });
    assert_eq!(status.signal(), Some(libc::SIGABRT));
}

#[test]
fn a_fault_of_a_thread_without_guests_ends_the_process() {
    let status = in_child("a_fault_of_a_thread_without_guests_ends_the_process", || {
        trap_once();
        std::thread::spawn(|| read(16)).join().unwrap();
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn sent_signals_keep_their_default_action() {
    let status = in_child("sent_signals_keep_their_default_action", || {
        trap_once();
        call_host(|_| {
            // SAFETY: sends this process a signal.
            unsafe { libc::raise(libc::SIGFPE) };
        });
    });
    assert_eq!(status.signal(), Some(libc::SIGFPE));
}

/// Ignores SIGSEGV before the engine is there, and survives it being sent.
fn ignore_sent_signals() {
    // SAFETY: no handler, no harm.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_IGN) };
    trap_once();
    call_host(|_| {
        // SAFETY: sends this process a signal.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    trap_once();
}

#[test]
fn ignored_signals_stay_ignored() {
    let status = in_child("ignored_signals_stay_ignored", ignore_sent_signals);
    assert_eq!(status.code(), Some(0));
}

#[test]
fn an_instruction_that_raises_an_ignored_signal_ends_the_process() {
    let status = in_child("an_instruction_that_raises_an_ignored_signal_ends_the_process", || {
        ignore_sent_signals();
        read(16);
    });
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn earlier_handlers_get_what_is_not_the_guests() {
    unsafe extern "C" fn handler(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _: *mut libc::c_void,
    ) {
        // SAFETY: the kernel's structure; `_exit` may be called in a handler.
        unsafe {
            let right = signal == libc::SIGSEGV && (*info).si_addr() as usize == 0x123;
            libc::_exit(if right { 42 } else { 43 });
        }
    }
    let status = in_child("earlier_handlers_get_what_is_not_the_guests", || {
        // SAFETY: a handler of the right type.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
        }
        trap_once();
        call_host(|_| read(0x123));
    });
    assert_eq!(status.code(), Some(42));
}

#[test]
fn a_handler_that_is_to_run_once_runs_once() {
    extern "C" fn handler(signal: libc::c_int) {
        assert_eq!(signal, libc::SIGBUS);
    }
    let status = in_child("a_handler_that_is_to_run_once_runs_once", || {
        // SAFETY: a handler of the right type.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
        trap_once();
        for _ in 0..2 {
            // SAFETY: sends this process a signal.
            unsafe { libc::raise(libc::SIGBUS) };
        }
    });
    assert_eq!(status.signal(), Some(libc::SIGBUS));
}

#[test]
fn traps_of_one_store_inside_another_are_told_apart() {
    let mut inner = Store::new(&Engine::default(), ());
    let wat = r#"(module (memory 1)
        (func (export "load") (param i32) (drop (i32.load (local.get 0))))
        (func $deep (export "deep") (call $deep) (call $deep)))"#;
    let module = Module::new(inner.engine(), wat).unwrap();
    let instance = Instance::new(&mut inner, &module, &[]).unwrap();
    let load = instance.get_typed_func::<i32, ()>(&mut inner, "load").unwrap();
    let deep = instance.get_typed_func::<(), ()>(&mut inner, "deep").unwrap();
    let inner = std::sync::Mutex::new(inner);
    call_host(move |_| {
        let mut inner = inner.lock().unwrap();
        let error = load.call(&mut *inner, -1).unwrap_err();
        let trap = error.downcast_ref::<Trap>().unwrap();
        assert_eq!(
            (trap.code(), trap.backtrace().frames().len()),
            (TrapCode::MemoryOutOfBounds, 1)
        );
        let error = deep.call(&mut *inner, ()).unwrap_err();
        assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::StackOverflow);
    });
}

#[test]
fn signals_that_storm_during_guest_code_do_no_harm() {
    extern "C" fn handler(_: libc::c_int) {
        // Uses some stack, and floating-point registers.
        let numbers = std::hint::black_box([1.5f64; 256]);
        assert!(std::hint::black_box(numbers.iter().sum::<f64>()) > 1.0);
    }
    // SAFETY: a handler of the right type, on the signal stack.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let mut store = Store::new(&Engine::default(), ());
    let wat = r#"(module (func (export "sum") (param i32) (result f64) (local $s f64)
        (loop $l
            (local.set $s (f64.add (local.get $s) (f64.convert_i32_u (local.get 0))))
            (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (local.get $s)))"#;
    let module = Module::new(store.engine(), wat).unwrap();
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let sum = instance.get_typed_func::<i32, f64>(&mut store, "sum").unwrap();
    // SAFETY: asks.
    let thread = unsafe { libc::pthread_self() };
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let storm = std::thread::spawn({
        let done = std::sync::Arc::clone(&done);
        move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        }
    });
    for _ in 0..50 {
        assert_eq!(sum.call(&mut store, 100_000).unwrap(), 5_000_050_000.0);
    }
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    storm.join().unwrap();
}
