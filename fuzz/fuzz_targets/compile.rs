//! See `pagefork_fuzz::compile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::compile(data));
