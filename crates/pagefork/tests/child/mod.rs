//! Tests that end their process, or change what holds in all of it.

use std::process::{Command, ExitStatus};

/// Runs `body` in a process of its own, which is this test again.
pub(crate) fn in_child(test: &str, body: fn()) -> ExitStatus {
    if std::env::var_os("PAGEFORK_CHILD").is_some() {
        body();
        std::process::exit(0);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("PAGEFORK_CHILD", "1")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}
