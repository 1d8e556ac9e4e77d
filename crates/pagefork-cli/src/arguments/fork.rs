//! Arguments of `pagefork fork`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::common::{
    EnvironmentArguments, ProgramArguments, SessionArguments, UnknownImports, time,
};
use super::strategies::ResetArguments;

#[derive(Args)]
#[command(
    override_usage = "pagefork fork [OPTIONS] (--inputs LINES | -n COUNT) FILE [ARGUMENTS]...",
    after_help = "The program runs once, up to its first read of standard input, or to where it \
                  calls the import `pagefork.snapshot`. Each fork goes on from there: it reads a \
                  line of LINES, or its number, from 1 to COUNT, and then the end. What it prints \
                  comes in the order of the lines."
)]
pub(crate) struct ForkArguments {
    #[command(flatten)]
    pub(crate) environment: EnvironmentArguments,

    #[command(flatten)]
    pub(crate) session: SessionArguments,

    /// Run a fork for each line of this file; `-` is standard input
    #[arg(long, value_name = "LINES", conflicts_with = "count", required_unless_present = "count")]
    pub(crate) inputs: Option<PathBuf>,

    /// Run this many forks
    #[arg(short = 'n', long = "count", value_name = "COUNT")]
    pub(crate) count: Option<u32>,

    /// Run this many at once; without it, one for each processor
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,

    /// End a fork with a trap when it has run this long: 500ms, 10s, 2m
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) timeout: Option<Duration>,

    /// What to do about imported functions that the command does not define
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    pub(crate) unknown_imports: UnknownImports,

    /// Say at the end, on standard error, how instances are reset and memories grow, and why
    #[arg(long)]
    pub(crate) say_strategies: bool,

    #[command(flatten)]
    pub(crate) resets: ResetArguments,

    #[command(flatten)]
    pub(crate) program: ProgramArguments,
}
