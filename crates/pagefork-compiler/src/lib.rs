//! pagefork-compiler
