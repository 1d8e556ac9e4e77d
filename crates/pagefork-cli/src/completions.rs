//! `pagefork completions`: writes a script for a shell.

use std::process::ExitCode;

use crate::arguments::{self, CompletionsArguments};
use crate::output;

/// Writes the script for a shell to the standard output.
pub(crate) fn write(arguments: &CompletionsArguments) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    let mut grammar = arguments::grammar();
    clap_complete::generate(arguments.shell, &mut grammar, "pagefork", &mut script);
    output::print(script)?;
    Ok(ExitCode::SUCCESS)
}
