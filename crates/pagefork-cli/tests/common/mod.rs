//! Runs the command as a person does.

#![allow(dead_code, reason = "not every test needs everything")]

pub(crate) mod users;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `pagefork` in the repository's root, with these words and this input.
pub(crate) fn pagefork_with_input(words: &str, input: &str) -> Ended {
    pagefork_as(words, input, &Path::new(env!("CARGO_TARGET_TMPDIR")).join("config"))
}

/// As [`pagefork_with_input`], as a user with this directory of configuration.
pub(crate) fn pagefork_as(words: &str, input: &str, config: &Path) -> Ended {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut child = Command::new(env!("CARGO_BIN_EXE_pagefork"))
        .args(words.split(' '))
        .current_dir(root)
        .env("PAGEFORK_TEST_VARIABLE", "inherited")
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches"))
        .env("TMPDIR", env!("CARGO_TARGET_TMPDIR"))
        .env("XDG_DATA_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("data"))
        .env("XDG_CONFIG_HOME", config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    match stdin.write_all(input.as_bytes()) {
        // A command that refuses its arguments ends without reading.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.expect("the command reads its input"),
    }
    drop(stdin);
    let output = child.wait_with_output().expect("the command ends");
    Ended {
        code: output.status.code().expect("no signal ends the command"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// Runs `pagefork` in the repository's root, with these words.
pub(crate) fn pagefork(words: &str) -> Ended {
    pagefork_with_input(words, "")
}

/// Asserts that a command ends with this exit code and says this.
#[track_caller]
pub(crate) fn assert_fails(words: &str, code: i32, messages: &[&str]) {
    let ended = pagefork(words);
    assert_eq!(ended.code, code, "{words}: {}", ended.stderr);
    for message in messages {
        assert!(ended.stderr.contains(message), "{words}: no {message:?} in: {}", ended.stderr);
    }
}

/// Writes a file for a test; gives its path.
pub(crate) fn file(name: &str, contents: impl AsRef<[u8]>) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, contents).expect("the directory can be written");
    path.display().to_string()
}
