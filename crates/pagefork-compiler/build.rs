//! Gives the compiler a mark that changes whenever its sources do, so that code
//! which an earlier state of them made is never taken for its own.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::Path;

fn main() {
    let mut hasher = DefaultHasher::new();
    // Where the crates are not side by side, versions tell them apart.
    for directory in ["src", "../pagefork-layout/src"] {
        println!("cargo::rerun-if-changed={directory}");
        if Path::new(directory).exists() {
            add(Path::new(directory), &mut hasher);
        }
    }
    println!("cargo::rustc-env=PAGEFORK_SOURCES={:016x}", hasher.finish());
}

fn add(path: &Path, hasher: &mut DefaultHasher) {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a readable source folder");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            add(&path, hasher);
        }
    } else {
        path.file_name().hash(hasher);
        // A file that an editor has just taken away counts as empty.
        fs::read(path).unwrap_or_default().hash(hasher);
    }
}
