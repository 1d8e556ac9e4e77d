//! Random things done to slots by guests, hosts, other threads and the kernel;
//! then a reset, by any strategy, also to images that were made of slots. What the
//! slot must be is known from a model of plain bytes.

use std::fs::File;
use std::io::Write;
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arbitrary::{Result, Unstructured};
use pagefork_pages::inject::{fail_from, fail_nth};
use pagefork_pages::{
    CodeBounds, DeltaTracker, ExternalWriter, GrowthKind, Image, ImageForm, MemorySize, MemoryZone,
    Owner, PagesError, ResetKind, Slot, SlotConfig, Strategies, StrategyConfig,
};

/// Looking at images and slots.
mod probes;

use probes::{accessible, advise, bytes, fresh_bytes, kernel_writes, populated};

const PAGE: u64 = 4096;

/// Of each memory.
const RESERVED: u64 = 1024 * PAGE;

/// At most this many runs, each with a reset at its end, are made of an input.
const RUNS_MAX: u32 = 64;

/// At most this many changes are made in a run.
const CHANGES_MAX: u32 = 12;

/// Slots with strategies that the input chooses go through runs and resets that it
/// chooses.
///
/// # Panics
/// If a slot is not what it must be.
pub fn reset_slot(data: &[u8]) {
    // What an input lacks is made up; nothing else ends it early.
    let _ = Play::new(&mut Unstructured::new(data)).and_then(|mut play| play.go());
}

/// Zones and the images that fit.
struct Stage {
    zones: SlotConfig,
    images: Vec<Arc<Image>>,
}

static STAGES: LazyLock<Vec<Stage>> = LazyLock::new(|| [0, 1, 3].map(stage).into());

/// A slot under test and what it must be.
struct Actor {
    slot: Slot,
    model: Model,
    /// Whether it may be written to unannounced.
    viewed_for_good: bool,
    /// Whether the running side has said so.
    announced: bool,
    /// Places that some runs write and no others.
    haunts: Vec<u64>,
}

/// What a slot must hold.
struct Model {
    zones: SlotConfig,
    stack_kept: u64,
    clear_stack: bool,
    growth: GrowthKind,
    image: Arc<Image>,
    sizes: Vec<MemorySize>,
    /// How long its memories are.
    now: Vec<u64>,
    /// The most that each has been since it was filled.
    most: Vec<u64>,
    /// From the stack to the end of the first memory, then each further one, as long
    /// as they can become: a slot offset, and bytes.
    parts: Vec<(u64, Vec<u8>)>,
    /// The same of a fresh slot.
    fresh: Vec<(u64, Vec<u8>)>,
    /// Where the two may differ. Copying only that, and into the same vectors, causes
    /// no page faults, which some strategies count.
    written: Vec<Range<u64>>,
    owner: Option<u64>,
}

struct Play<'a, 'b> {
    u: &'a mut Unstructured<'b>,
    stage: &'static Stage,
    /// None is missing but while it is used.
    actors: Vec<Option<Box<Actor>>>,
    /// Of sixteen runs, this many write only where others have written.
    calm: u8,
    /// Images that were made of slots, and the sizes that they had.
    snapshots: Vec<Contents>,
}

/// An image and sizes that fit each other.
type Contents = (Arc<Image>, Vec<MemorySize>);

/// Has the signals of read-only pages handled.
static HANDLERS: LazyLock<pagefork::Engine> = LazyLock::new(pagefork::Engine::default);

/// At most this many snapshots are made of a run.
const LOOKS_MAX: usize = 4;

/// So many snapshots are there at most.
const SNAPSHOTS_MAX: usize = 4;

impl<'a, 'b> Play<'a, 'b> {
    fn new(u: &'a mut Unstructured<'b>) -> Result<Self> {
        LazyLock::force(&HANDLERS);
        let stage = &STAGES[u.choose_index(STAGES.len())?];
        let strategies = strategies(u)?;
        let count = if u.ratio(1, 4)? { 2 } else { 1 };
        let calm = *u.choose(&[2, 8, 15])?;
        let mut actors = Vec::new();
        for _ in 0..count {
            let (image, sizes) = contents(u, stage)?;
            let slot = Slot::with_strategies(stage.zones.clone(), &image, &sizes, &strategies);
            let model = Model::new(&stage.zones, &strategies, &image, &sizes);
            let haunts = (0..4).map(|_| model.place(u)).collect::<Result<_>>()?;
            let slot = slot.expect("a slot that fits is made");
            let actor = Actor { slot, model, viewed_for_good: false, announced: false, haunts };
            actors.push(Some(Box::new(actor)));
        }
        Ok(Self { u, stage, actors, calm, snapshots: Vec::new() })
    }

