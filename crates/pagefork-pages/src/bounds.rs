use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the parts of a slot lie in the address space, for whoever has to judge
/// a faulting address. Reading it takes no lock and allocates nothing, so a
/// signal handler may, through a shared reference; clones share one memory
/// size. It says nothing about who owns the address once the slot is dropped.
#[derive(Clone, Debug)]
pub struct SlotBounds {
    start: usize,
    stack: usize,
    base: usize,
    /// End of the guard behind the memory; the base where there is no memory.
    memory_end: usize,
    end: usize,
    /// Accessible bytes of memory 0. Invariant: only [`crate::Slot`] writes it,
    /// lowering it before and raising it after the pages change.
    memory_size: Arc<AtomicU64>,
}

/// What part of a slot an address lies in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The guard below the stack: a fault there is a stack overflow.
    StackGuard,
    /// Reserved for memory 0 or its guard, at or beyond the accessible size.
    MemoryBeyond,
    /// Memory 0 below its accessible size: a fault there is not the guest's.
    MemoryWithin,
    /// Another zone, or not this slot.
    Other,
}

impl SlotBounds {
    pub(crate) fn new(slot: Range<usize>, stack: usize, base: usize, memory_end: usize) -> Self {
        assert!(slot.start <= stack && stack <= base && base <= memory_end);
        assert!(memory_end <= slot.end);
        let memory_size = Arc::new(AtomicU64::new(0));
        Self { start: slot.start, stack, base, memory_end, end: slot.end, memory_size }
    }

    /// What part of the slot `address` lies in. Async-signal-safe.
    pub fn place(&self, address: usize) -> Place {
        if (self.start..self.stack).contains(&address) {
            return Place::StackGuard;
        }
        if !(self.base..self.memory_end).contains(&address) {
            return Place::Other;
        }
        if ((address - self.base) as u64) < self.memory_size() {
            Place::MemoryWithin
        } else {
            Place::MemoryBeyond
        }
    }

    /// The addresses of the whole slot, guards included. Async-signal-safe.
    pub fn slot(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Address of the first byte of memory 0. Async-signal-safe.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Accessible bytes of memory 0. Async-signal-safe.
    pub fn memory_size(&self) -> u64 {
        self.memory_size.load(Ordering::Acquire)
    }

    pub(crate) fn set_memory_size(&self, size: u64) {
        self.memory_size.store(size, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guard of 0x100, stack, base at 0x1000, memory and guard up to 0x9000,
    /// padding up to 0xa000; all from `at`.
    fn bounds(at: usize, size: u64) -> SlotBounds {
        let bounds = SlotBounds::new(at..at + 0xa000, at + 0x100, at + 0x1000, at + 0x9000);
        bounds.set_memory_size(size);
        bounds
    }

    #[test]
    fn each_boundary_belongs_to_the_part_above_it() {
        let at = 0x10_0000;
        let bounds = bounds(at, 0x2000);
        let expected = [
            (at - 1, Place::Other),
            (at, Place::StackGuard),
            (at + 1, Place::StackGuard),
            (at + 0xff, Place::StackGuard),
            (at + 0x100, Place::Other),
            (at + 0x101, Place::Other),
            (at + 0xfff, Place::Other),
            (at + 0x1000, Place::MemoryWithin),
            (at + 0x1001, Place::MemoryWithin),
            (at + 0x2fff, Place::MemoryWithin),
            (at + 0x3000, Place::MemoryBeyond),
            (at + 0x3001, Place::MemoryBeyond),
            (at + 0x8fff, Place::MemoryBeyond),
            (at + 0x9000, Place::Other),
            (at + 0x9fff, Place::Other),
            (at + 0xa000, Place::Other),
            (0, Place::Other),
            (usize::MAX, Place::Other),
        ];
        for (address, place) in expected {
            assert_eq!(bounds.place(address), place, "{address:#x}");
        }
    }

    #[test]
    fn an_empty_memory_is_all_beyond_and_a_missing_one_nowhere() {
        assert_eq!(bounds(0x10_0000, 0).place(0x10_1000), Place::MemoryBeyond);
        let none = SlotBounds::new(0x1000..0x9000, 0x2000, 0x4000, 0x4000);
        for address in [0x3fff, 0x4000, 0x4001, 0x8fff] {
            assert_eq!(none.place(address), Place::Other);
        }
    }

    #[test]
    fn clones_see_a_later_size() {
        let bounds = bounds(0x10_0000, 0x1000);
        let clone = bounds.clone();
        bounds.set_memory_size(0x2000);
        assert_eq!(clone.memory_size(), 0x2000);
        assert_eq!(clone.place(0x10_0000 + 0x2fff), Place::MemoryWithin);
    }
}
