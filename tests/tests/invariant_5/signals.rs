//! Handlers of the embedder, and signals that come while guests run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagefork::suspend;
use pagefork::{Caller, Engine, Extern, Func, TrapCode, ValType};

use crate::common::{
    engine_with_stack, in_own_process, killed_by_segv, link, reached, spawn, trap_code,
};
use crate::{read, with_guest, write};

/// Faults that the embedder's handler has seen.
static SEEN: AtomicUsize = AtomicUsize::new(0);

/// Makes the page accessible that a fault was in, as a handler of an embedder
/// that loads its own data lazily.
extern "C" fn make_accessible(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the kernel gives a valid structure; a page of this process is made
    // accessible, or the process ends.
    unsafe {
        let page = (*info).si_addr() as usize & !4095;
        let page = std::ptr::with_exposed_provenance_mut(page);
        if libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            libc::_exit(99);
        }
    }
}

/// # Panics
/// If the kernel refuses.
fn install(signal: libc::c_int, handler: usize, flags: libc::c_int) {
    // SAFETY: the structure is filled in; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// A page that cannot be accessed.
fn closed_page() -> usize {
    // SAFETY: a new mapping.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    page.expose_provenance()
}

#[test]
fn the_embedders_handler_gets_its_own_faults_and_no_trap() {
    in_own_process("signals::the_embedders_handler_gets_its_own_faults_and_no_trap", || {
        install(libc::SIGSEGV, make_accessible as *const () as usize, libc::SA_SIGINFO);
        let seen = || SEEN.load(Ordering::Relaxed);

        // Before any engine, and outside any guest.
        write(closed_page());
        let (mut store, instance) = spawn(
            &Engine::default(),
            r#"(module (memory 1) (func (export "load") (param i32) (result i32)
                (i32.load (local.get 0))))"#,
        );
        write(closed_page());
        assert_eq!(seen(), 2);

        // In a host function that a guest calls; the guest goes on.
        with_guest(|_| {
            let page = closed_page();
            write(page);
            assert_eq!(read(page), 1);
        })
        .unwrap();
        assert_eq!(seen(), 3);

        // Traps of guests are none of its business.
        let load = instance.get_typed_func::<u32, i32>(&mut store, "load").unwrap();
        for _ in 0..100 {
            let error = load.call(&mut store, u32::MAX).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
        }
        assert_eq!(seen(), 3);
    });
}

#[test]
fn an_ignored_signal_that_is_sent_stays_ignored() {
    in_own_process("signals::an_ignored_signal_that_is_sent_stays_ignored", || {
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
            install(signal, libc::SIG_IGN, 0);
        }
        with_guest(|_| {
            for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                // SAFETY: sends a signal to this thread.
                assert_eq!(unsafe { libc::raise(signal) }, 0);
            }
        })
        .unwrap();
    });
}

#[test]
fn a_signal_that_is_sent_is_no_trap() {
    killed_by_segv("signals::a_signal_that_is_sent_is_no_trap", || {
        // Not the handler of Rust's library, which would only take itself away.
        install(libc::SIGSEGV, libc::SIG_DFL, 0);
        let result = with_guest(|_| {
            reached();
            // SAFETY: sends a signal to this thread.
            unsafe { libc::raise(libc::SIGSEGV) };
        });
        println!("survived: {result:?}");
    });
}

extern "C" fn count(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure.
    let sent = unsafe { (*info).si_code } <= 0;
    SEEN.fetch_add(usize::from(sent), Ordering::Relaxed);
}

/// Sends a signal to a thread of this process, as an address says.
///
/// # Panics
/// If the kernel refuses.
fn queue(thread: libc::pid_t, signal: libc::c_int, address: usize) {
    // SAFETY: zeros are a value of the type, and its address lies where the kernel has it in
    // signals that instructions raise.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = signal;
        info.si_code = libc::SI_QUEUE;
        (&raw mut info).cast::<usize>().add(2).write(address);
        assert_eq!(info.si_addr().addr(), address);
        let (call, process) = (libc::SYS_rt_tgsigqueueinfo, libc::getpid());
        assert_eq!(libc::syscall(call, process, thread, signal, &raw const info), 0);
    }
}

/// They say nothing about the instruction at which they come, even where it could trap, and
/// with any address.
#[test]
fn signals_that_are_sent_while_a_guest_runs_are_no_traps() {
    in_own_process("signals::signals_that_are_sent_while_a_guest_runs_are_no_traps", || {
        const SIGNALS: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
        for signal in SIGNALS {
            install(signal, count as *const () as usize, libc::SA_SIGINFO);
        }
        let (mut store, instance) = spawn(
            &Engine::default(),
            r#"(module (memory 1 1)
                (func (export "stores") (param $count i32) (result i32)
                    (loop $next
                        (i32.store (i32.const 8) (local.get $count))
                        (i32.store (local.get $count) (local.get $count))
                        (i32.store (i32.const 16) (local.get $count))
                        (br_if $next (local.tee $count
                            (i32.sub (local.get $count) (i32.const 1)))))
                    (i32.load (i32.const 8))))"#,
        );
        let stores = instance.get_typed_func::<i32, i32>(&mut store, "stores").unwrap();
        let beyond = suspend::slot(&store, 1).base + (1 << 20);
        // SAFETY: asks.
        let thread = unsafe { libc::gettid() };
        let seen = || SEEN.load(Ordering::Relaxed);
        let running = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for signal in SIGNALS.into_iter().cycle() {
                    if !running.load(Ordering::Relaxed) {
                        break;
                    }
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
                    queue(thread, signal, beyond);
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
            let start = Instant::now();
            let mut results = Vec::new();
            while seen() < 400 && start.elapsed() < Duration::from_secs(60) {
                results.push(stores.call(&mut store, 50_000));
            }
            running.store(false, Ordering::Relaxed);
            assert!(results.into_iter().all(|result| result.is_ok_and(|last| last == 1)));
        });
        assert!(seen() >= 400, "handlers got {} signals", seen());
    });
}

