//! Random sequences of all that can be done to stores whose guests may be suspended, with an
//! oracle: what a guest computed, and every byte that it leaves, is as in a fresh store in which
//! it was never disturbed and the host gave the same answers.
#![allow(unreachable_pub, reason = "a module of a test has no crate around it")]

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pagefork::suspend::{self, Zone};
use pagefork::{
    CallProgress, Caller, CodeBounds, Config, Engine, Error, Func, GrowthKind, Instance,
    InstancePre, InterruptHandle, Linker, Memory, Module, ResetKind, Result, Snapshot, Store,
    StrategyConfig, SuspendedAt, Trap, UsageError, Val,
};

/// More stores do not live at once.
const STORES_MAX: usize = 7;
/// More snapshots are not kept.
const SHOTS_MAX: usize = 5;
/// More calls are not made in one store, one after the other.
const CALLS_MAX: usize = 3;

/// How memories grow, and the code for that.
pub const GROWTHS: [(GrowthKind, CodeBounds); 8] = [
    (GrowthKind::Ftruncate, CodeBounds::Guarded),
    (GrowthKind::Mprotect, CodeBounds::Guarded),
    (GrowthKind::Mprotect, CodeBounds::Dual),
    (GrowthKind::Kept, CodeBounds::Dual),
    (GrowthKind::Auto, CodeBounds::Dual),
    (GrowthKind::Checked { accessible: Some(1 << 20) }, CodeBounds::Checked),
    (GrowthKind::Checked { accessible: Some(1 << 20) }, CodeBounds::Dual),
    (GrowthKind::Fault, CodeBounds::Guarded),
];

/// Does what the bytes say.
///
/// # Panics
/// If a guest or a page is not as it must be.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let Some(choice) = bytes.next() else { return };
    let reset = ResetKind::ALL[usize::from(choice) % ResetKind::ALL.len()];
    let (growth, code) = GROWTHS[usize::from(choice) / ResetKind::ALL.len() % GROWTHS.len()];
    let strategies = StrategyConfig { reset, growth, code, ..StrategyConfig::default() };
    // Slots are overwritten all over before they are handed out, or not.
    let poison = usize::from(choice) / (ResetKind::ALL.len() * GROWTHS.len()) % 2 == 1;
    let mut world = World::new(strategies, poison).expect("there is room for a few stores");
    world.add_store().expect("there is room for a store");
    while let Some(operation) = bytes.next() {
        let choices = [bytes.next().unwrap_or(0), bytes.next().unwrap_or(0)];
        world.operate(operation, choices).expect("nothing is refused that is due");
    }
    world.finish_all().expect("every guest comes to its end");
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// What the host answered to a call.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    Number(i32),
    /// The host function failed.
    Failure,
    /// The guest was interrupted during it.
    Interrupt,
}

/// What the host does besides in one of its calls.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Plan {
    Nothing,
    SuspendBefore,
    SuspendAfter,
    /// As another thread would ask.
    Request,
    Fail,
    Interrupt,
}

/// The data of a store: what was done in it since it was fresh.
#[derive(Clone)]
struct History {
    /// What the host's answers are made of; `None`: they are those of the history.
    salt: Option<u64>,
    answers: Vec<Answer>,
    /// How many calls the host has answered.
    answered: usize,
    /// By how many wasm pages the embedder made the memory larger, and before which answer.
    grown: Vec<(usize, u64)>,
    /// The arguments of all calls by the embedder.
    called: Vec<[i64; 2]>,
    /// How they ended.
    ended: Vec<String>,
    /// Whether the last one has not.
    is_suspended: bool,
    /// Whether a guest was given up: what it left cannot be had in another way.
    is_cut: bool,
    plan: Plan,
    /// After how many further calls of the host.
    plan_in: u8,
    handle: Option<InterruptHandle>,
    memory: Option<Memory>,
}

impl History {
    fn new(salt: Option<u64>) -> Self {
        Self {
            salt,
            answers: Vec::new(),
            answered: 0,
            grown: Vec::new(),
            called: Vec::new(),
            ended: Vec::new(),
            is_suspended: false,
            is_cut: false,
            plan: Plan::Nothing,
            plan_in: 0,
            handle: None,
            memory: None,
        }
    }

