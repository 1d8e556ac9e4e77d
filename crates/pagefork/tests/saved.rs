//! Snapshots that are saved go on in other engines and processes as they would have by themselves;
//! those that do not fit, or are not to be trusted, are refused by what they are.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use pagefork::image::{ContentHash, ImageStore, SecretKey, TrustedKeys};
use pagefork::{
    CallProgress, Caller, Config, DeltaTracker, Engine, ExternRef, Func, Instance, LinkError,
    Linker, LoadOptions, Module, ResetKind, Result, SaveOptions, Snapshot, SnapshotError, Store,
    StrategyConfig, Trap, TrapCode, Val,
};

/// Fills memory with words that say where they are, asks, and adds up what is there.
const PROGRAM: &str = r#"(module $program
    (import "host" "ask" (func $ask (result i32)))
    (memory (export "memory") 64)
    (table $functions 2 funcref)
    (global $calls (mut i32) (i32.const 0))
    (elem (i32.const 0) $twice $thrice)
    (type $unary (func (param i32) (result i32)))
    (func $twice (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $thrice (type $unary) (i32.mul (local.get 0) (i32.const 3)))
    (func (export "fill") (param $from i32) (param $to i32)
        (loop $next
            (i32.store (local.get $from) (i32.add (local.get $from) (i32.const 1)))
            (local.set $from (i32.add (local.get $from) (i32.const 4)))
            (br_if $next (i32.lt_u (local.get $from) (local.get $to)))))
    (func (export "put") (param i32 i32) (i32.store (local.get 0) (local.get 1)))
    (func (export "get") (param i32) (result i32) (i32.load (local.get 0)))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "run") (param $factor i32) (result i32)
        (local $sum i32)
        (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
        (local.set $sum (call_indirect (type $unary) (call $ask) (local.get $factor)))
        (i32.add (local.get $sum) (i32.mul (i32.const 1000) (global.get $calls)))))"#;

/// A directory of a test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("pagefork-saved-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }

    fn images(&self) -> ImageStore {
        ImageStore::open(&self.0).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn linker(engine: &Engine) -> Linker<Option<i32>> {
    let mut linker = Linker::new(engine);
    let ask = |mut caller: Caller<'_, Option<i32>>| -> Result<i32> {
        caller.data().ok_or_else(|| caller.suspend_before())
    };
    linker.func_wrap("host", "ask", ask).unwrap();
    linker
}

/// A program with its memory filled up to `filled` bytes, which waits in `run` if `suspended`.
fn started(engine: &Engine, filled: i32, suspended: bool) -> Store<Option<i32>> {
    let module = Module::new(engine, PROGRAM).unwrap();
    let mut store = Store::new(engine, None);
    let instance = linker(engine).instantiate(&mut store, &module).unwrap();
    let fill = instance.get_typed_func::<(i32, i32), ()>(&mut store, "fill").unwrap();
    fill.call(&mut store, (0, filled)).unwrap();
    if suspended {
        let run = instance.get_func(&mut store, "run").unwrap();
        let progress = run.call_suspendable(&mut store, &[Val::I32(1)]).unwrap();
        assert!(matches!(progress, CallProgress::Suspended));
    }
    store
}

fn resumed(store: &mut Store<Option<i32>>) -> i32 {
    match store.resume().unwrap() {
        CallProgress::Finished(results) => results[0].i32().unwrap(),
        CallProgress::Suspended => panic!("it has an answer"),
    }
}

fn get(store: &mut Store<Option<i32>>, instance: Instance, at: i32) -> i32 {
    instance.get_typed_func(&mut *store, "get").unwrap().call(store, at).unwrap()
}

fn put(store: &mut Store<Option<i32>>, instance: Instance, at: i32, value: i32) {
    let put = instance.get_typed_func::<(i32, i32), ()>(&mut *store, "put").unwrap();
    put.call(store, (at, value)).unwrap();
}

#[track_caller]
fn refused<T>(loaded: Result<T>) -> SnapshotError {
    let error = loaded.map(|_| ()).unwrap_err();
    error.downcast_ref().cloned().unwrap_or_else(|| panic!("another error: {error:?}"))
}

