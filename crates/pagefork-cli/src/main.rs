//! The command `pagefork`: runs WebAssembly programs and test scripts, and shows
//! what modules and machines are made of.

#![forbid(unsafe_code)]

/// The grammar of the command line.
mod arguments;
/// From a file to a compiled module.
mod program;
/// How far compiling is, on a terminal.
mod progress;

/// `pagefork run`.
mod run;
/// `pagefork serve`.
mod serve;
/// `pagefork compile`.
mod compile;
/// Sockets for programs.
mod sockets;
/// Values on the command line and in what `--invoke` prints.
mod values;

/// `pagefork inspect`.
mod inspect;
/// `pagefork doctor`.
mod doctor;
/// `pagefork wast`.
mod wast;
/// `pagefork completions`.
mod completions;

/// Tables, sizes and names on a terminal.
mod show;

use std::process::ExitCode;

use arguments::Command;

fn main() -> ExitCode {
    let result = match arguments::parse(std::env::args_os()) {
        Command::Run(arguments) => run::run(&arguments),
        Command::Serve(arguments) => serve::serve(&arguments),
        Command::Compile(arguments) => compile::compile(&arguments),
        Command::Inspect(arguments) => inspect::inspect(&arguments),
        Command::Doctor => doctor::doctor(),
        Command::Wast(arguments) => wast::run(&arguments),
        Command::Completions(arguments) => completions::write(&arguments),
    };
    result.unwrap_or_else(|message| {
        eprintln!("pagefork: {message}");
        ExitCode::FAILURE
    })
}
