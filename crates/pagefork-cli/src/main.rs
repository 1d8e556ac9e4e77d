//! The command `pagefork`: runs and serves WebAssembly programs, and shows what modules and
//! machines are made of.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pagefork_cli::run_command(std::env::args_os())
}
