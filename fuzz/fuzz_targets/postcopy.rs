//! See `pagefork_fuzz::postcopy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::postcopy(data));
