//! How fast code is: kernels and programs.

use crate::measure::{Row, Size};
use crate::{kernels, programs};

/// Times kernels and programs that can be interrupted: Pagefork's default, and
/// wasmtime's epochs with a deadline that never comes.
pub fn interruptible(size: Size) -> Vec<Row> {
    run(size, true)
}

/// The same in code that cannot be interrupted, on both sides.
pub fn plain(size: Size) -> Vec<Row> {
    run(size, false)
}

fn run(size: Size, interruptible: bool) -> Vec<Row> {
    let mut rows = kernels::run(size, interruptible);
    // As a test, once is enough for what takes seconds to compile.
    if size == Size::Large || interruptible {
        rows.extend(programs::run(size, interruptible));
    }
    rows
}
