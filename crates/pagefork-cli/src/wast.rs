//! `pagefork wast`: runs test scripts.

use std::process::ExitCode;

use pagefork::Engine;
use pagefork_wast::WastRunner;

use crate::arguments::WastArguments;
use crate::output;

/// Runs each script; prints what failed and how many directives passed.
pub(crate) fn run(arguments: &WastArguments) -> Result<ExitCode, String> {
    let engine = Engine::default();
    let (mut passed, mut failed) = (0, 0);
    for path in &arguments.files {
        let name = path.display().to_string();
        let script = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the script {name}: {error}"))?;
        let mut runner = WastRunner::new(&engine).map_err(|error| error.to_string())?;
        let report = runner.run(&name, &script).map_err(|error| error.to_string())?;
        for failure in &report.failures {
            output::line(failure);
        }
        passed += report.passed;
        failed += report.failures.len();
    }
    output::print(format!("{passed} directives passed, {failed} failed\n"))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
