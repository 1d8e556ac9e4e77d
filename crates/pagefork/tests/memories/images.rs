//! Memories that start with a part of a file of the embedder's.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use pagefork::{
    AsContextMut, Caller, Config, Engine, Error, ErrorKind, Exception, Extern, Instance, Linker,
    Memory, MemoryAccessError, MemoryAccessProblem, MemoryImage, Module, PagesError, ResetKind,
    Store, StoreContextMut, StrategyConfig, Trap, TrapCode, UsageError,
};

const PAGE: usize = 4096;

/// Data that the image hides, state that it does not, and a start function that runs after it.
const PROGRAM: &str = r#"(module
    (import "host" "memory" (memory 1))
    (memory (export "memory") 2 4)
    (memory (export "other") 1)
    (export "imported" (memory 0))
    (table (export "table") 1 funcref) (elem (i32.const 0) $get)
    (global $started (mut i32) (i32.const 20))
    (data (memory 1) (i32.const 0) "hidden") (data (memory 1) (i32.const 100000) "hidden too")
    (data (memory 2) (i32.const 9) "shown")
    (func $start
        (i32.store8 1 (i32.const 4097) (i32.add (i32.load8_u 1 (i32.const 4097)) (i32.const 1)))
        (global.set $started (i32.add (global.get $started) (i32.const 1))))
    (start $start)
    (func (export "started") (result i32) (global.get $started))
    (func $get (export "get") (param i32) (result i32) (i32.load8_u 1 (local.get 0)))
    (func (export "put") (param i32 i32) (i32.store8 1 (local.get 0) (local.get 1)))
    (func (export "grow") (param i32) (result i32) (memory.grow 1 (local.get 0))))"#;

