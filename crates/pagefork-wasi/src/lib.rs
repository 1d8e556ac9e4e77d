//! pagefork-wasi
