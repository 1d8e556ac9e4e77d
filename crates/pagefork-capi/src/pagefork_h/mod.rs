//! The functions that `pagefork.h` declares.

mod errors;