    /// For a store that goes on from here, with answers of its own.
    fn branched(&self, salt: u64) -> Self {
        let salt = Some(salt);
        Self { salt, plan: Plan::Nothing, handle: None, memory: None, ..self.clone() }
    }

    fn answer(&mut self, answer: Answer) {
        self.answers.push(answer);
        self.answered += 1;
    }

    fn end(&mut self, result: String) {
        self.ended.push(result);
        self.is_suspended = false;
    }
}

/// The host function that guests call.
fn step(mut caller: Caller<'_, History>, x: i32) -> Result<i32> {
    let history = caller.data_mut();
    let Some(salt) = history.salt else { return step_again(caller) };
    let plan = match history.plan_in {
        0 => std::mem::replace(&mut history.plan, Plan::Nothing),
        _ => {
            history.plan_in -= 1;
            Plan::Nothing
        }
    };
    let handle = || caller.data().handle.clone().expect("stores have their handles");
    match plan {
        Plan::Nothing => {}
        Plan::SuspendBefore => return Err(caller.suspend_before()),
        Plan::SuspendAfter => caller.suspend_after()?,
        Plan::Request => handle().suspend(),
        Plan::Interrupt => {
            handle().interrupt();
            caller.data_mut().answer(Answer::Interrupt);
            return Ok(x);
        }
        Plan::Fail => {
            caller.data_mut().answer(Answer::Failure);
            return Err(Error::msg("by plan"));
        }
    }
    let history = caller.data_mut();
    let answer = hash(&(salt, history.answered, x)) as i32;
    history.answer(Answer::Number(answer));
    Ok(answer)
}

/// The same answers, and the same growth between them, as in a run that is over.
fn step_again(mut caller: Caller<'_, History>) -> Result<i32> {
    let history = caller.data_mut();
    let number = history.answered;
    history.answered += 1;
    let answer = history.answers[number];
    grow_as_then(&mut caller, |before| before == number)?;
    match answer {
        Answer::Number(answer) => Ok(answer),
        Answer::Failure => Err(Error::msg("by plan")),
        Answer::Interrupt => {
            caller.data().handle.as_ref().expect("stores have their handles").interrupt();
            Ok(0)
        }
    }
}

