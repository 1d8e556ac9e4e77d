//! The comparison: one case, and many of them in processes of their own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::features::{self, FeatureSet};
use crate::generate::Case;
use crate::ours::{Engines, Ours};
use crate::peer::{Library, Peer};
use crate::subject::{self, Transcript};

/// How often things happened, by name.
pub type Counts = BTreeMap<String, u64>;

/// What comparing one case showed.
pub struct Comparison {
    /// What the engines differ in, if they do.
    pub difference: Option<String>,
    /// What happened.
    pub counts: Counts,
}

/// Runs one case in both engines.
pub fn compare(case: &Case, engines: &Engines, library: &'static Library) -> Comparison {
    let ours = subject::run(&mut Ours::new(engines, case), case);
    let theirs = subject::run(&mut Peer::new(library, case), case);
    let mut counts = ours.counts.clone();
    let mut count = |name: &str, by| *counts.entry(name.to_owned()).or_default() += by;
    for module in &case.modules {
        count("modules", 1);
        let (used, operators) =
            features::used(&module.wasm).expect("generated modules are well-formed");
        count("operators in functions", operators);
        for name in used {
            count(&format!("modules with {name}"), 1);
        }
    }
    for (name, transcript) in [("pagefork", &ours), ("wasmtime", &theirs)] {
        if let Some(what) = transcript.exhausted {
            count(&format!("cases in which {name} ran out of {what}"), 1);
        }
    }
    let difference = subject::difference(&ours, &theirs)
        .map(|text| format!("{text}{}{}", refusal("pagefork", &ours), refusal("peer", &theirs)));
    // Neither engine may refuse what is valid.
    let difference = difference.or_else(|| {
        let refused = ours.refusal.as_ref().or(theirs.refusal.as_ref())?;
        Some(format!("both refuse a valid module: {refused}"))
    });
    Comparison { difference, counts }
}

fn refusal(who: &str, transcript: &Transcript) -> String {
    let text = transcript.refusal.as_ref();
    text.map_or_else(String::new, |text| format!("\n{who} refuses a module: {text}"))
}

/// Writes the modules of a case into `directory`; returns their paths.
///
/// # Errors
/// If a file cannot be written.
pub fn write_modules(case: &Case, directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)?;
    let mut paths = Vec::new();
    for (i, module) in case.modules.iter().enumerate() {
        let path = directory.join(format!("{}-{i}.wasm", case.seed));
        std::fs::write(&path, &module.wasm)?;
        paths.push(path);
    }
    Ok(paths)
}

/// The comparison of many cases.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seed of the first; those of the others follow it.
    pub seed: u64,
    /// How many cases.
    pub cases: u64,
    /// What modules may use.
    pub features: FeatureSet,
    /// How many processes at a time.
    pub processes: usize,
    /// A case that takes longer hangs: [`CASE_TIME_MAX`].
    pub case_time_max: Duration,
    /// Where progress is kept and differing modules are written.
    pub directory: PathBuf,
}

/// What a campaign showed.
#[derive(Debug, Default)]
pub struct Report {
    /// Cases compared.
    pub cases: u64,
    /// What happened, over all cases.
    pub counts: Counts,
    /// Each difference, with its seed.
    pub differences: Vec<(u64, String)>,
    /// How much of it was done before, by a campaign that was ended.
    pub resumed: u64,
}

/// Cases that one process runs before another takes over, and the unit in which
/// progress is kept.
const CHUNK: u64 = 200;
/// Longer than any case takes, however busy the machine is.
pub const CASE_TIME_MAX: Duration = Duration::from_secs(300);

/// How often it is looked whether a case hangs.
const STEP: Duration = Duration::from_millis(500);

