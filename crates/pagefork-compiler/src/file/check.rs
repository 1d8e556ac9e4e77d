//! Checks that what a file says of a module is consistent, before anything relies on it.

use std::ops::Range;

use pagefork_layout::code::{CodeImage, CodeKind, LandingSite, descriptor};
use pagefork_layout::link::function_import::is_direct;
use pagefork_layout::module::{
    ConstExpr, ConstOp, FuncType, HeapType, Item, ModuleInfo, SegmentMode, ValType,
};
use pagefork_layout::packed::{Packed, PackedList};
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::slot::{SlotLayout, SlotLimits};
use pagefork_layout::trap::TrapCode;

use crate::base::module::{CompiledModule, entered_types};

/// Parts of a text that are judged, too, where it is read.
#[derive(Clone, Default)]
pub(super) struct TextParts {
    pub(super) descriptors: Range<u32>,
    /// Traps and call sites.
    pub(super) lists: Range<u32>,
}

/// What is wrong.
type Consistent<T = ()> = Result<T, &'static str>;

/// Judges a module without its text, whose size in bytes is known. Returns where
/// in the text the descriptors are, and what is listed for traps and calls.
pub(super) fn manifest(
    module: &CompiledModule,
    limits: &SlotLimits,
    text_size: u32,
) -> Consistent<TextParts> {
    let CompiledModule { info, layout, code } = module;
    types(info)?;
    imports(info)?;
    definitions(info)?;
    segments(info, code)?;
    // A layout is a function of what is declared.
    let wanted = SlotLayout::new(info, limits).map_err(|_| "no slot can hold its instances")?;
    ensure(*layout == wanted, "its slots are laid out in another way")?;
    code_image(info, code, text_size)
}

/// Judges the descriptors, of a module that [`manifest`] has passed.
pub(super) fn descriptors(module: &CompiledModule, bytes: &[u8]) -> Consistent {
    let CompiledModule { info, code, .. } = module;
    let mut starts = vec![None; info.functions.len()];
    let mut checked = starts.clone();
    for range in &code.functions {
        match range.kind {
            CodeKind::Function(index) => starts[index as usize] = Some(range.start),
            CodeKind::Checked(index) => checked[index as usize] = Some(range.start),
            _ => (),
        }
    }
    let imported = info.imported_functions as usize;
    checked[..imported].copy_from_slice(&starts[..imported]);
    let tables = if code.is_dual() { vec![starts, checked] } else { vec![starts] };
    let words = bytes.chunks_exact(descriptor::SIZE as usize).map(|bytes| {
        let word = |at: u32| bytes[at as usize..][..4].try_into().expect("four bytes");
        let code_distance = i32::from_le_bytes(word(descriptor::CODE));
        let place = code.descriptors.wrapping_add_signed(code_distance);
        (place, u32::from_le_bytes(word(descriptor::TYPE)))
    });
    let null = (code.descriptors, descriptor::NO_TYPE);
    let wanted = tables.iter().flat_map(|starts| {
        let functions = starts.iter().zip(&info.functions);
        let functions = functions.map(|(start, ty)| start.map(|start| (start, *ty)));
        std::iter::once(Some(null)).chain(functions)
    });
    ensure(words.map(Some).eq(wanted), "a descriptor of a function")
}

/// Judges what is listed for traps and calls, of a module that [`manifest`] has passed.
pub(super) fn lists(code: &CodeImage, bytes: &[u8]) -> Consistent {
    let (traps, call_sites) = bytes.split_at(code.traps.len());
    let whole = traps.len().is_multiple_of(<(u32, TrapCode)>::SIZE);
    ensure(whole && call_sites.len().is_multiple_of(u32::SIZE), "the length of a list")?;
    let traps = PackedList::<(u32, TrapCode)>::new(traps);
    ensure(traps.iter().all(|trap| trap.is_some()), "a reason of a trap")?;
    let end = [code.descriptors];
    let traps = traps.iter().flatten().map(|(offset, _)| offset);
    ensure(traps.chain(end).is_sorted(), "its traps")?;
    let call_sites = PackedList::<u32>::new(call_sites).iter().flatten();
    ensure(call_sites.chain(end).is_sorted(), "its calls")
}

fn ensure(right: bool, what: &'static str) -> Consistent {
    if right { Ok(()) } else { Err(what) }
}

fn types(info: &ModuleInfo) -> Consistent {
    for (index, ty) in info.types.iter().enumerate() {
        // Cells for them are counted in 32 bits, with room to spare.
        ensure(ty.params.len().max(ty.results.len()) <= 1 << 16, "a function type's length")?;
        let all = || ty.params.iter().chain(&ty.results);
        ensure(all().all(|ty| is_known(*ty, index + 1)), "a function type")?;
    }
    let known = info.types.len();
    let types = info.functions.iter().chain(&info.tags);
    ensure(types.into_iter().all(|ty| (*ty as usize) < known), "the type of a function or tag")?;
    let refs = info.tables.iter().map(|table| table.element);
    let refs = refs.chain(info.elements.iter().map(|segment| segment.element));
    let types = refs.map(ValType::Ref).chain(info.globals.iter().map(|global| global.content));
    ensure(types.into_iter().all(|ty| is_known(ty, known)), "the type of a table or global")
}