    fn go(&mut self) -> Result<()> {
        for _ in 0..RUNS_MAX {
            if self.u.is_empty() {
                break;
            }
            let index = self.u.choose_index(self.actors.len())?;
            let mut actor = self.actors[index].take().expect("nothing else uses it");
            actor = self.run(actor)?;
            self.actors[index] = Some(self.end(actor)?);
        }
        for actor in self.actors.iter().flatten() {
            actor.check(true);
        }
        Ok(())
    }

    fn run(&mut self, mut actor: Box<Actor>) -> Result<Box<Actor>> {
        let u = &mut *self.u;
        actor.announced = u.ratio(7, 8)?;
        if actor.announced {
            actor.slot.enter();
        }
        if u.ratio(self.calm, 16)? {
            // As most guests are: no page is new.
            for _ in 0..u.int_in_range(0..=4)? {
                actor = actor.haunt(u)?;
            }
            return Ok(actor);
        }
        // Each snapshot is of what has changed since the one before.
        for _ in 0..LOOKS_MAX {
            for _ in 0..u.int_in_range(0..=CHANGES_MAX)? {
                actor = actor.change(u)?;
            }
            if u.ratio(1, 8)? {
                actor.check(u.ratio(1, 4)?);
            }
            if !u.ratio(1, 5)? {
                break;
            }
            let snapshot = actor.look(u)?;
            if self.snapshots.len() == SNAPSHOTS_MAX {
                self.snapshots.swap_remove(u.choose_index(SNAPSHOTS_MAX)?);
            }
            self.snapshots.push(snapshot);
        }
        Ok(actor)
    }

    /// Something else that a slot can be filled from.
    fn other(&mut self) -> Result<Contents> {
        if !self.snapshots.is_empty() && self.u.ratio(2, 3)? {
            return Ok(self.u.choose(&self.snapshots)?.clone());
        }
        contents(self.u, self.stage)
    }

    /// Ends a run by a reset of any kind.
    fn end(&mut self, mut actor: Box<Actor>) -> Result<Box<Actor>> {
        let other = if self.u.ratio(1, 10)? { Some(self.other()?) } else { None };
        let u = &mut *self.u;
        let owner = if u.ratio(3, 4)? { Some(u.int_in_range(0..=2)?) } else { None };
        if u.ratio(1, 8)? {
            actor.fail_to_reset(u, other.as_ref())?;
        }
        let elsewhere = u.ratio(1, 16)?;
        actor = actor.here_or(elsewhere, move |actor| actor.reset(other.as_ref(), owner));
        actor.check(u.ratio(1, 8)?);
        if u.ratio(1, 16)? {
            // As pools do when memory is short.
            actor.slot.discard().expect("it can be discarded");
            actor.model.reset(&actor.slot, false, ResetKind::Discard);
            actor.check(false);
        }
        if u.ratio(1, 16)? {
            actor.check_growth();
        }
        Ok(actor)
    }
}

type Job = Box<dyn FnOnce(&mut Actor) + Send>;

/// Another thread. It is there before runs start: starting one causes page faults.
static ELSEWHERE: LazyLock<Mutex<Elsewhere>> = LazyLock::new(|| {
    let (jobs, todo) = mpsc::channel::<(Box<Actor>, Job)>();
    let (done, results) = mpsc::channel();
    std::thread::spawn(move || {
        for (mut actor, job) in todo {
            let job = std::panic::AssertUnwindSafe(|| job(&mut actor));
            let panic = std::panic::catch_unwind(job).err();
            if done.send((actor, panic)).is_err() {
                break;
            }
        }
    });
    Mutex::new(Elsewhere { jobs, results })
});

struct Elsewhere {
    jobs: Sender<(Box<Actor>, Job)>,
    results: Receiver<(Box<Actor>, Option<Box<dyn std::any::Any + Send>>)>,
}

