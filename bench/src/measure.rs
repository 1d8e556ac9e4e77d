//! Samples, medians, and what is printed of them.

use rustix::time::{ClockId, clock_gettime};

/// How long a benchmark runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// As a test: a few iterations.
    Small,
    /// To measure.
    Large,
}

/// What is asked of a benchmark.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long it runs.
    pub size: Size,
    /// How many threads do the same at a time, in turn; empty: what is usual.
    pub threads: Vec<u32>,
}

impl Options {
    /// With what is usual.
    pub fn of(size: Size) -> Self {
        Self { size, threads: Vec::new() }
    }

    /// How many threads do the same at a time, in turn.
    pub(crate) fn threads(&self, usual: &[u32]) -> Vec<u32> {
        match (&*self.threads, self.size) {
            ([], Size::Small) => vec![1, 2],
            ([], Size::Large) => usual.to_vec(),
            (asked, _) => asked.to_vec(),
        }
    }
}

/// One line of results.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// What the numbers are of.
    pub unit: Unit,
    /// Pagefork's samples: nanoseconds an iteration, or bytes.
    pub pagefork: Vec<f64>,
    /// Wasmtime's, where it was measured; as many.
    pub wasmtime: Vec<f64>,
}

/// What a number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds an iteration.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// How many.
    Count,
    /// How many a second: the more the better.
    Rate,
    /// Of a hundred.
    Percent,
}

impl Row {
    /// Two sizes in bytes.
    pub fn bytes(name: &str, pagefork: usize, wasmtime: Option<usize>) -> Self {
        Self {
            name: name.to_owned(),
            unit: Unit::Bytes,
            pagefork: vec![pagefork as f64],
            wasmtime: wasmtime.map(|bytes| bytes as f64).into_iter().collect(),
        }
    }

    /// How many times more wasmtime took: the ratio of the medians.
    pub fn ratio(&self) -> Option<f64> {
        Some(median(&self.wasmtime)? / median(&self.pagefork)?)
    }

    /// Of each of the `count` things that an iteration does.
    pub fn of_each(mut self, count: u32) -> Self {
        let samples = self.pagefork.iter_mut().chain(&mut self.wasmtime);
        samples.for_each(|sample| *sample /= f64::from(count));
        self
    }

    /// Pagefork's median.
    pub fn median(&self) -> f64 {
        median(&self.pagefork).unwrap_or(f64::NAN)
    }

    /// A line of a table.
    fn line(&self) -> String {
        let show = |samples| median(samples).map_or("-".to_owned(), |value| self.unit.show(value));
        let (pagefork, wasmtime) = (show(&self.pagefork), show(&self.wasmtime));
        let ratio = self.ratio().map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        format!("| {} | {pagefork} | {wasmtime} | {ratio} |", self.name)
    }
}

/// What is measured: one iteration, which returns something that depends on its
/// work, so that it is neither optimised away nor wrong unnoticed.
pub type Work<'a> = &'a mut dyn FnMut() -> u64;

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effort {
    /// How many samples are taken.
    pub samples: u32,
    /// How long one sample runs at least, in nanoseconds; one iteration at least.
    pub sample_ns: f64,
    /// What is counted.
    pub clock: Clock,
}

/// Which time is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// This thread's on its processor, the kernel's work for it included: what
    /// else runs on the machine costs little of it.
    Thread,
    /// Everybody's, as a user sees it.
    Wall,
    /// That of all threads of this process on their processors.
    Process,
}

impl Effort {
    /// What suits work of less than a hundredth of a second.
    pub fn short(size: Size) -> Self {
        match size {
            Size::Small => Self { samples: 1, sample_ns: 0.0, clock: Clock::Thread },
            Size::Large => Self { samples: 31, sample_ns: 5e6, clock: Clock::Thread },
        }
    }

    /// What suits work of a second.
    pub fn long(size: Size) -> Self {
        match size {
            Size::Small => Self { samples: 1, sample_ns: 0.0, clock: Clock::Thread },
            Size::Large => Self { samples: 9, sample_ns: 0.0, clock: Clock::Thread },
        }
    }

    /// For work of several threads.
    pub fn on_the_wall(self) -> Self {
        Self { clock: Clock::Wall, ..self }
    }
}

