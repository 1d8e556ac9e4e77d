//! Many live instances and modules.

use std::process::Command;

use pagefork::{Engine, PoolConfig};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::grid::{Grid, percentile};
use crate::measure::{Clock, Size, Unit};
use crate::report::Report;
use crate::shapes::{IMAGE_WORD, Pages, Shape};
use crate::sides::{self, Engines, Held, Side};

/// Instances that live at the same time.
const LIVE: u32 = 10_000;
/// Modules that are there at the same time, and how many files may be open.
const MODULES: u32 = 100_000;
const FILES_MAX: u64 = 1024;
/// Pages that each instance writes.
const WRITTEN: u32 = 4;
/// Bytes of memory that are made ready at a time, and for how many instances: more than
/// they take on any side.
const READY: usize = 64 << 20;
const READY_FOR: u32 = 512;

/// Measures what many live instances take, each side in a process of its own, and
/// what happens at the limits of the system.
///
/// # Panics
/// If such a process fails.
pub fn run(size: Size) -> Report {
    let columns = Engines::columns();
    let mut grid = Grid::new("", 1, columns.clone());
    let (live, modules) = if size == Size::Small { (20, 5) } else { (LIVE, MODULES) };
    let part = |arguments: &[&str]| match size {
        Size::Small => self::part(arguments),
        Size::Large => in_a_process(arguments),
    };
    let results: Vec<Vec<f64>> =
        columns.iter().map(|column| numbers(&part(&["live", column, &live.to_string()]))).collect();
    grid.what = format!("{live} live instances of a small module, {WRITTEN} pages written each");
    for (i, (name, unit)) in LINES.iter().enumerate() {
        let cells = columns.iter().copied().zip(results.iter().map(|numbers| vec![numbers[i]]));
        // Where fewer is no goal, neither side loses.
        grid.add(name, *unit, cells.collect()).alone = *unit == Unit::Count;
    }
    if size == Size::Large {
        grid.notes.push(
            "The live instances get memory that was written and given back just before, because the \
             first use of a page that a virtual machine's host has yet to provide takes several \
             times longer."
                .to_owned(),
        );
        grid.notes.push(format!("At the kernel's limit: {}", part(&["limit"]).trim()));
    }
    let (modules, live) = (modules.to_string(), live.to_string());
    let text =
        part(&["modules", &modules, &live, if size == Size::Small { "" } else { "limited" }]);
    grid.notes.push(format!("Under a limit of {FILES_MAX} open files: {}", text.trim()));
    Report::of_grid("density", &grid)
}

/// What a part that measures live instances returns.
const LINES: [(&str, Unit); 8] = [
    ("resident memory and page tables, an instance", Unit::Bytes),
    ("of it not shared (PSS and page tables)", Unit::Bytes),
    ("of it page tables", Unit::Bytes),
    ("maps, an instance", Unit::Count),
    ("descriptors, an instance", Unit::Count),
    ("spawn, median of the first 100", Unit::Nanoseconds),
    ("spawn, median of the last 100", Unit::Nanoseconds),
    ("the last to the first", Unit::Count),
];

/// Does a part in this process; `main` calls it in those that [`run`] starts.
///
/// # Panics
/// If something cannot be measured.
pub fn part(arguments: &[&str]) -> String {
    let number = |text: &str| text.parse::<u32>().expect("a number");
    match *arguments {
        ["live", column, count] => live(column, number(count)),
        ["limit"] => limit(),
        ["modules", count, slots, limited] => {
            modules(number(count), number(slots), !limited.is_empty())
        }
        _ => panic!("there is no part {arguments:?}"),
    }
}

