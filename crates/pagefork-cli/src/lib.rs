//! The command `pagefork`, as a library: its grammar, from which man pages and completions are
//! generated, and the command itself.

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

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::CliCommand;

pub use arguments::grammar;

/// Runs the command with these arguments, the first of which is its own name.
///
/// # Examples
///
/// ```
/// use std::process::ExitCode;
///
/// let arguments = ["pagefork", "--version"].map(Into::into);
/// assert_eq!(pagefork_cli::run_command(arguments), ExitCode::SUCCESS);
/// ```
pub fn run_command(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let result = match arguments::parse(arguments) {
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
