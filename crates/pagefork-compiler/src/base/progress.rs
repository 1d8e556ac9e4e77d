//! How far a compilation is.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far compilations are, counted in functions: for who waits. Several
/// compilations may share one; then it says how far they are together.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Nothing to do yet.
    pub const fn new() -> Self {
        Self { done: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    /// How many functions are compiled.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// How many functions there are to compile, as far as is known.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn expect(&self, functions: u64) {
        self.total.fetch_add(functions, Ordering::Relaxed);
    }

    pub(crate) fn finish_one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, compile_with_progress};

    #[test]
    fn every_function_that_a_module_defines_counts_once() {
        let text = r#"(module (import "a" "b" (func $b)) (export "b" (func $b))
            (func $f (call $b)) (func (export "g") (call $f)) (func))"#;
        let wasm = wat::parse_str(text).unwrap();
        let progress = Progress::new();
        for times in 1..3 {
            compile_with_progress(&wasm, &CompileOptions::default(), &progress).unwrap();
            assert_eq!((progress.done(), progress.total()), (3 * times, 3 * times));
        }
    }
}
