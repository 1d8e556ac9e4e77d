//! Images are immutable: what one instance writes shows in no other, now or
//! later, and no holder of an image's descriptor can change it.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use pagefork::{Engine, Extern, Global, GlobalType, Instance, Module, Store, Val, ValType};

/// Something in the image of every zone: data in two far places, elements,
/// globals, sizes.
const GUEST: &str = r#"
    (memory (export "memory") 40)
    (data (i32.const 3) "near the beginning")
    (data (i32.const 2500000) "far away")
    (table (export "table") 600 funcref)
    (elem (i32.const 1) $one $two)
    (elem (i32.const 599) $two)
    (elem $passive func $one)
    (data $kept "passive")
    (global $number (export "number") (mut i64) (i64.const 7))
    (global $vector (export "vector") (mut v128) (v128.const i64x2 8 9))
    (global $function (export "function") (mut funcref) (ref.func $one))
    (func $one (result i32) (i32.const 1))
    (func $two (result i32) (i32.const 2))
    (func (export "size") (result i32) (memory.size))
    (func (export "kept") (memory.init $kept (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "change")
        (memory.fill (i32.const 0) (i32.const 0xaa) (i32.const 2621440))
        (drop (memory.grow (i32.const 1)))
        (data.drop $kept)
        (elem.drop $passive)
        (global.set $number (i64.const -1))
        (global.set $vector (v128.const i64x2 -1 -1))
        (global.set $function (ref.func $two))
        (table.fill (i32.const 0) (ref.func $two) (i32.const 600))
        (drop (table.grow (ref.func $two) (i32.const 9))))"#;

fn module(engine: &Engine, name: &str) -> Module {
    Module::new(engine, format!("(module ${name} {GUEST})")).unwrap()
}

/// All that an instance was given by its image.
#[derive(PartialEq, Eq, Debug)]
struct Contents {
    memory: Vec<u8>,
    elements: Vec<Option<i32>>,
    numbers: (i64, u128),
    function: i32,
    size: i32,
}

fn contents(store: &mut Store<()>, instance: Instance) -> Contents {
    let memory = instance.get_memory(&mut *store, "memory").unwrap().data(&*store).to_vec();
    let table = instance.get_table(&mut *store, "table").unwrap();
    let length = table.size(&*store);
    let elements = (0..length).map(|index| {
        let element = table.get(&mut *store, index).unwrap();
        returned(store, &element)
    });
    let elements = elements.collect();
    let mut global = |name| {
        let global = instance.get_global(&mut *store, name).unwrap();
        global.get(&mut *store)
    };
    let numbers = (global("number").i64().unwrap(), global("vector").v128().unwrap());
    let function = global("function");
    let function = returned(store, &function).unwrap();
    let size = instance.get_typed_func::<(), i32>(&mut *store, "size").unwrap();
    let size = size.call(&mut *store, ()).unwrap();
    Contents { memory, elements, numbers, function, size }
}

fn returned(store: &mut Store<()>, function: &Val) -> Option<i32> {
    let mut result = [Val::I32(0)];
    function.funcref()??.call(&mut *store, &[], &mut result).unwrap();
    result[0].i32()
}

fn initial() -> Contents {
    let mut memory = vec![0; 40 * 65536];
    memory[3..21].copy_from_slice(b"near the beginning");
    memory[2_500_000..2_500_008].copy_from_slice(b"far away");
    let mut elements = vec![None; 600];
    (elements[1], elements[2], elements[599]) = (Some(1), Some(2), Some(2));
    Contents { memory, elements, numbers: (7, 9 << 64 | 8), function: 1, size: 40 }
}

#[test]
fn what_one_instance_writes_shows_in_no_other_and_in_no_later_one() {
    let engine = Engine::default();
    let module = module(&engine, "writers");
    let mut before = Store::new(&engine, ());
    let earlier = Instance::new(&mut before, &module, &[]).unwrap();
    // In the same store, in another, and by the host.
    let mut store = Store::new(&engine, ());
    let [guest, host, spectator] =
        [(); 3].map(|()| Instance::new(&mut store, &module, &[]).unwrap());
    guest.get_typed_func::<(), ()>(&mut store, "change").unwrap().call(&mut store, ()).unwrap();
    host.get_memory(&mut store, "memory").unwrap().data_mut(&mut store).fill(0xbb);
    let table = host.get_table(&mut store, "table").unwrap();
    table.fill(&mut store, 0, Val::FuncRef(None), 600).unwrap();
    let number = host.get_global(&mut store, "number").unwrap();
    number.set(&mut store, Val::I64(-3)).unwrap();

    let written = contents(&mut store, guest);
    assert!(written.memory[..40 * 65536].iter().all(|byte| *byte == 0xaa));
    assert_eq!((written.numbers.0, written.size, written.elements.len()), (-1, 41, 609));
    assert!(contents(&mut store, spectator) == initial(), "in the same store");
    assert!(contents(&mut before, earlier) == initial(), "spawned before");
    let later = Instance::new(&mut store, &module, &[]).unwrap();
    assert!(contents(&mut store, later) == initial(), "spawned later");
    let kept = later.get_typed_func::<(), ()>(&mut store, "kept").unwrap();
    kept.call(&mut store, ()).expect("the segment was not dropped here");
    store.close();
    let (mut store, after) = (Store::new(&engine, ()), &module);
    let after = Instance::new(&mut store, after, &[]).unwrap();
    assert!(contents(&mut store, after) == initial(), "spawned when the writers are gone");
}

#[test]
fn instances_on_many_threads_share_an_image_and_nothing_else() {
    let engine = Engine::default();
    let module = &module(&engine, "threads");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let mut store = Store::new(module.engine(), ());
                    let instance = Instance::new(&mut store, module, &[]).unwrap();
                    assert!(contents(&mut store, instance) == initial());
                    let change = instance.get_typed_func::<(), ()>(&mut store, "change").unwrap();
                    change.call(&mut store, ()).unwrap();
                }
            });
        }
    });
}