/// Without imports, so that it can be spawned.
fn program() -> String {
    PROGRAM
        .replace(r#"(import "host" "memory" (memory 1))"#, "(memory 1)")
        .replace(r#"(export "imported" (memory 0))"#, "")
}

/// A file of eight pages, each of which says where it is; removed at the end.
struct Template(PathBuf);

impl Template {
    fn new(name: &str) -> Self {
        let name = format!("pagefork-memory-image-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let bytes: Vec<u8> = (0..8 * PAGE).map(byte).collect();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }

    fn file(&self) -> File {
        File::open(&self.0).unwrap()
    }

    /// Five pages from the third on.
    fn image(&self) -> MemoryImage {
        MemoryImage::new(self.file(), 2 * PAGE as u64, 5 * PAGE as u64)
    }
}

impl Drop for Template {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn byte(at: usize) -> u8 {
    (at / PAGE * 16 + at % 13) as u8
}

/// A byte that the memory starts with, before anything runs.
fn fresh(at: usize) -> u8 {
    if at < 5 * PAGE { byte(2 * PAGE + at) } else { 0 }
}

fn call(store: &mut Store<()>, instance: Instance, name: &str, at: i32) -> i32 {
    instance.get_typed_func(&mut *store, name).unwrap().call(store, at).unwrap()
}

#[track_caller]
fn assert_fresh(store: &mut Store<()>, instance: Instance, what: &str) {
    let memory = instance.get_memory(&mut *store, "memory").unwrap();
    let mut wanted: Vec<u8> = (0..2 << 16).map(fresh).collect();
    wanted[4097] += 1;
    assert!(memory.data(&*store) == wanted, "{what}");
    let other = instance.get_memory(&mut *store, "other").unwrap();
    assert_eq!(&other.data(&*store)[8..15], b"\0shown\0", "{what}");
    let started = instance.get_typed_func::<(), i32>(&mut *store, "started").unwrap();
    assert_eq!(started.call(store, ()).unwrap(), 21, "{what}");
}

#[test]
fn instances_start_with_the_image_by_each_strategy_and_change_nothing_of_it() {
    let template = Template::new("strategies");
    for reset in ResetKind::ALL {
        for copy_on_write in [true, false] {
            let what = format!("{reset}, copy-on-write {copy_on_write}");
            let strategies = StrategyConfig { reset, copy_on_write, ..Default::default() };
            let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
            let module = Module::new(&engine, program()).unwrap();
            let image = template.image().prefetch([0..1, 4 * PAGE as u64..5 * PAGE as u64]);
            let with_image = module.with_memory_image("memory", image).unwrap();
            assert!(Module::same(&module, &with_image));
            let pre = Linker::new(&engine).instantiate_pre(&with_image).unwrap();
            for round in 0..4 {
                let (mut store, instance) = pre.spawn(()).unwrap();
                let (mut beside, other) = pre.spawn(()).unwrap();
                assert_fresh(&mut store, instance, &what);
                let put = instance.get_typed_func::<(i32, i32), ()>(&mut store, "put").unwrap();
                for at in [0, PAGE, 4 * PAGE, 5 * PAGE, 100_000] {
                    put.call(&mut store, (at as i32, 0xee)).unwrap();
                }
                assert_eq!(call(&mut store, instance, "grow", 1), 2);
                assert_fresh(&mut beside, other, &what);
                if round % 2 == 0 {
                    store.reset(()).unwrap();
                    assert_fresh(&mut store, instance, &what);
                }
            }
            // The module itself is as it was.
            let pre = Linker::new(&engine).instantiate_pre(&module).unwrap();
            let (mut store, instance) = pre.spawn(()).unwrap();
            assert_eq!(call(&mut store, instance, "get", 0), i32::from(b'h'));
            // As instances in stores of others, captured, and forked.
            let mut store = Store::new(&engine, ());
            let instance = Instance::new(&mut store, &with_image, &[]).unwrap();
            assert_fresh(&mut store, instance, &what);
            let mut fork = store.fork(1, |_| ()).unwrap().remove(0);
            let instance = fork.counterpart_instance(instance).unwrap();
            assert_fresh(&mut fork, instance, &what);
        }
    }
    assert!(fs::read(&template.0).unwrap() == (0..8 * PAGE).map(byte).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_an_image_is_said() {
    let template = Template::new("refused");
    let engine = Engine::default();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let refused = |memory: &str, image: MemoryImage| -> String {
        let error = module.with_memory_image(memory, image).map(|_| ()).unwrap_err();
        let known = error.downcast_ref::<UsageError>().is_some();
        assert!(known || error.downcast_ref::<PagesError>().is_some(), "{error:?}");
        error.to_string()
    };
    let page = PAGE as u64;
    let place = |offset, length| MemoryImage::new(template.file(), offset, length);
    for (memory, image, says) in [
        ("nothing", place(0, page), "exports no memory"),
        ("get", place(0, page), "exports no memory"),
        ("imported", place(0, page), "imported"),
        ("other", place(0, 17 * page), "longer than the memory"),
        ("memory", place(4 * page, 5 * page), "cut short"),
        ("memory", place(u64::MAX - page + 1, page), "cut short"),
        ("memory", place(7, page), "no multiple of 4096"),
        ("memory", place(0, page + 8), "not whole pages"),
        ("memory", place(0, 0), "not whole pages"),
        ("memory", place(0, page).prefetch(Some(0..page + 1)), "prefetch"),
        ("memory", place(0, page).prefetch(Some(u64::MAX - 1..u64::MAX)), "prefetch"),
        ("memory", MemoryImage::new(File::open("/").unwrap(), 0, page), "not a regular file"),
    ] {
        let error = refused(memory, image);
        assert!(error.contains(says), "{error}");
    }
    let (pipe, _other) = std::io::pipe().unwrap();
    let error = refused("memory", MemoryImage::new(OwnedFd::from(pipe), 0, page));
    assert!(error.contains("not a regular file"), "{error}");
    fs::set_permissions(&template.0, fs::Permissions::from_mode(0o622)).unwrap();
    let error = refused("memory", place(0, page));
    assert!(error.contains("others may write it"), "{error}");
    fs::set_permissions(&template.0, fs::Permissions::from_mode(0o600)).unwrap();
    let with_image = module.with_memory_image("memory", place(0, page)).unwrap();
    let again = with_image.with_memory_image("other", place(0, page)).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
}

#[test]
fn files_in_memory_are_images_once_they_are_sealed() {
    use rustix::fs::{MemfdFlags, SealFlags};
    let engine = Engine::default();
    let module = Module::new(&engine, program()).unwrap();
    let memfd = rustix::fs::memfd_create("template", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::pwrite(&memfd, &[7; 2 * PAGE], 0).unwrap();
    let image = |file: &OwnedFd| MemoryImage::new(file.try_clone().unwrap(), 0, 2 * PAGE as u64);
    let with_image = |file| module.with_memory_image("memory", image(file));
    for seals in [SealFlags::empty(), SealFlags::SHRINK] {
        rustix::fs::fcntl_add_seals(&memfd, seals).unwrap();
        let error = with_image(&memfd).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("others may write it"), "{error}");
    }
    rustix::fs::fcntl_add_seals(&memfd, SealFlags::WRITE).unwrap();
    let pre = Linker::new(&engine).instantiate_pre(&with_image(&memfd).unwrap()).unwrap();
    let (mut store, instance) = pre.spawn(()).unwrap();
    let found = [0, 2 * PAGE - 1, 2 * PAGE].map(|at| call(&mut store, instance, "get", at as i32));
    assert_eq!(found, [7, 7, 0]);
}

#[test]
fn a_file_that_is_cut_short_is_a_trap_of_the_guest_and_an_error_of_the_host() {
    let template = Template::new("cut");
    let engine = Engine::default();
    let module = Module::new(&engine, program()).unwrap();
    let module = module.with_memory_image("memory", template.image()).unwrap();
    let pre = Linker::new(&engine).instantiate_pre(&module).unwrap();
    let (mut store, instance) = pre.spawn(()).unwrap();
    OpenOptions::new().write(true).open(&template.0).unwrap().set_len(4 * PAGE as u64).unwrap();
    let get = instance.get_typed_func::<i32, i32>(&mut store, "get").unwrap();
    assert_eq!(get.call(&mut store, 0).unwrap(), i32::from(fresh(0)));
    let error = get.call(&mut store, 3 * PAGE as i32).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::ImageUnreadable));
    // Its length is asked for now and then.
    fn noticed(what: impl FnMut() -> pagefork::Result<()>) {
        let error = std::iter::repeat_with(what).find_map(Result::err).expect("it does not end");
        assert!(error.to_string().contains("cut short"), "{error}");
    }
    noticed(|| store.reset(()));
    noticed(|| pre.spawn(()).map(|_| ()));
}

/// Files are cut right before a reset or snapshot looks at their pages.
#[test]
fn a_page_that_is_gone_when_it_is_looked_at_is_an_error_and_no_signal() {
    for reset in ResetKind::ALL {
        let strategies = StrategyConfig { reset, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let module = Module::new(&engine, program()).unwrap();
        for round in 0..20 {
            let template = Template::new("gone");
            let module = module.with_memory_image("memory", template.image()).unwrap();
            let pre = Linker::new(&engine).instantiate_pre(&module).unwrap();
            let (mut store, instance) = pre.spawn(()).unwrap();
            let put = instance.get_typed_func::<(i32, i32), ()>(&mut store, "put").unwrap();
            let get = instance.get_typed_func::<i32, i32>(&mut store, "get").unwrap();
            for _ in 0..3 {
                // What each run writes is restored in place, where a strategy does that.
                put.call(&mut store, (3 * PAGE as i32, 9)).unwrap();
                store.reset(()).unwrap();
            }
            put.call(&mut store, (3 * PAGE as i32, 9)).unwrap();
            let file = OpenOptions::new().write(true).open(&template.0).unwrap();
            file.set_len(PAGE as u64).unwrap();
            let looked = match round % 2 {
                0 => store.reset(()),
                _ => store.snapshot().map(|_| ()),
            };
            let error = match (looked, get.call(&mut store, 0)) {
                (Err(error), Err(_)) => error,
                // Nothing had to be looked at.
                (Ok(()), Err(error)) => error,
                (_, Ok(value)) => {
                    // All was copied before.
                    assert!(matches!(reset, ResetKind::Copy | ResetKind::Fault), "{reset}");
                    assert_eq!(value, fresh(0).into());
                    continue;
                }
            };
            let trap = error.downcast_ref::<Trap>().map(Trap::code);
            let is_typed = trap == Some(TrapCode::ImageUnreadable);
            assert!(is_typed || error.to_string().contains("cut short"), "{reset}: {error}");
        }
    }
}

/// Where slots come and go on other threads, a slot has addresses that another one had a moment ago:
/// what is gone is noted for the one that has them now.
#[test]
fn pages_that_are_gone_are_noted_for_the_slot_that_has_their_addresses_now() {
    thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                for _ in 0..400 {
                    let template = Template::new(&format!("addresses-{number}"));
                    let engine = Engine::default();
                    let module = Module::new(&engine, "(module (memory (export \"memory\") 1))");
                    let image = template.image();
                    let module = module.unwrap().with_memory_image("memory", image).unwrap();
                    let mut store = Store::new(&engine, ());
                    let instance = Instance::new(&mut store, &module, &[]).unwrap();
                    let memory = instance.get_memory(&mut store, "memory").unwrap();
                    let file = OpenOptions::new().write(true).open(&template.0).unwrap();
                    file.set_len(4 * PAGE as u64).unwrap();
                    let error = memory.read(&store, 3 * PAGE, &mut [0; 8]).unwrap_err();
                    assert_eq!(error.problem, MemoryAccessProblem::Unreadable);
                }
            });
        }
    });
}

/// A page that is gone reads as zeros then, which nothing must go on with.
#[test]
fn a_page_that_is_gone_when_host_code_touches_it_ends_the_guest_and_not_the_process() {
    type Touch = fn(&Memory, StoreContextMut<'_, ()>);
    let at = 3 * PAGE;
    let touches: [Touch; 4] = [
        |memory, store| assert_eq!(memory.data(&store)[3 * PAGE], 0),
        |memory, mut store| memory.data_mut(&mut store)[3 * PAGE] = 5,
        |memory, store| fails(memory.read(store, 3 * PAGE, &mut [0; 2 * PAGE])),
        |memory, store| fails(memory.write(store, 3 * PAGE + 1, b"written")),
    ];
    fn fails(result: Result<(), MemoryAccessError>) {
        let error = result.expect_err("the page is gone");
        assert_eq!(error.problem, MemoryAccessProblem::Unreadable);
        assert!(error.to_string().contains("cut short"), "{error}");
    }
    let ends = |result: pagefork::Result<i32>| {
        let error = result.unwrap_err();
        let trap = error.downcast_ref::<Trap>().map(Trap::code);
        assert_eq!(trap, Some(TrapCode::ImageUnreadable), "{error}");
    };
    for (reset, touch) in
        ResetKind::ALL.iter().flat_map(|reset| touches.map(|touch| (*reset, touch)))
    {
        if matches!(reset, ResetKind::Copy | ResetKind::Fault) {
            // No slot has pages of the file.
            continue;
        }
        let strategies = StrategyConfig { reset, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let text = program().replacen(
            "(module",
            r#"(module (import "host" "touch" (func $touch)) (import "host" "throw" (func $throw))
                (tag (export "tag"))"#,
            1,
        );
        let text = text.trim_end().strip_suffix(')').unwrap().to_owned()
            + r#"(func (export "through") (result i32) (call $touch)
                (i32.load8_u (i32.const 0)))
            (func (export "caught") (result i32)
                (block $caught (try_table (catch_all $caught) (call $throw)))
                (i32.load8_u (i32.const 0)))
            (data $passive "initial")
            (func (export "init") (result i32)
                (memory.init 1 $passive (i32.const 12289) (i32.const 0) (i32.const 2))
                (i32.load8_u (i32.const 0)))
            (func (export "fill") (result i32)
                (memory.fill 1 (i32.const 12289) (i32.const 0) (i32.const 2))
                (i32.load8_u (i32.const 0))))"#;
        let mut linker = Linker::<()>::new(&engine);
        linker
            .func_wrap("host", "touch", move |mut caller: Caller<'_, ()>| {
                let memory = caller.get_export("memory").and_then(Extern::into_memory).unwrap();
                touch(&memory, caller.as_context_mut());
            })
            .unwrap();
        linker
            .func_wrap("host", "throw", move |mut caller: Caller<'_, ()>| {
                let memory = caller.get_export("memory").and_then(Extern::into_memory).unwrap();
                touch(&memory, caller.as_context_mut());
                let Some(Extern::Tag(tag)) = caller.get_export("tag") else { panic!("no tag") };
                let thrown = Exception::new(&caller, &tag, &[])?;
                Err::<(), Error>(thrown.into())
            })
            .unwrap();
        let template = Template::new("touched");
        let module = Module::new(&engine, text).unwrap();
        let module = module.with_memory_image("memory", template.image()).unwrap();
        let pre = linker.instantiate_pre(&module).unwrap();
        let (mut store, instance) = pre.spawn(()).unwrap();
        let (mut beside, other) = pre.spawn(()).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let through = instance.get_typed_func::<(), i32>(&mut store, "through").unwrap();
        let get = instance.get_typed_func::<i32, i32>(&mut store, "get").unwrap();
        let file = OpenOptions::new().write(true).open(&template.0).unwrap();
        let contents = fs::read(&template.0).unwrap();

        file.set_len(4 * PAGE as u64).unwrap();
        // Below a call: the guest does not go on.
        ends(through.call(&mut store, ()));
        assert!(get.call(&mut store, 0).is_err() && store.snapshot().is_err());
        assert!(store.reset(()).is_err(), "{reset}: the file is still short");
        fs::write(&template.0, &contents).unwrap();
        store.reset(()).unwrap();
        assert_eq!(call(&mut store, instance, "get", at as i32), fresh(at).into(), "{reset}");
        // Not even to catch what the host function throws.
        let caught = instance.get_typed_func::<(), i32>(&mut store, "caught").unwrap();
        file.set_len(4 * PAGE as u64).unwrap();
        assert_eq!(caught.call(&mut store, ()).unwrap_err().kind(), ErrorKind::Exception);
        fs::write(&template.0, &contents).unwrap();
        store.reset(()).unwrap();
        // What the runtime does for guests is no different.
        for name in ["init", "fill"] {
            let bulk = instance.get_typed_func::<(), i32>(&mut store, name).unwrap();
            file.set_len(4 * PAGE as u64).unwrap();
            ends(bulk.call(&mut store, ()));
            fs::write(&template.0, &contents).unwrap();
            store.reset(()).unwrap();
            assert_fresh(&mut store, instance, name);
        }

        // Outside: it cannot be entered.
        file.set_len(4 * PAGE as u64).unwrap();
        touch(&memory, store.as_context_mut());
        ends(get.call(&mut store, 0));
        fs::write(&template.0, &contents).unwrap();
        store.reset(()).unwrap();
        assert_fresh(&mut store, instance, "after the second reset");
        // What touches nothing that is gone notices nothing.
        assert_eq!(call(&mut beside, other, "get", 0), fresh(0).into());
    }
}

