//! What it costs to know which pages were written between two snapshots: to the guest, and to who takes
//! the next one.

use pagefork::{
    Config, DeltaTracker, Engine, Instance, Linker, Module, Snapshot, Store, StrategyConfig,
    TypedFunc,
};
use pagefork_pages::{faults_at_writes, notes_writes, protects_writes};

use crate::grid::Grid;
use crate::measure::{Clock, Size, Unit};
use crate::report::Report;

/// 16 MiB of memory, all of whose pages are private.
const PAGES: u32 = 4096;

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

const TRACKERS: [(&str, DeltaTracker); 4] = [
    ("comparing private pages", DeltaTracker::Compare),
    ("asynchronous write protection", DeltaTracker::Writes),
    ("mprotect and SIGSEGV", DeltaTracker::Protect),
    ("synchronous write protection and SIGBUS", DeltaTracker::Fault),
];

/// Which pages are written: how many, and how far apart.
const SHARES: [(&str, u32, u32); 6] = [
    ("1 page", 1, 1),
    ("1 %, apart", 41, 99),
    ("1 %, side by side", 41, 1),
    ("10 %, apart", 410, 9),
    ("50 %, apart", 2048, 2),
    ("100 %", PAGES, 1),
];

/// Times runs between two snapshots, and the snapshots: of what was written as it was, which is the
/// search and the comparison alone, and of what is otherwise.
///
/// # Panics
/// If a snapshot has not what the guest has.
pub fn run(size: Size) -> Report {
    let works = |tracker| match tracker {
        DeltaTracker::Writes => notes_writes(),
        DeltaTracker::Protect => protects_writes(),
        DeltaTracker::Fault => faults_at_writes(),
        _ => true,
    };
    let columns = TRACKERS.iter().map(|(column, _)| *column);
    let mut grid = Grid::new("of 4,096 private pages", TRACKERS.len(), columns);
    for (column, _) in TRACKERS.iter().filter(|(_, tracker)| !works(*tracker)) {
        grid.notes.push(format!("Not measured, because this system has none: {column}."));
    }
    let samples = if size == Size::Small { 1 } else { 31 };
    for (name, count, step) in SHARES {
        let mut running: Vec<_> = TRACKERS
            .iter()
            .filter(|(_, tracker)| works(*tracker))
            .map(|(column, tracker)| (*column, Running::new(*tracker)))
            .collect();
        let mut cells: [Vec<(&str, Vec<f64>)>; 3] = Default::default();
        for cells in &mut cells {
            *cells = running.iter().map(|(column, _)| (*column, Vec::new())).collect();
        }
        for sample in 0..=samples {
            for (index, (_, running)) in running.iter_mut().enumerate() {
                let (_, equal) = running.write_and_take(count, step, running.value);
                let (guest, taken) = running.write_and_take(count, step, running.value + 1);
                // The first ones warm up.
                if sample > 0 {
                    for (cells, time) in cells.iter_mut().zip([guest, equal, taken]) {
                        cells[index].1.push(time);
                    }
                }
            }
        }
        for (_, running) in &mut running {
            running.check();
        }
        for (what, cells) in
            ["the guest's run", "finding them", "a snapshot with them"].into_iter().zip(cells)
        {
            grid.add(&format!("{name}: {what}"), Unit::Nanoseconds, cells);
        }
    }
    Report::of_grid("trackers", &grid)
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
    fn new(deltas: DeltaTracker) -> Self {
        let strategies = StrategyConfig { deltas, ..StrategyConfig::default() };
        let engine = Engine::new(Config::new().strategies(strategies)).expect("an engine");
        let wasm = wat::parse_str(GUEST).expect("the text is right");
        let module = Module::new(&engine, wasm).expect("the module is right");
        let mut store = Store::new(&engine, ());
        let instance = Linker::new(&engine).instantiate(&mut store, &module).expect("it starts");
        let write = instance.get_typed_func(&mut store, "write").expect("it is exported");
        write.call(&mut store, (PAGES, 1, 1)).expect("it returns");
        let last = store.snapshot().expect("a snapshot");
        Self { store, instance, write, value: 1, last }
    }

    /// The time that the guest took, and that of the snapshot.
    fn write_and_take(&mut self, count: u32, step: u32, value: u32) -> (f64, f64) {
        let start = Clock::Thread.now();
        self.write.call(&mut self.store, (count, step, value)).expect("it returns");
        let written = Clock::Thread.now();
        let taken = self.store.snapshot().expect("a snapshot");
        let end = Clock::Thread.now();
        (self.last, self.value) = (taken, value);
        (written - start, end - written)
    }

    /// # Panics
    /// If the last snapshot has not what the guest has.
    fn check(&mut self) {
        let sum = |store: &mut Store<()>, instance: Instance| -> i32 {
            let sum = instance.get_typed_func::<(), i32>(&mut *store, "sum").expect("an export");
            sum.call(store, ()).expect("it returns")
        };
        let pre = self.last.instance_pre().expect("it can be spawned");
        let (mut store, instance) = pre.spawn(()).expect("it is spawned");
        let found = sum(&mut store, instance);
        assert_eq!(found, sum(&mut self.store, self.instance), "the snapshot is of the guest");
    }
}
