//! A store with something of everything, its record, and pages that tests can change.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use pagefork_layout::module::{GlobalType, MemoryType, ValType};
use pagefork_layout::page::PAGE_SIZE;
use pagefork_pages::Image;

use crate::api::func::Caller;
use crate::api::global::Global;
use crate::api::instance::Instance;
use crate::api::linker::Linker;
use crate::api::memory::Memory;
use crate::api::pre::InstancePre;
use crate::api::snapshot::Snapshot;
use crate::api::store::Store;
use crate::api::suspendable::CallProgress;
use crate::base::error::{Result, SnapshotError};
use crate::code::config::Config;
use crate::code::engine::Engine;
use crate::code::module::Module;
use crate::run::load::{Given, StoredPages, load};
use crate::run::save::{Naming, record};
use crate::store::frozen::Frozen;
use crate::store::record::{HostFuncRecord, StoreRecord};
use crate::store::references::ExternRef;
use crate::store::value::Val;

/// What the second module imports.
const LIBRARY: &str = r#"(module $library
    (memory (export "memory") 1 3)
    (table (export "table") 3 9 funcref)
    (global (export "shared") (mut i32) (i32.const 5))
    (tag (export "tag") (param i32 funcref))
    (func $twice (export "twice") (param i32) (result i32)
        (i32.mul (i32.const 2) (local.get 0)))
    (func $hidden (param i64 i64 i64))
    (elem (i32.const 1) func $twice))"#;

/// Functions of the host, of another instance and of its own in tables; references of each kind in
/// globals; an exception that a reference keeps; segments that are dropped.
const MAIN: &str = r#"(module $main
    (type $binary (func (param i32 i32) (result i32)))
    (type $unary (func (param i32) (result i32)))
    (import "host" "ask" (func $ask (param i32) (result i32)))
    (import "host" "other" (func $other (param i32 i32) (result i32)))
    (import "library" "twice" (func $twice (type $unary)))
    (import "library" "memory" (memory $shared 1 3))
    (import "library" "table" (table $imported 3 9 funcref))
    (import "library" "shared" (global $shared (mut i32)))
    (import "library" "tag" (tag $tag (param i32 funcref)))
    (import "host" "memory" (memory $of_host 1))
    (import "host" "global" (global $of_host i64))
    (memory $own 1 4)
    (table $own 4 20 funcref)
    (table $typed 2 3 (ref null $binary))
    (table $values 2 3 externref)
    (table $caught 2 2 exnref)
    (tag $second (param i64))
    (global $function (mut funcref) (ref.null func))
    (global $certain (mut (ref $binary)) (ref.func $add))
    (global $value (export "value") (mut externref) (ref.null extern))
    (global $count (mut i32) (i32.const 0))
    (elem declare func $add $ask $other $twice)
    (elem $passive funcref (ref.func $add) (ref.func $add))
    (data $bytes "some bytes")
    (func $add (type $binary) (i32.add (local.get 0) (local.get 1)))
    (func $no_reference_leads_here (param f32 f32))
    (func $begin (export "begin") (param $value externref)
        (drop (table.grow $own (ref.func $add) (i32.const 3)))
        (table.set $own (i32.const 0) (ref.func $add))
        (table.set $own (i32.const 1) (ref.func $ask))
        (table.set $own (i32.const 2) (ref.func $twice))
        (table.set $imported (i32.const 0) (ref.func $add))
        (table.set $typed (i32.const 1) (ref.func $other))
        (table.set $values (i32.const 1) (local.get $value))
        (global.set $value (local.get $value))
        (global.set $function (ref.func $twice))
        (elem.drop $passive)
        (drop (memory.grow $own (i32.const 1)))
        (i32.store $own (i32.const 70000) (i32.const 77))
        (i32.store $shared (i32.const 8) (i32.const 4))
        (table.set $caught (i32.const 0) (call $keep)))
    (func $keep (result exnref) (local $kept exnref)
        (block $out (result i32 funcref exnref)
            (try_table (catch_ref $tag $out)
                (throw $tag (i32.const 9) (ref.func $add)))
            (unreachable))
        (local.set $kept)
        (drop)
        (drop)
        (local.get $kept))
    (func $run (export "run") (param i32) (result i32)
        (local $sum i32)
        (local.set $sum (call $ask (local.get 0)))
        (local.set $sum (i32.add (local.get $sum)
            (call_indirect $own (type $binary) (i32.const 1) (i32.const 2) (i32.const 0))))
        (local.set $sum (i32.add (local.get $sum)
            (call_indirect $own (type $unary) (i32.const 10) (i32.const 2))))
        (local.set $sum (i32.add (local.get $sum)
            (call_indirect $typed (type $binary) (i32.const 3) (i32.const 4) (i32.const 1))))
        (local.set $sum (i32.add (local.get $sum)
            (call_indirect $imported (type $binary) (i32.const 5) (i32.const 6) (i32.const 0))))
        (local.set $sum (i32.add (local.get $sum) (call $exception)))
        (local.set $sum (i32.add (local.get $sum) (i32.load $own (i32.const 70000))))
        (local.set $sum (i32.add (local.get $sum) (i32.load $shared (i32.const 8))))
        (local.set $sum (i32.add (local.get $sum) (i32.wrap_i64 (global.get $of_host))))
        (local.get $sum))
    (func $exception (result i32)
        (block $out (result i32 funcref)
            (try_table (catch $tag $out) (throw_ref (table.get $caught (i32.const 0))))
            (unreachable))
        (drop))
)"#;