fn grow_as_then(
    mut store: impl pagefork::AsContextMut<Data = History>,
    is_now: impl Fn(usize) -> bool,
) -> Result<()> {
    let mut store = store.as_context_mut();
    let memory = store.data().memory.expect("stores have their memories");
    let grown = store.data().grown.clone();
    for (_, pages) in grown.into_iter().filter(|(before, _)| is_now(*before)) {
        memory.grow(&mut store, pages)?;
    }
    Ok(())
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Every byte of a store's slots that guests can find, by what it is in: links and dead stacks are
/// left out, addresses on a stack are shown by what they lead to.
#[derive(Clone, PartialEq, Debug)]
struct Pages(Vec<(String, u64)>);

impl Pages {
    fn of(store: &Store<History>) -> Self {
        let mut all = Vec::new();
        let frames = match store.suspended() {
            Some(_) => suspend::frame_words(store).expect("frames are a chain"),
            None => Vec::new(),
        };
        all.push((String::from("frames"), hash(&format!("{frames:?}"))));
        for ordinal in 1..=suspend::instance_count(store) {
            let layout = suspend::slot(store, ordinal).layout;
            let zones = [Zone::Stack, Zone::Tables, Zone::State];
            let memories = (0..layout.memories.len() as u32).map(Zone::Memory);
            for zone in zones.into_iter().chain(memories) {
                let (start, mut bytes) = suspend::zone_bytes(store, ordinal, zone);
                if zone == Zone::Stack && !bytes.is_empty() {
                    for word in &frames {
                        bytes[(word.offset - start) as usize..][..8].fill(0);
                    }
                }
                if zone == Zone::State {
                    // It is compared by going on.
                    let area = layout.base as i64 + i64::from(layout.state_parts.save_area);
                    let size = layout.state_parts.save_size as usize;
                    bytes[(area - start as i64) as usize..][..size].fill(0);
                }
                all.push((format!("{zone:?} of {ordinal}"), hash(&bytes)));
            }
        }
        Self(all)
    }

    #[track_caller]
    fn assert_same(&self, expected: &Self, what: &str) {
        for (found, expected) in self.0.iter().zip(&expected.0) {
            assert_eq!(found, expected, "{what}");
        }
        assert_eq!(self.0.len(), expected.0.len(), "{what}");
    }
}

/// What a store begins as, and returns to.
struct Begin {
    history: History,
    pages: Pages,
}

/// What was captured.
struct Shot {
    snapshot: Snapshot<History>,
    begin: Arc<Begin>,
    pre: InstancePre<History>,
    /// Tells the stores that are spawned from it from others.
    kind: u64,
    /// The store that it is of, and the kind of that.
    of: u64,
    of_kind: Option<u64>,
}

struct Live {
    store: Store<History>,
    instance: Instance,
    begin: Arc<Begin>,
    number: u64,
    kind: Option<u64>,
}

impl Live {
    /// Has the data know what is the store's own.
    fn settle(&mut self) -> Result<()> {
        let memory = self.instance.get_memory(&mut self.store, "memory");
        let handle = self.store.interrupt_handle()?;
        let history = self.store.data_mut();
        (history.memory, history.handle) = (memory, Some(handle));
        Ok(())
    }

    fn run(&mut self) -> Func {
        self.instance.get_func(&mut self.store, "run").expect("it is exported")
    }

    /// Begins a call, up to a point if it is not 0.
    fn call(&mut self, depth: u8, stop_at: u64) -> Result<()> {
        let arguments = [i64::from(depth % 6 + 1), i64::from(depth)];
        self.store.data_mut().called.push(arguments);
        let run = self.run();
        let arguments = [Val::I32(arguments[0] as i32), Val::I64(arguments[1])];
        let progress = match stop_at {
            0 => run.call_suspendable(&mut self.store, &arguments),
            point => suspend::call(&mut self.store, &run, &arguments, Some(point)),
        };
        self.note(progress);
        Ok(())
    }

    fn resume(&mut self, how: u8, stop_at: u64) -> Result<()> {
        let suspended = self.store.suspended().expect("a guest is suspended");
        let is_before = suspended.at() == SuspendedAt::BeforeHostCall;
        let progress = match how % 4 {
            2 if is_before => {
                let answer = i32::from(how) * 1001;
                self.store.data_mut().answer(Answer::Number(answer));
                self.store.resume_with(Ok(&[Val::I32(answer)]))
            }
            3 if is_before => {
                self.store.data_mut().answer(Answer::Failure);
                self.store.resume_with(Err(Error::msg("by plan")))
            }
            2 | 3 => {
                let error = self.store.resume_with(Ok(&[Val::I32(0)])).unwrap_err();
                assert!(error.is::<UsageError>(), "{error}");
                return Ok(());
            }
            _ if stop_at == 0 => self.store.resume(),
            _ => suspend::resume(&mut self.store, Some(stop_at)),
        };
        self.note(progress);
        Ok(())
    }

    fn note(&mut self, progress: Result<CallProgress>) {
        let is_suspended = self.store.suspended().is_some();
        let history = self.store.data_mut();
        match progress {
            Ok(CallProgress::Suspended) => history.is_suspended = true,
            ended => history.end(shown(&ended)),
        }
        assert_eq!(is_suspended, history.is_suspended);
    }

    /// Where the host's growth shows first: before which answer.
    fn next_answer(&self) -> usize {
        let answered = self.store.data().answered;
        match self.store.suspended().map(|suspended| suspended.at()) {
            Some(SuspendedAt::AfterHostCall) => answered - 1,
            _ => answered,
        }
    }

    fn grow(&mut self, pages: u64) {
        let before = self.next_answer();
        let memory = self.store.data().memory.expect("stores have their memories");
        if memory.grow(&mut self.store, pages).is_ok() {
            self.store.data_mut().grown.push((before, pages));
        }
    }
}

fn shown(progress: &Result<CallProgress>) -> String {
    match progress {
        Ok(progress) => format!("{progress:?}"),
        Err(error) => match error.downcast_ref::<Trap>() {
            Some(trap) => format!("trap {:?}", trap.code()),
            None => error.to_string(),
        },
    }
}

struct World {
    engine: Engine,
    modules: [Module; 2],
    live: Vec<Live>,
    shots: VecDeque<Shot>,
    /// Of stores that are gone or have another life now.
    stale: Vec<InterruptHandle>,
    count: u64,
}

impl World {
    fn new(strategies: StrategyConfig, poison: bool) -> Result<Self> {
        let engine = Engine::new(Config::new().strategies(strategies).poison(poison))?;
        let texts = [include_str!("library.wat"), include_str!("main.wat")];
        let [library, main] = texts.map(|text| Module::new(&engine, text));
        let modules = [library?, main?];
        let (live, shots, stale) = (Vec::new(), VecDeque::new(), Vec::new());
        Ok(Self { engine, modules, live, shots, stale, count: 0 })
    }

    fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn fresh(&mut self, history: History) -> Result<Live> {
        let mut store = Store::new(&self.engine, history);
        let mut linker = Linker::new(&self.engine);
        linker.func_wrap("host", "step", step)?;
        linker.module(&mut store, "library", &self.modules[0])?;
        let instance = linker.instantiate(&mut store, &self.modules[1])?;
        let begin = Begin { history: store.data().branched(0), pages: Pages::of(&store) };
        let number = self.number();
        let mut live = Live { store, instance, begin: Arc::new(begin), number, kind: None };
        live.settle()?;
        Ok(live)
    }

    fn add_store(&mut self) -> Result<()> {
        let salt = self.number();
        let live = self.fresh(History::new(Some(salt)))?;
        self.live.push(live);
        Ok(())
    }

    fn operate(&mut self, operation: u8, [which, how]: [u8; 2]) -> Result<()> {
        if self.live.is_empty() {
            return self.add_store();
        }
        let index = usize::from(which) % self.live.len();
        let (live, how_many) = (&mut self.live[index], u64::from(how));
        match operation % 16 {
            // Most of the time guests run.
            0..=4 => self.advance(index, operation, how)?,
            5 => {
                let history = live.store.data_mut();
                history.plan = match how % 6 {
                    0 | 1 => Plan::SuspendBefore,
                    2 => Plan::SuspendAfter,
                    3 => Plan::Request,
                    4 => Plan::Fail,
                    _ => Plan::Interrupt,
                };
                history.plan_in = how / 6 % 5;
            }
            6 | 7 => self.capture(index)?,
            8 | 9 => self.spawn(how, which)?,
            10 => self.fork(index, usize::from(how % 3))?,
            11 => self.reset(index)?,
            12 => self.reset_to(index, how)?,
            13 => live.grow(how_many % 3),
            14 => {
                let live = self.live.swap_remove(index);
                self.stale.extend(live.store.data().handle.clone());
            }
            _ if how % 8 == 0 => {
                let history = live.store.data_mut();
                if history.is_suspended {
                    history.is_cut = true;
                    history.end(String::new());
                }
                live.store.abandon();
            }
            _ => {
                // Too late, or for stores that are gone: all others go on as if nothing were.
                let own = live.store.data().handle.iter();
                for handle in self.stale.iter().chain(own) {
                    handle.suspend();
                    if how % 2 == 0 {
                        handle.interrupt();
                    }
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self, index: usize, operation: u8, how: u8) -> Result<()> {
        let live = &mut self.live[index];
        let stop_at = if operation.is_multiple_of(2) { u64::from(how / 4) } else { 0 };
        let history = live.store.data();
        match (history.is_suspended, history.called.len() < CALLS_MAX) {
            (true, _) => live.resume(how, stop_at),
            (false, true) => live.call(how, stop_at),
            (false, false) => self.check(index),
        }
    }

    fn capture(&mut self, index: usize) -> Result<()> {
        let kind = self.number();
        let live = &mut self.live[index];
        let pages = Pages::of(&live.store);
        let snapshot = live.store.snapshot()?;
        Pages::of(&live.store).assert_same(&pages, "the source stays as it is");
        let begin = Arc::new(Begin { history: live.store.data().branched(0), pages });
        let (pre, of, of_kind) = (snapshot.instance_pre()?, live.number, live.kind);
        self.shots.push_back(Shot { snapshot, begin, pre, kind, of, of_kind });
        if self.shots.len() > SHOTS_MAX {
            self.shots.pop_front();
        }
        Ok(())
    }

    fn spawn(&mut self, which: u8, tenant: u8) -> Result<()> {
        if self.shots.is_empty() || self.live.len() >= STORES_MAX {
            return Ok(());
        }
        let number = self.number();
        let shot = &self.shots[usize::from(which) % self.shots.len()];
        let history = shot.begin.history.branched(number);
        let (store, instance) = shot.pre.spawn_for(u64::from(tenant % 3), history)?;
        Pages::of(&store).assert_same(&shot.begin.pages, "what is spawned is as what was captured");
        let begin = Arc::clone(&shot.begin);
        let mut live = Live { store, instance, begin, number, kind: Some(shot.kind) };
        live.settle()?;
        self.live.push(live);
        Ok(())
    }

    fn fork(&mut self, index: usize, count: usize) -> Result<()> {
        if self.live.len() + count > STORES_MAX {
            return Ok(());
        }
        let (first, kind) = (self.count + 1, self.count);
        self.count += count as u64;
        let live = &mut self.live[index];
        let history = live.store.data().branched(0);
        let begin = Arc::new(Begin { history, pages: Pages::of(&live.store) });
        let salted = |fork: usize| begin.history.branched(first + fork as u64);
        let forks = live.store.fork(count, salted)?;
        let origin = live.instance;
        for (mut store, number) in forks.into_iter().zip(first..) {
            Pages::of(&store).assert_same(&begin.pages, "forks are as what they are of");
            let instance = store.counterpart_instance(origin)?;
            let begin = Arc::clone(&begin);
            let kind = Some(kind << 32 | 1);
            let mut fork = Live { store, instance, begin, number, kind };
            fork.settle()?;
            self.live.push(fork);
        }
        Ok(())
    }

    fn reset(&mut self, index: usize) -> Result<()> {
        let salt = self.number();
        let live = &mut self.live[index];
        let history = live.begin.history.branched(salt);
        live.store.reset(history)?;
        Pages::of(&live.store).assert_same(&live.begin.pages, "a reset store is as it began");
        live.settle()
    }

    fn reset_to(&mut self, index: usize, which: u8) -> Result<()> {
        if self.shots.is_empty() {
            return Ok(());
        }
        let salt = self.number();
        let (live, shot) =
            (&mut self.live[index], &self.shots[usize::from(which) % self.shots.len()]);
        let history = shot.begin.history.branched(salt);
        let fits = shot.of == live.number
            || live.kind == Some(shot.kind)
            || (shot.of_kind.is_some() && shot.of_kind == live.kind);
        let before = Pages::of(&live.store);
        match live.store.reset_to(&shot.snapshot, history) {
            Ok(_) => {
                assert!(fits, "it is of a store of another kind");
                let what = "a store is as what it was reset to";
                Pages::of(&live.store).assert_same(&shot.begin.pages, what);
                live.settle()
            }
            Err(error) => {
                assert!(!fits && error.is::<UsageError>(), "{error}");
                Pages::of(&live.store).assert_same(&before, "what is refused changes nothing");
                Ok(())
            }
        }
    }

    /// Compares a store in which no guest is suspended with one that was never disturbed.
    fn check(&mut self, index: usize) -> Result<()> {
        let history = self.live[index].store.data();
        if history.is_cut {
            return Ok(());
        }
        let again = History { answered: 0, called: Vec::new(), ..history.branched(0) };
        let called = history.called.clone();
        let again = History { salt: None, ended: Vec::new(), is_suspended: false, ..again };
        let mut other = self.fresh(again)?;
        for [depth, x] in called {
            let run = other.run();
            let mut results = [Val::I64(0)];
            let arguments = [Val::I32(depth as i32), Val::I64(x)];
            let ended = run.call(&mut other.store, &arguments, &mut results);
            let ended = ended.map(|()| CallProgress::Finished(results.to_vec()));
            other.store.data_mut().ended.push(shown(&ended));
        }
        let answered = other.store.data().answered;
        grow_as_then(&mut other.store, |before| before >= answered)?;
        let live = &self.live[index];
        let (found, expected) = (live.store.data(), other.store.data());
        assert_eq!(found.ended, expected.ended);
        assert_eq!(found.answered, expected.answered);
        let what = "a store is as one that was never disturbed";
        Pages::of(&live.store).assert_same(&Pages::of(&other.store), what);
        Ok(())
    }

    fn finish_all(&mut self) -> Result<()> {
        for index in 0..self.live.len() {
            while self.live[index].store.data().is_suspended {
                self.live[index].resume(0, 0)?;
            }
            self.check(index)?;
        }
        Ok(())
    }
}
