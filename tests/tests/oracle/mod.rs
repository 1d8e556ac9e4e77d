//! Two runs of the same guest that differ in every host address: bases, code,
//! the store, the thread and its stack. Suspended at the same point, both must
//! have the same pages, but for what is named here.
#![allow(unreachable_pub, reason = "a module of a test has no crate around it")]

pub mod program;
pub mod script;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use pagefork::suspend::{self, CallProgress, Zone};
use pagefork::{Error, Result, Store, Val};
use pagefork_layout::link;

/// A guest whose runs are all the same.
pub trait Guest: Sync {
    /// The embedder's data of a run.
    type Data: Default + Send;

    /// A store in which the guest can be called. `which` of two copies of its
    /// code it runs in is 0 or 1.
    fn start(&self, which: usize) -> Store<Self::Data>;

    /// Calls the guest, up to a point, see [`suspend::call`].
    fn call(&self, store: &mut Store<Self::Data>, stop_at: Option<u64>) -> Result<CallProgress>;

    /// Is told of a run that this thread has made, that it is suspended.
    fn note_suspension(&self, _store: &Store<Self::Data>) {}

    /// What a run that ended did to the world outside.
    fn seen(&self, store: &Store<Self::Data>) -> String;
}

/// How two runs of a guest are compared.
#[derive(Clone, Copy)]
pub struct Plan {
    /// From one suspension to the next: points.
    pub interval: u64,
    /// From one move of both runs to the next: suspensions. 0: they stay.
    pub moved_every: u64,
}

/// Compares two runs of a guest with each other, and both with an undisturbed
/// one.
///
/// # Panics
/// If anything differs that must not.
pub fn check<G: Guest>(name: &str, guest: &G, undisturbed: &Run<G::Data>, plan: Plan) -> Counts {
    let mut pair = Pair::new([guest.start(0), guest.start(1)]);
    let interval = Some(plan.interval);
    let mut step = pair.step(|store| guest.call(store, interval));
    let mut count = 0;
    while let Step::Suspended(stale) = step {
        count += 1;
        guest.note_suspension(&pair.stores[0]);
        if plan.moved_every > 0 && count % plan.moved_every == 0 {
            pair.shift(&stale);
        }
        step = pair.step(|store| suspend::resume(store, interval));
    }
    let Step::Ended(result) = step else { unreachable!("the loop ends with the run") };
    println!(
        "{name}, suspended every {} points, moved every {} suspensions: {}",
        plan.interval, plan.moved_every, pair.counts
    );
    assert_eq!(result, undisturbed.result);
    pair.assert_left_as(&undisturbed.store);
    for store in &pair.stores {
        assert_eq!(guest.seen(store), guest.seen(&undisturbed.store));
    }
    pair.counts
}

/// A run that ended.
pub struct Run<T: 'static> {
    /// The results or the error.
    pub result: String,
    /// What it left behind.
    pub store: Store<T>,
}

impl<T: 'static> Run<T> {
    /// A run that is never suspended.
    pub fn undisturbed<G: Guest<Data = T>>(guest: &G) -> Self {
        let mut store = guest.start(0);
        let result = outcome(&guest.call(&mut store, None));
        Self { result, store }
    }
}

/// What a host address points into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// The slot of the instance with this ordinal.
    Slot,
    /// An instance's code.
    Code,
    /// The store's activation.
    Activation,
    /// The list of where the store's instances are.
    Bases,
    /// The records of an instance's imported functions.
    FunctionImports,
    /// The instructions between host and guest, which both runs share.
    Thunks,
}

/// A word of the stack, outside the chain of frames, that is a host address in
/// both runs, or what is left of one. If the invariant holds, the guest never
/// reads it again.
#[derive(Clone, Copy, Debug)]
pub struct StaleWord {
    /// Its slot offset.
    pub offset: u64,
    /// What it points into.
    pub target: Target,
    /// Whether a number of 32 bits has overwritten the lower half.
    pub is_half: bool,
}

