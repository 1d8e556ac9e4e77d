//! Names in documents: what they name exists.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Files;

/// The page whose tables have names of another project in their first column.
const PORTING: &str = "docs/FROM_WASMTIME.md";

/// Documents name what exists: of `Type::name` in code, where a crate has a public `Type`,
/// `name` is in one of the files that define or implement it.
pub(super) fn check(files: &Files) -> Vec<String> {
    let types = types(files);
    let mut wrong = Vec::new();
    for (path, bytes) in files.iter().filter(|(path, _)| is_document(path)) {
        let text = String::from_utf8_lossy(bytes);
        let porting = path == Path::new(PORTING);
        for (number, line) in text.lines().enumerate() {
            let ours = if porting { own_part(line) } else { line };
            for named in line.split('`').skip(1).step_by(2).filter(|code| is_path(code)) {
                if !files.keys().any(|file| contains_path(file, named)) {
                    wrong.push(format!("{}:{}: there is no {named}", path.display(), number + 1));
                }
            }
            for (ty, name) in ours.split('`').skip(1).step_by(2).flat_map(names) {
                let known = types.get(ty);
                if known.is_some_and(|known| !known.contains(name)) {
                    let (shown, number) = (path.display(), number + 1);
                    wrong.push(format!("{shown}:{number}: there is no {ty}::{name}"));
                }
            }
        }
    }
    wrong.extend(not_in_index(files));
    wrong
}

/// The document whose sections are all named in its index.
const INDEXED: &str = "RATIONALE.md";

/// Sections that the index does not lead to.
fn not_in_index(files: &Files) -> Vec<String> {
    let Some(bytes) = files.get(Path::new(INDEXED)) else { return Vec::new() };
    let text = String::from_utf8_lossy(bytes);
    let sections = text.lines().enumerate();
    let sections = sections.filter_map(|(at, line)| Some((at, line.strip_prefix("### ")?)));
    let missing = sections.filter(|(_, title)| !text.contains(&format!("\n- [{title}](#")));
    missing.map(|(at, title)| format!("{INDEXED}:{}: not in the index: {title}", at + 1)).collect()
}

/// Whether code in a document is the path of a source file, or of a folder in one of ours.
fn is_path(code: &str) -> bool {
    let of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_folder = code.ends_with('/') && code.contains("src/");
    (code.ends_with(".rs") || is_folder) && code.contains('/') && code.chars().all(of_path)
}

/// Whether a file's path is, ends with or leads through `named`.
fn contains_path(file: &Path, named: &str) -> bool {
    let file = format!("/{}", file.display());
    match named.ends_with('/') {
        true => file.contains(&format!("/{named}")),
        false => file.ends_with(&format!("/{named}")),
    }
}

/// Documents of what is there now, in the root and in `docs/`.
fn is_document(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new(""));
    path.extension().is_some_and(|extension| extension == "md")
        && [Path::new(""), Path::new("docs")].contains(&directory)
}

/// What a row says of this project: its second cell, or its first one if that is the same.
fn own_part(line: &str) -> &str {
    let mut cells = line.split(" | ");
    match (cells.next(), cells.next()) {
        (Some(first), Some(second)) if second.starts_with("same") => first,
        (Some(_), Some(second)) => second,
        _ => line,
    }
}

/// The names of `Type::name` and `Type::{name, other}`, each with its type.
fn names(code: &str) -> impl Iterator<Item = (&str, &str)> {
    let (ty, rest) = code.split_once("::").unwrap_or_default();
    let rest = rest.trim_start_matches('{');
    let list = rest.split(['(', '<', '}', '?']).next().unwrap_or_default();
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    list.split(", ").filter(is_name).map(move |name| (ty, name))
}

/// Words of all files that define or implement a public type, by its name.
fn types(files: &Files) -> BTreeMap<String, BTreeSet<String>> {
    let sources: Vec<(String, BTreeSet<String>)> = files
        .iter()
        .filter(|(path, _)| {
            path.starts_with("crates") && path.extension().is_some_and(|e| e == "rs")
        })
        .map(|(_, bytes)| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let words = words(&text).map(str::to_owned).collect();
            (text, words)
        })
        .collect();
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (text, _) in &sources {
        for line in text.lines().map(str::trim_start) {
            let kinds = ["pub struct ", "pub enum ", "pub trait "];
            if let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) {
                types.entry(words(rest).next().unwrap_or_default().to_owned()).or_default();
            }
        }
    }
    for (text, all) in &sources {
        let begins = ["pub struct ", "pub enum ", "pub trait ", "impl"];
        let lines = text.lines().map(str::trim_start);
        for line in lines.filter(|line| begins.iter().any(|begin| line.starts_with(begin))) {
            for word in words(line) {
                if let Some(known) = types.get_mut(word) {
                    known.extend(all.iter().cloned());
                }
            }
        }
    }
    types
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        let source = "pub struct Store<T>;\nimpl<T> Store<T> {\n    pub fn reset() {}\n}\n";
        let files = [("crates/a/src/lib.rs", source), (path, text)];
        check(&files.map(|(path, text)| (path.into(), text.as_bytes().to_vec())).into())
    }

    #[test]
    fn names_that_exist_or_are_of_others_pass() {
        let text = "`Store::reset`, `Store::{reset}(x)`, `Other::gone`, Store::gone, `reset`\n";
        assert_eq!(wrong("docs/A.md", text), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_is_gone_is_noticed() {
        let found = wrong("README.md", "`src/gone.rs`, `gone/src/x/`, `guest.wasm`\n");
        assert_eq!(
            found,
            ["README.md:1: there is no src/gone.rs", "README.md:1: there is no gone/src/x/"]
        );
        let found = wrong("README.md", "a\n`Store::{reset, gone}`\n");
        assert_eq!(found, ["README.md:2: there is no Store::gone"]);
    }

    #[test]
    fn in_a_table_for_porting_the_own_names_are_checked() {
        let text = "| `Store::old` | `Store::gone` |\n| `Store::away` | same |\n";
        assert_eq!(wrong(PORTING, text).len(), 2);
        assert_eq!(wrong(PORTING, "| `Store::old` | `Store::reset` |\n"), Vec::<String>::new());
    }

    #[test]
    fn a_section_that_its_index_does_not_name_is_noticed() {
        let text = "# A\n\n- [Why?](#why)\n\n### Why?\n\n### How?\n";
        assert_eq!(wrong(INDEXED, text), ["RATIONALE.md:7: not in the index: How?"]);
        assert_eq!(wrong("README.md", text), Vec::<String>::new());
    }
}
