//! Our own scripts, about what the specification's tests leave out: every
//! directive of `scripts/*.wast` passes.

use std::fs;
use std::path::Path;

use pagefork::Engine;
use pagefork_wast::WastRunner;

#[test]
fn every_directive_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (name, script) =
            (path.file_name().unwrap().to_string_lossy(), fs::read_to_string(&path).unwrap());
        let mut runner = WastRunner::new(&Engine::default()).expect("the module spectest");
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
