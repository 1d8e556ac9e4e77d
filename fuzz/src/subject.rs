//! What a case does with an engine, whichever it is, and what it sees.
//!
//! Everything here is decided by the seed and by what was seen before, so two
//! engines that do the same are asked the same.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use wasmparser::{FuncType, ValType};

use crate::generate::{Case, FUEL, PREVIOUS, PROBES, Source};
use crate::interface::Kind;
use crate::random::Random;
use crate::value::{Value, interesting};

/// Calls of each instance at most.
const CALLS_MAX: u64 = 30;
/// How deep host functions call guests that call host functions.
const DEPTH_MAX: u32 = 3;
/// Host calls that are kept as they are; of all others a digest.
const HOST_CALLS_KEPT: usize = 200;

/// An engine with a store, or a host function's access to it.
pub trait Subject {
    /// A function, table, memory, global or tag.
    type Item: Clone;

    /// What this module keeps about the store.
    fn state(&mut self) -> &mut State<Self::Item>;
    /// Calls a function of this type.
    fn call(&mut self, function: &Self::Item, ty: &FuncType, arguments: &[Value]) -> Outcome;
    /// The value of a global.
    fn global(&mut self, global: &Self::Item) -> Value;
    /// Sets a global of this type; whether that was possible.
    fn set_global(&mut self, global: &Self::Item, ty: ValType, value: Value) -> bool;
    /// The length of a table.
    fn table_length(&mut self, table: &Self::Item) -> u64;
    /// An element within a table, and itself if it is a function.
    fn element(&mut self, table: &Self::Item, index: u64) -> (Value, Option<Self::Item>);
    /// Sets an element; whether that was possible.
    fn set_element(&mut self, table: &Self::Item, ty: ValType, index: u64, value: Value) -> bool;
    /// Makes a table longer; whether that was possible.
    fn grow_table(&mut self, table: &Self::Item, ty: ValType, delta: u64, value: Value) -> bool;
    /// A memory's bytes.
    fn memory(&mut self, memory: &Self::Item) -> &mut [u8];
    /// Makes a memory larger by this many wasm pages; whether that was possible.
    fn grow_memory(&mut self, memory: &Self::Item, delta: u64) -> bool;
}

/// An engine with an empty store.
pub trait Engine {
    /// A function, table, memory, global or tag.
    type Item: Clone;
    /// Access to the store.
    type Subject<'a>: Subject<Item = Self::Item>
    where
        Self: 'a;

    /// Access to the store.
    fn subject(&mut self) -> Self::Subject<'_>;
    /// Compiles a module, which is then the one that the other functions mean.
    ///
    /// # Errors
    /// What the engine says against it.
    fn compile(&mut self, wasm: &[u8]) -> Result<(), String>;
    /// Makes something that import number `index` of the module, which is number
    /// `module` of its case, can be; `None` if its type needs a value and there is
    /// none. Functions behave as [`host_call`].
    fn provide(
        &mut self,
        module: usize,
        index: usize,
        kind: &Kind,
        value: Option<Value>,
    ) -> Option<Self::Item>;
    /// Instantiates the module; returns its exports in order.
    ///
    /// # Errors
    /// Why not.
    fn instantiate(&mut self, imports: &[Self::Item]) -> Result<Vec<Self::Item>, Failure>;
    /// Tells functions that are made known apart: their number, by what engine
    /// calls them.
    fn name_function(&mut self, function: &Self::Item);
}

/// What came of a call.
pub type Outcome = Result<Vec<Value>, Failure>;

