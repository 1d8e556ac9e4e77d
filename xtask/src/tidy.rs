//! Rules that every file of the project keeps.

mod documents;
mod examples;
mod layers;
mod packages;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::{self, Host};
use crate::{Result, guests, sabotage};

/// Lines that a source file may have.
const LINES_MAX: usize = 900;

/// Files that may be longer, because their domain is one thing.
const LONG: &[&str] = &["Cargo.lock", "bench/Cargo.lock"];

/// Bytes that a committed file may have.
const BYTES_MAX: usize = 512 * 1024;

/// Crates that hold no unsafe code.
const SAFE: &[&str] = &[
    "crates/pagefork-cli/src/lib.rs",
    "crates/pagefork-cli/src/main.rs",
    "crates/pagefork-compiler/src/lib.rs",
    "crates/pagefork-debuginfo/src/lib.rs",
    "crates/pagefork-image/src/lib.rs",
    "crates/pagefork-node/src/lib.rs",
    "crates/pagefork-objects/src/lib.rs",
    "crates/pagefork-layout/src/lib.rs",
    "crates/pagefork-postcopy/src/lib.rs",
    "crates/pagefork-serve/src/lib.rs",
    "crates/pagefork-wasi/src/lib.rs",
    "crates/pagefork-wast/src/lib.rs",
    "xtask/src/main.rs",
];

/// Words that are left over from writing.
const LEFTOVERS: &[&str] = &["todo!", "unimplemented!", "dbg!", "FIXME", "TODO", "XXX"];

/// What proofs of `unsafe` blocks begin with that name no witness: neither a value nor a
/// clause of a contract.
const NO_WITNESS: &[&str] = &[
    "the caller's promise",
    "the caller's.",
    "as the caller",
    "as above",
    "the promise made",
    "the contract of",
];

/// Checks every rule and reports every breach, one a line.
pub(crate) fn run(host: &Host) -> Result {
    let mut files = BTreeMap::new();
    for path in host.files()? {
        files.insert(path.clone(), host::read(&host.root.join(&path))?);
    }
    let mut wrong = check(&files, &host.root.to_string_lossy());
    wrong.extend(packages::check(&files));
    wrong.extend(documents::check(&files));
    wrong.extend(layers::check(&files));
    wrong.extend(examples::check(&files));
    let patches = sabotage::patches(&host.root)?;
    wrong.extend(check_patches(&files, &patches));
    for patch in &patches {
        let path = Path::new("tests/sabotage").join(&patch.name);
        let mut git = Command::new("git");
        git.args(["apply", "--check"]).arg(&path).current_dir(&host.root);
        let applies = git.output().is_ok_and(|output| output.status.success());
        if !applies {
            wrong.push(format!("{}: does not apply", path.display()));
        }
    }
    if host.root.join("guest/built").is_dir() {
        wrong.extend(guests::check_built(&host.root)?);
    }
    if wrong.is_empty() {
        let lines = layers::lines_of_code(&files);
        println!("tidy: {} files; {lines} lines of code in the runtime's crates", files.len());
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// `root` is where this checkout lies, which no file may name.
fn check(files: &Files, root: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, bytes) in files {
        if bytes.len() > BYTES_MAX {
            wrong.push(format!(
                "{}: {} bytes; at most {BYTES_MAX} are committed",
                path.display(),
                bytes.len()
            ));
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            continue;
        };
        check_text(path, text, root, &mut wrong);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => check_rust(path, text, &mut wrong),
            Some("md") => check_links(files, path, text, &mut wrong),
            Some("toml") if path.ends_with("Cargo.toml") => check_manifest(path, text, &mut wrong),
            _ => {}
        }
    }
    for path in SAFE {
        let text = files.get(Path::new(path)).map(|bytes| String::from_utf8_lossy(bytes));
        if text.is_some_and(|text| !text.contains("#![forbid(unsafe_code)]")) {
            wrong.push(format!("{path}: must say `#![forbid(unsafe_code)]`"));
        }
    }
    wrong
}

