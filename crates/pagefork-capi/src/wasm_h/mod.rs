//! The functions that `wasm.h` declares.

mod vectors;
mod types;
mod engines;
mod references;
mod traps;
mod modules;
mod functions;
mod globals;
mod tables;
mod memories;
mod instances;
