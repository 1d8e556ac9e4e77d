//! Faults that are none of a guest's: they end the process.

use pagefork::suspend;
use pagefork::{Engine, Instance, Memory, MemoryType, Module, Store, TrapCode};

use crate::common::{killed_by_segv, reached, spawn, trap_code};
use crate::{read, with_guest, write};

#[test]
fn a_null_pointer_in_a_host_function_kills() {
    killed_by_segv("faults::a_null_pointer_in_a_host_function_kills", || {
        let result = with_guest(|_| {
            reached();
            read(8);
        });
        println!("survived: {result:?}");
    });
}

#[test]
fn host_code_that_reads_beyond_a_memory_kills() {
    killed_by_segv("faults::host_code_that_reads_beyond_a_memory_kills", || {
        let result = with_guest(|base| {
            read(base);
            reached();
            read(base + 65536);
        });
        println!("survived: {result:?}");
    });
}

#[test]
fn host_code_that_writes_to_a_stack_guard_kills() {
    killed_by_segv("faults::host_code_that_writes_to_a_stack_guard_kills", || {
        let wat = "(module (memory 1))";
        let layout = Module::new(&Engine::default(), wat).unwrap().compiled().layout.clone();
        let result = with_guest(move |base| {
            // Both modules have the same zones.
            let stack = base - (layout.base - layout.stack.start) as usize;
            write(stack);
            reached();
            write(stack - 1);
        });
        println!("survived: {result:?}");
    });
}

#[test]
fn a_fault_outside_any_guest_kills() {
    killed_by_segv("faults::a_fault_outside_any_guest_kills", || {
        with_guest(|_| ()).unwrap();
        reached();
        println!("survived: {}", read(8));
    });
}

#[test]
fn a_null_pointer_on_a_thread_that_never_ran_a_guest_kills() {
    killed_by_segv("faults::a_null_pointer_on_a_thread_that_never_ran_a_guest_kills", || {
        with_guest(|_| ()).unwrap();
        reached();
        let found = std::thread::spawn(|| read(8)).join();
        println!("survived: {found:?}");
    });
}

/// A guest whose imported memory seems to lie at `target`: what a wrong address
/// in compiled code would look like.
fn load_at(target: impl FnOnce(&mut Store<()>) -> usize) {
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let ty = MemoryType::new(1, Some(2));
    let memory = Memory::new(&mut store, ty).unwrap();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "memory" (memory 1))
            (func (export "load") (result i32) (i32.load (i32.const 0))))"#,
    )
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[memory.into()]).unwrap();
    let load = instance.get_typed_func::<(), i32>(&mut store, "load").unwrap();
    assert_eq!(load.call(&mut store, ()).unwrap(), 0);

    let target = target(&mut store);
    let ordinal = suspend::instance_count(&store);
    let slot = suspend::slot(&store, ordinal);
    let record = slot.start
        + (slot.layout.link.start as usize)
        + slot.layout.link_parts.memory(0) as usize
        + pagefork_layout::link::memory_import::BASE as usize;
    // SAFETY: the record lies in the link zone of a live slot; what is written
    // makes the guest read elsewhere, which is what the tests are about.
    unsafe { std::ptr::with_exposed_provenance_mut::<usize>(record).write(target) };
    reached();
    let result = load.call(&mut store, ());
    println!("survived: {result:?}");
}

#[test]
fn a_guest_that_faults_in_another_stores_memory_guard_kills() {
    killed_by_segv("faults::a_guest_that_faults_in_another_stores_memory_guard_kills", || {
        let (other, instance) = spawn(&Engine::default(), r#"(module (memory (export "m") 1))"#);
        let mut other = other;
        let memory = instance.get_memory(&mut other, "m").unwrap();
        let end = memory.data(&other).as_ptr_range().end.expose_provenance();
        load_at(|_| end);
    });
}

#[test]
fn a_guest_that_faults_in_another_stores_stack_guard_kills() {
    killed_by_segv("faults::a_guest_that_faults_in_another_stores_stack_guard_kills", || {
        let (other, _) = spawn(&Engine::default(), "(module (memory 1))");
        let start = suspend::slot(&other, 1).start;
        load_at(|_| start + 4096);
    });
}

#[test]
fn a_guest_that_faults_nowhere_at_all_kills() {
    killed_by_segv("faults::a_guest_that_faults_nowhere_at_all_kills", || load_at(|_| 4096));
}

#[test]
fn a_guest_that_faults_within_a_memory_kills() {
    killed_by_segv("faults::a_guest_that_faults_within_a_memory_kills", || {
        load_at(|store| {
            let base = suspend::slot(&*store, 1).base;
            // SAFETY: takes a page from a memory of the host that nothing else uses.
            let failed = unsafe {
                libc::mprotect(std::ptr::with_exposed_provenance_mut(base), 4096, libc::PROT_NONE)
            };
            assert_eq!(failed, 0);
            base
        });
    });
}

#[test]
fn a_guest_that_faults_in_a_guard_of_its_group_traps() {
    // The other side of the tests above: here the address is the group's own.
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, MemoryType::new(1, Some(2))).unwrap();
    let module = Module::new(
        &engine,
        r#"(module (import "host" "memory" (memory 1))
            (func (export "load") (param i32) (result i32) (i32.load (local.get 0))))"#,
    )
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[memory.into()]).unwrap();
    let load = instance.get_typed_func::<u32, i32>(&mut store, "load").unwrap();
    assert_eq!(load.call(&mut store, 65532).unwrap(), 0);
    for at in [65533, 65536, 131072, u32::MAX] {
        let error = load.call(&mut store, at).unwrap_err();
        assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
    }
    memory.grow(&mut store, 1).unwrap();
    assert_eq!(load.call(&mut store, 65536).unwrap(), 0);
}
