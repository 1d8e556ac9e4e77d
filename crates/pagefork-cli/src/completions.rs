use std::io::Write;
use std::process::ExitCode;

use crate::arguments::{self, Completions};

/// Writes the script for a shell to the standard output.
pub(crate) fn write(arguments: &Completions) -> Result<ExitCode, String> {
    let mut script = Vec::new();
    let mut grammar = arguments::grammar();
    clap_complete::generate(arguments.shell, &mut grammar, "pagefork", &mut script);
    std::io::stdout()
        .write_all(&script)
        .map_err(|error| format!("cannot write the script: {error}"))?;
    Ok(ExitCode::SUCCESS)
}
