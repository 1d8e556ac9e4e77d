//! The library as C sees it: its headers, and programs that use it.

mod abi;
mod common;
mod headers;
mod programs;
