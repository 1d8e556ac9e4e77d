//! See `pagefork_fuzz::run`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::run(data));
