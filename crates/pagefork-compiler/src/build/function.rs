//! One function, through Cranelift.

use std::collections::BTreeSet;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::ExternalName;
use cranelift_codegen::{
    CompiledCode, Context, FinalizedMachCallSite, FinalizedMachExceptionHandler,
    FinalizedRelocTarget,
};
use pagefork_layout::code::{CodeKind, LandingSite};
use pagefork_layout::module::ModuleInfo;
use pagefork_layout::trap::TrapCode;
use rayon::prelude::*;

use super::placement::Starts;
use super::{relocatable, stubs};
use crate::base::effort::{Effort, FunctionEffort, Site};
use crate::base::error::CompileError;
use crate::parse::{DefinedBody, Parsed};
use crate::translate::{BodyKind, ModuleContext, Scratch, Symbol, translate};

/// One compiled function.
pub(super) struct CompiledFunction {
    pub(super) kind: CodeKind,
    pub(super) code: Vec<u8>,
    /// Calls of other functions: where the 32-bit distance stands, and to whom.
    pub(super) relocations: Vec<(u32, Symbol)>,
    pub(super) traps: Vec<(u32, TrapCode)>,
    pub(super) call_sites: Vec<u32>,
    pub(super) handlers: Vec<LandingSite>,
    /// Where instructions that can stop come from, see [`CodeImage::sources`].
    pub(super) sources: Vec<(u32, u32)>,
    pub(super) called_types: BTreeSet<u32>,
    /// Where in a line of the processor it may start.
    pub(super) starts: Starts,
}

impl CompiledFunction {
    /// Bytes that it takes; once more, when it is linked.
    fn size(&self) -> u64 {
        let lists = size_of_val(&*self.relocations)
            + size_of_val(&*self.traps)
            + size_of_val(&*self.call_sites)
            + size_of_val(&*self.handlers)
            + size_of_val(&*self.sources);
        2 * (self.code.len() + lists) as u64
    }
}

/// The functions that errors in stubs name.
struct FirstOfType {
    /// The first function of each type; the last function for types that none has.
    functions: Vec<u32>,
    /// What stubs that belong to no type are named by.
    last: u32,
}

impl FirstOfType {
    fn new(info: &ModuleInfo) -> Self {
        let last = (info.functions.len() as u32).saturating_sub(1);
        let mut functions = vec![last; info.types.len()];
        for (index, &ty) in info.functions.iter().enumerate().rev() {
            functions[ty as usize] = index as u32;
        }
        Self { functions, last }
    }

    fn of(&self, ty: u32) -> u32 {
        self.functions[ty as usize]
    }
}

pub(super) fn compile_all(
    module: ModuleContext<'_>,
    parsed: &Parsed<'_>,
    effort: &Effort,
    units: Vec<CodeKind>,
) -> Result<Vec<CompiledFunction>, CompileError> {
    let functions = FirstOfType::new(module.info);
    units
        .into_par_iter()
        .map_init(
            || (Context::new(), Scratch::default()),
            |(context, scratch), kind| {
                effort.check_time()?;
                let unit = compile_one(module, parsed, effort, &functions, kind, context, scratch);
                if let Some(progress) = parsed.progress
                    && matches!(kind, CodeKind::Function(index) if index >= parsed.info.imported_functions)
                {
                    progress.finish_one();
                }
                unit
            },
        )
        .collect()
}

