//! Images that are changed and have right hashes: refused, or what is accepted runs.

use std::ops::Range;
use std::sync::LazyLock;

use arbitrary::{Result as Arbitrary, Unstructured};
use pagefork::image::{ImageDraft, ImageStore, Manifest, PageRuns};
use pagefork::{
    Config, Engine, Instance, Linker, LoadOptions, Module, SaveOptions, Snapshot, Store,
};

const PAGE: u64 = 4096;

/// Something of everything that is checked.
const MODULE: &str = r#"(module
    (type $unary (func (param i32) (result i32)))
    (import "host" "add" (func $add (param i32 i32) (result i32)))
    (import "library" "memory" (memory $shared 1 3))
    (import "library" "table" (table $shared 3 9 funcref))
    (import "library" "tag" (tag $tag (param i32 funcref)))
    (memory $own 1 4)
    (table $own 4 9 funcref)
    (table $typed 2 3 (ref null $unary))
    (table $caught 2 2 exnref)
    (global $count (mut i32) (i32.const 0))
    (global $function (mut (ref $unary)) (ref.func $twice))
    (elem declare func $add $twice)
    (elem $passive funcref (ref.func $twice) (ref.func $add))
    (data $bytes "some bytes")
    (func $twice (type $unary) (i32.mul (local.get 0) (i32.const 2)))
    (func $throw (result i32 funcref exnref)
        (block $out (result i32 funcref exnref)
            (try_table (catch_ref $tag $out) (throw $tag (i32.const 9) (ref.func $twice)))
            (unreachable)))
    (func (export "begin") (local $caught exnref)
        (table.set $own (i32.const 0) (ref.func $twice))
        (table.set $own (i32.const 1) (ref.func $add))
        (table.set $shared (i32.const 0) (ref.func $twice))
        (table.set $typed (i32.const 1) (ref.func $twice))
        (call $throw)
        (local.set $caught) (drop) (drop)
        (table.set $caught (i32.const 0) (local.get $caught))
        (i32.store $own (i32.const 16) (i32.const 3)))
    (func (export "run") (param $x i32) (result i32)
        (local $sum i32) (local $i i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (call_ref $unary (local.get $i) (global.get $function))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $next (i32.lt_u (local.get $i) (i32.const 4))))
        (local.set $sum (i32.add (local.get $sum) (i32.load $own (local.get $x))))
        (local.set $sum (i32.add (local.get $sum) (i32.load $shared (local.get $x))))
        (i32.store $own (local.get $x) (local.get $sum))
        (local.get $sum))
    (func (export "call") (param i32) (result i32)
        (call_indirect $own (type $unary) (i32.const 7) (local.get 0)))
    (func (export "typed") (param i32) (result i32)
        (call_ref $unary (i32.const 7) (table.get $typed (local.get 0))))
    (func (export "shared") (param i32) (result i32)
        (call_indirect $shared (type $unary) (i32.const 7) (local.get 0)))
    (func (export "rethrow") (param i32) (result i32)
        (block $out (result i32 funcref)
            (try_table (catch $tag $out) (throw_ref (table.get $caught (local.get 0))))
            (unreachable))
        (drop))
    (func (export "again") (param i32) (result i32)
        (table.init $own $passive (i32.const 0) (i32.const 0) (local.get 0))
        (memory.init $own $bytes (i32.const 0) (i32.const 0) (local.get 0))
        (call $throw) (drop) (drop) (drop)
        (i32.add (table.grow $own (ref.null func) (i32.const 1)) (memory.grow $own (local.get 0)))))"#;

const LIBRARY: &str = r#"(module
    (memory (export "memory") 1 3)
    (table (export "table") 3 9 funcref)
    (tag (export "tag") (param i32 funcref)))"#;

/// A good image, and what it is loaded with.
struct Good {
    linker: Linker<()>,
    modules: Vec<Module>,
    images: ImageStore,
    manifest: Manifest,
    /// Of each instance its runs of pages, and the slot offset up to which they are of state.
    pages: Vec<Vec<(u64, Vec<u8>)>>,
    /// Of each instance, the slot offsets of tables and state.
    states: Vec<Range<u64>>,
}

static GOOD: LazyLock<Good> = LazyLock::new(|| Good::new().expect("the modules are valid"));

