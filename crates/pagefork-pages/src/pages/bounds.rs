//! Which part of a slot an address lies in, for signal handlers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the parts of a slot lie in the address space, to classify the address of a fault. Reading it takes no lock and allocates nothing, so a
/// signal handler may, through a shared reference; clones share the memories'
/// sizes. It says nothing about who owns the address once the slot is dropped.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{FaultPlace, Image, MemorySize, MemoryZone, Slot, SlotConfig};
///
/// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
/// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
/// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
/// let image = Image::new("example", base..base, [])?;
/// let size = MemorySize { initial: 65_536, maximum: 1 << 20 };
/// let mut slot = Slot::new(config, &image, &[size])?;
/// let bounds = slot.bounds();
/// assert_eq!(bounds.place(slot.start() as usize), FaultPlace::StackGuard);
/// let behind = slot.memory(0) as usize + 65_536;
/// assert_eq!(bounds.place(behind), FaultPlace::MemoryBeyond);
/// slot.grow_memory(0, 131_072)?;
/// assert_eq!(bounds.place(behind), FaultPlace::MemoryWithin);
/// assert_eq!(bounds.memory_size(0), 131_072);
/// assert_eq!(bounds.place(bounds.slot().end), FaultPlace::Other);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SlotBounds {
    start: usize,
    stack: usize,
    end: usize,
    memories: Arc<[MemoryBounds]>,
}

/// Where a memory lies, and how much of it is accessible.
#[derive(Debug)]
struct MemoryBounds {
    start: usize,
    /// End of the guard behind it.
    end: usize,
    /// Accessible bytes. Invariant: only [`crate::Slot`] writes it, lowering it
    /// before and raising it after the pages change.
    size: AtomicU64,
}

/// What part of a slot an address lies in. [`SlotBounds`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FaultPlace {
    /// The guard below the stack: a fault there is a stack overflow.
    StackGuard,
    /// Reserved for a memory or its guard, at or beyond the accessible size.
    MemoryBeyond,
    /// A memory below its accessible size: a fault there is not the guest's.
    MemoryWithin,
    /// Another zone, or not this slot.
    Other,
}

impl SlotBounds {
    /// `memories` are their ranges with their guards, ascending.
    pub(crate) fn new(
        slot: Range<usize>,
        stack: usize,
        memories: impl IntoIterator<Item = Range<usize>>,
    ) -> Self {
        let bounds = |Range { start, end }| MemoryBounds { start, end, size: AtomicU64::new(0) };
        let memories: Arc<[MemoryBounds]> = memories.into_iter().map(bounds).collect();
        assert!(slot.start <= stack);
        let mut at = stack;
        for memory in &*memories {
            assert!(at <= memory.start && memory.start <= memory.end);
            at = memory.end;
        }
        assert!(at <= slot.end);
        Self { start: slot.start, stack, end: slot.end, memories }
    }

    /// What part of the slot `address` lies in. Async-signal-safe.
    ///
    /// # Examples
    ///
    /// See [`SlotBounds`].
    pub fn place(&self, address: usize) -> FaultPlace {
        if (self.start..self.stack).contains(&address) {
            return FaultPlace::StackGuard;
        }
        for memory in &*self.memories {
            if (memory.start..memory.end).contains(&address) {
                let within = ((address - memory.start) as u64) < memory.size();
                return if within { FaultPlace::MemoryWithin } else { FaultPlace::MemoryBeyond };
            }
        }
        FaultPlace::Other
    }

    /// The addresses of the whole slot, guards included. Async-signal-safe.
    ///
    /// # Examples
    ///
    /// See [`SlotBounds`].
    pub fn slot(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Accessible bytes of memory `index`. Async-signal-safe.
    ///
    /// # Panics
    /// If there is no such memory.
    ///
    /// # Examples
    ///
    /// See [`SlotBounds`].
    pub fn memory_size(&self, index: usize) -> u64 {
        self.memories[index].size()
    }

    pub(crate) fn set_memory_size(&self, index: usize, size: u64) {
        self.memories[index].size.store(size, Ordering::Release);
    }
}

impl MemoryBounds {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guard of 0x100, stack, base at 0x1000, memory and guard up to 0x9000,
    /// padding up to 0xa000; all from `at`.
    fn bounds(at: usize, size: u64) -> SlotBounds {
        let memory = at + 0x1000..at + 0x9000;
        let bounds = SlotBounds::new(at..at + 0xa000, at + 0x100, [memory]);
        bounds.set_memory_size(0, size);
        bounds
    }

