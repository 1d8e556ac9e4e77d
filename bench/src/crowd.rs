//! The same on many threads at a time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::grid::Grid;
use crate::measure::{Clock, Size, Unit};
use crate::sides::{Side, Sides};

/// How many threads do the same at a time.
pub(crate) fn threads(size: Size) -> &'static [u32] {
    match size {
        Size::Small => &[1, 2],
        Size::Large => &[1, 2, 4, 8, 16],
    }
}

/// What a thread does again and again; it checks what it computes.
pub(crate) type Job<'a> = Box<dyn FnMut() + 'a>;

/// One way to do what a line says, on many threads: the column, and what makes a
/// thread's job.
pub(crate) type Maker<'a> = (&'static str, Box<dyn Fn() -> Job<'a> + Sync + 'a>);

/// A way for each side.
pub(crate) fn makers<'a>(
    sides: &'a Sides,
    job: impl Fn(&'a dyn Side) -> Job<'a> + Sync + Copy + 'a,
) -> Vec<Maker<'a>> {
    let make = |(column, side): &'a (&'static str, Box<dyn Side>)| -> Maker<'a> {
        let side = &**side;
        (*column, Box::new(move || job(side)))
    };
    sides.iter().map(make).collect()
}

/// Measures on this many threads at a time, one column after the other and again, and
/// adds a line: the wall-clock time of one iteration, as a thread sees it.
pub(crate) fn contest(grid: &mut Grid, name: &str, size: Size, threads: u32, makers: &[Maker<'_>]) {
    let (rounds, duration) = match size {
        Size::Small => (1, Duration::ZERO),
        Size::Large => (7, Duration::from_millis(60)),
    };
    let mut samples: Vec<(&str, Vec<f64>)> =
        makers.iter().map(|(column, _)| (*column, Vec::new())).collect();
    for _ in 0..rounds {
        for (i, (_, make)) in makers.iter().enumerate() {
            samples[i].1.push(sample(threads, duration, &**make));
        }
    }
    grid.add(name, Unit::Nanoseconds, samples);
}

fn sample<'a>(threads: u32, duration: Duration, make: &(dyn Fn() -> Job<'a> + Sync)) -> f64 {
    /// Iterations before the clock runs.
    const WARM: u32 = 20;
    let (ready, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let one = || {
        let mut job = make();
        let warm = if duration.is_zero() { 1 } else { WARM };
        (0..warm).for_each(|_| job());
        ready.wait();
        let start = Clock::Wall.now();
        let mut count = 0u32;
        loop {
            job();
            count += 1;
            if stop.load(Ordering::Relaxed) {
                return (Clock::Wall.now() - start, count);
            }
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        ready.wait();
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        let done = running.into_iter().map(|thread| thread.join().expect("a job succeeds"));
        let (times, counts): (Vec<f64>, Vec<u32>) = done.unzip();
        times.iter().sum::<f64>() / f64::from(counts.iter().sum::<u32>())
    })
}
