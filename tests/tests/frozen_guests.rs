//! Programs that others wrote are captured while they run, at any moment, and go on elsewhere: they
//! do what they do undisturbed, and so do the originals.

#[allow(dead_code, reason = "other tests use the rest")]
mod guests;
mod tape;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use guests::{Outcome, built, fetched, scratch};
use pagefork::{CallProgress, InterruptHandle, Linker, Module, Store};
use pagefork_wasi::{
    Exit, InputSource, OutputKind, OutputPipe, Permissions, StdinKind, WasiCtx, WasiCtxBuilder,
};
use tape::Tape;

/// So many times a run goes on elsewhere, if it lasts that long.
const MOVES: usize = 100;

/// A program that runs, and what it has printed.
struct Run {
    store: Store<WasiCtx>,
    input: Arc<Tape>,
    output: OutputPipe,
    printed: String,
}

/// A program and its world.
struct Program<'a> {
    name: &'a str,
    module: Module,
    args: &'a [&'a str],
    input: &'a str,
    directory: Option<&'a Path>,
}

impl Program<'_> {
    fn builder(&self, input: &Arc<Tape>) -> (WasiCtxBuilder, OutputPipe) {
        let (output, stdout) = OutputKind::pipe();
        let mut builder = WasiCtxBuilder::new();
        builder.arg("guest").args(self.args.iter().copied());
        let stdin = StdinKind::Source(Arc::clone(input) as Arc<dyn InputSource>);
        builder.stdin(stdin).stdout(stdout).stderr(OutputKind::Inherit);
        if let Some(directory) = self.directory {
            builder.preopened_dir(directory, "/", Permissions::ReadWrite).expect("a directory");
        }
        (builder, output)
    }

    /// Starts it; `None` if it has ended.
    fn start(&self, timer: &Timer) -> (Run, Option<i32>) {
        let input = Tape::new(self.input.as_bytes(), 0);
        let (builder, output) = self.builder(&input);
        let engine = self.module.engine();
        let mut store = Store::new(engine, builder.build().expect("a context"));
        let mut linker: Linker<WasiCtx> = Linker::new(engine);
        pagefork_wasi::add_to_linker(&mut linker, |ctx| ctx).expect("every name is free");
        let instance = linker.instantiate(&mut store, &self.module).expect("it is linked");
        let start = instance.get_func(&mut store, "_start").expect("a command");
        let called = timer.around(&mut store, |store| start.call_suspendable(store, &[]));
        let ended = code(called);
        (Run { store, input, output, printed: String::new() }, ended)
    }

    /// A copy of a suspended run.
    fn copy(&self, run: &mut Run) -> Run {
        let state = run.store.data().save().expect("it can be saved");
        let input = Tape::new(Arc::clone(&run.input.bytes), run.input.at());
        let (builder, output) = self.builder(&input);
        let ctx = builder.restore(&state).expect("it can be restored").ctx;
        let pre = run.store.snapshot().expect("it can be captured").instance_pre();
        let (store, _) = pre.expect("it has an instance").spawn(ctx).expect("it is spawned");
        Run { store, input, output, printed: run.text() }
    }

    /// Runs it, captured at random moments; every tenth original goes on to its end, too.
    fn check(&self) {
        let timer = Timer::start();
        let (mut undisturbed, mut ended) = self.start(&Timer::idle());
        while ended.is_none() {
            ended = undisturbed.resume();
        }
        let expected = Outcome { code: ended.expect("it has ended"), stdout: undisturbed.text() };
        let (mut run, mut ended) = self.start(&timer);
        let (mut moves, mut originals) = (0, 0);
        while ended.is_none() {
            if moves < MOVES {
                let copy = self.copy(&mut run);
                let mut original = std::mem::replace(&mut run, copy);
                moves += 1;
                if moves % 10 == 1 {
                    originals += 1;
                    let mut ended = original.resume();
                    while ended.is_none() {
                        ended = original.resume();
                    }
                    let outcome =
                        Outcome { code: ended.expect("it has ended"), stdout: original.text() };
                    assert_eq!(outcome, expected, "{}: the original of move {moves}", self.name);
                }
                ended = code(timer.around(&mut run.store, Store::resume));
            } else {
                ended = run.resume();
            }
        }
        let outcome = Outcome { code: ended.expect("it has ended"), stdout: run.text() };
        assert_eq!(outcome, expected, "{} after {moves} moves", self.name);
        println!("{}: {moves} moves, {originals} originals", self.name);
        assert!(moves > 3 && expected.stdout.len() > 10, "{}: {moves}", self.name);
    }
}

impl Run {
    fn resume(&mut self) -> Option<i32> {
        code(self.store.resume())
    }

    fn text(&self) -> String {
        let more = String::from_utf8(self.output.contents()).expect("text");
        format!("{}{more}", self.printed)
    }
}

