//! Traps: their causes, their frames, and what is no trap.

use pagefork::{
    Caller, Engine, Error, Func, Instance, Linker, Module, Result, Store, Trap, TrapCode,
};

fn store() -> Store<()> {
    Store::new(&Engine::default(), ())
}

fn trap(error: &Error) -> &Trap {
    error.downcast_ref().unwrap_or_else(|| panic!("no trap: {error:?}"))
}

#[test]
fn each_cause_has_its_code_and_the_store_goes_on() -> Result<()> {
    let wat = r#"(module
        (memory 1) (table 2 funcref) (elem (i32.const 1) $ok)
        (func $ok (export "ok") (result i32) (i32.const 1))
        (func (export "Unreachable") (unreachable))
        (func (export "IntegerDivisionByZero")
            (drop (i32.div_u (i32.const 1) (i32.load (i32.const 0)))))
        (func (export "IntegerOverflow")
            (drop (i32.div_s (i32.const 0x80000000) (i32.sub (i32.load (i32.const 0)) (i32.const 1)))))
        (func (export "BadConversionToInteger") (param f32)
            (drop (i32.trunc_f32_s (f32.div (local.get 0) (local.get 0)))))
        (func (export "MemoryOutOfBounds") (drop (i32.load (i32.const -1))))
        (func (export "MemoryOutOfBounds 2") (i64.store offset=0xffffffff (i32.const -1) (i64.const 0)))
        (func (export "MemoryOutOfBounds 3") (drop (i32.load (i32.const 65533))))
        (func (export "MemoryOutOfBounds 4")
            (memory.fill (i32.const 65530) (i32.const 0) (i32.const 7)))
        (func (export "TableOutOfBounds") (call_indirect (i32.const 2)))
        (func (export "IndirectCallToNull") (call_indirect (i32.const 0)))
        (func (export "BadSignature") (call_indirect (i32.const 1)))
        (func $deep (export "StackOverflow") (call $deep) (call $deep)))"#;
    let mut store = store();
    let module = Module::new(store.engine(), wat)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let ok = instance.get_typed_func::<(), i32>(&mut store, "ok")?;
    for _ in 0..2 {
        for export in module.exports().filter(|export| export.name() != "ok") {
            let function = instance.get_func(&mut store, export.name()).unwrap();
            let params = &[0f32.into()][..function.ty(&store).params.len()];
            let error = function.call(&mut store, params, &mut []).unwrap_err();
            let code = format!("{:?}", trap(&error).code());
            assert_eq!(Some(code.as_str()), export.name().split(' ').next());
            assert_eq!(error.kind(), pagefork::ErrorKind::Trap);
            let frames = trap(&error).backtrace().frames();
            assert!(!frames.is_empty(), "{error:?}");
            assert_eq!(ok.call(&mut store, ())?, 1);
        }
    }
    Ok(())
}

#[test]
fn backtraces_name_functions_across_instances_and_entries() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let library = Module::new(
        store.engine(),
        r#"(module $library (func $fail (export "fail") (unreachable)) (func $unused))"#,
    )?;
    linker.module(&mut store, "library", &library)?;
    linker.func_wrap("host", "again", |mut caller: Caller<'_, ()>| -> Result<()> {
        let inner = caller.get_export("inner").unwrap().into_func().unwrap();
        inner.call(&mut caller, &[], &mut [])
    })?;
    let main = Module::new(
        store.engine(),
        r#"(module $main
            (import "library" "fail" (func $fail))
            (import "host" "again" (func $again))
            (table 1 funcref) (elem (i32.const 0) $deepest)
            (func $inner (export "inner") (call_indirect (i32.const 0)) (nop))
            (func $deepest (call $fail) (nop))
            (func $middle (call $again) (nop))
            (func $outer (export "outer") (call $middle) (nop)))"#,
    )?;
    let instance = linker.instantiate(&mut store, &main)?;
    let outer = instance.get_typed_func::<(), ()>(&mut store, "outer")?;
    let error = outer.call(&mut store, ()).unwrap_err();
    let frames = trap(&error).backtrace().frames();
    let names: Vec<_> = frames
        .iter()
        .map(|frame| (frame.module().name().unwrap(), frame.function_name().unwrap()))
        .collect();
    let expected = [
        ("library", "fail"),
        ("main", "deepest"),
        ("main", "inner"),
        ("main", "middle"),
        ("main", "outer"),
    ];
    assert_eq!(names, expected);
    assert!(format!("{error:?}").contains("main!middle (function 4"), "{error:?}");
    Ok(())
}

