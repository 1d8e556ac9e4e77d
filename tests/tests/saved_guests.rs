//! Programs that others wrote are suspended at random moments and saved, and go on in another
//! process, and so to and fro: they do what they do undisturbed.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;
mod partner;
mod tape;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use guests::{Outcome, built, fetched};
use pagefork::image::{ContentHash, ImageStore};
use pagefork::{CallProgress, Engine, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store};
use pagefork_wasi::{
    Exit, InputSource, OutputKind, OutputPipe, StdinKind, WasiCtx, WasiCtxBuilder, WasiState,
};
use partner::Partner;
use serde::{Deserialize, Serialize};
use tape::Tape;

/// So many times a run goes on in the other process, if it lasts that long.
const HOPS: usize = 8;

/// The same where there is time: each run is as long then, and far longer than here.
const HOPS_OF_SOAK: usize = 100;

/// So many times as much the programs have to do then.
const WORK_OF_SOAK: usize = 60;

/// What goes with a snapshot: WASI's state, and how far input and output are.
#[derive(Serialize, Deserialize)]
struct Luggage {
    wasi: WasiState,
    input: Vec<u8>,
    at: usize,
    printed: Vec<u8>,
}

/// A program that runs.
struct Run {
    store: Store<WasiCtx>,
    input: Arc<Tape>,
    output: OutputPipe,
    printed: Vec<u8>,
}

fn builder(args: &[&str], input: &Arc<Tape>) -> (WasiCtxBuilder, OutputPipe) {
    let (output, stdout) = OutputKind::pipe();
    let mut builder = WasiCtxBuilder::new();
    builder.arg("guest").args(args.iter().copied());
    let stdin = StdinKind::Source(Arc::clone(input) as Arc<dyn InputSource>);
    builder.stdin(stdin).stdout(stdout).stderr(OutputKind::Inherit);
    (builder, output)
}

fn linker(engine: &Engine) -> Linker<WasiCtx> {
    let mut linker = Linker::new(engine);
    pagefork_wasi::add_to_linker(&mut linker, |ctx| ctx).expect("every name is free");
    linker
}

impl Run {
    /// A run before its first instruction, and what it is called by.
    fn new(module: &Module, args: &[&str], input: &str) -> (Self, pagefork::Func) {
        let input = Tape::new(input.as_bytes(), 0);
        let (builder, output) = builder(args, &input);
        let engine = module.engine();
        let mut store = Store::new(engine, builder.build().expect("a context"));
        let instance = linker(engine).instantiate(&mut store, module).expect("it is linked");
        let start = instance.get_func(&mut store, "_start").expect("a command");
        (Self { store, input, output, printed: Vec::new() }, start)
    }

    /// Saves it where its guest is suspended.
    fn save(&mut self, images: &ImageStore, parent: Option<&Snapshot<WasiCtx>>) -> ContentHash {
        let luggage = Luggage {
            wasi: self.store.data().save().expect("it can be saved"),
            input: self.input.bytes.to_vec(),
            at: self.input.at(),
            printed: self.text(),
        };
        let state = postcard::to_allocvec(&luggage).expect("plain data");
        let key = [partner::key()];
        let mut options = SaveOptions::new().state(state).sign_with(&key);
        if let Some(parent) = parent {
            options = options.delta_of(parent);
        }
        let snapshot = self.store.snapshot().expect("it can be captured");
        snapshot.save(images, options).expect("it can be saved")
    }

    fn load(
        linker: &Linker<WasiCtx>,
        images: &ImageStore,
        image: ContentHash,
    ) -> (Self, Snapshot<WasiCtx>) {
        let options = LoadOptions::new().trust(partner::trusted());
        let snapshot = Snapshot::load(linker, images, image, options).expect("it can be loaded");
        let luggage: Luggage = postcard::from_bytes(snapshot.state()).expect("it was saved");
        let input = Tape::new(luggage.input, luggage.at);
        let (builder, output) = builder(&[], &input);
        let ctx = builder.restore(&luggage.wasi).expect("it can be restored").ctx;
        let pre = snapshot.instance_pre().expect("it has an instance");
        let (store, _) = pre.spawn(ctx).expect("it is spawned");
        (Self { store, input, output, printed: luggage.printed }, snapshot)
    }

