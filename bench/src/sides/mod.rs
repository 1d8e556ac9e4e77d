//! A linked module on either side, and what is done with it: the same work on both,
//! each written as that side's users would who want it quick.

use std::sync::{LazyLock, Mutex, PoisonError};

use ::pagefork::{PoolCounters, StrategyConfig};

use crate::grid::{Contestant, Iteration};
use crate::shapes::Pages;

use self::thread::SideThread;

pub(crate) mod pagefork;
pub(crate) mod thread;
#[cfg(feature = "peer")]
pub(crate) mod wasmtime;

/// A linked module, to be used from any thread.
pub(crate) trait Side: Send + Sync {
    /// A new store, an instance in it, the export looked up and called, all dropped.
    fn request(&self, pages: Pages) -> u64;

    /// The same, linked by the request itself, from the linker and the module.
    fn request_by_linker(&self, pages: Pages) -> u64;

    /// As `request`, but what is made lives on; with what the call returned.
    ///
    /// # Errors
    /// What the engine says when it has no slot.
    fn hold(&self, pages: Pages) -> Result<(Held, u64), String>;

    /// Drops what is kept for later instances; on demand, nothing is.
    fn purge(&self) {}
}

/// Requests of one thread, one after the other.
pub(crate) type Requests<'a> = Box<dyn FnMut(Pages) -> u64 + 'a>;

/// What serves requests, on any number of threads.
pub(crate) trait Worker: Send + Sync {
    /// The requests of a thread.
    fn requests(&self) -> Requests<'_>;
}

