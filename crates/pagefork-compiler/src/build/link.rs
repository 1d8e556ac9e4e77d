//! One text of all functions.

use std::collections::{BTreeMap, HashMap};

use pagefork_layout::code::{CodeImage, CodeKind, CodeRange, DebugInfo, LandingSite, descriptor};
use pagefork_layout::packed;
use pagefork_layout::page::PAGE_SIZE;
use pagefork_layout::trap::TrapCode;

use super::function::CompiledFunction;
use crate::base::error::CompileError;
use crate::base::module::TEXT_SIZE_MAX;
use crate::parse::Parsed;
use crate::translate::Symbol;

/// The descriptors start at a multiple of this many bytes.
const DESCRIPTORS_ALIGN: usize = 32;

/// Lays all code out, then the descriptors, and fills in the distances.
pub(super) fn link(
    parsed: &Parsed<'_>,
    units: Vec<CompiledFunction>,
) -> Result<CodeImage, CompileError> {
    let info = &parsed.info;
    let (mut sources, mut traps, mut call_sites) = (Vec::new(), Vec::new(), Vec::new());
    let none = vec![None; info.types.len()];
    let mut image =
        CodeImage { entries: none.clone(), direct_entries: none, ..CodeImage::default() };
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
            CodeKind::Checked(index) => drop(places.insert(Symbol::Checked(index), start)),
            CodeKind::Foreign(ty) => drop(places.insert(Symbol::Foreign(ty), start)),
            CodeKind::Cross(ty) => drop(places.insert(Symbol::Cross(ty), start)),
            CodeKind::Throw => drop(places.insert(Symbol::Throw, start)),
            CodeKind::Trap(code) => drop(places.insert(Symbol::Trap(code), start)),
            CodeKind::Copy(memory) => drop(places.insert(Symbol::Copy(memory), start)),
            CodeKind::Fill(memory) => drop(places.insert(Symbol::Fill(memory), start)),
            CodeKind::Entry(ty) => image.entries[ty as usize] = Some(start),
            CodeKind::DirectEntry(ty) => image.direct_entries[ty as usize] = Some(start),
        }
        text.extend(&unit.code);
        if text.len() > TEXT_SIZE_MAX {
            return Err(CompileError::TooLarge {
                what: "code",
                size: text.len() as u64,
                limit: TEXT_SIZE_MAX as u64,
            });
        }
        traps.extend(unit.traps.iter().map(|(offset, code)| (start + offset, *code)));
        sources.extend(unit.sources.iter().map(|(offset, at)| (start + offset, *at)));
        call_sites.extend(unit.call_sites.iter().map(|offset| start + offset));
        image.handlers.extend(unit.handlers.iter().map(|handler| LandingSite {
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
    let dual = places.keys().any(|symbol| matches!(symbol, Symbol::Checked(_)));
    for checked in [false, true].into_iter().take(1 + usize::from(dual)) {
        describe(descriptors, descriptor::NO_TYPE);
        for (&index, &start) in &function_places {
            let other = places.get(&Symbol::Checked(index)).filter(|_| checked);
            describe(*other.unwrap_or(&start), info.functions[index as usize]);
        }
    }
    append_behind(parsed, &mut image, sources, &traps, &call_sites)?;
    Ok(image)
}

/// Puts what is not code behind it, on pages of its own. Debug information that would make the text
/// too long is left out: it is for people only.
fn append_behind(
    parsed: &Parsed<'_>,
    image: &mut CodeImage,
    sources: Vec<(u32, u32)>,
    traps: &[(u32, TrapCode)],
    call_sites: &[u32],
) -> Result<(), CompileError> {
    let text = &mut image.text;
    let debug = DebugInfo { sources, ..parsed.debug.clone() };
    let debug = match debug.is_empty() {
        true => Vec::new(),
        false => postcard::to_allocvec(&debug).expect("plain data in memory"),
    };
    let data: usize = parsed.data.iter().map(|bytes| bytes.len()).sum();
    let (traps, call_sites) = (packed::pack(traps), packed::pack(call_sites));
    let size = traps.len() + call_sites.len() + data;
    if size + debug.len() > 0 {
        text.resize(text.len().next_multiple_of(PAGE_SIZE as usize), 0xcc);
    }
    image.code_end = text.len() as u32;
    if text.len() + size > TEXT_SIZE_MAX {
        return Err(CompileError::TooLarge {
            what: "code and data",
            size: (text.len() + size) as u64,
            limit: TEXT_SIZE_MAX as u64,
        });
    }
    let mut append = |parts: &[&[u8]]| {
        let start = text.len() as u32;
        parts.iter().for_each(|part| text.extend_from_slice(part));
        start..text.len() as u32
    };
    image.traps = append(&[&traps]);
    image.call_sites = append(&[&call_sites]);
    image.data = append(&parsed.data);
    let has_room = image.data.end as usize + debug.len() <= TEXT_SIZE_MAX;
    image.debug = append(&[if has_room { &debug } else { &[] }]);
    Ok(())
}
