//! Accesses at all the extremes of further memories and of memories of 64 bits,
//! the module's own and imported ones: they work within the memory, and trap
//! outside.

use pagefork::suspend;
use pagefork::{
    Config, Engine, GrowthKind, Instance, Memory, MemoryType, Module, Store, StrategyConfig,
    TrapCode, Val,
};

use crate::accesses::{Access, bits, loads, stores};
use crate::common::{killed_by, killed_by_segv, reached, spawn, trap_code};

const WASM_PAGE: u64 = 65536;

/// How a module has the memory `$m`.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Owner {
    /// It is the first that the module defines.
    First,
    /// The module defines one before it, and one behind it.
    Second,
    /// Another instance defines it, between others.
    Other,
    /// The host defines it.
    Host,
    /// It is the first that the module defines, and what it has lies in a file that it has grown in.
    Grown,
    /// It is the first that the module defines, and a touch of what it has grown by is served.
    Served,
}

use Owner::{First, Grown, Host, Other, Second, Served};

/// A store with an instance whose exported memory `memory` has `pages` and can
/// have `maximum`, and whose functions make each access at each offset.
struct Guest {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
    wide: bool,
    size: u64,
}

impl Guest {
    fn new(
        owner: Owner,
        wide: bool,
        pages: u64,
        maximum: u64,
        accesses: &[Access],
        offsets: &[u64],
    ) -> Self {
        let (growth, first) = match owner {
            Grown => (GrowthKind::Ftruncate, 0),
            Served => (GrowthKind::Fault, 0),
            _ => (GrowthKind::Mprotect, pages),
        };
        let strategies = StrategyConfig { growth, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
        let mut store = Store::new(&engine, ());
        let index = if wide { "i64" } else { "i32" };
        let prefix = if wide { "i64 " } else { "" };
        let limits = format!("{prefix}{first} {maximum}");
        // What lies beside it is full of ones, which no load must find.
        let ones = "\\ff".repeat(64);
        let before =
            format!("(memory $before 1 1) (data (memory $before) (i32.const 65472) \"{ones}\")");
        let after = format!("(memory $after 1 1) (data (memory $after) (i32.const 0) \"{ones}\")");
        let own = format!("(memory $m (export \"memory\") {limits})");
        let beside = format!("{before} {own} {after}");
        let import = format!(
            "(import \"other\" \"memory\" (memory $m {limits})) (export \"memory\" (memory $m))"
        );
        let (memories, imports) = match owner {
            First | Grown | Served => (format!("{own} {after}"), vec![]),
            Second => (beside, vec![]),
            Other => {
                let module = Module::new(&engine, format!("(module {beside})")).unwrap();
                let other = Instance::new(&mut store, &module, &[]).unwrap();
                let memory = other.get_memory(&mut store, "memory").unwrap();
                (format!("{import} {before} {after}"), vec![memory.into()])
            }
            Host => {
                let ty = MemoryType { minimum: pages, maximum: Some(maximum), memory64: wide };
                let memory = Memory::new(&mut store, ty).unwrap();
                (import, vec![memory.into()])
            }
        };
        let mut wat = format!("(module {memories}\n");
        for (number, access) in accesses.iter().enumerate() {
            for offset in offsets {
                wat += &access.function_of("$m", index, &format!("{number}+{offset}"), *offset);
            }
        }
        let module = Module::new(&engine, wat + ")").unwrap();
        let instance = Instance::new(&mut store, &module, &imports).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        let choice = instance.growth(&store);
        if growth == GrowthKind::Fault && choice.used != growth {
            eprintln!("NOT TESTED: memories that grow by faults ({choice})");
        } else {
            assert_eq!(choice.used, growth);
        }
        memory.grow(&mut store, pages - first).unwrap();
        Self { store, instance, memory, wide, size: pages * WASM_PAGE }
    }

    /// Makes access `number` at `index` plus `offset`; the bits loaded, 0 of a
    /// store.
    fn run(&mut self, number: usize, index: u64, offset: u64) -> Result<u128, TrapCode> {
        let name = format!("{number}+{offset}");
        let function = self.instance.get_func(&mut self.store, &name).unwrap();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results.len()];
        let index = if self.wide { Val::I64(index as i64) } else { Val::I32(index as u32 as i32) };
        match function.call(&mut self.store, &[index], &mut results) {
            Ok(()) => Ok(results.first().map_or(0, bits)),
            Err(error) => Err(trap_code(&error)),
        }
    }

