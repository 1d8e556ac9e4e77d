//! Everything that a guest can observe or change is in the pages of its group or
//! in the embedder's store data: two groups are started alike, one is changed in
//! every way there is, and its bytes alone make the other one the same.

mod common;

use std::fmt::Write;

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{
    Caller, Engine, Extern, ExternRef, Func, Global, GlobalType, Instance, Memory, MemoryType,
    Module, RefType, Store, Table, TableType, Val,
};

/// The embedder's data.
#[derive(Clone, Default)]
struct Data {
    calls: u32,
}

/// What is defined: by the guest itself, or by the host and imported. The second
/// table has room enough that it lies in pages of its own.
const OWN: &str = r#"
    (memory $m (export "memory") 1 40)
    (table $tf (export "functions") 6 1000 funcref)
    (table $te (export "externals") 2 3000 externref)
    (global $i32 (mut i32) (i32.const 1))
    (global $i64 (mut i64) (i64.const 2))
    (global $f32 (mut f32) (f32.const 3))
    (global $f64 (mut f64) (f64.const 4))
    (global $v128 (mut v128) (v128.const i64x2 5 6))
    (global $funcref (mut funcref) (ref.null func))
    (global $externref (mut externref) (ref.null extern))"#;

const IMPORTED: &str = r#"
    (import "" "" (memory $m 1 40))
    (import "" "" (table $tf 6 1000 funcref))
    (import "" "" (table $te 2 3000 externref))
    (import "" "" (global $i32 (mut i32)))
    (import "" "" (global $i64 (mut i64)))
    (import "" "" (global $f32 (mut f32)))
    (import "" "" (global $f64 (mut f64)))
    (import "" "" (global $v128 (mut v128)))
    (import "" "" (global $funcref (mut funcref)))
    (import "" "" (global $externref (mut externref)))"#;

