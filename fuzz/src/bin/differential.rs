//! Random modules in Pagefork and wasmtime: `cargo xtask differential`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use pagefork_fuzz::differential::{
    CASE_TIME_MAX, Campaign, Report, compare, speed, work, write_modules,
};
use pagefork_fuzz::features::FeatureSet;
use pagefork_fuzz::generate::Case;
use pagefork_fuzz::ours::Engines;
use pagefork_fuzz::peer::{self, Library};
use pagefork_fuzz::supported;

const USAGE: &str = "\
usage: cargo xtask differential [OPTION...]

Makes modules from seeds and runs each in Pagefork and in the released library of
wasmtime. Results, traps, memories, globals and tables must be equal. A run that
is ended goes on where it was, when started again with the same options.

  --modules N        how many cases, of one module or of some linked ones [1000]
  --seed N           the first seed; the others follow it [0]
  --features LIST    wasm2, wasm3, or names with commas between; -NAME takes one
                     away [all that Pagefork has]
  --processes N      how many at a time [one for each processor]
  --directory PATH   where progress and differing modules go [target/differential]
  --record           add what a finished run showed to fuzz/RECORD.md
  --show SEED        run this one alone, and show what both saw
";

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(10);

struct Options {
    campaign: Campaign,
    show: Option<u64>,
    work: Option<Range<u64>>,
    record: bool,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)).and_then(|options| options.map_or(Ok(true), run)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// `None` if all that was wanted is help.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let directory = target.join("differential");
    let campaign = Campaign {
        seed: 0,
        cases: 1000,
        features: supported(),
        processes,
        case_time_max: CASE_TIME_MAX,
        directory,
    };
    let mut options = Options { campaign, show: None, work: None, record: false };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        let number =
            |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match name.as_str() {
            "--modules" => options.campaign.cases = number(value()?)?,
            "--seed" => options.campaign.seed = number(value()?)?,
            "--features" => options.campaign.features = FeatureSet::parse(&value()?)?,
            "--processes" => options.campaign.processes = number(value()?)? as usize,
            "--directory" => options.campaign.directory = value()?.into(),
            "--show" => options.show = Some(number(value()?)?),
            "--record" => options.record = true,
            // What this program starts itself with.
            "--work" => options.work = Some(number(value()?)?..number(value()?)?),
            "--help" => {
                print!("{USAGE}");
                return Ok(None);
            }
            _ => return Err(format!("unknown option {name}\n\n{USAGE}")),
        }
    }
    Ok(Some(options))
}

/// Whether the engines agree.
fn run(options: Options) -> Result<bool, String> {
    let campaign = options.campaign;
    if let Some(seeds) = options.work {
        return work(seeds, campaign.features).map(|()| true);
    }
    if let Some(seed) = options.show {
        return show(seed, &campaign);
    }
    Library::open()?;
    let program = std::env::current_exe().map_err(|error| format!("where is this? {error}"))?;
    let worker = |seeds: Range<u64>| {
        let mut command = Command::new(&program);
        command.arg("--work").arg(seeds.start.to_string()).arg(seeds.end.to_string());
        command.arg("--features").arg(campaign.features.to_string());
        command
    };
    let start = Instant::now();
    let printed = Mutex::new((start, 0));
    let report = campaign.run(worker, |report| {
        let mut printed = printed.lock().expect("nothing panics in here");
        for (seed, difference) in report.differences.iter().skip(printed.1) {
            eprintln!("{}", describe(*seed, difference, &campaign));
        }
        printed.1 = report.differences.len();
        if printed.0.elapsed() > PROGRESS {
            printed.0 = Instant::now();
            let (done, all) = (report.cases, campaign.cases);
            eprintln!("{done} of {all}: {}; {} differ", speed(report, start), printed.1);
        }
    })?;
    print!("{}", summary(&campaign, &report));
    println!("{}", speed(&report, start));
    if options.record {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("RECORD.md");
        let failed = |error| format!("cannot record in {}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let text = format!("{}\n\n{}", text.trim_end(), summary(&campaign, &report));
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(report.differences.is_empty())
}

/// One case alone, in this process.
fn show(seed: u64, campaign: &Campaign) -> Result<bool, String> {
    let library = Library::open()?;
    let case = Case::new(seed, campaign.features);
    for path in write_modules(&case, &campaign.directory).map_err(|error| error.to_string())? {
        println!("{}", path.display());
    }
    println!(
        "features {}, {}fuel {}",
        case.features,
        if case.deterministic { "deterministic, " } else { "" },
        case.fuel
    );
    let comparison = compare(&case, &Engines::for_seed(case.seed), library);
    for (name, count) in &comparison.counts {
        println!("{count:>8} {name}");
    }
    match &comparison.difference {
        Some(difference) => println!("seed {seed} differs in {difference}"),
        None => println!("seed {seed}: no difference"),
    }
    Ok(comparison.difference.is_none())
}

/// A difference, with what reproduces it.
fn describe(seed: u64, difference: &str, campaign: &Campaign) -> String {
    let case = Case::new(seed, campaign.features);
    let modules = match write_modules(&case, &campaign.directory) {
        Ok(paths) => {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join("\n  ")
        }
        Err(error) => format!("(cannot be written: {error})"),
    };
    format!(
        "seed {seed} differs in {difference}\n  {modules}\n  again: cargo xtask differential \
         --features {} --show {seed}\n",
        campaign.features
    )
}

/// What a campaign showed, for the record.
fn summary(campaign: &Campaign, report: &Report) -> String {
    let commit = std::env::var("PAGEFORK_COMMIT").unwrap_or_else(|_| "unknown".to_owned());
    let mut text = format!(
        "## {}: {} cases, {} differences\n\nSeeds {} to {}, features {}; Pagefork at {commit}, \
         wasmtime {}, wasm-smith 0.263.\n\n",
        date(),
        report.cases,
        report.differences.len(),
        campaign.seed,
        (campaign.seed + campaign.cases).saturating_sub(1),
        campaign.features,
        peer::VERSION,
    );
    for (seed, difference) in &report.differences {
        let first = difference.lines().next().unwrap_or_default();
        text.push_str(&format!("- seed {seed}: {first}\n"));
    }
    text.push_str("| what | how often |\n| --- | ---: |\n");
    for (name, count) in &report.counts {
        text.push_str(&format!("| {name} | {count} |\n"));
    }
    text
}

/// Today, in UTC.
fn date() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2013.
    let days = since.as_secs() / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}