    /// Makes an access and compares what happens with what the bytes say.
    fn probe(&mut self, number: usize, access: &Access, index: u64, offset: u64) {
        let what = || format!("{} of {index:#x} + {offset:#x}", access.name);
        let end = u128::from(index) + u128::from(offset) + u128::from(access.width);
        let place = (end <= self.size.into()).then(|| (index + offset) as usize);
        let range = place.map(|place| place..place + access.width as usize);
        let before = range.clone().map(|range| self.memory.data(&self.store)[range].to_vec());
        let found = self.run(number, index, offset);
        match before {
            None => assert_eq!(found, Err(TrapCode::MemoryOutOfBounds), "{}", what()),
            Some(_) if access.stores => {
                assert_eq!(found, Ok(0), "{}", what());
                let written = &self.memory.data(&self.store)[range.unwrap()];
                assert!(written.iter().all(|byte| *byte == 0xff), "{}", what());
            }
            Some(bytes) => assert_eq!(found, Ok(access.value(&bytes)), "{}", what()),
        }
    }
}

/// Each access, at each offset, with indices around all that can go wrong.
fn probe_all_extremes(owner: Owner, wide: bool, pages: u64, maximum: u64, accesses: &[Access]) {
    let mut offsets = vec![0, 1, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];
    let mut extremes = vec![0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, 0xffff_ffff];
    if wide {
        let beyond = [1 << 32, (1 << 32) + 1, 1 << 63, (1 << 63) - 1, u64::MAX - 15, u64::MAX];
        offsets.extend(beyond);
        extremes.extend(beyond);
    }
    let mut guest = Guest::new(owner, wide, pages, maximum, accesses, &offsets);
    let (index_max, size) = (if wide { u64::MAX } else { u32::MAX.into() }, guest.size);
    if pages > 0 {
        let tail: Vec<u8> = (0..32u8).map(|i| i.wrapping_mul(7) ^ 0x81).collect();
        guest.memory.write(&mut guest.store, size as usize - 32, &tail).unwrap();
    }
    for (number, access) in accesses.iter().enumerate() {
        for &offset in &offsets {
            // The first byte around the end, also where the sum wraps around; and
            // extreme indices.
            let wraps = [0u64.wrapping_sub(offset), size.wrapping_sub(offset)];
            let around = (0..=17).flat_map(|d| [size.wrapping_sub(d), size + d]);
            let indices = around
                .map(|first| first.wrapping_sub(offset))
                .chain(wraps.into_iter().flat_map(|at| [at, at.wrapping_sub(1)]))
                .chain(extremes.iter().copied());
            let mut indices: Vec<u64> = indices.filter(|index| *index <= index_max).collect();
            indices.sort_unstable();
            indices.dedup();
            for index in indices {
                guest.probe(number, access, index, offset);
            }
        }
    }
}

fn all() -> Vec<Access> {
    loads().into_iter().chain(stores()).collect()
}

#[test]
fn every_access_of_a_first_memory_of_64_bits() {
    probe_all_extremes(First, true, 1, 1, &all());
}

/// What is beyond the end of a file is a SIGBUS, and a trap like any other.
#[test]
fn every_access_of_a_memory_that_grows_in_a_file() {
    probe_all_extremes(Grown, false, 2, 65536, &all());
    probe_all_extremes(Grown, true, 1, 9, &all());
    probe_all_extremes(Served, false, 2, 65536, &all());
    probe_all_extremes(Served, true, 1, 9, &all());
}

#[test]
fn every_access_of_a_second_memory() {
    probe_all_extremes(Second, false, 1, 1, &all());
}

#[test]
fn every_access_of_a_second_memory_of_64_bits() {
    probe_all_extremes(Second, true, 2, 70000, &all());
}

#[test]
fn every_access_of_anothers_second_memory() {
    probe_all_extremes(Other, false, 1, 65536, &all());
}

#[test]
fn every_access_of_anothers_second_memory_of_64_bits() {
    probe_all_extremes(Other, true, 1, 9, &all());
}