fn check_text(path: &Path, text: &str, root: &str, wrong: &mut Vec<String>) {
    let shown = path.display();
    let lock = path.file_name().is_some_and(|name| name == "Cargo.lock");
    // Both hold the text of others: a patch its context, a golden file a dump.
    let foreign = path.extension().is_some_and(|extension| extension == "patch")
        || path.components().any(|part| part.as_os_str() == "golden");
    if text.lines().count() > LINES_MAX && !LONG.iter().any(|long| path == Path::new(long)) {
        wrong.push(format!(
            "{shown}: {} lines; split it (at most {LINES_MAX})",
            text.lines().count()
        ));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        wrong.push(format!("{shown}: no newline at the end"));
    }
    // This file must name what it forbids.
    if lock || path == Path::new("xtask/src/tidy.rs") {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        let mut at = |what: String| wrong.push(format!("{shown}:{}: {what}", number + 1));
        if !foreign && line.ends_with([' ', '\t']) {
            at("blanks at the end of the line".to_owned());
        }
        for word in LEFTOVERS.iter().filter(|word| line.contains(**word)) {
            at(format!("{word} is left over"));
        }
        if !root.is_empty() && line.contains(root) {
            at(format!("{root} is a path of one machine"));
        }
        let proof = line.trim_start().strip_prefix("// SAFETY: ").unwrap_or_default();
        if let Some(words) = NO_WITNESS.iter().find(|words| proof.starts_with(**words)) {
            at(format!("{words:?} names no witness: say which clause or value proves it"));
        }
        if let Some(citation) = vague_citation(line) {
            at(format!("{citation:?} does not say whose (\"wasmtime issue 4040\")"));
        }
    }
}

/// An "issue N" or "PR N" that no project's name precedes.
fn vague_citation(line: &str) -> Option<String> {
    let words: Vec<&str> =
        line.split_whitespace().map(|word| word.trim_matches(['(', ',', '`', '"'])).collect();
    words.windows(2).enumerate().find_map(|(at, pair)| {
        let number =
            pair[1].trim_start_matches('#').trim_end_matches(['.', ')', ',', ':', ';', '"']);
        let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let cited = ["issue", "Issue", "PR"].contains(&pair[0]) && numbered;
        let before = at.checked_sub(1).map(|before| words[before]).unwrap_or_default();
        let named = before.len() > 3 && !["this", "that", "from", "with", "also"].contains(&before);
        (cited && !named).then(|| pair.join(" "))
    })
}

/// A file begins with a sentence that says what it is.
fn check_rust(path: &Path, text: &str, wrong: &mut Vec<String>) {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!"));
    let first = first.unwrap_or_default();
    let guest = path.starts_with("guest") && first.starts_with("//");
    if !first.starts_with("//! ") && !guest {
        wrong.push(format!("{}: must begin with `//! ` and what it is", path.display()));
    }
}

/// Relative links of documents lead somewhere.
fn check_links(files: &Files, path: &Path, text: &str, wrong: &mut Vec<String>) {
    for target in links(text) {
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        if file.contains("://") || file.starts_with("mailto:") {
            continue;
        }
        let resolved = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
        let exists =
            files.contains_key(&resolved) || files.keys().any(|known| known.starts_with(&resolved));
        let found = files.get(&resolved).map(|bytes| String::from_utf8_lossy(bytes));
        if !exists {
            wrong.push(format!("{}: the link to {target} leads nowhere", path.display()));
        } else if let Some(text) =
            found.filter(|_| !anchor.is_empty() && resolved.extension() == path.extension())
            && !anchors(&text).contains(anchor)
        {
            wrong.push(format!("{}: {target} has no such heading", path.display()));
        }
    }
}

/// The targets of Markdown's inline links, outside code.
fn links(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut links = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for (at, part) in line.split('`').enumerate() {
            if at % 2 == 0 {
                links.extend(
                    part.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()),
                );
            }
        }
    }
    links
}

fn resolve(from: &Path, link: &str) -> PathBuf {
    let mut path = from.parent().unwrap_or(Path::new("")).to_owned();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                path.pop();
            }
            part => path.push(part),
        }
    }
    path
}

/// Headings as the names that links use for them.
fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept =
                heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Members of the workspace share its lints and its versions.
