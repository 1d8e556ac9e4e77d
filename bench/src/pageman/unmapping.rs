//! What `munmap` costs by itself, beside how many maps there are.

use std::time::Instant;

use crate::grid::{Grid, percentile};
use crate::measure::{Effort, Size, Unit};
use crate::programs::fetched;

#[cfg(feature = "peer")]
use super::wasmtime_side;
use super::{Case, Run, WAYS, in_peer, many, pagefork_side};

/// How many times as long `munmap` may take beside many maps as beside few.
const FLAT: f64 = 1.5;

/// Calls of `munmap` in a sample, at least.
const CALLS: u32 = 1000;

const fn beside(name: &'static str, live: u32) -> Case {
    let count = if live < CALLS { live } else { CALLS };
    Case { export: "unmap_some", count, ..many(name, live) }
}

const CASES: [Case; 5] = [
    beside("munmap of one of 10 maps of 4 KiB", 10),
    beside("munmap of one of 100 maps of 4 KiB", 100),
    beside("munmap of one of 1000 maps of 4 KiB", 1000),
    beside("munmap of one of 10000 maps of 4 KiB", 10_000),
    beside("munmap of one of 100000 maps of 4 KiB", 100_000),
];

/// The time of one `munmap`. What maps others in the places of those that are gone is not timed.
pub(super) fn table(size: Size) -> Grid {
    let mut columns: Vec<String> = WAYS.iter().map(|way| way.column.to_owned()).collect();
    if cfg!(feature = "peer") {
        columns.extend(WAYS.iter().map(|way| in_peer(way.column)));
    }
    let mut grid = Grid::new("`munmap` alone", 1, &columns);
    grid.beside = columns.len() - WAYS.len();
    let mut medians = Vec::new();
    for case in &CASES {
        if size == Size::Small && case.live > 1000 {
            continue;
        }
        let mut contestants: Vec<(usize, Run, Run, Vec<f64>)> = Vec::new();
        for (index, way) in WAYS.iter().enumerate() {
            let Some(wasm) = fetched((case.guest)(way)) else { continue };
            let mut add = |column, calls: Option<(Run, Run)>| {
                contestants.extend(calls.map(|(call, refill)| (column, call, refill, Vec::new())));
            };
            add(index, pagefork_side::two_calls(&wasm, case));
            #[cfg(feature = "peer")]
            add(WAYS.len() + index, wasmtime_side::two_calls(&wasm, case));
        }
        // The first is for what is done once, and does not count.
        for sample in 0..=Effort::short(size).samples {
            for (_, call, refill, samples) in &mut contestants {
                let time = one_sample(case, call, refill);
                if sample > 0 {
                    samples.push(time);
                }
            }
        }
        if let Some((0, .., samples)) = contestants.first() {
            medians.extend(percentile(samples, 50));
        }
        let samples = contestants.into_iter();
        let samples = samples.map(|(column, .., samples)| (&*columns[column], samples)).collect();
        grid.add(case.name, Unit::Nanoseconds, samples).goal(0.95);
    }
    if let Some(flatness) = flatness(&medians) {
        let verdict = if flatness > FLAT { "goal 1.5 missed" } else { "goal 1.5" };
        grid.note_once(&format!(
            "The manager's slowest row takes {flatness:.2} times as long as its quickest ({verdict})."
        ));
    }
    grid
}

/// Nanoseconds of one call.
fn one_sample(case: &Case, call: &mut Run, refill: &mut Run) -> f64 {
    let (mut ns, mut calls) = (0, 0);
    while calls < CALLS {
        let start = Instant::now();
        let done = call();
        ns += start.elapsed().as_nanos();
        assert_eq!((done, refill()), (case.count.into(), case.count.into()), "{}", case.name);
        calls += case.count;
    }
    ns as f64 / f64::from(calls)
}

/// How many times as long as the shortest the longest of these is.
fn flatness(times: &[f64]) -> Option<f64> {
    let longest = times.iter().copied().max_by(f64::total_cmp)?;
    Some(longest / times.iter().copied().min_by(f64::total_cmp)?)
}

#[cfg(test)]
mod tests {
    use super::flatness;

    #[test]
    fn flatness_is_of_the_longest_and_the_shortest() {
        assert_eq!(flatness(&[20.0, 10.0, 25.0]), Some(2.5));
        assert_eq!(flatness(&[]), None);
    }
}