fn compile_one(
    module: ModuleContext<'_>,
    parsed: &Parsed<'_>,
    effort: &Effort,
    functions: &FirstOfType,
    kind: CodeKind,
    context: &mut Context,
    scratch: &mut Scratch,
) -> Result<CompiledFunction, CompileError> {
    context.clear();
    let mut called_types = BTreeSet::new();
    let mut bytes = 0;
    let body = match kind {
        CodeKind::Function(index) | CodeKind::Checked(index) => {
            index.checked_sub(module.info.imported_functions)
        }
        _ => None,
    };
    let body_kind = match kind {
        CodeKind::Checked(_) => BodyKind::Checked,
        _ if module.is_dual() => BodyKind::Guarded,
        _ => BodyKind::Only,
    };
    let body = body.map(|own| &parsed.bodies[own as usize]);
    match kind {
        CodeKind::Function(index) | CodeKind::Checked(index) => match body {
            None => stubs::import(module, index, context, scratch),
            Some(body) => {
                let mut spent = FunctionEffort::new(effort, index);
                let translated = translate(module, body, body_kind, context, scratch, &mut spent);
                called_types = translated.inspect_err(|_| {
                    // The function builder's buffers are left as they were.
                    *scratch = Scratch::default();
                })?;
                bytes = spent.bytes(&context.func);
            }
        },
        CodeKind::Entry(ty) => stubs::entry(module, ty, context, scratch),
        CodeKind::DirectEntry(ty) => stubs::direct_entry(module, ty, context, scratch),
        CodeKind::Foreign(ty) => stubs::foreign(module, ty, context, scratch),
        CodeKind::Cross(ty) => stubs::cross(module, ty, context, scratch),
        CodeKind::Throw => stubs::throw(module, context, scratch),
        CodeKind::Trap(code) => stubs::trap(module, code, context, scratch),
        CodeKind::Copy(memory) => stubs::copy(module, memory, context, scratch),
        CodeKind::Fill(memory) => stubs::fill(module, memory, context, scratch),
    }

    let index = match kind {
        CodeKind::Function(index) | CodeKind::Checked(index) => index,
        CodeKind::Entry(ty)
        | CodeKind::DirectEntry(ty)
        | CodeKind::Foreign(ty)
        | CodeKind::Cross(ty) => functions.of(ty),
        _ => functions.last,
    };
    let site = Site { function: index, offset: body.map_or(0, |body| body.body.range().start) };
    let mut reserved = effort.reserve(site, bytes)?;
    let mut control = ControlPlane::default();
    context.optimize(module.isa, &mut control).map_err(|error| failed(index, &error))?;
    effort.check_optimised(site, context, &mut reserved)?;
    let registers = &mut scratch.registers;
    let stencil = module
        .isa
        .compile_function(&context.func, &context.domtree, registers, false, &mut control)
        .map_err(|error| failed(index, &error))?;
    let compiled = stencil.apply_params(&context.func.params);
    let addresses = match kind {
        CodeKind::Entry(_) | CodeKind::DirectEntry(_) => 1,
        CodeKind::Cross(_) => 2,
        _ => 0,
    };
    relocatable::check(&context.func, addresses).map_err(|error| CompileError::Function {
        index,
        message: format!("internal error, please report it: {error}"),
    })?;

    let buffer = &compiled.buffer;
    let relocations = buffer.relocs().iter().map(|reloc| {
        let symbol = match (&reloc.target, reloc.kind, reloc.addend) {
            (
                FinalizedRelocTarget::ExternalName(ExternalName::User(name)),
                Reloc::X86CallPCRel4,
                -4,
            ) => Symbol::from_name(&context.func.params.user_named_funcs()[*name]),
            _ => None,
        };
        let symbol = symbol.ok_or_else(|| CompileError::Function {
            index,
            message: format!("internal error, please report it: relocation {reloc:?}"),
        })?;
        Ok((reloc.offset, symbol))
    });
    let unit = CompiledFunction {
        kind,
        relocations: relocations.collect::<Result<_, CompileError>>()?,
        traps: buffer.traps().iter().map(|trap| (trap.offset, trap_code(trap.code))).collect(),
        call_sites: buffer.call_sites().map(|site| site.ret_addr).collect(),
        handlers: buffer.call_sites().filter_map(|site| handler(&site)).collect(),
        sources: match body {
            Some(body) if module.sources => sources(&compiled, body),
            _ => Vec::new(),
        },
        starts: Starts::new(buffer.data().len() as u32, &compiled.bb_starts, &compiled.bb_edges),
        code: buffer.data().to_vec(),
        called_types,
    };
    effort.finish(site, unit.size())?;
    Ok(unit)
}

/// Where in the module the instructions come from that can stop, and the body.
fn sources(compiled: &CompiledCode, body: &DefinedBody<'_>) -> Vec<(u32, u32)> {
    let buffer = &compiled.buffer;
    let locations = buffer.get_srclocs_sorted();
    // A call is found by the offset that it returns to, just behind it.
    let calls = buffer.call_sites().map(|site| (site.ret_addr, site.ret_addr - 1));
    let traps = buffer.traps().iter().map(|trap| (trap.offset, trap.offset));
    let source = |(key, offset): (u32, u32)| {
        let after = locations.partition_point(|location| location.start <= offset);
        let location = &locations[after.checked_sub(1)?];
        (offset < location.end && !location.loc.is_default()).then(|| (key, location.loc.bits()))
    };
    let start = (0, u32::try_from(body.body.range().start).unwrap_or(u32::MAX));
    let mut sources = vec![start];
    sources.extend(calls.chain(traps).filter_map(source));
    sources.sort_unstable();
    sources.dedup_by_key(|(offset, _)| *offset);
    sources
}

/// Where an exception goes on that leaves this call, if it does not leave the
/// function: offsets in the function.
fn handler(site: &FinalizedMachCallSite<'_>) -> Option<LandingSite> {
    let landing = site.exception_handlers.iter().find_map(|handler| match handler {
        FinalizedMachExceptionHandler::Default(landing) => Some(*landing),
        _ => None,
    })?;
    let frame_size = site.frame_offset.expect("calls with handlers have one");
    Some(LandingSite { call_site: site.ret_addr, landing, frame_size })
}

pub(super) fn failed(index: u32, error: &dyn std::fmt::Display) -> CompileError {
    CompileError::Function { index, message: error.to_string() }
}

/// Our own codes are numbered as users' codes of Cranelift; its own are few.
fn trap_code(code: cranelift_codegen::ir::TrapCode) -> TrapCode {
    use cranelift_codegen::ir::TrapCode as Cranelift;
    match code {
        Cranelift::STACK_OVERFLOW => TrapCode::StackOverflow,
        Cranelift::INTEGER_OVERFLOW => TrapCode::IntegerOverflow,
        Cranelift::HEAP_OUT_OF_BOUNDS => TrapCode::MemoryOutOfBounds,
        Cranelift::INTEGER_DIVISION_BY_ZERO => TrapCode::IntegerDivisionByZero,
        Cranelift::BAD_CONVERSION_TO_INTEGER => TrapCode::BadConversionToInteger,
        user => TrapCode::from_number(user.as_raw().get()).expect("one of our own numbers"),
    }
}
