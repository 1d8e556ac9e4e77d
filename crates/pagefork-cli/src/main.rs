//! The command `pagefork`: runs WebAssembly programs and test scripts.

#![forbid(unsafe_code)]

/// The grammar of the command line.
mod arguments;
/// `pagefork run`.
mod run;
/// Values on the command line and in what `--invoke` prints.
mod values;
/// `pagefork wast`.
mod wast;

use std::process::ExitCode;

use arguments::Command;

fn main() -> ExitCode {
    let result = match arguments::parse(std::env::args_os()) {
        Command::Run(arguments) => run::run(&arguments),
        Command::Wast(arguments) => wast::run(&arguments),
    };
    result.unwrap_or_else(|message| {
        eprintln!("pagefork: {message}");
        ExitCode::FAILURE
    })
}
