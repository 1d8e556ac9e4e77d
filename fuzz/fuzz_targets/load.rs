//! See `pagefork_fuzz::load`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::load(data));