/// What `run` comes to when it is given 1 and the host answers with a hundred times as much.
pub(super) const ANSWER: i32 = 100 + 3 + 20 + 7000 + 11 + 9 + 77 + 4 + 1000;

pub(super) struct Fixture {
    pub(super) linker: Linker<i32>,
    pub(super) modules: Vec<Module>,
    pub(super) snapshot: Snapshot<i32>,
}

/// An engine whose code can be interrupted and pays fuel.
fn engine() -> Engine {
    Engine::new(Config::new().fuel(true)).expect("a machine that can run it")
}

impl Fixture {
    /// A store before `run`, or with a guest that waits in it: for the host's answer if `suspended`.
    pub(super) fn new(suspended: bool) -> Self {
        Self::try_new(suspended).expect("the modules are valid")
    }

    fn try_new(suspended: bool) -> Result<Self> {
        let engine = engine();
        let mut linker = Linker::new(&engine);
        linker.func_wrap("host", "ask", |mut caller: Caller<'_, i32>, x: i32| -> Result<i32> {
            match caller.data() {
                0 => Err(caller.suspend_before()),
                factor => Ok(factor * x),
            }
        })?;
        linker.func_wrap("host", "other", |x: i32, y: i32| 1000 * (x + y))?;
        let mut store = Store::new(&engine, 100);
        store.set_fuel(1 << 40)?;
        let memory = Memory::new(&mut store, MemoryType::new(1, None))?;
        let ty = GlobalType { content: ValType::I64, mutable: false };
        let global = Global::new(&mut store, ty, Val::I64(1000))?;
        let (library, main) = (Module::new(&engine, LIBRARY)?, Module::new(&engine, MAIN)?);
        let first = linker.instantiate(&mut store, &library)?;
        let mut here = linker.clone();
        here.instance(&mut store, "library", first)?;
        here.define(&mut store, "host", "memory", memory)?;
        here.define(&mut store, "host", "global", global)?;
        let instance = here.instantiate(&mut store, &main)?;
        let reference = ExternRef::new(&mut store, String::from("a value"))?;
        let begin = instance.get_typed_func::<Option<ExternRef>, ()>(&mut store, "begin")?;
        begin.call(&mut store, Some(reference))?;
        if suspended {
            *store.data_mut() = 0;
            let run = instance.get_func(&mut store, "run").expect("it is exported");
            let progress = run.call_suspendable(&mut store, &[Val::I32(1)])?;
            assert!(matches!(progress, CallProgress::Suspended));
        }
        let snapshot = store.snapshot_with(|value| {
            let text = value.downcast_ref::<String>().expect("there are no others");
            Ok(Arc::new(text.clone()))
        })?;
        let modules = vec![library, main];
        Ok(Self { linker, modules, snapshot })
    }

    pub(super) fn record(&self) -> StoreRecord {
        let mut save = |value: &(dyn Any + Send + Sync)| {
            let text = value.downcast_ref::<String>().expect("there are no others");
            Ok(text.clone().into_bytes())
        };
        let mut naming = Naming { functions: Vec::new(), reference: Some(&mut save) };
        let record = record(self.snapshot.frozen(), &mut naming).expect("all is named");
        // Nothing of it is of this process.
        let bytes = postcard::to_allocvec(&record).expect("plain data");
        postcard::from_bytes(&bytes).expect("it is what was written")
    }

    pub(super) fn pages(&self) -> ChangedPages {
        ChangedPages { frozen: Arc::clone(self.snapshot.frozen()), changes: Vec::new() }
    }

    /// What is made of a record and pages, by who trusts frames or does not.
    pub(super) fn load(
        &self,
        record: &StoreRecord,
        pages: &ChangedPages,
        trusts_frames: bool,
    ) -> Result<InstancePre<i32>> {
        let host = |record: &HostFuncRecord| {
            self.linker.host_func(&record.module, &record.name).expect("it is defined")
        };
        let of_instances = self.snapshot.frozen().instances.iter();
        let modules = of_instances
            .map(|instance| (!instance.module.is_of_host()).then(|| instance.module.clone()));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("it is text");
        let given = Given {
            engine: self.linker.engine(),
            modules: modules.collect(),
            host_functions: record.host_functions.iter().map(host).collect(),
            references: record
                .references
                .iter()
                .map(|reference| Arc::new(text(&reference.bytes)) as Arc<dyn Any + Send + Sync>)
                .collect(),
            trusts_frames,
            continues: None,
        };
        let frozen = load(record, pages, given)?;
        Ok(InstancePre::of_frozen(Arc::new(frozen)))
    }

    /// Why what `change` makes of the record and the pages is refused.
    #[track_caller]
    pub(super) fn refused(
        &self,
        change: impl FnOnce(&mut StoreRecord, &mut ChangedPages),
    ) -> String {
        let (mut record, mut pages) = (self.record(), self.pages());
        change(&mut record, &mut pages);
        let error = self.load(&record, &pages, true).map(|_| ()).expect_err("it is refused");
        match error.downcast_ref::<SnapshotError>() {
            Some(SnapshotError::Inconsistent(why)) => why.clone(),
            Some(other) => other.to_string(),
            None => panic!("another error: {error:?}"),
        }
    }
}