const CODE: &str = r#"
    (elem $e1 func $one $two $host)
    (elem $e2 func $two $one)
    (data $d1 "first")
    (data $d2 "second")
    (func $one (export "one") (result i32) (i32.const 1))
    (func $two (result i32) (i32.add (global.get $i32) (i32.const 2)))

    (func $step (param $x i32) (param $ref externref)
        ;; Memory: old pages, new pages, bulk operations.
        (drop (memory.grow $m (i32.const 2)))
        (i64.store offset=8 (local.get $x) (i64.const 0x1122334455667788))
        (memory.fill (i32.const 65000) (local.get $x) (i32.const 1000))
        (memory.copy (i32.const 131000) (i32.const 65100) (i32.const 500))
        (memory.init $d2 (i32.add (local.get $x) (i32.const 100)) (i32.const 1) (i32.const 4))
        ;; Globals.
        (global.set $i32 (i32.add (global.get $i32) (i32.mul (local.get $x) (i32.const 1001))))
        (global.set $i64 (i64.add (global.get $i64) (i64.const 0x123456789abcdef)))
        (global.set $f32 (f32.sqrt (f32.add (global.get $f32) (f32.const 0.7))))
        (global.set $f64 (f64.div (global.get $f64) (f64.const -3)))
        (global.set $v128 (i8x16.add (global.get $v128) (i8x16.splat (local.get $x))))
        (global.set $funcref (ref.func $two))
        (global.set $externref (local.get $ref))
        ;; Tables.
        (table.set $tf (i32.const 1) (ref.func $two))
        (drop (table.grow $tf (ref.func $host) (i32.const 3)))
        (table.fill $tf (i32.const 3) (ref.func $one) (i32.const 2))
        (table.copy $tf $tf (i32.const 2) (i32.const 1) (i32.const 2))
        (table.init $tf $e2 (i32.const 0) (i32.const 1) (i32.const 1))
        (drop (table.grow $te (local.get $ref) (i32.const 2)))
        (table.set $te (i32.const 1) (local.get $ref))
        (drop (call $host)))

    (func (export "change") (param $x i32) (param $ref externref)
        (call $step (local.get $x) (local.get $ref))
        ;; Segments.
        (memory.init $d1 (i32.const 20) (i32.const 0) (i32.const 5))
        (data.drop $d1)
        (table.init $tf $e1 (i32.const 5) (i32.const 0) (i32.const 3))
        (elem.drop $e1))
    (func (export "change_more") (param $x i32) (param $ref externref)
        (call $step (local.get $x) (local.get $ref))
        (data.drop $d2))

    (func (export "i32") (result i32) (global.get $i32))
    (func (export "i64") (result i64) (global.get $i64))
    (func (export "f32") (result f32) (global.get $f32))
    (func (export "f64") (result f64) (global.get $f64))
    (func (export "v128") (result v128) (global.get $v128))
    (func (export "funcref") (result funcref) (global.get $funcref))
    (func (export "externref") (result externref) (global.get $externref))
    (func (export "memory_size") (result i32) (memory.size $m))
    (func (export "load") (param i32) (result i64) (i64.load (local.get 0)))
    (func (export "functions_size") (result i32) (table.size $tf))
    (func (export "externals_size") (result i32) (table.size $te))
    (func (export "function") (param i32) (result funcref) (table.get $tf (local.get 0)))
    (func (export "external") (param i32) (result externref) (table.get $te (local.get 0)))
    (func (export "call") (param i32) (result i32)
        (call_indirect $tf (result i32) (local.get 0)))
    (func (export "data_1") (memory.init $d1 (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "data_2") (memory.init $d2 (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "elements_1") (table.init $tf $e1 (i32.const 0) (i32.const 0) (i32.const 1)))
    (func (export "elements_2") (table.init $tf $e2 (i32.const 0) (i32.const 0) (i32.const 1)))"#;

/// The two guests: one that owns everything, one that imports it from the host.
struct Group {
    store: Store<Data>,
    guests: [Instance; 2],
    reference: ExternRef,
}

impl Group {
    fn new(modules: &[Module; 2]) -> Self {
        let mut store = Store::new(modules[0].engine(), Data::default());
        let s = &mut store;
        // Not the first reference, or one could be taken for a default.
        ExternRef::new(&mut *s, "unused").unwrap();
        let reference = ExternRef::new(&mut *s, "external").unwrap();
        let host = Func::wrap(&mut *s, |mut caller: Caller<'_, Data>| {
            caller.data_mut().calls += 1;
            77i32
        });
        let owner = Instance::new(&mut *s, &modules[0], &[host.into()]).unwrap();

        let table = |element, minimum, maximum| TableType::new(element, minimum, Some(maximum));
        let functions = table(RefType::FUNCREF, 6, 1000);
        let functions = Table::new(&mut *s, functions, Val::FuncRef(None)).unwrap();
        let externals = table(RefType::EXTERNREF, 2, 3000);
        let externals = Table::new(&mut *s, externals, Val::ExternRef(None)).unwrap();
        let memory = Memory::new(&mut *s, MemoryType::new(1, Some(40))).unwrap();
        let mut imports: Vec<Extern> = vec![host.into(), memory.into()];
        imports.extend([Extern::from(functions), externals.into()]);
        for value in [
            Val::I32(1),
            Val::I64(2),
            Val::F32(3f32.to_bits()),
            Val::F64(4f64.to_bits()),
            Val::V128(6 << 64 | 5),
            Val::FuncRef(None),
            Val::ExternRef(None),
        ] {
            let ty = GlobalType { content: value.ty(), mutable: true };
            imports.push(Global::new(&mut *s, ty, value).unwrap().into());
        }
        let importer = Instance::new(&mut *s, &modules[1], &imports).unwrap();
        Self { store, guests: [owner, importer], reference }
    }

    /// Changes all that can be changed, from guests and from the host.
    fn change(&mut self) {
        for (guest, x) in self.guests.into_iter().zip([40, 50]) {
            self.call(guest, "change", &[Val::I32(x), self.reference.into()]).unwrap();
        }
        // A reference to a function of the other guest, and the host's writes.
        let [owner, importer] = self.guests;
        let foreign = importer.get_func(&mut self.store, "one").unwrap();
        let functions = owner.get_table(&mut self.store, "functions").unwrap();
        functions.set(&mut self.store, 4, foreign.into()).unwrap();
        let memory = owner.get_memory(&mut self.store, "memory").unwrap();
        memory.grow(&mut self.store, 3).unwrap();
        memory.write(&mut self.store, 5 * 65536, b"from the host").unwrap();
    }

    fn call(&mut self, guest: Instance, name: &str, params: &[Val]) -> pagefork::Result<Vec<Val>> {
        let function = guest.get_func(&mut self.store, name).unwrap();
        let mut results = vec![Val::I32(0); function.ty(&self.store).results.len()];
        function.call(&mut self.store, params, &mut results)?;
        Ok(results)
    }

    /// What a value is, told without naming the store.
    fn describe(&mut self, value: &Val) -> String {
        match value {
            Val::FuncRef(Some(function)) => {
                let mut result = [Val::I32(0)];
                function.call(&mut self.store, &[], &mut result).unwrap();
                format!("returns {:?}", result[0])
            }
            Val::FuncRef(None) | Val::ExternRef(None) => "null".to_owned(),
            Val::ExternRef(Some(reference)) => {
                let value = reference.data(&self.store).unwrap();
                format!("{:?}", value.downcast_ref::<&str>())
            }
            number => format!("{number:?}"),
        }
    }

    /// All that guests can observe. Probing the segments changes a little, so
    /// groups that are compared are observed equally often.
    fn observe(&mut self) -> String {
        let mut all = String::new();
        for guest in self.guests {
            for name in [
                "i32",
                "i64",
                "f32",
                "f64",
                "v128",
                "funcref",
                "externref",
                "memory_size",
                "functions_size",
                "externals_size",
            ] {
                let results = self.call(guest, name, &[]).unwrap();
                writeln!(all, "{name}: {}", self.describe(&results[0])).unwrap();
            }
            // Beyond the ends, too: what traps is observable.
            for (name, indices) in [("function", 32), ("external", 32), ("call", 32)] {
                for index in 0..indices {
                    let found = match self.call(guest, name, &[Val::I32(index)]) {
                        Ok(results) => self.describe(&results[0]),
                        Err(error) => format!("{error}"),
                    };
                    writeln!(all, "{name} {index}: {found}").unwrap();
                }
            }
            let pages = self.call(guest, "memory_size", &[]).unwrap()[0].i32().unwrap();
            for word in 0..pages * 65536 / 8 {
                let found = self.call(guest, "load", &[Val::I32(8 * word)]).unwrap()[0];
                if found.i64() != Some(0) {
                    writeln!(all, "{:#x}: {found:?}", 8 * word).unwrap();
                }
            }
            let beyond = self.call(guest, "load", &[Val::I32(pages * 65536)]);
            assert_eq!(
                common::trap_code(&beyond.unwrap_err()),
                pagefork::TrapCode::MemoryOutOfBounds
            );
            for name in ["data_1", "data_2", "elements_1", "elements_2"] {
                let found = self.call(guest, name, &[]).map_err(|error| format!("{error}"));
                writeln!(all, "{name}: {found:?}").unwrap();
            }
        }
        all
    }
}

fn modules(engine: &Engine) -> [Module; 2] {
    let host = r#"(import "host" "f" (func $host (result i32)))"#;
    [OWN, IMPORTED]
        .map(|defined| Module::new(engine, format!("(module {host} {defined} {CODE})")).unwrap())
}

/// Copies tables, state and memory of each slot, byte by byte, and nothing else.
/// That pages exist is no content: the target's memory is grown first.
fn copy_pages(source: &Store<Data>, target: &mut Store<Data>) {
    let count = suspend::instance_count(source);
    assert_eq!(suspend::instance_count(&*target), count);
    for ordinal in 1..=count {
        let size = suspend::zone_bytes(source, ordinal, Zone::Memory(0)).1.len();
        let has = suspend::zone_bytes(&*target, ordinal, Zone::Memory(0)).1.len();
        if size != has {
            let instance = suspend::instance(&*target, ordinal);
            let memory = instance.get_memory(&mut *target, "memory").unwrap();
            memory.grow(&mut *target, (size - has) as u64 / 65536).unwrap();
        }
        let (from, to) = (suspend::slot(source, ordinal), suspend::slot(&*target, ordinal));
        assert_eq!(from.layout, to.layout);
        assert_ne!(from.base, to.base);
        let start = from.layout.tables.start as usize;
        let length = from.base + size - from.start - start;
        // SAFETY: both ranges are accessible zones of different slots, which
        // nothing uses meanwhile: the stores are borrowed.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::with_exposed_provenance::<u8>(from.start + start),
                std::ptr::with_exposed_provenance_mut::<u8>(to.start + start),
                length,
            );
        }
    }
}