#[test]
fn a_saved_snapshot_goes_on_in_another_engine_by_each_strategy() {
    let directory = Directory::new("strategies");
    let images = directory.images();
    for suspended in [false, true] {
        let image = {
            let mut store = started(&Engine::default(), 300_000, suspended);
            store.snapshot().unwrap().save(&images, SaveOptions::new().state("kept")).unwrap()
        };
        for reset in ResetKind::ALL {
            let engine = Engine::default();
            let loaded = Snapshot::load(&linker(&engine), &images, image, LoadOptions::new());
            let snapshot = loaded.unwrap();
            assert_eq!(snapshot.state(), b"kept");
            let strategies = StrategyConfig { reset, ..Default::default() };
            let pre = snapshot.instance_pre().unwrap().with_strategies(strategies).unwrap();
            let (mut store, instance) = pre.spawn(Some(20)).unwrap();
            for round in 0..4 {
                let what = format!("{reset} {suspended} {round}");
                if suspended {
                    assert_eq!(resumed(&mut store), 20 * 3 + 1000, "{what}");
                } else {
                    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
                    assert_eq!(run.call(&mut store, 0).unwrap(), 40 + 1000, "{what}");
                }
                for at in [0, 4, 4092, 150_000, 299_996] {
                    assert_eq!(get(&mut store, instance, at), at + 1, "{what}");
                    put(&mut store, instance, at, -1);
                }
                assert_eq!(get(&mut store, instance, 300_000), 0, "{what}");
                put(&mut store, instance, 4_000_000, 7);
                store.reset(Some(20)).unwrap();
            }
            // Other stores are not touched by it.
            let (mut other, instance) = pre.spawn(Some(1)).unwrap();
            if suspended {
                pagefork::suspend::abandon(&mut other);
            }
            assert_eq!(get(&mut other, instance, 4092), 4093);
        }
    }
}

/// What the kernel counts of this process: bytes read by calls, bytes that came from disks for it, and
/// bytes of files that it has mapped in.
fn read_so_far() -> [u64; 3] {
    let field = |text: &str, name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect("the kernel says so");
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    [field(&io, "rchar:"), field(&io, "read_bytes:"), field(&status, "RssFile:") * 1024]
}

/// Bytes of a file that the kernel has in memory.
fn resident(file: &File) -> usize {
    let size = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0_u8; size.div_ceil(4096)];
    // SAFETY: a map of its own, at a place that the kernel chooses, which is asked about and removed;
    // there is a byte for each of its pages.
    unsafe {
        let none = std::ptr::null_mut();
        let map = libc::mmap(none, size, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, size, pages.as_mut_ptr()), 0);
        libc::munmap(map, size);
    }
    4096 * pages.iter().filter(|page| **page & 1 == 1).count()
}

/// Of what lies on the disk alone.
#[test]
fn loading_and_spawning_read_none_of_the_memories() {
    unread("loading_and_spawning_read_none_of_the_memories", 128);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn loading_and_spawning_read_none_of_a_gibibyte() {
    unread("loading_and_spawning_read_none_of_a_gibibyte", 1024);
}

fn unread(name: &str, mebibytes: u32) {
    in_own_process(name, || {
        // On a disk: what lies in memory alone cannot be forgotten there.
        let directory = Directory(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&directory.0);
        let images = directory.images();
        let engine = Engine::default();
        // A page each half mebibyte, so that one span covers it all, with holes.
        let (pages, end) = (16 * mebibytes, mebibytes << 20);
        let module = Module::new(
            &engine,
            format!(
                r#"(module (memory {pages})
                (func (export "fill") (local $at i32)
                    (loop $next
                        (i32.store (local.get $at) (i32.add (local.get $at) (i32.const 7)))
                        (local.set $at (i32.add (local.get $at) (i32.const 524288)))
                        (br_if $next (i32.lt_u (local.get $at) (i32.const {end})))))
                (func (export "get") (param i32) (result i32) (i32.load (local.get 0))))"#
            ),
        )
        .unwrap();
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let fill = instance.get_typed_func::<(), ()>(&mut store, "fill").unwrap();
        fill.call(&mut store, ()).unwrap();
        let image = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
        drop(store);
        let file = File::open(directory.0.join("images").join(image.to_string())).unwrap();
        assert!(file.metadata().unwrap().len() > u64::from(end / 2));
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(resident(&file), 0, "the kernel forgets what is on the disk");

        let before = read_so_far();
        let options = LoadOptions::new().module(&module);
        let snapshot =
            Snapshot::load(&Linker::<()>::new(&engine), &images, image, options).unwrap();
        let pre = snapshot.instance_pre().unwrap();
        let mut stores: Vec<_> = (0..10).map(|_| pre.spawn(()).unwrap()).collect();
        let after = read_so_far();
        let [calls, disk, mapped] = std::array::from_fn(|i| after[i].saturating_sub(before[i]));
        assert!(calls < 256 << 10, "{calls} bytes were read by calls");
        // The kernel reads some more of a file than it is asked for.
        assert!(disk < 1 << 20, "{disk} bytes were read from the disk");
        assert!(mapped < 4 << 20, "{mapped} bytes were mapped in");
        let there = resident(&file);
        assert!(there < 1 << 20, "{there} bytes of the file are in memory");

        // What is touched is read, with what the kernel reads ahead: up to 8 MiB each.
        for (number, (store, instance)) in stores.iter_mut().enumerate() {
            let get = instance.get_typed_func::<i32, i32>(&mut *store, "get").unwrap();
            let at = (20 * number as i32 + 30) << 19;
            assert_eq!(get.call(store, at).unwrap(), at + 7);
        }
        let there = resident(&file);
        assert!((10 * 4096..1 << 28).contains(&there), "{there} bytes of the file are in memory");
    });
}

