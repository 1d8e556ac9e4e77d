//! Page maps that lie to the host, and managers whose tables are damaged: their own guest comes to harm, and
//! nobody else.

use pagefork::image::ImageStore;
use pagefork::suspend::{self, CallProgress};
use pagefork::{
    Engine, Extern, Instance, InstancePre, Linker, LoadOptions, Memory, Module, SaveOptions,
    Snapshot, Store, StoreLimits, Val,
};

use super::guests::scratch;
use super::snapshots::Mapping;

/// Bytes of a page of the host, and of the guest's memory.
const PAGE: usize = 4096;
const SIZE: usize = 20 << 16;

/// Where in a page map the host says that all free pages are zero.
const CLEARED: usize = 20;

/// A guest with a page map that its host writes, and something of an image.
const LIAR: &str = r#"(module
    (memory (export "memory") 20 40)
    (global (export "pageman_page_map") (mut i32) (i32.const 0))
    (data (i32.const 4000) "of the image")
    (data (i32.const 700000) "and more of it")
    (func (export "sum") (result i32) (local $at i32) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (i32.rotl (local.get $sum) (i32.const 1))
                (i32.load (local.get $at))))
            (br_if $next (i32.lt_u
                (local.tee $at (i32.add (local.get $at) (i32.const 4)))
                (i32.const 1310720))))
        (local.get $sum)))"#;

/// The same numbers each time, by a multiplication and an addition.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }
}

/// A page map, as a guest may write it.
#[derive(Clone, Copy)]
struct Map {
    magic: u32,
    version: u16,
    page_shift: u8,
    bits: u8,
    sequence: u32,
    pages: u32,
    states: u32,
    cleared: u32,
}

/// One that the host believes: of all pages, by states right behind it.
const BELIEVED: Map = Map {
    magic: 0x4d47_4150,
    version: 1,
    page_shift: 12,
    bits: 4,
    sequence: 2,
    pages: (SIZE / PAGE) as u32,
    states: 0x1_0020,
    cleared: 0,
};

impl Map {
    /// Writes as much of it as there is room for.
    fn write(self, memory: &mut [u8], at: usize) {
        let (low, high) = (u32::from(self.version), u32::from(self.page_shift));
        let second = low | high << 16 | u32::from(self.bits) << 24;
        let words =
            [self.magic, second, self.sequence, self.pages, self.states, self.cleared].into_iter();
        let bytes = words.flat_map(u32::to_le_bytes);
        let room = memory.iter_mut().skip(at);
        room.zip(bytes).for_each(|(place, byte)| *place = byte);
    }
}

/// A guest that lies, and another one of the same module that does not.
struct World {
    pre: InstancePre<()>,
    images: ImageStore,
    neighbour: (Store<()>, Instance),
    fresh: Vec<u8>,
}

fn memory_of(store: &mut Store<()>, instance: Instance) -> Memory {
    instance.get_memory(&mut *store, "memory").expect("it is exported")
}

fn bytes_of(store: &mut Store<()>, instance: Instance) -> Vec<u8> {
    let memory = memory_of(store, instance);
    memory.data(&*store).to_vec()
}

fn sum(store: &mut Store<()>, instance: Instance) -> u32 {
    let sum = instance.get_typed_func::<(), u32>(&mut *store, "sum").expect("it is exported");
    sum.call(&mut *store, ()).expect("it does not trap")
}

impl World {
    fn new(name: &str) -> Self {
        let engine = Engine::default();
        let module = Module::new(&engine, LIAR).expect("a valid module");
        let pre = Linker::new(&engine).instantiate_pre(&module).expect("it imports nothing");
        let images = ImageStore::open(scratch(name)).expect("a directory");
        let (mut store, instance) = pre.spawn(()).expect("a slot");
        let fresh = bytes_of(&mut store, instance);
        Self { pre, images, neighbour: (store, instance), fresh }
    }