#[test]
fn the_pages_of_a_changed_group_make_a_fresh_one_the_same() {
    let modules = modules(&Engine::default());
    let (mut changed, mut fresh) = (Group::new(&modules), Group::new(&modules));
    changed.change();
    copy_pages(&changed.store, &mut fresh.store);
    let (expected, found) = (changed.observe(), fresh.observe());
    assert_same(&expected, &found);
    assert_eq!(fresh.store.data().calls + 2, changed.store.data().calls, "two changes called");

    // Both go on in the same way, too.
    for group in [&mut changed, &mut fresh] {
        for guest in group.guests {
            let arguments = [Val::I32(9), group.reference.into()];
            group.call(guest, "change_more", &arguments).unwrap();
        }
    }
    let later = changed.observe();
    assert_ne!(expected, later);
    assert_same(&later, &fresh.observe());
}

#[test]
fn what_is_observed_tells_every_change() {
    // The test above says something only if the observer sees each change.
    let modules = modules(&Engine::default());
    let (mut changed, mut fresh) = (Group::new(&modules), Group::new(&modules));
    changed.change();
    let (changed, fresh) = (changed.observe(), fresh.observe());
    for name in [
        "i32",
        "i64",
        "f32",
        "f64",
        "v128",
        "funcref",
        "externref",
        "memory_size",
        "functions_size",
        "externals_size",
        "function 1",
        "function 7",
        "external 1",
        "external 3",
        "call 4",
        "data_1",
        "elements_1",
    ] {
        let lines = |text: &str| -> Vec<String> {
            let wanted = format!("{name}:");
            text.lines().filter(|line| line.starts_with(&wanted)).map(str::to_owned).collect()
        };
        let (changed, fresh) = (lines(&changed), lines(&fresh));
        assert_eq!((changed.len(), fresh.len()), (2, 2), "{name}");
        for (changed, fresh) in changed.iter().zip(&fresh) {
            let own_only = name == "call 4";
            assert!(changed != fresh || own_only, "{name}: {changed}");
        }
    }
}

