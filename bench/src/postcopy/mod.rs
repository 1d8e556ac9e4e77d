//! Guests that touch pages of another node's memory: as Pagefork brings them, a page at a time, and
//! with all of them here before the start.

mod first;
mod network;
mod pages;
mod parts;
mod peers;
mod processes;
mod relay;
mod table;

use std::path::Path;
use std::time::Duration;

pub use processes::part;

use crate::kernel::userfaults_are_told;
use crate::measure::Size;
use crate::report::Report;

use network::{Line, Namespaces, Scratch};
use pages::Pattern;
use parts::{COLUMNS, Run, Way};
use processes::Server;
use relay::Trouble;
use table::{Row, Table};

/// A series of measurements: a network, images, orders, and how often.
struct Series {
    name: &'static str,
    line: Line,
    trouble: Trouble,
    pages: &'static [u32],
    patterns: &'static [Pattern],
    ways: &'static [Way],
    runs: usize,
}

const AS_FAST_AS_IT_GOES: Line = Line { mtu: 1500, rate: None };
const GIGABIT: Line = Line { mtu: 1500, rate: Some("1gbit") };
const NO_TROUBLE: Trouble = Trouble { delay: Duration::ZERO, lost: 0, reordered: 0 };
const FAR: Trouble = Trouble { delay: Duration::from_millis(5), lost: 0, reordered: 0 };

const SERIES: [Series; 4] = [
    Series {
        name: "no delay",
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &Pattern::ALL,
        ways: &Way::ALL,
        runs: 3,
    },
    Series {
        name: "MTU 6500",
        line: Line { mtu: 6500, rate: None },
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder],
        ways: &[Way::Tls, Way::Quic, Way::Pages],
        runs: 3,
    },
    Series {
        name: "1 Gbit/s",
        line: GIGABIT,
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        runs: 2,
    },
    Series {
        name: "10 ms round trip",
        line: AS_FAST_AS_IT_GOES,
        trouble: FAR,
        pages: &[2_500],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        runs: 1,
    },
];

/// Bytes a second of [`GIGABIT`].
const GIGABIT_BYTES: f64 = 125e6;

/// What is measured, and what there is to say of it.
struct Tables {
    touches: Table,
    firsts: Table,
    forks: Table,
    notes: Vec<String>,
}

/// Measures all ways, and checks what guests see.
///
/// # Panics
/// If a byte is wrong, or a part fails.
pub fn run(size: Size) -> Report {
    let scratch = Scratch::new();
    let mut tables = Tables {
        touches: Table::new("postcopy", &["network", "pages", "order", "way"], &COLUMNS),
        firsts: Table::new("postcopy", &["network", "image", "way"], &first::COLUMNS),
        forks: Table::new("postcopy", &["pages", "way"], &["forks a second", "of a local image"]),
        notes: Vec::new(),
    };
    match (size, userfaults_are_told()) {
        (Size::Large, Ok(())) => large(scratch.path(), &mut tables),
        (Size::Small, Ok(())) => small(scratch.path(), &mut tables, &Way::ALL),
        (_, Err(why)) => {
            tables.note(format!("Skipped: post-copy, as this system tells of no faults: {why}."));
            small(scratch.path(), &mut tables, &[Way::Push, Way::Copy]);
        }
    }
    tables.report()
}

/// Without namespaces and processes: over the loopback device, in this process.
fn small(directory: &Path, tables: &mut Tables, ways: &[Way]) {
    const PAGES: u32 = 200;
    parts::prepare(directory, PAGES);
    let trouble = Trouble { delay: Duration::from_micros(200), lost: 20, reordered: 7 };
    for (name, trouble, patterns) in
        [("loopback", NO_TROUBLE, &Pattern::ALL[..]), ("with losses", trouble, &[Pattern::Chase])]
    {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let served = parts::serve(ip, directory, PAGES, trouble);
        for pattern in patterns {
            for way in ways {
                let timeout = Duration::from_millis(20);
                let run = Run { way: *way, pattern: *pattern, pages: PAGES, timeout };
                tables.touched(name, &run, &parts::run(&run, served, directory));
            }
        }
        for way in ways {
            let keys = [name, "small", way.name()].map(str::to_owned).to_vec();
            let values = first::run(*way, &PAGES.to_string(), served, directory);
            tables.firsts.add(keys, &values);
        }
    }
}

