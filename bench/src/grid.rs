//! Tables with many columns, measured in turn.

use crate::measure::{Clock, Effort, Unit, time};
use crate::sides::thread::SideThread;

/// A table of measurements: a line for each thing done, a column for each way to do
/// it. The first columns are Pagefork's.
#[derive(Clone, PartialEq, Debug)]
pub struct Grid {
    /// What the lines are of: the heading of the first column.
    pub what: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// How many of the columns are Pagefork's.
    pub ours: usize,
    /// How many of the last columns are shown, but not compared.
    pub beside: usize,
    /// The lines.
    pub lines: Vec<Line>,
    /// Sentences below the table.
    pub notes: Vec<String>,
}

/// One line of a [`Grid`].
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What was done.
    pub name: String,
    /// What the numbers count.
    pub unit: Unit,
    /// The samples of each column; none where it was not measured.
    pub cells: Vec<Vec<f64>>,
    /// How many times quicker Pagefork should be than the best peer, if there is a
    /// goal of that kind.
    pub goal: Option<f64>,
    /// Nothing is said of who is ahead.
    pub alone: bool,
}

/// One way to do what a line says.
pub struct Contestant<'a> {
    /// The column.
    pub column: &'a str,
    /// One iteration.
    pub work: Iteration<'a>,
}

/// One iteration, and where it is done.
pub enum Iteration<'a> {
    /// On the thread that measures.
    Here(Box<dyn FnMut() -> u64 + 'a>),
    /// On the thread of its side.
    There(SideThread, Box<dyn FnMut() -> u64 + Send + 'a>),
}

impl Iteration<'_> {
    /// Nanoseconds an iteration, of so many, by the clock of the thread on which they are done.
    ///
    /// # Panics
    /// If one does not return `expected`.
    pub(crate) fn time(&mut self, iterations: u32, expected: u64, clock: Clock) -> f64 {
        match self {
            Self::Here(work) => time(&mut **work, iterations, expected, clock),
            Self::There(thread, work) => {
                thread.run(|| time(&mut **work, iterations, expected, clock))
            }
        }
    }
}

/// Makes a contestant; `None` if it cannot do what the line says.
pub type Maker<'a> = Box<dyn Fn() -> Option<Contestant<'a>> + 'a>;

