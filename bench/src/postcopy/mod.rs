//! Guests that touch pages of another node's memory: as Pagefork brings them, a page at a time, and
//! with all of them here before the start.

mod first;
mod firsts;
mod layers;
mod limited;
mod moves;
mod network;
mod pages;
mod parts;
mod peers;
mod processes;
mod relay;
mod shell;
mod table;

use std::path::Path;
use std::time::Duration;

use pagefork::image::GROUP_SIZE;

pub use firsts::first_instruction;
pub use moves::moves;
pub use processes::part;

use crate::kernel::userfaults_are_told;
use crate::measure::Size;
use crate::plot::{self, Curve};
use crate::report::Report;

use layers::Without;
use limited::MemoryLimit;
use network::{Line, Namespaces, Scratch};
use pages::Pattern;
use parts::{COLUMNS, Run, WALL_COLUMNS, Way};
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
    /// Of Pagefork.
    runs: usize,
    /// Of each other way, which take longer and differ less.
    others: usize,
}

const AS_FAST_AS_IT_GOES: Line = Line { mtu: 1500, rate: None };
const GIGABIT: Line = Line { mtu: 1500, rate: Some("1gbit") };
const NO_TROUBLE: Trouble = Trouble { delay: Duration::ZERO, lost: 0, reordered: 0 };
const FAR: Trouble = Trouble { delay: Duration::from_millis(5), lost: 0, reordered: 0 };

/// One of a hundred datagrams is lost, and one of 50 comes behind those that follow.
const LOSSY: Trouble = Trouble { delay: Duration::from_millis(5), lost: 10, reordered: 50 };

const SERIES: [Series; 6] = [
    Series {
        name: NO_DELAY,
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &Pattern::ALL,
        ways: &Way::ALL,
        runs: 10,
        others: 3,
    },
    // What is drawn; 25,000 pages are above.
    Series {
        name: NO_DELAY,
        line: AS_FAST_AS_IT_GOES,
        trouble: NO_TROUBLE,
        pages: &[1_000, 2_500, 5_000, 10_000, 50_000, 100_000],
        patterns: &[Pattern::InOrder],
        ways: &[Way::Tls, Way::Quic, Way::Pages],
        runs: 10,
        others: 10,
    },
    Series {
        name: "MTU 6500",
        line: Line { mtu: 6500, rate: None },
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder],
        ways: &[Way::Tls, Way::Quic, Way::Pages],
        runs: 10,
        others: 3,
    },
    Series {
        name: "1 Gbit/s",
        line: GIGABIT,
        trouble: NO_TROUBLE,
        pages: &[25_000],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        runs: 10,
        others: 2,
    },
    Series {
        name: "10 ms round trip",
        line: AS_FAST_AS_IT_GOES,
        trouble: FAR,
        pages: &[2_500],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &Way::ALL,
        runs: 10,
        others: 1,
    },
    // Of a stream the relay loses nothing: TCP ends there.
    Series {
        name: "10 ms round trip, 1 % lost",
        line: AS_FAST_AS_IT_GOES,
        trouble: LOSSY,
        pages: &[2_500],
        patterns: &[Pattern::InOrder, Pattern::Random],
        ways: &[Way::Quic, Way::Pages],
        runs: 10,
        others: 1,
    },
];

/// How often a layer is left out, and how often where each page is waited for over 10 ms.
const LAYER_RUNS: (usize, usize) = (10, 3);

const NO_DELAY: &str = "no delay";

/// A guest of this size, and what who runs it has of memory: its pages are in a file in memory, which
/// nothing but swapping takes from there.
const GIB: u32 = (1 << 30) / pages::PAGE as u32;
const GIB_LIMIT: u64 = 5 << 28;

/// What tells rows apart of guests that touch a tenth of their pages.
const SPARSE_KEYS: [&str; 5] = ["network", "pages", "touched", "order", "without"];

/// Bytes a second of [`GIGABIT`].
const GIGABIT_BYTES: f64 = 125e6;

/// What the table of processors shows.
const CPU_COLUMNS: [&str; 8] = [
    "init CPU",
    "its CPU",
    "network CPU",
    "server CPU",
    "handle CPU",
    "IO CPU",
    "CPU here",
    "CPU there",
];

/// What is measured, and what there is to say of it.
struct Tables {
    touches: Table,
    layers: Table,
    sparse: Table,
    forks: Table,
    crowds: Table,
    notes: Vec<String>,
}

