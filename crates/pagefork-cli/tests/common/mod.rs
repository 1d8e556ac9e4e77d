//! Runs the command as a person does.

#![allow(dead_code, reason = "not every test needs everything")]

pub(crate) mod remote;
pub(crate) mod users;

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Where the command is that tests of a user without rights run, who may not reach the usual one.
pub(crate) const COMMAND_OF_USER: &str = "PAGEFORK_TEST_COMMAND";

/// A directory of such a user.
pub(crate) const SCRATCH_OF_USER: &str = "PAGEFORK_TEST_SCRATCH";

/// The command.
pub(crate) fn command() -> PathBuf {
    env::var_os(COMMAND_OF_USER).map_or(env!("CARGO_BIN_EXE_pagefork").into(), PathBuf::from)
}

/// Where tests write.
pub(crate) fn scratch() -> PathBuf {
    env::var_os(SCRATCH_OF_USER).map_or(env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}

/// Runs `pagefork` in the repository's root, with these words and this input.
pub(crate) fn pagefork_with_input(words: &str, input: &str) -> Ended {
    pagefork_as(words, input, &scratch().join("config"))
}

/// As [`pagefork_with_input`], as a user with this directory of configuration.
pub(crate) fn pagefork_as(words: &str, input: &str, config: &Path) -> Ended {
    let root = match env::var_os(SCRATCH_OF_USER) {
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        Some(scratch) => scratch.into(),
    };
    let mut child = Command::new(command())
        .args(words.split(' '))
        .current_dir(root)
        .env("PAGEFORK_TEST_VARIABLE", "inherited")
        .env("XDG_CACHE_HOME", scratch().join("caches"))
        .env("TMPDIR", scratch())
        .env("XDG_DATA_HOME", scratch().join("data"))
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
    let path = scratch().join(name);
    std::fs::write(&path, contents).expect("the directory can be written");
    path.display().to_string()
}