#[test]
fn a_delta_has_the_pages_that_were_written_and_chains_go_on() {
    let directory = Directory::new("deltas");
    let images = directory.images();
    let engine = Engine::default();
    let linker = linker(&engine);
    let mut first = started(&engine, 1_000_000, false);
    let mut image = first.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let data_size =
        |image: ContentHash| images.load(image).unwrap().chain().tip().manifest().data_size;
    let whole = data_size(image);
    assert!(whole >= 1_000_000);
    let mut expected = vec![(0, 1), (999_996, 999_997)];
    for round in 0..10 {
        let options = LoadOptions::new();
        let snapshot = Snapshot::load(&linker, &images, image, options).unwrap();
        let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(None).unwrap();
        for (at, value) in &expected {
            assert_eq!(get(&mut store, instance, *at), *value, "{round}: {at}");
        }
        let at = 8192 * round + 16;
        put(&mut store, instance, at, 77 + round);
        expected.push((at, 77 + round));
        if round == 3 {
            // Page 100 becomes zero, and page 200 equal to the first one.
            for word in 0..1024 {
                put(&mut store, instance, 100 * 4096 + 4 * word, 0);
                let first = get(&mut store, instance, 4 * word);
                put(&mut store, instance, 200 * 4096 + 4 * word, first);
            }
            expected.extend([(100 * 4096 + 8, 0), (200 * 4096, 1), (200 * 4096 + 16, 77)]);
        }
        if round == 5 {
            let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
            assert_eq!(grow.call(&mut store, 1).unwrap(), 64);
            put(&mut store, instance, 64 * 65_536 + 12, 5);
            expected.push((64 * 65_536 + 12, 5));
        }
        let captured = store.snapshot().unwrap();
        image = captured.save(&images, SaveOptions::new().delta_of(&snapshot)).unwrap();
        let size = data_size(image);
        // The state is written, too: with the size of the memory, for one.
        assert!(size <= 5 * 4096 + 3 * 4096, "round {round}: {size}");
        // Nothing changed: almost nothing.
        let again = captured.save(&images, SaveOptions::new().delta_of(&captured)).unwrap();
        assert!(data_size(again) < 4096, "{}", data_size(again));
    }
    let chain = images.load(image).unwrap();
    assert_eq!(chain.chain().images().len(), 11);
    let squashed = images.squash(image, &[]).unwrap();
    for image in [image, squashed.hash()] {
        let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
        let pre = snapshot.instance_pre().unwrap();
        for _ in 0..3 {
            let (mut store, instance) = pre.spawn(None).unwrap();
            for (at, value) in &expected {
                assert_eq!(get(&mut store, instance, *at), *value, "{at}");
                put(&mut store, instance, *at, -1);
            }
        }
    }
}