    /// A guest all of whose bytes are in use lies by what `lie` writes to its memory and the address that
    /// it tells. Its copies have its bytes, but for whole pages of zeros: how many. No other bytes change,
    /// neither its own nor those of others.
    fn check(&mut self, what: &str, lie: impl Fn(&mut [u8]) -> u32) -> usize {
        let (mut store, instance) = self.pre.spawn(()).expect("a slot");
        let memory = memory_of(&mut store, instance);
        let bytes = memory.data_mut(&mut store);
        bytes.iter_mut().zip(0..).for_each(|(byte, at)| *byte = (at % 251) as u8 + 1);
        let map = lie(bytes);
        let told = instance.get_global(&mut store, "pageman_page_map").expect("it is exported");
        told.set(&mut store, Val::I32(map as i32)).expect("it may be set");
        let was = memory.data(&store).to_vec();
        let before = sum(&mut store, instance);

        let snapshot = store.snapshot().expect("it can be captured");
        let copy = spawned(&snapshot);
        let left_out = compare(what, &was, &copy, map as usize);
        let saved = snapshot.save(&self.images, SaveOptions::new()).expect("it can be saved");
        let load = |image| {
            let linker = Linker::new(self.pre.module().engine());
            let loaded = Snapshot::load(&linker, &self.images, image, LoadOptions::new());
            spawned(&loaded.expect("it can be loaded"))
        };
        assert!(load(saved) == copy, "{what}: the image differs");
        // A second one is told as a difference to the first.
        let changed = SIZE - 5 * PAGE;
        memory.write(&mut store, changed, &[0xee]).expect("it is there");
        let second = store.snapshot().expect("it can be captured");
        let options = SaveOptions::new().delta_of(&snapshot);
        let delta = second.save(&self.images, options).expect("it can be saved");
        assert!(load(delta) == spawned(&second), "{what}: the delta differs");
        memory.write(&mut store, changed, &was[changed..=changed]).expect("it is there");

        assert!(memory.data(&store) == was, "{what}: its own bytes have changed");
        assert_eq!(sum(&mut store, instance), before, "{what}");
        drop(store);
        let (store, instance) = &mut self.neighbour;
        assert!(bytes_of(store, *instance) == self.fresh, "{what}: the neighbour has changed");
        // In the slot that it lay in, or another one.
        let (mut next, instance) = self.pre.spawn(()).expect("a slot");
        assert!(bytes_of(&mut next, instance) == self.fresh, "{what}: the next one has changed");
        left_out
    }
}

/// The memory of a guest that was spawned from a snapshot.
fn spawned(snapshot: &Snapshot<()>) -> Vec<u8> {
    let pre = snapshot.instance_pre().expect("all is linked");
    let (mut store, instance) = pre.spawn(()).expect("a slot");
    bytes_of(&mut store, instance)
}

/// How many pages are zero in a copy of this guest; all others are as they were, but for the word that says
/// that they are.
fn compare(what: &str, was: &[u8], copy: &[u8], map: usize) -> usize {
    assert_eq!(was.len(), copy.len());
    let word = map.saturating_add(CLEARED)..map.saturating_add(CLEARED + 4);
    let mut zeros = 0;
    let mut copy = copy.to_vec();
    if copy.get(word.clone()).is_some_and(|told| told == 1u32.to_le_bytes()) {
        // Where the word's own page is left out it is zero but for that.
        for at in word.clone() {
            let page = at / PAGE * PAGE..(at / PAGE + 1) * PAGE;
            let is_zero = |at: usize| copy[at] == 0 || word.contains(&at);
            copy[at] = if page.clone().all(is_zero) { 0 } else { was[at] };
        }
    }
    for (page, (was, copy)) in was.chunks(PAGE).zip(copy.chunks(PAGE)).enumerate() {
        if was != copy {
            assert!(copy.iter().all(|byte| *byte == 0), "{what}: page {page} has other bytes");
            zeros += 1;
        }
    }
    zeros
}

/// Writes a map at 64 KiB, of which so much is different, and states that call all pages free.
fn all_free(change: impl Fn(&mut Map)) -> impl Fn(&mut [u8]) -> u32 {
    move |memory: &mut [u8]| {
        let mut map = BELIEVED;
        change(&mut map);
        memory[0x1_0020..][..SIZE / PAGE / 2].fill(0x11);
        map.write(memory, 0x1_0000);
        0x1_0000
    }
}