#[test]
fn every_access_of_the_hosts_memory_of_64_bits() {
    probe_all_extremes(Host, true, 1, 3, &all());
}

#[test]
fn every_access_of_empty_memories() {
    for owner in [First, Second, Other, Host] {
        for wide in [false, true] {
            probe_all_extremes(owner, wide, 0, 0, &all());
        }
    }
}

#[test]
fn a_memory_of_64_bits_reaches_beyond_four_gigabytes() {
    let accesses = all();
    probe_all_extremes(Second, true, 65537, 65537, &accesses);
}

#[test]
fn a_store_that_traps_half_way_writes_nothing() {
    let accesses = stores();
    for owner in [First, Second, Other, Host, Grown, Served] {
        for wide in [false, true] {
            let mut guest = Guest::new(owner, wide, 1, 1, &accesses, &[0]);
            for (number, access) in accesses.iter().enumerate() {
                for inside in 1..access.width {
                    let found = guest.run(number, WASM_PAGE - inside, 0);
                    assert_eq!(found, Err(TrapCode::MemoryOutOfBounds), "{}", access.name);
                    let tail = &guest.memory.data(&guest.store)[WASM_PAGE as usize - 16..];
                    assert_eq!(tail, [0; 16], "{}, {inside} bytes inside", access.name);
                }
            }
        }
    }
}

/// A guest whose imported memory of this width seems to lie at `target`: what a
/// wrong address in compiled code would look like.
fn load_at(wide: bool, target: impl FnOnce(&mut Store<()>) -> usize) {
    let index = if wide { "i64" } else { "i32" };
    let ty = MemoryType { memory64: wide, ..MemoryType::new(1, Some(2)) };
    let engine = Engine::default();
    let mut store = Store::new(&engine, ());
    let memory = Memory::new(&mut store, ty).unwrap();
    let module = Module::new(
        &engine,
        format!(
            r#"(module (import "host" "memory" (memory {index} 1)) (memory i64 1 1) (memory 1 1)
                (func (export "load") (result i32) (i32.load ({index}.const 0))))"#
        ),
    )
    .unwrap();
    let instance = Instance::new(&mut store, &module, &[memory.into()]).unwrap();
    let load = instance.get_typed_func::<(), i32>(&mut store, "load").unwrap();
    assert_eq!(load.call(&mut store, ()).unwrap(), 0);

    let target = target(&mut store);
    let slot = suspend::slot(&store, 2);
    let record = slot.start
        + slot.layout.link.start as usize
        + slot.layout.link_parts.memory(0) as usize
        + pagefork_layout::link::memory_import::BASE as usize;
    // SAFETY: the record lies in the link zone of a live slot; what is written
    // makes the guest read elsewhere, which is what the tests are about.
    unsafe { std::ptr::with_exposed_provenance_mut::<usize>(record).write(target) };
    reached();
    let result = load.call(&mut store, ());
    println!("survived: {result:?}");
}

#[test]
fn a_checked_access_that_faults_outside_its_group_kills() {
    let name = "memories::a_checked_access_that_faults_outside_its_group_kills";
    killed_by_segv(name, || {
        let (other, _) = spawn(&Engine::default(), "(module (memory i64 1 1) (memory 1))");
        let slot = suspend::slot(&other, 1);
        let guard = slot.base + slot.layout.memories[1].offset as usize + 65536;
        load_at(true, |_| guard);
    });
}

/// The end of a file that another store's memory grows in is a SIGBUS, and no trap.
#[test]
fn an_access_beyond_the_file_that_another_stores_memory_grows_in_kills() {
    let name = "memories::an_access_beyond_the_file_that_another_stores_memory_grows_in_kills";
    killed_by(libc::SIGBUS, name, || access_beyond_anothers(GrowthKind::Ftruncate));
}

/// Nor is a page that is not served because another store's memory has not grown as far.
#[test]
fn an_access_beyond_another_stores_memory_whose_touches_are_served_kills() {
    if GrowthKind::Fault.lack().is_some() {
        eprintln!("NOT TESTED: memories that grow by faults");
        return;
    }
    let name = "memories::an_access_beyond_another_stores_memory_whose_touches_are_served_kills";
    killed_by(libc::SIGBUS, name, || access_beyond_anothers(GrowthKind::Fault));
}

