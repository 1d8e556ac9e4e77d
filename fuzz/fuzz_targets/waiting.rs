//! See `pagefork_fuzz::waiting`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::waiting(data));
