//! Guests that touch pages of another node's memory: as Pagefork brings them, a page at a time, and
//! with all of them here before the start.

mod faults;
mod network;
mod pages;
mod parts;
mod peers;
mod relay;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use pagefork_postcopy::PlanLayer;

use crate::measure::{Size, median};
use crate::report::Report;

use network::{Line, Namespaces, Scratch};
use pages::Pattern;
use parts::{COLUMNS, Run, Served, Values, Way};
use relay::Trouble;

/// A series of measurements: a network, images, orders, and how often.
struct Series {
    name: &'static str,
    line: Line,
    trouble: Trouble,
    pages: &'static [u32],
    patterns: &'static [Pattern],
    ways: &'static [Way],
    without: &'static [PlanLayer],
    runs: usize,
}

const AS_FAST_AS_IT_GOES: Line = Line { mtu: 1500, rate: None };
const GIGABIT: Line = Line { mtu: 1500, rate: Some("1gbit") };
const NO_TROUBLE: Trouble = Trouble { delay: Duration::ZERO, lost: 0, reordered: 0 };
const FAR: Trouble = Trouble { delay: Duration::from_millis(5), lost: 0, reordered: 0 };

const SERIES: [Series; 6] = [
    Series {
        name: "no delay",
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[1_000, 25_000],
        patterns: &Pattern::ALL,
        ways: &Way::ALL,
        without: &[],
        runs: 10,
    },
    Series {
        name: "no delay",
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[100_000],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        without: &[],
        runs: 3,
    },
    Series {
        name: "MTU 6500",
        line: Line { mtu: 6500, rate: None },
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder],
        ways: &[Way::Tls, Way::Quic, Way::Pages],
        without: &[],
        runs: 10,
    },
    Series {
        name: "1 Gbit/s",
        line: GIGABIT,
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        without: &[],
        runs: 5,
    },
    Series {
        name: "10 ms round trip",
        line: AS_FAST_AS_IT_GOES,
        trouble: FAR,
        pages: &[2_500],
        patterns: &[Pattern::InOrder, Pattern::Random, Pattern::Chase],
        ways: &Way::ALL,
        without: &[],
        runs: 3,
    },
    Series {
        name: "layers",
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[5_000],
        patterns: &Pattern::ALL,
        ways: &[Way::Tls],
        without: &[
            PlanLayer::Certain,
            PlanLayer::Recorded,
            PlanLayer::Stride,
            PlanLayer::Neighbours,
            PlanLayer::Background,
        ],
        runs: 5,
    },
];

/// Measures all ways, and checks what guests see.
///
/// # Panics
/// If a byte is wrong, or a part fails.
pub fn run(size: Size) -> Report {
    let scratch = Scratch::new();
    let mut table = Table::new();
    match (size, faults::are_told()) {
        (Size::Large, Ok(())) => large(scratch.path(), &mut table),
        (Size::Large, Err(_)) | (Size::Small, Ok(())) => {
            small(scratch.path(), &mut table, &Way::ALL)
        }
        (Size::Small, Err(_)) => small(scratch.path(), &mut table, &[Way::Push, Way::Copy]),
    }
    if let Err(why) = faults::are_told() {
        table.note(format!("Skipped: post-copy, as this system tells of no faults: {why}."));
    }
    table.report()
}

/// Without namespaces and processes: over the loopback device, in this process.
fn small(directory: &Path, table: &mut Table, ways: &[Way]) {
    const PAGES: u32 = 200;
    parts::prepare(directory, PAGES);
    let trouble = Trouble { delay: Duration::from_micros(200), lost: 20, reordered: 7 };
    for (name, trouble) in [("loopback", NO_TROUBLE), ("with losses", trouble)] {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let served = parts::serve(ip, directory, PAGES, trouble);
        for pattern in Pattern::ALL {
            for way in ways {
                let timeout = Duration::from_millis(20);
                let run = Run { way: *way, pattern, pages: PAGES, without: None, timeout };
                table.add(name, &run, parts::run(&run, served, directory));
            }
        }
    }
}

