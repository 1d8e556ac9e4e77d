use std::fmt;

pub use pagefork_layout::trap::TrapCode;

use crate::backtrace::WasmBacktrace;

/// The guest trapped: why, and in which of its frames.
#[derive(Clone, Debug)]
pub struct Trap {
    code: TrapCode,
    backtrace: WasmBacktrace,
}

impl Trap {
    pub(crate) fn new(code: TrapCode, backtrace: WasmBacktrace) -> Self {
        Self { code, backtrace }
    }

    /// A trap that a host function raises itself, or that no frame is known of.
    pub fn without_backtrace(code: TrapCode) -> Self {
        Self { code, backtrace: WasmBacktrace::default() }
    }

    /// Why the guest trapped.
    pub fn code(&self) -> TrapCode {
        self.code
    }

    /// The guest's frames, innermost first.
    pub fn backtrace(&self) -> &WasmBacktrace {
        &self.backtrace
    }
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wasm trap: {}", self.code)
    }
}

impl std::error::Error for Trap {}
