//! Stores that are spawned before the pages of their image are here: what guests and the host touch
//! comes first, and what does not come is a trap or an error that names it.

#[path = "incomplete/processes.rs"]
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, thread};

use pagefork::image::{ImageHead, ImageStore, StoredImage};
use pagefork::*;

/// Every page of the memory has its number, at its start and in the middle.
const PROGRAM: &str = r#"(module
    (memory (export "memory") 32 64)
    (func (export "load") (param i32) (result i32) (i32.load (local.get 0)))
    (func (export "store") (param i32 i32) (i32.store (local.get 0) (local.get 1)))
    (func (export "copy") (param i32 i32 i32)
        (memory.copy (local.get 0) (local.get 1) (local.get 2)))
    (func (export "fill") (param i32 i32 i32)
        (memory.fill (local.get 0) (local.get 1) (local.get 2)))
    (func (export "sum") (result i32) (local $at i32) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (i32.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 4096)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 2097152))))
        (local.get $sum)))"#;

const PAGES: i32 = 512;
const SUM: i32 = PAGES * (PAGES + 1) / 2;

struct Remote {
    directory: std::path::PathBuf,
    engine: Engine,
    module: Module,
    images: ImageStore,
    stored: StoredImage,
    image: Arc<IncompleteImage>,
}

impl Remote {
    /// `None` where nothing runs before all is here.
    fn new(name: &str, patience: Duration) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let images = ImageStore::open(&directory).unwrap();
        let engine = Engine::default();
        let module = Module::new(&engine, PROGRAM).unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        for (page, number) in memory.data_mut(&mut store).chunks_mut(4096).zip(1i32..) {
            page[..4].copy_from_slice(&number.to_le_bytes());
            page[2048..2052].copy_from_slice(&number.to_le_bytes());
        }
        let hash = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
        let stored = images.load(hash).unwrap();
        let head = Arc::new(ImageHead::read(stored.chain().tip()).unwrap());
        let image = IncompleteImage::new(head, patience).unwrap();
        if !image.runs_incomplete() {
            println!("NOT TESTED: this system does not tell of faults in absent pages");
            return None;
        }
        Some(Self { directory, engine, module, images, stored, image })
    }

    fn load(&self) -> Snapshot<()> {
        let options = LoadOptions::new().module(&self.module);
        Snapshot::load_incomplete(&Linker::new(&self.engine), &self.image, &self.images, options)
            .unwrap()
    }

    fn spawn(&self) -> (Store<()>, Instance) {
        self.load().instance_pre().unwrap().spawn(()).unwrap()
    }

    /// Brings what is asked for while `body` runs.
    fn serving<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Acquire) {
                    for group in self.image.take_wanted() {
                        let bytes = self.stored.chain().tip().read_group(group).unwrap();
                        self.image.install(group, &bytes).unwrap();
                    }
                    thread::yield_now();
                }
            });
            let _done = Done(&is_done);
            body()
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

fn call<P: WasmValues + Unpin, R: WasmValues>(
    (store, instance): &mut (Store<()>, Instance),
    name: &str,
    params: P,
) -> Result<R> {
    instance.get_typed_func::<P, R>(&mut *store, name).unwrap().call(store, params)
}

#[test]
fn a_guest_runs_before_its_memory_is_here_and_has_what_it_touches_come() {
    let Some(remote) = Remote::new("incomplete-runs", PATIENCE) else { return };
    let mut spawned = remote.serving(|| remote.spawn());
    let before = remote.image.residency().present;
    assert!(before <= 2, "tables and state alone");
    let found = remote.serving(|| call::<i32, i32>(&mut spawned, "load", 300 * 4096).unwrap());
    assert_eq!((found, remote.image.residency().present), (301, before + 1));
    remote.serving(|| {
        call::<_, ()>(&mut spawned, "store", (400 * 4096, 7)).unwrap();
        assert_eq!(call::<_, i32>(&mut spawned, "load", 400 * 4096 + 2048).unwrap(), 401);
        assert_eq!(call::<_, i32>(&mut spawned, "sum", ()).unwrap(), SUM - 401 + 7);
        // A reset returns to the image, and other stores never saw the change.
        spawned.0.reset(()).unwrap();
        assert_eq!(call::<_, i32>(&mut spawned, "sum", ()).unwrap(), SUM);
        assert_eq!(call::<_, i32>(&mut remote.spawn(), "sum", ()).unwrap(), SUM);
    });
}

#[test]
fn copies_and_fills_of_guests_have_what_they_touch_come() {
    let Some(remote) = Remote::new("incomplete-bulk", PATIENCE) else { return };
    let mut spawned = remote.serving(|| remote.spawn());
    // Short ones and long ones are made in different ways.
    for length in [8, 200, 40_000] {
        remote.serving(|| {
            let (to, from) = (100 * 4096, 200 * 4096);
            call::<_, ()>(&mut spawned, "copy", (to, from, length)).unwrap();
            assert_eq!(call::<_, i32>(&mut spawned, "load", to).unwrap(), 201, "{length}");
            call::<_, ()>(&mut spawned, "fill", (350 * 4096, 1, length)).unwrap();
            assert_eq!(call::<_, i32>(&mut spawned, "load", 350 * 4096).unwrap(), 0x0101_0101);
            spawned = remote.spawn();
        });
    }
}