/// Each node a process in a network namespace of its own.
fn large(directory: &Path, table: &mut Table) {
    let only = std::env::var("ONLY").ok();
    for series in
        SERIES.iter().filter(|series| only.as_ref().is_none_or(|only| only == series.name))
    {
        let line = match Namespaces::new(series.line) {
            Ok(line) => line,
            Err(why) => {
                let name = series.name;
                table.note(format!(
                    "Skipped: {name}, as there are no network namespaces here: {why}."
                ));
                continue;
            }
        };
        for pages in series.pages {
            let directory = directory.join(pages.to_string());
            if !directory.exists() {
                std::fs::create_dir_all(&directory).expect("a directory of ours");
                parts::prepare(&directory, *pages);
            }
            let mut server = Server::new(&line, &directory, *pages, series.trouble);
            let without = std::iter::once(None).chain(series.without.iter().copied().map(Some));
            let without: Vec<Option<PlanLayer>> = without.collect();
            for pattern in series.patterns {
                // In turn, so that what else the machine does meets all.
                for _ in 0..series.runs {
                    for way in series.ways {
                        for without in &without {
                            let timeout = 4 * series.trouble.delay + Duration::from_millis(40);
                            let run = Run {
                                way: *way,
                                pattern: *pattern,
                                pages: *pages,
                                without: *without,
                                timeout,
                            };
                            let values = server.run(&line, &directory, &run);
                            table.add(series.name, &run, values);
                        }
                    }
                }
                table.show_last(series.ways.len() * without.len());
            }
        }
    }
}

/// A memory node in a process of its own, at one end of the line.
struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    served: Served,
}

impl Server {
    fn new(line: &Namespaces, directory: &Path, pages: u32, trouble: Trouble) -> Self {
        let mut command = line.command(0, std::env::current_exe().expect("this program"));
        command.args(["--part", "postcopy", "serve", &Namespaces::ip(0).to_string()]);
        command.arg(directory).arg(pages.to_string());
        command.args(
            [trouble.delay.as_micros() as u32, trouble.lost, trouble.reordered]
                .map(|number| number.to_string()),
        );
        let mut child = piped(&mut command);
        let input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let words = read_line(&mut output);
        let words: Vec<&str> = words.split_whitespace().collect();
        Self { served: Served::of_words(&words), child, input, output }
    }

    /// What it has taken of processors, in milliseconds.
    fn cpu(&mut self) -> f64 {
        self.input.write_all(b"\n").expect("it lives");
        read_line(&mut self.output).trim().parse().expect("a number")
    }

