//! From bodies to machine code, in parallel, and from there to one text.

/// The machine that code is made for.
mod isa;
/// One function, through Cranelift.
mod function;
/// One text of all functions.
mod link;
/// The small functions around those of the module: entries, imports, traps.
mod stubs;
/// The proof that suspended frames can be moved.
mod relocatable;
/// Where functions start, for the sake of their loops.
mod placement;

use std::collections::BTreeSet;

use cranelift_codegen::Context;
use cranelift_codegen::control::ControlPlane;
use pagefork_layout::code::{CodeImage, CodeKind};
use pagefork_layout::link::function_import::is_direct;
use pagefork_layout::slot::SlotLayout;

use self::function::{compile_all, failed};
use crate::base::effort::{Effort, FunctionEffort};
use crate::base::error::CompileError;
use crate::base::module::{CompiledModule, entered_types};
use crate::base::options::CompileOptions;
use crate::base::progress::Progress;
use crate::base::threads;
use crate::parse::{Parsed, parse};
use crate::translate::{BodyKind, ModuleContext, Scratch, Symbol, translate};

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
    let effort = Effort::new(options.cost);
    let mut parsed = parse(wasm, &options.features)?;
    progress.expect(parsed.bodies.len() as u64);
    parsed.progress = Some(progress);
    let layout = SlotLayout::new(&parsed.info, &options.limits)?;
    let code = threads::on_all(|| build(&parsed, &layout, options, &effort))?;
    Ok(CompiledModule { info: parsed.info, layout, code })
}

/// The optimised Cranelift IR of every function the module defines, as text: for
/// tests and for looking at.
///
/// # Errors
/// As [`compile`].
pub fn optimised_ir(wasm: &[u8], options: &CompileOptions) -> Result<String, CompileError> {
    let parsed = parse(wasm, &options.features)?;
    let layout = SlotLayout::new(&parsed.info, &options.limits)?;
    let isa = isa::isa(options)?;
    let module = ModuleContext::new(&parsed, &layout, options, &*isa);
    let effort = Effort::new(options.cost);
    let mut scratch = Scratch::default();
    let mut text = String::new();
    for body in &parsed.bodies {
        let mut context = Context::new();
        let kinds = if module.is_dual() { BodyKind::DUAL } else { &[BodyKind::Only] };
        for kind in kinds {
            context.clear();
            let mut spent = FunctionEffort::new(&effort, body.to_validate.index);
            translate(module, body, *kind, &mut context, &mut scratch, &mut spent)?;
            context
                .optimize(module.isa, &mut ControlPlane::default())
                .map_err(|error| failed(body.to_validate.index, &error))?;
            text += &context.func.display().to_string();
        }
    }
    Ok(text)
}

/// Compiles everything a module needs.
fn build(
    parsed: &Parsed<'_>,
    layout: &SlotLayout,
    options: &CompileOptions,
    effort: &Effort,
) -> Result<CodeImage, CompileError> {
    let isa = isa::isa(options)?;
    let mut module = ModuleContext::new(parsed, layout, options, &*isa);

    let imported = parsed.info.imported_functions;
    let functions = imported..parsed.info.functions.len() as u32;
    let entered = entered_types(&parsed.info);
    let direct = entered.iter().copied().filter(|ty| is_direct(&parsed.info.types[*ty as usize]));
    let entries = entered.iter().copied().map(CodeKind::Entry);
    let entries = entries.chain(direct.map(CodeKind::DirectEntry));
    let mut units: Vec<CodeKind> =
        functions.clone().map(CodeKind::Function).chain(entries).collect();
    if module.is_dual() {
        units.extend(functions.map(CodeKind::Checked));
    }
    let mut compiled = compile_all(module, parsed, effort, units)?;

    // Only now it is known what the stubs for imports must do.
    module.catches = compiled.iter().any(|unit| !unit.handlers.is_empty());
    let imports = (0..imported).map(CodeKind::Function);
    compiled.extend(compile_all(module, parsed, effort, imports.collect())?);

    // What the code turned out to need, and what that needs.
    let mut made = BTreeSet::new();
    loop {
        let needed = compiled.iter().flat_map(|unit| {
            let called = unit.called_types.iter().map(|ty| Symbol::Foreign(*ty));
            called.chain(unit.relocations.iter().map(|(_, symbol)| *symbol))
        });
        let needed: BTreeSet<Symbol> = needed.filter(|symbol| !made.contains(symbol)).collect();
        let more = needed.iter().filter_map(|symbol| match *symbol {
            Symbol::Function(_) | Symbol::Checked(_) => None,
            Symbol::Foreign(ty) => Some(CodeKind::Foreign(ty)),
            Symbol::Cross(ty) => Some(CodeKind::Cross(ty)),
            Symbol::Throw => Some(CodeKind::Throw),
            Symbol::Trap(code) => Some(CodeKind::Trap(code)),
            Symbol::Copy(memory) => Some(CodeKind::Copy(memory)),
            Symbol::Fill(memory) => Some(CodeKind::Fill(memory)),
        });
        let more: Vec<CodeKind> = more.collect();
        if more.is_empty() {
            break;
        }
        compiled.extend(compile_all(module, parsed, effort, more)?);
        made.extend(needed);
    }
    link::link(parsed, compiled)
}
