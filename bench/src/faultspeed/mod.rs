//! Ways to give a thread the memory of a snapshot again and again: what programs do without an engine, and
//! what Pagefork does, by the same script.
//!
//! The snapshot has 4 MiB. The script restores it, reads all, fills the first MiB, reads all, grows by a
//! MiB, reads all, fills that, and reads all. Of each part it touches 1, 10 or 100 % of the pages: to read is to
//! read a word of a page, to fill is to write all of it.

mod guest;
mod native;

use std::sync::Arc;

use crate::crowd::{self, Job, Maker};
use crate::grid::Grid;
use crate::kernel::{PAGE, userfaults_are_told};
use crate::measure::{Clock, Options};
use crate::report::Report;
use crate::shapes::Pages;

use guest::Guest;
use native::{Native, Pager, WAYS};

/// Pages of the snapshot, of its start that is filled, and that memory grows by.
const SNAPSHOT: u32 = 1024;
const FILLED: u32 = 256;
const GROWN: u32 = 256;

/// What pages are filled with.
const BYTE: u8 = 0xa5;

const THREADS: [u32; 5] = [1, 8, 16, 24, 64];
/// Of the pages, one in so many is touched: the first two are what less than all are.
const STEPS: [(&str, u32); 3] = [("1 %", 100), ("10 %", 10), ("100 %", 1)];

/// Memory that can be made equal to the snapshot.
trait Memory {
    /// Makes it as long as the snapshot, and equal to it.
    fn restore(&mut self);

    /// Makes it longer by [`GROWN`] pages of zeros.
    fn grow(&mut self);

    fn fill(&mut self, pages: Pages, byte: u8);

    /// What [`mix`] makes of these pages.
    fn read(&mut self, pages: Pages) -> u64;

    /// All of it.
    fn bytes(&mut self) -> &[u8];
}

/// Times the script by all ways, on many threads.
///
/// # Panics
/// If a way has not what the script says, but for the one that is known for it; or if that has.
pub fn run(options: &Options) -> Report {
    let snapshot = Arc::new(snapshot());
    let guests = guest::all(&snapshot);
    let mut notes: Vec<String> = guests.iter().filter_map(Guest::deviation).collect();
    let faults = userfaults_are_told();
    if let Err(error) = &faults {
        notes.push(format!(
            "Not measured, because this system tells of no faults ({error}): those by it."
        ));
    }
    let pagers: Vec<(&native::Way, Option<Pager>)> = WAYS
        .iter()
        .filter(|way| faults.is_ok() || !way.needs_faults())
        .map(|way| (way, way.pager(&snapshot)))
        .collect();
    let columns = guests.iter().map(|guest| &*guest.name);
    let columns = columns.chain(WAYS.iter().map(|way| way.name));
    let mut grid = Grid::new("the script", guests.len(), columns);
    grid.beside = WAYS.iter().filter(|way| !way.is_right()).count();
    for (pages, huge) in [("4 KiB pages", false), ("huge pages", true)] {
        for guest in &guests {
            check(&mut *guest.memory(), &snapshot, &guest.name, true);
        }
        for (way, pager) in &pagers {
            let wrong = check(
                &mut Native::new(way, pager.as_ref(), &snapshot, huge),
                &snapshot,
                way.name,
                way.is_right(),
            );
            if !way.is_right() && !huge {
                notes.push(format!(
                    "{}: of {SNAPSHOT} pages of the snapshot {wrong} have other bytes after a restore, so it is \
                     not compared.",
                    way.name
                ));
            }
        }
        for (share, step) in STEPS {
            let script = &Script::new(step, &snapshot);
            let mut makers: Vec<Maker<'_, 2>> = Vec::new();
            for guest in &guests {
                makers.push((&guest.name, Box::new(|| script.job(guest.memory(), true))));
            }
            for (way, pager) in &pagers {
                let snapshot = &snapshot;
                let job = move || {
                    let memory = Native::new(way, pager.as_ref(), snapshot, huge);
                    script.job(Box::new(memory), way.is_right())
                };
                makers.push((way.name, Box::new(job)));
            }
            for threads in options.threads(&THREADS) {
                let name = format!("{pages}, {share} touched, {}", crowd::on_threads(threads));
                let parts = ["restore", "the whole script"];
                crowd::contest_in_parts(&mut grid, &name, parts, options.size, threads, &makers);
            }
        }
    }
    grid.notes.append(&mut notes);
    Report::of_grid("faultspeed", &grid)
}

/// The bytes of the snapshot: of each page its number, in letters, again and again.
fn snapshot() -> Vec<u8> {
    let words = PAGE / size_of::<u64>();
    (0..SNAPSHOT).flat_map(|page| format!("{page:08x}").repeat(words).into_bytes()).collect()
}

/// Which word of a page is read, as an offset in memory.
fn word_of(page: u32) -> usize {
    page as usize * PAGE + page as usize * 8 % PAGE
}

/// What reading comes to after a further word.
fn mix(sum: u64, word: u64) -> u64 {
    sum.wrapping_mul(31).wrapping_add(word)
}

/// The pages of a part that are touched.
fn touched(first: u32, count: u32, step: u32) -> Pages {
    Pages { first, count: count.div_ceil(step), step }
}

