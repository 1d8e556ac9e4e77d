//! See `pagefork_fuzz::c_library`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::c_library(data));
