//! How long it takes until a guest runs, of images of any size.

use std::path::Path;

use crate::kernel::userfaults_are_told;
use crate::measure::Size;
use crate::report::Report;

use super::network::{Namespaces, Scratch};
use super::parts::{self, Way};
use super::processes::Server;
use super::relay::Trouble;
use super::shell;
use super::table::Table;
use super::{AS_FAST_AS_IT_GOES, FAR, GIB, NO_DELAY, NO_TROUBLE, first, prepared};

/// Measures all ways, and checks what guests see.
///
/// # Panics
/// If a byte is wrong, or a part fails.
pub fn first_instruction(size: Size) -> Report {
    let scratch = Scratch::new();
    let mut table = Table::new("first", &["network", "image", "way"], &first::COLUMNS);
    let mut notes = Vec::new();
    match (size, userfaults_are_told()) {
        (Size::Large, Ok(())) => match large(scratch.path(), &mut table) {
            Ok(note) => notes.extend(note),
            Err(why) => {
                notes.push(format!("Skipped: all but the loopback device: {why}."));
                small(scratch.path(), &mut table, &Way::ALL);
            }
        },
        (Size::Small, Ok(())) => small(scratch.path(), &mut table, &Way::ALL),
        (_, Err(why)) => {
            notes.push(format!("Skipped: post-copy, as this system tells of no faults: {why}."));
            small(scratch.path(), &mut table, &[Way::Push, Way::Copy]);
        }
    }
    if shell::command().is_none() {
        notes.push(shell::missing());
    }
    let mut text = table.markdown(&[], |_, _| Vec::new());
    for note in &notes {
        text += &format!("\n{note}\n");
    }
    Report { text, samples: table.raw(), plot: None }
}

/// Without namespaces and processes: over the loopback device, in this process.
fn small(directory: &Path, table: &mut Table, ways: &[Way]) {
    const PAGES: u32 = 200;
    parts::prepare(directory, PAGES);
    for (name, trouble) in [("loopback", NO_TROUBLE), ("10 ms round trip", FAR)] {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        let served = parts::serve(ip, directory, PAGES, trouble);
        for way in ways {
            let keys = [name, "small", way.name()].map(str::to_owned).to_vec();
            table.add(keys, &first::run(*way, &PAGES.to_string(), served, directory));
        }
        for way in from_shell(ways) {
            let way_name = shell::name(way);
            let keys = [name, "small", &way_name[..]].map(str::to_owned).to_vec();
            table.add(keys, &shell::run(way, &PAGES.to_string(), served, directory));
        }
    }
}

/// Each node a process in a network namespace of its own. Returns what there is to say.
fn large(directory: &Path, table: &mut Table) -> Result<Option<String>, String> {
    let line = Namespaces::new(AS_FAST_AS_IT_GOES)?;
    let early = Namespaces::new(AS_FAST_AS_IT_GOES)?;
    early.take_early_bytes(0)?;
    let directory = prepared(directory, GIB);
    let images: &[&str] = match first::prepare_python(&directory) {
        true => &[first::PYTHON, "1 GiB"],
        false => &["1 GiB"],
    };
    let series: [(&str, &Namespaces, Trouble, &[Way]); 3] = [
        (NO_DELAY, &line, NO_TROUBLE, &Way::ALL),
        ("10 ms round trip", &line, FAR, &Way::ALL),
        ("10 ms round trip, TCP Fast Open", &early, FAR, &[Way::Tls]),
    ];
    let servers = series.map(|(name, line, trouble, ways)| {
        (name, ways, Server::new(line, &directory, GIB, trouble))
    });
    // The first connection in a network learns by what the next ones may bring bytes along.
    servers[2].2.first(Way::Tls, &GIB.to_string());
    for run in 0..RUNS {
        // In turn, so that what else the machine does meets all.
        for (name, ways, server) in &servers {
            for image in images {
                let is_python = *image == first::PYTHON;
                let what = if is_python { image.to_string() } else { GIB.to_string() };
                for way in *ways {
                    let is_slow = matches!(way, Way::Push | Way::Copy);
                    let is_image = matches!(way, Way::Tls | Way::Quic | Way::Copy);
                    if (is_slow && run >= SLOW_RUNS) || (is_python && !is_image) {
                        continue;
                    }
                    let keys = [name, image, way.name()].map(str::to_owned).to_vec();
                    table.add(keys, &server.first(*way, &what));
                }
                for way in from_shell(ways) {
                    let way_name = shell::name(way);
                    let keys = [name, *image, &way_name[..]].map(str::to_owned).to_vec();
                    table.add(keys, &server.from_shell(way, &what));
                }
            }
        }
    }
    Ok((images.len() == 1).then(|| "Skipped: CPython, which was not fetched.".to_owned()))
}

/// Of these ways those by which the command starts programs, if it is known where it is.
fn from_shell(ways: &[Way]) -> impl Iterator<Item = Way> {
    let command = shell::command();
    [Way::Tls, Way::Quic].into_iter().filter(move |way| command.is_some() && ways.contains(way))
}

/// How often each is run, and what copies all first.
const RUNS: usize = 10;
const SLOW_RUNS: usize = 2;