impl Actor {
    fn reset(&mut self, other: Option<&Contents>, owner: Option<u64>) {
        match other {
            Some((image, sizes)) => {
                let owner = owner.unwrap_or(7);
                self.slot.reset_to(image, sizes, Owner(owner.into())).expect("it can be filled");
                self.model.reset_to(image, sizes, owner);
            }
            None => {
                let report = self.slot.reset().expect("it can be reset");
                let cleared = owner.is_some() && owner != self.model.owner;
                if let Some(owner) = owner {
                    self.slot.hand_to(Owner(owner.into()));
                    self.model.owner = Some(owner);
                }
                self.model.reset(&self.slot, cleared, report.by);
            }
        }
        assert!(self.slot.is_whole());
        assert_eq!(self.slot.differs_from_image(), Ok(None), "{self:?}");
    }

    /// Resets while system calls fail: the slot is as before, or refuses to be used,
    /// or nothing was amiss.
    fn fail_to_reset(&mut self, u: &mut Unstructured<'_>, other: Option<&Contents>) -> Result<()> {
        let nth = u.int_in_range(0..=9)?;
        let code = *u.choose(&[libc::ENOMEM, libc::EAGAIN, libc::EINTR, libc::EPERM])?;
        let slot = &mut self.slot;
        let mut attempt = || match other {
            Some((image, sizes)) => slot.reset_to(image, sizes, Owner(0)),
            None => slot.reset(),
        };
        let all = u.ratio(1, 4)?;
        let outcome = match all {
            true => fail_from(nth, code, &mut attempt).value,
            false => fail_nth(nth, code, &mut attempt).value,
        };
        match (outcome, other) {
            (Ok(report), None) => self.model.reset(&self.slot, false, report.by),
            (Ok(_), Some((image, sizes))) => self.model.reset_to(image, sizes, 0),
            (Err(_), _) if self.slot.is_whole() && self.sizes() == self.model.now => (),
            (Err(_), _) => {
                // At least one memory has lost what it had, and says so.
                let mut grown = (0..self.slot.memory_count())
                    .map(|i| self.slot.grow_memory(i, self.slot.memory_max(i)));
                let refused = grown.any(|result| result == Err(PagesError::ResetIncomplete));
                assert!(refused || self.slot.memory_count() == 0, "{self:?}: {all} {nth}");
                return Ok(());
            }
        }
        self.check(false);
        // What follows was written after a reset, perhaps.
        self.announced = false;
        Ok(())
    }

    /// Writes where earlier runs have written.
    fn haunt(mut self: Box<Self>, u: &mut Unstructured<'_>) -> Result<Box<Self>> {
        let at = *u.choose(&self.haunts)?;
        if !self.model.ranges().iter().any(|range| range.contains(&at)) {
            return Ok(self);
        }
        let byte = [u.arbitrary()?];
        match u.int_in_range(0..=15)? {
            0 | 1 => {
                let is_placed = u.arbitrary()?;
                self.apply(&Change::Kernel { at, bytes: byte.into(), is_placed });
            }
            2 | 3 => {
                self.apply(&Change::Undo { range: at / PAGE * PAGE..at / PAGE * PAGE + PAGE });
            }
            4 => {
                // After this, no page of a memory is new.
                let zones = self.model.zones.memories.iter().zip(&self.model.now);
                for range in zones.map(|(zone, size)| zone.start..zone.start + size) {
                    advise(&self.slot, &range, libc::MADV_COLLAPSE);
                }
                let at = self.model.place(u)?;
                self.write(at, &byte);
            }
            5 if self.announced => {
                let change = Change::Store { at: self.model.place(u)?, bytes: byte.into() };
                return Ok(self.enter_elsewhere(change));
            }
            _ => self.write(at, &byte),
        }
        Ok(self)
    }

    fn change(mut self: Box<Self>, u: &mut Unstructured<'_>) -> Result<Box<Self>> {
        let elsewhere = u.ratio(1, 10)?;
        let change = Change::choose(u, &self.model)?;
        if elsewhere && !self.viewed_for_good && self.announced {
            // As the contract of slots asks.
            match u.int_in_range(0..=3)? {
                0 => {
                    self.slot.note_external_writer(ExternalWriter::ForGood);
                    self.viewed_for_good = true;
                }
                1 => return Ok(self.enter_elsewhere(change)),
                _ => self.slot.note_external_writer(ExternalWriter::UntilReset),
            }
        }
        Ok(self.here_or(elsewhere, move |actor| actor.apply(&change)))
    }

