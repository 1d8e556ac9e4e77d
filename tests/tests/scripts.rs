//! Our own scripts, about what the specification's tests leave out: every
//! directive of `scripts/*.wast` passes, also with all code mapped from a cache.

use std::fs;
use std::path::Path;

use pagefork::{Cache, Config, Engine};
use pagefork_wast::WastRunner;

#[test]
fn every_directive_passes() {
    run(&Engine::default());
    let directory = std::env::temp_dir().join(format!("pagefork-scripts-{}", std::process::id()));
    let cache = Cache::new(&directory);
    let config = Config::new().cache(cache.clone()).cache_round_trip(true).clone();
    // Written and mapped, then found and mapped.
    for _ in 0..2 {
        run(&Engine::new(&config).expect("this machine runs the engine"));
    }
    assert!(cache.stats().hits >= cache.stats().written && cache.stats().written > 0);
    fs::remove_dir_all(&directory).expect("the cache is ours to remove");
}

/// Runs every script in a store of its own.
fn run(engine: &Engine) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (name, script) =
            (path.file_name().unwrap().to_string_lossy(), fs::read_to_string(&path).unwrap());
        let mut runner = WastRunner::new(engine).expect("the module spectest");
        let report = runner.run(&name, &script).unwrap_or_else(|error| panic!("{error}"));
        for failure in &report.failures {
            eprintln!("{failure}");
        }
        assert!(report.failures.is_empty(), "{name} failed");
        assert!(report.passed > 5, "{name} says little");
        seen += 1;
    }
    assert!(seen >= 3, "scripts are missing");
}