impl Grid {
    /// A table without lines.
    pub fn new<Name: Into<String>>(
        what: &str,
        ours: usize,
        columns: impl IntoIterator<Item = Name>,
    ) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self {
            what: what.to_owned(),
            columns,
            ours,
            beside: 0,
            lines: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a line, in which columns that are not named stay empty.
    ///
    /// # Panics
    /// If there is no column of a name.
    pub fn add(&mut self, name: &str, unit: Unit, samples: Vec<(&str, Vec<f64>)>) -> &mut Line {
        let mut cells = vec![Vec::new(); self.columns.len()];
        for (column, samples) in samples {
            cells[self.column(column)] = samples;
        }
        self.lines.push(Line { name: name.to_owned(), unit, cells, goal: None, alone: false });
        let grid = &self.columns;
        let line = self.lines.last_mut().expect("it was just added");
        if line.cells.iter().any(|cell| cell.len() > 1) {
            // Measuring takes minutes: show that it goes on.
            let shown: Vec<String> = grid
                .iter()
                .zip(&line.cells)
                .filter(|(_, cell)| !cell.is_empty())
                .map(|(column, cell)| format!("{column} {}", line.show(cell)))
                .collect();
            eprintln!("{name}: {}", shown.join(", "));
        }
        line
    }

    /// Adds a sentence below the table, if it is not there yet.
    pub fn note_once(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }

    /// Measures the contestants in turn, sample by sample, so that what else the
    /// machine does meets all of them, and adds the line. Every iteration must
    /// return `expected`.
    ///
    /// # Panics
    /// If one does not, or if there is no column of a contestant's name.
    pub fn contest(
        &mut self,
        name: &str,
        effort: Effort,
        expected: u64,
        contestants: &mut [Contestant<'_>],
    ) -> &mut Line {
        let mut samples = Vec::new();
        sample(effort, expected, contestants, &mut samples);
        self.add(name, Unit::Nanoseconds, samples)
    }

    /// As [`Grid::contest`], by contestants that are made anew `rounds` times, each time another first:
    /// what lasts as long as they do, as where in the machine's memory the kernel has put theirs, is not
    /// the same for all samples of one.
    ///
    /// # Panics
    /// As [`Grid::contest`].
    pub fn contest_anew<'a>(
        &mut self,
        name: &str,
        effort: Effort,
        rounds: u32,
        expected: u64,
        makers: &mut [Maker<'a>],
    ) -> &mut Line {
        let effort = Effort { samples: effort.samples.div_ceil(rounds), ..effort };
        let mut samples = Vec::new();
        for _ in 0..rounds {
            let made = makers.iter().filter_map(|maker| maker());
            sample(effort, expected, &mut made.collect::<Vec<_>>(), &mut samples);
            makers.rotate_left(makers.len().min(1));
        }
        self.add(name, Unit::Nanoseconds, samples)
    }

    /// The table in Markdown, and the notes below it.
    pub fn markdown(&self) -> String {
        let compared = self.columns.len() > self.ours + self.beside;
        let mut text = format!("| {} | {} |", self.what, self.columns.join(" | "));
        text += if compared { " ratio |\n" } else { "\n" };
        text += &"| --- ".repeat(self.columns.len() + 1 + usize::from(compared));
        text += "|\n";
        for line in &self.lines {
            text += &format!("| {} |", line.name);
            for cell in &line.cells {
                text += &format!(" {} |", line.show(cell));
            }
            if compared {
                text += &format!(" {} |", line.verdict(self.ours, self.beside));
            }
            text.push('\n');
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }

    /// All samples, a line each, and of each cell the tenth, fiftieth and ninetieth
    /// percentile: benchmark, row, column, unit, sample, value.
    pub fn raw(&self, benchmark: &str) -> String {
        let mut text = String::new();
        for line in &self.lines {
            for (column, samples) in self.columns.iter().zip(&line.cells) {
                let start = format!("{benchmark}\t{}\t{column}\t{}", line.name, line.unit.name());
                for (i, value) in samples.iter().enumerate() {
                    text += &format!("{start}\t{i}\t{value}\n");
                }
                for percent in [10, 50, 90] {
                    if let Some(value) = percentile(samples, percent) {
                        text += &format!("{start}\tp{percent}\t{value}\n");
                    }
                }
            }
        }
        text
    }

    fn column(&self, name: &str) -> usize {
        let index = self.columns.iter().position(|column| column == name);
        index.unwrap_or_else(|| panic!("there is no column {name:?}"))
    }
}

/// Adds samples of each contestant, taken in turn, to those of its column.
fn sample<'a>(
    effort: Effort,
    expected: u64,
    contestants: &mut [Contestant<'a>],
    samples: &mut Vec<(&'a str, Vec<f64>)>,
) {
    let iterations: Vec<u32> = contestants
        .iter_mut()
        .map(|contestant| iterations(&mut contestant.work, effort, expected))
        .collect();
    for _ in 0..effort.samples {
        for (contestant, &iterations) in contestants.iter_mut().zip(&iterations) {
            let time = contestant.work.time(iterations, expected, effort.clock);
            match samples.iter_mut().find(|(column, _)| *column == contestant.column) {
                Some((_, samples)) => samples.push(time),
                None => samples.push((contestant.column, vec![time])),
            }
        }
    }
}

impl Line {
    /// Sets how many times quicker Pagefork should be than the best peer.
    pub fn goal(&mut self, goal: f64) {
        self.goal = Some(goal);
    }

    /// How many times better Pagefork's best column is than the peer's best, without
    /// the last columns that are beside.
    pub fn ratio(&self, ours: usize, beside: usize) -> Option<f64> {
        let best = |cells: &[Vec<f64>]| {
            let medians = cells.iter().filter_map(|cell| percentile(cell, 50));
            match self.unit {
                Unit::Rate => medians.max_by(f64::total_cmp),
                _ => medians.min_by(f64::total_cmp),
            }
        };
        let (ours, theirs) = self.cells[..self.cells.len() - beside].split_at(ours);
        let (ours, theirs) = (best(ours)?, best(theirs)?);
        // Times beyond a baseline can be below it.
        Some(if self.unit == Unit::Rate { ours / theirs } else { theirs / ours.max(0.0) })
    }

    /// The ratio, and in words whether it is as it should be.
    fn verdict(&self, ours: usize, beside: usize) -> String {
        let Some(ratio) = self.ratio(ours, beside).filter(|_| !self.alone) else {
            return "-".to_owned();
        };
        let mut text = match self.unit {
            _ if ratio.is_finite() => format!("{ratio:.2}"),
            Unit::Nanoseconds if ratio > 0.0 => "nothing measurable".to_owned(),
            // Counts such as "none" cannot be divided.
            _ => return "-".to_owned(),
        };
        // Half a per cent is nothing that two runs agree on.
        if ratio < 0.995 {
            text += ", **loses**";
        }
        match self.goal {
            Some(goal) if ratio < goal => text += &format!(", goal {goal} missed"),
            Some(goal) => text += &format!(" (goal {goal})"),
            None => {}
        }
        text
    }

    fn show(&self, cell: &[f64]) -> String {
        percentile(cell, 50).map_or("-".to_owned(), |value| self.unit.show(value))
    }
}

/// The sample that this percentage of them does not exceed; `None` of none.
pub fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied()
}

/// How many iterations a sample has.
fn iterations(work: &mut Iteration<'_>, effort: Effort, expected: u64) -> u32 {
    /// Iterations until all is warm.
    const WARM: u32 = 50;
    let mut once = work.time(1, expected, effort.clock);
    if effort.samples > 1 {
        // What is done once a process does not count.
        once = work.time(1, expected, effort.clock);
    }
    if effort.samples > 1 && once < 1e7 {
        work.time(WARM, expected, effort.clock);
        once = work.time(WARM, expected, effort.clock);
    }
    ((effort.sample_ns / once.max(1.0)) as u32).clamp(1, 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Size;

    #[test]
    fn a_line_says_when_it_loses_or_misses_its_goal() {
        let mut grid = Grid::new("what", 2, ["a", "b", "peer"]);
        let line = |grid: &mut Grid, name: &str, peer: f64| {
            let samples = vec![("a", vec![3.0]), ("b", vec![2.0]), ("peer", vec![peer])];
            grid.add(name, Unit::Nanoseconds, samples).goal(4.0);
        };
        line(&mut grid, "won", 10.0);
        line(&mut grid, "missed", 4.0);
        line(&mut grid, "lost", 1.0);
        let below = vec![("a", vec![-1.0]), ("b", vec![2.0]), ("peer", vec![1.0])];
        grid.add("below a baseline", Unit::Nanoseconds, below).goal(4.0);
        let text = grid.markdown();
        assert!(text.contains("| won | 3.0 ns | 2.0 ns | 10.0 ns | 5.00 (goal 4) |"), "{text}");
        assert!(text.contains("| 2.00, goal 4 missed |"), "{text}");
        assert!(text.contains("| 0.50, **loses**, goal 4 missed |"), "{text}");
        assert!(
            text.contains("| -1.0 ns | 2.0 ns | 1.0 ns | nothing measurable (goal 4) |"),
            "{text}"
        );
        assert_eq!(grid.raw("x").lines().count(), 4 * 3 * 4);
    }

    #[test]
    fn contestants_are_measured_in_turn() {
        let order = std::cell::RefCell::new(Vec::new());
        let calls = &order;
        let contestant = |column| {
            let work = move || {
                calls.borrow_mut().push(column);
                7
            };
            Contestant { column, work: Iteration::Here(Box::new(work)) }
        };
        let mut grid = Grid::new("what", 1, ["a", "b"]);
        let mut both = [contestant("a"), contestant("b")];
        let effort = Effort { samples: 2, ..Effort::short(Size::Small) };
        grid.contest("line", effort, 7, &mut both);
        drop(both);
        let order = order.into_inner();
        assert_eq!(order[order.len() - 4..], ["a", "b", "a", "b"]);
    }

    #[test]
    fn percentiles_are_samples() {
        let samples: Vec<f64> = (0..31).map(f64::from).collect();
        assert_eq!(percentile(&samples, 10), Some(3.0));
        assert_eq!(percentile(&samples, 50), Some(15.0));
        assert_eq!(percentile(&samples, 90), Some(27.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
