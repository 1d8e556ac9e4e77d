use std::time::Instant;

/// How long a benchmark runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// As a test: a few iterations.
    Small,
    /// To measure.
    Large,
}

/// One line of results: the median of all samples, in nanoseconds an iteration.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// How long Pagefork took.
    pub pagefork_ns: f64,
    /// How long wasmtime took, where it was measured.
    pub wasmtime_ns: Option<f64>,
}

impl Row {
    /// How many times longer wasmtime took.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.wasmtime_ns? / self.pagefork_ns)
    }
}

/// What is measured: one iteration, which returns something that depends on its
/// work, so that it is neither optimised away nor wrong unnoticed.
pub type Work<'a> = &'a mut dyn FnMut() -> u64;

/// Measures both sides in turn, sample by sample, so that whatever else the
/// machine does meets both. Every iteration must return `expected`.
///
/// # Panics
/// If one does not.
pub fn compare(
    name: &str,
    size: Size,
    expected: u64,
    pagefork: Work<'_>,
    mut wasmtime: Option<Work<'_>>,
) -> Row {
    let (samples, sample_ns) = match size {
        Size::Small => (1, 0.0),
        Size::Large => (31, 5e6),
    };
    let iterations = |work: Work<'_>| {
        let once = time(work, 3, expected).max(1.0);
        ((sample_ns / once) as u32).clamp(1, 1_000_000)
    };
    let pagefork_iterations = iterations(pagefork);
    let wasmtime_iterations = wasmtime.as_mut().map(|work| iterations(work));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        ours.push(time(pagefork, pagefork_iterations, expected));
        if let (Some(work), Some(iterations)) = (&mut wasmtime, wasmtime_iterations) {
            theirs.push(time(work, iterations, expected));
        }
    }
    let wasmtime_ns = (!theirs.is_empty()).then(|| median(&mut theirs));
    Row { name: name.to_owned(), pagefork_ns: median(&mut ours), wasmtime_ns }
}

fn time(work: Work<'_>, iterations: u32, expected: u64) -> f64 {
    let start = Instant::now();
    for _ in 0..iterations {
        assert_eq!(work(), expected, "a benchmark must compute the right thing");
    }
    start.elapsed().as_nanos() as f64 / f64::from(iterations)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Rows as a table of Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        String::from("| what | pagefork | wasmtime | ratio |\n| --- | --- | --- | --- |\n");
    for row in rows {
        let wasmtime = row.wasmtime_ns.map_or("-".to_owned(), duration);
        let ratio = row.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        text +=
            &format!("| {} | {} | {wasmtime} | {ratio} |\n", row.name, duration(row.pagefork_ns));
    }
    text
}

fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    #[should_panic(expected = "the right thing")]
    fn a_wrong_result_is_noticed() {
        compare("wrong", Size::Small, 1, &mut || 2, None);
    }
}
