//! `cargo run --release --features peer -- [--small] [--record] [--plots DIRECTORY] [--threads LIST] [NAME...]`:
//! runs the benchmarks whose names are given, or all, prints a table of each, and leaves
//! all samples in `results` of Cargo's target directory. With `--record`, a table
//! also replaces what `RESULTS.md`, `STRATEGIES.md` or `REMOTE_MEMORY.md` has between `<!-- bench NAME -->` and `<!-- bench end -->`,
//! and the samples are kept in `samples/DATE/NAME.tsv` beside it, in several files if they are many. Drawings are left beside the
//! samples, or where `--plots` says; with `--record`, the one in `docs/plots` is replaced too. `--redraw DIRECTORY` measures nothing, and
//! draws what was recorded there anew, in `docs/plots`. `--threads 1,8,64` says how many threads do the same at a time in
//! benchmarks of threads.
//!
//! `--signatures [COUNT [SEED]]` calls functions of random types and compares bits, and measures nothing.
//! `--spin PAGES BEFORE REQUESTS [cold]` repeats one spawn for a profiler, see
//! [`pagefork_bench::spawn::spin`]; `--part` is what a benchmark starts by itself.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pagefork_bench::ALL;
use pagefork_bench::measure::{Options, Size};
use pagefork_bench::report::Report;

/// At most as many threads do the same at a time.
const THREADS_MAX: u32 = 1024;

/// At most as many lines are in a file of samples.
const LINES_MAX: usize = 900;

fn main() -> ExitCode {
    let mut options = Options::of(Size::Large);
    let mut names = Vec::new();
    let mut record = false;
    let mut plots = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--small" => options.size = Size::Small,
            "--record" => record = true,
            "--part" => {
                let arguments: Vec<String> = arguments.collect();
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                match *arguments {
                    ["serve", backend, guest, length] => {
                        pagefork_bench::serve::part(backend, guest, length.parse().unwrap_or(0));
                    }
                    ["postcopy", ref rest @ ..] => pagefork_bench::postcopy::part(rest),
                    ["image", what, directory] => pagefork_bench::image::part(what, directory),
                    ["contained", ref rest @ ..] => {
                        print!("{}", pagefork_bench::contained::part(rest));
                    }
                    _ => println!("{}", pagefork_bench::density::part(&arguments)),
                }
                return ExitCode::SUCCESS;
            }
            "--spin" => {
                let mut number = || arguments.next().and_then(|text| text.parse().ok());
                let (pages, before) = (number().unwrap_or(1), number().unwrap_or(0));
                let requests = number().unwrap_or(2_000_000);
                let cold = arguments.next().is_some();
                pagefork_bench::spawn::spin(pages, before, requests, cold);
                return ExitCode::SUCCESS;
            }
            "--signatures" => {
                let mut number = || arguments.next().and_then(|text| text.parse().ok());
                let (count, seed) = (number().unwrap_or(1000), number().unwrap_or(1));
                pagefork_bench::signatures::check(count as usize, seed);
                println!("{count} signatures of seed {seed} agree");
                return ExitCode::SUCCESS;
            }
            "--plots" => plots = arguments.next().map(PathBuf::from),
            "--redraw" => {
                let directory = arguments.next().unwrap_or_default();
                return match redraw(Path::new(&directory)) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => {
                        eprintln!("nothing is drawn of {directory:?}: {error}");
                        ExitCode::FAILURE
                    }
                };
            }
            "--threads" => match threads(&arguments.next().unwrap_or_default()) {
                Some(threads) => options.threads = threads,
                None => {
                    eprintln!(
                        "--threads wants numbers of threads from 1 to {THREADS_MAX}, as in 1,8,64"
                    );
                    return ExitCode::from(2);
                }
            },
            _ => names.push(argument),
        }
    }
    let unknown = names.iter().find(|name| ALL.iter().all(|(known, _)| known != name));
    if let Some(unknown) = unknown {
        let known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no benchmark {unknown:?}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let missing = pagefork_bench::pageman::missing();
    if !missing.is_empty() && (names.is_empty() || names.iter().any(|name| name == "pageman")) {
        eprintln!("of `pageman` guests are missing, and with them rows: {}", missing.join(", "));
        if record {
            eprintln!("nothing is measured, because half a table is not recorded");
            return ExitCode::FAILURE;
        }
    }
    for (name, run) in ALL {
        // Without its WASI the peer cannot serve: not to be measured unless asked.
        let alone = cfg!(feature = "peer") && !cfg!(feature = "peer-wasi") && *name == "serve";
        let all = names.is_empty() && !alone;
        if all || names.iter().any(|wanted| wanted == name) {
            let report = run(&options);
            println!("## {name}\n\n{}", report.text);
            if record && let Err(error) = write_record(name, &report) {
                eprintln!("the results of {name} are not recorded: {error}");
            }
            if let Err(error) = keep(name, &report, plots.as_deref()) {
                eprintln!("the samples of {name} are not kept: {error}");
            }
        }
    }
    ExitCode::SUCCESS
}

/// The numbers of a list.
fn threads(list: &str) -> Option<Vec<u32>> {
    let number = |text: &str| text.parse().ok().filter(|number| (1..=THREADS_MAX).contains(number));
    list.split(',').map(number).collect()
}

