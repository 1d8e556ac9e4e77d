//! See `pagefork_fuzz::sequences`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::sequences(data));