fn in_a_process(arguments: &[&str]) -> String {
    let program = std::env::current_exe().expect("this program is a file");
    let output = Command::new(program).arg("--part").args(arguments).output();
    let output = output.expect("this program can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    eprint!("{errors}");
    if !output.status.success() {
        return format!("the process ends by {}: {}", output.status, errors.trim());
    }
    let text = String::from_utf8(output.stdout).expect("it writes text");
    eprintln!("{}: {}", arguments.join(" "), text.trim());
    text
}

fn numbers(text: &str) -> Vec<f64> {
    text.split_whitespace().map(|number| number.parse().expect(text)).collect()
}

fn small(number: u32) -> Vec<u8> {
    Shape { memory: 4, image: 1, table: 10, globals: 5, number, ..Shape::default() }.wasm()
}

fn live(column: &str, count: u32) -> String {
    let side = sides::one(column, &small(0), count + 10);
    let expected = IMAGE_WORD.wrapping_mul(u64::from(WRITTEN));
    let mut held = Vec::with_capacity(count as usize + 1);
    let mut spawn = || {
        let start = Clock::Thread.now();
        let (store, result) = side.hold(Pages::row(WRITTEN)).expect("a slot");
        let time = Clock::Thread.now() - start;
        assert_eq!(result, expected, "a new instance is as the image");
        held.push(store);
        time
    };
    // The image is made when it is first used.
    spawn();
    let before = Usage::now();
    let mut ready: Vec<Vec<u8>> = (0..count / READY_FOR).map(|_| written()).collect();
    let next = |i| {
        if i % READY_FOR == 0 {
            ready.pop();
        }
        spawn()
    };
    let times: Vec<f64> = (0..count).map(next).collect();
    let after = Usage::now();
    let each = |of: fn(&Usage) -> f64| (of(&after) - of(&before)) / f64::from(count);
    let tables = each(|usage| usage.tables);
    let median = |times: &[f64]| percentile(times, 50).expect("some");
    let end = times.len().saturating_sub(100);
    let (first, last) = (median(&times[..times.len().min(100)]), median(&times[end..]));
    let numbers = [
        each(|usage| usage.resident) + tables,
        each(|usage| usage.proportional) + tables,
        tables,
        each(|usage| usage.maps),
        each(|usage| usage.descriptors),
        first,
        last,
        last / first,
    ];
    numbers.map(|number| number.to_string()).join(" ")
}

/// Memory that a virtual machine has from its host by now. Once it is dropped, the kernel
/// hands out its pages next; those that are not asked for soon may go back to the host.
fn written() -> Vec<u8> {
    /// No machine's pages are smaller.
    const PAGE: usize = 4096;
    let mut bytes = vec![0; READY];
    bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    bytes
}

/// What the system says of this process. Sizes are in bytes.
struct Usage {
    resident: f64,
    proportional: f64,
    tables: f64,
    maps: f64,
    descriptors: f64,
}

impl Usage {
    fn now() -> Self {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/self/{file}")).expect("/proc can be read")
        };
        let (rollup, status) = (read("smaps_rollup"), read("status"));
        let bytes = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            let number = line.split_whitespace().next().expect("a number");
            number.parse::<f64>().expect("a number") * 1024.0
        };
        Self {
            resident: bytes(&rollup, "Rss:"),
            proportional: bytes(&rollup, "Pss:"),
            tables: bytes(&status, "VmPTE:"),
            maps: read("maps").lines().count() as f64,
            descriptors: std::fs::read_dir("/proc/self/fd").expect("a directory").count() as f64,
        }
    }
}

/// Spawns until the system refuses, and quotes what is said then.
fn limit() -> String {
    let side = sides::one(sides::PAGEFORK, &small(0), 0);
    let mut held: Vec<Held> = Vec::new();
    loop {
        match side.hold(Pages::row(WRITTEN)) {
            Ok((store, _)) => held.push(store),
            Err(error) => return format!("instance {} is refused: \"{error}\".", held.len() + 1),
        }
    }
}

/// Many modules, each linked and spawned once, and many live instances of different
/// ones.
fn modules(count: u32, slots: u32, limited: bool) -> String {
    if limited {
        let limit = Rlimit { current: Some(FILES_MAX), maximum: Some(FILES_MAX) };
        setrlimit(Resource::Nofile, limit).expect("a limit can be lowered");
    }
    let mut config = pagefork::Config::new();
    config.pool(PoolConfig { kept_max: 1000, ..PoolConfig::default() });
    let engine = Engine::new(&config).expect("this machine runs guests");
    let start = Clock::Wall.now();
    let mut modules = Vec::new();
    for number in 0..count {
        let wasm = small(number);
        match sides::pagefork::Module::try_new(&engine, &wasm) {
            Ok(module) => modules.push(module),
            Err(error) => return format!("module {} is refused: \"{error}\".", number + 1),
        }
        let module = modules.last().expect("it was just made");
        match module.hold(Pages::row(1)) {
            Ok((_, result)) => assert_eq!(result, IMAGE_WORD, "a new instance is as the image"),
            Err(error) => {
                return format!("spawning module {} is refused: \"{error}\".", number + 1);
            }
        }
    }
    let seconds = (Clock::Wall.now() - start) / 1e9;
    let mut held = Vec::new();
    for (i, module) in modules.iter().cycle().take(slots as usize).enumerate() {
        match module.hold(Pages::row(WRITTEN)) {
            Ok((store, _)) => held.push(store),
            Err(error) => {
                return format!("{count} modules; slot {} is refused: \"{error}\".", i + 1);
            }
        }
    }
    let usage = Usage::now();
    format!(
        "{count} modules compiled and spawned in {seconds:.1} s, then {slots} slots live, of \
         different modules: {} descriptors, {} maps, {:.1} KiB of resident memory a module.",
        usage.descriptors,
        usage.maps,
        usage.resident / 1024.0 / f64::from(count)
    )
}
