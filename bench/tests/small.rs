//! Every benchmark runs at its small size and computes what it should.

use pagefork_bench::ALL;
use pagefork_bench::measure::{Options, Size};

#[test]
fn every_benchmark_computes_what_it_should() {
    for (name, run) in ALL {
        assert!(!run(&Options::of(Size::Small)).samples.is_empty(), "{name} measured nothing");
    }
}
