//! See `pagefork_fuzz::image`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::image(data));