fn check_manifest(path: &Path, text: &str, wrong: &mut Vec<String>) {
    let member = ["crates", "xtask", "tests"].iter().any(|directory| path.starts_with(directory));
    if !member {
        return;
    }
    if !text.contains("[lints]\nworkspace = true") {
        wrong.push(format!("{}: no `[lints]` with `workspace = true`", path.display()));
    }
    let mut section = "";
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies")
            && line.contains('=')
            && !line.contains("workspace = true")
        {
            let at = number + 1;
            wrong.push(format!(
                "{}:{at}: versions stand in the workspace's own manifest",
                path.display()
            ));
        }
    }
}

/// Each patch changes files that are there and names a test that is there; and
/// each test of an invariant has a patch that proves it able to fail.
fn check_patches(files: &Files, patches: &[sabotage::Patch]) -> Vec<String> {
    let mut wrong = Vec::new();
    let rust: Vec<_> = files
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|(path, bytes)| (path, String::from_utf8_lossy(bytes)))
        .collect();
    for patch in patches {
        for file in patch.files.iter().filter(|file| !files.contains_key(*file)) {
            wrong.push(format!("tests/sabotage/{}: there is no {}", patch.name, file.display()));
        }
        let name = patch.test_name().and_then(|name| name.rsplit("::").next());
        if let Some(name) = name
            && !rust.iter().any(|(_, text)| text.contains(&format!("fn {name}")))
        {
            wrong.push(format!("tests/sabotage/{}: there is no test {name}", patch.name));
        }
    }
    for (path, _) in &rust {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let number =
            stem.strip_prefix("invariant_").and_then(|rest| rest.split('_').next()?.parse().ok());
        if let Some(number) =
            number.filter(|number| !patches.iter().any(|patch| patch.invariant == *number))
        {
            let shown = path.display();
            wrong.push(format!("{shown}: no patch in tests/sabotage breaks invariant {number}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        let files =
            files.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()));
        check(&files.collect(), "/home/a/checkout")
    }

    #[test]
    fn a_clean_tree_passes() {
        let files = [
            ("crates/a/src/lib.rs", "//! A.\npub(crate) mod b;\n// wasmtime issue 4040\n"),
            ("crates/a/src/b.rs", "#!/usr/bin/env cargo\n\n//! B.\nfn b() {}\n"),
            ("README.md", "# What is it?\n[a](crates/a) [b](#what-is-it) `[c](none)`\n"),
        ];
        assert_eq!(wrong(&files), Vec::<String>::new());
    }

    #[test]
    fn each_rule_is_noticed() {
        for (path, text, expected) in [
            ("a.rs", "fn a() {}\n", "what it is"),
            ("a.rs", "//! A.\nfn a() { dbg!(1) }\n", "a.rs:2: dbg! is left over"),
            ("a.rs", "//! See /home/a/checkout/x.\n", "a.rs:1: /home/a/checkout"),
            ("a.rs", "//! See issue 12.\n", "does not say whose"),
            ("a.rs", "//! As the issue 12 says.\n", "does not say whose"),
            ("a.rs", "//! A. \n", "blanks at the end"),
            ("a.rs", "//! A.\n// SAFETY: the caller's promise.\n", "names no witness"),
            ("a.rs", "//! A.", "no newline"),
            ("a.md", "[x](y.md)\n", "leads nowhere"),
            ("a.md", "# A\n[x](#b)\n", "no such heading"),
            ("crates/a/Cargo.toml", "[package]\n", "[lints]"),
            (
                "crates/a/Cargo.toml",
                "[dependencies]\nx = \"1\"\n[lints]\nworkspace = true\n",
                ":2: versions",
            ),
            ("xtask/src/main.rs", "//! A.\n", "forbid(unsafe_code)"),
            ("a.rs", &format!("//! A.\n{}", "\n".repeat(LINES_MAX)), "split it"),
        ] {
            let wrong = wrong(&[(path, text)]);
            assert!(wrong.iter().any(|line| line.contains(expected)), "{text:?}: {wrong:?}");
        }
    }
}