/// The exit code; `None` if it is suspended.
fn code(progress: pagefork::Result<CallProgress>) -> Option<i32> {
    match progress {
        Ok(CallProgress::Suspended) => None,
        Ok(CallProgress::Finished(_)) => Some(0),
        Err(error) => match error.downcast_ref::<Exit>() {
            Some(exit) => Some(exit.0),
            None => panic!("the guest failed: {error:?}"),
        },
    }
}

/// Has guests suspended after a random time.
struct Timer(Option<mpsc::Sender<(InterruptHandle, Arc<AtomicBool>)>>);

impl Timer {
    fn start() -> Self {
        let (sender, receiver) = mpsc::channel::<(InterruptHandle, Arc<AtomicBool>)>();
        thread::spawn(move || {
            let mut seed = 1u64;
            while let Ok((handle, is_over)) = receiver.recv() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // What comes before the guest runs is forgotten: so it comes until it has worked.
                let mut delay = Duration::from_micros((seed >> 33) % 400);
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(delay);
                    handle.suspend();
                    delay = Duration::from_micros(100);
                }
            }
        });
        Self(Some(sender))
    }

    fn idle() -> Self {
        Self(None)
    }

    /// Runs a store with `run`, and has its guest suspended soon.
    fn around<R>(
        &self,
        store: &mut Store<WasiCtx>,
        run: impl FnOnce(&mut Store<WasiCtx>) -> R,
    ) -> R {
        let is_over = Arc::new(AtomicBool::new(false));
        if let Some(sender) = &self.0 {
            let handle = store.interrupt_handle().expect("it can be");
            sender.send((handle, Arc::clone(&is_over))).expect("the timer runs");
        }
        let result = run(store);
        is_over.store(true, Ordering::Relaxed);
        result
    }
}

#[test]
fn cpython() {
    let Some(module) = fetched("python.wasm") else { return };
    let script = r#"
import json, re, random
random.seed(5)
class Node:
    def __init__(self, value): self.value, self.next = value, None
total, seen = 0, {}
for i in range(60):
    text = json.dumps({"n": i, "list": [random.random() for _ in range(40)], "s": "x" * i})
    found = re.findall(r"0\.(\d{3})", text)
    total += sum(map(int, found))
    seen[i] = json.loads(text)["list"][3]
    try:
        if i % 7 == 3: raise ValueError(i)
    except ValueError as error:
        total += error.args[0]
    if i % 10 == 0: print(i, total, round(seen[i], 9), flush=True)
print(sum(seen.values()), sorted(seen.values())[:3])
raise SystemExit(7)
"#;
    Program { name: "cpython", module, args: &["-c", script], input: "", directory: None }.check();
}

#[test]
fn quickjs() {
    let Some(module) = fetched("quickjs.wasm") else { return };
    let script = r#"
let total = 0n, words = new Map();
for (let i = 0; i < 8000; i++) {
    total += BigInt(i) ** 3n;
    const text = JSON.stringify({ i, half: i / 2, list: [i, i + 1] }).replace(/\d+/g, d => d + d);
    words.set(text.length, (words.get(text.length) || 0) + 1);
    try { if (i % 500 == 3) throw new Error("at " + i); } catch (e) { console.log(e.message); }
}
function* numbers() { for (let i = 0; i < 5; i++) yield i * i; }
console.log(String(total), [...words].join(";"), [...numbers()].join());
"#;
    Program { name: "quickjs", module, args: &["-e", script], input: "", directory: None }.check();
}

#[test]
fn sqlite() {
    let Some(module) = fetched("sqlite.wasm") else { return };
    let mut sql = String::from(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, x REAL);
",
    );
    for id in 0..6000 {
        if id % 100 == 0 {
            sql.push_str(
                "BEGIN;
",
            );
        }
        sql.push_str(&format!(
            "INSERT INTO t VALUES ({id}, 'name {}', {}.5);
",
            id * 7,
            id % 13
        ));
        if id % 100 == 99 {
            sql.push_str(
                "COMMIT;
SELECT count(*), sum(x), max(name) FROM t;
",
            );
        }
    }
    sql.push_str(
        "CREATE INDEX i ON t (name);
SELECT * FROM t WHERE name > 'name 9' LIMIT 20;
",
    );
    Program { name: "sqlite", module, args: &[":memory:"], input: &sql, directory: None }.check();
}

/// Each file is read by a goroutine of its own.
#[test]
fn go() {
    let Some(module) = fetched("digest.wasm") else { return };
    let directory = scratch("frozen-go");
    for number in 0..40 {
        let contents: Vec<u8> = (0..60_000u32).map(|i| (i * number) as u8).collect();
        std::fs::write(directory.join(format!("file{number}")), contents).expect("a new file");
    }
    let directory = Some(&*directory);
    Program { name: "go", module, args: &["."], input: "", directory }.check();
}

/// Exceptions are thrown and caught all the time.
#[test]
fn cpp_exceptions() {
    let input = "storm(5000)
max(3, 1, 9, sqrt(16))
"
    .repeat(40)
        + "deep(300)
1 / 0
storm(301)
";
    let module = built("formula.wasm");
    Program { name: "c++", module, args: &[], input: &input, directory: None }.check();
}