#[test]
fn each_part_of_the_state_lies_where_the_layout_says() {
    let engine = Engine::default();
    let modules = modules(&engine);
    let mut group = Group::new(&modules);
    group.change();
    // Instances are numbered in the order in which they are made.
    let (own, other) = (1, suspend::instance_count(&group.store));
    let info = &modules[0].compiled().info;
    let layout = &modules[0].compiled().layout;
    let parts = &layout.state_parts;
    let (start, state) = suspend::zone_bytes(&group.store, own, Zone::State);
    let bytes = |offset: i32, length: usize| {
        let at = (layout.base as i64 + i64::from(offset) - start as i64) as usize;
        &state[at..at + length]
    };
    let expected = [
        1 + 40 * 1001,
        2 + 0x123456789abcdefu64,
        u64::from((3f32 + 0.7).sqrt().to_bits()),
        (4f64 / -3.0).to_bits(),
    ];
    for (index, value) in expected.into_iter().enumerate() {
        assert_eq!(bytes(parts.global(index as u32), 8), value.to_le_bytes(), "global {index}");
    }
    let vector: Vec<u8> =
        [5u64, 6].iter().flat_map(|half| half.to_le_bytes()).map(|b| b + 40).collect();
    assert_eq!(bytes(parts.global(4), 16), vector);
    let two = u64::from(info.imported_functions) + 1;
    assert_eq!(bytes(parts.global(5), 8), (two + 1).to_le_bytes(), "its own function");
    assert_ne!(bytes(parts.global(6), 8), [0; 8], "a handle");
    assert_eq!(bytes(parts.memory_size(0), 8), (6 * 65536u64).to_le_bytes());
    assert_eq!(bytes(parts.table_length(0), 8), 9u64.to_le_bytes());
    assert_eq!(bytes(parts.table_length(1), 8), 4u64.to_le_bytes());
    assert_eq!(bytes(parts.dropped, 4), [1, 0, 1, 0], "element and data segments");

    // An element that is another instance's function names that instance.
    let (start, tables) = suspend::zone_bytes(&group.store, own, Zone::Tables);
    let at = |index| {
        let place = (layout.base as i64 + layout.table_element(0, index)) as u64;
        let all = [&tables[..], &state[..]].concat();
        let at = (place - start) as usize;
        u64::from_le_bytes(all[at..at + 8].try_into().unwrap())
    };
    assert_eq!(at(4) >> 32, u64::from(other));
    assert_eq!(at(5), u64::from(info.imported_functions) + 1);
    assert_eq!(at(7) >> 32, 0, "the import's stub is a function of its own");
}

#[test]
fn a_moved_group_goes_on_as_the_original() {
    let modules = modules(&Engine::default());
    for stop_at in [1, 2] {
        let mut group = Group::new(&modules);
        group.change();
        // Suspended with live frames between two changes of everything.
        let [owner, _] = group.guests;
        let function = owner.get_func(&mut group.store, "change_more").unwrap();
        let arguments = [Val::I32(3), group.reference.into()];
        let progress = suspend::call(&mut group.store, &function, &arguments, Some(stop_at));
        assert!(matches!(progress, Ok(CallProgress::Suspended)), "{progress:?}");

        let mut copy = Store::new(modules[0].engine(), group.store.data().clone());
        suspend::copy_to(&group.store, &mut copy, true).unwrap();
        let count = suspend::instance_count(&copy);
        let guests = [1, count].map(|ordinal| suspend::instance(&copy, ordinal));
        // References are values of the embedder that come along.
        let mut copy = Group { store: copy, guests, reference: group.reference };
        for store in [&mut group.store, &mut copy.store] {
            let progress = suspend::resume(&mut *store, None);
            assert!(matches!(progress, Ok(CallProgress::Finished(_))), "{progress:?}");
        }
        assert_same(&group.observe(), &copy.observe());
        assert_eq!(group.store.data().calls, copy.store.data().calls);
    }
}

/// Asserts equality without printing a whole observation.
#[track_caller]
fn assert_same(expected: &str, found: &str) {
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(expected.lines().count(), found.lines().count());
}
