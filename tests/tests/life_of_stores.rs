//! Stores that live on: after all that is done to a store, in any order, its memories, its
//! table and its global are what a model of plain bytes says, which knows nothing of pages,
//! slots and resets. So also when it is reset, brought back to a snapshot, grown by guest or host,
//! moved to another thread, or followed by another tenant's store in the same slot.

use pagefork::{
    Caller, CodeBounds, Config, Engine, Extern, Func, GrowthKind, Instance, InstancePre, Linker,
    Module, ResetKind, Result, Snapshot, Store, StrategyConfig, Trap, TrapCode, Val,
};

const WASM_PAGE: u64 = 65_536;

/// Pages that the memories may have.
const FIRST_MAX: u64 = 9;
const SECOND_MAX: u64 = 5;
const OWN_MAX: u64 = 6;

/// Elements that the table may have.
const ELEMENTS_MAX: u64 = 40;

const GUEST: &str = r#"(module
    (import "host" "grow" (func $host_grows))
    (import "host" "write" (func $host_writes (param i32 i32)))
    (memory (export "first") 1 9)
    (memory $second (export "second") 2 5)
    (data (i32.const 5000) "hello")
    (global $number (export "number") (mut i32) (i32.const 7))
    (table (export "table") 3 40 funcref)
    (elem (i32.const 0) $write)
    (type $write (func (param i32 i32)))
    (func $write (export "write") (param i32 i32) (i32.store (local.get 0) (local.get 1)))
    (func (export "write indirectly") (param i32 i32)
        (call_indirect (type $write) (local.get 0) (local.get 1) (i32.const 0)))
    (func (export "write second") (param i32 i32)
        (i32.store $second (local.get 0) (local.get 1)))
    (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
    (func (export "grow second") (param i32) (result i32) (memory.grow $second (local.get 0)))
    (func (export "let the host grow, write") (param i32 i32)
        (call $host_grows)
        (i32.store (local.get 0) (local.get 1))
        (call $write (local.get 0) (local.get 1)))
    (func (export "write, let another thread write, write") (param i32 i32)
        (i32.store (i32.const 60000) (local.get 1))
        (call $host_writes (local.get 0) (local.get 1))
        (i32.store (i32.const 30000) (local.get 1)))
    (func (export "fill") (param i32 i32)
        (memory.fill (local.get 0) (local.get 1) (i32.const 33)))
    (func (export "copy") (param i32 i32)
        (memory.copy (local.get 0) (i32.const 5000) (local.get 1)))
    (func (export "add") (param i32)
        (global.set $number (i32.add (global.get $number) (local.get 0)))
        (drop (table.grow (ref.func $write) (i32.const 2)))))"#;

/// A module that imports the first memory, when that has at least this many pages.
fn importer_text(pages: u64) -> String {
    let last = pages * WASM_PAGE - 4;
    format!(
        r#"(module
            (import "" "memory" (memory $first {pages} {FIRST_MAX}))
            (memory $own (export "own") 1 {OWN_MAX})
            (func (export "write at the end") (param i32)
                (i32.store $first (i32.const {last}) (local.get 0)))
            (func (export "write") (param i32 i32)
                (i32.store $first (local.get 0) (local.get 1)))
            (func (export "write own") (param i32 i32)
                (i32.store $own (local.get 0) (local.get 1)))
            (func (export "grow") (param i32) (result i32)
                (memory.grow $first (local.get 0)))
            (func (export "grow own") (param i32) (result i32)
                (memory.grow $own (local.get 0))))"#
    )
}

/// What can be done to a store.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Write,
    WriteIndirectly,
    WriteSecond,
    Grow,
    GrowSecond,
    GrowByHost,
    WriteByOtherThread,
    WriteByHost,
    Fill,
    Copy,
    Add,
    LinkImporter,
    WriteByImporterAtTheEnd,
    WriteByImporter,
    WriteOwnOfImporter,
    GrowOwnOfImporter,
    Reset,
    TakeSnapshot,
    ResetToSnapshot,
    CallFromOtherThread,
    NextTenant,
}

