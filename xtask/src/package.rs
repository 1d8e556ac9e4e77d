//! `man` and `package`: man pages, shell completions, a static binary and a Debian package of the
//! command, in `target/package`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::host::{self, Host};

/// The target whose binaries need nothing of a system but its kernel.
const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";

/// Where completions lie in a Debian package, by the names that clap gives them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("pagefork.bash", "usr/share/bash-completion/completions/pagefork"),
    ("_pagefork", "usr/share/zsh/vendor-completions/_pagefork"),
    ("pagefork.fish", "usr/share/fish/vendor_completions.d/pagefork.fish"),
];

/// Generates man pages and completions from the command's grammar. Gives their directory.
pub(crate) fn man(host: &Host) -> Result<PathBuf> {
    let directory = host.target.join("package");
    let mut cargo = host.cargo();
    cargo.args(["run", "--quiet", "--locked", "-p", "pagefork-cli", "--example", "package", "--"]);
    host::check(cargo.arg(&directory))?;
    Ok(directory)
}

/// Builds the static binary, and a Debian package of it.
pub(crate) fn package(host: &Host) -> Result {
    let directory = man(host)?;
    let mut cargo = host.cargo();
    cargo.args(["build", "--release", "--locked", "-p", "pagefork-cli", "--target", STATIC_TARGET]);
    host::check(&mut cargo).map_err(|error| {
        format!("{error}\n`rustup target add {STATIC_TARGET}` installs what a static build needs")
    })?;
    let built = host.target.join(STATIC_TARGET).join("release/pagefork");
    if !is_static(&read(&built)?) {
        return Err(format!("{} needs a dynamic loader", built.display()));
    }
    let binary = directory.join("pagefork");
    copy(&built, &binary)?;

    let deb = directory.join(format!("pagefork_{}_amd64.deb", env!("CARGO_PKG_VERSION")));
    let tree = directory.join("deb");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
    }
    copy(&binary, &tree.join("usr/bin/pagefork"))?;
    copy(&host.root.join("LICENSE"), &tree.join("usr/share/doc/pagefork/copyright"))?;
    for (name, place) in COMPLETIONS {
        copy(&directory.join("completions").join(name), &tree.join(place))?;
    }
    let pages = directory.join("man");
    for page in fs::read_dir(&pages).map_err(|error| format!("{}: {error}", pages.display()))? {
        let page = page.map_err(|error| format!("{}: {error}", pages.display()))?;
        let place = tree.join("usr/share/man/man1").join(page.file_name());
        copy(&page.path(), &place)?;
        host::check(host.command("gzip").args(["-9", "--no-name"]).arg(&place))?;
    }
    let control = tree.join("DEBIAN/control");
    let size = fs::metadata(&binary).map_or(0, |metadata| metadata.len()) / 1024;
    write(&control, control_file(size))?;
    // The files are root's, whoever builds the package.
    let mut build = host.command("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).arg(&tree).arg(&deb);
    host::check(&mut build)?;
    println!("{}\n{}", binary.display(), deb.display());
    Ok(())
}

/// What `dpkg` knows about the package. A static binary depends on no other package.
fn control_file(size_kib: u64) -> String {
    format!(
        "Package: pagefork\nVersion: {}\nArchitecture: amd64\nMaintainer: The Pagefork project \
         <{}>\nInstalled-Size: {size_kib}\nSection: utils\nPriority: optional\nHomepage: {}\n\
         Description: WebAssembly runtime in which an instance is one run of pages\n Runs \
         WebAssembly programs, and serves HTTP with a fresh instance for each request.\n",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_REPOSITORY"),
        env!("CARGO_PKG_REPOSITORY"),
    )
}

/// Whether an executable of 64 bits names no dynamic loader.
fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| {
        let bytes = elf.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    };
    let segments = || {
        let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        (0..count).map(|index| number(start + index * size, 4)).collect::<Option<Vec<_>>>()
    };
    elf.starts_with(b"\x7fELF\x02")
        && segments().is_some_and(|kinds| !kinds.contains(&(INTERPRETER as usize)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies a file and its permissions, into directories that are made.
fn copy(from: &Path, to: &Path) -> Result {
    make_parent(to)?;
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn write(path: &Path, text: String) -> Result {
    make_parent(path)?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn make_parent(path: &Path) -> Result {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_executable_is_not_static() {
        // Tests are linked dynamically.
        let own = std::env::current_exe().expect("this test has a file");
        let mut elf = read(&own).expect("it can be read");
        assert!(!is_static(&elf));
        assert!(!is_static(b"#!/bin/sh\n"));
        // Without segments there is no loader.
        elf[56..58].fill(0);
        assert!(is_static(&elf));
    }

    #[test]
    fn a_control_file_has_a_field_a_line() {
        let text = control_file(12);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.iter().all(|line| line.starts_with(' ') || line.contains(": ")), "{text}");
        assert!(text.contains("\nInstalled-Size: 12\n") && text.ends_with("\n"));
    }
}