/// Measures both sides in turn, sample by sample, so that what else the
/// machine does meets both. Every iteration must return `expected`.
///
/// # Panics
/// If one does not.
pub fn compare(
    name: &str,
    effort: Effort,
    expected: u64,
    pagefork: Work<'_>,
    mut wasmtime: Option<Work<'_>>,
) -> Row {
    let iterations = |work: Work<'_>| {
        // Warm up, and see how long it takes. The first time may take what is done once a thread.
        let first = time(work, 1, expected, effort.clock);
        let once = if first < 5e7 { time(work, 3, expected, effort.clock) } else { first };
        ((effort.sample_ns / once.max(1.0)) as u32).clamp(1, 1_000_000)
    };
    let pagefork_iterations = iterations(pagefork);
    let wasmtime_iterations = wasmtime.as_mut().map(|work| iterations(work));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..effort.samples {
        ours.push(time(pagefork, pagefork_iterations, expected, effort.clock));
        if let (Some(work), Some(iterations)) = (&mut wasmtime, wasmtime_iterations) {
            theirs.push(time(work, iterations, expected, effort.clock));
        }
    }
    let name = name.to_owned();
    let row = Row { name, unit: Unit::Nanoseconds, pagefork: ours, wasmtime: theirs };
    if effort.samples > 1 {
        // Measuring takes minutes: show that it goes on.
        eprintln!("{}", row.line());
    }
    row
}

/// Nanoseconds an iteration.
///
/// # Panics
/// If one does not return `expected`.
pub(crate) fn time(work: Work<'_>, iterations: u32, expected: u64, clock: Clock) -> f64 {
    let start = clock.now();
    for _ in 0..iterations {
        assert_eq!(work(), expected, "a benchmark must compute the right thing");
    }
    (clock.now() - start) / f64::from(iterations)
}

pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Rows as a table of Markdown, and below it what the ratios come to.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        String::from("| what | pagefork | wasmtime | ratio |\n| --- | --- | --- | --- |\n");
    for row in rows {
        text += &row.line();
        text.push('\n');
    }
    text
}

/// One line about the ratios of all times: their geometric mean, as Pagefork's
/// share of wasmtime's time, and the longest; `None` without a peer.
pub fn summary(rows: &[Row]) -> Option<String> {
    let timed = rows.iter().filter(|row| row.unit == Unit::Nanoseconds);
    let times: Vec<(f64, &str)> =
        timed.filter_map(|row| Some((1.0 / row.ratio()?, &*row.name))).collect();
    let (longest, name) = *times.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let mean = (times.iter().map(|(time, _)| time.ln()).sum::<f64>() / times.len() as f64).exp();
    Some(format!(
        "Pagefork's time is {mean:.2} of wasmtime's (geometric mean), {longest:.2} at most ({name})."
    ))
}

/// All samples, a line each: benchmark, row, side, unit, sample, value.
pub fn raw(benchmark: &str, rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        for (side, samples) in [("pagefork", &row.pagefork), ("wasmtime", &row.wasmtime)] {
            for (i, value) in samples.iter().enumerate() {
                let (name, unit) = (&row.name, row.unit.name());
                text += &format!("{benchmark}\t{name}\t{side}\t{unit}\t{i}\t{value}\n");
            }
        }
    }
    text
}

impl Clock {
    /// Nanoseconds since some moment.
    pub(crate) fn now(self) -> f64 {
        let time = clock_gettime(match self {
            Self::Thread => ClockId::ThreadCPUTime,
            Self::Wall => ClockId::Monotonic,
            Self::Process => ClockId::ProcessCPUTime,
        });
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Bytes => "bytes",
            Self::Count => "count",
            Self::Rate => "1/s",
            Self::Percent => "%",
        }
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::Nanoseconds if value < 1e3 => format!("{value:.1} ns"),
            Self::Nanoseconds if value < 1e6 => format!("{:.2} us", value / 1e3),
            Self::Nanoseconds if value < 1e9 => format!("{:.2} ms", value / 1e6),
            Self::Nanoseconds => format!("{:.2} s", value / 1e9),
            Self::Bytes => format!("{:.1} KiB", value / 1024.0),
            Self::Rate => format!("{value:.0} /s"),
            Self::Percent => format!("{value:.0} %"),
            Self::Count if value.fract() == 0.0 => format!("{value}"),
            Self::Count => format!("{value:.2}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pagefork: f64, wasmtime: f64) -> Row {
        Row {
            name: format!("row of {pagefork}"),
            unit: Unit::Nanoseconds,
            pagefork: vec![pagefork],
            wasmtime: vec![wasmtime],
        }
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_summary_is_of_times() {
        let rows = [row(1.0, 4.0), row(4.0, 1.0), Row::bytes("code", 1000, Some(1))];
        let summary = summary(&rows).unwrap();
        assert!(summary.contains("is 1.00 of") && summary.contains("4.00 at most"), "{summary}");
        assert!(table(&rows).contains("| row of 4 | 4.0 ns | 1.0 ns | 0.25 |"));
        assert_eq!(raw("x", &rows).lines().count(), 6);
    }

    #[test]
    #[should_panic(expected = "the right thing")]
    fn a_wrong_result_is_noticed() {
        compare("wrong", Effort::short(Size::Small), 1, &mut || 2, None);
    }
}