    fn run(&mut self, line: &Namespaces, directory: &Path, run: &Run) -> Values {
        let cpu = self.cpu();
        let mut command = line.command(1, std::env::current_exe().expect("this program"));
        command.args(["--part", "postcopy", "run"]).arg(directory);
        command.args(run.words()).args(self.served.words());
        let output = command.stderr(Stdio::inherit()).output().expect("it starts");
        assert!(output.status.success(), "{run:?} has failed");
        let text = String::from_utf8(output.stdout).expect("text");
        let mut values: Vec<f64> =
            text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let there = COLUMNS.iter().position(|column| *column == "there CPU");
        values[there.expect("a column")] = self.cpu() - cpu;
        values.try_into().expect("a value for each column")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn piped(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts")
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("it lives");
    line
}

/// What a process of this benchmark does.
///
/// # Panics
/// If it is asked for something else.
pub fn part(arguments: &[&str]) {
    match *arguments {
        ["serve", ip, directory, pages, delay, lost, reordered] => {
            let number = |text: &str| text.parse::<u32>().expect("a number");
            let delay = Duration::from_micros(u64::from(number(delay)));
            let trouble = Trouble { delay, lost: number(lost), reordered: number(reordered) };
            let ip = ip.parse().expect("an address");
            let served = parts::serve(ip, Path::new(directory), number(pages), trouble);
            println!("{}", served.words().join(" "));
            for _ in std::io::stdin().lines() {
                println!("{}", parts::process_cpu().as_secs_f64() * 1e3);
            }
        }
        ["run", directory, ref rest @ ..] if rest.len() == 9 => {
            let (run, served) = (Run::of_words(&rest[..5]), Served::of_words(&rest[5..]));
            let values = parts::run(&run, served, Path::new(directory));
            println!("{}", values.map(|value| value.to_string()).join(" "));
        }
        _ => panic!("the benchmark has no such part: {arguments:?}"),
    }
}

/// All samples, those of a row together.
struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

struct Row {
    network: &'static str,
    pages: u32,
    order: String,
    way: Way,
    samples: Vec<Values>,
}

impl Row {
    /// The median of a column; not a number where nobody knows.
    fn median(&self, column: usize) -> f64 {
        let samples: Vec<f64> = self.samples.iter().map(|values| values[column]).collect();
        median(&samples).unwrap_or(f64::NAN)
    }
}

impl Table {
    fn new() -> Self {
        Self { rows: Vec::new(), notes: Vec::new() }
    }

    fn note(&mut self, note: String) {
        eprintln!("{note}");
        self.notes.push(note);
    }

    fn add(&mut self, network: &'static str, run: &Run, values: Values) {
        let order = match run.without {
            None => run.pattern.name().to_owned(),
            Some(layer) => format!("{}, without {layer:?}", run.pattern.name()),
        };
        let is_of = |row: &&mut Row| {
            (row.network, row.pages, row.way) == (network, run.pages, run.way) && row.order == order
        };
        match self.rows.iter_mut().find(is_of) {
            Some(row) => row.samples.push(values),
            None => {
                let (pages, way) = (run.pages, run.way);
                self.rows.push(Row { network, pages, order, way, samples: vec![values] });
            }
        }
    }

    /// Says what the last rows are: measuring takes minutes.
    fn show_last(&self, count: usize) {
        for row in &self.rows[self.rows.len() - count..] {
            eprintln!("{}", self.line(row));
        }
    }

    /// The median of what the peer took for the same, from the beginning until all was touched.
    fn peer(&self, row: &Row) -> Option<f64> {
        let peer = self.rows.iter().find(|peer| {
            peer.way == Way::Pages
                && (peer.network, peer.pages, &peer.order) == (row.network, row.pages, &row.order)
        })?;
        Some(peer.median(1))
    }

    fn line(&self, row: &Row) -> String {
        let mut line =
            format!("| {} | {} | {} | {} |", row.network, row.pages, row.order, row.way.name());
        let ratio =
            self.peer(row).map_or("-".to_owned(), |peer| format!("{:.2}", peer / row.median(1)));
        for column in 0..COLUMNS.len() {
            let value = row.median(column);
            let _ = match value.is_nan() {
                true => write!(line, " - |"),
                false if value >= 100.0 => write!(line, " {value:.0} |"),
                false => write!(line, " {value:.2} |"),
            };
        }
        line + &format!(" {ratio} |")
    }

    fn report(&self) -> Report {
        let mut text = format!(
            "| network | pages | order | way | {} | times quicker |\n",
            COLUMNS.join(" | ")
        );
        text += &format!("|{}\n", " --- |".repeat(COLUMNS.len() + 5));
        let mut samples = String::new();
        for row in &self.rows {
            text += &format!("{}\n", self.line(row));
            for (index, column) in COLUMNS.iter().enumerate() {
                let cell = format!(
                    "{}, {} pages {}\t{}\t{column}",
                    row.network,
                    row.pages,
                    row.order,
                    row.way.name()
                );
                for (number, values) in
                    row.samples.iter().enumerate().filter(|(_, values)| !values[index].is_nan())
                {
                    let _ = writeln!(samples, "postcopy\t{cell}\t{number}\t{}", values[index]);
                }
            }
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        Report { text, samples, plot: None }
    }
}
