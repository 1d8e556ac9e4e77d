//! See `pagefork_fuzz::reset_slot`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::reset_slot(data));