#[test]
fn spawns_with_other_imports_have_other_images() {
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module
            (import "host" "offset" (global $offset i32))
            (memory (export "memory") 1)
            (data (global.get $offset) "here")
            (global (export "copy") i32 (global.get $offset)))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    for round in 0..2 {
        for offset in [0, 5, 60_000, 65_532] {
            let ty = GlobalType { content: ValType::I32, mutable: false };
            let global = Global::new(&mut store, ty, Val::I32(offset)).unwrap();
            let instance = Instance::new(&mut store, &module, &[Extern::from(global)]).unwrap();
            let copy = instance.get_global(&mut store, "copy").unwrap().get(&mut store);
            assert_eq!(copy.i32(), Some(offset));
            let memory = instance.get_memory(&mut store, "memory").unwrap();
            let bytes = memory.data_mut(&mut store);
            let mut expected = vec![0; 65536];
            expected[offset as usize..][..4].copy_from_slice(b"here");
            assert!(bytes == expected, "round {round}, offset {offset}");
            bytes.fill(0xcc);
        }
    }
}

#[test]
fn an_images_descriptor_gives_nobody_a_way_to_change_it() {
    let engine = Engine::default();
    let module = module(&engine, "sealed_image");
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();

    let descriptors = image_descriptors("sealed_image");
    assert_eq!(descriptors.len(), 1, "one image for all instances");
    for path in &descriptors {
        let read_only = File::open(path).unwrap();
        let all = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: only asks.
        let seals = unsafe { libc::fcntl(read_only.as_raw_fd(), libc::F_GET_SEALS) };
        assert_eq!(seals & all, all, "seals {seals:#x}");

        // Any process that sees a memfd in /proc can open it for writing.
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let refused = |what: &str, result: io::Result<()>| {
            let error = result.expect_err(what);
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
        };
        use std::os::unix::fs::FileExt;
        refused("write", file.write_at(b"x", 0).map(drop));
        refused("append", file.write_at(b"x", size).map(drop));
        refused("shorten", file.set_len(size - 4096));
        refused("lengthen", file.set_len(size + 4096));
        // SAFETY: changes nothing but the file, and that is refused.
        let punched = unsafe {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            libc::fallocate(file.as_raw_fd(), mode, 0, 4096)
        };
        refused("punch a hole", checked(punched == 0));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, which nothing uses.
        let shared = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        refused("map shared and writable", checked(shared != libc::MAP_FAILED));
        // SAFETY: asks for a seal, which is refused.
        let sealed =
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        refused("add a seal", checked(sealed == 0));
    }
    assert!(contents(&mut store, instance) == initial());
    drop((store, module));
    assert!(image_descriptors("sealed_image").is_empty(), "an image lives as long as its users");
}

fn checked(succeeded: bool) -> io::Result<()> {
    if succeeded { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The descriptors of this process for the image of this name.
fn image_descriptors(name: &str) -> Vec<std::path::PathBuf> {
    let wanted = format!("/memfd:pagefork:{name} (deleted)");
    let paths = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| fs::read_link(path).is_ok_and(|link| link == Path::new(&wanted))).collect()
}