impl Campaign {
    /// Runs the campaign, from where it was ended before; `worker` starts a process
    /// that calls [`work`] for a range of seeds. `progress` is called after each
    /// chunk.
    ///
    /// # Errors
    /// If progress cannot be kept, or processes cannot be started.
    pub fn run(
        &self,
        worker: impl Fn(Range<u64>) -> Command + Sync,
        progress: impl Fn(&Report) + Sync,
    ) -> Result<Report, String> {
        let mut journal = Journal::open(self)?;
        let mut report = std::mem::take(&mut journal.report);
        report.resumed = report.cases;
        let end = self.seed + self.cases;
        let mut chunks: Vec<_> = (self.seed..end)
            .step_by(CHUNK as usize)
            .map(|start| start..end.min(start + CHUNK))
            .filter(|chunk| !journal.done.contains(&chunk.start))
            .collect();
        chunks.reverse();
        let shared = Mutex::new((chunks, journal, report));
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..self.processes.max(1) {
                threads.push(scope.spawn(|| -> Result<(), String> {
                    loop {
                        let Some(chunk) = lock().0.pop() else {
                            return Ok(());
                        };
                        let result = run_chunk(&worker, chunk.clone(), self.case_time_max)?;
                        let (_, journal, report) = &mut *lock();
                        journal.add(&chunk, &result)?;
                        add(report, result);
                        progress(report);
                    }
                }));
            }
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err("a thread of the campaign failed".to_owned()))
            })
        })?;
        let (_, _, report) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(report)
    }
}

fn add(report: &mut Report, other: Report) {
    report.cases += other.cases;
    for (name, count) in other.counts {
        *report.counts.entry(name).or_default() += count;
    }
    report.differences.extend(other.differences);
}

/// What a worker process does: compares these seeds, and says so on its output, a
/// line before and lines after each.
///
/// # Errors
/// If the library is missing, or the output is closed.
pub fn work(seeds: Range<u64>, features: FeatureSet) -> Result<(), String> {
    let library = Library::open()?;
    let engines = [0, 1, 2, 3].map(Engines::for_seed);
    let mut output = std::io::stdout().lock();
    let mut say = |line: String| -> Result<(), String> {
        writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| error.to_string())
    };
    for seed in seeds {
        say(format!("begin\t{seed}"))?;
        let case = Case::new(seed, features);
        let comparison = compare(&case, &engines[(seed % 4) as usize], library);
        for (name, count) in comparison.counts {
            say(format!("count\t{count}\t{name}"))?;
        }
        if let Some(difference) = comparison.difference {
            say(format!("differ\t{seed}\t{difference:?}"))?;
        }
        say(format!("end\t{seed}"))?;
    }
    Ok(())
}

/// Has the seeds compared by a process of its own, and by further ones after a
/// seed that ends it: a crash or hang is a difference, too.
fn run_chunk(
    worker: &impl Fn(Range<u64>) -> Command,
    seeds: Range<u64>,
    case_time_max: Duration,
) -> Result<Report, String> {
    let mut report = Report::default();
    let mut start = seeds.start;
    while start < seeds.end {
        let mut command = worker(start..seeds.end);
        // Modules are small: what would compile in parallel waits for itself.
        command.env("RAYON_NUM_THREADS", "1").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let lines = lines(&mut child)?;
        let (mut current, mut silence) = (None, Duration::ZERO);
        let reason = loop {
            // In small steps: a machine that stood still is no hang.
            let line = match lines.recv_timeout(STEP) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {
                    silence += STEP;
                    if silence < case_time_max {
                        continue;
                    }
                    // Only fails where the process has already ended.
                    let _ = child.kill();
                    break Some(format!("hangs for {} s", case_time_max.as_secs()));
                }
            };
            silence = Duration::ZERO;
            let mut words = line.splitn(3, '\t');
            let (verb, number) = (words.next(), words.next().and_then(|word| word.parse().ok()));
            match (verb, number, words.next()) {
                (Some("begin"), Some(seed), None) => current = Some(seed),
                (Some("count"), Some(count), Some(name)) => {
                    *report.counts.entry(name.to_owned()).or_default() += count;
                }
                (Some("differ"), Some(seed), Some(text)) => {
                    report.differences.push((seed, unescape(text)));
                }
                (Some("end"), Some(seed), None) => {
                    report.cases += 1;
                    start = seed + 1;
                    current = None;
                }
                _ => return Err(format!("a worker said {line:?}")),
            }
        };
        let status = child.wait().map_err(|error| format!("cannot await a worker: {error}"))?;
        match current {
            Some(seed) => {
                let reason = reason.unwrap_or_else(|| format!("ends the process: {status}"));
                report.differences.push((seed, reason));
                report.cases += 1;
                start = seed + 1;
            }
            None if start < seeds.end => {
                return Err(format!("a worker ended before seed {start}: {status}"));
            }
            None => {}
        }
    }
    Ok(report)
}