#[test]
fn the_host_reads_and_writes_what_comes_first() {
    let Some(remote) = Remote::new("incomplete-host", PATIENCE) else { return };
    let (mut store, instance) = remote.serving(|| remote.spawn());
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    remote.serving(|| {
        let mut word = [0; 4];
        memory.read(&store, 450 * 4096, &mut word).unwrap();
        assert_eq!(i32::from_le_bytes(word), 451);
        memory.write(&mut store, 460 * 4096, &[9]).unwrap();
        memory.wait(&store, 0..4 << 12).unwrap();
        assert!(!remote.image.is_whole());
        let data = memory.data(&store);
        assert_eq!((data[460 * 4096], data[461 * 4096]), (9, (462 & 0xff) as u8));
        assert!(remote.image.missing().is_empty());
    });
}

fn is_given_up(error: MemoryAccessError) -> bool {
    matches!(error.problem, MemoryAccessProblem::Absent(page) if page.why == Absence::GivenUp)
}

#[test]
fn what_does_not_come_is_a_trap_or_an_error_that_names_it() {
    let Some(remote) = Remote::new("incomplete-lost", PATIENCE) else { return };
    let mut spawned = remote.serving(|| remote.spawn());
    let memory = spawned.1.get_memory(&mut spawned.0, "memory").unwrap();
    remote.image.give_up();
    let absent = |error: Error| {
        let trap = error.downcast_ref::<Trap>().expect("it is a trap");
        assert_eq!(trap.code(), TrapCode::PageAbsent, "{error}");
        assert!(!trap.backtrace().frames().is_empty());
        assert!(error.to_string().contains("given up"), "{error}");
        trap.absent_page().expect("it is named").why
    };
    for _ in 0..2 {
        let error = call::<_, i32>(&mut spawned, "load", 300 * 4096).unwrap_err();
        assert_eq!(absent(error), Absence::GivenUp);
        let error = call::<_, ()>(&mut spawned, "store", (300 * 4096, 1)).unwrap_err();
        assert_eq!(absent(error), Absence::GivenUp);
        for length in [8, 200, 40_000] {
            let error = call::<_, ()>(&mut spawned, "fill", (99 * 4096, 1, length)).unwrap_err();
            assert_eq!(absent(error), Absence::GivenUp, "{length}");
            let range = (99 * 4096, 9 * 4096, length);
            let error = call::<_, ()>(&mut spawned, "copy", range).unwrap_err();
            assert_eq!(absent(error), Absence::GivenUp, "{length}");
        }
    }
    let mut word = [0; 4];
    let error = memory.read(&spawned.0, 450 * 4096, &mut word).unwrap_err();
    assert!(is_given_up(error), "{error}");
    let error = memory.write(&mut spawned.0, 450 * 4096, &word).unwrap_err();
    assert!(is_given_up(error), "{error}");
    memory.wait(&spawned.0, 0..1 << 20).unwrap_err();
    // Beyond the memory the error is another one.
    let error = memory.read(&spawned.0, 64 << 20, &mut word).unwrap_err();
    assert_eq!(error.problem, MemoryAccessProblem::Outside);
    let error = call::<_, i32>(&mut spawned, "load", -8).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().unwrap().code(), TrapCode::MemoryOutOfBounds);
    spawned.0.reset(()).unwrap();
}

/// `Memory::data` has no error to give, so it says by a panic which page did not come, and never gives zeros.
#[test]
fn bytes_of_a_memory_that_do_not_all_come_are_not_given() {
    let Some(remote) = Remote::new("incomplete-data", PATIENCE) else { return };
    let (mut store, instance) = remote.serving(|| remote.spawn());
    let memory = instance.get_memory(&mut store, "memory").unwrap();
    remote.image.give_up();
    let said = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains("given up"), "{text}");
    };
    let data = || memory.data(&store).len();
    said(std::panic::catch_unwind(std::panic::AssertUnwindSafe(data)).unwrap_err());
    let data = || memory.data_mut(&mut store).len();
    said(std::panic::catch_unwind(std::panic::AssertUnwindSafe(data)).unwrap_err());
    // The store is as it was.
    let error = memory.wait(&store, 0..1 << 20).unwrap_err();
    assert_eq!(error.downcast_ref::<AbsentPage>().unwrap().why, Absence::GivenUp);
}