/// Why something failed, in the words of neither engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A trap of this kind.
    Trap(&'static str),
    /// An uncaught exception, and what it carries.
    Exception(Vec<Value>),
    /// The error of a host function.
    Host,
    /// Imports that do not match.
    Link,
    /// Something ran out that the specification does not count. What the guest
    /// sees from then on is not comparable.
    Exhausted(&'static str),
    /// Anything else, which is never equal to anything.
    Other(String),
}

/// One thing that was seen.
#[derive(Clone, PartialEq)]
pub enum Event {
    /// The engine refused a module, for a reason of its own.
    Refused(usize),
    /// A module was instantiated, or not.
    Instantiated(usize, Result<(), Failure>),
    /// A function was called.
    Called(String, Outcome),
    /// The host functions that were called meanwhile, and a digest of those that
    /// are not listed.
    HostCalls(Vec<HostCall>, u64),
    /// An element of a table.
    Element(String, Value),
    /// A global at the end.
    Global(String, Value),
    /// A table at the end.
    Table(String, Vec<Value>),
    /// A memory at the end.
    Memory(String, Vec<u8>),
}

/// A call of a host function.
#[derive(Clone, PartialEq, Debug, Hash)]
pub struct HostCall {
    /// Which import it is, counted over all of the case.
    pub import: usize,
    /// What it got.
    pub arguments: Vec<Value>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(i) => write!(f, "module {i} is refused"),
            Self::Instantiated(i, outcome) => write!(f, "module {i} instantiated: {outcome:?}"),
            Self::Called(what, outcome) => write!(f, "{what} = {outcome:x?}"),
            Self::HostCalls(calls, digest) => write!(f, "host calls {calls:x?}, digest {digest:x}"),
            Self::Element(what, value) => write!(f, "element {what}: {value:?}"),
            Self::Global(what, value) => write!(f, "global {what}: {value:x?}"),
            Self::Table(what, values) => write!(f, "table {what}: {values:?}"),
            Self::Memory(what, bytes) => write!(f, "memory {what}: {} bytes", bytes.len()),
        }
    }
}

/// Everything that was seen of a case, in order.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// What was seen.
    pub events: Vec<Event>,
    /// What the engine said when it refused a module.
    pub refusal: Option<String>,
    /// Whether something ran out, so that the rest was left out.
    pub exhausted: Option<&'static str>,
    /// How often things happened, for the record.
    pub counts: BTreeMap<String, u64>,
}

impl Transcript {
    fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }
}

/// How a host function ends.
pub enum Ending<Item> {
    /// It returns these values.
    Return(Vec<Value>),
    /// It throws an exception with this tag, which carries these values.
    Throw(Item, FuncType, Vec<Value>),
    /// It fails.
    Fail,
}

/// What is kept about a store.
pub struct State<Item> {
    random: Random,
    known: Vec<Known<Item>>,
    /// The function types of each module.
    types: Vec<Vec<FuncType>>,
    depth: u32,
    calls: Vec<HostCall>,
    digest: DefaultHasher,
    call_count: u64,
    /// For each function that was made known: the number by which it was first,
    /// because what is imported and exported again is the same function. Engines
    /// may think otherwise.
    canonical: Vec<usize>,
    /// Whether there may be functions that none of these numbers is of: those of
    /// an instance that failed to start.
    uncertain: bool,
    /// What ran out in a call that a host function made.
    exhausted: Option<&'static str>,
}

#[derive(Clone)]
struct Known<Item> {
    name: String,
    /// Which module exports it.
    module: usize,
    kind: Kind,
    item: Item,
    /// Its number, if it is a function.
    function: Option<usize>,
}

impl<Item> State<Item> {
    /// The state of an empty store.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed, 2),
            known: Vec::new(),
            types: Vec::new(),
            depth: 0,
            calls: Vec::new(),
            digest: DefaultHasher::new(),
            call_count: 0,
            canonical: Vec::new(),
            uncertain: false,
            exhausted: None,
        }
    }

    /// Values of these types, which are those of a module; `None` if there are no
    /// such values.
    fn make_up(&mut self, module: usize, types: &[ValType]) -> Option<Vec<Value>> {
        let Self { random, known, types: modules, .. } = self;
        let functions = |index: Option<u32>| {
            let ty = index.map(|index| &modules[module][index as usize]);
            let fits = |known: &&Known<Item>| match (&known.kind, ty) {
                (Kind::Func(own), Some(ty)) => {
                    own == ty && (known.module == module || !names_types(ty))
                }
                (Kind::Func(_), None) => true,
                _ => false,
            };
            known.iter().filter(fits).filter_map(|known| known.function).collect()
        };
        types.iter().map(|ty| interesting(random, *ty, functions)).collect()
    }

    /// The function that became known by this number, if by any.
    pub fn function(&self, number: Option<&usize>) -> Value {
        Value::Func(number.filter(|_| !self.uncertain).map(|number| self.canonical[*number]))
    }
}