/// What a store that was spawned comes to.
pub(super) fn finish(store: &mut Store<i32>, instance: Instance, suspended: bool) -> Result<i32> {
    if suspended {
        let CallProgress::Finished(results) = store.resume()? else { panic!("it has an answer") };
        return Ok(results[0].i32().expect("a number"));
    }
    instance.get_typed_func::<i32, i32>(&mut *store, "run")?.call(store, 1)
}

/// The pages of a snapshot, with changes.
pub(super) struct ChangedPages {
    frozen: Arc<Frozen>,
    /// Instance, slot offset, bytes.
    changes: Vec<(usize, u64, Vec<u8>)>,
}

impl ChangedPages {
    /// Changes bytes of the instance with this ordinal, at an offset from its base.
    pub(super) fn change(&mut self, ordinal: u32, offset: i64, bytes: &[u8]) {
        let instance = ordinal as usize - 1;
        let base = self.frozen.instances[instance].module.layout().base;
        let at = base.checked_add_signed(offset).expect("it is in the slot");
        self.changes.push((instance, at, bytes.to_vec()));
    }

    /// As [`Self::change`], of a word.
    pub(super) fn change_word(&mut self, ordinal: u32, offset: i64, word: u64) {
        self.change(ordinal, offset, &word.to_le_bytes());
    }
}

impl StoredPages for ChangedPages {
    fn extents(&self, instance: usize) -> Vec<Range<u64>> {
        self.frozen.instances[instance].image.extents().to_vec()
    }

    fn read(&self, instance: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        self.frozen.instances[instance].image.read(offset, into)?;
        let end = offset + into.len() as u64;
        for (_, at, bytes) in self.changes.iter().filter(|(of, ..)| *of == instance) {
            for (place, byte) in (*at..).zip(bytes) {
                if (offset..end).contains(&place) {
                    into[(place - offset) as usize] = *byte;
                }
            }
        }
        Ok(())
    }

    fn image(
        &self,
        instance: usize,
        name: &str,
        base: u64,
        held: &[(u64, &[u8])],
    ) -> Result<Arc<Image>> {
        let mut pages: Vec<(u64, Vec<u8>)> = Vec::new();
        for range in self.frozen.instances[instance].image.contents()? {
            for page in (range.start.max(base)..range.end).step_by(PAGE_SIZE as usize) {
                let mut bytes = vec![0; PAGE_SIZE as usize];
                self.read(instance, page, &mut bytes)?;
                pages.push((page, bytes));
            }
        }
        let above = pages.iter().map(|(page, bytes)| (*page, &bytes[..]));
        let runs = held.iter().copied().chain(above);
        Ok(Image::with_extents(name, self.extents(instance), runs)?)
    }
}
