//! Tests that take longer than continuous integration may.

use std::path::Path;

use crate::Result;
use crate::host::{self, Host};
use crate::s3;
use crate::sabotage::{self, Selection};

/// Tests that take longer than CI does: those marked as ignored in it. Ten thousand damaged
/// modules, the specification's suite by every pair of strategies and through files, programs that
/// go to and fro between processes, a million calls of the page manager, a million requests, a
/// store of images that several processes use for a minute, each damaged byte of an object, a
/// gibibyte that is loaded unread, and programs that move fifty times, over links that break and between
/// nodes that are killed five hundred times. Besides, object stores that speak S3's protocol ([`s3`]).
const TESTS: [&str; 11] = [
    "bad_input",
    "spec_suite",
    "saved_guests",
    "page_manager",
    "smoke",
    "soak",
    "processes",
    "objects",
    "saved",
    "moving",
    "killed_nodes",
];

/// What only these tests need of the system, how to see that it is there, and Debian's packages of it.
const NEEDED: [(&str, fn() -> bool, &str); 4] = [
    ("emcc", || host::exists("emcc", "--version"), "emscripten"),
    ("node", || host::exists("node", "--version"), "nodejs"),
    (
        "clang for WebAssembly",
        || ["clang-19", "clang"].iter().any(|name| host::exists(name, "--version")),
        "clang-19 lld-19 libclang-rt-19-dev-wasm32",
    ),
    ("WASI's C library", || Path::new("/usr/lib/wasm32-wasi/libc.a").exists(), "wasi-libc"),
];

/// What is wrong if one of `needed` is missing: a test that is left out would count as one that holds.
fn missing(needed: &[(&str, fn() -> bool, &str)]) -> Option<String> {
    let missing = needed.iter().filter(|(_, is_there, _)| !is_there());
    let (names, packages): (Vec<&str>, Vec<&str>) =
        missing.map(|(name, _, packages)| (*name, *packages)).unzip();
    (!names.is_empty()).then(|| {
        let (names, packages) = (names.join(", "), packages.join(" "));
        format!("missing: {names}; tests that need them would be left out. On Debian: apt-get install {packages}")
    })
}

pub(crate) fn run(host: &Host) -> Result {
    if let Some(missing) = missing(&NEEDED) {
        return Err(missing);
    }
    for test in TESTS {
        let mut cargo = host.cargo();
        // Then a test that is left out fails.
        cargo.env("CI", "true");
        // All of the workspace is named, so that no crate is built again with the features of one package.
        cargo.args(["test", "--locked", "--workspace", "--test", test]);
        cargo.args(["--", "--ignored", "--nocapture"]);
        // What has to build and run without a network once its sources are here does.
        let cargo = if test == "page_manager" { host::offline(cargo) } else { cargo };
        host::check(&mut { cargo })?;
    }
    s3::run(host)?;
    sabotage::run(host, Selection::All)
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        let all = [
            ("here", (|| true) as fn() -> bool, "a"),
            ("emcc", || false, "b c"),
            ("node", || false, "d"),
        ];
        let said = missing(&all).expect("two are missing");
        assert!(
            said.starts_with("missing: emcc, node; ") && said.ends_with(" install b c d"),
            "{said}"
        );
        assert_eq!(missing(&all[..1]), None);
    }
}