/// Measures all ways, and checks what guests see.
///
/// # Panics
/// If a byte is wrong, or a part fails.
pub fn run(size: Size) -> Report {
    let scratch = Scratch::new();
    let mut tables = Tables {
        touches: touches(),
        layers: Table::new("postcopy", &["network", "pages", "order", "without"], &COLUMNS),
        sparse: Table::new("postcopy", &SPARSE_KEYS, &COLUMNS),
        forks: Table::new("postcopy", &["pages", "way"], &["forks a second", "of a local image"]),
        crowds: Table::new("postcopy", &["pages", "nodes"], &["forks a second a node", "of all"]),
        notes: Vec::new(),
    };
    match (size, userfaults_are_told()) {
        (Size::Large, Ok(())) => {
            large(scratch.path(), &mut tables);
        }
        (Size::Small, Ok(())) => {
            small(scratch.path(), &mut tables, &Way::ALL);
        }
        (_, Err(why)) => {
            tables.note(format!("Skipped: post-copy, as this system tells of no faults: {why}."));
            small(scratch.path(), &mut tables, &[Way::Push, Way::Copy]);
        }
    }
    tables.report()
}

/// The table of who touches pages.
fn touches() -> Table {
    Table::new("postcopy", &["network", "pages", "order", "way"], &COLUMNS)
}

/// The drawing of samples that were recorded.
pub fn redrawn(samples: &str) -> Option<String> {
    let mut touches = touches();
    touches.read(samples);
    plot(&touches)
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
            let timeout = Duration::from_millis(20);
            let run = |way, without| {
                let (pattern, touched) = (*pattern, PAGES);
                Run { way, pattern, pages: PAGES, touched, timeout, without }
            };
            for way in ways {
                let run = run(*way, Without::Nothing);
                tables.touched(name, &run, &parts::run(&run, served, directory));
            }
            for without in Without::ALL.into_iter().filter(|_| ways.contains(&Way::Tls)) {
                let run = run(Way::Tls, without);
                tables.planned(name, &run, &parts::run(&run, served, directory));
            }
            for without in SPARSE_WITHOUT.into_iter().filter(|_| ways.contains(&Way::Tls)) {
                let run = Run { touched: PAGES / 10, ..run(Way::Tls, without) };
                tables.sparse(name, &run, &parts::run(&run, served, directory));
            }
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
                for number in 0..series.runs.max(series.others) {
                    for way in series.ways.iter().filter(|way| number < series.runs_of(**way)) {
                        let run = series.run(*way, *pattern, *pages, Without::Nothing);
                        let values = server.run(&run);
                        tables.touched(series.name, &run, &values);
                    }
                }
            }
        }
    }
    for series in [&SERIES[0], &SERIES[4]] {
        layers(directory, series, tables);
    }
    limited(directory, tables);
    let line = Namespaces::new(AS_FAST_AS_IT_GOES).expect("there was one before");
    forks(directory, &line, tables);
}

/// Each layer of the plan left out in turn, in each order; and where a tenth of the pages is touched.
fn layers(directory: &Path, series: &Series, tables: &mut Tables) {
    let line = Namespaces::new(series.line).expect("there was one before");
    let pages = series.pages[0];
    let directory = prepared(directory, pages);
    let mut server = Server::new(&line, &directory, pages, series.trouble);
    for pattern in Pattern::ALL {
        for number in 0..LAYER_RUNS.0 {
            let is_run = |without: &Without| number < series.runs_without(*without);
            for without in Without::ALL.into_iter().filter(is_run) {
                let run = series.run(Way::Tls, pattern, pages, without);
                let values = server.run(&run);
                tables.planned(series.name, &run, &values);
            }
        }
    }
    for pattern in SPARSE {
        for number in 0..LAYER_RUNS.0 {
            let is_run = |without: &Without| number < series.runs_without(*without);
            for without in SPARSE_WITHOUT.into_iter().filter(is_run) {
                let run = series.run(Way::Tls, pattern, pages, without);
                let run = Run { touched: pages / 10, ..run };
                let values = server.run(&run);
                tables.sparse(series.name, &run, &values);
            }
        }
    }
}

/// Orders in which a tenth of the pages is touched, and what is left out then.
const SPARSE: [Pattern; 4] = [Pattern::InOrder, Pattern::Strided, Pattern::Random, Pattern::Chase];
const SPARSE_WITHOUT: [Without; 3] =
    [Without::Nothing, Without::Background, Without::BackgroundAndStride];

/// A guest of 1 GiB, and one of 25,000 pages, where memory is short.
fn limited(directory: &Path, tables: &mut Tables) {
    let line = Namespaces::new(AS_FAST_AS_IT_GOES).expect("there was one before");
    for (pages, bytes, patterns, runs) in
        [(25_000, 1 << 30, &Pattern::ALL[..], 3), (GIB, GIB_LIMIT, &[Pattern::InOrder], 2)]
    {
        let limit = match MemoryLimit::new(bytes) {
            Ok(limit) => limit,
            Err(why) => {
                return tables.note(format!("Skipped: a limit of memory by cgroup: {why}."));
            }
        };
        let directory = prepared(directory, pages);
        let mut server = Server::new(&line, &directory, pages, NO_TROUBLE).limited(limit);
        let name = format!("{} MiB by cgroup", bytes >> 20);
        for pattern in patterns {
            for _ in 0..runs {
                for way in [Way::Tls, Way::Quic, Way::Pages] {
                    let run = SERIES[0].run(way, *pattern, pages, Without::Nothing);
                    let values = server.run(&run);
                    tables.touched(&name, &run, &values);
                }
            }
        }
    }
}

