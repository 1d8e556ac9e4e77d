//! The machine that code is made for.

use std::sync::Arc;

use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{Architecture, BinaryFormat, Environment, OperatingSystem, Triple, Vendor};

use crate::base::error::CompileError;
use crate::base::options::CompileOptions;
use crate::base::target::CpuLevel;

/// The machine that code is made for: a fixed level, so that code images move
/// between machines, x86-64-v3 where this machine has it and v2 below.
pub(crate) fn isa(options: &CompileOptions) -> Result<Arc<dyn TargetIsa>, CompileError> {
    let triple = Triple {
        architecture: Architecture::X86_64,
        vendor: Vendor::Unknown,
        operating_system: OperatingSystem::Linux,
        environment: Environment::Unknown,
        binary_format: BinaryFormat::Elf,
    };
    let failed = |error: &dyn std::fmt::Display| CompileError::Target(error.to_string());

    let mut shared = settings::builder();
    let verify = if options.verify_ir { "true" } else { "false" };
    for (name, value) in [
        ("opt_level", "speed"),
        // The base lives in r15 and nowhere else.
        ("enable_pinned_reg", "true"),
        // Frames are found, and moved, along the chain of frame pointers.
        ("preserve_frame_pointers", "true"),
        ("unwind_info", "false"),
        // A large frame touches each of its pages in order, so that the guard
        // below the stack cannot be jumped over.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
        ("enable_verifier", verify),
        ("enable_nan_canonicalization", if options.deterministic { "true" } else { "false" }),
        ("is_pic", "true"),
        // Where basic blocks start and go on, for the placement of loops.
        ("machine_code_cfg_info", "true"),
    ] {
        shared.set(name, value).map_err(|error| failed(&error))?;
    }
    let mut builder = cranelift_codegen::isa::lookup(triple).map_err(|error| failed(&error))?;
    let level = CpuLevel::of_this_machine()?;
    builder.enable(level.name()).map_err(|error| failed(&error))?;
    if level == CpuLevel::V3 {
        // Cranelift's list of what the level has names AVX2 alone, without which
        // floating point and vectors would be encoded as before AVX.
        builder.enable("has_avx").map_err(|error| failed(&error))?;
    }
    builder.finish(settings::Flags::new(shared)).map_err(|error| failed(&error))
}
