//! What the kernel offers, and what programs do without it: all pages of 16 MiB are written, some of them again, and
//! then restored.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{PAGES, SHARES, Share, THREADS};
use crate::crowd::{self, Job, Maker};
use crate::grid::Grid;
use crate::kernel::{
    Access, Delivery, Handled, Mapping, Mode, PAGE, PageMap, Pages, Readers, Serve, Userfault,
    handle_signals,
};
use crate::measure::{Clock, Options};

const LENGTH: usize = PAGES as usize * PAGE;

/// Bit of an entry of the page map: the page was written since the bits were cleared.
const SOFT_DIRTY: u32 = 55;

/// A way to know what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// All pages are compared with those that are restored.
    Compare,
    /// A copy of the page exists; to restore is to discard it.
    PrivateScan,
    /// Pages are read-only; the handler of SIGSEGV makes one writable.
    Mprotect,
    /// Pages are protected by userfaultfd; the handler of SIGBUS lifts it from one.
    ProtectInThread,
    /// The same, lifted by so many threads that do nothing else.
    ProtectByThreads(usize),
    /// The kernel lifts it itself, and is asked where.
    ProtectAsync,
    /// The kernel clears a bit in each entry of the page map of the process, and sets it again.
    SoftDirty,
    /// Whoever writes marks a byte of the page.
    Cards,
}

const TRACKERS: [(&str, Kind); 10] = [
    ("comparing all pages", Kind::Compare),
    ("scan of private pages", Kind::PrivateScan),
    ("mprotect, SIGSEGV", Kind::Mprotect),
    ("write protection, SIGBUS", Kind::ProtectInThread),
    ("write protection, 1 handler", Kind::ProtectByThreads(1)),
    ("write protection, 2 handlers", Kind::ProtectByThreads(2)),
    ("write protection, 4 handlers", Kind::ProtectByThreads(4)),
    ("write protection, asynchronous", Kind::ProtectAsync),
    ("soft-dirty", Kind::SoftDirty),
    ("cards", Kind::Cards),
];

/// Times all that this system has.
pub(super) fn table(options: &Options) -> Grid {
    let columns = TRACKERS.iter().map(|(name, _)| *name);
    let mut grid = Grid::new("of 4,096 private pages", TRACKERS.len(), columns);
    let base: Vec<u8> = (0..LENGTH).map(|index| (index / PAGE) as u8).collect();
    let mut trackers = Vec::new();
    for (name, kind) in TRACKERS {
        match Tracker::new(name, kind, &base).and_then(|tracker| tracker.check().map(|()| tracker))
        {
            Ok(tracker) => trackers.push(tracker),
            Err(why) => grid
                .notes
                .push(format!("Not measured, because this system has none: {name} ({why}).")),
        }
    }
    for share in &SHARES {
        for threads in options.threads(&THREADS) {
            let name = format!("{}, {}", share.name, crowd::on_threads(threads));
            let able = trackers.iter().filter(|tracker| tracker.is_able(share, threads));
            let makers = able
                .map(|tracker| -> Maker<'_, 4> { (tracker.name, Box::new(|| tracker.job(share))) });
            let parts = ["beginning to note", "the run", "taking the set", "restoring"];
            let makers: Vec<_> = makers.collect();
            crowd::contest_in_parts(&mut grid, &name, parts, options.size, threads, &makers);
        }
    }
    grid.notes.push(
        "Read-only pages are not measured where they would need more maps than a process may have, nor \
         soft-dirty bits on several threads, since those of the process are cleared together."
            .to_owned(),
    );
    grid
}

/// A tracker, with what all memories have together whose writes it notes.
struct Tracker<'a> {
    name: &'static str,
    kind: Kind,
    base: &'a [u8],
    /// With the bytes of `base`.
    file: Option<OwnedFd>,
    page_map: PageMap,
    faults: Option<Arc<Userfault>>,
    notes: Arc<Notes>,
    _readers: Option<Readers>,
}

/// What was noted, of each memory by its address.
#[derive(Default)]
struct Notes(RwLock<HashMap<u64, Arc<Noted>>>);

/// A bit for each page.
struct Noted([AtomicU64; PAGES as usize / 64]);

impl Noted {
    fn note(&self, page: usize) {
        self.0[page / 64].fetch_or(1 << (page % 64), Relaxed);
    }

