//! See `pagefork_fuzz::page_manager`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pagefork_fuzz::page_manager(data));