    /// Another thread runs code in the slot.
    fn enter_elsewhere(self: Box<Self>, change: Change) -> Box<Self> {
        self.here_or(true, move |actor| {
            actor.slot.enter();
            actor.apply(&change);
        })
    }

    /// Does something on this thread or on the other one.
    fn here_or(
        mut self: Box<Self>,
        elsewhere: bool,
        what: impl FnOnce(&mut Self) + Send + 'static,
    ) -> Box<Self> {
        if !elsewhere {
            what(&mut self);
            return self;
        }
        let other = ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
        other.jobs.send((self, Box::new(what))).expect("it works as long as we do");
        let (actor, panic) = other.results.recv().expect("it works as long as we do");
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
        actor
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Store { at, bytes } => self.write(*at, bytes),
            Change::Pages { range, step, byte } => {
                for page in range.clone().step_by((step * PAGE) as usize) {
                    self.write(page, &[*byte; PAGE as usize]);
                }
            }
            Change::Touch { range } => {
                for page in range.clone().step_by(PAGE as usize) {
                    let at = self.slot.start().wrapping_add(page as usize);
                    // SAFETY: ranges lie in memories as long as they are now.
                    unsafe { at.write_volatile(at.read_volatile()) };
                }
            }
            Change::Read { range } => {
                let sum = bytes(&self.slot, range.clone()).iter().fold(0u8, |a, b| a ^ b);
                std::hint::black_box(sum);
            }
            Change::Undo { range } => {
                let fresh = fresh_bytes(&self.model.image, range.clone());
                self.write(range.start, &fresh);
            }
            Change::Grow { memory, size } => {
                self.slot.grow_memory(*memory, *size).expect("it can grow");
                self.model.grow(*memory, *size);
            }
            Change::Kernel { at, bytes, is_placed } => {
                // No fault of this thread shows that.
                if *is_placed {
                    let start = self.slot.start().addr() + *at as usize;
                    self.slot.note_external_write(start..start + bytes.len());
                } else {
                    self.slot.note_external_writer(ExternalWriter::UntilReset);
                }
                kernel_writes(&self.slot, *at, bytes);
                self.model.write(*at, bytes);
            }
            Change::Advise { range, advice } => {
                if *advice == libc::MADV_POPULATE_WRITE {
                    self.slot.note_external_writer(ExternalWriter::UntilReset);
                }
                advise(&self.slot, range, *advice);
            }
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let to = self.slot.start().wrapping_add(at as usize);
        // SAFETY: places lie in memories as long as they are now, and only one thread
        // at a time uses a slot.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
        self.model.write(at, bytes);
    }

    fn sizes(&self) -> Vec<u64> {
        (0..self.slot.memory_count()).map(|index| self.slot.memory_size(index)).collect()
    }

    /// Asserts that the slot is as the model, looking at all pages, or, so as not to
    /// change which are there, at those that are there.
    #[track_caller]
    fn check(&self, all: bool) {
        assert_eq!(self.sizes(), self.model.now, "{self:?}");
        let open: Vec<u64> =
            (0..self.model.now.len()).map(|index| self.slot.memory_accessible(index)).collect();
        for (index, zone) in self.model.zones.memories.iter().enumerate() {
            let (open, legal) = (open[index], self.model.open(index));
            assert!(legal.contains(&open), "{open:#x} is accessible, not {legal:x?}: {self:?}");
            if let Some(last) = open.checked_sub(1) {
                assert!(accessible(&self.slot, zone.start + last), "its end: {self:?}");
            }
            for past in [0, PAGE, RESERVED / 2, RESERVED] {
                let beyond = zone.start + (open + past).min(zone.reservation);
                assert!(!accessible(&self.slot, beyond), "{past:#x} past its end: {self:?}");
            }
        }
        // Nothing writes what is accessible beyond a memory.
        for range in self.model.ranges_of(&open) {
            for run in if all { vec![range] } else { populated(&self.slot, range) } {
                let (found, wanted) = (bytes(&self.slot, run.clone()), self.model.get(run.clone()));
                if found != wanted {
                    let at = (0..found.len()).find(|&at| found[at] != wanted[at]).unwrap();
                    let (found, wanted) = (found[at], wanted[at]);
                    let at = run.start + at as u64;
                    panic!("slot offset {at:#x} is {found:#x}, not {wanted:#x}: {self:?}");
                }
            }
        }
    }

