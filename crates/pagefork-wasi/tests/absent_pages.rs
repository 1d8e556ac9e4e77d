//! Calls of guests whose memory is not here yet: what they touch comes first, for the kernel too, and
//! what does not come is a trap.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use pagefork::image::{ImageHead, ImageStore};
use pagefork::{
    Absence, Engine, IncompleteImage, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store,
    Trap, TrapCode,
};
use pagefork_wasi::{OutputKind, WasiCtx, add_to_linker};

/// Far apart: a vector, what it leads to, and where results go.
const PROGRAM: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $fd_write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (memory (export "memory") 32)
    (data (i32.const 1000000) "\80\84\1e\00\06\00\00\00")
    (data (i32.const 2000000) "hello\n")
    (func (export "write") (result i32)
        (call $fd_write (i32.const 1) (i32.const 1000000) (i32.const 1) (i32.const 1500000)))
    (func (export "written") (result i32) (i32.load (i32.const 1500000)))
    (func (export "random") (param i32) (result i32)
        (call $random (local.get 0) (i32.const 8))))"#;

#[test]
fn what_calls_touch_comes_first_and_what_does_not_come_is_a_trap() {
    let directory = std::env::temp_dir().join(format!("wasi-absent-{}", std::process::id()));
    let images = ImageStore::open(&directory).unwrap();
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut linker = Linker::new(&engine);
    add_to_linker(&mut linker, |ctx: &mut WasiCtx| ctx).unwrap();
    let mut store = Store::new(&engine, WasiCtx::builder().build().unwrap());
    let instance = linker.instantiate(&mut store, &module).unwrap();
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    memory.data_mut(&mut store)[..1000].fill(1);
    memory.data_mut(&mut store)[1_200_000..1_800_000].fill(1);
    let hash = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let stored = images.load(hash).unwrap();
    let tip = stored.chain().tip();
    let head = Arc::new(ImageHead::read(tip).unwrap());
    let image = IncompleteImage::new(head, Duration::from_secs(60)).unwrap();
    if !image.runs_incomplete() {
        println!("NOT TESTED: this system does not tell of faults in absent pages");
        return;
    }
    let is_done = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                for group in image.take_wanted() {
                    image.install(group, &tip.read_group(group).unwrap()).unwrap();
                }
                thread::yield_now();
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let options = LoadOptions::new().module(&module);
            let snapshot = Snapshot::load_incomplete(&linker, &image, &images, options).unwrap();
            let (output, kind) = OutputKind::pipe();
            let ctx = WasiCtx::builder().stdout(kind).build().unwrap();
            let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(ctx).unwrap();
            let before = image.residency().present;
            let write = instance.get_typed_func::<(), i32>(&mut store, "write").unwrap();
            assert_eq!(write.call(&mut store, ()).unwrap(), 0);
            assert_eq!(output.contents(), b"hello\n");
            let written = instance.get_typed_func::<(), i32>(&mut store, "written").unwrap();
            assert_eq!(written.call(&mut store, ()).unwrap(), 6);
            assert_eq!(image.residency().present, before + 3, "nothing else came");
            (store, instance)
        }));
        is_done.store(true, Ordering::Release);
        outcome
    });
    let (mut store, instance) = lost.unwrap();
    image.give_up();
    let random = instance.get_typed_func::<i32, i32>(&mut store, "random").unwrap();
    assert_eq!(random.call(&mut store, 2_000_000).unwrap(), 0, "this is here");
    let error = random.call(&mut store, 1_300_000).unwrap_err();
    let trap = error.downcast_ref::<Trap>().expect("it is a trap");
    assert_eq!(trap.code(), TrapCode::PageAbsent);
    assert_eq!(trap.absent_page().unwrap().why, Absence::GivenUp);
    assert_eq!(random.call(&mut store, 40 << 20).unwrap(), 21, "EFAULT, as ever");
    fs::remove_dir_all(directory).unwrap();
}