    fn take(&self, pages: &mut Vec<u32>) {
        for (index, word) in self.0.iter().enumerate() {
            let mut bits = word.swap(0, Relaxed);
            while bits != 0 {
                pages.push(index as u32 * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

impl Notes {
    /// Those of the memory that an address is in, each of which starts at a multiple of its size.
    fn of(&self, address: u64) -> Arc<Noted> {
        let start = address & !(LENGTH as u64 - 1);
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.get(&start).expect("it is registered"))
    }
}

impl<'a> Tracker<'a> {
    /// # Errors
    /// Why this system has none.
    fn new(name: &'static str, kind: Kind, base: &'a [u8]) -> io::Result<Self> {
        let delivery = match kind {
            Kind::ProtectInThread => Some(Delivery::Signals),
            Kind::ProtectByThreads(_) => Some(Delivery::Messages),
            Kind::ProtectAsync => Some(Delivery::Kernel),
            _ => None,
        };
        let faults = delivery.map(Userfault::new).transpose()?.map(Arc::new);
        let notes = Arc::new(Notes::default());
        let readers = match (kind, &faults) {
            (Kind::ProtectByThreads(count), Some(faults)) => {
                let (lifted, notes) = (Arc::clone(faults), Arc::clone(&notes));
                let serve: Arc<Serve> =
                    Arc::new(move |address| lift(&lifted, &notes.of(address), address));
                Some(Readers::new(faults, count, &serve))
            }
            _ => None,
        };
        let file = match kind {
            Kind::PrivateScan => {
                let mut file = File::from(memfd_create("base", MemfdFlags::CLOEXEC)?);
                file.write_all(base)?;
                Some(OwnedFd::from(file))
            }
            _ => None,
        };
        let page_map = PageMap::open()?;
        Ok(Self { name, kind, base, file, page_map, faults, notes, _readers: readers })
    }

    /// Whether so many threads can do it.
    fn is_able(&self, share: &Share, threads: u32) -> bool {
        /// Maps that the process has for other things.
        const OTHERS: u64 = 2000;
        match self.kind {
            Kind::Mprotect if share.step > 1 => {
                let maps = u64::from(threads) * (2 * u64::from(share.count) + 1);
                let max = std::fs::read_to_string("/proc/sys/vm/max_map_count");
                let max = max.ok().and_then(|max| max.trim().parse().ok()).unwrap_or(65_530);
                maps + OTHERS < max
            }
            Kind::SoftDirty => threads == 1,
            _ => true,
        }
    }

    /// Goes through what every tracker has to do.
    ///
    /// # Errors
    /// Why this system has none.
    ///
    /// # Panics
    /// If it finds what was read, or not what was written.
    fn check(&self) -> io::Result<()> {
        let mut memory = self.memory()?;
        let found = |memory: &mut Memory<'_>, written: &[u32]| {
            memory.start()?;
            let sum = memory.read();
            written.iter().for_each(|&page| memory.write(page, sum | 1 << 63));
            let pages = memory.take()?;
            memory.restore(&pages);
            assert!(
                memory.mapping.bytes(0..LENGTH) == self.base,
                "{}: all is as before",
                self.name
            );
            io::Result::Ok(pages)
        };
        let all: Vec<u32> = (0..PAGES).collect();
        if self.kind == Kind::SoftDirty {
            memory.start()?;
            memory.write(1, 1 << 63);
            if memory.take()? != [1] {
                let why = "the kernel keeps no such bits";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            memory.restore(&[1]);
        }
        // What is read is not found, and what was written before the set was taken is found when it is again.
        for written in [&[][..], &[0, 3, 4, 77, PAGES - 1], &[4, 5], &[4], &[], &all, &[63, 64]] {
            assert_eq!(found(&mut memory, written)?, written, "{}: pages written", self.name);
        }
        Ok(())
    }

    /// Memory whose pages are all written.
    fn memory(&self) -> io::Result<Memory<'_>> {
        let mut mapping = match &self.file {
            Some(file) => Mapping::of_file(file.try_clone()?, LENGTH),
            None => Mapping::new(LENGTH, Access::Write, false),
        };
        if self.file.is_none() {
            mapping.write(0, self.base);
        }
        let addresses = mapping.addresses();
        let noted = Arc::new(Noted([const { AtomicU64::new(0) }; PAGES as usize / 64]));
        if let Some(faults) = &self.faults {
            faults.register(addresses.clone(), Mode::Protected)?;
            let mut all = self.notes.0.write().unwrap_or_else(PoisonError::into_inner);
            all.insert(addresses.start, Arc::clone(&noted));
        }
        let (start, own) = (addresses.start, Arc::clone(&noted));
        let handled = match self.kind {
            Kind::Mprotect => Some(handle_signals(
                addresses,
                Box::new(move |address| {
                    let page = (address - start) as usize / PAGE;
                    own.note(page);
                    Mapping::lift(address);
                }),
            )),
            Kind::ProtectInThread => {
                let faults = Arc::clone(self.faults.as_ref().expect("it has one"));
                Some(handle_signals(
                    addresses,
                    Box::new(move |address| lift(&faults, &own, address)),
                ))
            }
            _ => None,
        };
        let cards = vec![0; PAGES as usize];
        Ok(Memory { tracker: self, mapping, noted, cards, _handled: handled })
    }

    /// What a thread does again and again.
    fn job(&self, share: &Share) -> Job<'_, 4> {
        let mut memory = self.memory().expect("it was tried");
        let written: Vec<u32> = (0..share.count).map(|index| index * share.step).collect();
        let mut value = 1 << 63;
        Box::new(move || {
            value += 1;
            let mut times = [Clock::Wall.now(); 5];
            memory.start().expect("it was tried");
            times[1] = Clock::Wall.now();
            match &*written {
                [] => _ = memory.read(),
                written => written.iter().for_each(|&page| memory.write(page, value)),
            }
            times[2] = Clock::Wall.now();
            let pages = memory.take().expect("it was tried");
            times[3] = Clock::Wall.now();
            memory.restore(&pages);
            times[4] = Clock::Wall.now();
            assert_eq!(pages, written, "{}: pages written", self.name);
            std::array::from_fn(|part| times[part + 1] - times[part])
        })
    }
}

/// Notes the page of an address, and lets writes to it through. Async-signal-safe.
fn lift(faults: &Userfault, noted: &Noted, address: u64) {
    let start = address & !(PAGE as u64 - 1);
    noted.note(start as usize % LENGTH / PAGE);
    faults.protect(start..start + PAGE as u64, false).expect("it is registered");
}

/// Memory whose writes are noted.
struct Memory<'a> {
    tracker: &'a Tracker<'a>,
    /// Its start is a multiple of its size.
    mapping: Mapping,
    noted: Arc<Noted>,
    cards: Vec<u8>,
    _handled: Option<Handled>,
}

impl Memory<'_> {
    /// Writes are noted from now on. All is as in the base.
    fn start(&mut self) -> io::Result<()> {
        let Self { tracker, mapping, .. } = self;
        let addresses = mapping.addresses();
        match tracker.kind {
            Kind::Compare | Kind::PrivateScan => Ok(()),
            Kind::Mprotect => {
                mapping.protect(0..LENGTH, Access::Read);
                Ok(())
            }
            Kind::ProtectInThread | Kind::ProtectByThreads(_) => {
                tracker.faults.as_ref().expect("it has one").protect(addresses, true)
            }
            Kind::ProtectAsync => tracker.page_map.protect_written(addresses),
            Kind::SoftDirty => std::fs::write("/proc/self/clear_refs", "4"),
            Kind::Cards => {
                self.cards.fill(0);
                Ok(())
            }
        }
    }