#[test]
fn successive_snapshots_of_one_running_store_are_deltas_of_each_other() {
    let directory = Directory::new("successive");
    let images = directory.images();
    let engine = Engine::default();
    let linker = linker(&engine);
    let first = started(&engine, 1_000_000, false).snapshot().unwrap();
    first.save(&images, SaveOptions::new()).unwrap();
    let (mut store, instance) = first.instance_pre().unwrap().spawn(None).unwrap();
    let (mut last, mut saved) = (first, Vec::new());
    for round in 0..6 {
        put(&mut store, instance, 40_960 * round, 1000 + round);
        put(&mut store, instance, 8, round);
        let snapshot = store.snapshot().unwrap();
        let options = SaveOptions::new().delta_of(&last);
        saved.push(snapshot.save(&images, options).unwrap());
        last = snapshot;
    }
    for (round, image) in (0..).zip(saved) {
        let stored = images.load(image).unwrap();
        assert_eq!(stored.chain().images().len(), round as usize + 2);
        assert!(stored.chain().tip().manifest().data_size <= 3 * 4096, "{round}");
        let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
        let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(None).unwrap();
        assert_eq!(get(&mut store, instance, 8), round);
        for earlier in 0..6 {
            let at = 40_960 * earlier;
            let expected = if earlier <= round { 1000 + earlier } else { at + 1 };
            assert_eq!(get(&mut store, instance, at), expected, "{round} {earlier}");
        }
    }
}

/// A program that runs on after its first snapshot, and what each of ten later ones has, by each
/// tracker.
#[test]
fn ten_snapshots_of_a_program_that_runs_on_have_what_was_written_by_each_tracker() {
    for deltas in DeltaTracker::ALL {
        let directory = Directory::new(&format!("trackers-{deltas}"));
        let images = directory.images();
        let strategies = StrategyConfig { deltas, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let linker = linker(&engine);
        let module = Module::new(&engine, PROGRAM).unwrap();
        let mut store = Store::new(&engine, None);
        let instance = linker.instantiate(&mut store, &module).unwrap();
        let fill = instance.get_typed_func::<(i32, i32), ()>(&mut store, "fill").unwrap();
        fill.call(&mut store, (0, 1_000_000)).unwrap();
        let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let mut last = store.snapshot().unwrap();
        last.save(&images, SaveOptions::new()).unwrap();
        for round in 0..10usize {
            // Pages that differ from the last snapshot, besides that of the size.
            let changed = match round {
                // Nothing changed.
                0 => 0,
                // A page becomes equal to the first page.
                1 => {
                    memory.data_mut(&mut store).copy_within(0..4096, 5 * 4096);
                    1
                }
                // One becomes zero, and one is written as it was.
                2 => {
                    memory.data_mut(&mut store)[9 * 4096..10 * 4096].fill(0);
                    let word = get(&mut store, instance, 77 * 4096);
                    put(&mut store, instance, 77 * 4096, word);
                    1
                }
                // Growth, of which nothing is used, and then a part.
                3 => {
                    grow.call(&mut store, 3).unwrap();
                    1
                }
                4 => {
                    put(&mut store, instance, 65 << 16, 4);
                    1
                }
                _ => {
                    for page in 0..round {
                        put(&mut store, instance, (page * 31 + round) as i32 * 4096, -1);
                    }
                    round
                }
            };
            let what = format!("{deltas}, round {round}");
            let snapshot = store.snapshot().unwrap();
            let options = SaveOptions::new().delta_of(&last);
            let image = snapshot.save(&images, options).unwrap();
            let stored = images.load(image).unwrap();
            assert_eq!(stored.chain().images().len(), round + 2, "{what}");
            let size = stored.chain().tip().manifest().data_size;
            assert!(size <= changed as u64 * 4096, "{what}: {size}");
            let squashed = || images.squash(image, &[]).unwrap().hash();
            for image in [Some(image), (round % 5 == 4).then(squashed)].into_iter().flatten() {
                let loaded = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
                let (mut other, instance) = loaded.instance_pre().unwrap().spawn(None).unwrap();
                let other_memory = instance.get_memory(&mut other, "memory").unwrap();
                assert!(other_memory.data(&other) == memory.data(&store), "{what}");
            }
            last = snapshot;
        }
    }
}

/// An image that a build of this format has written, before anything that was changed since. It has
/// no frames, so it goes on with code that is compiled now.
#[test]
fn an_image_that_was_kept_goes_on() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images/form-1.image");
    let engine = Engine::default();
    if std::env::var_os("BLESS").is_some() {
        let directory = Directory::new("bless");
        let images = directory.images();
        let mut store = started(&engine, 4000, false);
        let image =
            store.snapshot().unwrap().save(&images, SaveOptions::new().state("kept")).unwrap();
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        fs::copy(directory.0.join("images").join(image.to_string()), &kept).unwrap();
    }
    let directory = Directory::new("kept");
    let images = directory.images();
    let image = images.adopt(fs::read(&kept).unwrap()).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let options = LoadOptions::new().module(&module);
    let snapshot = Snapshot::load(&linker(&engine), &images, image.hash(), options).unwrap();
    assert_eq!(snapshot.state(), b"kept");
    let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(Some(4)).unwrap();
    assert_eq!(get(&mut store, instance, 3996), 3997);
    let run = instance.get_typed_func::<i32, i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, 1).unwrap(), 12 + 1000);
}

