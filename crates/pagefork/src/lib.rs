//! pagefork
