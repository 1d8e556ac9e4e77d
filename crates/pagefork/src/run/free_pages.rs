//! The pages that a guest's page manager says are free, which its snapshots leave out.
//!
//! A program with such a manager exports the address of its page map, whose form
//! `docs/PAGEMAN.md` describes. Nothing in it is believed: what is not of that form is no map,
//! and a map that lies costs its own guest what it calls free.

use std::ops::Range;
use std::slice;

use pagefork_layout::module::{Item, ValType};

use crate::store::group::StoreGroup;

/// The exported global that is the map's address.
const EXPORT: &str = "pageman_page_map";

const HEADER_SIZE: u64 = 24;
const MAGIC: u32 = 0x4d47_4150;
const VERSION: u16 = 1;
/// Bits of a page's state, the lower half of a byte first.
const STATE_BITS: u8 = 4;
/// The state of a page that is free and has the bytes of a former owner.
const FREE_DIRTY: u8 = 1;
/// Where in the header is said that such pages read zero.
const CLEARED: u64 = 20;

/// Pages of an instance's first memory that no program needs the bytes of.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FreePages {
    /// Ranges of the slot, ascending.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Where in the slot 1 is to be written, as 32 bits, when all of them are zero.
    pub(crate) cleared: u64,
}

/// The pages that are free and not known to be zero: none where no map says so, or while it is
/// being changed.
pub(crate) fn free_pages(store: &StoreGroup, ordinal: u32) -> Option<FreePages> {
    let module = &store.instance(ordinal).module;
    let Some(Item::Global(index)) = module.export(EXPORT) else { return None };
    if module.info().memories.is_empty() {
        return None;
    }
    let (global, memory) = (store.global(ordinal, index), store.memory(ordinal, 0));
    // What is free there may be absent, and then it is left to the image.
    if store.instance(ordinal).slot.is_incomplete() {
        return None;
    }
    let is_own = global.ordinal == ordinal && memory.ordinal == ordinal;
    if !is_own || store.global_type(global).content != ValType::I32 {
        return None;
    }
    let (start, size) = store.memory_bytes(memory);
    // SAFETY: so many bytes are accessible, and no guest of the store runs.
    let bytes = unsafe { slice::from_raw_parts(start, size) };
    let address = u64::from(store.global_cell(global).low as u32);
    let offset = (start.addr() - store.instance(ordinal).slot.start().addr()) as u64;
    let free = dirty(bytes, address)?;
    let in_slot = |range: Range<u64>| range.start + offset..range.end + offset;
    Some(FreePages {
        ranges: free.into_iter().map(in_slot).collect(),
        cleared: offset + address + CLEARED,
    })
}

/// The bytes that a map at this address says are free and dirty, if there are any.
fn dirty(memory: &[u8], address: u64) -> Option<Vec<Range<u64>>> {
    let header = part(memory, address, HEADER_SIZE)?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    let (version, shift, bits) = (u16::from_le_bytes([header[4], header[5]]), header[6], header[7]);
    let (sequence, pages, states) = (word(8), u64::from(word(12)), u64::from(word(16)));
    let is_known = (word(0), version, bits) == (MAGIC, VERSION, STATE_BITS);
    let is_at_rest = sequence.is_multiple_of(2);
    if !is_known || !(12..=16).contains(&shift) || !is_at_rest {
        return None;
    }
    if pages << shift > memory.len() as u64 {
        return None;
    }
    let states = part(memory, states, pages.div_ceil(2))?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for page in 0..pages {
        if states[page as usize / 2] >> (page % 2 * 4) & 15 != FREE_DIRTY {
            continue;
        }
        let range = page << shift..(page + 1) << shift;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    (!ranges.is_empty()).then_some(ranges)
}

fn part(memory: &[u8], start: u64, length: u64) -> Option<&[u8]> {
    memory.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory of 64 pages of 4 KiB with a map at 100, of 10 pages, of which some are free.
    fn memory() -> Vec<u8> {
        let mut memory = vec![0; 64 << 12];
        let header = [MAGIC, 0x040c_0001, 2, 10, 200, 0];
        for (at, word) in (100..).step_by(4).zip(header) {
            memory[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        // Pages 0 to 9: foreign, internal, dirty, dirty, zero, used, discarded, dirty, 3, dirty.
        memory[200..205].copy_from_slice(&[0x43, 0x11, 0xb0, 0x12, 0x13]);
        memory
    }

    #[test]
    fn runs_of_dirty_free_pages_are_found() {
        let found = dirty(&memory(), 100).expect("a map");
        assert_eq!(found, [2 << 12..4 << 12, 7 << 12..8 << 12, 9 << 12..10 << 12]);
    }

    #[test]
    fn what_is_no_map_at_rest_leaves_nothing_out() {
        for (at, byte, what) in [
            (100, 0, "another magic number"),
            (104, 2, "another version"),
            (106, 11, "smaller pages"),
            (106, 17, "larger pages"),
            (107, 8, "other bits"),
            (108, 3, "in the middle of a change"),
            (113, 1, "more pages than memory has"),
            (115, 255, "far more"),
            (118, 4, "states behind the end"),
            (119, 255, "far behind it"),
        ] {
            let mut memory = memory();
            memory[at] = byte;
            assert_eq!(dirty(&memory, 100), None, "{what}");
        }
        for address in [(64 << 12) - 23, 64 << 12, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(dirty(&memory(), address), None, "{address:#x}");
        }
    }
}