/// What comparing came to.
#[derive(Clone, Default)]
pub struct Counts {
    /// How many points both runs were compared at.
    pub points: u64,
    /// How many times a run went on elsewhere.
    pub moves: u64,
    /// How many stale words there were, all points together.
    pub stale: BTreeMap<Target, u64>,
    /// How many of them were halves.
    pub halves: u64,
}

impl Counts {
    /// Adds what comparing something else came to.
    pub fn merge(&mut self, other: &Self) {
        self.points += other.points;
        self.moves += other.moves;
        self.halves += other.halves;
        for (target, count) in &other.stale {
            *self.stale.entry(*target).or_default() += count;
        }
    }

    /// Adds the stale words of one point.
    pub fn add(&mut self, stale: &[StaleWord]) {
        self.points += 1;
        for word in stale {
            *self.stale.entry(word.target).or_default() += 1;
            self.halves += u64::from(word.is_half);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { points, moves, stale, halves } = self;
        write!(
            f,
            "compared at {points} points, moved {moves} times, stale words: {stale:?}, of which \
             {halves} halves"
        )
    }
}

/// Compares two runs that should be at the same point; returns the stale words of
/// their stacks. Neither needs to be suspended.
///
/// # Errors
/// The first difference that there must not be.
pub fn compare<T: 'static>(a: &Store<T>, b: &Store<T>) -> Result<Vec<StaleWord>, String> {
    let kinds = [suspend::suspension(a), suspend::suspension(b)];
    if kinds[0] != kinds[1] {
        return Err(format!("one is suspended in {:?}, the other in {:?}", kinds[0], kinds[1]));
    }
    let count = suspend::instance_count(a);
    if count != suspend::instance_count(b) {
        return Err("one has more instances than the other".to_owned());
    }
    let mut stale = Vec::new();
    for ordinal in 1..=count {
        let memories = suspend::slot(a, ordinal).layout.memories.len() as u32;
        let zones = [Zone::Exceptions, Zone::Tables, Zone::State].into_iter();
        for zone in zones.chain((0..memories).map(Zone::Memory)) {
            let (start, a) = suspend::zone(a, ordinal, zone);
            let (_, b) = suspend::zone(b, ordinal, zone);
            if a != b {
                let at = a.iter().zip(b).position(|(a, b)| a != b);
                let at = at.map_or("the size".to_owned(), |at| {
                    format!("byte {at} (slot offset {:#x})", start + at as u64)
                });
                return Err(format!("{zone:?} zone of instance {ordinal} differs in {at}"));
            }
        }
        compare_stacks(a, b, ordinal, &mut stale)?;
    }
    Ok(stale)
}

