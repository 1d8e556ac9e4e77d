//! Examples of what users call: each public item of some crates has one that runs, or names the
//! item whose example shows it.

use std::collections::BTreeSet;
use std::path::Path;

use super::Files;
use super::layers::without_tests;

/// The crates that embedders build on.
const CRATES: &[&str] = &["pagefork", "pagefork-pages", "pagefork-serve", "pagefork-wasi"];

/// Attributes of items that are no part of the documented API.
const UNDOCUMENTED: &[&str] = &["#[doc(hidden)]", "#[cfg(feature = \"testing\")]"];

/// Checks the types, traits, functions, methods and macros that each of these crates exports.
pub(super) fn check(files: &Files) -> Vec<String> {
    CRATES.iter().flat_map(|name| check_crate(files, name)).collect()
}

fn check_crate(files: &Files, name: &str) -> Vec<String> {
    let root = Path::new("crates").join(name).join("src");
    let sources: Vec<(&Path, String)> = files
        .iter()
        .filter_map(|(path, bytes)| {
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            let inside = path.strip_prefix(&root).ok().filter(|_| is_rust)?;
            let text = String::from_utf8_lossy(bytes);
            Some((inside, without_tests(&text).to_owned()))
        })
        .collect();
    let mut exports = Exports::default();
    for (path, text) in &sources {
        let is_root = *path == Path::new("lib.rs");
        let public = || sources.iter().any(|(root, text)| is_public_module(root, text, path));
        if is_root || public() {
            exports.add(text, if is_root { String::new() } else { module_of(path) });
        }
    }
    let mut wrong = Vec::new();
    for (path, text) in &sources {
        for (line, item) in without_example(path, text, &exports) {
            let shown = root.join(path);
            let what = "has no `# Examples`, and no link to one";
            wrong.push(format!("{}:{line}: {item} {what}", shown.display()));
        }
    }
    wrong
}

/// Whether the crate's root makes the module in this file public.
fn is_public_module(root: &Path, text: &str, path: &Path) -> bool {
    let module = module_of(path);
    root == Path::new("lib.rs") && text.lines().any(|line| line == format!("pub mod {module};"))
}

/// The path of the module in a file: `a/b` for `a/b.rs` and `a/b/mod.rs`.
fn module_of(path: &Path) -> String {
    let path = path.with_extension("");
    let of_folder = path.ends_with("mod");
    let module = if of_folder { path.parent().unwrap_or(Path::new("")) } else { &path };
    module.display().to_string()
}

/// What a crate's root, and its public modules, export.
#[derive(Default)]
struct Exports {
    /// No two types of the workspace have the same name.
    types: BTreeSet<String>,
    /// Functions and modules, each with the path of the module that it is found in: `a/b`.
    others: BTreeSet<(String, String)>,
}

impl Exports {
    /// Adds what the `pub use` of a module name, unless they are hidden.
    fn add(&mut self, text: &str, own: String) {
        let mut hidden = false;
        let mut statement = String::new();
        for line in text.lines() {
            if statement.is_empty() && !line.starts_with("pub use ") {
                // An attribute belongs to what follows it, as a comment does.
                hidden = match line.starts_with("#[") {
                    true => hidden || UNDOCUMENTED.contains(&line),
                    false => hidden && line.starts_with("//"),
                };
                continue;
            }
            statement.push_str(line.trim());
            statement.push(' ');
            if line.ends_with(';') {
                if !hidden {
                    self.add_use(&statement, &own);
                }
                (hidden, statement) = (false, String::new());
            }
        }
    }

    fn add_use(&mut self, statement: &str, own: &str) {
        let path = statement.trim().trim_start_matches("pub use ").trim_end_matches(';');
        let (path, own) = match path.strip_prefix("crate::") {
            Some(path) => (path, ""),
            None => (path, own),
        };
        let (module, list) = path.rsplit_once("::").unwrap_or(("", path));
        let (module, list) = match path.split_once("::{") {
            Some((module, list)) => (module, list.trim_end_matches('}')),
            None => (module, list),
        };
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = name.split(' ').next().unwrap_or_default().to_owned();
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                self.types.insert(name);
            } else {
                let module = Path::new(own).join(module.replace("::", "/"));
                self.others.insert((module.display().to_string(), name));
            }
        }
    }

    /// Whether a function of a file is exported: by itself, or with its module.
    fn has_function(&self, path: &Path, name: &str) -> bool {
        let own = module_of(path);
        self.others.iter().any(|(module, other)| {
            let is_inside = own == *module || own.starts_with(&format!("{module}/"));
            (other == name && is_inside) || own == format!("{module}/{other}")
        })
    }

    fn has_type(&self, path: &Path, name: &str) -> bool {
        let own = module_of(path);
        let with_module =
            || self.others.iter().any(|(module, other)| own == format!("{module}/{other}"));
        self.types.contains(name) || with_module()
    }
}