/// What the host believes costs the guest's copies what it calls free: pages in use, those of the map itself
/// among them.
#[test]
fn what_a_map_calls_free_is_gone_in_copies_alone() {
    let mut world = World::new("pageman-lies-believed");
    let all = SIZE / PAGE;
    assert_eq!(world.check("all is free", all_free(|_| ())), all);
    assert_eq!(world.check("it is told of again", all_free(|map| map.cleared = u32::MAX)), all);
    let half = |map: &mut Map| map.pages /= 2;
    assert_eq!(world.check("half of it is free", all_free(half)), all / 2);
    let large = |map: &mut Map| (map.page_shift, map.pages) = (16, 20);
    assert_eq!(world.check("in large pages", all_free(large)), all);
    let own = |map: &mut Map| map.states = 0x1_0000;
    let of_itself = world.check("the states are the map itself", all_free(own));
    assert!(of_itself < all, "{of_itself}");
    let used = |memory: &mut [u8]| {
        all_free(|_| ())(memory);
        memory[0x1_0020..][..all / 2].fill(0xbb);
        0x1_0000
    };
    assert_eq!(world.check("nothing is free", used), 0);
    let zero = |memory: &mut [u8]| {
        all_free(|_| ())(memory);
        memory[0x1_0020..][..all / 2].fill(0x20);
        0x1_0000
    };
    assert_eq!(world.check("what is in use is called free and zero", zero), 0);
    let every_second = |memory: &mut [u8]| {
        all_free(|_| ())(memory);
        memory[0x1_0020..][..all / 2].fill(0x71);
        0x1_0000
    };
    assert_eq!(world.check("every second page", every_second), all / 2);
    // Where the word that the host writes lies across pages, and at the very end.
    for at in [PAGE - CLEARED - 2, 3 * PAGE - 12, 0x1_0000 - CLEARED - 1, SIZE - 24] {
        let lie = |memory: &mut [u8]| {
            memory[0x2_0000..][..all / 2].fill(0x11);
            Map { states: 0x2_0000, ..BELIEVED }.write(memory, at);
            at as u32
        };
        assert_eq!(world.check("across pages", lie), all, "{at}");
    }
}

/// What is no map of a known form, at rest and within memory costs nothing.
#[test]
fn what_is_no_map_leaves_nothing_out() {
    type Change = fn(&mut Map);
    let mut world = World::new("pageman-lies-refused");
    let lies: [(&str, Change); 21] = [
        ("another magic number", |map| map.magic ^= 1),
        ("a version from the future", |map| map.version = 2),
        ("the last version", |map| map.version = u16::MAX),
        ("no version", |map| map.version = 0),
        ("pages of a byte", |map| map.page_shift = 0),
        ("pages of 2 KiB", |map| map.page_shift = 11),
        ("pages of 128 KiB", |map| (map.page_shift, map.pages) = (17, 10)),
        ("pages larger than numbers", |map| map.page_shift = 63),
        ("far larger", |map| (map.page_shift, map.pages) = (u8::MAX, 0)),
        ("states without bits", |map| map.bits = 0),
        ("states of a byte", |map| map.bits = 8),
        ("changing for good", |map| map.sequence = 3),
        ("changing, at the end of all numbers", |map| map.sequence = u32::MAX),
        ("a page too many", |map| map.pages += 1),
        ("as many pages as there are numbers", |map| map.pages = u32::MAX),
        ("the same, of 64 KiB", |map| (map.page_shift, map.pages) = (16, u32::MAX)),
        ("no pages", |map| map.pages = 0),
        ("states that reach beyond memory", |map| map.states = (SIZE - 159) as u32),
        ("states behind the end", |map| map.states = SIZE as u32),
        ("states at the end of numbers", |map| map.states = u32::MAX),
        ("states that wrap around", |map| map.states = u32::MAX - 100),
    ];
    for (what, change) in lies {
        assert_eq!(world.check(what, all_free(change)), 0, "{what}");
    }
    for at in [SIZE - 23, SIZE - 1, SIZE, SIZE + 1, 1 << 31, u32::MAX as usize] {
        let lie = |memory: &mut [u8]| {
            BELIEVED.write(memory, at);
            at as u32
        };
        assert_eq!(world.check("a map outside", lie), 0, "{at:#x}");
    }
}