/// What the process prints, line by line.
fn lines(child: &mut Child) -> Result<Receiver<String>, String> {
    let output = child.stdout.take().ok_or("the worker has no output")?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// What `{:?}` made of a text, as far as a person is concerned.
fn unescape(text: &str) -> String {
    text.trim_matches('"').replace("\\n", "\n").replace("\\\"", "\"").replace("\\\\", "\\")
}

/// The progress of a campaign, in a file.
struct Journal {
    file: std::fs::File,
    /// First seeds of the chunks that are done.
    done: std::collections::BTreeSet<u64>,
    report: Report,
}

impl Journal {
    /// Opens the campaign's journal, or begins one.
    ///
    /// # Errors
    /// If the file cannot be read and written, or is of a campaign of another build.
    fn open(campaign: &Campaign) -> Result<Self, String> {
        let directory = &campaign.directory;
        let path = directory.join(format!("{}-{}.journal", campaign.features, campaign.seed));
        let failed = |error| format!("cannot keep progress in {}: {error}", path.display());
        std::fs::create_dir_all(directory).map_err(failed)?;
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.map_err(failed)?,
        };
        let mut options = std::fs::OpenOptions::new();
        let file = options.create(true).append(true).open(&path).map_err(failed)?;
        let mut journal = Self { file, done: Default::default(), report: Report::default() };
        let header = format!("build\t{}", build()?);
        if text.is_empty() {
            journal.write(&header)?;
            return Ok(journal);
        }
        if text.lines().next() != Some(&header) {
            return Err(format!(
                "{} is of another build of this program, whose cases do not count for this one: \
                 delete it to begin again, or choose another seed",
                path.display()
            ));
        }
        let mut pending = Report::default();
        let range = campaign.seed..campaign.seed + campaign.cases;
        for line in text.lines().skip(1) {
            let mut words = line.splitn(3, '\t');
            let (verb, number) = (words.next(), words.next().and_then(|word| word.parse().ok()));
            match (verb, number, words.next()) {
                (Some("count"), Some(count), Some(name)) => {
                    *pending.counts.entry(name.to_owned()).or_default() += count;
                }
                (Some("differ"), Some(seed), Some(text)) => {
                    pending.differences.push((seed, unescape(text)));
                }
                (Some("done"), Some(start), Some(cases)) => {
                    pending.cases = cases.parse().unwrap_or(0);
                    // A shorter chunk was the last one of a shorter campaign.
                    let whole = pending.cases == CHUNK.min(range.end.saturating_sub(start));
                    if range.contains(&start) && whole && journal.done.insert(start) {
                        add(&mut journal.report, std::mem::take(&mut pending));
                    }
                    pending = Report::default();
                }
                // The last line of a process that was ended may be cut short.
                _ => pending = Report::default(),
            }
        }
        Ok(journal)
    }

    fn add(&mut self, chunk: &Range<u64>, report: &Report) -> Result<(), String> {
        let mut text = String::new();
        for (name, count) in &report.counts {
            text.push_str(&format!("count\t{count}\t{name}\n"));
        }
        for (seed, difference) in &report.differences {
            text.push_str(&format!("differ\t{seed}\t{difference:?}\n"));
        }
        text.push_str(&format!("done\t{}\t{}", chunk.start, report.cases));
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> Result<(), String> {
        writeln!(self.file, "{text}").map_err(|error| format!("cannot keep progress: {error}"))
    }
}

/// What tells this build of the program from any other.
fn build() -> Result<String, String> {
    use std::hash::Hasher;
    let path = std::env::current_exe().map_err(|error| format!("where is this? {error}"))?;
    let bytes = std::fs::read(&path).map_err(|error| format!("cannot read {path:?}: {error}"))?;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(&bytes);
    Ok(format!("{:016x}", hasher.finish()))
}

/// Time in words, for progress.
pub fn speed(report: &Report, since: Instant) -> String {
    let seconds = since.elapsed().as_secs_f64();
    let fresh = report.cases - report.resumed;
    format!("{fresh} cases in {seconds:.0} s, {:.1} a second", fresh as f64 / seconds.max(0.001))
}
