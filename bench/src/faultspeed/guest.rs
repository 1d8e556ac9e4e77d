//! Pagefork's ways: a guest does what the script says, in a store that is reset.

use pagefork::{Choice, Instance, InstancePre, Linker, Module, Store, TypedFunc};

use super::{GROWN, Memory};
use crate::shapes::Pages;
use crate::sides::pagefork::{all_strategies, engine_with};

/// Wasm pages that memory grows by.
const WASM_PAGES: u32 = GROWN / 16;

/// What it does is as in `native`; contents of the snapshot are put in at the end.
const GUEST: &str = r#"(module
    (memory (export "memory") 64 80)
    (func (export "read") (param $page i32) (param $count i32) (param $step i32) (result i64)
        (local $sum i64)
        (loop $next
            (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 31)) (i64.load (i32.add
                (i32.shl (local.get $page) (i32.const 12))
                (i32.and (i32.shl (local.get $page) (i32.const 3)) (i32.const 0xfff))))))
            (local.set $page (i32.add (local.get $page) (local.get $step)))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1)))))
        (local.get $sum))
    (func (export "fill")
        (param $page i32) (param $count i32) (param $step i32) (param $byte i32)
        (loop $next
            (memory.fill (i32.shl (local.get $page) (i32.const 12)) (local.get $byte) (i32.const 0x1000))
            (local.set $page (i32.add (local.get $page) (local.get $step)))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1))))))
    (func (export "grow") (param $pages i32) (result i32) (memory.grow (local.get $pages)))
    (data (i32.const 0) "SNAPSHOT"))"#;

/// One strategy.
pub(super) struct Guest {
    pub(super) name: String,
    pre: InstancePre<()>,
}

/// A guest for each way to reset slots, and for each way that memories grow.
pub(super) fn all(snapshot: &[u8]) -> Vec<Guest> {
    let text = std::str::from_utf8(snapshot).expect("it has letters alone");
    let wasm = wat::parse_str(GUEST.replace("SNAPSHOT", text)).expect("the text is right");
    let guest = |(name, strategies)| {
        let engine = engine_with(strategies);
        let module = Module::new(&engine, &wasm).expect("the module is right");
        let pre = Linker::new(&engine).instantiate_pre(&module).expect("it imports nothing");
        Guest { name, pre }
    };
    all_strategies().map(guest).collect()
}

impl Guest {
    /// Memory of an instance.
    pub(super) fn memory(&self) -> Box<dyn Memory> {
        let (mut store, instance) = self.pre.spawn(()).expect("a slot");
        macro_rules! function {
            ($name:literal) => {
                instance.get_typed_func(&mut store, $name).expect("it is exported")
            };
        }
        let (read, fill, grow) = (function!("read"), function!("fill"), function!("grow"));
        Box::new(InStore { store, instance, read, fill, grow })
    }

    /// What this machine does in place of what was asked for, and why.
    pub(super) fn deviation(&self) -> Option<String> {
        let (store, instance) = self.pre.spawn(()).expect("a slot");
        let choice: Choice = instance.strategy(&store);
        let chosen = choice.asked == pagefork::ResetKind::Auto || choice.asked == choice.used;
        (!chosen).then(|| format!("{}: {choice}.", self.name))
    }
}

struct InStore {
    store: Store<()>,
    instance: Instance,
    read: TypedFunc<(u32, u32, u32), u64>,
    fill: TypedFunc<(u32, u32, u32, u32), ()>,
    grow: TypedFunc<u32, i32>,
}

impl Memory for InStore {
    fn restore(&mut self) {
        self.store.reset(()).expect("it is reset");
    }

    fn grow(&mut self) {
        let before = self.grow.call(&mut self.store, WASM_PAGES).expect("it returns");
        assert_eq!(before, 64, "memory grows from what the snapshot has");
    }

    fn fill(&mut self, pages: Pages, byte: u8) {
        let what = (pages.first, pages.count, pages.step, byte.into());
        self.fill.call(&mut self.store, what).expect("it returns");
    }

    fn read(&mut self, pages: Pages) -> u64 {
        let what = (pages.first, pages.count, pages.step);
        self.read.call(&mut self.store, what).expect("it returns")
    }

    fn bytes(&mut self) -> &[u8] {
        let memory = self.instance.get_memory(&mut self.store, "memory").expect("it is exported");
        memory.data(&self.store)
    }
}