    /// Asserts that what the slot has otherwise than its image is found; the image of what it
    /// has.
    fn look(&mut self, u: &mut Unstructured<'_>) -> Result<Contents> {
        let changed = self.slot.changed_pages().expect("pages are found");
        assert_eq!(changed, self.model.changed(), "{self:?}");
        let at = self.model.place(u)?;
        let patched = at >= self.model.zones.image_floor && u.ratio(1, 3)?;
        let byte = [u.arbitrary()?];
        let patches: &[(u64, &[u8])] = if patched { &[(at, &byte)] } else { &[] };
        let image =
            self.slot.snapshot("snapshot", patches, ImageForm::Branch).expect("an image is made");
        for range in self.model.image_ranges() {
            let mut wanted = self.model.get(range.clone()).to_vec();
            if patched && range.contains(&at) {
                wanted[(at - range.start) as usize] = byte[0];
            }
            assert!(fresh_bytes(&image, range.clone()) == wanted, "{range:x?}: {self:?}");
        }
        let sizes = self.model.now.iter().zip(&self.model.sizes);
        let sizes = sizes.map(|(&initial, size)| MemorySize { initial, ..*size }).collect();
        Ok((image, sizes))
    }

    /// Asserts that growth uncovers zeros, and nothing lies behind.
    fn check_growth(&mut self) {
        for index in 0..self.slot.memory_count() {
            let maximum = self.slot.memory_max(index);
            self.slot.grow_memory(index, maximum).expect("it can grow");
            self.model.grow(index, maximum);
        }
        self.check(true);
        self.reset(None, None);
    }
}

impl std::fmt::Debug for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { slot, model, .. } = self;
        write!(f, "{}; sizes {:x?}, {:x?}", slot.strategy(), model.sizes, model.now)?;
        write!(f, ", image {:x?}, zones {:x?}", model.image.extents(), model.zones)
    }
}

/// What is done to a slot in one go.
enum Change {
    Store {
        at: u64,
        bytes: Vec<u8>,
    },
    /// Each `step`th page is filled.
    Pages {
        range: Range<u64>,
        step: u64,
        byte: u8,
    },
    /// Pages become private and stay equal.
    Touch {
        range: Range<u64>,
    },
    Read {
        range: Range<u64>,
    },
    /// The image's bytes are written.
    Undo {
        range: Range<u64>,
    },
    Grow {
        memory: usize,
        size: u64,
    },
    /// The kernel writes, asked by the running side.
    Kernel {
        at: u64,
        bytes: Vec<u8>,
        /// Whether is said where.
        is_placed: bool,
    },
    Advise {
        range: Range<u64>,
        advice: i32,
    },
}

impl Change {
    fn choose(u: &mut Unstructured<'_>, model: &Model) -> Result<Self> {
        let at = model.place(u)?;
        let rest = model.ranges().into_iter().find(|range| range.contains(&at));
        let rest = at..rest.map_or(at, |range| range.end);
        let pages = |u: &mut Unstructured<'_>, max: u64| -> Result<Range<u64>> {
            let length = u.int_in_range(1..=max)? * PAGE;
            let start = rest.start / PAGE * PAGE;
            Ok(start..rest.end.min(start + length))
        };
        let bytes = |u: &mut Unstructured<'_>| -> Result<Vec<u8>> {
            let length = u.int_in_range(1..=16)?.min(rest.end - rest.start);
            Ok(vec![u.arbitrary()?; length as usize])
        };
        Ok(match u.int_in_range(0..=13)? {
            0..=2 => Self::Store { at, bytes: bytes(u)? },
            3 | 4 => {
                let max = *u.choose(&[1, 8, 100, 600])?;
                let range = pages(u, max)?;
                Self::Pages { range, step: u.int_in_range(1..=9)?, byte: u.arbitrary()? }
            }
            5 => Self::Touch { range: pages(u, 40)? },
            6 => Self::Read { range: pages(u, 200)? },
            7 => Self::Undo { range: pages(u, 40)? },
            8 | 9 if !model.now.is_empty() => {
                let memory = u.choose_index(model.now.len())?;
                let (now, maximum) = (model.now[memory], model.sizes[memory].maximum);
                let size = u.int_in_range(now / PAGE..=maximum / PAGE)? * PAGE;
                Self::Grow { memory, size }
            }
            10 => Self::Kernel { at, bytes: bytes(u)?, is_placed: u.arbitrary()? },
            11 | 12 => {
                let advice = [
                    libc::MADV_COLLAPSE,
                    libc::MADV_PAGEOUT,
                    libc::MADV_COLD,
                    libc::MADV_POPULATE_WRITE,
                    libc::MADV_POPULATE_READ,
                ];
                let range = pages(u, 1024)?;
                // A huge page needs its place.
                let start = if u.arbitrary()? { range.start } else { range.start & !0x1f_ffff };
                let start = start.max(model.zones.stack.start);
                Self::Advise { range: start..range.end, advice: *u.choose(&advice)? }
            }
            _ => Self::Store { at, bytes: vec![0xee] },
        })
    }
}

