use std::sync::Arc;

use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::settings::{self, Configurable};
use target_lexicon::{Architecture, BinaryFormat, Environment, OperatingSystem, Triple, Vendor};

use crate::{CompileError, CompileOptions};

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
        ("is_pic", "true"),
    ] {
        shared.set(name, value).map_err(|error| failed(&error))?;
    }
    let mut builder = cranelift_codegen::isa::lookup(triple).map_err(|error| failed(&error))?;
    builder.enable(level()?).map_err(|error| failed(&error))?;
    builder.finish(settings::Flags::new(shared)).map_err(|error| failed(&error))
}

#[cfg(target_arch = "x86_64")]
fn level() -> Result<&'static str, CompileError> {
    use std::is_x86_feature_detected as has;
    if has!("avx2") && has!("bmi1") && has!("bmi2") && has!("fma") && has!("lzcnt") && has!("movbe")
    {
        Ok("x86-64-v3")
    } else if has!("sse4.2") && has!("popcnt") && has!("ssse3") {
        Ok("x86-64-v2")
    } else {
        Err(CompileError::Target("it lacks SSE4.2 or POPCNT (x86-64-v2 is needed)".to_owned()))
    }
}

/// Elsewhere code can be made, though not run: for the common level.
#[cfg(not(target_arch = "x86_64"))]
fn level() -> Result<&'static str, CompileError> {
    Ok("x86-64-v3")
}