#[test]
fn guests_still_trap_after_a_signal_that_rusts_own_handler_swallowed() {
    in_own_process(
        "signals::guests_still_trap_after_a_signal_that_rusts_own_handler_swallowed",
        || {
            let (mut store, instance) = spawn(
                &Engine::default(),
                r#"(module (memory 1)
                    (func (export "read") (result i32) (i32.load (i32.const 65536))))"#,
            );
            let read = instance.get_typed_func::<(), i32>(&mut store, "read").unwrap();
            for _ in 0..3 {
                let error = read.call(&mut store, ()).unwrap_err();
                assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
                // SAFETY: sends a signal to this thread; Rust's own handler takes
                // itself away and returns.
                assert_eq!(unsafe { libc::raise(libc::SIGSEGV) }, 0);
            }
        },
    );
}

static ALARMS: AtomicUsize = AtomicUsize::new(0);
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_alarm(_: libc::c_int) {
    let here = 0u8;
    let here = (&raw const here).addr();
    ALARMS.fetch_add(1, Ordering::Relaxed);
    LOWEST.fetch_min(here, Ordering::Relaxed);
    HIGHEST.fetch_max(here, Ordering::Relaxed);
}

#[test]
fn a_storm_of_signals_disturbs_no_guest() {
    in_own_process("signals::a_storm_of_signals_disturbs_no_guest", || {
        install(libc::SIGALRM, on_alarm as *const () as usize, libc::SA_RESTART);
        let engine = engine_with_stack(64 << 10);
        let (mut store, instance) = link(
            &engine,
            0u64,
            r#"(module (import "host" "f" (func $host (param i64) (result i64)))
                (memory 1 1)
                (func (export "work") (param $n i64) (result i64) (local $sum i64)
                    (loop $again
                        (local.set $sum (i64.add
                            (i64.mul (local.get $sum) (i64.const 6364136223846793005))
                            (call $host (local.get $n))))
                        (i64.store (i32.and (i32.wrap_i64 (local.get $sum)) (i32.const 0xfff8))
                            (local.get $sum))
                        (br_if $again (i64.ne (i64.const 0)
                            (local.tee $n (i64.sub (local.get $n) (i64.const 1))))))
                    (local.get $sum))
                (func $down (export "down") (call $down))
                (func (export "beyond") (drop (i32.load (i32.const 65533)))))"#,
            |linker| {
                linker
                    .func_wrap("host", "f", |mut caller: Caller<'_, u64>, n: i64| {
                        *caller.data_mut() += 1;
                        n ^ 0x55
                    })
                    .unwrap();
            },
        );
        let work = instance.get_typed_func::<i64, i64>(&mut store, "work").unwrap();
        let down = instance.get_typed_func::<(), ()>(&mut store, "down").unwrap();
        let beyond = instance.get_typed_func::<(), ()>(&mut store, "beyond").unwrap();
        let mut expected = 0i64;
        for n in (1..=20_000i64).rev() {
            expected = expected.wrapping_mul(6364136223846793005).wrapping_add(n ^ 0x55);
        }
        let period = libc::timeval { tv_sec: 0, tv_usec: 1_000 };
        let timer = libc::itimerval { it_interval: period, it_value: period };
        // SAFETY: starts a timer of this process, for which a handler is installed.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);

        let start = Instant::now();
        while ALARMS.load(Ordering::Relaxed) < 300 {
            assert!(start.elapsed() < Duration::from_secs(60), "no signals come");
            assert_eq!(work.call(&mut store, 20_000).unwrap(), expected);
            for (function, code) in
                [(down, TrapCode::StackOverflow), (beyond, TrapCode::MemoryOutOfBounds)]
            {
                assert_eq!(trap_code(&function.call(&mut store, ()).unwrap_err()), code);
            }
            // Spawns and drops are disturbed as little.
            let module = instance.module(&store).clone();
            let host = Func::wrap(&mut store, |n: i64| n);
            drop(module);
            assert_eq!(host.ty(&store).params[..], [ValType::I64]);
            let (mut other, fresh) = spawn(&engine, r#"(module (memory (export "m") 1))"#);
            assert!(matches!(fresh.get_export(&mut other, "m"), Some(Extern::Memory(_))));
        }
        let slot = suspend::slot(&store, 1);
        let all = slot.start..slot.start + slot.layout.size as usize;
        for handler in [&LOWEST, &HIGHEST] {
            assert!(
                !all.contains(&handler.load(Ordering::Relaxed)),
                "a handler ran on guest pages"
            );
        }
    });
}