use Operation::*;

/// What is done how often.
const OPERATIONS: [(Operation, u64); 21] = [
    (Write, 2),
    (WriteIndirectly, 2),
    (WriteSecond, 1),
    (Grow, 4),
    (GrowSecond, 1),
    (GrowByHost, 1),
    (WriteByOtherThread, 1),
    (WriteByHost, 1),
    (Fill, 1),
    (Copy, 1),
    (Add, 1),
    (LinkImporter, 2),
    (WriteByImporterAtTheEnd, 5),
    (WriteByImporter, 4),
    (WriteOwnOfImporter, 1),
    (GrowOwnOfImporter, 1),
    (Reset, 4),
    (TakeSnapshot, 1),
    (ResetToSnapshot, 1),
    (CallFromOtherThread, 1),
    (NextTenant, 1),
];

/// Numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.below(2);
        random
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn operation(&mut self) -> Operation {
        let mut left = self.below(OPERATIONS.iter().map(|(_, weight)| weight).sum());
        for (operation, weight) in OPERATIONS {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return operation,
            }
        }
        unreachable!("it is below the sum")
    }

    /// A place in a memory of this length, at its end, or beyond.
    fn place(&mut self, memory: &[u8]) -> u64 {
        let length = memory.len() as u64;
        match self.below(3) {
            0 => self.below(length + 8),
            1 => (length + self.below(12)).saturating_sub(8),
            _ => self.below(FIRST_MAX * WASM_PAGE),
        }
    }
}

/// What a store must hold.
#[derive(Clone)]
struct Model {
    first: Vec<u8>,
    second: Vec<u8>,
    number: i32,
    elements: u64,
    importer: Option<ImporterModel>,
}

#[derive(Clone)]
struct ImporterModel {
    /// Pages of the memory that it declares.
    declared: u64,
    own: Vec<u8>,
}

impl Model {
    fn fresh(importer: Option<u64>) -> Self {
        let mut first = vec![0; WASM_PAGE as usize];
        first[5000..5005].copy_from_slice(b"hello");
        let own = || vec![0; WASM_PAGE as usize];
        let importer = importer.map(|declared| ImporterModel { declared, own: own() });
        let second = vec![0; 2 * WASM_PAGE as usize];
        Self { first, second, number: 7, elements: 3, importer }
    }

    fn declared(&self) -> Option<u64> {
        self.importer.as_ref().map(|importer| importer.declared)
    }
}

/// Stores a value, unless it is not all inside; whether it was.
fn put(memory: &mut [u8], at: u64, value: i32) -> bool {
    let place = memory.get_mut(at as usize..).and_then(|rest| rest.first_chunk_mut::<4>());
    place.map(|bytes| *bytes = value.to_le_bytes()).is_some()
}

/// Grows a memory, unless beyond its maximum; what `memory.grow` must answer.
fn enlarge(memory: &mut Vec<u8>, delta: u64, maximum: u64) -> i32 {
    let before = memory.len() as u64 / WASM_PAGE;
    if before + delta > maximum {
        return -1;
    }
    memory.resize(((before + delta) * WASM_PAGE) as usize, 0);
    before as i32
}

/// A store, and what it must be.
struct Life {
    /// The seed and the configuration.
    name: String,
    done: Vec<Operation>,
    random: Random,
    engine: Engine,
    pre: InstancePre<()>,
    store: Store<()>,
    instance: Instance,
    importer: Option<Instance>,
    snapshot: Option<(Snapshot<()>, Model)>,
    model: Model,
}

impl Drop for Life {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let last = &self.done[self.done.len().saturating_sub(12)..];
            eprintln!("{}, step {}, the last of {last:?}", self.name, self.done.len());
        }
    }
}

