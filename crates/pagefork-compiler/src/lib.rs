//! WebAssembly bytes in, a position-independent *code image* out.
//!
//! The pipeline is a list of calls: [`compile`] parses and validates the module,
//! lays out its slot, translates each function to Cranelift IR, optimises it,
//! proves on the result that no host address is live across a call, and links
//! the machine code into one text. [`initial_image`] makes the bytes that its
//! instances start with.
//!
//! This is the only crate that knows Cranelift. It neither runs code nor maps
//! memory.

#![forbid(unsafe_code)]

/// What the world can do wrong: the modules that are refused, and why.
mod error;
/// Which proposals are accepted, and how code is made.
mod options;
/// From bytes to a description of the module and the bodies of its functions.
mod parse;
/// The machine that code is made for.
mod target;
/// From bodies to machine code, in parallel, and from there to one text.
mod build;
/// The threads that share out work.
mod threads;
/// From one function body to Cranelift IR.
mod translate;
/// The small functions around those of the module: entries, imports, traps.
mod stubs;
/// The proof that suspended frames can be moved.
mod relocatable;
/// Where functions start, for the sake of their loops.
mod placement;
/// How far a compilation is.
mod progress;
/// What compiling may cost.
mod effort;
/// The bytes that an instance starts with.
mod image;
/// Compiled modules in files.
pub mod file;

pub use effort::CompileLimits;
pub use error::CompileError;
pub use image::{Instantiation, SpawnStep, initial_image};
pub use options::{Bounds, CompileOptions, Features};
pub use progress::Progress;
pub use target::CpuLevel;

use pagefork_layout::code::CodeImage;
use pagefork_layout::module::ModuleInfo;
use pagefork_layout::slot::SlotLayout;
use serde::{Deserialize, Serialize};

/// A compiled module: what it declares, how its slots are laid out, and its code.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CompiledModule {
    /// Everything the module declares.
    pub info: ModuleInfo,
    /// The layout of its instances' slots.
    pub layout: SlotLayout,
    /// Its machine code.
    pub code: CodeImage,
}

/// Validates and compiles a module, on all threads of rayon's current pool.
///
/// # Errors
/// If the bytes are no valid module, if it uses a proposal that is switched off
/// or unknown (the error names it and the byte offset), if it is too large, or if
/// compiling it costs more than [`CompileOptions::cost`] allows.
pub fn compile(wasm: &[u8], options: &CompileOptions) -> Result<CompiledModule, CompileError> {
    compile_with_progress(wasm, options, &Progress::new())
}

/// As [`compile`]; another thread can see in `progress` how far it is.
///
/// # Errors
/// As [`compile`].
pub fn compile_with_progress(
    wasm: &[u8],
    options: &CompileOptions,
    progress: &Progress,
) -> Result<CompiledModule, CompileError> {
    let effort = effort::Effort::new(options.cost);
    let mut parsed = parse::parse(wasm, &options.features)?;
    progress.expect(parsed.bodies.len() as u64);
    parsed.progress = Some(progress);
    let layout = SlotLayout::new(&parsed.info, &options.limits)?;
    let code = threads::on_all(|| build::build(&parsed, &layout, options, &effort))?;
    Ok(CompiledModule { info: parsed.info, layout, code })
}

/// The debug information in these bytes of a text; `None` if there is none, or
/// none that makes sense.
pub fn debug_info(bytes: &[u8]) -> Option<pagefork_layout::code::DebugInfo> {
    postcard::from_bytes(bytes).ok()
}

/// The optimised Cranelift IR of every function the module defines, as text: for
/// tests and for looking at.
///
/// # Errors
/// As [`compile`].
pub fn optimised_ir(wasm: &[u8], options: &CompileOptions) -> Result<String, CompileError> {
    let parsed = parse::parse(wasm, &options.features)?;
    let layout = SlotLayout::new(&parsed.info, &options.limits)?;
    build::optimised_ir(&parsed, &layout, options)
}