impl Model {
    fn new(
        zones: &SlotConfig,
        strategies: &Strategies,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Self {
        let config = strategies.config();
        let mut model = Self {
            zones: zones.clone(),
            stack_kept: config.stack_kept,
            clear_stack: config.clear_stack,
            growth: config.growth,
            image: Arc::clone(image),
            sizes: sizes.to_vec(),
            now: Vec::new(),
            most: Vec::new(),
            parts: Vec::new(),
            fresh: Vec::new(),
            written: Vec::new(),
            owner: None,
        };
        model.fill();
        model
    }

    /// Learns what a fresh slot has.
    fn fill(&mut self) {
        self.now = self.sizes.iter().map(|size| size.initial).collect();
        self.most = self.now.clone();
        let maxima: Vec<u64> = self.sizes.iter().map(|size| size.maximum).collect();
        let ranges = self.ranges_of(&maxima).into_iter();
        self.fresh = ranges.map(|range| (range.start, fresh_bytes(&self.image, range))).collect();
        self.parts = self.fresh.clone();
        self.written.clear();
    }

    /// Becomes a fresh slot.
    fn start(&mut self) {
        for (now, size) in self.now.iter_mut().zip(&self.sizes) {
            *now = size.initial;
        }
        for range in self.written.drain(..) {
            let index = self.parts.iter().rposition(|(start, _)| *start <= range.start);
            let index = index.expect("a place in the slot");
            let (start, part) = &mut self.parts[index];
            let range = (range.start - *start) as usize..(range.end - *start) as usize;
            part[range.clone()].copy_from_slice(&self.fresh[index].1[range]);
        }
    }

    fn reset_to(&mut self, image: &Arc<Image>, sizes: &[MemorySize], owner: u64) {
        self.image = Arc::clone(image);
        self.sizes = sizes.to_vec();
        self.owner = Some(owner);
        self.fill();
    }

    /// Becomes a fresh slot, but for the link zone and the end of the stack, of which
    /// each page is as it was or zero; zero, if it is the owner's no longer.
    fn reset(&mut self, slot: &Slot, cleared: bool, by: ResetKind) {
        let zones = self.zones.clone();
        let (stack, link) = (zones.stack, zones.link);
        let kept = match self.clear_stack {
            true => stack.end..stack.end,
            false => stack.end.saturating_sub(self.stack_kept).max(stack.start)..stack.end,
        };
        let kept: Vec<_> =
            [kept, link].map(|range| (range.clone(), self.get(range).to_vec())).into();
        self.start();
        if by == ResetKind::Remap {
            self.most = self.now.clone();
        }
        for (range, before) in kept.into_iter().filter(|_| !cleared) {
            let pages = range.step_by(PAGE as usize);
            for (page, before) in pages.zip(before.chunks_exact(PAGE as usize)) {
                if bytes(slot, page..page + PAGE) == before {
                    self.write(page, before);
                }
            }
        }
    }

    fn grow(&mut self, memory: usize, size: u64) {
        self.now[memory] = size;
        self.most[memory] = self.most[memory].max(size);
    }

    /// How much of a memory may be accessible.
    fn open(&self, memory: usize) -> RangeInclusive<u64> {
        let (now, MemorySize { initial, maximum }) = (self.now[memory], self.sizes[memory]);
        let most = match self.growth {
            GrowthKind::Kept | GrowthKind::Auto => return now..=self.most[memory],
            GrowthKind::Checked { accessible } => {
                accessible.unwrap_or(maximum).clamp(initial, maximum)
            }
            _ => 0,
        };
        now.max(most)..=now.max(most)
    }

    /// What is accessible to code now.
    fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges_of(&self.now)
    }

