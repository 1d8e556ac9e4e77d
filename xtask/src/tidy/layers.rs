//! The order of folders in each crate: a file uses only what lies in its own folder or below.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use super::Files;

/// For each crate its folders, from the top down. A file may name what is in its own folder and
/// in those that stand after it.
const LAYERS: &[(&str, &[&str])] = &[
    ("crates/pagefork", &["api", "run", "store", "code", "base"]),
    ("crates/pagefork-pages", &["pool", "slot", "strategy", "pages", "image", "os"]),
    ("crates/pagefork-wasi", &["link", "calls", "state", "base"]),
    ("crates/pagefork-serve", &["http", "cgi", "threads", "observe", "handler"]),
    ("crates/pagefork-capi", &["pagefork_h", "wasm_h", "objects", "base"]),
    ("crates/pagefork-image", &["store", "transport", "chain", "file", "tree", "base"]),
    ("crates/pagefork-postcopy", &["node", "plan", "migrate", "wire", "base"]),
    ("crates/pagefork-compiler", &["file", "build", "translate", "parse", "base"]),
];

/// Names that every crate has of its own.
const COMMON_NAMES: &[&str] = &["Error", "Result"];

/// Checks the direction of imports, that each file of a crate lies in a layer, and that no type
/// name has two meanings.
pub(super) fn check(files: &Files) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut types = BTreeMap::<&str, BTreeSet<&Path>>::new();
    for (path, bytes) in files {
        let Ok(text) = std::str::from_utf8(bytes) else { continue };
        let is_source = path.starts_with("crates") && path.iter().nth(2) == Some("src".as_ref());
        if !is_source || path.extension() != Some("rs".as_ref()) {
            continue;
        }
        let text = without_tests(text);
        for name in type_names(text).filter(|name| !COMMON_NAMES.contains(name)) {
            types.entry(name).or_default().insert(path);
        }
        for (root, layers) in LAYERS {
            if let Ok(inside) = path.strip_prefix(Path::new(root).join("src")) {
                check_file(path, inside, text, layers, &mut wrong);
            }
        }
    }
    for (name, paths) in types.iter().filter(|(_, paths)| paths.len() > 1) {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        wrong.push(format!("{name} is the name of a type in each of {}", paths.join(", ")));
    }
    wrong
}

fn check_file(path: &Path, inside: &Path, text: &str, layers: &[&str], wrong: &mut Vec<String>) {
    let mut parts = inside.components().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let (first, is_nested) = (parts.next().unwrap_or_default(), parts.next().is_some());
    if !is_nested {
        if !["lib.rs", "main.rs"].contains(&first) {
            wrong.push(format!("{}: lies in no layer of its crate", path.display()));
        }
        return;
    }
    let Some(own) = layers.iter().position(|layer| *layer == first) else {
        wrong.push(format!("{}: {first} is no layer of its crate", path.display()));
        return;
    };
    let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
    for (number, line) in code {
        for (at, _) in line.match_indices("crate::") {
            let of_other = line[..at].ends_with(|c: char| c.is_alphanumeric() || "_$".contains(c));
            let name = line[at + "crate::".len()..].split(|c: char| !is_word(c)).next();
            let name = name.unwrap_or_default();
            let what = match layers.iter().position(|layer| *layer == name) {
                _ if of_other => continue,
                Some(used) if used >= own => continue,
                Some(_) => format!("{first} must not use {name}, which stands above it"),
                None => "name the module that defines it, not the crate's root".to_owned(),
            };
            wrong.push(format!("{}:{}: {what}", path.display(), number + 1));
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A file's text before its unit tests.
pub(super) fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// The types that a file defines outside of functions and implementations.
fn type_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip_while(|word| {
            word.starts_with("pub") || ["unsafe", "crate)", "super)", "in"].contains(word)
        });
        let kind = words.next()?;
        let is_type = ["struct", "enum", "trait", "type", "union"].contains(&kind);
        let name = words.next()?.split(|c: char| !is_word(c)).next()?;
        (is_type && !name.is_empty()).then_some(name)
    })
}

/// Lines of code in the crates that make the runtime, without blanks, comments and unit tests.
pub(super) fn lines_of_code(files: &Files) -> usize {
    const RUNTIME: &[&str] = &["pagefork", "pagefork-pages", "pagefork-serve", "pagefork-wasi"];
    let sources = files.iter().filter(|(path, _)| {
        let is_rust = path.extension() == Some("rs".as_ref());
        let is_test = path.file_stem() == Some("tests".as_ref());
        let of = RUNTIME.iter().any(|name| path.starts_with(format!("crates/{name}/src")));
        is_rust && of && !is_test
    });
    let lines = |text: &str| {
        let code = text.lines().map(str::trim).filter(|line| !line.is_empty());
        code.filter(|line| !line.starts_with("//")).count()
    };
    sources.map(|(_, bytes)| lines(without_tests(&String::from_utf8_lossy(bytes)))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(path: &str, text: &str) -> Vec<String> {
        check(&[(path.into(), text.as_bytes().to_vec())].into())
    }

    #[test]
    fn imports_point_down() {
        let file = "crates/pagefork/src/store/a.rs";
        assert_eq!(wrong(file, "use crate::code::engine::Engine;\n"), [""; 0]);
        assert_eq!(wrong(file, "/// See `crate::api::b`.\nfn a() {}\n"), [""; 0]);
        assert!(wrong(file, "use crate::api::b;\n")[0].contains("store must not use api"));
        assert!(wrong(file, "use crate::Engine;\n")[0].contains("module that defines it"));
        assert!(wrong("crates/pagefork/src/a.rs", "fn a() {}\n")[0].contains("lies in no layer"));
        assert!(wrong("crates/pagefork/src/x/a.rs", "")[0].contains("x is no layer"));
        let tested = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use crate::api::b;\n}\n";
        assert_eq!(wrong(file, tested), [""; 0]);
    }

    #[test]
    fn types_are_found() {
        let text =
            "pub(crate) struct A<T>(T);\nenum B {}\nimpl A {\n    type C = u8;\n}\ntype D = u8;\n";
        assert_eq!(type_names(text).collect::<Vec<_>>(), ["A", "B", "D"]);
    }
}