/// Maps with any bytes in them are believed or not: copies have the guest's bytes or zeros, and nothing else
/// changes.
#[test]
fn random_maps_harm_nobody_else() {
    let mut world = World::new("pageman-lies-random");
    let (mut numbers, mut believed) = (Numbers(1), 0);
    for turn in 0..150 {
        let seed = numbers.next();
        let lie = |memory: &mut [u8]| {
            let mut numbers = Numbers(seed);
            let at = numbers.below(SIZE - 24);
            let states = numbers.below(SIZE - SIZE / PAGE);
            for state in &mut memory[states..][..SIZE / PAGE] {
                *state = numbers.next() as u8;
            }
            let map = Map { states: states as u32, ..BELIEVED };
            map.write(memory, at);
            // Of which some bytes are anything, or one bit.
            for _ in 0..numbers.below(4) {
                let place = &mut memory[at + numbers.below(24)];
                *place = match numbers.below(2) {
                    0 => numbers.next() as u8,
                    _ => *place ^ 1 << numbers.below(8),
                };
            }
            at as u32
        };
        believed += usize::from(world.check(&format!("turn {turn}"), lie) > 0);
    }
    println!("{believed} of 150 maps were believed");
    assert!((30..140).contains(&believed));
}

/// As many runs of free pages as there can be.
#[test]
fn a_map_of_many_runs_is_read() {
    const MANY: &str = r#"(module
        (memory (export "memory") 4096)
        (global (export "pageman_page_map") i32 (i32.const 65536)))"#;
    let engine = Engine::default();
    let module = Module::new(&engine, MANY).expect("a valid module");
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &module, &[]).expect("it needs nothing");
    let memory = memory_of(&mut store, instance);
    let bytes = memory.data_mut(&mut store);
    let pages = bytes.len() / PAGE;
    bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 7);
    bytes[0x2_0000..][..pages / 2].fill(0x18);
    Map { pages: pages as u32, states: 0x2_0000, ..BELIEVED }.write(bytes, 0x1_0000);
    let copy = spawned(&store.snapshot().expect("it can be captured"));
    let is_gone = |page: &&[u8]| page[0] == 0;
    assert_eq!(copy.chunks(PAGE).filter(is_gone).count(), pages / 2);
}

/// Only a constant of the module's own, of 32 bits, is a map's address, and only in the module's own first
/// memory.
#[test]
fn other_exports_of_the_name_are_no_maps() {
    const MAP: &str = r#"(data (i32.const 65536)
        "PAGM\01\00\0c\04\02\00\00\00\40\01\00\00\20\00\01\00\00\00\00\00--------"
        "\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11\11")
        (data (i32.const 4096) "in use")"#;
    let engine = Engine::default();
    let modules = [
        r#"(func (export "pageman_page_map") (result i32) (i32.const 65536)) (memory 20)"#,
        r#"(table (export "pageman_page_map") 1 funcref) (memory 20)"#,
        r#"(memory (export "pageman_page_map") 20)"#,
        r#"(global (export "pageman_page_map") i64 (i64.const 65536)) (memory 20)"#,
        r#"(global (export "pageman_page_map") f32 (f32.const 65536)) (memory 20)"#,
        r#"(global (export "pageman_page_map") externref (ref.null extern)) (memory 20)"#,
        r#"(global (export "another") i32 (i32.const 65536)) (memory 20)"#,
        r#"(global (export "pageman_page_map") i32 (i32.const 65536)) (memory 0)"#,
    ];
    let control = format!(
        r#"(module (memory (export "memory") 20) {MAP}
        (global (export "pageman_page_map") i32 (i32.const 65536)))"#
    );
    let control = Module::new(&engine, control).expect("a valid module");
    let mut store = Store::new(&engine, ());
    let instance = Instance::new(&mut store, &control, &[]).expect("it needs nothing");
    let was = bytes_of(&mut store, instance);
    let copy = spawned(&store.snapshot().expect("it can be captured"));
    assert!(was[4096..4102] == *b"in use" && copy[4096..4102] == [0; 6], "this map is believed");
    for text in modules {
        let data = if text.ends_with("(memory 0)") { "" } else { MAP };
        let text = format!(r#"(module {text} {data} (export "memory" (memory 0)))"#);
        let module = Module::new(&engine, &text).expect("a valid module");
        let mut store = Store::new(&engine, ());
        let instance = Instance::new(&mut store, &module, &[]).expect("it needs nothing");
        assert_copies_whole(&mut store, instance, &text);
    }
    let none = r#"(module (global (export "pageman_page_map") i32 (i32.const 0)))"#;
    let module = Module::new(&engine, none).expect("a valid module");
    let mut store = Store::new(&engine, ());
    Instance::new(&mut store, &module, &[]).expect("it needs nothing");
    store.snapshot().expect("there is no memory to look into");

    // One module's memory, and a map of another one: neither may speak of what is not its own.
    let owner = format!(r#"(module (memory (export "memory") 20) {MAP})"#);
    let owner = Module::new(&engine, owner).expect("a valid module");
    let other = r#"(module (import "" "memory" (memory 20)) (export "memory" (memory 0))
        (global (export "pageman_page_map") i32 (i32.const 65536)))"#;
    let other = Module::new(&engine, other).expect("a valid module");
    let mut store = Store::new(&engine, ());
    let owner = Instance::new(&mut store, &owner, &[]).expect("it needs nothing");
    let memory = Extern::Memory(memory_of(&mut store, owner));
    let other = Instance::new(&mut store, &other, &[memory]).expect("all is there");
    assert_copies_whole(&mut store, other, "of another's memory");
}

