//! Guests whose pages are copied when they are touched, by themselves and by threads: they see the
//! image, and a page that nobody can copy is a trap in the guest that touches it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::Duration;

use pagefork::{
    Config, Engine, InstancePre, Linker, Module, ResetKind, StrategyConfig, Trap, TrapCode,
    TypedFunc,
};

/// Contents in two pages apart, and functions that read and write.
const GUEST: &str = r#"(module (memory (export "memory") 2 4)
    (data (i32.const 12288) "\07") (data (i32.const 69632) "\09")
    (func (export "read") (param i32) (result i32)
        (i32.load8_u (local.get 0)))
    (func (export "write") (param i32)
        (i32.store8 (local.get 0) (i32.const 1))))"#;

fn strategies(fault_threads: u32, fault_eager: bool) -> StrategyConfig {
    let reset = ResetKind::Fault;
    StrategyConfig { reset, fault_threads, fault_eager, ..StrategyConfig::default() }
}

fn pre(strategies: StrategyConfig) -> InstancePre<()> {
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    Linker::new(&engine).instantiate_pre(&module).unwrap()
}

/// Runs `body` in a child, if pages are served there, and asserts that it ends well and in time.
fn in_child(body: impl FnOnce()) {
    // SAFETY: this process has one test, and no thread but those that wait for that.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: concerns this child alone.
        unsafe { libc::alarm(20) };
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends this child.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn in_own_process(name: &str, body: impl FnOnce()) {
    const MARK: &str = "PAGEFORK_SERVED";
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(MARK, "1");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "no such test: {name}");
}

/// Has all threads of this process be refused copies of pages from now on.
fn refuse_copies() {
    const COPY: u32 = 0xc028_aa03;
    let step = |code: u32, otherwise: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: otherwise,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        step(load, 0, 0),
        step(equal, 3, libc::SYS_ioctl as u32),
        // The second argument, its lower half.
        step(load, 0, 24),
        step(equal, 1, COPY),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is valid and only copied.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all, &raw const filter), 0);
    }
}

fn trap(outcome: pagefork::Result<i32>) -> TrapCode {
    outcome.unwrap_err().downcast_ref::<Trap>().expect("a trap").code()
}

#[test]
fn a_page_that_nobody_can_copy_is_a_trap_in_the_guest_that_touches_it() {
    in_own_process("a_page_that_nobody_can_copy_is_a_trap_in_the_guest_that_touches_it", || {
        if !pagefork_pages::faults_at_touches() {
            return eprintln!("NOT TESTED: this kernel raises no signals at touches");
        }
        for threads in [0, 1, 2] {
            in_child(|| {
                let pre = pre(strategies(threads, false));
                let (mut store, instance) = pre.spawn(()).unwrap();
                assert_eq!(instance.strategy(&store).used, ResetKind::Fault);
                let read: TypedFunc<i32, i32> =
                    instance.get_typed_func(&mut store, "read").unwrap();
                assert_eq!(read.call(&mut store, 12288).unwrap(), 7);
                refuse_copies();
                for _ in 0..3 {
                    let code = trap(read.call(&mut store, 69632));
                    assert_eq!(code, TrapCode::ImageUnreadable, "{threads}");
                    // What is there stays, and so does the bound.
                    assert_eq!(read.call(&mut store, 12288).unwrap(), 7);
                    let beyond = trap(read.call(&mut store, 2 * 65536));
                    assert_eq!(beyond, TrapCode::MemoryOutOfBounds, "{threads}");
                }
            });
        }
    });
}

/// A time that runs out while pages come, and traps, leave what the next run starts with as it was.
#[test]
fn whoever_copies_pages_each_run_sees_the_image() {
    if !pagefork_pages::faults_at_touches() {
        return eprintln!("NOT TESTED: this kernel raises no signals at touches");
    }
    for (threads, eager) in [(0, false), (1, false), (2, false), (0, true), (2, true)] {
        let pre = pre(strategies(threads, eager));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for run in 0..200 {
                        let (mut store, instance) = pre.spawn(()).unwrap();
                        store.set_timeout(Some(Duration::from_secs(20))).unwrap();
                        let read: TypedFunc<i32, i32> =
                            instance.get_typed_func(&mut store, "read").unwrap();
                        let write: TypedFunc<i32, ()> =
                            instance.get_typed_func(&mut store, "write").unwrap();
                        for (place, found) in [(69632, 9), (12288, 7), (0, 0)] {
                            assert_eq!(read.call(&mut store, place).unwrap(), found);
                            write.call(&mut store, place).unwrap();
                            assert_eq!(read.call(&mut store, place).unwrap(), 1);
                        }
                        if run % 3 == 0 {
                            let code = trap(read.call(&mut store, 2 * 65536 + run));
                            assert_eq!(code, TrapCode::MemoryOutOfBounds);
                        }
                    }
                });
            }
        });
    }
}