fn access_beyond_anothers(growth: GrowthKind) {
    let strategies = StrategyConfig { growth, ..StrategyConfig::default() };
    let engine = Engine::new(Config::new().strategies(strategies)).unwrap();
    let (other, _) = spawn(&engine, "(module (memory 1))");
    let slot = suspend::slot(&other, 1);
    load_at(true, |_| slot.base + 65536);
}

#[test]
fn a_fault_between_the_memories_of_the_own_slot_kills() {
    let name = "memories::a_fault_between_the_memories_of_the_own_slot_kills";
    killed_by_segv(name, || {
        load_at(false, |store| {
            // Behind the guard of the first memory, before the second.
            let slot = suspend::slot(&*store, 2);
            let [first, second] = slot.layout.memories[..] else { panic!("two memories") };
            assert!(first.end() < second.offset);
            slot.base + first.end() as usize
        });
    });
}

#[test]
fn a_fault_within_a_further_memory_kills() {
    let name = "memories::a_fault_within_a_further_memory_kills";
    killed_by_segv(name, || {
        load_at(false, |store| {
            let slot = suspend::slot(&*store, 2);
            let start = slot.base + slot.layout.memories[1].offset as usize;
            let page = std::ptr::with_exposed_provenance_mut(start);
            // SAFETY: takes a page from a memory that nothing else uses.
            let failed = unsafe { libc::mprotect(page, 4096, libc::PROT_NONE) };
            assert_eq!(failed, 0);
            start
        });
    });
}

#[test]
fn bulk_operations_on_a_memory_of_64_bits_trap_at_every_extreme() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (memory 1 1) (memory $m i64 1 1) (data $d "0123456789")
            (func (export "fill") (param i64 i64 i64)
                (memory.fill $m (local.get 0) (i32.wrap_i64 (local.get 1)) (local.get 2)))
            (func (export "copy") (param i64 i64 i64)
                (memory.copy $m $m (local.get 0) (local.get 1) (local.get 2))))"#,
    );
    let sign = 1 << 63;
    let extremes =
        [0, 1, 0xffff, 0x1_0000, 0x1_0001, u64::from(u32::MAX), 1 << 32, sign - 1, sign, u64::MAX];
    for name in ["fill", "copy"] {
        let function = instance.get_typed_func::<(u64, u64, u64), ()>(&mut store, name).unwrap();
        for a in extremes {
            for b in extremes {
                for length in extremes {
                    let fits = |start: u64| {
                        u128::from(start) + u128::from(length) <= u128::from(WASM_PAGE)
                    };
                    let expected = fits(a) && (name == "fill" || fits(b));
                    let found = function.call(&mut store, (a, b, length));
                    assert_eq!(found.is_ok(), expected, "{name} {a:#x} {b:#x} {length:#x}");
                    if let Err(error) = found {
                        assert_eq!(trap_code(&error), TrapCode::MemoryOutOfBounds);
                    }
                }
            }
        }
    }
}

#[test]
fn table_accesses_by_64_bits_trap_at_every_extreme() {
    let (mut store, instance) = spawn(
        &Engine::default(),
        r#"(module (table i64 10 20 funcref) (elem (i64.const 0) func $f) (func $f)
            (func (export "get") (param i64) (drop (table.get (local.get 0))))
            (func (export "set") (param i64) (table.set (local.get 0) (ref.func $f)))
            (func (export "call") (param i64) (call_indirect (local.get 0))))"#,
    );
    for name in ["get", "set", "call"] {
        let function = instance.get_typed_func::<u64, ()>(&mut store, name).unwrap();
        function.call(&mut store, 0).unwrap();
        let beyond = [10, 11, 19, 20, 65535, 1 << 29, (1 << 29) + 1, 1 << 31, 1 << 32];
        for index in beyond.into_iter().chain([1 << 61, (1 << 61) + 1, 1 << 63, u64::MAX]) {
            let error = function.call(&mut store, index).unwrap_err();
            assert_eq!(trap_code(&error), TrapCode::TableOutOfBounds, "{name} {index:#x}");
        }
    }
}
