use crate::Result;
use crate::host::{self, Host};

/// Tests that take longer than CI does: those marked as ignored in it, by every pair of
/// strategies.
pub(crate) fn run(host: &Host) -> Result {
    let mut cargo = host.cargo();
    cargo.args(["test", "--locked", "-p", "pagefork-tests", "--test", "spec_suite"]);
    cargo.args(["--", "--ignored", "--nocapture"]);
    host::check(&mut cargo)
}
