//! The command `pagefork`, as a library: its grammar, from which man pages and completions are
//! generated, and the command itself.

#![forbid(unsafe_code)]

mod arguments;
mod program;
mod progress;

mod fork;
mod captured;
mod run;
mod serve;
mod compile;
mod sockets;
mod values;

mod image;
mod node;
mod inspect;
mod doctor;
mod wast;
mod completions;

mod show;
mod output;

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::CliCommand;
use nix::sys::signal::{SigSet, Signal};

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
    outlive_long_files();
    let result = match arguments::parse(arguments) {
        Ok(CliCommand::Run(arguments)) => run::run(&arguments),
        Ok(CliCommand::Serve(arguments)) => serve::serve(&arguments),
        Ok(CliCommand::Fork(arguments)) => fork::fork(&arguments),
        Ok(CliCommand::Snapshot(arguments)) => captured::snapshot::snapshot(&arguments),
        Ok(CliCommand::Restore(arguments)) => captured::restore::restore(&arguments),
        Ok(CliCommand::Image(arguments)) => image::image(&arguments),
        Ok(CliCommand::Node(arguments)) => node::node(&arguments),
        Ok(CliCommand::Migrate(arguments)) => node::migrate(&arguments),
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

/// Has a write beyond the limit of a file's size (RLIMIT_FSIZE) fail with an error, which programs
/// get. By its signal Linux would end this process, with all programs in it.
fn outlive_long_files() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGXFSZ);
    // Threads that are started from now on block it, too. To fail is not known of this call.
    let _ = signals.thread_block();
}