fn compare_stacks<T: 'static>(
    a: &Store<T>,
    b: &Store<T>,
    ordinal: u32,
    stale: &mut Vec<StaleWord>,
) -> Result<(), String> {
    let (start, words_a) = suspend::zone(a, ordinal, Zone::Stack);
    let (start_b, words_b) = suspend::zone(b, ordinal, Zone::Stack);
    if start != start_b {
        return Err(format!("the stacks of instance {ordinal} begin at {start:#x}, {start_b:#x}"));
    }
    if words_a.is_empty() {
        return Ok(());
    }
    let chain = suspend::frame_words(a).map_err(|error| error.to_string())?;
    let other = suspend::frame_words(b).map_err(|error| error.to_string())?;
    if chain != other {
        return Err(format!("the chains of frames differ: {chain:?}, {other:?}"));
    }
    // Innermost first is lowest first.
    let mut chain = chain.iter().map(|word| word.offset).peekable();
    let regions = [regions(a), regions(b)];
    for ((a, b), offset) in words(words_a).zip(words(words_b)).zip((start..).step_by(8)) {
        if chain.next_if_eq(&offset).is_some() {
            continue;
        }
        match target(&regions, [a, b]) {
            Some((target, is_half)) => stale.push(StaleWord { offset, target, is_half }),
            None if a == b => {}
            None => {
                return Err(format!(
                    "the stack word at {offset:#x}, {} below the top, is {a:#x} and {b:#x}",
                    start + words_a.len() as u64 - offset,
                ));
            }
        }
    }
    assert_eq!(chain.next(), None, "the chain of frames is in the part of the stack in use");
    Ok(())
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    assert!(bytes.len().is_multiple_of(8), "stacks consist of words");
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

/// Where everything is that compiled code may have an address of, in the same
/// order for the same guest.
fn regions<T: 'static>(store: &Store<T>) -> Vec<(Target, Range<u64>)> {
    let mut regions = Vec::new();
    let mut add = |target, start: u64, size: u64| regions.push((target, start..start + size));
    for ordinal in 1..=suspend::instance_count(store) {
        let slot = suspend::slot(store, ordinal);
        let module = suspend::instance(store, ordinal).module(store);
        let (_, link) = suspend::zone_bytes(store, ordinal, Zone::Link);
        let word = |offset: u32| words(&link[offset as usize..][..8]).next().expect("a word");
        add(Target::Slot, slot.start as u64, slot.layout.size);
        add(Target::Code, slot.code as u64, module.text().len() as u64);
        add(Target::Activation, word(link::ACTIVATION), u64::from(link::activation::SIZE));
        // SAFETY: the activation of a store that is there, which nothing writes meanwhile.
        let bases = unsafe {
            let activation = word(link::ACTIVATION) as usize + link::activation::BASES as usize;
            std::ptr::with_exposed_provenance::<u64>(activation).read()
        };
        add(Target::Bases, bases, 8 * u64::from(suspend::instance_count(store) + 1));
        let imports = module.compiled().info.imported_functions;
        let size = imports * link::function_import::SIZE;
        add(Target::FunctionImports, word(link::FUNCTION_IMPORTS), size.into());
    }
    let thunks = suspend::thunks();
    add(Target::Thunks, thunks.start as u64, thunks.len() as u64);
    regions
}

/// What both words point into, if it is the same place of the same thing; and
/// whether only the upper halves do: arguments that are passed on the stack have
/// a word each, of which a number of 32 bits takes the lower half.
fn target(regions: &[Vec<(Target, Range<u64>)>; 2], words: [u64; 2]) -> Option<(Target, bool)> {
    let [a, b] = words;
    let both = || regions[0].iter().zip(&regions[1]);
    let whole = both().find(|((_, in_a), (_, in_b))| {
        in_a.contains(&a) && in_b.contains(&b) && a - in_a.start == b - in_b.start
    });
    if let Some(((target, _), _)) = whole {
        return Some((*target, false));
    }
    let is_upper_half = |word: u64, region: &Range<u64>| {
        !region.is_empty() && (region.start >> 32..=(region.end - 1) >> 32).contains(&(word >> 32))
    };
    let half = both()
        .filter(|_| a != b && a as u32 == b as u32)
        .find(|((_, in_a), (_, in_b))| is_upper_half(a, in_a) && is_upper_half(b, in_b));
    half.map(|((target, _), _)| (*target, true))
}

/// What stale words are overwritten with: no run survives using it as an address.
pub const POISON: [u8; 8] = 0xdead_dead_dead_dead_u64.to_le_bytes();

/// A store with everything that is in `source`, suspended guest and data of the
/// embedder included, at other addresses, code too. Stale words are
/// [`POISON`] there. What is left in `source` is garbage.
pub fn shift<T: Default + 'static>(source: &mut Store<T>, stale: &[StaleWord]) -> Result<Store<T>> {
    let mut target = Store::new(source.engine(), T::default());
    suspend::copy_to(source, &mut target, true)?;
    std::mem::swap(source.data_mut(), target.data_mut());
    poison(&mut target, stale);
    Ok(target)
}

/// As [`shift`], by a snapshot from which the store is spawned, its code where it was: in new
/// slots, or in those of another store that was spawned from it before.
pub fn spawn<T>(
    source: &mut Store<T>,
    stale: &[StaleWord],
    slots_are_used: bool,
) -> Result<Store<T>>
where
    T: Default + 'static,
{
    let snapshot = source.snapshot_with(|value| match value.downcast_ref::<&'static str>() {
        Some(text) => Ok(Arc::new(*text)),
        None => Err(Error::msg("the host's values are texts")),
    })?;
    let pre = snapshot.instance_pre()?;
    if slots_are_used {
        let (mut before, _) = pre.spawn(T::default())?;
        poison(&mut before, stale);
    }
    let (mut target, _) = pre.spawn(T::default())?;
    std::mem::swap(source.data_mut(), target.data_mut());
    poison(&mut target, stale);
    Ok(target)
}

