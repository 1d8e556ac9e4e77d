//! Signal handlers of the embedder without `SA_ONSTACK` run on the guest's stack, where the
//! kernel writes their frames: what they leave there no other tenant sees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pagefork::suspend;
use pagefork::{Config, Engine, Linker, Module, ResetKind, StrategyConfig};

use super::common::in_own_process;
use super::stack;

/// Where the handler ran last, and how often it ran.
static PLACE: AtomicUsize = AtomicUsize::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: libc::c_int) {
    let bytes = std::hint::black_box([0x5au8; 60]);
    PLACE.store(bytes.as_ptr().addr(), Ordering::Relaxed);
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// # Panics
/// If the kernel refuses.
fn install_without_a_stack(signal: libc::c_int) {
    // SAFETY: the structure is filled in; the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends this thread signals as long as `body` runs.
fn in_a_storm(body: impl FnOnce()) {
    /// Also ends the storm if the body panics.
    struct End(Arc<AtomicBool>);
    impl Drop for End {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let end = End(Arc::default());
    let ended = Arc::clone(&end.0);
    // SAFETY: asks.
    let thread = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let _end = end;
        body();
    });
}

#[test]
fn what_signal_handlers_leave_on_the_stack_no_other_tenant_sees() {
    in_own_process("signals::what_signal_handlers_leave_on_the_stack_no_other_tenant_sees", || {
        assert_eq!(pagefork::handlers_on_guest_stacks(), []);
        install_without_a_stack(libc::SIGUSR1);
        assert_eq!(pagefork::handlers_on_guest_stacks(), [libc::SIGUSR1]);
        in_a_storm(|| {
            for reset in ResetKind::ALL {
                for clear_stack in [false, true] {
                    run_tenants(reset, clear_stack);
                }
            }
        });
    });
}

/// Goes down, and works there for a while: at another place of a page each time.
const GUEST: &str = r#"(module
    (memory 1)
    (func $down (export "down") (param $depth i32) (param $count i32) (result i64)
        (if (i32.eqz (local.get $depth)) (then
            (loop $next
                (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.const 3)))
                (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
            (return (i64.load (i32.const 8)))))
        (i64.add (i64.extend_i32_u (local.get $depth))
            (call $down (i32.sub (local.get $depth) (i32.const 1)) (local.get $count)))))"#;

/// Runs tenants, one after the other, until the handler has run in enough of them.
fn run_tenants(reset: ResetKind, clear_stack: bool) {
    let what = format!("{reset}, cleared at each reset: {clear_stack}");
    let config = StrategyConfig { reset, clear_stack, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(config).stack_size(256 << 10)).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    let pre = Linker::new(&engine).instantiate_pre(&module).unwrap();
    let start = Instant::now();
    let (mut hit, mut tenant) = (0, 0);
    while hit < 100 {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: no signals come");
        tenant += 1;
        for round in 0..3 {
            let (mut store, instance) = pre.spawn_for(tenant, 0).unwrap();
            let shown = stack(&store).iter().any(|&byte| byte != 0);
            assert!(!shown || round > 0, "{what}: tenant {tenant} sees another's bytes");
            assert!(!(shown && clear_stack), "{what}: tenant {tenant} sees bytes");
            let view = suspend::slot(&store, 1);
            let zone = view.layout.stack.start as usize..view.layout.stack.end as usize;
            let zone = view.start + zone.start..view.start + zone.end;
            let before = COUNT.load(Ordering::Relaxed);
            let down = instance.get_typed_func::<(u32, u32), i64>(&mut store, "down").unwrap();
            down.call(&mut store, (tenant as u32 * 7 % 100, 40_000)).unwrap();
            let came = COUNT.load(Ordering::Relaxed) > before;
            hit += u32::from(came && zone.contains(&PLACE.load(Ordering::Relaxed)));
        }
    }
}
