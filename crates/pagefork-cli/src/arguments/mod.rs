/// What `run` and `serve` are both given.
mod common;
/// `pagefork run`.
mod run;
/// `pagefork serve`.
mod serve;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

pub(crate) use common::{Program, UnknownImports, World};
pub(crate) use run::{Profile, Run};
pub(crate) use serve::{LogFormat, Serve};

/// Parses a command line. Prints help, or what is wrong with it, and ends the
/// process where that is all there is to do; the exit code is then 0 or 2.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Command {
    Pagefork::parse_from(with_default_command(arguments)).command
}

/// The grammar itself, for what is made from it.
pub(crate) fn grammar() -> clap::Command {
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
    command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a program, or call one of its functions
    Run(Run),
    /// Serve HTTP: each request is answered by a fresh instance of a program
    Serve(Serve),
    /// Compile a module to a file that `run` starts at once
    Compile(Compile),
    /// Show what a module needs, offers and uses, and its layout in memory
    Inspect(Inspect),
    /// Try what this machine can do, and say what is missing
    Doctor,
    /// Run WebAssembly test scripts
    Wast(Wast),
    /// Write a script for a shell that completes this command's arguments
    Completions(Completions),
}

#[derive(Args)]
#[command(
    after_help = "The file holds machine code for this version of the command and processors \
                        of this level. It is as trusted as any executable, and marked as one."
)]
pub(crate) struct Compile {
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

    /// The module, binary or text
    pub(crate) file: PathBuf,
}

impl Compile {
    /// The file to write.
    pub(crate) fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.file.with_extension("pfc"))
    }
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// List all functions, segments and globals, not only some
    #[arg(long)]
    pub(crate) all: bool,

    /// The module, binary or text
    pub(crate) file: PathBuf,
}

#[derive(Args)]
pub(crate) struct Wast {
    /// The scripts; each runs in a store of its own
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Completions {
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
        assert!(matches!(parsed("pagefork doctor"), Ok(Command::Doctor)));
        assert!(matches!(parsed("pagefork inspect a.wasm"), Ok(Command::Inspect(_))));
        assert!(matches!(parsed("pagefork completions bash"), Ok(Command::Completions(_))));
        assert!(matches!(parsed("pagefork a.wasm inspect"), Ok(Command::Run(_))));
        assert!(matches!(parsed("pagefork ./doctor"), Ok(Command::Run(_))));
        let error = parsed("pagefork completions sh").map(|_| ()).expect_err("no such shell");
        assert!(error.to_string().contains("elvish"), "{error}");
    }
}
