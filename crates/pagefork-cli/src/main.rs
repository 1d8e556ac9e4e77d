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
/// Standard output and standard error.
mod output;

use std::process::ExitCode;

use arguments::CliCommand;

fn main() -> ExitCode {
    let result = match arguments::parse(std::env::args_os()) {
        Ok(CliCommand::Run(arguments)) => run::run(&arguments),
        Ok(CliCommand::Serve(arguments)) => serve::serve(&arguments),
        Ok(CliCommand::Compile(arguments)) => compile::compile(&arguments),
        Ok(CliCommand::Inspect(arguments)) => inspect::inspect(&arguments),
        Ok(CliCommand::Doctor) => doctor::doctor(),
        Ok(CliCommand::Wast(arguments)) => wast::run(&arguments),
        Ok(CliCommand::Completions(arguments)) => completions::write(&arguments),
        Err(error) => arguments::explain(&error),
    };
    result.unwrap_or_else(|message| {
        output::say(message);
        ExitCode::FAILURE
    })
}