/// Whether a type means something only together with the module it is from.
fn names_types(ty: &FuncType) -> bool {
    let mut types = ty.params().iter().chain(ty.results());
    types.any(|ty| matches!(ty, ValType::Ref(ty) if ty.is_concrete_type_ref()))
}

/// Runs a case.
pub fn run<E: Engine>(engine: &mut E, case: &Case) -> Transcript {
    let mut transcript = Transcript::default();
    let mut previous: Vec<E::Item> = Vec::new();
    for (number, source) in case.modules.iter().enumerate() {
        if let Err(message) = engine.compile(&source.wasm) {
            transcript.refusal = Some(message);
            transcript.events.push(Event::Refused(number));
            break;
        }
        engine.subject().state().types.push(source.interface.types.clone());
        let last = number.checked_sub(1).map(|last| (&case.modules[last], &*previous));
        let Some((imports, functions)) = link(engine, number, source, last) else {
            transcript.count("imports that cannot be made up");
            break;
        };
        let outcome = engine.instantiate(&imports);
        let failure = outcome.as_ref().err().cloned();
        host_calls(&mut engine.subject(), &mut transcript);
        if let Some(Failure::Exhausted(what)) = failure {
            transcript.exhausted = Some(what);
            return transcript;
        }
        let reason = failure.clone().map_or(Ok(()), Err);
        transcript.events.push(Event::Instantiated(number, reason));
        let Ok(exports) = outcome else {
            transcript.count("failed instantiations");
            engine.subject().state().uncertain = true;
            break;
        };
        transcript.count("instances");
        make_known(engine, number, source, &functions, &exports);
        if !exercise(&mut engine.subject(), case, number, &mut transcript) {
            return transcript;
        }
        previous = exports;
    }
    finish(&mut engine.subject(), &mut transcript);
    transcript
}

/// Imports, and the numbers of the functions among them that have one.
type Linked<Item> = (Vec<Item>, Vec<Option<usize>>);

/// What the imports of the present module shall be: what the module before exports
/// by that name, or something new.
fn link<E: Engine>(
    engine: &mut E,
    number: usize,
    source: &Source,
    last: Option<(&Source, &[E::Item])>,
) -> Option<Linked<E::Item>> {
    let (mut imports, mut functions) = (Vec::new(), Vec::new());
    for (index, import) in source.interface.imports.iter().enumerate() {
        if import.module == PREVIOUS
            && let Some((source, items)) = last
            && let Some(at) =
                source.interface.exports.iter().position(|export| export.name == import.name)
        {
            imports.push(items[at].clone());
            if let Kind::Func(_) = import.kind {
                // The latest functions that were made known are that module's.
                let mut subject = engine.subject();
                let canonical = &subject.state().canonical;
                let kinds = source.interface.exports.iter().map(|export| &export.kind);
                let after = kinds.skip(at).filter(|kind| matches!(kind, Kind::Func(_))).count();
                functions.push(Some(canonical[canonical.len() - after]));
            }
            continue;
        }
        if let Kind::Func(_) = import.kind {
            functions.push(None);
        }
        let ty = match &import.kind {
            Kind::Global(ty) => vec![ty.content_type],
            Kind::Table(ty) => vec![ValType::Ref(ty.element_type)],
            _ => Vec::new(),
        };
        let value = engine.subject().state().make_up(number, &ty)?.pop();
        imports.push(engine.provide(number, index, &import.kind, value)?);
    }
    Some((imports, functions))
}

