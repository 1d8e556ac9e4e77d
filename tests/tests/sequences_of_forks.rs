//! Whatever is done to stores whose guests may be suspended, each guest goes on as if it were
//! alone and never disturbed: the same random sequences every time. The fuzz target `sequences`
//! goes on from there.

mod sequences;

use std::panic::catch_unwind;

/// Marsaglia's xorshift generator: George Marsaglia, "Xorshift RNGs", 2003.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as u8
    };
    let size = 30 + usize::from(random()) * 2;
    // Each strategy and kind of growth has its turn.
    let mut bytes = vec![seed as u8];
    bytes.extend((0..size).map(|_| random()));
    bytes
}

#[test]
fn guests_never_notice_what_is_done_to_them() {
    let count = std::env::var("PAGEFORK_SEQUENCES").map_or(72, |count| count.parse().unwrap());
    for seed in 0..count {
        let result = catch_unwind(|| sequences::run(&bytes(seed)));
        assert!(result.is_ok(), "the sequence with seed {seed} fails");
    }
}
