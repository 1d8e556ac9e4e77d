//! `cargo run --release --features peer -- [--small] [NAME...]`: runs the
//! benchmarks whose names are given, or all, and prints a table of each.

use std::process::ExitCode;

use pagefork_bench::ALL;
use pagefork_bench::measure::{Size, table};

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
            println!("## {name}\n\n{}", table(&run(size)));
        }
    }
    ExitCode::SUCCESS
}