#[test]
fn a_guest_that_has_waited_too_long_can_be_called_again() {
    let Some(remote) = Remote::new("incomplete-late", Duration::from_millis(20)) else { return };
    // What loading waits for is here.
    for group in 0..2 {
        let bytes = remote.stored.chain().tip().read_group(group).unwrap();
        remote.image.install(group, &bytes).unwrap();
    }
    let mut spawned = remote.spawn();
    let error = call::<_, i32>(&mut spawned, "load", 300 * 4096).unwrap_err();
    let absent = *error.downcast_ref::<Trap>().unwrap().absent_page().unwrap();
    assert_eq!(absent.why, Absence::Overdue);
    let bytes = remote.stored.chain().tip().read_group(absent.group).unwrap();
    remote.image.install(absent.group, &bytes).unwrap();
    assert_eq!(call::<_, i32>(&mut spawned, "load", 300 * 4096).unwrap(), 301);
}

#[test]
fn a_partly_resident_store_is_captured_and_forked() {
    let Some(remote) = Remote::new("incomplete-forks", PATIENCE) else { return };
    let mut spawned = remote.serving(|| remote.spawn());
    remote.serving(|| call::<_, ()>(&mut spawned, "store", (300 * 4096, 7)).unwrap());
    let present = remote.image.residency().present;
    let snapshot = spawned.0.snapshot().unwrap();
    assert_eq!(remote.image.residency().present, present, "nothing else came for it");
    let mut fork = snapshot.instance_pre().unwrap().spawn(()).unwrap();
    remote.serving(|| {
        assert_eq!(call::<_, i32>(&mut fork, "sum", ()).unwrap(), SUM - 301 + 7);
    });
}

#[test]
fn resets_growth_and_parked_stores_keep_what_is_absent_so() {
    let Some(remote) = Remote::new("incomplete-kept", PATIENCE) else { return };
    let snapshot = remote.serving(|| remote.load());
    let pre = snapshot.instance_pre().unwrap();
    let mut present = remote.image.residency().present;
    for page in [300, 200, 100] {
        // The second and the third are the first, parked.
        let mut spawned = pre.spawn(()).unwrap();
        assert_eq!(remote.image.residency().present, present, "nothing comes for a spawn");
        let grown = spawned.1.get_memory(&mut spawned.0, "memory").unwrap();
        grown.grow(&mut spawned.0, 8).unwrap();
        for round in 0..3 {
            let at = (page + 8 * round) * 4096;
            let found = remote.serving(|| call::<i32, i32>(&mut spawned, "load", at).unwrap());
            assert_eq!(found, page + 8 * round + 1);
            present += 1;
            assert_eq!(remote.image.residency().present, present);
            match round {
                0 => spawned.0.reset(()).unwrap(),
                1 => spawned.0.reset_to(&snapshot, ()).unwrap(),
                _ => {}
            }
        }
    }
    remote.serving(|| {
        assert_eq!(call::<_, i32>(&mut pre.spawn(()).unwrap(), "sum", ()).unwrap(), SUM);
    });
}

/// A guest that waits for a page blocks its thread, and with it others that are polled there.
#[test]
fn calls_that_wait_are_refused_until_all_is_here() {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    let Some(remote) = Remote::new("incomplete-async", PATIENCE) else { return };
    let (mut store, instance) = remote.serving(|| remote.spawn());
    let sum = instance.get_typed_func::<(), i32>(&mut store, "sum").unwrap();
    let poll = |store: &mut Store<()>| match pin!(sum.call_async(store, ()))
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("nothing waits"),
    };
    let error = poll(&mut store).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(UsageError::AbsentPages)), "{error}");
    assert_eq!(remote.image.take_wanted(), [], "the guest has not run");
    remote.serving(|| remote.image.wait_whole().unwrap());
    assert_eq!(poll(&mut store).unwrap(), SUM);
}

#[test]
fn what_is_saved_of_a_partly_resident_store_is_complete_or_an_error() {
    let Some(remote) = Remote::new("incomplete-saved", PATIENCE) else { return };
    let mut spawned = remote.serving(|| remote.spawn());
    remote.serving(|| call::<_, ()>(&mut spawned, "store", (300 * 4096, 7)).unwrap());
    let snapshot = spawned.0.snapshot().unwrap();
    let save = || snapshot.save(&remote.images, SaveOptions::new());
    let hash = remote.serving(|| save().unwrap());
    let options = LoadOptions::new().module(&remote.module);
    let linker = Linker::new(&remote.engine);
    let loaded = Snapshot::<()>::load(&linker, &remote.images, hash, options).unwrap();
    let mut stored = loaded.instance_pre().unwrap().spawn(()).unwrap();
    assert_eq!(call::<_, i32>(&mut stored, "sum", ()).unwrap(), SUM - 301 + 7);

    let Some(lost) = Remote::new("incomplete-unsaved", PATIENCE) else { return };
    let mut spawned = lost.serving(|| lost.spawn());
    lost.serving(|| call::<_, ()>(&mut spawned, "store", (300 * 4096, 7)).unwrap());
    lost.image.give_up();
    let snapshot = spawned.0.snapshot().unwrap();
    let error = snapshot.save(&lost.images, SaveOptions::new()).unwrap_err();
    assert!(format!("{error:#}").contains("given up"), "{error:#}");
}
