//! Checked accesses: compares accesses of 32-bit memories with the size, as few of them as needed.
//!
//! Fields of one structure are accesses with the same index and small offsets. Once the farthest
//! of them has been compared, it *covers* the others in all code that it dominates, since a memory
//! never becomes smaller while code runs.

use std::collections::HashMap;

use cranelift_codegen::ir::{InstBuilder, Value, types};
use pagefork_layout::page::WASM_PAGE_SIZE;
use pagefork_layout::trap::TrapCode;

use super::numeric::known_constant;
use super::{BodyKind, Translator};
use crate::base::options::Bounds;

/// A memory, and the index of an access to it.
type AccessIndex = (u32, Value);

/// What earlier comparisons cover at the current place.
#[derive(Default)]
pub(super) struct Covered {
    /// How many bytes from each index on are inside.
    bytes: HashMap<AccessIndex, u64>,
    /// What each comparison has changed: the index, and the bytes before.
    changes: Vec<(AccessIndex, Option<u64>)>,
}

impl Covered {
    /// How many comparisons cover the current place.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Forgets all but the first `length` comparisons: the others do not dominate what
    /// follows.
    pub(super) fn truncate(&mut self, length: usize) {
        for (index, before) in self.changes.drain(length.min(self.changes.len())..).rev() {
            match before {
                Some(bytes) => drop(self.bytes.insert(index, bytes)),
                None => drop(self.bytes.remove(&index)),
            }
        }
    }

    fn covers(&self, index: AccessIndex, reach: u64) -> bool {
        self.bytes.get(&index).is_some_and(|bytes| *bytes >= reach)
    }

    fn add(&mut self, index: AccessIndex, reach: u64) {
        self.changes.push((index, self.bytes.insert(index, reach)));
    }
}

impl Translator<'_> {
    /// Traps if not all of the `reach` bytes from `index` on, of 32 bits, are inside the
    /// memory, unless guard pages stop such accesses.
    pub(super) fn check_bounds(&mut self, memory: u32, index: Value, reach: u64) {
        if !self.is_checked(memory) {
            return;
        }
        // Each block has its own name for what a local is in all of them.
        let index = self.b.func.dfg.resolve_aliases(index);
        if self.is_inside(memory, index, reach) {
            return;
        }
        self.covered.add((memory, index), reach);
        let index = self.b.ins().uextend(types::I64, index);
        let end = self.b.ins().iadd_imm_s(index, reach as i64);
        let outside = self.ends_outside(memory, end);
        self.trap_if(outside, TrapCode::MemoryOutOfBounds);
    }

    /// Whether accesses of this 32-bit memory are checked here.
    pub(super) fn is_checked(&self, memory: u32) -> bool {
        match self.module.options.bounds {
            Bounds::Guarded => false,
            Bounds::Checked => true,
            // Another instance's memory says nothing of how much of it is accessible.
            Bounds::Dual if memory < self.module.info.imported_memories => true,
            Bounds::Dual => self.body_kind != BodyKind::Guarded,
        }
    }

    /// Whether that is known here.
    fn is_inside(&self, memory: u32, index: Value, reach: u64) -> bool {
        let info = self.module.info;
        // Another instance's memory can have less than it had when it was linked: after a
        // reset of the store.
        let own = memory >= info.imported_memories;
        let least = if own { info.memories[memory as usize].minimum } else { 0 };
        let of_every_memory =
            |index: i64| u64::from(index as u32) + reach <= least.saturating_mul(WASM_PAGE_SIZE);
        self.covered.covers((memory, index), reach)
            || known_constant(self, index).is_some_and(of_every_memory)
    }
}
