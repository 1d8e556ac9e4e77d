//! `cargo run --release --features peer -- [--small] [--into FILE] [NAME...]`: runs
//! the benchmarks whose names are given, or all, prints a table of each, and leaves
//! all samples in `results` of Cargo's target directory. With `--into`, a table
//! also replaces what a document has between `<!-- bench NAME -->` and
//! `<!-- bench end -->`.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagefork_bench::ALL;
use pagefork_bench::measure::{Size, raw, summary, table};

fn main() -> ExitCode {
    let mut size = Size::Large;
    let mut names = Vec::new();
    let mut document = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--small" => size = Size::Small,
            "--into" => document = arguments.next().map(PathBuf::from),
            _ => names.push(argument),
        }
    }
    let unknown = names.iter().find(|name| ALL.iter().all(|(known, _)| known != name));
    if let Some(unknown) = unknown {
        let known: Vec<&str> = ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no benchmark {unknown:?}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    for (name, run) in ALL {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            let rows = run(size);
            let mut text = table(&rows);
            if let Some(summary) = summary(&rows) {
                text += &format!("\n{summary}\n");
            }
            println!("## {name}\n\n{text}");
            if let Some(document) = &document
                && let Err(error) = write_into(document, name, &text)
            {
                eprintln!("{}: {error}", document.display());
            }
            if let Err(error) = keep(name, &raw(name, &rows)) {
                eprintln!("the samples of {name} are not kept: {error}");
            }
        }
    }
    ExitCode::SUCCESS
}

/// Replaces what the document has for this benchmark, if it has anything.
fn write_into(document: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let old = std::fs::read_to_string(document)?;
    match between(&old, name) {
        Some(range) => {
            std::fs::write(document, [&old[..range.start], text, &old[range.end..]].concat())
        }
        None => Ok(()),
    }
}

/// Where the lines between the marks of a benchmark are.
fn between(document: &str, name: &str) -> Option<Range<usize>> {
    let mark = format!("<!-- bench {name} -->\n");
    let start = document.find(&mark)? + mark.len();
    let end = start + document[start..].find("<!-- bench end -->")?;
    Some(start..end)
}

/// Writes samples next to the directory that holds this program.
fn keep(name: &str, samples: &str) -> std::io::Result<()> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).map_or_else(PathBuf::new, PathBuf::from);
    let directory = target.join("results");
    std::fs::create_dir_all(&directory)?;
    let file = directory.join(name).with_extension("tsv");
    std::fs::write(&file, samples)?;
    eprintln!("samples: {}", file.display());
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
}