/// As a delta it would be copied into each slot.
#[test]
fn a_delta_of_many_pages_is_made_whole() {
    let directory = Directory::new("squashed");
    let images = directory.images();
    let engine = Engine::default();
    let linker = linker(&engine);
    let before = started(&engine, 4, false).snapshot().unwrap();
    before.save(&images, SaveOptions::new()).unwrap();
    let (mut store, instance) = before.instance_pre().unwrap().spawn(None).unwrap();
    let grow = instance.get_typed_func::<i32, i32>(&mut store, "grow").unwrap();
    grow.call(&mut store, 64).unwrap();
    for page in 0..1500 {
        put(&mut store, instance, page * 4096, page);
    }
    let captured = store.snapshot().unwrap();
    let image = captured.save(&images, SaveOptions::new().delta_of(&before)).unwrap();
    let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
    assert_ne!(snapshot.stored_image().unwrap().hash(), image);
    assert_eq!(snapshot.stored_image().unwrap().chain().images().len(), 1);
    let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(None).unwrap();
    for page in 0..1500 {
        assert_eq!(get(&mut store, instance, page * 4096), page);
    }
    // Once: what it was made of is not read again.
    let full = snapshot.stored_image().unwrap().hash();
    let path = images.path().join("images").join(image.to_string());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    assert!(images.verify(image).is_err());
    images.set_name("delta", image).unwrap();
    drop((snapshot, store));
    assert_eq!(images.collect().unwrap().images, []);
    let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
    assert_eq!(snapshot.stored_image().unwrap().hash(), full);
}

/// Where another process finds what this one has saved.
fn load_elsewhere(directory: &Path, image: ContentHash, key: Option<&SecretKey>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "elsewhere", "--nocapture", "--include-ignored"]);
    command.env("PAGEFORK_TEST_IMAGES", directory).env("PAGEFORK_TEST_IMAGE", image.to_string());
    if let Some(key) = key {
        command.env("PAGEFORK_TEST_KEY", key.public().to_string());
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("came to: "));
    line.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

/// What another process does, when it is told where.
#[test]
#[ignore = "run by others, in a process of its own"]
fn elsewhere() {
    let Some(directory) = std::env::var_os("PAGEFORK_TEST_IMAGES") else { return };
    let images = ImageStore::open(directory).unwrap();
    let image = std::env::var("PAGEFORK_TEST_IMAGE").unwrap().parse().unwrap();
    let key = std::env::var("PAGEFORK_TEST_KEY").ok().map(|key| key.parse().unwrap());
    let engine = Engine::default();
    let options = LoadOptions::new().trust(TrustedKeys::from_iter(key));
    match Snapshot::load(&linker(&engine), &images, image, options) {
        Ok(snapshot) => {
            let (mut store, _) = snapshot.instance_pre().unwrap().spawn(Some(5)).unwrap();
            println!("came to: {}", resumed(&mut store));
        }
        Err(error) => println!("came to: {error:#}"),
    }
}

#[test]
fn a_suspended_guest_goes_on_in_another_process_that_trusts_who_signed() {
    let directory = Directory::new("signed");
    let images = directory.images();
    let [key, other] = [[1; 32], [2; 32]].map(SecretKey::from_seed);
    let mut store = started(&Engine::default(), 20_000, true);
    let snapshot = store.snapshot().unwrap();
    let options = SaveOptions::new().sign_with(std::slice::from_ref(&key));
    let signed = snapshot.save(&images, options).unwrap();
    let elsewhere = |key| load_elsewhere(&directory.0, signed, key);
    assert_eq!(elsewhere(Some(&key)), (5 * 3 + 1000).to_string());
    for key in [None, Some(&other)] {
        let why = elsewhere(key);
        assert!(why.contains("not signed by a key that is trusted"), "{why}");
    }
}

