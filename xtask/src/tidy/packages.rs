//! What a crate needs to be published.

use std::path::Path;

use super::Files;

/// Lines that the manifest of a published crate has, and why.
const LINES: &[(&str, &str)] = &[
    ("description = \"", "registries show it"),
    ("license.workspace = true", "a crate says its licence"),
    ("repository.workspace = true", "a crate says where its source is"),
    ("include.workspace = true", "tests that need the repository stay out of packages"),
    ("keywords = [\"", "registries search them"),
    ("categories = [\"", "registries list it there"),
    ("targets = [\"x86_64-unknown-linux-gnu\"]", "docs.rs builds for no other target"),
];

/// Each crate in `crates/` can be published: its manifest says what registries show, and
/// the README and the licence are packed with it. Members outside `crates/` are private.
pub(super) fn check(files: &Files) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, bytes) in files.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        let (text, shown) = (String::from_utf8_lossy(bytes), path.display());
        let private = text.lines().any(|line| line == "publish = false");
        let directory = path.parent().unwrap_or(Path::new(""));
        if path == Path::new("Cargo.toml") {
            wrong.extend(unversioned(&text).map(|name| {
                format!("{shown}: {name} has a path and no version, so no package may need it")
            }));
        } else if !path.starts_with("crates") {
            if !private && text.contains("[package]") {
                wrong.push(format!(
                    "{shown}: no `publish = false`; what is published lies in crates/"
                ));
            }
        } else if !private {
            for (line, why) in LINES {
                if !text.lines().any(|found| found.starts_with(line)) {
                    wrong.push(format!("{shown}: no `{line}`: {why}"));
                }
            }
            for name in ["README.md", "LICENSE"] {
                if !files.contains_key(&directory.join(name)) {
                    wrong.push(format!("{shown}: there is no {name} beside it"));
                }
            }
        }
    }
    wrong
}

/// Dependencies by path alone.
fn unversioned(manifest: &str) -> impl Iterator<Item = &str> {
    let by_path = |line: &&str| line.contains("path = \"") && !line.contains("version = \"");
    manifest.lines().filter(by_path).filter_map(|line| line.split(" = ").next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(files: &[(&str, String)]) -> Vec<String> {
        let file = |(path, text): &(&str, String)| (path.into(), text.as_bytes().to_vec());
        check(&files.iter().map(file).collect())
    }

    fn manifest() -> String {
        LINES.iter().map(|(line, _)| format!("{line}\n")).collect()
    }

    #[test]
    fn a_crate_with_all_that_a_package_needs_passes() {
        let files = [
            ("Cargo.toml", "a = { version = \"0.1.0\", path = \"crates/a\" }\n".to_owned()),
            ("crates/a/Cargo.toml", manifest()),
            ("crates/a/README.md", String::new()),
            ("crates/a/LICENSE", String::new()),
            ("crates/b/Cargo.toml", "publish = false\n".to_owned()),
            ("bench/Cargo.toml", "[package]\npublish = false\n".to_owned()),
        ];
        assert_eq!(wrong(&files), Vec::<String>::new());
    }

    #[test]
    fn everything_that_a_package_lacks_is_noticed() {
        for (line, _) in LINES {
            let wrong = wrong(&[("crates/a/Cargo.toml", manifest().replace(line, ""))]);
            assert!(wrong.iter().any(|wrong| wrong.contains(line)), "{line}: {wrong:?}");
        }
        let without_files = wrong(&[("crates/a/Cargo.toml", manifest())]);
        assert_eq!(without_files.len(), 2, "README and licence: {without_files:?}");
        let by_path = "a = { path = \"crates/a\" }\n".to_owned();
        assert_eq!(wrong(&[("Cargo.toml", by_path)]).len(), 1);
        let public = "[package]\nname = \"x\"\n".to_owned();
        assert_eq!(wrong(&[("fuzz/Cargo.toml", public)]).len(), 1);
    }
}