impl Series {
    fn run(&self, way: Way, pattern: Pattern, pages: u32, without: Without) -> Run {
        let timeout = 4 * self.trouble.delay + Duration::from_millis(40);
        Run { way, pattern, pages, touched: pages, timeout, without }
    }

    fn runs_of(&self, way: Way) -> usize {
        match way {
            Way::Tls | Way::Quic => self.runs,
            Way::Pages | Way::Push | Way::Copy => self.others,
        }
    }

    /// How often a layer is left out.
    fn runs_without(&self, without: Without) -> usize {
        let waits_for_each = !without.plan().background && !self.trouble.delay.is_zero();
        if waits_for_each { LAYER_RUNS.1 } else { LAYER_RUNS.0 }
    }
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
        for nodes in [1, 2] {
            let rates = server.crowd(nodes, PAGES);
            let all: f64 = rates.iter().sum();
            let keys = vec![PAGES.to_string(), nodes.to_string()];
            tables.crowds.add(keys, &[all / nodes as f64, all]);
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

    fn planned(&mut self, network: &str, run: &Run, values: &[f64]) {
        let pages = run.pages.to_string();
        let keys = [network, &pages, run.pattern.name(), run.without.name()];
        self.layers.add(keys.map(str::to_owned).to_vec(), values);
    }

    fn sparse(&mut self, network: &str, run: &Run, values: &[f64]) {
        let (pages, touched) = (run.pages.to_string(), run.touched.to_string());
        let keys = [network, &pages, &touched, run.pattern.name(), run.without.name()];
        self.sparse.add(keys.map(str::to_owned).to_vec(), values);
    }

    fn report(&self) -> Report {
        let more = ["unseen %", "wire / image", "% of 1 Gbit/s", "times quicker"];
        let wall: Vec<usize> = WALL_COLUMNS.collect();
        let mut text = self.touches.markdown_of(&wall, &more, further);
        let cpu = CPU_COLUMNS.map(column);
        text +=
            &format!("\nOf a processor:\n\n{}", self.touches.markdown_of(&cpu, &[], |_, _| vec![]));
        let mut samples = self.touches.raw();
        samples += &self.layers.raw();
        samples += &self.sparse.raw();
        let layers = self.layers.markdown_of(&wall, &["times as long"], beside_all);
        text += &format!("\n{layers}");
        let sparse = self.sparse.markdown_of(&wall, &["wire / touched"], beside_touched);
        text += &format!("\n{sparse}");
        for table in [&self.forks, &self.crowds] {
            samples += &table.raw();
            text += &format!("\n{}", table.markdown(&[], |_, _| Vec::new()));
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        Report { text, samples, plot: plot(&self.touches) }
    }
}

/// How the time grows with the pages, in order and without delay.
fn plot(touches: &Table) -> Option<String> {
    let curve = |way: Way| {
        let is_it = |row: &&Row| {
            [NO_DELAY, "loopback"].contains(&&row.keys[0][..])
                && row.keys[2] == Pattern::InOrder.name()
                && row.keys[3] == way.name()
        };
        let times = [column("init"), column("toucher")];
        let rows = touches.rows().iter().filter(is_it);
        let points = rows.filter_map(|row| {
            let times = row.percentiles(&times)?;
            Some((row.keys[1].parse().ok()?, times.map(|ms| ms * 1e6)))
        });
        let mut points: Vec<(f64, [f64; 3])> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_ours = way != Way::Pages;
        Curve { name: way.name().to_owned(), is_ours, points }
    };
    let curves = [Way::Tls, Way::Quic, Way::Pages].map(curve);
    let is_empty = curves.iter().all(|curve| curve.points.is_empty());
    let title = "cargo xtask bench postcopy: until all pages were touched, in order";
    let what = "pages (median, tenth to ninetieth percentile)";
    (!is_empty).then(|| plot::curves(title, what, &curves))
}

/// From nothing until all was touched, in milliseconds.
fn took(row: &Row) -> f64 {
    row.median(column("init")) + row.median(column("toucher"))
}

fn column(name: &str) -> usize {
    COLUMNS.iter().position(|column| *column == name).expect("a column")
}

/// How long it takes without the layer, beside all of them.
fn beside_all(table: &Table, row: &Row) -> Vec<f64> {
    let all = table.beside(row, Without::Nothing.name()).map_or(f64::NAN, took);
    vec![took(row) / all]
}

/// Bytes on the line for each of the groups that have a touched page.
fn beside_touched(_: &Table, row: &Row) -> Vec<f64> {
    let number = |key: usize| row.keys[key].parse::<u32>().expect("a number of pages");
    let groups = Pattern::of_name(&row.keys[3]).groups(number(1), number(2));
    let bytes = groups as f64 * GROUP_SIZE as f64;
    vec![row.median(column("wire MiB")) * (1 << 20) as f64 / bytes]
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