    fn text(&self) -> Vec<u8> {
        [&self.printed[..], &self.output.contents()].concat()
    }

    fn outcome(&self, code: i32) -> Outcome {
        Outcome { code, stdout: String::from_utf8(self.text()).expect("text") }
    }
}

/// Runs with `run` until the guest ends, or is suspended soon; its exit code, if it has ended.
fn for_a_while(
    store: &mut Store<WasiCtx>,
    delay: Option<Duration>,
    run: impl FnOnce(&mut Store<WasiCtx>) -> pagefork::Result<CallProgress>,
) -> Option<i32> {
    let (handle, is_over) = (store.interrupt_handle().expect("it can be"), AtomicBool::new(false));
    let progress = thread::scope(|scope| {
        if let Some(delay) = delay {
            let is_over = &is_over;
            scope.spawn(move || {
                thread::sleep(delay);
                // What comes before the guest runs is forgotten: so it comes until it has worked.
                while !is_over.load(Ordering::Relaxed) {
                    handle.suspend();
                    thread::sleep(Duration::from_micros(100));
                }
            });
        }
        let progress = run(store);
        is_over.store(true, Ordering::Relaxed);
        progress
    });
    match progress {
        Ok(CallProgress::Suspended) => None,
        Ok(CallProgress::Finished(_)) => Some(0),
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(exit) => Some(exit.0),
            None => panic!("the guest failed: {error:?}"),
        },
    }
}

/// Random delays, the same each time.
fn delay(seed: &mut u64) -> Duration {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    Duration::from_micros((*seed >> 33) % 3000)
}

/// Runs a program to its end in this process alone, and then through two processes.
fn check(name: &str, module: &Module, args: &[&str], input: &str, hops_max: usize) {
    let (mut undisturbed, start) = Run::new(module, args, input);
    let called = |store: &mut Store<WasiCtx>| start.call_suspendable(store, &[]);
    let code = for_a_while(&mut undisturbed.store, None, called).expect("it ends");
    let expected = undisturbed.outcome(code);
    assert!(expected.stdout.len() > 10);

    let (mut partner, images) = Partner::start("other_process", name);
    let (mut seed, mut hops) = (7, 0);
    let linker = linker(module.engine());
    let (mut run, start) = Run::new(module, args, input);
    let called = |store: &mut Store<WasiCtx>| start.call_suspendable(store, &[]);
    let mut ended = for_a_while(&mut run.store, Some(delay(&mut seed)), called);
    let mut loaded: Option<Snapshot<WasiCtx>> = None;
    while ended.is_none() && hops < hops_max {
        // Every third is a delta of what was loaded.
        let parent = loaded.as_ref().filter(|_| hops % 3 == 2);
        let image = run.save(&images, parent);
        hops += 1;
        let answer = partner.ask(&format!("{image} {}", delay(&mut seed).as_micros()));
        match answer.split_once(' ') {
            Some(("ended", outcome)) => {
                let (code, text) = outcome.split_once(' ').expect("a code and a text");
                let text: String = text_of_digits(text);
                let outcome = Outcome { code: code.parse().expect("a number"), stdout: text };
                assert_eq!(outcome, expected, "{name} after {hops} hops, in the other process");
                return assert_hops(name, hops, hops_max);
            }
            _ => {
                let image = answer.parse().unwrap_or_else(|_| panic!("{answer}"));
                let (other, snapshot) = Run::load(&linker, &images, image);
                (run, loaded) = (other, Some(snapshot));
            }
        }
        hops += 1;
        let delay = Some(delay(&mut seed)).filter(|_| hops < hops_max);
        ended = for_a_while(&mut run.store, delay, Store::resume);
    }
    let code = ended.unwrap_or_else(|| {
        for_a_while(&mut run.store, None, Store::resume).expect("nothing suspends it")
    });
    assert_eq!(run.outcome(code), expected, "{name} after {hops} hops");
    assert_hops(name, hops, hops_max);
}