/// Each node a process in a network namespace of its own.
fn large(directory: &Path, tables: &mut Tables) {
    if let Err(why) = Namespaces::new(AS_FAST_AS_IT_GOES) {
        tables.note(format!(
            "Skipped: all but the loopback device, for want of network namespaces: {why}."
        ));
        return small(directory, tables, &Way::ALL);
    }
    for series in &SERIES {
        let line = Namespaces::new(series.line).expect("there was one before");
        for pages in series.pages {
            let directory = prepared(directory, *pages);
            let mut server = Server::new(&line, &directory, *pages, series.trouble);
            for pattern in series.patterns {
                // In turn, so that what else the machine does meets all.
                for _ in 0..series.runs {
                    for way in series.ways {
                        let timeout = 4 * series.trouble.delay + Duration::from_millis(40);
                        let run = Run { way: *way, pattern: *pattern, pages: *pages, timeout };
                        let values = server.run(&run);
                        tables.touched(series.name, &run, &values);
                    }
                }
            }
        }
    }
    let line = Namespaces::new(AS_FAST_AS_IT_GOES).expect("there was one before");
    forks(directory, &line, tables);
    firsts(directory, &line, tables);
}

fn forks(directory: &Path, line: &Namespaces, tables: &mut Tables) {
    const PAGES: u32 = 25_000;
    let directory = prepared(directory, PAGES);
    let server = Server::new(line, &directory, PAGES, NO_TROUBLE);
    for _ in 0..2 {
        for way in [Way::Tls, Way::Quic] {
            let keys = vec![PAGES.to_string(), way.name().to_owned()];
            tables.forks.add(keys, &server.forks(way, PAGES));
        }
    }
}

fn firsts(directory: &Path, line: &Namespaces, tables: &mut Tables) {
    const GIB: u32 = (1 << 30) / pages::PAGE as u32;
    let directory = prepared(directory, GIB);
    let has_python = first::prepare_python(&directory);
    if !has_python {
        tables.note("Skipped: CPython, which was not fetched.".to_owned());
    }
    for (name, trouble) in [("no delay", NO_TROUBLE), ("10 ms round trip", FAR)] {
        let server = Server::new(line, &directory, GIB, trouble);
        for _ in 0..3 {
            for way in [Way::Tls, Way::Quic, Way::Copy].into_iter().filter(|_| has_python) {
                let keys = [name, first::PYTHON, way.name()].map(str::to_owned).to_vec();
                tables.firsts.add(keys, &server.first(way, first::PYTHON));
            }
        }
        for _ in 0..2 {
            for way in Way::ALL {
                let keys = [name, "1 GiB", way.name()].map(str::to_owned).to_vec();
                tables.firsts.add(keys, &server.first(way, &GIB.to_string()));
            }
        }
    }
}

/// A directory with an image of so many pages.
fn prepared(directory: &Path, pages: u32) -> std::path::PathBuf {
    let directory = directory.join(pages.to_string());
    if !directory.exists() {
        std::fs::create_dir_all(&directory).expect("a directory of ours");
        parts::prepare(&directory, pages);
    }
    directory
}

impl Tables {
    fn note(&mut self, note: String) {
        eprintln!("{note}");
        self.notes.push(note);
    }

    fn touched(&mut self, network: &str, run: &Run, values: &[f64]) {
        let pages = run.pages.to_string();
        let keys = [network, &pages, run.pattern.name(), run.way.name()];
        self.touches.add(keys.map(str::to_owned).to_vec(), values);
    }

    fn report(&self) -> Report {
        let more = ["unseen %", "wire / image", "% of 1 Gbit/s", "times quicker"];
        let mut text = self.touches.markdown(&more, further);
        let mut samples = self.touches.raw();
        for table in [&self.firsts, &self.forks] {
            samples += &table.raw();
            text += &format!("\n{}", table.markdown(&[], |_, _| Vec::new()));
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        Report { text, samples, plot: None }
    }
}

/// From nothing until all was touched, in milliseconds.
fn took(row: &Row) -> f64 {
    row.median(column("init")) + row.median(column("toucher"))
}

fn column(name: &str) -> usize {
    COLUMNS.iter().position(|column| *column == name).expect("a column")
}

/// How much of the toucher's time is in no part, bytes on the line for each of the image, the rate of the
/// image's bytes, and how many times longer a page at a time takes.
fn further(table: &Table, row: &Row) -> Vec<f64> {
    let bytes = row.keys[1].parse::<f64>().unwrap_or(f64::NAN) * pages::PAGE as f64;
    let unseen = 100.0 * row.median(column("unseen")) / row.median(column("toucher"));
    let wire = row.median(column("wire MiB")) * (1 << 20) as f64 / bytes;
    let rate = 100.0 * bytes / (took(row) / 1e3) / GIGABIT_BYTES;
    let peer = table.beside(row, Way::Pages.name()).map_or(f64::NAN, took);
    vec![unseen, wire, rate, peer / took(row)]
}
