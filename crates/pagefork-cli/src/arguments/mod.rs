//! The grammar of the command line.

mod common;
mod fork;
mod captured;
mod image;
mod node;
mod run;
mod serve;
mod strategies;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::output;

pub(crate) use captured::{RestoreArguments, SnapshotArguments, SnapshotPoint};
pub(crate) use common::{
    ComingArguments, EnvironmentArguments, FetchLayer, FromArguments, HolderArgument,
    ProgramArguments, SessionArguments, UnknownImports,
};
pub(crate) use fork::ForkArguments;
pub(crate) use image::{ImageAction, ImageArguments};
pub(crate) use node::{
    GrantArguments, LostArguments, MigrateArguments, NodeAction, NodeArguments, NodeRunArguments,
    NodeSnapshotArguments, NodeStartArguments, SecondArgument, TrustArguments,
};
pub(crate) use run::{ProfileFormat, RunArguments};
pub(crate) use serve::{LogFormat, ServeArguments};
pub(crate) use strategies::{GrowthArguments, ResetArguments};

/// Parses a command line.
///
/// # Errors
/// Help that was asked for, or the mistake in the line: for [`explain`].
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<CliCommand, clap::Error> {
    Pagefork::try_parse_from(with_default_command(arguments)).map(|parsed| parsed.command)
}

/// Prints help, with exit code 0, or the mistake in a command line, with exit code 2.
///
/// # Errors
/// Help that cannot be written.
pub(crate) fn explain(error: &clap::Error) -> Result<ExitCode, String> {
    if error.use_stderr() {
        // It cannot be said elsewhere that this fails.
        let _ = error.print();
        return Ok(ExitCode::from(2));
    }
    output::print(error.render().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a file's name stands for standard input.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// The grammar of the command line, from which man pages and completions are generated.
///
/// # Examples
///
/// ```
/// let grammar = pagefork_cli::grammar();
/// assert!(grammar.get_subcommands().any(|command| command.get_name() == "serve"));
/// ```
pub fn grammar() -> clap::Command {
    Pagefork::command()
}

#[derive(Parser)]
#[command(
    name = "pagefork",
    version,
    about = "Runs WebAssembly: an instance is one run of pages.",
    after_help = "`run` is the default: `pagefork FILE ARGUMENTS...` runs a program.",
    disable_help_subcommand = true
)]
struct Pagefork {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
pub(crate) enum CliCommand {
    /// Run a program, or call one of its functions
    Run(RunArguments),
    /// Serve HTTP: each request is answered by a fresh instance of a program
    Serve(ServeArguments),
    /// Run a program to its first read of standard input, and many copies of it from there on
    Fork(ForkArguments),
    /// Run a program to some point, and keep what it is then as an image
    Snapshot(SnapshotArguments),
    /// Go on with a program from an image
    Restore(RestoreArguments),
    /// Look after saved images: list, inspect, compare, send, remove them
    Image(ImageArguments),
    /// Serve images to other nodes and run programs for them, and know those that do so
    Node(NodeArguments),
    /// Move a program that runs at a node to another one
    Migrate(MigrateArguments),
    /// Compile a module to a file that `run` starts at once
    Compile(CompileArguments),
    /// Show what a module needs, offers and uses, and its layout in memory
    Inspect(InspectArguments),
    /// Test this machine for all that Pagefork needs, and name what is missing
    Doctor,
    /// Run WebAssembly test scripts
    Wast(WastArguments),
    /// Write a script for a shell that completes this command's arguments
    Completions(CompletionsArguments),
}

#[derive(Args)]
#[command(
    after_help = "The file holds machine code for this version of the command and processors \
                        of this level. It is as trusted as any executable, and marked as one."
)]
pub(crate) struct CompileArguments {
    /// The file to write; without it, FILE with the ending `.pfc`
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Compile for `run --fuel`
    #[arg(long)]
    pub(crate) fuel: bool,

    /// Compile for `run --deterministic`
    #[arg(long)]
    pub(crate) deterministic: bool,

    /// Compile for `run --core-dump`
    #[arg(long)]
    pub(crate) core_dump: bool,

    #[command(flatten)]
    pub(crate) growth: GrowthArguments,

    /// The module, binary or text; `-` is standard input
    pub(crate) file: PathBuf,
}

impl CompileArguments {
    /// The file to write; `None` if the module comes from standard input and no file is named.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let beside = || Some(&self.file).filter(|file| !is_stdin(file));
        self.output.clone().or_else(|| Some(beside()?.with_extension("pfc")))
    }
}

#[derive(Args)]
pub(crate) struct InspectArguments {
    /// List all functions, segments and globals, not only some
    #[arg(long)]
    pub(crate) all: bool,

    /// The module, binary or text; `-` is standard input
    pub(crate) file: PathBuf,
}

#[derive(Args)]
pub(crate) struct WastArguments {
    /// The scripts; each runs in a store of its own
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct CompletionsArguments {
    /// The shell that the script is for
    pub(crate) shell: clap_complete::Shell,
}

/// Inserts `run` where the first argument names no command.
fn with_default_command(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const GENERAL: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let grammar = grammar();
    let commands = grammar.get_subcommands().map(clap::Command::get_name);
    let mut known = commands.chain(GENERAL);
    if arguments.get(1).is_some_and(|first| !known.any(|known| first == OsStr::new(known))) {
        arguments.insert(1, "run".into());
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_has_no_contradiction() {
        grammar().debug_assert();
    }

    #[test]
    fn a_command_is_named_by_the_first_argument_or_is_run() {
        let parsed = |line: &str| {
            let arguments = with_default_command(line.split(' ').map(OsString::from));
            Pagefork::try_parse_from(arguments).map(|parsed| parsed.command)
        };
        assert!(matches!(parsed("pagefork doctor"), Ok(CliCommand::Doctor)));
        assert!(matches!(parsed("pagefork inspect a.wasm"), Ok(CliCommand::Inspect(_))));
        assert!(matches!(parsed("pagefork completions bash"), Ok(CliCommand::Completions(_))));
        assert!(matches!(parsed("pagefork a.wasm inspect"), Ok(CliCommand::Run(_))));
        assert!(matches!(parsed("pagefork ./doctor"), Ok(CliCommand::Run(_))));
        let error = parsed("pagefork completions sh").map(|_| ()).expect_err("no such shell");
        assert!(error.to_string().contains("elvish"), "{error}");
    }
}
