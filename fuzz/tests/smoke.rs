//! A short run of each fuzz target, the same inputs every time.

/// Calls `target` with `count` inputs of up to `size_max` pseudo-random bytes.
fn short_run(target: fn(&[u8]), count: u64, size_max: u64) {
    for seed in 0..count {
        // Marsaglia's xorshift generator: George Marsaglia, "Xorshift RNGs", 2003.
        let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let size = random() % size_max;
        let input: Vec<u8> = (0..size).map(|_| random() as u8).collect();
        let result = std::panic::catch_unwind(|| target(&input));
        assert!(result.is_ok(), "the input with seed {seed} of up to {size_max} bytes fails");
    }
}

#[test]
fn compile() {
    short_run(pagefork_fuzz::compile, 3_000, 4096);
}

#[test]
fn run() {
    short_run(pagefork_fuzz::run, 1_000, 4096);
}

#[test]
fn reset_slot() {
    short_run(pagefork_fuzz::reset_slot, 600, 1500);
}

#[test]
fn reset_store() {
    short_run(pagefork_fuzz::reset_store, 150, 4096);
}

#[test]
fn waiting() {
    short_run(pagefork_fuzz::waiting, 1_000, 1500);
}

#[test]
fn load() {
    short_run(pagefork_fuzz::load, 1_500, 300);
}

#[test]
fn sequences() {
    short_run(pagefork_fuzz::sequences, 150, 400);
}

#[test]
fn c_library() {
    short_run(pagefork_fuzz::c_library, 800, 1500);
}

#[test]
fn page_manager() {
    short_run(pagefork_fuzz::page_manager, 200, 2000);
}

#[test]
#[ignore = "needs emscripten: a part of `cargo xtask soak`"]
fn page_manager_by_emscripten() {
    short_run(pagefork_fuzz::page_manager_by_emscripten, 2_000, 2000);
}

#[test]
fn image() {
    short_run(pagefork_fuzz::image, 4_000, 200);
}

#[test]
fn postcopy() {
    short_run(pagefork_fuzz::postcopy, 500, 1500);
}
