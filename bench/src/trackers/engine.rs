//! Pagefork's trackers, between snapshots of a guest that runs on.

use pagefork::{
    Config, DeltaTracker, Engine, Instance, Linker, Module, Snapshot, Store, StrategyConfig,
    TypedFunc,
};
use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};

use super::{PAGES, SHARES, Share, THREADS};
use crate::crowd::{self, Job, Maker};
use crate::grid::Grid;
use crate::measure::{Clock, Options};

/// Writes a word to each of some pages, or adds up all words.
const GUEST: &str = r#"(module
    (memory (export "memory") 256)
    (func (export "write") (param $count i32) (param $step i32) (param $value i32)
        (local $at i32)
        (loop $next
            (i32.store (local.get $at) (local.get $value))
            (local.set $at (i32.add (local.get $at) (i32.shl (local.get $step) (i32.const 12))))
            (br_if $next (local.tee $count (i32.sub (local.get $count) (i32.const 1))))))
    (func (export "sum") (result i32) (local $at i32) (local $sum i32)
        (loop $next
            (local.set $sum (i32.add (local.get $sum) (i32.load (local.get $at))))
            (local.set $at (i32.add (local.get $at) (i32.const 4096)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 0x1000000))))
        (local.get $sum)))"#;

/// Times runs between two snapshots, and the snapshots: of what was written as it was, which is the
/// search and the comparison alone, and of what is otherwise.
pub(super) fn table(options: &Options) -> Grid {
    let trackers: Vec<(String, DeltaTracker, InModule)> = DeltaTracker::ALL
        .into_iter()
        .filter(|tracker| *tracker != DeltaTracker::Off)
        .map(|tracker| (tracker.to_string(), tracker, InModule::new(tracker)))
        .collect();
    let columns = trackers.iter().map(|(column, ..)| column);
    let mut grid = Grid::new("of 4,096 private pages of a guest", trackers.len(), columns);
    let (working, others): (Vec<_>, Vec<_>) =
        trackers.iter().partition(|(_, tracker, _)| works(*tracker));
    for (column, ..) in others {
        grid.notes.push(format!("Not measured, because this system has none: {column}."));
    }
    for share in &SHARES {
        let makers = working.iter().map(|(column, _, module)| -> Maker<'_, 3> {
            (column, Box::new(|| module.job(share)))
        });
        let makers: Vec<_> = makers.collect();
        for threads in options.threads(&THREADS) {
            let name = format!("{}, {}", share.name, crowd::on_threads(threads));
            let parts = ["the guest's run", "finding them", "a snapshot with them"];
            crowd::contest_in_parts(&mut grid, &name, parts, options.size, threads, &makers);
        }
    }
    grid
}

/// Whether this system has a tracker, by that of a small slot. There is an engine, whose handlers of signals
/// some need.
fn works(tracker: DeltaTracker) -> bool {
    let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    let strategies = StrategyConfig { deltas: tracker, ..StrategyConfig::default() };
    let used = Image::new("tracker", base..base, []).and_then(|image| {
        let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
        Slot::with_strategies(config, &image, &[size], &strategies.check()?)?.delta_tracker()
    });
    used.expect("a slot") == tracker
}

/// The guest, compiled for an engine with a tracker.
struct InModule {
    engine: Engine,
    module: Module,
}

impl InModule {
    fn new(deltas: DeltaTracker) -> Self {
        let strategies = StrategyConfig { deltas, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).expect("an engine");
        let wasm = wat::parse_str(GUEST).expect("the text is right");
        let module = Module::new(&engine, wasm).expect("the module is right");
        Self { engine, module }
    }

    /// What a thread does again and again; at the end it looks whether the last snapshot is right.
    fn job(&self, share: &Share) -> Job<'_, 3> {
        let mut running = Running::new(self);
        let (count, step) = (share.count, share.step);
        Box::new(move || {
            let (_, equal) = running.write_and_take(count, step, running.value);
            let (guest, taken) = running.write_and_take(count, step, running.value + 1);
            [guest, equal, taken]
        })
    }
}

/// An instance that runs on from snapshot to snapshot.
struct Running {
    store: Store<()>,
    instance: Instance,
    write: TypedFunc<(u32, u32, u32), ()>,
    /// What was written last.
    value: u32,
    /// Held, for the next one to be compared with it.
    last: Snapshot<()>,
}

impl Running {
    fn new(InModule { engine, module }: &InModule) -> Self {
        let mut store = Store::new(engine, ());
        let instance = Linker::new(engine).instantiate(&mut store, module).expect("it starts");
        let write = instance.get_typed_func(&mut store, "write").expect("it is exported");
        write.call(&mut store, (PAGES, 1, 1)).expect("it returns");
        let last = store.snapshot().expect("a snapshot");
        Self { store, instance, write, value: 1, last }
    }

    /// The time that the guest took, and that of the snapshot. Where nothing is written, all is read.
    fn write_and_take(&mut self, count: u32, step: u32, value: u32) -> (f64, f64) {
        let start = Clock::Wall.now();
        match count {
            0 => _ = sum(&mut self.store, self.instance),
            _ => self.write.call(&mut self.store, (count, step, value)).expect("it returns"),
        }
        let written = Clock::Wall.now();
        let taken = self.store.snapshot().expect("a snapshot");
        let end = Clock::Wall.now();
        (self.last, self.value) = (taken, value);
        (written - start, end - written)
    }
}

impl Drop for Running {
    /// # Panics
    /// If the last snapshot has not what the guest has.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let pre = self.last.instance_pre().expect("it can be spawned");
        let (mut store, instance) = pre.spawn(()).expect("it is spawned");
        let found = sum(&mut store, instance);
        assert_eq!(found, sum(&mut self.store, self.instance), "the snapshot is of the guest");
    }
}

/// The guest's sum of all words.
fn sum(store: &mut Store<()>, instance: Instance) -> i32 {
    let sum = instance.get_typed_func::<(), i32>(&mut *store, "sum").expect("an export");
    sum.call(store, ()).expect("it returns")
}