#[test]
fn a_file_that_is_cut_short_under_a_guest_is_a_trap() {
    let directory = Directory::new("cut");
    let images = directory.images();
    let mut store = started(&Engine::default(), 1_000_000, false);
    let image = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let engine = Engine::default();
    let linker = linker(&engine);
    let snapshot = Snapshot::load(&linker, &images, image, LoadOptions::new()).unwrap();
    let pre = snapshot.instance_pre().unwrap();
    let (mut store, instance) = pre.spawn(None).unwrap();
    assert_eq!(get(&mut store, instance, 0), 1);
    let path = directory.0.join("images").join(image.to_string());
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    fs::set_permissions(&path, permissions).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();

    let get = instance.get_typed_func::<i32, i32>(&mut store, "get").unwrap();
    let error = get.call(&mut store, 900_000).unwrap_err();
    assert_eq!(error.downcast_ref::<Trap>().map(Trap::code), Some(TrapCode::ImageUnreadable));
    // Its length is asked for once a tick of the clock.
    fn noticed(what: impl FnMut() -> pagefork::Result<()>) {
        let error = std::iter::repeat_with(what).find_map(Result::err).expect("it does not end");
        assert!(error.to_string().contains("cut short"), "{error}");
    }
    noticed(|| store.reset(None).map(|_| ()));
    noticed(|| pre.spawn(None).map(|_| ()));
}

#[test]
fn code_that_is_not_there_is_said_by_its_hash() {
    let directory = Directory::new("code");
    let images = directory.images();
    let engine = Engine::default();
    let mut store = started(&engine, 4, false);
    let image = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let hash = images.codes().unwrap()[0];
    let path = directory.0.join("code").join(hash.to_string());
    fs::remove_file(&path).unwrap();
    let other = Engine::default();
    let load = |options| Snapshot::load(&linker(&other), &images, image, options);
    let SnapshotError::NoCode { hash: named, .. } = refused(load(LoadOptions::new())) else {
        panic!("another error")
    };
    assert_eq!(named, hash.to_string());
    // What only cannot be read is not said to be for other processors.
    assert!(refused(load(LoadOptions::new())).to_string().contains("processors"));
    fs::create_dir(&path).unwrap();
    assert!(!refused(load(LoadOptions::new())).to_string().contains("processors"));
    fs::remove_dir(&path).unwrap();
    // Compiled again it is the same.
    let module = Module::new(&other, PROGRAM).unwrap();
    assert_eq!(ContentHash::of(&module.serialize().unwrap()), hash);
    load(LoadOptions::new().module(&module)).unwrap();
    assert!(load(LoadOptions::new().module(&Module::new(&engine, PROGRAM).unwrap())).is_err());

    // With other settings the code is not the same; without frames it does as well.
    let engine = Engine::new(Config::new().fuel(true)).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let options = LoadOptions::new().module(&module);
    Snapshot::load(&linker(&engine), &images, image, options).unwrap();
    let mut store = started(&Engine::default(), 4, true);
    let image = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let options = LoadOptions::new().module(&module);
    let refused = refused(Snapshot::load(&linker(&engine), &images, image, options));
    assert!(refused.to_string().contains("other settings"), "{refused}");
    // Or slots are laid out otherwise.
    let engine = Engine::new(Config::new().stack_size(256 << 10)).unwrap();
    let module = Module::new(&engine, PROGRAM).unwrap();
    let mut store = started(&Engine::default(), 4, false);
    let image = store.snapshot().unwrap().save(&images, SaveOptions::new()).unwrap();
    let options = LoadOptions::new().module(&module);
    let loaded = Snapshot::load(&linker(&engine), &images, image, options);
    assert!(matches!(self::refused(loaded), SnapshotError::OtherLayout(_)));
}

