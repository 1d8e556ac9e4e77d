//! The same on many threads at a time.

use std::io;
use std::ops::Sub;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::grid::Grid;
use crate::kernel::{self, CacheMisses, LockWaits};
use crate::measure::{Clock, Size, Unit};
use crate::sides::Side;

/// How many threads do the same at a time, if nothing is asked for.
pub(crate) const THREADS: [u32; 5] = [1, 2, 4, 8, 16];

/// What a thread does again and again; it checks what it computes. It returns how many nanoseconds its
/// parts have taken.
pub(crate) type Job<'a, const PARTS: usize = 0> = Box<dyn FnMut() -> [f64; PARTS] + 'a>;

/// One way to do what a line says, on many threads: the column, and what makes a
/// thread's job.
pub(crate) type Maker<'a, const PARTS: usize = 0> =
    (&'a str, Box<dyn Fn() -> Job<'a, PARTS> + Sync + 'a>);

/// As a line names it.
pub(crate) fn on_threads(threads: u32) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

/// A way for each side.
pub(crate) fn makers<'a>(
    sides: impl Iterator<Item = (&'a str, &'a dyn Side)>,
    job: impl Fn(&'a dyn Side) -> Job<'a> + Sync + Copy + 'a,
) -> Vec<Maker<'a>> {
    sides.map(|(column, side)| -> Maker<'a> { (column, Box::new(move || job(side))) }).collect()
}

/// Measures on this many threads at a time, one column after the other and again, and
/// adds a line: the wall-clock time of one iteration, as a thread sees it.
pub(crate) fn contest(grid: &mut Grid, name: &str, size: Size, threads: u32, makers: &[Maker<'_>]) {
    let cells = samples(size, threads, makers)
        .into_iter()
        .map(|(column, samples)| (column, samples.iter().map(|sample| sample.iteration).collect()));
    grid.add(name, Unit::Nanoseconds, cells.collect());
    note_processors(grid);
}

/// Says below the table what it was measured on.
fn note_processors(grid: &mut Grid) {
    grid.note_once(&format!("Threads share {} processors.", processors()));
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Measures the same, and adds a line for each part of an iteration, and what it took of the machine: how
/// much of all processors was in use, by whatever thread of this process, and page faults,
/// changes of threads, and waits for locks that those had who did it.
pub(crate) fn contest_in_parts<const PARTS: usize>(
    grid: &mut Grid,
    name: &str,
    parts: [&str; PARTS],
    size: Size,
    threads: u32,
    makers: &[Maker<'_, PARTS>],
) {
    // Whoever makes columns has made their engines.
    kernel::count_signals();
    let samples = samples(size, threads, makers);
    let mut add = |what: &str, unit, number: &dyn Fn(&Sample<PARTS>) -> f64| {
        let cells = samples.iter().map(|(column, samples)| (*column, samples.iter().map(number)));
        let cells = cells.map(|(column, numbers)| (column, numbers.collect())).collect();
        grid.add(&format!("{name}: {what}"), unit, cells).alone = unit != Unit::Nanoseconds;
    };
    for (index, part) in parts.into_iter().enumerate() {
        add(part, Unit::Nanoseconds, &|sample| sample.parts[index]);
    }
    add("processors in use", Unit::Percent, &|sample| sample.in_use);
    add("page faults", Unit::Count, &|sample| sample.faults);
    add("changes of threads", Unit::Count, &|sample| sample.switches);
    match kernel::lock_waits_are_counted() {
        Ok(()) => add("waits for locks of the kernel", Unit::Count, &|sample| sample.waits),
        Err(why) => {
            grid.note_once(&format!("Waits for locks of the kernel are not counted here: {why}."));
        }
    }
    note_processors(grid);
}

/// Samples of each column.
fn samples<'a, const PARTS: usize>(
    size: Size,
    threads: u32,
    makers: &[Maker<'a, PARTS>],
) -> Vec<(&'a str, Vec<Sample<PARTS>>)> {
    let (rounds, duration) = match size {
        Size::Small => (1, Duration::ZERO),
        // Many threads have each processor in turn, for some milliseconds each.
        Size::Large if threads > 16 => (3, Duration::from_micros(7500) * threads),
        Size::Large => (if PARTS > 0 { 5 } else { 7 }, Duration::from_millis(60)),
    };
    let mut samples: Vec<_> = makers.iter().map(|(column, _)| (*column, Vec::new())).collect();
    for _ in 0..rounds {
        for ((_, make), (_, samples)) in makers.iter().zip(&mut samples) {
            samples.push(sample(threads, duration, &**make));
        }
    }
    samples
}

/// Means of the iterations of all threads.
struct Sample<const PARTS: usize> {
    /// Nanoseconds of the wall's clock.
    iteration: f64,
    parts: [f64; PARTS],
    /// Per cent of all processors.
    in_use: f64,
    faults: f64,
    switches: f64,
    waits: f64,
}

/// What the kernel counts of a thread.
#[derive(Clone, Copy)]
struct Counts {
    faults: i64,
    switches: i64,
    /// 0 where the system does not tell.
    waits: i64,
}

impl Counts {
    fn of_this_thread(waits: &mut Option<LockWaits>) -> Self {
        let usage = getrusage(UsageWho::RUSAGE_THREAD).expect("Linux counts");
        Self {
            faults: usage.minor_page_faults()
                + usage.major_page_faults()
                + i64::from(kernel::signal_count()),
            switches: usage.voluntary_context_switches() + usage.involuntary_context_switches(),
            waits: waits.as_mut().map_or(0, |waits| waits.count() as i64),
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            faults: self.faults - before.faults,
            switches: self.switches - before.switches,
            waits: self.waits - before.waits,
        }
    }
}

/// What one thread did.
struct Done<const PARTS: usize> {
    iterations: u32,
    /// What they took, by the wall's clock.
    time: Duration,
    parts: [f64; PARTS],
    counts: Counts,
}

/// Waits for all others when it goes, also because its thread panics: nobody waits for it in vain.
struct Arrival<'a>(&'a Barrier);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Counts a thread when it goes, also because that panics.
struct Step<'a>(&'a AtomicU32);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// What threads do with an iteration that ends: they forget it, count it, or stop.
const BEFORE: u8 = 0;
const WITHIN: u8 = 1;
const AFTER: u8 = 2;

/// All threads run all the time. What ends in a span of time is counted: so what it has waited for a processor is, however
/// long the turns are in which threads have one.
fn sample<'a, const PARTS: usize>(
    threads: u32,
    duration: Duration,
    make: &(dyn Fn() -> Job<'a, PARTS> + Sync),
) -> Sample<PARTS> {
    /// Iterations before a thread is ready, or as many as there are in this time, or in four times what is
    /// measured.
    const WARM: u32 = 20;
    const WARM_TIME: Duration = Duration::from_millis(240);
    let [warm, counted] = [(); 2].map(|()| AtomicU32::new(0));
    let phase = AtomicU8::new(BEFORE);
    let one = || {
        let (warm, mut counted) = (Step(&warm), Some(Step(&counted)));
        // A counter makes changes of threads dearer, so there is none where it is not looked at.
        let mut waits = if PARTS > 0 { LockWaits::of_this_thread().ok() } else { None };
        let mut job = make();
        let (began, patience) = (Instant::now(), WARM_TIME.min(4 * duration));
        job();
        for _ in 1..WARM {
            if began.elapsed() > patience {
                break;
            }
            job();
        }
        drop(warm);
        let mut before = None;
        let (mut iterations, mut parts) = (0, [0.0; PARTS]);
        loop {
            let times = job();
            match phase.load(Ordering::Relaxed) {
                BEFORE => continue,
                AFTER => break,
                _ => (),
            }
            if counted.take().is_some() {
                before = Some((Counts::of_this_thread(&mut waits), Instant::now()));
            }
            parts.iter_mut().zip(times).for_each(|(sum, part)| *sum += part);
            iterations += 1;
        }
        // Without the first iteration that counts, and with the one behind the last.
        let time = Instant::now();
        let (before, start) = before.expect("nobody ends before all have counted");
        let counts = Counts::of_this_thread(&mut waits) - before;
        Done { iterations, time: time - start, parts, counts }
    };
    let until = |count: &AtomicU32| {
        while count.load(Ordering::Relaxed) < threads {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let clocks = [Clock::Wall, Clock::Process];
    let (done, [wall, process]) = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        until(&warm);
        let start = clocks.map(Clock::now);
        phase.store(WITHIN, Ordering::Relaxed);
        thread::sleep(duration);
        until(&counted);
        phase.store(AFTER, Ordering::Relaxed);
        let times = [0, 1].map(|index: usize| clocks[index].now() - start[index]);
        let done = running.into_iter().map(|thread| thread.join().expect("a job succeeds"));
        (done.collect::<Vec<Done<PARTS>>>(), times)
    });
    let all = |number: &dyn Fn(&Done<PARTS>) -> f64| done.iter().map(number).sum::<f64>();
    let iterations = all(&|done| done.iterations.into());
    // A span begins where one that runs alone begins an iteration, which it then cuts off at its end; and
    // many that end one after the other make turns shorter for the rest.
    let iteration = if threads as usize > processors() {
        wall * f64::from(threads) / iterations
    } else {
        f64::from(threads) / all(&|done| f64::from(done.iterations) / done.time.as_nanos() as f64)
    };
    Sample {
        iteration,
        parts: std::array::from_fn(|index| all(&|done| done.parts[index]) / iterations),
        in_use: 100.0 * process / (wall * processors() as f64),
        faults: all(&|done| done.counts.faults as f64) / iterations,
        switches: all(&|done| done.counts.switches as f64) / iterations,
        waits: all(&|done| done.counts.waits as f64) / iterations,
    }
}

/// How often processors miss their caches in an iteration, on this many threads at a time.
///
/// # Errors
/// If the machine does not count that.
pub(crate) fn cache_misses<'a>(
    size: Size,
    threads: u32,
    make: &(dyn Fn() -> Job<'a> + Sync),
) -> io::Result<f64> {
    let iterations = if size == Size::Small { 1 } else { 20_000 };
    CacheMisses::of_this_thread()?;
    let ready = Barrier::new(threads as usize);
    let one = || {
        let mut misses = CacheMisses::of_this_thread();
        let mut job = {
            // They wait for all, also if one fails here.
            let _ready = Arrival(&ready);
            let mut job = make();
            job();
            job
        };
        let mut count = || misses.as_mut().map_or(0, CacheMisses::count);
        let before = count();
        for _ in 0..iterations {
            job();
        }
        count() - before
    };
    let counts = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().map(|thread| thread.join().expect("a job succeeds")).sum::<u64>()
    });
    Ok(counts as f64 / f64::from(threads * iterations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_means_of_all_threads() {
        let threads = AtomicU32::new(0);
        let make: Maker<'_, 1> = (
            "job",
            Box::new(|| {
                let part = f64::from(threads.fetch_add(1, Ordering::Relaxed));
                Box::new(move || [part])
            }),
        );
        let mut grid = Grid::new("what", 1, ["job"]);
        contest_in_parts(&mut grid, "line", ["part"], Size::Small, 3, &[make]);
        let cells = |name| &grid.lines.iter().find(|line| line.name == name).unwrap().cells;
        assert!(cells("line: part")[0][0] <= 2.0);
        assert!(cells("line: processors in use")[0][0] >= 0.0);
        assert!(grid.notes.iter().any(|note| note.starts_with("Threads share ")));
    }

    /// Others would wait for it for ever.
    #[test]
    #[should_panic(expected = "a job succeeds")]
    fn a_job_that_fails_ends_the_measurement() {
        let threads = AtomicU32::new(0);
        let make: Maker<'_> = (
            "job",
            Box::new(|| {
                let fails = threads.fetch_add(1, Ordering::Relaxed) == 1;
                let mut turn = 0;
                Box::new(move || {
                    turn += 1;
                    assert!(!fails || turn < 2, "it fails when all are ready");
                    []
                })
            }),
        );
        contest(&mut Grid::new("what", 1, ["job"]), "line", Size::Small, 3, &[make]);
    }
}