fn poison<T: 'static>(target: &mut Store<T>, stale: &[StaleWord]) {
    for word in stale {
        // SAFETY: the invariant under test; if it does not hold, the process may
        // well crash.
        unsafe {
            match word.is_half {
                false => suspend::overwrite_stack(&mut *target, word.offset, &POISON),
                true => suspend::overwrite_stack(&mut *target, word.offset + 4, &POISON[4..]),
            }
        }
    }
}

/// Two runs of the same guest, the second one on other threads.
pub struct Pair<T: 'static> {
    stores: [Store<T>; 2],
    /// What was found so far.
    pub counts: Counts,
    /// By which way they are moved next.
    pub turn: u64,
}

/// How far both runs of a pair got.
#[derive(Clone, Debug)]
pub enum Step {
    /// Both are suspended, with these stale words.
    Suspended(Vec<StaleWord>),
    /// Both ended, with the same results or error.
    Ended(String),
}

impl<T: Default + Send + 'static> Pair<T> {
    /// Two stores that differ in all addresses.
    pub fn new(stores: [Store<T>; 2]) -> Self {
        let pair = Self { stores, counts: Counts::default(), turn: 0 };
        pair.assert_apart();
        pair
    }

    /// Does the same in both, and compares them.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn step(&mut self, step: impl Fn(&mut Store<T>) -> Result<CallProgress> + Sync) -> Step {
        let [a, b] = &mut self.stores;
        let (a, b) = thread::scope(|scope| {
            let b = scope.spawn(|| step(b));
            (step(a), b.join().expect("the other thread does not panic"))
        });
        let stale = compare(&self.stores[0], &self.stores[1])
            .unwrap_or_else(|message| panic!("after {}: {message}", self.counts));
        match (a, b) {
            (Ok(CallProgress::Suspended), Ok(CallProgress::Suspended)) => {
                self.counts.add(&stale);
                Step::Suspended(stale)
            }
            (a, b) => {
                let (a, b) = (outcome(&a), outcome(&b));
                assert_eq!(a, b, "how the runs ended");
                Step::Ended(a)
            }
        }
    }

    /// Moves both runs: in turn as a copy, and by a snapshot to new and to used slots.
    pub fn shift(&mut self, stale: &[StaleWord]) {
        let way = self.turn % 3;
        self.turn += 1;
        for store in &mut self.stores {
            let target = match way {
                0 => shift(store, stale),
                way => spawn(store, stale, way == 2),
            };
            let target = target.expect("there is room for a copy");
            // The source goes: nothing can be read there any more.
            *store = target;
            self.counts.moves += 1;
        }
        self.assert_apart();
    }

    /// Requires that both runs, which ended, left the pages of another one.
    #[track_caller]
    pub fn assert_left_as(&self, other: &Store<T>) {
        for store in &self.stores {
            let stale = compare(store, other).expect("the pages of the undisturbed run");
            assert!(stale.is_empty(), "no guest is suspended");
        }
    }

    fn assert_apart(&self) {
        let [a, b] = &self.stores;
        for ordinal in 1..=suspend::instance_count(a) {
            let (a, b) = (suspend::slot(a, ordinal), suspend::slot(b, ordinal));
            assert!(a.start != b.start && a.base != b.base && a.code != b.code);
        }
    }
}

/// How a run ended, in words that do not depend on the store.
pub fn outcome(result: &Result<CallProgress>) -> String {
    let number = |value: &Val| match value {
        Val::FuncRef(function) => format!("funcref {}", function.is_some()),
        Val::ExternRef(value) => format!("externref {}", value.is_some()),
        number => format!("{number:?}"),
    };
    match result {
        Ok(CallProgress::Suspended) => "suspended".to_owned(),
        Ok(CallProgress::Finished(values)) => {
            values.iter().map(number).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("{error}"),
    }
}