#[test]
fn stack_overflow_counts_its_frames() -> Result<()> {
    let mut store = store();
    let module = Module::new(
        store.engine(),
        r#"(module (func $f (export "f") (param i32) (result i32)
            (i32.add (i32.const 1) (call $f (local.get 0)))))"#,
    )?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let f = instance.get_typed_func::<i32, i32>(&mut store, "f")?;
    for _ in 0..10 {
        let error = f.call(&mut store, 0).unwrap_err();
        assert_eq!(trap(&error).code(), TrapCode::StackOverflow);
        assert!(trap(&error).to_string().contains("call stack exhausted"));
        let backtrace = trap(&error).backtrace();
        assert!(backtrace.omitted_count() > 1000 && backtrace.frames().len() > 10);
    }
    Ok(())
}

#[test]
fn large_frames_do_not_jump_over_the_guard() -> Result<()> {
    // Locals that live across a call fill a frame.
    let locals = 4000;
    let mut body = String::new();
    for i in 1..locals {
        body += &format!("(local.set {i} (i64.load (i32.const {})))", 8 * i);
    }
    body += "(call $f (i64.const 1)) (local.set 0)";
    for i in 1..locals {
        body += &format!("(local.set 0 (i64.add (local.get 0) (local.get {i})))");
    }
    let wat = format!(
        r#"(module (memory 1) (func $f (export "f") (param i64) (result i64) (local {}) {body} (local.get 0)))"#,
        "i64 ".repeat(locals)
    );
    let mut store = store();
    let module = Module::new(store.engine(), wat)?;
    let f = Instance::new(&mut store, &module, &[])?.get_typed_func::<i64, i64>(&mut store, "f")?;
    let error = f.call(&mut store, 0).unwrap_err();
    assert_eq!(trap(&error).code(), TrapCode::StackOverflow);
    Ok(())
}

#[test]
fn recursion_through_the_host_is_a_stack_overflow() {
    // On threads with little stack, and with more than the guest's own.
    for stack_size in [512 << 10, 2 << 20, 64 << 20] {
        let thread = std::thread::Builder::new().stack_size(stack_size);
        let run = || -> Result<()> {
            let mut store = store();
            let module = Module::new(
                store.engine(),
                r#"(module (import "" "again" (func $again (param i32)))
                    (func $f (export "f") (param i32)
                        (call $again (i32.add (local.get 0) (i32.const 1)))))"#,
            )?;
            let again = Func::wrap(&mut store, |mut caller: Caller<'_, ()>, depth: i32| {
                let f = caller.get_export("f").unwrap().into_func().unwrap();
                f.typed::<i32, ()>(&caller)?.call(&mut caller, depth)
            });
            let f = Instance::new(&mut store, &module, &[again.into()])?
                .get_typed_func::<i32, ()>(&mut store, "f")?;
            for _ in 0..3 {
                let error = f.call(&mut store, 0).unwrap_err();
                assert_eq!(trap(&error).code(), TrapCode::StackOverflow);
                assert!(error.backtrace().unwrap().omitted_count() > 10);
            }
            Ok(())
        };
        thread.spawn(run).unwrap().join().unwrap().unwrap();
    }
}

#[test]
fn indirect_calls_across_instances_check_types() -> Result<()> {
    let mut store = store();
    let mut linker = Linker::new(store.engine());
    let library = Module::new(
        store.engine(),
        r#"(module
            (type (func)) (type (func (param f64) (result f64))) (type (func (result i32)))
            (table (export "t") 4 funcref) (elem (i32.const 0) $nine $fail)
            (func $nine (result i32) (i32.const 9))
            (func $fail (result i32) (unreachable)))"#,
    )?;
    linker.module(&mut store, "l", &library)?;
    let host = Func::wrap(&mut store, || 11i32);
    let t = linker.get(&mut store, "l", "t").unwrap().into_table().unwrap();
    t.set(&mut store, 2, host.into())?;
    let main = Module::new(
        store.engine(),
        r#"(module (import "l" "t" (table 4 funcref))
            (type $i (func (result i32))) (type $l (func (result i64)))
            (func (export "i") (param i32) (result i32) (call_indirect (type $i) (local.get 0)))
            (func (export "l") (param i32) (result i64) (call_indirect (type $l) (local.get 0))))"#,
    )?;
    let instance = linker.instantiate(&mut store, &main)?;
    let i = instance.get_typed_func::<i32, i32>(&mut store, "i")?;
    let l = instance.get_typed_func::<i32, i64>(&mut store, "l")?;
    assert_eq!((i.call(&mut store, 0)?, i.call(&mut store, 2)?), (9, 11));
    let mut code = |index| trap(&i.call(&mut store, index).unwrap_err()).code();
    assert_eq!(code(1), TrapCode::Unreachable);
    assert_eq!(code(3), TrapCode::IndirectCallToNull);
    assert_eq!(code(4), TrapCode::TableOutOfBounds);
    let mut code = |index| trap(&l.call(&mut store, index).unwrap_err()).code();
    assert_eq!(code(0), TrapCode::BadSignature);
    assert_eq!(code(2), TrapCode::BadSignature);
    Ok(())
}

