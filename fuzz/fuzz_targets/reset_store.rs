//! See `pagefork_fuzz::reset_store`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::reset_store(data));