#[test]
fn functions_of_the_host_are_found_by_name_and_type() {
    let directory = Directory::new("names");
    let images = directory.images();
    let engine = Engine::default();
    let module = Module::new(
        &engine,
        r#"(module (import "" "" (func $f (result i32)))
            (func (export "run") (result i32) (call $f)))"#,
    )
    .unwrap();
    let mut store = Store::new(&engine, ());
    let function = Func::wrap(&mut store, || 6);
    let import = [function.into()];
    Instance::new(&mut store, &module, &import).unwrap();
    let snapshot = store.snapshot().unwrap();
    let unnamed = refused(snapshot.save(&images, SaveOptions::new()));
    assert!(matches!(unnamed, SnapshotError::UnnamedHostFunction { number: 0, .. }), "{unnamed}");
    let named = || SaveOptions::new().name_host_function(function, "the", "function");
    let image = snapshot.save(&images, named()).unwrap();
    let other = Func::wrap(&mut Store::new(&engine, ()), || 6);
    let foreign = SaveOptions::new().name_host_function(other, "a", "b");
    assert!(snapshot.save(&images, foreign).is_err());

    let load = |linker: &Linker<()>| Snapshot::load(linker, &images, image, LoadOptions::new());
    let error = load(&Linker::new(&engine)).map(|_| ()).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(LinkError::NotDefined { .. })), "{error}");
    let mut linker = Linker::new(&engine);
    linker.func_wrap("the", "function", || 7i64).unwrap();
    let other = refused(load(&linker));
    assert!(matches!(other, SnapshotError::OtherHostFunction { .. }), "{other}");
    let mut linker = Linker::new(&engine);
    linker.func_wrap("the", "function", || 8).unwrap();
    let (mut store, instance) = load(&linker).unwrap().instance_pre().unwrap().spawn(()).unwrap();
    let run = instance.get_typed_func::<(), i32>(&mut store, "run").unwrap();
    assert_eq!(run.call(&mut store, ()).unwrap(), 8);
}

#[test]
fn values_of_the_host_are_kept_as_bytes_by_hooks() {
    let directory = Directory::new("values");
    let images = directory.images();
    let engine = Engine::default();
    let module =
        Module::new(&engine, r#"(module (global (export "g") (mut externref) (ref.null extern)))"#)
            .unwrap();
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).unwrap();
    let value = ExternRef::new(&mut store, 41u32).unwrap();
    let global = instance.get_global(&mut store, "g").unwrap();
    global.set(&mut store, Val::ExternRef(Some(value))).unwrap();
    let number = |value: &(dyn Any + Send + Sync)| *value.downcast_ref::<u32>().expect("a number");
    let snapshot = store.snapshot_with(|value| Ok(Arc::new(number(value)))).unwrap();
    let missing = refused(snapshot.save(&images, SaveOptions::new()));
    assert!(matches!(missing, SnapshotError::NoHook { hook: "SaveOptions::references" }));
    let mut save = |value: &(dyn Any + Send + Sync)| Ok(number(value).to_le_bytes().to_vec());
    let image = snapshot.save(&images, SaveOptions::new().references(&mut save)).unwrap();

    let linker = Linker::<()>::new(&engine);
    let missing = refused(Snapshot::load(&linker, &images, image, LoadOptions::new()));
    assert!(matches!(missing, SnapshotError::NoHook { hook: "LoadOptions::references" }));
    let mut read = |bytes: &[u8]| -> Result<Arc<dyn Any + Send + Sync>> {
        Ok(Arc::new(u32::from_le_bytes(bytes.try_into()?) + 1))
    };
    let options = LoadOptions::new().references(&mut read);
    let snapshot = Snapshot::load(&linker, &images, image, options).unwrap();
    let (mut store, instance) = snapshot.instance_pre().unwrap().spawn(()).unwrap();
    let global = instance.get_global(&mut store, "g").unwrap();
    let Val::ExternRef(Some(value)) = global.get(&mut store) else { panic!("it is set") };
    assert_eq!(value.data(&store).unwrap().downcast_ref(), Some(&42u32));
}

/// Runs a test alone, in a process of its own.
fn in_own_process(name: &str, test: impl FnOnce()) {
    const VARIABLE: &str = "PAGEFORK_TEST_ALONE";
    if std::env::var_os(VARIABLE).is_some() {
        return test();
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--include-ignored", "--nocapture"])
        .env(VARIABLE, "1")
        .status()
        .unwrap();
    assert!(status.success());
}
