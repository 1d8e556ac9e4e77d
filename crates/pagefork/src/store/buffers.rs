//! Buffers for the values of calls, kept between calls.

use crate::base::cell::Cell;
use crate::store::group::StoreGroup;

/// As many values are on the stack.
const FEW: usize = 16;

/// A parked store keeps no more buffers than these.
const KEPT_MAX: usize = 4;

/// Buffers, lent to calls that may nest: once there are as many as calls nest, and they are large enough,
/// nothing is allocated.
pub(crate) struct Buffers<V>(Vec<Vec<V>>);

impl<V> Default for Buffers<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V> Buffers<V> {
    /// An empty buffer: the one that was last given back. A call that panics need not give its buffer back.
    pub(crate) fn take(&mut self) -> Vec<V> {
        self.0.pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&mut self, mut buffer: Vec<V>) {
        buffer.clear();
        self.0.push(buffer);
    }

    /// Keeps no more buffers than the next tenant is likely to need.
    pub(crate) fn trim(&mut self) {
        self.0.truncate(KEPT_MAX);
    }
}

impl StoreGroup {
    /// Lends `count` cells, on the stack if they are few.
    ///
    /// # Safety
    /// The store is borrowed by the caller, the pointer with the provenance of the whole.
    #[inline]
    pub(crate) unsafe fn with_own_cells<R>(
        store: *mut Self,
        count: usize,
        use_cells: impl FnOnce(*mut Cell) -> R,
    ) -> R {
        if count <= FEW {
            return use_cells([Cell::default(); FEW].as_mut_ptr());
        }
        // SAFETY: by this function's contract; the borrows end before the cells are used, and begin after.
        unsafe {
            let mut cells = (*store).cells.take();
            cells.resize(count, Cell::default());
            let result = use_cells(cells.as_mut_ptr());
            (*store).cells.give_back(cells);
            result
        }
    }
}