    /// What of it is in images.
    fn image_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let floor = self.zones.image_floor;
        self.ranges().into_iter().map(move |range| range.start.max(floor)..range.end)
    }

    /// Pages that are not as in a fresh slot.
    fn changed(&self) -> Vec<u64> {
        let mut changed = Vec::new();
        for range in self.image_ranges() {
            let index = self.parts.iter().rposition(|(start, _)| *start <= range.start);
            let index = index.expect("as in `part`");
            let start = self.parts[index].0;
            for page in range.step_by(PAGE as usize) {
                let place = (page - start) as usize..(page - start + PAGE) as usize;
                if self.parts[index].1[place.clone()] != self.fresh[index].1[place] {
                    changed.push(page);
                }
            }
        }
        changed
    }

    fn ranges_of(&self, sizes: &[u64]) -> Vec<Range<u64>> {
        let first = self.zones.base + sizes.first().unwrap_or(&0);
        let memories = self.zones.memories.iter().zip(sizes);
        let further = memories.skip(1).map(|(zone, size)| zone.start..zone.start + size);
        std::iter::once(self.zones.stack.start..first).chain(further).collect()
    }

    /// A place that can be written: in a small zone or in a memory.
    fn place(&self, u: &mut Unstructured<'_>) -> Result<u64> {
        let zones = &self.zones;
        let mut choices = vec![
            zones.stack.clone(),
            zones.stack.end - 8 * PAGE..zones.stack.end,
            zones.link.clone(),
            zones.image_floor..zones.base,
        ];
        for (zone, size) in zones.memories.iter().zip(&self.now) {
            if *size > 0 {
                choices.push(zone.start..zone.start + size);
                choices.push(zone.start..zone.start + size.min(&(8 * PAGE)));
                choices.push(zone.start + size - PAGE..zone.start + size);
            }
        }
        let zone = choices[u.choose_index(choices.len())?].clone();
        u.int_in_range(zone.start..=zone.end - 1)
    }

    fn get(&self, range: Range<u64>) -> &[u8] {
        let (start, bytes) = self.part(range.start);
        &bytes[(range.start - start) as usize..(range.end - start) as usize]
    }

    fn part(&self, at: u64) -> &(u64, Vec<u8>) {
        self.parts.iter().rev().find(|(start, _)| *start <= at).expect("a place in the slot")
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let (start, part) =
            self.parts.iter_mut().rev().find(|(start, _)| *start <= at).expect("as in `part`");
        self.written.push(at..at + bytes.len() as u64);
        let at = (at - *start) as usize;
        part[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

fn strategies(u: &mut Unstructured<'_>) -> Result<Strategies> {
    let growths = [
        GrowthKind::Mprotect,
        GrowthKind::Checked { accessible: None },
        GrowthKind::Checked { accessible: Some(30 * PAGE) },
        GrowthKind::Kept,
        GrowthKind::Auto,
        GrowthKind::Ftruncate,
        GrowthKind::Fault,
    ];
    let config = StrategyConfig {
        reset: *u.choose(&ResetKind::ALL)?,
        growth: *u.choose(&growths)?,
        code: CodeBounds::Checked,
        copy_on_write: u.ratio(15, 16)?,
        resident_max: *u.choose(&[u64::MAX, 0, 3 * PAGE, 64 * PAGE])?,
        stack_kept: *u.choose(&[8 * PAGE, 0, PAGE, 64 * PAGE])?,
        clear_stack: u.ratio(1, 8)?,
        deltas: *u.choose(&DeltaTracker::ALL)?,
        fault_threads: *u.choose(&[0, 0, 1, 2])?,
        fault_eager: u.ratio(1, 4)?,
    };
    Ok(config.check().expect("legal strategies"))
}

/// An image that was made of bytes, and sizes that fit it.
fn contents(u: &mut Unstructured<'_>, stage: &Stage) -> Result<Contents> {
    let image = &stage.images[u.choose_index(stage.images.len())?];
    let mut sizes = Vec::new();
    for zone in &stage.zones.memories {
        let end = zone.start + zone.reservation;
        let extents =
            image.extents().iter().filter(|extent| (zone.start..end).contains(&extent.end));
        let least = extents.map(|extent| extent.end - zone.start).max().unwrap_or(0);
        let limit = *u.choose(&[16 * PAGE, 0, 64 * PAGE, RESERVED])?;
        let initial = match u.ratio(1, 8)? {
            // There is room for a huge page.
            true => RESERVED,
            false => u.int_in_range(least / PAGE..=least.max(limit) / PAGE)? * PAGE,
        };
        let room = *u.choose(&[64 * PAGE, 0, RESERVED])?;
        let maximum = u.int_in_range(initial / PAGE..=(initial + room).min(RESERVED) / PAGE)?;
        sizes.push(MemorySize { initial, maximum: maximum * PAGE });
    }
    Ok((Arc::clone(image), sizes))
}

fn stage(memories: u64) -> Stage {
    let base = 0x6_0000;
    let distance = RESERVED + 16 * PAGE;
    let zone = |index: u64| MemoryZone {
        start: base + index * distance,
        reservation: RESERVED,
        guard: 16 * PAGE,
    };
    let zones = SlotConfig {
        stack: 0x1_0000..0x3_0000,
        link: 0x3_0000..0x3_1000,
        image_floor: 0x3_1000,
        base,
        memories: (0..memories).map(zone).collect(),
        size: base + memories.max(1) * distance,
    };
    let pattern = |seed: u64, length: u64| -> Vec<u8> {
        (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 7) ^ seed) as u8 | 1).collect()
    };
    let image = |extents: Vec<Range<u64>>, runs: &[(u64, u64)]| {
        let runs: Vec<_> = runs.iter().map(|&(at, len)| (at, pattern(at, len))).collect();
        let runs = runs.iter().map(|(at, bytes)| (*at, &bytes[..]));
        Image::with_extents("fuzz", extents, runs).expect("an image is made")
    };
    let floor = zones.image_floor;
    let mut images = vec![
        image(vec![base..base], &[]),
        image(vec![floor..base], &[(floor + 9, 100), (base - 5 * PAGE, 5 * PAGE)]),
    ];
    if memories > 0 {
        let dense = base - 3 * PAGE..base + 40 * PAGE;
        let run = (dense.start, dense.end - dense.start);
        let wide = base - 2 * PAGE..base + 700 * PAGE;
        let far = [0, 300, 301, 650].map(|page| (base + page * PAGE + 5, PAGE / 2));
        let large = (base, 768 * PAGE);
        images.push(image(vec![dense.clone()], &[run]));
        images.push(image(vec![wide], &far));
        images.push(image(vec![base..base + 16 * PAGE], &[]));
        images.push(image(vec![base..base + large.1], &[large]));
        images.push(file_image(dense, &pattern(77, run.1)));
    }
    if memories > 1 {
        let starts: Vec<u64> = zones.memories.iter().map(|zone| zone.start).collect();
        let extents = starts.iter().map(|start| *start..start + 20 * PAGE).collect();
        let runs: Vec<_> = starts.iter().map(|start| (start + 11, 18 * PAGE)).collect();
        images.push(image(extents, &runs));
    }
    Stage { zones, images }
}

/// An image that a holder of the descriptor could still cut short: strategies
/// read copies of its pages.
fn file_image(extent: Range<u64>, bytes: &[u8]) -> Arc<Image> {
    let path = std::env::temp_dir().join(format!(
        "pagefork-fuzz-{}-{:#x}",
        std::process::id(),
        extent.end
    ));
    let mut file = File::create(&path).expect("a temporary file");
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).expect("our own file");
    file.write_all(bytes).expect("room in the temporary directory");
    let file = File::open(&path).expect("our own file");
    std::fs::remove_file(&path).expect("our own file");
    Image::from_file(file.into(), 0, extent).expect("a file of ours is an image")
}