fn make_known<E: Engine>(
    engine: &mut E,
    number: usize,
    source: &Source,
    imported: &[Option<usize>],
    exports: &[E::Item],
) {
    for (export, item) in source.interface.exports.iter().zip(exports) {
        let mut function = None;
        if let Kind::Func(_) = export.kind {
            engine.name_function(item);
            let mut subject = engine.subject();
            let canonical = &mut subject.state().canonical;
            let own = canonical.len();
            canonical.push(imported.get(export.index as usize).copied().flatten().unwrap_or(own));
            function = Some(own);
        }
        let kind_name = match export.kind {
            Kind::Func(_) => "function",
            Kind::Table(_) => "table",
            Kind::Memory(_) => "memory",
            Kind::Global(_) => "global",
            Kind::Tag(_) => "tag",
        };
        let name = match &*export.name {
            name @ (FUEL | PROBES) => format!("{number}: {name}"),
            _ => format!("{number}: {kind_name} {}", export.index),
        };
        let known =
            Known { name, module: number, kind: export.kind.clone(), item: item.clone(), function };
        engine.subject().state().known.push(known);
    }
}

/// Calls what an instance exports, several times over, with state left from call
/// to call. False once something ran out.
fn exercise<S: Subject>(
    subject: &mut S,
    case: &Case,
    number: usize,
    transcript: &mut Transcript,
) -> bool {
    let prefix = format!("{number}: ");
    let own = subject.state().known.iter().filter(|known| known.name.starts_with(&prefix));
    let own: Vec<Known<S::Item>> = own.cloned().collect();
    let functions: Vec<_> = own.iter().filter(|known| known.function.is_some()).collect();
    let tables: Vec<_> = own.iter().filter(|known| matches!(known.kind, Kind::Table(_))).collect();
    let mut random = Random::new(case.seed, 3 + number as u64);
    let count = CALLS_MAX.min(4 * functions.len() as u64);
    for turn in 0..count {
        // First each function once, so that none is missed; then at random.
        let chosen = functions.get(turn as usize).or_else(|| random.pick(&functions)).copied();
        let mut target = chosen.cloned();
        if turn % 4 == 3
            && let Some(table) = random.pick(&tables)
            && let Some(element) = call_target(subject, table, &mut random, transcript)
        {
            target = Some(element);
        }
        let Some(known) = target else { continue };
        let Kind::Func(ty) = &known.kind else {
            continue;
        };
        let Some(arguments) = subject.state().make_up(known.module, ty.params()) else {
            transcript.count("calls whose arguments cannot be made up");
            continue;
        };
        refuel(subject, case.fuel);
        let outcome = subject.call(&known.item, ty, &arguments);
        let inner = subject.state().exhausted.take();
        if let Some(what) = inner.or(match &outcome {
            Err(Failure::Exhausted(what)) => Some(*what),
            _ => None,
        }) {
            transcript.exhausted = Some(what);
            return false;
        }
        transcript.count("calls");
        let left = fuel_left(subject);
        *transcript.counts.entry("function and loop entries".to_owned()).or_default() +=
            left.iter().map(|left| u64::from(case.fuel.saturating_sub(*left))).sum::<u64>();
        transcript.count(match &outcome {
            Err(Failure::Trap("unreachable")) if left.contains(&0) => "out of fuel".to_owned(),
            Ok(_) => "calls that return".to_owned(),
            Err(Failure::Trap(kind)) => format!("trap: {kind}"),
            Err(Failure::Exception(_)) => "uncaught exceptions".to_owned(),
            Err(Failure::Host) => "host errors".to_owned(),
            Err(other) => format!("{other:?}"),
        });
        host_calls(subject, transcript);
        let what = format!("{}({arguments:x?})", known.name);
        transcript.events.push(Event::Called(what, outcome));
        for probe in named(subject, PROBES) {
            let value = subject.global(&probe);
            transcript.events.push(Event::Global(format!("{PROBES} after {}", known.name), value));
        }
    }
    true
}