/// Puts a table into the document that has a place for it, and its samples beside it.
fn write_record(name: &str, report: &Report) -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut is_shown = false;
    for document in ["RESULTS.md", "STRATEGIES.md", "REMOTE_MEMORY.md"] {
        is_shown |= write_into(&directory.join(document), name, &report.text)?;
    }
    if !is_shown {
        eprintln!("no document has a place for the table of {name}");
    }
    let date = Command::new("date").args(["--utc", "+%F"]).output()?.stdout;
    let directory = directory.join("samples").join(String::from_utf8_lossy(&date).trim());
    std::fs::create_dir_all(&directory)?;
    let file = |part: usize| match part {
        0 => directory.join(format!("{name}.tsv")),
        part => directory.join(format!("{name}-{}.tsv", part + 1)),
    };
    let parts = parts(&condensed(&report.samples));
    for (part, text) in parts.iter().enumerate() {
        std::fs::write(file(part), text)?;
    }
    // Those of an earlier run on that day.
    let mut later = (parts.len()..).map(file).take_while(|file| file.exists());
    later.try_for_each(std::fs::remove_file)?;
    // A drawing that a document shows is of the table beside it.
    let drawing = documented_plots().join(name).with_extension("svg");
    match &report.plot {
        Some(plot) if drawing.exists() => std::fs::write(drawing, plot),
        _ => Ok(()),
    }
}

/// Where the drawings of documents are.
fn documented_plots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plots")
}

/// Draws what was recorded in a directory: of `postcopy`, whose drawing says nothing that its samples do not.
fn redraw(directory: &Path) -> std::io::Result<()> {
    let mut samples = std::fs::read_to_string(directory.join("postcopy.tsv"))?;
    // Many samples are in several files.
    for part in 2.. {
        match std::fs::read_to_string(directory.join(format!("postcopy-{part}.tsv"))) {
            Ok(more) => samples += &more,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    let plot = pagefork_bench::postcopy::redrawn(&samples);
    let plot =
        plot.ok_or_else(|| std::io::Error::other("there are no samples of what is drawn"))?;
    std::fs::write(documented_plots().join("postcopy.svg"), plot)
}

/// Samples as files of no more lines than any file here has.
fn parts(samples: &str) -> Vec<String> {
    let lines: Vec<&str> = samples.split_inclusive('\n').collect();
    lines.chunks(LINES_MAX).map(<[&str]>::concat).collect()
}

/// Samples as they are kept: all of a cell in a line, without percentiles, to four digits.
fn condensed(samples: &str) -> String {
    let mut text = String::new();
    let mut last = "";
    for line in samples.lines() {
        let mut fields = line.rsplitn(3, '\t');
        let (value, number, cell) = (fields.next(), fields.next(), fields.next());
        let (Some(Ok(value)), Some(cell)) = (value.map(str::parse::<f64>), cell) else { continue };
        if number.is_some_and(|number| number.starts_with('p')) {
            continue;
        }
        // As it would be read again, and no longer than it has to be.
        let value: f64 = format!("{value:.3e}").parse().unwrap_or(value);
        match cell == last {
            true => text += &format!(" {value}"),
            false => text += &format!("{}{cell}\t{value}", if text.is_empty() { "" } else { "\n" }),
        }
        last = cell;
    }
    text.push('\n');
    text
}

/// Replaces what the document has for this benchmark. Returns whether it has anything.
fn write_into(document: &Path, name: &str, text: &str) -> std::io::Result<bool> {
    let old = std::fs::read_to_string(document)?;
    let Some(range) = between(&old, name) else { return Ok(false) };
    let new = [&old[..range.start], text, &old[range.end..]].concat();
    std::fs::write(document, new).map(|()| true)
}

/// Where the lines between the marks of a benchmark are.
fn between(document: &str, name: &str) -> Option<Range<usize>> {
    let mark = format!("<!-- bench {name} -->\n");
    let start = document.find(&mark)? + mark.len();
    let end = start + document[start..].find("<!-- bench end -->")?;
    Some(start..end)
}

/// Writes samples and drawing next to the directory that holds this program, or the
/// drawing elsewhere.
fn keep(name: &str, report: &Report, plots: Option<&Path>) -> std::io::Result<()> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).map_or_else(PathBuf::new, PathBuf::from);
    let directory = target.join("results");
    std::fs::create_dir_all(&directory)?;
    let file = directory.join(name).with_extension("tsv");
    std::fs::write(&file, &report.samples)?;
    eprintln!("samples: {}", file.display());
    if let Some(plot) = &report.plot {
        let directory = plots.unwrap_or(&directory);
        std::fs::create_dir_all(directory)?;
        std::fs::write(directory.join(name).with_extension("svg"), plot)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_found_by_its_name() {
        let document = "a\n<!-- bench x -->\nold\n<!-- bench end -->\nb\n";
        assert_eq!(&document[between(document, "x").unwrap()], "old\n");
        assert_eq!(between(document, "y"), None);
    }

    #[test]
    fn numbers_of_threads_are_a_list() {
        assert_eq!(threads("1,8,64"), Some(vec![1, 8, 64]));
        for wrong in ["", "0", "1,,2", "x", "-1", "1025"] {
            assert_eq!(threads(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn many_samples_are_in_several_files() {
        assert_eq!(parts("a\nb\n"), ["a\nb\n"]);
        let many = "a\n".repeat(LINES_MAX + 1);
        assert_eq!(parts(&many), ["a\n".repeat(LINES_MAX), "a\n".to_owned()]);
    }

    #[test]
    fn kept_samples_of_a_cell_are_in_a_line() {
        let samples =
            "x\ta\tns\t0\t12.34567\nx\ta\tns\t1\t7\nx\ta\tns\tp50\t7\nx\tb\tns\t0\t123456\n";
        assert_eq!(super::condensed(samples), "x\ta\tns\t12.35 7\nx\tb\tns\t123500\n");
    }
}
