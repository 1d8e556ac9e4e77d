//! Whatever is done to stores whose guests may be suspended, each guest goes on as if it were
//! alone and never disturbed: the same random sequences every time. The fuzz target `sequences`
//! goes on from there.

mod common;
mod sequences;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::in_own_process;
use pagefork::{CallProgress, Caller, Engine, InstancePre, Linker, Module, Store, Val};

/// Marsaglia's xorshift generator: George Marsaglia, "Xorshift RNGs", 2003.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u8
    };
    let size = 30 + usize::from(random()) * 2;
    // Each strategy and kind of growth has its turn.
    let mut bytes = vec![seed as u8];
    bytes.extend((0..size).map(|_| random()));
    bytes
}

#[test]
fn guests_never_notice_what_is_done_to_them() {
    let count = std::env::var("PAGEFORK_SEQUENCES").map_or(72, |count| count.parse().unwrap());
    for seed in 0..count {
        let result = catch_unwind(|| sequences::run(&bytes(seed)));
        assert!(result.is_ok(), "the sequence with seed {seed} fails");
    }
}

/// Goes on to the end, with this from the host.
fn finish(store: &mut Store<Option<i32>>, answer: i32) {
    *store.data_mut() = Some(answer);
    let progress = store.resume().unwrap();
    let CallProgress::Finished(values) = progress else { panic!("it has its answer") };
    assert_eq!(values[0].i32(), Some(60 * 61 / 2 + answer));
}

fn use_all(pre: &InstancePre<Option<i32>>, store: &mut Store<Option<i32>>, answer: i32) {
    let here = store.snapshot().unwrap().instance_pre().unwrap();
    for pre in [pre, &here] {
        for _ in 0..5 {
            finish(&mut pre.spawn(None).unwrap().0, answer + 1);
        }
    }
    for mut fork in store.fork(3, |_| None).unwrap() {
        finish(&mut fork, answer + 2);
    }
    finish(store, answer);
    store.reset(None).unwrap();
    finish(store, answer);
}

/// Both processes have the guest, what was captured of it, and slots that are parked.
#[test]
fn a_process_that_forks_has_its_suspended_guests_twice() {
    in_own_process("a_process_that_forks_has_its_suspended_guests_twice", || {
        let engine = Engine::default();
        let text = r#"(module
            (import "host" "answer" (func $answer (result i32)))
            (memory 4 9)
            (func $deep (param i32) (result i32)
                (i32.store (i32.mul (local.get 0) (i32.const 4096)) (local.get 0))
                (if (result i32) (i32.eqz (local.get 0))
                    (then (call $answer))
                    (else (i32.add (i32.load (i32.mul (local.get 0) (i32.const 4096)))
                        (call $deep (i32.sub (local.get 0) (i32.const 1)))))))
            (func (export "run") (param i32) (result i32)
                (drop (memory.grow (i32.const 1))) (call $deep (local.get 0))))"#;
        let module = Module::new(&engine, text).unwrap();
        let mut linker = Linker::new(&engine);
        let answer = |mut caller: Caller<'_, Option<i32>>| {
            caller.data().ok_or_else(|| caller.suspend_before())
        };
        linker.func_wrap("host", "answer", answer).unwrap();
        let (mut source, instance) = linker.instantiate_pre(&module).unwrap().spawn(None).unwrap();
        let run = instance.get_func(&mut source, "run").unwrap();
        run.call_suspendable(&mut source, &[Val::I32(60)]).unwrap();
        let pre = source.snapshot().unwrap().instance_pre().unwrap();
        drop((pre.spawn(None).unwrap(), pre.spawn(None).unwrap()));
        let (mut store, _) = pre.spawn(None).unwrap();
        // SAFETY: no other thread of this process holds a lock for ever; the child ends itself.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends this child alone, if it hangs.
            unsafe { libc::alarm(60) };
            let use_all = AssertUnwindSafe(|| use_all(&pre, &mut store, 1000));
            let status = i32::from(catch_unwind(use_all).is_err());
            // SAFETY: ends this child alone, and runs nothing of the parent's at its exit.
            unsafe { libc::_exit(status) };
        }
        use_all(&pre, &mut store, 2000);
        let mut status = 0;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the forked process goes on too");
        finish(&mut source, 3);
    });
}