/// Threads that spawn, write, look and reset, while the file is cut and written again all the time.
#[test]
fn a_file_that_is_cut_under_many_threads_does_not_end_the_process() {
    let template = Template::new("storm");
    let engine = Engine::default();
    let module = Module::new(&engine, program()).unwrap();
    let module = module.with_memory_image("memory", template.image()).unwrap();
    let pre = Linker::new(&engine).instantiate_pre(&module).unwrap();
    let over = AtomicBool::new(false);
    let (whole, cut) = (AtomicU32::new(0), AtomicU32::new(0));
    let run = |at: usize| -> pagefork::Result<()> {
        let (mut store, instance) = pre.spawn(())?;
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let put = instance.get_typed_func::<(i32, i32), ()>(&mut store, "put")?;
        let get = instance.get_typed_func::<i32, i32>(&mut store, "get")?;
        for _ in 0..4 {
            put.call(&mut store, (at as i32, 9))?;
            std::hint::black_box(memory.data(&store)[3 * PAGE]);
            // As the file says, should that have been cut and written again since.
            assert!([9, fresh(at).into(), 0].contains(&get.call(&mut store, at as i32)?));
            store.reset(())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        for thread in 0..3 {
            let (run, over, whole, cut) = (&run, &over, &whole, &cut);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let counter = if run(thread * PAGE).is_ok() { whole } else { cut };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let contents = fs::read(&template.0).unwrap();
        let file = OpenOptions::new().write(true).open(&template.0).unwrap();
        // Until each has happened often.
        while whole.load(Ordering::Relaxed) < 200 || cut.load(Ordering::Relaxed) < 200 {
            file.set_len(0).unwrap();
            thread::sleep(Duration::from_micros(100));
            fs::write(&template.0, &contents).unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        over.store(true, Ordering::Relaxed);
    });
    run(0).unwrap();
}
