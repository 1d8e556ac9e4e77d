//! `pagefork compile`: writes a code image.

use std::process::ExitCode;

use pagefork::{Config, StrategyConfig};

use crate::arguments::CompileArguments;
use crate::program::{self, Loader};

/// Compiles a module and writes it as a code image.
pub(crate) fn compile(arguments: &CompileArguments) -> Result<ExitCode, String> {
    let file = &arguments.file;
    let output = arguments.output().ok_or("name the file to write with `-o`")?;
    if output == *file {
        return Err(format!("{} would be replaced: name another file with `-o`", file.display()));
    }
    let binary = program::read(file)?;
    let mut config = Config::new();
    config.fuel(arguments.fuel).deterministic(arguments.deterministic);
    config.sources(arguments.core_dump);
    config.strategies(arguments.growth.strategies(StrategyConfig::default()));
    let module = Loader::new(config)?.compile(file, &binary)?;
    module.write_code_image_file(output).map_err(|error| format!("{error:#}"))?;
    Ok(ExitCode::SUCCESS)
}