/// Whether a type names only types below `known`.
fn is_known(ty: ValType, known: usize) -> bool {
    match ty {
        ValType::Ref(ty) => !matches!(ty.heap, HeapType::Concrete(ty) if ty as usize >= known),
        _ => true,
    }
}

/// Imports come first in each index space, in order.
fn imports(info: &ModuleInfo) -> Consistent {
    let mut counts = [0; 5];
    for import in &info.imports {
        let (space, index) = space(import.item);
        ensure(index == counts[space], "the order of its imports")?;
        counts[space] += 1;
    }
    let imported = [
        info.imported_functions,
        info.imported_globals,
        info.imported_tables,
        info.imported_memories,
        info.imported_tags,
    ];
    ensure(counts == imported, "the number of its imports")?;
    let lengths = lengths(info);
    ensure(counts.iter().zip(lengths).all(|(count, length)| *count as usize <= length), "imports")
}

fn space(item: Item) -> (usize, u32) {
    match item {
        Item::Func(index) => (0, index),
        Item::Global(index) => (1, index),
        Item::Table(index) => (2, index),
        Item::Memory(index) => (3, index),
        Item::Tag(index) => (4, index),
    }
}

fn lengths(info: &ModuleInfo) -> [usize; 5] {
    [
        info.functions.len(),
        info.globals.len(),
        info.tables.len(),
        info.memories.len(),
        info.tags.len(),
    ]
}

fn definitions(info: &ModuleInfo) -> Consistent {
    let lengths = lengths(info);
    let exported = info.exports.iter().map(|export| space(export.item));
    let mut exported = exported.map(|(space, index)| (index as usize) < lengths[space]);
    ensure(exported.all(|known| known), "an export")?;

    let start = info.start.map(|start| info.functions.get(start as usize));
    let start = start.map(|ty| ty.map(|ty| &info.types[*ty as usize]));
    let runs = |ty: &FuncType| ty.params.is_empty() && ty.results.is_empty();
    ensure(start.is_none_or(|ty| ty.is_some_and(runs)), "its start function")?;

    let (own_globals, own_tables) = (
        &info.globals[info.imported_globals as usize..],
        &info.tables[info.imported_tables as usize..],
    );
    ensure(own_globals.len() == info.global_inits.len(), "the number of its globals")?;
    for (known, (global, init)) in
        (info.imported_globals..).zip(own_globals.iter().zip(&info.global_inits))
    {
        constant(info, init, global.content, known)?;
    }
    ensure(own_tables.len() == info.table_inits.len(), "the number of its tables")?;
    for (table, init) in own_tables.iter().zip(&info.table_inits) {
        if let Some(init) = init {
            constant(info, init, ValType::Ref(table.element), info.globals.len() as u32)?;
        }
    }
    let sizes = info.memories.iter().map(|memory| (memory.minimum, memory.memory64, 1 << 16));
    let tables = info.tables.iter().map(|table| (table.minimum, table.table64, 1 << 32));
    let mut sizes = sizes.chain(tables);
    // 2^48 wasm pages are all there is.
    let possible = sizes.all(|(size, wide, limit)| size <= if wide { 1 << 48 } else { limit });
    ensure(possible, "the size of a table or memory")
}

fn segments(info: &ModuleInfo, code: &CodeImage) -> Consistent {
    let known = info.globals.len() as u32;
    let offset_type = |wide| if wide { ValType::I64 } else { ValType::I32 };
    for segment in &info.elements {
        if let SegmentMode::Active { target, offset } = &segment.mode {
            let table = info.tables.get(*target as usize).ok_or("the table of a segment")?;
            let fits = table.element.heap.top() == segment.element.heap.top();
            ensure(fits, "the type of a segment's elements")?;
            constant(info, offset, offset_type(table.table64), known)?;
        }
        for item in &segment.items {
            constant(info, item, ValType::Ref(segment.element), known)?;
        }
    }
    let data_size = code.data.end.saturating_sub(code.data.start);
    for segment in info.data.iter() {
        let bytes = &segment.bytes;
        let inside = bytes.start <= bytes.end && bytes.end <= data_size;
        ensure(inside, "the place of a segment's bytes")?;
        if let SegmentMode::Active { target, offset } = &segment.mode {
            let memory = info.memories.get(*target as usize).ok_or("the memory of a segment")?;
            constant(info, offset, offset_type(memory.memory64), known)?;
        }
    }
    Ok(())
}