/// What of a thread a signal's handler might leave otherwise: its mask, its alternate stack, and how
/// numbers are rounded, by either unit.
#[derive(PartialEq, Debug)]
struct ThreadState {
    blocked: Vec<i32>,
    stack: (usize, usize, i32),
    rounding: (u32, u16),
}

impl ThreadState {
    fn now() -> Self {
        let (mut vectors, mut stack_of_floats) = (0u32, 0u16);
        // SAFETY: each only asks; zeros are a value of both structures.
        unsafe {
            let (mut set, mut stack) = (std::mem::zeroed(), std::mem::zeroed::<libc::stack_t>());
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
            libc::sigaltstack(std::ptr::null(), &mut stack);
            std::arch::asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &mut vectors, in(reg) &mut stack_of_floats);
            let blocked = |signal: &i32| libc::sigismember(&set, *signal) == 1;
            Self {
                blocked: (1..=libc::SIGRTMAX()).filter(blocked).collect(),
                stack: (stack.ss_sp.addr(), stack.ss_size, stack.ss_flags),
                // Without the flags that say what has happened.
                rounding: (vectors & !0x3f, stack_of_floats),
            }
        }
    }
}

/// Has both units round towards zero on this thread.
fn round_towards_zero() {
    let (vectors, stack_of_floats) = (0x1f80u32 | 0x6000, 0x37fu16 | 0xc00);
    // SAFETY: nothing on this thread counts on another rounding.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &vectors, in(reg) &stack_of_floats);
    }
}

#[test]
fn a_fault_leaves_nothing_of_the_thread_changed() -> Result<()> {
    const SS_AUTODISARM: i32 = 1 << 31;
    let wat = r#"(module (memory 1)
        (func (export "fault") (drop (i32.load (i32.const -1))))
        (func $deep (export "deep") (call $deep) (call $deep))
        (func (export "divide") (drop (i32.div_s (i32.const 0x80000000)
            (i32.sub (i32.load (i32.const 0)) (i32.const 1))))))"#;
    let mut store = store();
    let module = Module::new(store.engine(), wat)?;
    let instance = Instance::new(&mut store, &module, &[])?;
    let mut each_is_a_trap = || {
        // The first call gives the thread an alternate stack if its own is small.
        let first = instance.get_typed_func::<(), ()>(&mut store, "divide")?;
        first.call(&mut store, ()).expect_err("divide");
        for name in ["fault", "deep", "divide", "fault"] {
            let before = ThreadState::now();
            let function = instance.get_typed_func::<(), ()>(&mut store, name)?;
            trap(&function.call(&mut store, ()).expect_err(name));
            assert_eq!(ThreadState::now(), before, "{name}");
        }
        Ok(())
    };
    let traps = |each_is_a_trap: &mut (dyn FnMut() -> Result<()> + Send)| -> Result<()> {
        each_is_a_trap()?;
        round_towards_zero();
        // SAFETY: no handler counts on these signals; the stack is there as long as the thread.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGUSR1, libc::SIGPIPE, libc::SIGRTMAX()] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        }
        each_is_a_trap()?;
        // A stack that the kernel takes away while a handler runs.
        let mut own = vec![0u8; 1 << 16];
        let mut stack = libc::stack_t {
            ss_sp: own.as_mut_ptr().cast(),
            ss_flags: SS_AUTODISARM,
            ss_size: own.len(),
        };
        let mut earlier = stack;
        // SAFETY: the stack is there until the earlier one is used again.
        unsafe { assert_eq!(libc::sigaltstack(&stack, &mut earlier), 0) };
        let result = each_is_a_trap();
        // SAFETY: the earlier stack is the thread's.
        unsafe { assert_eq!(libc::sigaltstack(&earlier, &mut stack), 0) };
        result
    };
    std::thread::scope(|scope| scope.spawn(|| traps(&mut each_is_a_trap)).join().expect("a result"))
}