fn assert_hops(name: &str, hops: usize, hops_max: usize) {
    println!("{name}: {hops} hops");
    let enough = if hops_max == HOPS_OF_SOAK { hops_max } else { 3 };
    assert!(hops >= enough, "{name}: {hops}");
}

/// Text that is two hexadecimal digits a byte.
fn text_of_digits(line: &str) -> String {
    let bytes = line.as_bytes().chunks(2).map(|pair| {
        let digits = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(digits, 16).expect("digits")
    });
    String::from_utf8(bytes.collect()).expect("text")
}

#[test]
#[ignore = "run by others, as a second process"]
fn other_process() {
    partner::serve(|directory| {
        let images = ImageStore::open(directory).expect("the store of the first process");
        let engine = Engine::default();
        let linker = linker(&engine);
        Box::new(move |line| {
            let (image, delay) = line.split_once(' ').expect("an image and a time");
            let delay = Duration::from_micros(delay.parse().expect("a number"));
            let image = image.parse().expect("a hash");
            let (mut run, _snapshot) = Run::load(&linker, &images, image);
            match for_a_while(&mut run.store, Some(delay), Store::resume) {
                None => run.save(&images, None).to_string(),
                Some(code) => {
                    let text = run.text();
                    let digits: String = text.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("ended {code} {digits}")
                }
            }
        })
    });
}

const PYTHON: &str = r#"
import json, re, random
random.seed(5)
total, seen = 0, {}
for i in range(COUNT):
    text = json.dumps({"n": i, "list": [random.random() for _ in range(40)], "s": "x" * (i % 40)})
    total += sum(map(int, re.findall(r"0\.(\d{3})", text)))
    seen[i] = json.loads(text)["list"][3]
    if i % 10 == 0: print(i, total, round(seen[i], 9), flush=True)
print(sum(seen.values()), sorted(seen.values())[:3])
raise SystemExit(7)
"#;

/// Compiled once.
fn python() -> Option<Module> {
    static MODULE: OnceLock<Option<Module>> = OnceLock::new();
    MODULE.get_or_init(|| fetched("python.wasm")).clone()
}

fn cpython(hops: usize, work: usize) {
    let Some(module) = python() else { return };
    let program = PYTHON.replace("COUNT", &(40 * work).to_string());
    check("cpython", &module, &["-c", &program], "", hops);
}

const QUICKJS: &str = r#"
let total = 0n, words = new Map();
for (let i = 0; i < COUNT; i++) {
    total += BigInt(i) ** 3n;
    const text = JSON.stringify({ i, half: i / 2, list: [i, i + 1] }).replace(/\d+/g, d => d + d);
    words.set(text.length, (words.get(text.length) || 0) + 1);
    try { if (i % 500 == 3) throw new Error("at " + i); } catch (e) { console.log(e.message); }
}
console.log(String(total), [...words].join(";"));
"#;

fn quickjs(hops: usize, work: usize) {
    let Some(module) = fetched("quickjs.wasm") else { return };
    let program = QUICKJS.replace("COUNT", &(8000 * work).to_string());
    check("quickjs", &module, &["-e", &program], "", hops);
}

/// Has memory of its own, reads how many pages of it to write, and writes these.
const WRITER: &str = r#"
import os
buffer = bytearray(b"x") * (8 << 20)
count = int(input())
for page in range(count): buffer[page * 4096] = page & 255
os.write(1, b"written")
"#;