    #[test]
    fn each_boundary_belongs_to_the_part_above_it() {
        let at = 0x10_0000;
        let bounds = bounds(at, 0x2000);
        let expected = [
            (at - 1, FaultPlace::Other),
            (at, FaultPlace::StackGuard),
            (at + 1, FaultPlace::StackGuard),
            (at + 0xff, FaultPlace::StackGuard),
            (at + 0x100, FaultPlace::Other),
            (at + 0x101, FaultPlace::Other),
            (at + 0xfff, FaultPlace::Other),
            (at + 0x1000, FaultPlace::MemoryWithin),
            (at + 0x1001, FaultPlace::MemoryWithin),
            (at + 0x2fff, FaultPlace::MemoryWithin),
            (at + 0x3000, FaultPlace::MemoryBeyond),
            (at + 0x3001, FaultPlace::MemoryBeyond),
            (at + 0x8fff, FaultPlace::MemoryBeyond),
            (at + 0x9000, FaultPlace::Other),
            (at + 0x9fff, FaultPlace::Other),
            (at + 0xa000, FaultPlace::Other),
            (0, FaultPlace::Other),
            (usize::MAX, FaultPlace::Other),
        ];
        for (address, place) in expected {
            assert_eq!(bounds.place(address), place, "{address:#x}");
        }
    }

    #[test]
    fn an_empty_memory_is_all_beyond_and_a_missing_one_nowhere() {
        assert_eq!(bounds(0x10_0000, 0).place(0x10_1000), FaultPlace::MemoryBeyond);
        let none = SlotBounds::new(0x1000..0x9000, 0x2000, []);
        for address in [0x3fff, 0x4000, 0x4001, 0x8fff] {
            assert_eq!(none.place(address), FaultPlace::Other);
        }
    }

    #[test]
    fn clones_see_a_later_size() {
        let bounds = bounds(0x10_0000, 0x1000);
        let clone = bounds.clone();
        bounds.set_memory_size(0, 0x2000);
        assert_eq!(clone.memory_size(0), 0x2000);
        assert_eq!(clone.place(0x10_0000 + 0x2fff), FaultPlace::MemoryWithin);
    }

    #[test]
    fn each_memory_has_a_size_of_its_own() {
        let memories = [0x2000..0x4000, 0x4000..0x6000, 0x7000..0x7000, 0x7000..0x8000];
        let bounds = SlotBounds::new(0..0x9000, 0x1000, memories);
        for (index, size) in [0x1000, 0, 0, 0x800].into_iter().enumerate() {
            bounds.set_memory_size(index, size);
        }
        let expected = [
            (0x1fff, FaultPlace::Other),
            (0x2000, FaultPlace::MemoryWithin),
            (0x2fff, FaultPlace::MemoryWithin),
            (0x3000, FaultPlace::MemoryBeyond),
            (0x3fff, FaultPlace::MemoryBeyond),
            (0x4000, FaultPlace::MemoryBeyond),
            (0x5fff, FaultPlace::MemoryBeyond),
            (0x6000, FaultPlace::Other),
            (0x6fff, FaultPlace::Other),
            (0x7000, FaultPlace::MemoryWithin),
            (0x77ff, FaultPlace::MemoryWithin),
            (0x7800, FaultPlace::MemoryBeyond),
            (0x8000, FaultPlace::Other),
        ];
        for (address, place) in expected {
            assert_eq!(bounds.place(address), place, "{address:#x}");
        }
        bounds.set_memory_size(1, 0x1000);
        assert_eq!(bounds.place(0x4fff), FaultPlace::MemoryWithin);
        assert_eq!(bounds.place(0x5000), FaultPlace::MemoryBeyond);
        assert_eq!(bounds.place(0x3000), FaultPlace::MemoryBeyond, "the others are as before");
    }
}