/// A function found in a table, to be called.
fn call_target<S: Subject>(
    subject: &mut S,
    table: &Known<S::Item>,
    random: &mut Random,
    transcript: &mut Transcript,
) -> Option<Known<S::Item>> {
    let length = subject.table_length(&table.item);
    if length == 0 {
        return None;
    }
    // Most elements are null: the first other one from some place on.
    let start = random.below(length);
    let from_there = (start..length).chain(0..start);
    let index = from_there.into_iter().find(|i| subject.element(&table.item, *i).1.is_some());
    let (index, (value, item)) = match index {
        Some(index) => (index, subject.element(&table.item, index)),
        None => (start, subject.element(&table.item, start)),
    };
    transcript.events.push(Event::Element(format!("{}[{index}]", table.name), value));
    let Value::Func(Some(function)) = value else {
        return None;
    };
    let known = subject.state().known.iter().find(|known| known.function == Some(function))?;
    let name = format!("{}[{index}] -> {}", table.name, known.name);
    transcript.count("calls of table elements");
    Some(Known { name, item: item?, ..known.clone() })
}

/// What all modules export by this name.
fn named<S: Subject>(subject: &mut S, name: &str) -> Vec<S::Item> {
    let known = subject.state().known.iter().filter(|known| known.name.ends_with(name));
    known.map(|known| known.item.clone()).collect()
}

fn refuel<S: Subject>(subject: &mut S, fuel: u32) {
    for tank in named(subject, FUEL) {
        subject.set_global(&tank, ValType::I32, Value::I32(fuel));
    }
}

/// What each module has left in its fuel.
fn fuel_left<S: Subject>(subject: &mut S) -> Vec<u32> {
    let left = named(subject, FUEL).into_iter().map(|tank| match subject.global(&tank) {
        Value::I32(left) => left,
        other => panic!("fuel is no {other:?}"),
    });
    left.collect()
}

/// Notes which host functions were called since the last time.
fn host_calls<S: Subject>(subject: &mut S, transcript: &mut Transcript) {
    let state = subject.state();
    if state.call_count > 0 {
        *transcript.counts.entry("host calls".to_owned()).or_default() += state.call_count;
        let calls = std::mem::take(&mut state.calls);
        transcript.events.push(Event::HostCalls(calls, state.digest.finish()));
        state.call_count = 0;
    }
}

/// What a host function does, and how it ends. It logs the call, changes something
/// of the store now and then, or calls a guest.
pub fn host_call<S: Subject>(
    subject: &mut S,
    module: usize,
    import: usize,
    ty: &FuncType,
    arguments: Vec<Value>,
) -> Ending<S::Item> {
    let state = subject.state();
    let call = HostCall { import, arguments };
    call.hash(&mut state.digest);
    if state.calls.len() < HOST_CALLS_KEPT {
        state.calls.push(call);
    }
    state.call_count += 1;
    if state.random.chance(1, 8) && state.depth < DEPTH_MAX {
        state.depth += 1;
        disturb(subject);
        subject.state().depth -= 1;
    }
    let state = subject.state();
    if state.random.chance(1, 64) {
        return Ending::Fail;
    }
    let tag = state.known.iter().rfind(|known| matches!(known.kind, Kind::Tag(_))).cloned();
    let ending = match tag {
        Some(Known { module, kind: Kind::Tag(ty), item, .. })
            if state.call_count.is_multiple_of(8) =>
        {
            let values = state.make_up(module, ty.params());
            values.map(|values| Ending::Throw(item, ty, values))
        }
        _ => state.make_up(module, ty.results()).map(Ending::Return),
    };
    ending.unwrap_or(Ending::Fail)
}

