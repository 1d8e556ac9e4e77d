//! The spawns as containers run programs: where kernels and sandboxes refuse what the quickest ways need.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::grid::Grid;
use crate::kernel::{Refusal, become_nobody, refuse};
use crate::measure::{Effort, Size, Unit};
use crate::report::Report;
use crate::shapes::{Action, IMAGE_WORD, Pages, Shape};
use crate::sides::{Engines, contestants};
use crate::spawn;

/// How a process is run: a name, and what it is without.
const SETTINGS: [(&str, &[&str]); 4] = [
    ("as it is", &[]),
    ("no counting of faults", &["perf"]),
    ("no counting, no scans, no userfaultfd", &["perf", "scan", "userfaultfd"]),
    ("user 65534", &["root"]),
];

/// Times requests in a process of its own for each setting.
///
/// # Panics
/// If a process fails.
pub fn run(size: Size) -> Report {
    let what = "new store, instance, call, drop, without what is refused";
    let mut grid = Grid::new(what, 1, Engines::every(1).names());
    for (setting, without) in SETTINGS {
        if without.contains(&"root") && !nix::unistd::Uid::effective().is_root() {
            grid.note_once("This user has no rights to give up.");
            continue;
        }
        let said = match size {
            // Nothing can be given up in a process of tests.
            Size::Small if !without.is_empty() => continue,
            Size::Small => part(&["small"]),
            Size::Large => in_a_process(setting, without),
        };
        // As they come: the rows in their order.
        let mut rows: Vec<(&str, BTreeMap<&str, Vec<f64>>)> = Vec::new();
        for line in said.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [_, row, column, unit, number, value] = fields[..] else { panic!("{line:?}") };
            // Of the requests after a large one the first two say enough here.
            let is_later = row.contains(", request ")
                && !["1", "2"].iter().any(|n| row.contains(&format!(", request {n} ")));
            if number.starts_with('p') || unit != Unit::Nanoseconds.name() || is_later {
                continue;
            }
            if rows.last().is_none_or(|(last, _)| *last != row) {
                rows.push((row, BTreeMap::new()));
            }
            let (_, cells) = rows.last_mut().expect("one was put there");
            cells.entry(column).or_default().push(value.parse().expect("a number"));
        }
        for (row, cells) in rows {
            let name = format!("{setting}: {row}");
            let line = grid.add(&name, Unit::Nanoseconds, cells.into_iter().collect());
            // Without what counts faults in memory, a request asks the system for their number.
            line.goal = match row {
                "nop" if without.contains(&"perf") => Some(10.0),
                _ => spawn::goal(row),
            };
        }
    }
    Report::of_grid("contained", &grid)
}

fn in_a_process(setting: &str, without: &[&str]) -> String {
    let program = std::env::current_exe().expect("this program is a file");
    let mut command = Command::new(program);
    command.args(["--part", "contained", "large"]).args(without).stderr(Stdio::inherit());
    let output = command.output().expect("this program can be started");
    assert!(output.status.success(), "{setting}: {}", output.status);
    String::from_utf8(output.stdout).expect("it writes text")
}

/// Gives up what is named, measures, and returns the samples.
///
/// # Panics
/// If it cannot be given up.
pub fn part(arguments: &[&str]) -> String {
    let [size, without @ ..] = arguments else { panic!("there is no part {arguments:?}") };
    let size = if *size == "small" { Size::Small } else { Size::Large };
    let mut refusals = Vec::new();
    for without in without {
        match *without {
            "perf" => refusals.push(Refusal::PerfEvents),
            "scan" => refusals.push(Refusal::PageMapScan),
            "userfaultfd" => refusals.push(Refusal::Userfaults),
            "root" => become_nobody().expect("root may"),
            other => panic!("nothing is without {other}"),
        }
    }
    if !refusals.is_empty() {
        refuse(&refusals).expect("this system filters calls");
    }
    let engines = Engines::every(16);
    let mut grid = Grid::new("", 1, engines.names());
    let effort = Effort::short(size);
    let sides = engines.sides(&Shape::usual().wasm());
    for (name, count) in [
        ("nop", 0),
        ("1 page written", 1),
        ("16 pages in a row written", 16),
        ("64 pages in a row written", 64),
        ("256 pages in a row written", 256),
    ] {
        let expected = IMAGE_WORD.wrapping_mul(count.into());
        let mut all = contestants(&sides, |side| move || side.request(Pages::row(count)));
        grid.contest(name, effort, expected, &mut all);
    }
    let chosen = Shape { memory: 256, run: Action::Chosen, ..Shape::usual() };
    let sides = engines.sides(&chosen.wasm());
    for count in [1, 30, 100, 400] {
        let mut all = contestants(&sides, |side| {
            let mut seed = 0u32;
            move || {
                seed = seed.wrapping_add(0x9e37_79b9);
                let first = (seed ^ seed >> 15).wrapping_mul(0x85eb_ca6b);
                side.request(Pages { first, count, step: 1024 })
            }
        });
        let name = format!("{count} of 1024 pages, others each time");
        grid.contest(&name, effort, count.into(), &mut all);
    }
    spawn::cold(&engines, size, &mut grid);
    spawn::sticky(&engines, size, &mut grid);
    grid.raw("contained")
}