impl Life {
    fn new(seed: u64, config: StrategyConfig) -> Self {
        let StrategyConfig { reset, growth, code, .. } = config;
        let engine = Engine::new(Config::new().strategies(config)).unwrap();
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "grow", host_grows).unwrap();
        linker.func_wrap("host", "write", host_writes_in_another_thread).unwrap();
        let pre = linker.instantiate_pre(&Module::new(&engine, GUEST).unwrap()).unwrap();
        let (store, instance) = pre.spawn(()).unwrap();
        Self {
            name: format!("seed {seed}, {reset}, {growth:?}, {code:?}"),
            done: Vec::new(),
            random: Random::new(seed),
            engine,
            pre,
            store,
            instance,
            importer: None,
            snapshot: None,
            model: Model::fresh(None),
        }
    }

    fn call(&mut self, instance: Instance, name: &str, arguments: &[i32]) -> Result<Option<i32>> {
        let function = instance.get_func(&mut self.store, name).unwrap();
        let arguments: Vec<Val> = arguments.iter().map(|value| Val::I32(*value)).collect();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results.len()];
        function.call(&mut self.store, &arguments, &mut results)?;
        Ok(results.first().and_then(Val::i32))
    }

    /// Calls what accesses a memory: it traps if and only if that is not `inside`.
    fn access(&mut self, instance: Instance, name: &str, arguments: &[i32], inside: bool) {
        match self.call(instance, name, arguments) {
            Ok(_) => assert!(inside, "{name}: no trap"),
            Err(error) => {
                assert!(!inside, "{name}: {error}");
                let code = error.downcast_ref::<Trap>().map(Trap::code);
                assert_eq!(code, Some(TrapCode::MemoryOutOfBounds), "{name}");
            }
        }
    }

    fn step(&mut self) {
        let operation = self.random.operation();
        self.done.push(operation);
        let value = self.random.below(1 << 31) as i32;
        match operation {
            Write | WriteIndirectly | WriteSecond | Fill | Copy => self.write(operation, value),
            Grow | GrowSecond => self.grow(operation),
            GrowByHost => self.grow_by_host(value),
            WriteByOtherThread => self.write_by_other_thread(value),
            WriteByHost => self.write_by_host(value),
            Add => {
                self.call(self.instance, "add", &[value & 15]).unwrap();
                self.model.number += value & 15;
                if self.model.elements + 2 <= ELEMENTS_MAX {
                    self.model.elements += 2;
                }
            }
            LinkImporter => self.link_importer(),
            WriteByImporterAtTheEnd | WriteByImporter | WriteOwnOfImporter | GrowOwnOfImporter => {
                self.use_importer(operation, value)
            }
            Reset => {
                self.store.reset(()).unwrap();
                self.model = Model::fresh(self.model.declared());
            }
            TakeSnapshot => {
                self.snapshot = Some((self.store.snapshot().unwrap(), self.model.clone()));
            }
            ResetToSnapshot => {
                if let Some((snapshot, model)) = &self.snapshot {
                    self.store.reset_to(snapshot, ()).unwrap();
                    self.model = model.clone();
                }
            }
            CallFromOtherThread => {
                let (store, instance) = (&mut self.store, self.instance);
                let write =
                    || write(instance.get_func(&mut *store, "write").unwrap(), store, value);
                std::thread::scope(|scope| scope.spawn(write).join().unwrap());
                put(&mut self.model.first, 40_000, value);
            }
            NextTenant => self.next_tenant(),
        }
        self.compare();
    }

    fn write(&mut self, operation: Operation, value: i32) {
        let (name, memory) = match operation {
            Write => ("write", &mut self.model.first),
            WriteIndirectly => ("write indirectly", &mut self.model.first),
            WriteSecond => ("write second", &mut self.model.second),
            Fill => ("fill", &mut self.model.first),
            _ => ("copy", &mut self.model.first),
        };
        let at = self.random.place(memory);
        let mut argument = value;
        let inside = match operation {
            Fill => {
                let part = memory.get_mut(at as usize..at as usize + 33);
                part.map(|part| part.fill(value as u8)).is_some()
            }
            Copy => {
                let length = self.random.below(200) as usize;
                argument = length as i32;
                let inside = at as usize + length <= memory.len();
                if inside {
                    memory.copy_within(5000..5000 + length, at as usize);
                }
                inside
            }
            _ => put(memory, at, value),
        };
        self.access(self.instance, name, &[at as i32, argument], inside);
    }

    /// By the guest that has the memory, or by one that imports it.
    fn grow(&mut self, operation: Operation) {
        let delta = self.random.below(4);
        let (name, answer) = match operation {
            Grow => ("grow", enlarge(&mut self.model.first, delta, FIRST_MAX)),
            _ => ("grow second", enlarge(&mut self.model.second, delta, SECOND_MAX)),
        };
        let by_importer = self.importer.filter(|_| name == "grow" && self.random.below(2) == 0);
        let instance = by_importer.unwrap_or(self.instance);
        assert_eq!(self.call(instance, name, &[delta as i32]).unwrap(), Some(answer));
    }

    fn grow_by_host(&mut self, value: i32) {
        enlarge(&mut self.model.first, 1, FIRST_MAX);
        let at = self.random.place(&self.model.first);
        let inside = put(&mut self.model.first, at, value);
        let name = "let the host grow, write";
        self.access(self.instance, name, &[at as i32, value], inside);
    }

    fn write_by_other_thread(&mut self, value: i32) {
        put(&mut self.model.first, 60_000, value);
        let at = self.random.place(&self.model.first);
        let inside = put(&mut self.model.first, at, value);
        if inside {
            put(&mut self.model.first, 30_000, value);
        }
        let name = "write, let another thread write, write";
        self.access(self.instance, name, &[at as i32, value], inside);
    }

    fn write_by_host(&mut self, value: i32) {
        let memory = self.instance.get_memory(&mut self.store, "first").unwrap();
        let at = self.random.place(&self.model.first);
        let inside = put(&mut self.model.first, at, value);
        let written = memory.write(&mut self.store, at as usize, &value.to_le_bytes());
        assert_eq!(written.is_ok(), inside);
    }

    /// Links what declares as much of the memory as there is now, or less.
    fn link_importer(&mut self) {
        if self.importer.is_some() {
            return;
        }
        let declared = 1 + self.random.below(self.model.first.len() as u64 / WASM_PAGE);
        let module = Module::new(&self.engine, importer_text(declared)).unwrap();
        let memory = self.instance.get_memory(&mut self.store, "first").unwrap();
        let importer = Instance::new(&mut self.store, &module, &[memory.into()]).unwrap();
        self.importer = Some(importer);
        self.model.importer = Model::fresh(Some(declared)).importer;
        // It was of fewer instances.
        self.snapshot = None;
    }

    fn use_importer(&mut self, operation: Operation, value: i32) {
        let (Some(instance), Some(model)) = (self.importer, &mut self.model.importer) else {
            return;
        };
        let (random, first) = (&mut self.random, &mut self.model.first);
        match operation {
            WriteByImporterAtTheEnd => {
                let inside = put(first, model.declared * WASM_PAGE - 4, value);
                self.access(instance, "write at the end", &[value], inside);
            }
            WriteByImporter => {
                let at = random.place(first);
                let inside = put(first, at, value);
                self.access(instance, "write", &[at as i32, value], inside);
            }
            WriteOwnOfImporter => {
                let at = random.place(&model.own);
                let inside = put(&mut model.own, at, value);
                self.access(instance, "write own", &[at as i32, value], inside);
            }
            _ => {
                let delta = random.below(4);
                let answer = enlarge(&mut model.own, delta, OWN_MAX);
                let found = self.call(instance, "grow own", &[delta as i32]).unwrap();
                assert_eq!(found, Some(answer));
            }
        }
    }

    /// Drops the store, here or elsewhere, and takes the next one.
    fn next_tenant(&mut self) {
        let store = std::mem::replace(&mut self.store, Store::new(&self.engine, ()));
        match self.random.below(3) {
            0 => std::thread::spawn(move || drop(store)).join().unwrap(),
            _ => drop(store),
        }
        let tenant = self.random.below(3);
        (self.store, self.instance) = self.pre.spawn_for(tenant, ()).unwrap();
        // A snapshot is of use to every store that was spawned from the same.
        if self.importer.take().is_some() || self.random.below(2) == 0 {
            self.snapshot = None;
        }
        self.model = Model::fresh(None);
    }

    fn compare(&mut self) {
        let Self { store, instance, model, .. } = self;
        let mut memories =
            vec![(*instance, "first", &model.first), (*instance, "second", &model.second)];
        if let (Some(importer), Some(model)) = (self.importer, &model.importer) {
            memories.push((importer, "own", &model.own));
        }
        for (instance, name, expected) in memories {
            let memory = instance.get_memory(&mut *store, name).unwrap();
            let found = memory.data(&*store);
            assert_eq!(found.len(), expected.len(), "{name}");
            if found != expected {
                let at = (0..found.len()).find(|&at| found[at] != expected[at]).unwrap();
                panic!("{name}: {at:#x} is {:#x}, not {:#x}", found[at], expected[at]);
            }
        }
        let number = instance.get_global(&mut *store, "number").unwrap().get(&mut *store);
        assert_eq!(number.i32(), Some(model.number));
        let elements = instance.get_table(&mut *store, "table").unwrap().size(&*store);
        assert_eq!(elements, model.elements);
    }
}

