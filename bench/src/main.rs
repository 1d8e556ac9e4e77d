//! `cargo run --release --features peer -- [--small] [NAME...]`: runs the
//! benchmarks whose names are given, or all, prints a table of each, and leaves
//! all samples in `results` of Cargo's target directory.

use std::path::PathBuf;
use std::process::ExitCode;

use pagefork_bench::ALL;
use pagefork_bench::measure::{Size, raw, summary, table};

fn main() -> ExitCode {
    let mut size = Size::Large;
    let mut names = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--small" => size = Size::Small,
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
            println!("## {name}\n\n{}", table(&rows));
            if let Some(summary) = summary(&rows) {
                println!("{summary}\n");
            }
            if let Err(error) = keep(name, &raw(name, &rows)) {
                eprintln!("the samples of {name} are not kept: {error}");
            }
        }
    }
    ExitCode::SUCCESS
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
