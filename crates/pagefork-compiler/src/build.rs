//! From bodies to machine code, in parallel, and from there to one text.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::ExternalName;
use cranelift_codegen::{
    CompiledCode, Context, FinalizedMachCallSite, FinalizedMachExceptionHandler,
    FinalizedRelocTarget,
};
use pagefork_layout::code::{CodeImage, CodeKind, CodeRange, DebugInfo, Handler, descriptor};
use pagefork_layout::module::{ConstExpr, Item, ModuleInfo};
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::SlotLayout;
use pagefork_layout::trap::TrapCode;
use rayon::prelude::*;

use crate::effort::{Effort, FunctionEffort, Site};
use crate::parse::{Body, Parsed};
use crate::placement::Starts;
use crate::translate::{BodyKind, ModuleContext, Scratch, Symbol, translate};
use crate::{CompileError, CompileOptions, relocatable, stubs, target};

/// The descriptors start at a multiple of this many bytes.
const DESCRIPTORS_ALIGN: usize = 32;

/// Largest text in bytes: distances inside it must fit 32 bits.
pub(crate) const TEXT_SIZE_MAX: usize = 1 << 30;

/// Compiles everything a module needs.
pub(crate) fn build(
    parsed: &Parsed<'_>,
    layout: &SlotLayout,
    options: &CompileOptions,
    effort: &Effort,
) -> Result<CodeImage, CompileError> {
    let isa = target::isa(options)?;
    let mut module = ModuleContext::new(parsed, layout, options, &*isa);

    let imported = parsed.info.imported_functions;
    let functions = imported..parsed.info.functions.len() as u32;
    let entries = entered_types(&parsed.info).into_iter().map(CodeKind::Entry);
    let mut units: Vec<CodeKind> =
        functions.clone().map(CodeKind::Function).chain(entries).collect();
    if module.has_two_bodies() {
        units.extend(functions.map(CodeKind::Comparing));
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
            Symbol::Function(_) | Symbol::Comparing(_) => None,
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
    link(parsed, compiled)
}

/// The optimised IR of the functions the module defines.
pub(crate) fn optimised_ir(
    parsed: &Parsed<'_>,
    layout: &SlotLayout,
    options: &CompileOptions,
) -> Result<String, CompileError> {
    let isa = target::isa(options)?;
    let module = ModuleContext::new(parsed, layout, options, &*isa);
    let effort = Effort::new(options.cost);
    let mut scratch = Scratch::default();
    let mut text = String::new();
    for body in &parsed.bodies {
        let mut context = Context::new();
        let kinds = if module.has_two_bodies() { BodyKind::TWO } else { &[BodyKind::Only] };
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

/// One compiled function.
struct Unit {
    kind: CodeKind,
    code: Vec<u8>,
    /// Calls of other functions: where the 32-bit distance stands, and to whom.
    relocations: Vec<(u32, Symbol)>,
    traps: Vec<(u32, TrapCode)>,
    call_sites: Vec<u32>,
    handlers: Vec<Handler>,
    /// Where instructions that can stop come from, see [`CodeImage::sources`].
    sources: Vec<(u32, u32)>,
    called_types: BTreeSet<u32>,
    /// Where in a line of the processor it may start.
    starts: Starts,
}

impl Unit {
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

fn compile_all(
    module: ModuleContext<'_>,
    parsed: &Parsed<'_>,
    effort: &Effort,
    units: Vec<CodeKind>,
) -> Result<Vec<Unit>, CompileError> {
    units
        .into_par_iter()
        .map_init(
            || (Context::new(), Scratch::default()),
            |(context, scratch), kind| {
                effort.check_time()?;
                let unit = compile_one(module, parsed, effort, kind, context, scratch);
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
    kind: CodeKind,
    context: &mut Context,
    scratch: &mut Scratch,
) -> Result<Unit, CompileError> {
    context.clear();
    let mut called_types = BTreeSet::new();
    let mut bytes = 0;
    let body = match kind {
        CodeKind::Function(index) | CodeKind::Comparing(index) => {
            index.checked_sub(module.info.imported_functions)
        }
        _ => None,
    };
    let body_kind = match kind {
        CodeKind::Comparing(_) => BodyKind::Comparing,
        _ if module.has_two_bodies() => BodyKind::Guarded,
        _ => BodyKind::Only,
    };
    let body = body.map(|own| &parsed.bodies[own as usize]);
    match kind {
        CodeKind::Function(index) | CodeKind::Comparing(index) => match body {
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
        CodeKind::Foreign(ty) => stubs::foreign(module, ty, context, scratch),
        CodeKind::Cross(ty) => stubs::cross(module, ty, context, scratch),
        CodeKind::Throw => stubs::throw(module, context, scratch),
        CodeKind::Trap(code) => stubs::trap(module, code, context, scratch),
        CodeKind::Copy(memory) => stubs::copy(module, memory, context, scratch),
        CodeKind::Fill(memory) => stubs::fill(module, memory, context, scratch),
    }

    let index = match kind {
        CodeKind::Function(index) | CodeKind::Comparing(index) => index,
        // Named by the first function that it is for.
        CodeKind::Entry(ty) | CodeKind::Foreign(ty) | CodeKind::Cross(ty) => {
            let first = module.info.functions.iter().position(|of| *of == ty);
            first.map_or(u32::MAX, |index| index as u32)
        }
        _ => u32::MAX,
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
        CodeKind::Entry(_) => 1,
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
    let unit = Unit {
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
fn sources(compiled: &CompiledCode, body: &Body<'_>) -> Vec<(u32, u32)> {
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
fn handler(site: &FinalizedMachCallSite<'_>) -> Option<Handler> {
    let landing = site.exception_handlers.iter().find_map(|handler| match handler {
        FinalizedMachExceptionHandler::Default(landing) => Some(*landing),
        _ => None,
    })?;
    let frame_size = site.frame_offset.expect("calls with handlers have one");
    Some(Handler { call_site: site.ret_addr, landing, frame_size })
}

fn failed(index: u32, error: &dyn std::fmt::Display) -> CompileError {
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

/// Canonical types of the functions that can become known outside.
pub(crate) fn entered_types(info: &ModuleInfo) -> BTreeSet<u32> {
    let exported = info.exports.iter().filter_map(|export| match export.item {
        Item::Func(index) => Some(index),
        _ => None,
    });
    let items = info.elements.iter().flat_map(|segment| segment.items.iter());
    let inits = info.global_inits.iter().chain(info.table_inits.iter().flatten());
    let referenced = items.chain(inits).filter_map(|expr| match expr {
        ConstExpr::Func(index) => Some(*index),
        _ => None,
    });
    let functions = exported.chain(referenced).chain(info.start);
    functions.map(|index| info.functions[index as usize]).collect()
}

/// Lays all code out, then the descriptors, and fills in the distances.
fn link(parsed: &Parsed<'_>, units: Vec<Unit>) -> Result<CodeImage, CompileError> {
    let info = &parsed.info;
    let mut sources = Vec::new();
    let mut image = CodeImage { entries: vec![None; info.types.len()], ..CodeImage::default() };
    let mut places: HashMap<Symbol, u32> = HashMap::new();
    let mut function_places: BTreeMap<u32, u32> = BTreeMap::new();
    let text = &mut image.text;
    for unit in &units {
        // Between functions lie trapping instructions.
        let start = unit.starts.next(text.len());
        text.resize(start, 0xcc);
        let start = start as u32;
        let size = unit.code.len() as u32;
        image.functions.push(CodeRange { start, size, kind: unit.kind });
        match unit.kind {
            CodeKind::Function(index) => {
                places.insert(Symbol::Function(index), start);
                function_places.insert(index, start);
            }
            CodeKind::Comparing(index) => drop(places.insert(Symbol::Comparing(index), start)),
            CodeKind::Foreign(ty) => drop(places.insert(Symbol::Foreign(ty), start)),
            CodeKind::Cross(ty) => drop(places.insert(Symbol::Cross(ty), start)),
            CodeKind::Throw => drop(places.insert(Symbol::Throw, start)),
            CodeKind::Trap(code) => drop(places.insert(Symbol::Trap(code), start)),
            CodeKind::Copy(memory) => drop(places.insert(Symbol::Copy(memory), start)),
            CodeKind::Fill(memory) => drop(places.insert(Symbol::Fill(memory), start)),
            CodeKind::Entry(ty) => image.entries[ty as usize] = Some(start),
        }
        text.extend(&unit.code);
        if text.len() > TEXT_SIZE_MAX {
            return Err(CompileError::TooLarge {
                what: "code",
                size: text.len() as u64,
                limit: TEXT_SIZE_MAX as u64,
            });
        }
        image.traps.extend(unit.traps.iter().map(|(offset, code)| (start + offset, *code)));
        sources.extend(unit.sources.iter().map(|(offset, at)| (start + offset, *at)));
        image.call_sites.extend(unit.call_sites.iter().map(|offset| start + offset));
        image.handlers.extend(unit.handlers.iter().map(|handler| Handler {
            call_site: start + handler.call_site,
            landing: start + handler.landing,
            frame_size: handler.frame_size,
        }));
    }

    for (unit, range) in units.iter().zip(&image.functions) {
        for (offset, symbol) in &unit.relocations {
            let at = range.start + offset;
            // The distance counts from the end of its own four bytes.
            let distance = places[symbol].wrapping_sub(at + 4);
            text[at as usize..][..4].copy_from_slice(&distance.to_le_bytes());
        }
    }

    text.resize(text.len().next_multiple_of(DESCRIPTORS_ALIGN), 0xcc);
    let descriptors = text.len() as u32;
    image.descriptors = descriptors;
    let mut describe = |code: u32, ty: u32| {
        debug_assert_eq!((descriptor::CODE, descriptor::TYPE, descriptor::SIZE), (0, 4, 8));
        text.extend(code.wrapping_sub(descriptors).to_le_bytes());
        text.extend(ty.to_le_bytes());
    };
    let two_bodies = places.keys().any(|symbol| matches!(symbol, Symbol::Comparing(_)));
    for comparing in [false, true].into_iter().take(1 + usize::from(two_bodies)) {
        describe(descriptors, descriptor::NO_TYPE);
        for (&index, &start) in &function_places {
            let other = places.get(&Symbol::Comparing(index)).filter(|_| comparing);
            describe(*other.unwrap_or(&start), info.functions[index as usize]);
        }
    }
    image.debug = append_debug(text, &DebugInfo { sources, ..parsed.debug.clone() });
    Ok(image)
}

/// Puts debug information behind the code, on pages of its own. What would make
/// the text too long is left out: it is for people only.
fn append_debug(text: &mut Vec<u8>, debug: &DebugInfo) -> Range<u32> {
    let end = text.len() as u32;
    if debug.is_empty() {
        return end..end;
    }
    let bytes = postcard::to_allocvec(debug).expect("plain data in memory");
    let start = text.len().next_multiple_of(PAGE_SIZE as usize);
    if start + bytes.len() > TEXT_SIZE_MAX {
        return end..end;
    }
    text.resize(start, 0xcc);
    text.extend(bytes);
    start as u32..text.len() as u32
}