/// A block of methods: of a type or trait that is exported, or of another one.
struct Block<'a> {
    indent: usize,
    owner: &'a str,
    is_trait: bool,
    is_exported: bool,
}

/// The exported items of a file that have no example, with their lines.
fn without_example(path: &Path, text: &str, exports: &Exports) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut block: Option<Block<'_>> = None;
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if block.as_ref().is_some_and(|block| block.indent == indent && code.starts_with('}')) {
            block = None;
        }
        let item = match declared(code) {
            Some(("impl", header)) => {
                let owner = owner_of(header).unwrap_or_default();
                let is_exported = exports.has_type(path, owner);
                block = Some(Block { indent, owner, is_trait: false, is_exported });
                continue;
            }
            Some((kind @ ("struct" | "enum" | "union" | "type" | "trait"), name)) => {
                let (name, is_exported) = (word(name), exports.has_type(path, word(name)));
                let is_public = code.starts_with("pub ");
                if kind == "trait" {
                    block = Some(Block { indent, owner: name, is_trait: true, is_exported });
                }
                (is_public && is_exported).then(|| name.to_owned())
            }
            Some(("fn", name)) => match &block {
                Some(block) => {
                    let is_public = block.is_trait || code.starts_with("pub ");
                    let is_own = indent > block.indent && block.is_exported && is_public;
                    is_own.then(|| format!("{}::{}", block.owner, word(name)))
                }
                None => {
                    let is_exported = || exports.has_function(path, word(name));
                    let is_public = indent == 0 && code.starts_with("pub ");
                    (is_public && is_exported()).then(|| word(name).to_owned())
                }
            },
            Some(("macro_rules!", name)) => {
                let is_exported = at > 0 && lines[at - 1].trim() == "#[macro_export]";
                is_exported.then(|| format!("{}!", word(name)))
            }
            _ => None,
        };
        let Some(item) = item else { continue };
        let (docs, is_documented) = docs(&lines[..at]);
        if is_documented && !has_example(&docs) {
            found.push((at + 1, item));
        }
    }
    found
}

/// The kind of a declaration, and what follows that: the name, or the header of an `impl`.
fn declared(code: &str) -> Option<(&str, &str)> {
    let mut rest = code;
    loop {
        let (first, after) = rest.split_once(' ')?;
        match first {
            "pub" | "const" | "async" | "unsafe" => rest = after,
            "struct" | "enum" | "union" | "type" | "trait" | "fn" | "macro_rules!" | "impl" => {
                return Some((first, after));
            }
            _ if first.starts_with("impl<") => return Some(("impl", &rest["impl".len()..])),
            _ => return None,
        }
    }
}

/// The type whose own methods an `impl` has; `None` if they are those of a trait.
fn owner_of(header: &str) -> Option<&str> {
    let mut header = header;
    if header.starts_with('<') {
        let mut depth = 0;
        let end = header.char_indices().find(|(at, c)| {
            let is_arrow = *c == '>' && header[..*at].ends_with('-');
            depth += i32::from(*c == '<') - i32::from(*c == '>' && !is_arrow);
            depth == 0
        })?;
        header = header[end.0 + 1..].trim_start();
    }
    (!header.contains(" for ")).then(|| word(header))
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().unwrap_or_default()
}

/// The comment of the item that follows these lines, and whether its attributes let it be
/// documented.
fn docs(before: &[&str]) -> (Vec<String>, bool) {
    let (mut docs, mut is_documented) = (Vec::new(), true);
    for line in before.iter().rev().map(|line| line.trim()) {
        if let Some(doc) = line.strip_prefix("///") {
            docs.push(doc.trim().to_owned());
            continue;
        }
        // The lines of an attribute end with none of these.
        if line.is_empty() || line.ends_with(['{', '}', ';']) || line.starts_with("//!") {
            break;
        }
        is_documented &= !UNDOCUMENTED.contains(&line);
    }
    docs.reverse();
    (docs, is_documented)
}