impl Good {
    fn new() -> pagefork::Result<Self> {
        let directory =
            std::env::temp_dir().join(format!("pagefork-fuzz-load-{}", std::process::id()));
        let images = ImageStore::open(directory)?;
        let engine = Engine::new(Config::new().fuel(true))?;
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "add", |a: i32, b: i32| a.wrapping_add(b))?;
        let modules = [LIBRARY, MODULE].map(|text| Module::new(&engine, text));
        let modules = modules.into_iter().collect::<pagefork::Result<Vec<_>>>()?;
        let mut store = Store::new(&engine, ());
        store.set_fuel(1 << 30)?;
        let library = linker.instantiate(&mut store, &modules[0])?;
        let mut here = linker.clone();
        here.instance(&mut store, "library", library)?;
        let instance = here.instantiate(&mut store, &modules[1])?;
        instance.get_typed_func::<(), ()>(&mut store, "begin")?.call(&mut store, ())?;
        let image = store.snapshot()?.save(&images, SaveOptions::new())?;
        let stored = images.load(image)?;
        let mut manifest = stored.chain().tip().manifest().clone();
        let (mut pages, mut states) = (Vec::new(), Vec::new());
        for (number, instance) in manifest.instances.iter_mut().enumerate() {
            let mut runs = Vec::new();
            for span in instance.spans.drain(..) {
                let mut bytes = vec![0; span.size as usize];
                stored.chain().read(number, span.start, &mut bytes)?;
                runs.push((span.start, bytes));
            }
            // The ninth word of a layout is where the state zone ends.
            let start = instance.extents.first().map_or(0, |extent| extent.start);
            states.push(start..instance.layout[9]);
            pages.push(runs);
        }
        (manifest.data_size, manifest.root) = (0, Default::default());
        Ok(Self { linker, modules, images, manifest, pages, states })
    }

    fn check(&self, input: &mut Unstructured<'_>) -> Arbitrary<()> {
        let (mut manifest, mut pages) = (self.manifest.clone(), self.pages.clone());
        for _ in 0..input.int_in_range(1..=4)? {
            self.change(input, &mut manifest, &mut pages)?;
        }
        let source = PageRuns::new(pages);
        let Ok(image) = self.images.save(ImageDraft::new(manifest, &source)) else { return Ok(()) };
        let mut options = LoadOptions::new();
        for module in &self.modules {
            options = options.module(module);
        }
        let loaded = Snapshot::load(&self.linker, &self.images, image.hash(), options);
        drop(image);
        if let Ok(snapshot) = loaded
            && let Ok((mut store, instance)) = snapshot.instance_pre().and_then(|pre| pre.spawn(()))
        {
            exercise(&mut store, instance);
            // What is accepted can be captured, too.
            let again = store.snapshot().and_then(|snapshot| snapshot.instance_pre());
            if let Ok((mut store, instance)) = again.and_then(|pre| pre.spawn(())) {
                exercise(&mut store, instance);
            }
        }
        if input.ratio(1, 16)? {
            self.images.collect().expect("the store is ours");
        }
        Ok(())
    }

    fn change(
        &self,
        input: &mut Unstructured<'_>,
        manifest: &mut Manifest,
        pages: &mut [Vec<(u64, Vec<u8>)>],
    ) -> Arbitrary<()> {
        let number = input.choose_index(manifest.instances.len())?;
        let instance = &mut manifest.instances[number];
        match input.int_in_range(0..=11)? {
            0 => scramble(input, &mut instance.exceptions)?,
            1 => scramble(input, &mut instance.runtime)?,
            2 => scramble(input, &mut manifest.runtime)?,
            3 => scramble_words(input, &mut instance.layout)?,
            4 => scramble_words(input, &mut instance.memory_sizes)?,
            5 => scramble_words(input, &mut instance.table_lengths)?,
            6 => manifest.main = input.arbitrary()?,
            // Tables and state, a byte or a word.
            7..=10 => {
                let at = input.int_in_range(
                    self.states[number].clone().start..=self.states[number].end - 8,
                )?;
                let word: u64 = match input.arbitrary::<bool>()? {
                    true => input.int_in_range(0..=0x1_0000_0007)?,
                    false => input.arbitrary()?,
                };
                let size = if input.arbitrary()? { 8 } else { 1 };
                let at = if size == 8 { at & !7 } else { at };
                put(&mut pages[number], at, &word.to_le_bytes()[..size]);
            }
            _ => {
                let other = input.choose_index(manifest.instances.len())?;
                manifest.instances.swap(number, other);
                pages.swap(number, other);
            }
        }
        Ok(())
    }
}

/// Changes a byte, or the length.
fn scramble(input: &mut Unstructured<'_>, bytes: &mut Vec<u8>) -> Arbitrary<()> {
    if bytes.is_empty() || input.ratio(1, 8)? {
        bytes.resize(input.int_in_range(0..=bytes.len() + 40)?, input.arbitrary()?);
        return Ok(());
    }
    let at = input.choose_index(bytes.len())?;
    bytes[at] = input.arbitrary()?;
    Ok(())
}

fn scramble_words(input: &mut Unstructured<'_>, words: &mut Vec<u64>) -> Arbitrary<()> {
    if words.is_empty() || input.ratio(1, 8)? {
        words.resize(input.int_in_range(0..=words.len() + 2)?, input.arbitrary()?);
        return Ok(());
    }
    let at = input.choose_index(words.len())?;
    words[at] = match input.arbitrary::<bool>()? {
        true => words[at] ^ 1 << input.int_in_range(0..=63)?,
        false => input.arbitrary()?,
    };
    Ok(())
}

/// Changes bytes where there are pages.
fn put(runs: &mut [(u64, Vec<u8>)], at: u64, bytes: &[u8]) {
    for (place, byte) in (at..).zip(bytes) {
        for (start, run) in runs.iter_mut() {
            debug_assert!(start.is_multiple_of(PAGE));
            let index = place.checked_sub(*start).and_then(|index| usize::try_from(index).ok());
            if let Some(found) = index.and_then(|index| run.get_mut(index)) {
                *found = *byte;
            }
        }
    }
}

/// Calls all that there is to be called. What traps, traps.
fn exercise(store: &mut Store<()>, instance: Instance) {
    store.set_fuel(100_000).expect("the engine meters");
    for name in ["run", "call", "typed", "shared", "rethrow", "again", "run"] {
        let Ok(function) = instance.get_typed_func::<i32, i32>(&mut *store, name) else { return };
        for argument in [0, 1, 2, 8, 65_532] {
            let _ = function.call(&mut *store, argument);
        }
    }
}

/// An image that was changed has right hashes, and is refused, or what is spawned from it runs.
pub fn load(data: &[u8]) {
    // What is too short ends early.
    let _ = GOOD.check(&mut Unstructured::new(data));
}
