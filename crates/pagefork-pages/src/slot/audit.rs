//! What tests do to slots and ask of them. Nothing here is used otherwise, and
//! nothing relies on what strategies know of a slot.

use std::ops::Range;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use super::Slot;
use crate::os::error::PagesError;

/// Of a part of a slot with more pages than this, this many pages are overwritten.
const PAGES_MAX: u64 = 256;

/// Memories grow by this many pages at most.
const GROWTH_MAX: u64 = 64;

impl Slot {
    /// Leaves a slot as the worst of guests could: memories grow, and every zone has
    /// other contents, or, of a large one, its first pages, its last, and some
    /// between. For tests.
    ///
    /// No other code may use the slot meanwhile, as during a reset.
    ///
    /// # Errors
    /// As of [`Slot::grow_memory`].
    #[doc(hidden)]
    pub fn poison(&mut self, seed: u64) -> Result<(), PagesError> {
        let mut random = Random(seed | 1);
        self.pages.wait(0..self.pages.zones().size)?;
        self.enter();
        for index in 0..self.memory_count() {
            let size = self.memory_size(index);
            let room = (self.memory_max(index) - size) / PAGE_SIZE;
            let growth = random.below(room.min(GROWTH_MAX) + 1) * PAGE_SIZE;
            self.grow_memory(index, size + growth)?;
        }
        let parts: Vec<_> = self.parts_of_zones();
        for part in parts {
            let pages = (part.end - part.start) / PAGE_SIZE;
            for place in 0..pages.min(PAGES_MAX) {
                let page = match (pages > PAGES_MAX, place * 3 / PAGES_MAX) {
                    (false, _) | (true, 0) => place,
                    (true, 1) => random.below(pages),
                    _ => pages + place - PAGES_MAX,
                };
                let byte = random.next() as u8 | 1;
                let at = self.place(part.start + page * PAGE_SIZE);
                // SAFETY: parts are accessible, and the caller leaves the slot to
                // this thread.
                unsafe { at.write_bytes(byte, PAGE_SIZE as usize) };
            }
        }
        Ok(())
    }

    /// The first byte (a slot offset) in which a slot that has just been reset is
    /// not as its image, by looking at every one that is accessible, but for what
    /// strategies may keep of the stack and the link zone. `None`: it is right. For
    /// tests.
    ///
    /// # Errors
    /// If the image cannot be read.
    #[doc(hidden)]
    pub fn differs_from_image(&self) -> Result<Option<u64>, PagesError> {
        let zones = self.pages.zones();
        for (index, memory) in zones.memories.iter().enumerate() {
            if self.memory_size(index) != self.pages.memory_initial(index) {
                return Ok(Some(memory.start));
            }
        }
        // A slot without strategies keeps nothing, nor knows where its stack ends.
        let kept = match self.stack.end() {
            0 => zones.stack.end..zones.stack.end,
            _ => self.stack.kept_start()..zones.link.end,
        };
        let mut ranges = self.pages.accessible_parts();
        let first = std::mem::replace(&mut ranges[0], zones.stack.start..kept.start);
        ranges.push(kept.end..first.end);
        let mut wanted = Vec::new();
        for range in ranges {
            // A piece at a time: memories can be large.
            for start in range.clone().step_by(1 << 20) {
                let piece = start..(start + (1 << 20)).min(range.end);
                wanted.clear();
                wanted.resize((piece.end - piece.start) as usize, 0);
                self.read_image(piece.clone(), &mut wanted)?;
                // SAFETY: accessible parts can be read, and no other code writes them.
                let found =
                    unsafe { std::slice::from_raw_parts(self.place(piece.start), wanted.len()) };
                if found != wanted {
                    let at = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
                    return Ok(at.map(|at| piece.start + at as u64));
                }
            }
        }
        Ok(None)
    }

    /// What the image has in `range`, into zeros.
    fn read_image(&self, range: Range<u64>, into: &mut [u8]) -> Result<(), PagesError> {
        for extent in self.image().extents() {
            let common = extent.start.max(range.start)..extent.end.min(range.end);
            if !common.is_empty() {
                let at = (common.start - range.start) as usize;
                let length = (common.end - common.start) as usize;
                self.image().read(common.start, &mut into[at..at + length])?;
            }
        }
        Ok(())
    }

    /// Slot offsets of what is accessible to code now, zone by zone, in whole pages.
    fn parts_of_zones(&self) -> Vec<Range<u64>> {
        let zones = self.pages.zones();
        let first = zones.memories.first().map_or(zones.base, |memory| memory.start);
        let border = round_down(zones.link.start);
        let stack_end = border.min(zones.stack.end);
        let mut parts = vec![zones.stack.start..stack_end, border..zones.link.end];
        parts.push(zones.link.end..first);
        for (index, memory) in zones.memories.iter().enumerate() {
            parts.push(memory.start..memory.start + self.memory_size(index));
        }
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// Marsaglia's xorshift generator: George Marsaglia, "Xorshift RNGs", 2003.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}