fn assert_copies_whole(store: &mut Store<()>, instance: Instance, what: &str) {
    let was = bytes_of(store, instance);
    let memory = memory_of(store, instance);
    let mut copies = store.fork(1, |_| ()).expect("a slot");
    let Ok(Extern::Memory(copy)) = copies[0].counterpart(memory) else { panic!("{what}") };
    assert!(copy.data(&copies[0]) == was, "{what}");
}

/// How a call of a damaged program ends.
#[derive(Default, Debug)]
struct Ends {
    finished: u32,
    failed: u32,
    stopped: u32,
}

impl Ends {
    /// Has it do some calls, and stops it where it does not come to an end.
    fn turn(&mut self, program: &mut Mapping) {
        // What it makes of its memory is bounded, and so is how much of it is here.
        program.store.set_limits(StoreLimits::new().memory_size(64 << 20));
        let turn = program.exported("turn");
        match suspend::call(&mut program.store, &turn, &[Val::I32(40)], Some(30_000_000)) {
            Ok(CallProgress::Finished(_)) => self.finished += 1,
            Err(_) => self.failed += 1,
            Ok(CallProgress::Suspended) => {
                self.stopped += 1;
                suspend::abandon(&mut program.store);
            }
        }
    }
}

/// A program that writes anything over its manager's tables and page map goes wrong itself, at most: it
/// traps, or is stopped; so do its copies. Others beside it and after it do what they do otherwise.
#[test]
fn damaged_tables_harm_their_own_guest_alone() {
    let Some(mut neighbour) = Mapping::start() else { return };
    let expected = neighbour.turn(100);
    let (mut numbers, mut ends, mut of_copies) = (Numbers(3), Ends::default(), Ends::default());
    for turn in 0..60 {
        let mut program = Mapping::start().expect("it is there");
        assert_eq!(program.turn(100), expected, "the one of turn {turn}");
        let map = program.page_map();
        let memory = program.memory_mut();
        let word = |memory: &[u8], at: usize| {
            u32::from_le_bytes(memory[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let (pages, states) = (word(memory, map + 12), word(memory, map + 16));
        let places = match turn % 4 {
            // The map itself; states, and what follows from them; all else that the manager knows.
            0 => map..map + 24,
            1 => states..states + pages / 2,
            2 => states..states + pages * 9 / 10,
            _ => map.saturating_sub(2048)..map + 2048,
        };
        for _ in 0..=numbers.below(24) {
            let at = places.start + numbers.below(places.len());
            memory[at] = match numbers.below(3) {
                0 => 0xff,
                1 => memory[at] ^ 1 << numbers.below(8),
                _ => numbers.next() as u8,
            };
        }
        let mut copy = program.copy();
        ends.turn(&mut program);
        of_copies.turn(&mut copy);
        let mut later = program.copy();
        of_copies.turn(&mut later);
        neighbour.verify();
    }
    println!("{ends:?}, of copies {of_copies:?}");
    assert!(ends.failed > 5 && ends.finished > 5, "{ends:?}");
    let mut undisturbed = Mapping::start().expect("it is there");
    undisturbed.turn(100);
    assert_eq!(neighbour.turn(100), undisturbed.turn(100));
}