/// Whether it succeeds is no matter here: the model knows how large the memory can be.
fn host_grows(mut caller: Caller<'_, ()>) {
    let memory = caller.get_export("first").and_then(Extern::into_memory).unwrap();
    let _ = memory.grow(&mut caller, 1);
}

fn host_writes_in_another_thread(mut caller: Caller<'_, ()>, at: i32, value: i32) -> Result<()> {
    let write = || {
        let write = caller.get_export("write").and_then(Extern::into_func).unwrap();
        write.call(&mut caller, &[Val::I32(at), Val::I32(value)], &mut [])
    };
    std::thread::scope(|scope| scope.spawn(write).join().unwrap())
}

fn write(function: Func, store: &mut Store<()>, value: i32) {
    function.call(store, &[Val::I32(40_000), Val::I32(value)], &mut []).unwrap();
}

/// Every strategy with every kind of growth and the kinds of code that go with it.
fn configurations() -> Vec<StrategyConfig> {
    let growths = [
        (GrowthKind::Mprotect, CodeBounds::Guarded),
        (GrowthKind::Ftruncate, CodeBounds::Guarded),
        (GrowthKind::Fault, CodeBounds::Guarded),
        (GrowthKind::Mprotect, CodeBounds::Dual),
        (GrowthKind::Kept, CodeBounds::Dual),
        (GrowthKind::Auto, CodeBounds::Dual),
        (GrowthKind::Kept, CodeBounds::Checked),
        (GrowthKind::Checked { accessible: None }, CodeBounds::Checked),
        (GrowthKind::Checked { accessible: Some(3 << 16) }, CodeBounds::Dual),
    ];
    let with = |reset| {
        growths.map(|(growth, code)| StrategyConfig { reset, growth, code, ..Default::default() })
    };
    ResetKind::ALL.into_iter().flat_map(with).collect()
}

#[test]
fn whatever_is_done_a_store_holds_what_a_model_says() {
    for round in 0..6 {
        for (index, config) in (0..).zip(configurations()) {
            let mut life = Life::new(1000 * round + index, config);
            for _ in 0..300 {
                life.step();
            }
        }
    }
}