/// Whether an expression makes a value of type `ty`, or a reference of its kind,
/// from globals below `known`.
fn constant(info: &ModuleInfo, expr: &ConstExpr, ty: ValType, known: u32) -> Consistent {
    let global = |index: &u32| (*index < known).then(|| info.globals[*index as usize].content);
    let is_int = |ty: ValType| matches!(ty, ValType::I32 | ValType::I64);
    let right = match expr {
        ConstExpr::Bits(_) => !ty.is_ref(),
        ConstExpr::Null => ty.is_ref(),
        ConstExpr::Func(index) => {
            (*index as usize) < info.functions.len() && top(ty) == Some(HeapType::Func)
        }
        ConstExpr::Global(index) => global(index).is_some_and(|found| match ty.is_ref() {
            true => top(found) == top(ty),
            false => found == ty,
        }),
        ConstExpr::Extended(steps) => {
            let mut depth = 0usize;
            let mut enough = true;
            for step in steps {
                match step {
                    ConstOp::Bits(_) => depth += 1,
                    ConstOp::Global(index) => {
                        enough &= global(index).is_some_and(is_int);
                        depth += 1;
                    }
                    ConstOp::Add(_) | ConstOp::Sub(_) | ConstOp::Mul(_) => {
                        enough &= depth >= 2;
                        depth = depth.saturating_sub(1);
                    }
                }
            }
            enough && depth == 1 && is_int(ty)
        }
    };
    ensure(right, "a constant expression")
}

/// What kind of reference a type is, if it is one.
fn top(ty: ValType) -> Option<HeapType> {
    match ty {
        ValType::Ref(ty) => Some(ty.heap.top()),
        _ => None,
    }
}

fn code_image(info: &ModuleInfo, code: &CodeImage, text_size: u32) -> Consistent<TextParts> {
    let tables = 1 + u64::from(code.is_dual());
    let size = tables * (info.functions.len() as u64 + 1) * u64::from(descriptor::SIZE);
    let end = u64::from(code.descriptors) + size;
    ensure(end <= u64::from(text_size), "the place of its descriptors")?;
    ensure(code.descriptors.is_multiple_of(descriptor::SIZE), "the place of its descriptors")?;
    // One right after the other, from the end of the code to that of the text.
    let behind = [&code.traps, &code.call_sites, &code.data, &code.debug];
    let placed =
        end <= u64::from(code.code_end) && behind.iter().all(|part| part.start <= part.end);
    let apart = code.code_end == text_size || u64::from(code.code_end).is_multiple_of(PAGE_SIZE);
    let starts = behind.iter().map(|part| part.start).chain([text_size]);
    let ends = [code.code_end].into_iter().chain(behind.iter().map(|part| part.end));
    ensure(placed && apart && starts.eq(ends), "the place of what lies behind its code")?;

    let mut entries = vec![None; info.types.len()];
    let mut direct_entries = entries.clone();
    let mut after = 0;
    for range in &code.functions {
        let end = range.start.checked_add(range.size);
        let inside = end.is_some_and(|end| end <= code.descriptors) && range.start >= after;
        ensure(inside && range.size > 0, "the place of a function")?;
        after = range.start + range.size;
        let known = match range.kind {
            CodeKind::Function(index) => (index as usize) < info.functions.len(),
            CodeKind::Checked(index) => {
                (info.imported_functions..info.functions.len() as u32).contains(&index)
            }
            CodeKind::Entry(ty) => entries
                .get_mut(ty as usize)
                .is_some_and(|entry| entry.replace(range.start).is_none()),
            CodeKind::DirectEntry(ty) => direct_entries
                .get_mut(ty as usize)
                .is_some_and(|entry| entry.replace(range.start).is_none()),
            CodeKind::Foreign(ty) | CodeKind::Cross(ty) => (ty as usize) < info.types.len(),
            CodeKind::Copy(memory) | CodeKind::Fill(memory) => {
                (memory as usize) < info.memories.len()
            }
            CodeKind::Throw | CodeKind::Trap(_) => true,
        };
        ensure(known, "what a piece of code is")?;
    }
    let listed = entries == code.entries && direct_entries == code.direct_entries;
    let complete = entered_types(info).into_iter().all(|ty| {
        let direct = is_direct(&info.types[ty as usize]);
        let ty = ty as usize;
        entries[ty].is_some() && direct == direct_entries[ty].is_some()
    });
    ensure(listed && complete, "the entries of its functions")?;

    let lands = |handler: &LandingSite| {
        // A return address may be the end of its function.
        let from = handler.call_site.checked_sub(1).and_then(|call| code.range_at(call));
        from.is_some() && from == code.range_at(handler.landing)
    };
    let handlers = code.handlers.is_sorted_by_key(|handler| handler.call_site);
    ensure(handlers && code.handlers.iter().all(lands), "its handlers of exceptions")?;
    let lists = code.traps.start..code.call_sites.end;
    Ok(TextParts { descriptors: code.descriptors..end as u32, lists })
}