/// What serves requests, each with the name of its column.
pub(crate) type Workers = Vec<(&'static str, Box<dyn Worker>)>;

/// A store with an instance in it.
pub(crate) enum Held {
    Pagefork(#[expect(dead_code, reason = "kept alive")] ::pagefork::Store<()>),
    #[cfg(feature = "peer")]
    Wasmtime(#[expect(dead_code, reason = "kept alive")] ::wasmtime::Store<()>),
}

/// The engines that are compared, with what each is called.
pub(crate) struct Engines {
    pagefork: ::pagefork::Engine,
    #[cfg(feature = "peer")]
    wasmtime: Vec<(&'static str, ::wasmtime::Engine)>,
    /// By column, as far as they were needed.
    threads: Mutex<Vec<(&'static str, SideThread)>>,
}

impl Engines {
    /// Pagefork with nothing set, and every setting of wasmtime, for this many
    /// instances at a time.
    #[cfg_attr(not(feature = "peer"), expect(unused_variables, reason = "pagefork has no bound"))]
    pub(crate) fn new(live_max: u32) -> Self {
        Self {
            pagefork: pagefork::engine(),
            #[cfg(feature = "peer")]
            wasmtime: wasmtime::Setting::ALL
                .map(|setting| (setting.name(), setting.engine(live_max)))
                .into(),
            threads: Mutex::default(),
        }
    }

    /// As [`Engines::new`], with what suits other pages in each request: kept are none, some or
    /// all.
    #[cfg_attr(not(feature = "peer"), expect(unused_variables, reason = "pagefork has no bound"))]
    pub(crate) fn that_keep(live_max: u32) -> Self {
        #[cfg(feature = "peer")]
        use wasmtime::Setting::{KeepsAll, Pool, Tuned};
        Self {
            pagefork: pagefork::engine(),
            #[cfg(feature = "peer")]
            wasmtime: [Pool, Tuned, KeepsAll]
                .map(|setting| (setting.name(), setting.engine(live_max)))
                .into(),
            threads: Mutex::default(),
        }
    }

    /// As [`Engines::new`], with every setting that is best in some shape.
    #[cfg_attr(not(feature = "peer"), expect(unused_variables, reason = "pagefork has no bound"))]
    pub(crate) fn every(live_max: u32) -> Self {
        #[cfg(feature = "peer")]
        use wasmtime::Setting::{KeepsAll, OnDemand, Pool, Tuned};
        Self {
            pagefork: pagefork::engine(),
            #[cfg(feature = "peer")]
            wasmtime: [OnDemand, Pool, Tuned, KeepsAll]
                .map(|setting| (setting.name(), setting.engine(live_max)))
                .into(),
            threads: Mutex::default(),
        }
    }

    /// The names of the columns of these engines, Pagefork's first.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        #[cfg_attr(not(feature = "peer"), expect(unused_mut, reason = "there is no other"))]
        let mut names = vec![PAGEFORK];
        #[cfg(feature = "peer")]
        names.extend(self.wasmtime.iter().map(|(name, _)| *name));
        names
    }

    /// What Pagefork's pool has done.
    pub(crate) fn counters(&self) -> PoolCounters {
        self.pagefork.pool_counters()
    }

    /// The names of the columns, Pagefork's first.
    pub(crate) fn columns() -> Vec<&'static str> {
        #[cfg_attr(not(feature = "peer"), expect(unused_mut, reason = "there is no other"))]
        let mut columns = vec![PAGEFORK];
        #[cfg(feature = "peer")]
        columns.extend(wasmtime::Setting::ALL.map(wasmtime::Setting::name));
        columns
    }

    /// A module on every side.
    pub(crate) fn sides(&self, wasm: &[u8]) -> Sides {
        #[cfg_attr(not(feature = "peer"), expect(unused_mut, reason = "there is no other"))]
        let mut sides = vec![self.place(PAGEFORK, pagefork::Module::new(&self.pagefork, wasm))];
        #[cfg(feature = "peer")]
        for (name, engine) in &self.wasmtime {
            sides.push(self.place(name, wasmtime::Module::new(engine, wasm)));
        }
        sides
    }

    /// A side with the thread of its column.
    fn place(&self, column: &'static str, side: impl Side + 'static) -> PlacedSide {
        PlacedSide { column, side: Box::new(side), thread: self.thread(column) }
    }

    /// The thread of a column.
    pub(crate) fn thread(&self, column: &'static str) -> SideThread {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, thread)) = threads.iter().find(|(known, _)| *known == column) {
            return thread.clone();
        }
        let thread = SideThread::new(column);
        threads.push((column, thread.clone()));
        thread
    }

    /// A module on every side, on Pagefork's once for each way of resetting.
    pub(crate) fn strategies(&self, wasm: &[u8]) -> Sides {
        let module = pagefork::Module::new(&self.pagefork, wasm);
        let ours = STRATEGIES
            .iter()
            .map(|(name, strategies)| self.place(name, module.with_strategies(*strategies)));
        ours.chain(self.sides(wasm).into_iter().skip(1)).collect()
    }

    /// All that gives each request a module as it was at first: Pagefork's ways, and the peer's.
    pub(crate) fn workers(&self, wasm: &[u8]) -> (Workers, Workers) {
        let module = pagefork::Module::new(&self.pagefork, wasm);
        let mut ours: Workers = Vec::new();
        for (name, strategies) in &*STRATEGIES {
            ours.push((name, Box::new(module.with_strategies(*strategies))));
        }
        let on_demand = pagefork::Module::new(&pagefork::engine_that_keeps_nothing(), wasm);
        ours.push(("`Store::reset`", Box::new(pagefork::Reset(module.clone()))));
        ours.push(("on demand", Box::new(on_demand)));
        ours.push(("segments and globals by hand", Box::new(pagefork::ByHand(module))));
        #[cfg(not(feature = "peer"))]
        let theirs = Vec::new();
        #[cfg(feature = "peer")]
        let theirs = {
            let mut theirs: Workers = Vec::new();
            for (name, engine) in &self.wasmtime {
                theirs.push((name, Box::new(wasmtime::Module::new(engine, wasm))));
            }
            let kept = wasmtime::Module::new(&self.wasmtime[0].1, wasm);
            theirs.push(("wasmtime, one instance", Box::new(wasmtime::Kept(kept))));
            theirs
        };
        (ours, theirs)
    }

    /// A module on Pagefork's side, and on wasmtime's where each instance is mapped.
    pub(crate) fn on_demand(&self, wasm: &[u8]) -> Sides {
        let mut sides = self.sides(wasm);
        sides.truncate(2);
        sides
    }

    /// A module where nothing is kept for the next instance: Pagefork without room in
    /// its pool, and wasmtime on demand.
    pub(crate) fn cold(&self, wasm: &[u8]) -> Sides {
        let engine = pagefork::engine_that_keeps_nothing();
        let mut sides = self.on_demand(wasm);
        sides[0].side = Box::new(pagefork::Module::new(&engine, wasm));
        sides
    }
}

/// Pagefork's ways of resetting.
pub(crate) static STRATEGIES: LazyLock<Vec<(String, StrategyConfig)>> =
    LazyLock::new(|| pagefork::resets().collect());

/// A side, the name of its column, and the thread that does what is done there.
pub(crate) struct PlacedSide {
    pub(crate) column: &'static str,
    pub(crate) side: Box<dyn Side>,
    thread: SideThread,
}

impl PlacedSide {
    /// Does work on the side's thread while the caller waits.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce(&dyn Side) -> R + Send) -> R {
        self.thread.run(|| work(&*self.side))
    }
}

/// A module on several sides.
pub(crate) type Sides = Vec<PlacedSide>;

/// The column of Pagefork with nothing set.
pub(crate) const PAGEFORK: &str = "pagefork";

/// One iteration on each side, on its thread.
pub(crate) fn contestants<'a, Work: FnMut() -> u64 + Send + 'a>(
    sides: &'a Sides,
    work: impl Fn(&'a dyn Side) -> Work,
) -> Vec<Contestant<'a>> {
    sides
        .iter()
        .map(|placed| {
            let work = Box::new(work(&*placed.side));
            let work = Iteration::There(placed.thread.clone(), work);
            Contestant { column: placed.column, work }
        })
        .collect()
}

/// A module on the side of that column alone, for this many instances at a time.
///
/// # Panics
/// If there is no such column.
#[cfg_attr(not(feature = "peer"), expect(unused_variables, reason = "pagefork has no bound"))]
pub(crate) fn one(column: &str, wasm: &[u8], live_max: u32) -> Box<dyn Side> {
    #[cfg(feature = "peer")]
    for setting in wasmtime::Setting::ALL {
        if setting.name() == column {
            return Box::new(wasmtime::Module::new(&setting.engine(live_max), wasm));
        }
    }
    assert_eq!(column, PAGEFORK, "a column");
    Box::new(pagefork::Module::new(&pagefork::engine(), wasm))
}

/// A module on Pagefork's side alone.
#[cfg(test)]
pub(crate) fn pagefork(wasm: &[u8]) -> pagefork::Module {
    pagefork::Module::new(&pagefork::engine(), wasm)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread::current;

    use super::*;
    use crate::grid::Grid;
    use crate::measure::{Effort, Size};
    use crate::shapes::Shape;

    #[test]
    fn what_a_side_does_is_done_on_the_thread_of_its_column() {
        let engines = Engines::new(1);
        let sides = engines.sides(&Shape::default().wasm());
        let name = || current().name().map(str::to_owned).expect("it has one");
        let names = Mutex::new(BTreeSet::new());
        let mut all = contestants(&sides, |side| {
            let names = &names;
            move || {
                names.lock().unwrap().insert(name());
                side.request(Pages::NONE)
            }
        });
        let mut grid = Grid::new("what", 1, Engines::columns());
        grid.contest("nothing", Effort::short(Size::Small), 0, &mut all);
        drop(all);
        let columns = Engines::columns().into_iter().map(str::to_owned);
        assert_eq!(names.into_inner().unwrap(), columns.collect());
        assert!(sides.iter().all(|side| side.run(|_| name()) == side.column));
    }
}
