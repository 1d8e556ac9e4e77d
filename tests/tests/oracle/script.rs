//! Scripts of the specification, run twice side by side: in each call both guests
//! are suspended again and again, compared, and moved before they go on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{Config, Engine, Error, Func, Result, Store, UsageError, Val};
use pagefork_wast::{Report, WastRunner, World};
use wast::lexer::Lexer;
use wast::parser::{self, ParseBuffer};
use wast::{QuoteWat, Wast, WastDirective, WastExecute};

use super::{Counts, StaleWord, compare, outcome, shift};

/// The binary format of every module of a script that is to be compiled, and that
/// the script does not say is wrong.
pub fn modules(script: &str) -> Vec<Vec<u8>> {
    let mut lexer = Lexer::new(script);
    lexer.allow_confusing_unicode(true);
    let buffer = ParseBuffer::new_with_lexer(lexer).expect("a well-formed script");
    let wast: Wast<'_> = parser::parse(&buffer).expect("a well-formed script");
    let modules = wast.directives.into_iter().filter_map(|directive| match directive {
        WastDirective::Module(module) | WastDirective::ModuleDefinition(module) => Some(module),
        WastDirective::AssertUnlinkable { module, .. }
        | WastDirective::AssertTrap { exec: WastExecute::Wat(module), .. } => {
            Some(QuoteWat::Wat(module))
        }
        _ => None,
    });
    modules.map(|mut module| module.encode().expect("a well-formed module")).collect()
}

/// Runs a script; what it came to, what comparing came to, and every difference
/// that there must not be.
pub fn run(file: &str, script: &str) -> (Report, Counts, Vec<String>) {
    let (to_here, from_there) = mpsc::channel::<(Store<()>, String)>();
    let (to_there, from_here) = mpsc::channel::<(Store<()>, Vec<StaleWord>)>();
    // What the calls of a runner found is sent, for the runner owns them.
    let (found, all_found) = mpsc::channel();
    let moves = Arc::new(AtomicU64::new(0));
    let (count_here, count_there) = (Arc::clone(&moves), Arc::clone(&moves));

    let there = move || {
        let meet = move |world: &mut World, progress: &Result<CallProgress>| {
            let engine = world.store.engine().clone();
            let store = std::mem::replace(&mut world.store, Store::new(&engine, ()));
            to_here.send((store, outcome(progress))).expect("the other runner waits");
            let (store, stale) = from_here.recv().expect("the other runner answers");
            world.store = store;
            stale
        };
        run_meeting(file, script, count_there, meet)
    };
    let here = move || {
        let meet = move |world: &mut World, progress: &Result<CallProgress>| {
            let (store, there) = from_there.recv().expect("the other runner comes");
            let here = outcome(progress);
            let compared = match here == there {
                true => compare(&world.store, &store),
                false => Err(format!("one is {here}, the other {there}")),
            };
            let suspended = matches!(progress, Ok(CallProgress::Suspended));
            let stale = compared.as_ref().cloned().unwrap_or_default();
            found.send((suspended, compared)).expect("the receiver is still there");
            to_there.send((store, stale.clone())).expect("the other runner waits");
            stale
        };
        run_meeting(file, script, count_here, meet)
    };
    let (report, other_report) = thread::scope(|scope| {
        let there = scope.spawn(there);
        (here(), there.join().expect("the other thread does not panic"))
    });

    assert_eq!(report.passed, other_report.passed, "{file}");
    let mut counts = Counts { moves: moves.load(Ordering::Relaxed), ..Counts::default() };
    let mut differences = Vec::new();
    for (suspended, compared) in all_found {
        match compared {
            Ok(stale) if suspended => counts.add(&stale),
            Ok(_) => {}
            Err(difference) => differences.push(format!("{file}: {difference}")),
        }
    }
    (report, counts, differences)
}

/// Runs a script of which each call meets another one's whenever it is suspended
/// or has ended; `meet` says what is stale then.
fn run_meeting(
    file: &str,
    script: &str,
    moves: Arc<AtomicU64>,
    meet: impl FnMut(&mut World, &Result<CallProgress>) -> Vec<StaleWord> + 'static,
) -> Report {
    // Room for tables to grow is compared and copied, too: here it is not large.
    let mut config = Config::new();
    config.table_elements(1024);
    let engine = Engine::new(&config).expect("this machine runs the engine");
    let mut runner = WastRunner::new(&engine).expect("the module spectest");
    let mut calls = Calls { meet, credit: 0, moves };
    runner.call_by(move |world, function, arguments| calls.call(world, function, arguments));
    runner.run(file, script).expect("a well-formed script")
}

/// How a script's functions are called.
struct Calls<F> {
    meet: F,
    /// How much may be moved, see [`size`].
    credit: usize,
    /// Counts the moves.
    moves: Arc<AtomicU64>,
}

impl<F: FnMut(&mut World, &Result<CallProgress>) -> Vec<StaleWord>> Calls<F> {
    /// Calls a function, and suspends it: at the first points of the call, then at
    /// fewer and fewer. Its world moves each time, unless it is large: scripts
    /// never drop an instance, and all of them move together.
    fn call(&mut self, world: &mut World, function: &Func, arguments: &[Val]) -> Result<Vec<Val>> {
        const SUSPENSIONS_MAX: u32 = 16;
        const CREDIT: usize = 12;
        let mut progress = suspend::call(&mut world.store, function, arguments, Some(1));
        if let Err(error) = &progress
            && let Some(UsageError::NotSuspendable) = error.downcast_ref()
        {
            let mut results = vec![Val::I32(0); function.ty(&world.store).results.len()];
            return function.call(&mut world.store, arguments, &mut results).map(|()| results);
        }
        for suspensions in 1.. {
            let stale = (self.meet)(world, &progress);
            match progress {
                Ok(CallProgress::Finished(results)) => return Ok(results),
                Err(error) => return Err(error),
                Ok(CallProgress::Suspended) => {}
            }
            self.credit += CREDIT;
            if self.credit >= size(&world.store) {
                self.credit = 0;
                *world = moved(world, &stale)?;
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            let stop_at = (suspensions < SUSPENSIONS_MAX).then_some(1 << (suspensions / 2));
            progress = suspend::resume(&mut world.store, stop_at);
        }
        unreachable!("a call ends once it is not suspended any more")
    }
}

/// How large a store is: in instances, and wasm pages of their memories.
fn size(store: &Store<()>) -> usize {
    let pages = |ordinal| {
        let memories = suspend::slot(store, ordinal).layout.memories.len() as u32;
        let size = |own| suspend::zone(store, ordinal, Zone::Memory(own)).1.len() >> 16;
        (0..memories).map(size).sum::<usize>()
    };
    (1..=suspend::instance_count(store)).map(|ordinal| 1 + pages(ordinal)).sum()
}

/// The same world with another store.
fn moved(world: &mut World, stale: &[StaleWord]) -> Result<World, Error> {
    let store = shift(&mut world.store, stale)?;
    let linker = suspend::linker_in_copy(&world.linker, &world.store, &store)?;
    let instances = world.instances.iter().map(|(name, instance)| {
        Ok((name.clone(), suspend::instance_in_copy(*instance, &world.store, &store)?))
    });
    let instances = instances.collect::<Result<_>>()?;
    Ok(World { store, linker, instances })
}