/// Whether a comment has a section with code or a link, or a sentence that says what has one.
fn has_example(docs: &[String]) -> bool {
    let section = docs.iter().position(|line| line == "# Examples");
    if let Some(start) = section {
        return docs[start..].iter().any(|line| line.starts_with("```") || line.contains("[`"));
    }
    let text = docs.join(" ");
    [" has an example", " have examples"]
        .iter()
        .any(|says| text.match_indices(says).any(|(at, _)| text[..at].ends_with([']', ')'])))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "//! A.\nmod a;\npub mod open;\npub use crate::a::{Item, Shape as Form};\n\
        pub use crate::a::{make,\n    Act};\n#[doc(hidden)]\npub use crate::a::Hidden;\n\
        pub use crate::a::parts;\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let root = [("lib.rs", ROOT)];
        let all = root.iter().chain(files);
        let files = all.map(|(path, text)| {
            (Path::new("crates/pagefork/src").join(path), text.as_bytes().to_vec())
        });
        let names = check(&files.collect()).into_iter();
        names.map(|line| line.split(' ').nth(1).unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn each_exported_item_needs_an_example() {
        let text = "/// A.\npub struct Item;\nimpl<T: Fn() -> u8> Item<T> {\n    /// B.\n    pub \
            const fn b() {}\n}\n/// C.\npub trait Act {\n    /// D.\n    fn d();\n}\n/// E.\npub fn \
            make() {}\n/// F.\npub enum Shape {}\n/// G.\n#[macro_export]\nmacro_rules! gone {}\n";
        let names = ["Item", "Item::b", "Act", "Act::d", "make", "Shape", "gone!"];
        assert_eq!(found(&[("a.rs", text)]), names);
        assert_eq!(found(&[("a/parts.rs", "/// A.\npub fn part() {}\n")]), ["part"]);
        let open = ("open.rs", "pub use inner::{Deep, act};\n");
        assert_eq!(
            found(&[open, ("open/inner.rs", "pub struct Deep;\npub fn act() {}\n")]),
            ["Deep", "act"]
        );
        let made = "macro_rules! make {\n    () => {\n        impl Item {\n            /// A.\n        \
            \x20   pub fn $name() {}\n        }\n    };\n}\n";
        assert_eq!(found(&[("a.rs", made)]), ["Item::$name"]);
    }

    #[test]
    fn sections_with_code_or_links_and_sentences_are_examples() {
        for docs in [
            "/// # Examples\n///\n/// ```\n/// a();\n/// ```",
            "/// # Examples\n///\n/// See [`Other`].",
            "/// An item. [`Other`](crate::Other) has\n/// an example.",
            "/// An item. [`Other`] and [`More`] have examples.\n#[derive(Clone)]\n#[error(\n    \"a\"\n)]",
        ] {
            assert_eq!(found(&[("a.rs", &format!("{docs}\npub struct Item;\n"))]), [""; 0]);
        }
        for docs in ["/// # Examples\n///\n/// None.", "/// It has an example."] {
            assert_eq!(found(&[("a.rs", &format!("{docs}\npub struct Item;\n"))]), ["Item"]);
        }
    }

    #[test]
    fn what_users_do_not_see_needs_none() {
        for text in [
            "/// A.\npub struct Hidden;\nimpl Hidden {\n    pub fn a() {}\n}\n",
            "impl Item {\n    fn a() {}\n    pub(crate) fn b() {}\n    /// C.\n    #[doc(hidden)]\n    \
             pub fn c() {}\n}\n",
            "impl Act for Item {\n    fn d() {}\n}\nimpl<T> Act for Item<T> {\n    fn d() {}\n}\n",
            "/// A.\n#[cfg(feature = \"testing\")]\npub fn make() {}\n",
            "pub(crate) fn make() {}\npub fn other() {}\nmacro_rules! own {}\n",
            "\n#[cfg(test)]\nmod tests {\n    impl Item {\n        pub fn a() {}\n    }\n}\n",
        ] {
            assert_eq!(found(&[("a.rs", text)]), [""; 0], "{text}");
        }
        // A function of that name in another module is another function.
        assert_eq!(found(&[("b.rs", "/// A.\npub fn make() {}\n")]), [""; 0]);
    }
}
