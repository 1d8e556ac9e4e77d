//! pagefork-pages