    fn write(&mut self, page: u32, value: u64) {
        self.mapping.set_word(page as usize * PAGE + page as usize * 8 % PAGE, value);
        if self.tracker.kind == Kind::Cards {
            self.cards[page as usize] = 1;
        }
    }

    /// The sum of a word of each page.
    fn read(&self) -> u64 {
        let words = (0..PAGES as usize).map(|page| self.mapping.word(page * PAGE));
        words.fold(0, u64::wrapping_add)
    }

    /// The pages that were written, ascending.
    fn take(&mut self) -> io::Result<Vec<u32>> {
        let Self { tracker, mapping, .. } = self;
        let Tracker { kind, base, page_map, .. } = tracker;
        let addresses = mapping.addresses();
        let start = addresses.start;
        let number = |address: u64| ((address - start) / PAGE as u64) as u32;
        let mut pages = Vec::new();
        let mut find = |what| {
            page_map.find(addresses.clone(), what, |found| {
                pages.extend(number(found.start)..number(found.end));
            })
        };
        match kind {
            Kind::PrivateScan => find(Pages::Private)?,
            Kind::ProtectAsync => find(Pages::Written)?,
            Kind::SoftDirty => {
                page_map.with_bit(addresses, SOFT_DIRTY, |address| pages.push(number(address)))?;
            }
            Kind::Mprotect | Kind::ProtectInThread | Kind::ProtectByThreads(_) => {
                self.noted.take(&mut pages);
            }
            Kind::Compare => {
                let own = mapping.bytes(0..LENGTH).chunks_exact(PAGE);
                let differ = own.zip(base.chunks_exact(PAGE)).zip(0..);
                pages.extend(differ.filter(|((own, base), _)| own != base).map(|(_, page)| page));
            }
            Kind::Cards => {
                let cards = self.cards.iter().zip(0..);
                pages.extend(cards.filter(|(card, _)| **card != 0).map(|(_, page)| page));
            }
        }
        Ok(pages)
    }

    /// Makes these pages as in the base.
    fn restore(&mut self, pages: &[u32]) {
        for run in pages.chunk_by(|page, next| page + 1 == *next) {
            let start = run[0] as usize * PAGE;
            let range = start..start + run.len() * PAGE;
            match self.tracker.kind {
                Kind::PrivateScan => self.mapping.discard(range),
                _ => self.mapping.write(start, &self.tracker.base[range]),
            }
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let start = self.mapping.addresses().start;
        self.tracker.notes.0.write().unwrap_or_else(PoisonError::into_inner).remove(&start);
    }
}