/// A delta of CPython after a request has the pages that the request wrote.
#[test]
fn deltas_of_cpython_are_in_proportion_to_what_was_written() {
    let Some(module) = python() else { return };
    let directory = std::env::temp_dir().join(format!("pagefork-deltas-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    let images = ImageStore::open(&directory).expect("a directory of ours");
    let linker = linker(module.engine());
    let mut builder = WasiCtxBuilder::new();
    builder.args(["python", "-c", WRITER]).stdin(StdinKind::Awaited).stderr(OutputKind::Inherit);
    let mut store = Store::new(module.engine(), builder.build().expect("a context"));
    let instance = linker.instantiate(&mut store, &module).expect("it is linked");
    let start = instance.get_func(&mut store, "_start").expect("a command");
    let progress = start.call_suspendable(&mut store, &[]).expect("it reads");
    assert!(matches!(progress, CallProgress::Suspended));
    let state = store.data().save().expect("nothing is open");
    let first = store.snapshot().expect("it can be captured");
    let root = first.save(&images, SaveOptions::new()).expect("there is room");

    let written = |first: &Snapshot<WasiCtx>, count: u64| {
        let mut builder = WasiCtxBuilder::new();
        builder.stdin(StdinKind::bytes(format!("{count}\n"))).stderr(OutputKind::Inherit);
        let ctx = builder.restore(&state).expect("it can be restored").ctx;
        let pre = first.instance_pre().expect("it has an instance");
        let (mut store, _) = pre.spawn(ctx).expect("a slot");
        store.data_mut().suspend_before("fd_write", 0);
        let progress = store.resume().expect("it writes");
        assert!(matches!(progress, CallProgress::Suspended));
        let snapshot = store.snapshot().expect("it can be captured");
        let image =
            snapshot.save(&images, SaveOptions::new().delta_of(first)).expect("it is small");
        let stored = images.load(image).expect("it was saved");
        let tip = stored.chain().tip();
        assert!(tip.manifest().parent.is_some());
        let [instance] = &tip.manifest().instances[..] else { panic!("there is one") };
        let spans = instance.spans.iter().map(|span| span.size / 4096).sum::<u64>();
        let zeroed = instance.zeroed.iter().map(|range| (range.end - range.start) / 4096);
        (spans + zeroed.sum::<u64>(), tip.size())
    };
    // From memory, and from the file.
    let loaded = LoadOptions::new().module(&module).trust(partner::trusted());
    let loaded = Snapshot::load(&linker, &images, root, loaded).expect("this process has made it");
    for first in [&first, &loaded] {
        let (base, _) = written(first, 0);
        assert!(base < 120, "reading a line writes {base} pages");
        for count in [1, 10, 100, 1000] {
            let (pages, size) = written(first, count);
            println!("{count} pages written: a delta of {pages} pages, {size} bytes");
            assert!(
                (count..count + base + 20).contains(&pages),
                "{count}: {pages}, without {base}"
            );
            assert!(size < pages * 4096 + (64 << 10), "{count}: {size}");
        }
    }
    std::fs::remove_dir_all(directory).expect("it is ours");
}

/// Exceptions are thrown and caught all the time.
fn cpp_exceptions(hops: usize, work: usize) {
    let input = "storm(5000)\nmax(3, 1, 9, sqrt(16))\n".repeat(40 * work)
        + "deep(300)\n1 / 0\nstorm(301)\n";
    check("c++", &built("formula.wasm"), &[], &input, hops);
}

#[test]
fn cpython_goes_to_and_fro() {
    cpython(HOPS, 1);
}

#[test]
fn quickjs_goes_to_and_fro() {
    quickjs(HOPS, 1);
}

#[test]
fn cpp_exceptions_go_to_and_fro() {
    cpp_exceptions(HOPS, 1);
}

#[test]
#[ignore = "long: a part of `cargo xtask soak`"]
fn all_go_to_and_fro_a_hundred_times() {
    cpython(HOPS_OF_SOAK, WORK_OF_SOAK);
    quickjs(HOPS_OF_SOAK, WORK_OF_SOAK);
    cpp_exceptions(HOPS_OF_SOAK, WORK_OF_SOAK);
}