/// Does something to the store behind the back of a guest that runs.
fn disturb<S: Subject>(subject: &mut S) {
    let state = subject.state();
    let Some(known) = state.random.pick(&state.known).cloned() else {
        return;
    };
    if known.name.ends_with(FUEL) {
        return;
    }
    let mut done = None;
    match &known.kind {
        Kind::Func(ty) => {
            let Some(arguments) = state.make_up(known.module, ty.params()) else {
                return;
            };
            let outcome = subject.call(&known.item, ty, &arguments);
            let state = subject.state();
            if let Err(Failure::Exhausted(what)) = outcome {
                state.exhausted = Some(what);
            }
            format!("{outcome:?}").hash(&mut state.digest);
        }
        Kind::Memory(_) if state.random.chance(1, 2) => {
            done = Some(subject.grow_memory(&known.item, 1));
        }
        Kind::Memory(_) => {
            let (place, value) = (state.random.next(), state.random.next() as u8);
            let bytes = subject.memory(&known.item);
            if !bytes.is_empty() {
                let place = place as usize % bytes.len();
                bytes[place] = value;
            }
        }
        Kind::Global(ty) if ty.mutable => {
            let value = state.make_up(known.module, &[ty.content_type]);
            if let Some(value) = value.and_then(|mut values| values.pop()) {
                done = Some(subject.set_global(&known.item, ty.content_type, value));
            }
        }
        Kind::Table(ty) => {
            let ty = ValType::Ref(ty.element_type);
            let (grow, place) = (state.random.chance(1, 2), state.random.next());
            let value = state.make_up(known.module, &[ty]);
            let Some(value) = value.and_then(|mut values| values.pop()) else {
                return;
            };
            let length = subject.table_length(&known.item);
            if grow {
                done = Some(subject.grow_table(&known.item, ty, 1, value));
            } else if length > 0 {
                done = Some(subject.set_element(&known.item, ty, place % length, value));
            }
        }
        Kind::Global(_) | Kind::Tag(_) => {}
    }
    done.hash(&mut subject.state().digest);
}

/// Looks at everything that any instance exports.
fn finish<S: Subject>(subject: &mut S, transcript: &mut Transcript) {
    for known in subject.state().known.clone() {
        match known.kind {
            Kind::Memory(_) => {
                let bytes = subject.memory(&known.item).to_vec();
                transcript.events.push(Event::Memory(known.name, bytes));
                transcript.count("memories compared");
            }
            Kind::Table(_) => {
                let length = subject.table_length(&known.item);
                let elements = (0..length).map(|i| subject.element(&known.item, i).0).collect();
                transcript.events.push(Event::Table(known.name, elements));
                transcript.count("tables compared");
            }
            Kind::Global(_) => {
                let value = subject.global(&known.item);
                transcript.events.push(Event::Global(known.name, value));
                transcript.count("globals compared");
            }
            Kind::Func(_) | Kind::Tag(_) => {}
        }
    }
}

/// The first thing in which two runs of a case differ; `None` if they agree as
/// far as both went.
pub fn difference(ours: &Transcript, theirs: &Transcript) -> Option<String> {
    let pairs = ours.events.iter().zip(&theirs.events);
    for (i, (ours, theirs)) in pairs.enumerate() {
        if ours != theirs || is_incomparable(ours) {
            return Some(format!(
                "event {i}:\n  pagefork: {}\n  peer:     {}",
                show(ours, theirs),
                show(theirs, ours)
            ));
        }
    }
    if ours.exhausted.is_some() || theirs.exhausted.is_some() {
        return None;
    }
    let (a, b) = (ours.events.len(), theirs.events.len());
    (a != b).then(|| format!("pagefork saw {a} events, the peer {b}"))
}

fn is_incomparable(event: &Event) -> bool {
    matches!(
        event,
        Event::Called(_, Err(Failure::Other(_))) | Event::Instantiated(_, Err(Failure::Other(_)))
    )
}

/// An event with what matters of large ones.
fn show(event: &Event, other: &Event) -> String {
    match (event, other) {
        (Event::Memory(what, bytes), Event::Memory(_, others)) => {
            let at = bytes.iter().zip(others).position(|(a, b)| a != b);
            let place = at.map(|at| {
                let range = at..bytes.len().min(at + 16);
                format!(", first different at {at:#x}: {:02x?}", &bytes[range])
            });
            format!("memory {what}: {} bytes{}", bytes.len(), place.unwrap_or_default())
        }
        (Event::Table(what, elements), Event::Table(_, others)) => {
            let at = elements.iter().zip(others).position(|(a, b)| a != b);
            let place = at.map(|at| format!(", first different at {at}: {:?}", elements[at]));
            format!("table {what}: {} elements{}", elements.len(), place.unwrap_or_default())
        }
        _ => format!("{event:?}"),
    }
}
