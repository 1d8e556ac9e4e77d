//! Pages of a slot whose writes a handler of SIGSEGV notes.

use std::ops::Range;

use pagefork_layout::page::without;

use crate::os::error::PagesError;
use crate::os::write_guard::{self, LIFTS_MAX, WriteGuard, protects_writes};
use crate::pages::map_budget::MapShare;
use crate::pages::slot_pages::SlotPages;

/// Pages of a slot that are read-only until somebody writes to them.
#[derive(Debug)]
pub(crate) struct GuardedPages {
    guard: WriteGuard,
    /// Each part is a map of its own, and each range that is made writable cuts one in three.
    _maps: MapShare,
}

impl GuardedPages {
    /// Whether slots of this process can have such pages.
    pub(crate) fn are_possible() -> bool {
        write_guard::is_called() && protects_writes()
    }

    /// Makes these read-only: slot offsets, ascending and apart. `None` if too few maps are left.
    ///
    /// # Safety
    /// It is dropped before the slot's pages are, and ended before other maps take their place.
    pub(crate) unsafe fn new(pages: &SlotPages, parts: &[Range<u64>]) -> Option<Self> {
        let maps = MapShare::take(2 * (LIFTS_MAX + parts.len()) as u64).ok()?;
        // SAFETY: the slot owns its pages, which are accessible as far as images hold them; by this
        // function's contract for long enough.
        let guard = unsafe { WriteGuard::new(addresses(pages, parts)) };
        Some(Self { guard, _maps: maps })
    }

    /// Makes all read-only again, if they are these pages.
    pub(crate) fn protect(&self, pages: &SlotPages, parts: &[Range<u64>]) -> bool {
        let same = self.guard.parts() == addresses(pages, parts);
        if same {
            self.guard.protect();
        }
        same
    }

    /// Makes pages at slot offsets writable before somebody writes to them who takes no signal. They
    /// count as written.
    pub(crate) fn lift(&self, pages: &SlotPages, range: Range<u64>) {
        let start = pages.start();
        self.guard.lift(start + range.start as usize..start + range.end as usize);
    }

    /// Slot offsets of the pages of `parts`, ascending and apart, that may have been written. `None`:
    /// any of them.
    pub(crate) fn written(
        &self,
        pages: &SlotPages,
        parts: &[Range<u64>],
    ) -> Option<Vec<Range<u64>>> {
        let start = pages.start() as u64;
        let written = self.guard.written()?;
        let written: Vec<_> =
            written.iter().map(|range| range.start - start..range.end - start).collect();
        let guarded: Vec<_> = self.guard.parts().iter().map(|part| offset(part, start)).collect();
        // Memories may have grown beyond what is guarded.
        let unwritten = without(&guarded, &written);
        Some(without(parts, &unwritten))
    }

    /// Makes all writable.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn end(&self) -> Result<(), PagesError> {
        Ok(self.guard.end()?)
    }
}

fn offset(part: &Range<usize>, start: u64) -> Range<u64> {
    part.start as u64 - start..part.end as u64 - start
}

fn addresses(pages: &SlotPages, parts: &[Range<u64>]) -> Vec<Range<usize>> {
    let start = pages.start();
    let address = |part: &Range<u64>| start + part.start as usize..start + part.end as usize;
    parts.iter().filter(|part| !part.is_empty()).map(address).collect()
}
