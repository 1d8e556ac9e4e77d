//! The functions that `pagefork.h` declares.

mod errors;
mod configs;
mod modules;
mod stores;
mod functions;
mod choices;
mod fresh;
mod registers;
mod waiting;
mod exceptions;
mod linkers;
mod wasi;
mod spawn;
mod suspension;
mod snapshots;
mod images;
mod stored;
