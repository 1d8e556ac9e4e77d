//! Why a module is refused.

use pagefork_layout::slot::SlotTooLarge;

/// Why a module was refused.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The bytes are not a valid module, or use a proposal that is switched off.
    #[error("invalid module: {message} (at byte offset {offset:#x})")]
    Invalid {
        /// What is wrong; names the proposal where one is missing.
        message: String,
        /// Where, in bytes from the start of the module.
        offset: u64,
    },
    /// The bytes are something else than a core module.
    #[error("not a core WebAssembly module: {what}")]
    NotAModule {
        /// What they are instead.
        what: &'static str,
    },
    /// Tables or state of an instance would be too large for a slot.
    #[error(
        "the module's {what} would take {size} bytes of a slot, more than {limit}: \
         declare fewer or smaller ones"
    )]
    TooLarge {
        /// Which zone.
        what: &'static str,
        /// Bytes needed.
        size: u64,
        /// Bytes there can be.
        limit: u64,
    },
    /// A function is beyond what can be compiled.
    #[error("function {index} cannot be compiled: {message}")]
    Function {
        /// Its index.
        index: u32,
        /// Why.
        message: String,
    },
    /// Compiling the module would cost too much: see [`CompileLimits`](crate::base::options::CompileLimits).
    #[error(
        "the module is too costly to compile: with function {function} come {estimate} {what} by \
         estimate, more than {limit} (at byte offset {offset:#x}): make it smaller, or raise the \
         limit of {} for compiling (`Config::compile_{0}`)",
        if what.starts_with("bytes") { "memory" } else { "work" }
    )]
    TooCostly {
        /// The index of the function with which it became too much.
        function: u32,
        /// Where in the module it became too much, or where its body starts, in bytes.
        offset: u64,
        /// What there is too much of.
        what: &'static str,
        /// How much at least, by estimate.
        estimate: u64,
        /// How much there may be.
        limit: u64,
    },
    /// Compiling the module took too long.
    #[error(
        "compiling the module took longer than {limit:?}: raise that limit, or make it smaller"
    )]
    TimedOut {
        /// How long it may take.
        limit: std::time::Duration,
    },
    /// This machine lacks what compiled code needs.
    #[error("no code can be made for this machine: {0}")]
    Target(String),
}

#[cfg(feature = "cranelift")]
impl From<wasmparser::BinaryReaderError> for CompileError {
    fn from(error: wasmparser::BinaryReaderError) -> Self {
        // It may name what the module names.
        let mut message = pagefork_layout::text::OneLine(error.message()).to_string();
        if message == "threads must be enabled for shared memories" {
            message = "shared memories (threads) are not supported".to_owned();
        }
        Self::Invalid { message, offset: error.offset() }
    }
}

impl From<SlotTooLarge> for CompileError {
    fn from(error: SlotTooLarge) -> Self {
        Self::TooLarge { what: error.what, size: error.size, limit: error.limit }
    }
}