/// Numbers of pages.
fn numbers(pages: Pages) -> impl Iterator<Item = u32> {
    (0..pages.count).map(move |index| pages.first + index * pages.step)
}

/// Memory as it is after each step of the script, four times.
fn states(step: u32, snapshot: &[u8]) -> [Vec<u8>; 4] {
    let restored = snapshot.to_vec();
    let filled = |memory: &[u8], first, count| {
        let mut memory = memory.to_vec();
        for page in numbers(touched(first, count, step)) {
            memory[page as usize * PAGE..][..PAGE].fill(BYTE);
        }
        memory
    };
    let written = filled(&restored, 0, FILLED);
    let grown = [&*written, &*vec![0; GROWN as usize * PAGE]].concat();
    let end = filled(&grown, SNAPSHOT, GROWN);
    [restored, written, grown, end]
}

/// The script, with what is read in it.
struct Script {
    step: u32,
    sums: [u64; 4],
}

impl Script {
    fn new(step: u32, snapshot: &[u8]) -> Self {
        let sums = states(step, snapshot).map(|memory| {
            let count = (memory.len() / PAGE) as u32;
            numbers(touched(0, count, step)).fold(0, |sum, page| {
                let word = memory[word_of(page)..].first_chunk().expect("it is in the page");
                mix(sum, u64::from_le_bytes(*word))
            })
        });
        Self { step, sums }
    }

    /// Runs it; in between `look` sees memory, and how many pages it has.
    fn run(&self, memory: &mut dyn Memory, mut look: impl FnMut(&mut dyn Memory, u32)) {
        look(memory, SNAPSHOT);
        memory.fill(touched(0, FILLED, self.step), BYTE);
        look(memory, SNAPSHOT);
        memory.grow();
        look(memory, SNAPSHOT + GROWN);
        memory.fill(touched(SNAPSHOT, GROWN, self.step), BYTE);
        look(memory, SNAPSHOT + GROWN);
    }

    /// What a thread does again and again: how long the restore has taken, and all of it.
    fn job<'a>(&'a self, mut memory: Box<dyn Memory + 'a>, is_right: bool) -> Job<'a, 2> {
        Box::new(move || {
            let start = Clock::Wall.now();
            memory.restore();
            let restored = Clock::Wall.now();
            let mut sums = self.sums.iter();
            self.run(&mut *memory, |memory, pages| {
                let sum = memory.read(touched(0, pages, self.step));
                let same = sums.next() == Some(&sum);
                assert!(same || !is_right, "memory is as the script says");
            });
            [restored - start, Clock::Wall.now() - start]
        })
    }
}

/// Compares each byte after each step, three times over; returns how many pages were wrong after the last restore.
fn check(memory: &mut dyn Memory, snapshot: &[u8], name: &str, is_right: bool) -> usize {
    let states = states(1, snapshot);
    let script = Script::new(1, snapshot);
    let mut wrong = 0;
    for _ in 0..3 {
        memory.restore();
        let mut states = states.iter();
        script.run(memory, |memory, pages| {
            let expected = states.next().expect("there are four");
            let found = memory.bytes();
            assert_eq!(
                found.len(),
                pages as usize * PAGE,
                "{name}: memory is as long as it should be"
            );
            let differing =
                found.chunks(PAGE).zip(expected.chunks(PAGE)).filter(|(a, b)| a != b).count();
            assert!(
                !is_right || differing == 0,
                "{name}: {differing} pages are not as the script says"
            );
            if expected.len() == snapshot.len() && expected[..] == snapshot[..] {
                wrong = differing;
            }
        });
    }
    assert_eq!(wrong == 0, is_right, "{name}: what it is known for");
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that keeps a page of the last run.
    struct Forgetful(Vec<u8>, Vec<u8>);

    impl Memory for Forgetful {
        fn restore(&mut self) {
            self.0.truncate(self.1.len());
            let kept = 7 * PAGE..8 * PAGE;
            self.0[..kept.start].copy_from_slice(&self.1[..kept.start]);
            self.0[kept.end..].copy_from_slice(&self.1[kept.end..]);
        }

        fn grow(&mut self) {
            self.0.resize(self.0.len() + GROWN as usize * PAGE, 0);
        }

        fn fill(&mut self, pages: Pages, byte: u8) {
            numbers(pages).for_each(|page| self.0[page as usize * PAGE..][..PAGE].fill(byte));
        }

        fn read(&mut self, pages: Pages) -> u64 {
            let word = |page| u64::from_le_bytes(*self.0[word_of(page)..].first_chunk().unwrap());
            numbers(pages).fold(0, |sum, page| mix(sum, word(page)))
        }

        fn bytes(&mut self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    #[should_panic(expected = "1 pages are not as the script says")]
    fn a_page_that_is_not_restored_is_noticed() {
        let snapshot = snapshot();
        check(&mut Forgetful(snapshot.clone(), snapshot.clone()), &snapshot, "forgetful", true);
    }

    #[test]
    #[should_panic(expected = "memory is as the script says")]
    fn a_page_that_is_not_restored_is_noticed_while_it_is_timed() {
        let snapshot = snapshot();
        let script = Script::new(1, &snapshot);
        let forgetful = Forgetful(snapshot.clone(), snapshot.clone());
        let mut job = script.job(Box::new(forgetful), true);
        job();
        job();
    }
}
