//! Random modules, run here and in the peer, which must agree.

use crate::host::{self, Host};
use crate::{Result, guests};

/// Compares random modules with the released library of wasmtime, which is
/// fetched; the arguments are those of `fuzz/src/bin/differential.rs`. What a
/// finished run showed goes to `fuzz/RECORD.md`.
pub(crate) fn run(host: &Host, arguments: &[&str]) -> Result {
    guests::fetch_peer(host)?;
    let commit = host::output(host.command("git").args(["rev-parse", "--short", "HEAD"]))?;
    let changes =
        host::output(host.command("git").args(["status", "--porcelain", "--", "crates"]))?;
    let changed = if changes.trim().is_empty() { "" } else { " and changes" };
    let mut cargo = host.cargo();
    cargo.args(["run", "--locked", "-p", "pagefork-fuzz", "--bin", "differential", "--"]);
    cargo
        .args(arguments)
        .env("PAGEFORK_GUESTS", host.guests())
        .env("PAGEFORK_COMMIT", format!("{}{changed}", commit.trim()));
    host::check(&mut cargo)
}
