//! Pages of a slot whose writes a handler of SIGBUS notes.

use std::ops::Range;

use pagefork_layout::page::{joined, without};

use crate::os::error::PagesError;
use crate::os::write_fault::{self, WriteFaults, faults_at_writes};
use crate::pages::map_budget::MapShare;
use crate::pages::slot_pages::SlotPages;

/// Pages of a slot that are write-protected until somebody writes to them.
#[derive(Debug)]
pub(crate) struct FaultedPages {
    faults: WriteFaults,
    /// Maps that are cut where a part begins or ends.
    _maps: MapShare,
}

impl FaultedPages {
    /// Whether slots of this process can have such pages.
    pub(crate) fn are_possible() -> bool {
        write_fault::is_called() && faults_at_writes()
    }

    /// Whether this slot can: only maps of files in memory, and of none, can be registered, and each
    /// for one purpose.
    pub(crate) fn are_possible_in(pages: &SlotPages) -> bool {
        let image = pages.image();
        !pages.serves_image()
            && !image.is_incomplete()
            && (pages.copies_image() || !image.could_be_cut())
    }

    /// Whether pages can be protected of which it is not known whether they are private.
    pub(crate) fn are_possible_unseen() -> bool {
        write_fault::protects_empty()
    }

    /// Registers these pages: slot offsets, ascending and apart. `None` if too few maps are left, or
    /// the kernel refuses.
    ///
    /// # Safety
    /// It is dropped before the slot's pages are, and ended before other maps take their place.
    pub(crate) unsafe fn new(pages: &SlotPages, parts: &[Range<u64>]) -> Option<Self> {
        let maps = MapShare::take(1 + parts.len() as u64).ok()?;
        // SAFETY: the slot owns its pages; by this function's contract for long enough.
        let faults = unsafe { WriteFaults::new(addresses(pages, parts)) }.ok()?;
        Some(Self { faults, _maps: maps })
    }

    /// Whether it is of these parts of the slot, and can protect them.
    pub(crate) fn is_of(&self, pages: &SlotPages, parts: &[Range<u64>]) -> bool {
        self.faults.is_of(&addresses(pages, parts))
    }

    /// Write-protects those of `private`, slot offsets that are ascending and apart, that lie in
    /// `parts`, which are its own. Whether that was done: else it has ended. All others are private
    /// once they are written.
    pub(crate) fn protect(
        &mut self,
        pages: &SlotPages,
        parts: &[Range<u64>],
        private: &[Range<u64>],
    ) -> bool {
        let start = pages.start() as u64;
        let within = without(private, &without(private, &joined(parts.to_vec())));
        let addresses = within.iter().map(|part| start + part.start..start + part.end);
        self.faults.protect(addresses.collect()).is_ok()
    }

    /// Makes pages at slot offsets writable before somebody writes to them who takes no signal. They
    /// count as written.
    pub(crate) fn lift(&self, pages: &SlotPages, range: Range<u64>) {
        let start = pages.start();
        self.faults.lift(start + range.start as usize..start + range.end as usize);
    }

    /// Slot offsets of the pages that were protected and have not been written since, ascending and
    /// apart. `None`: any may have been.
    pub(crate) fn unwritten(&self, pages: &SlotPages) -> Option<Vec<Range<u64>>> {
        let start = pages.start() as u64;
        let unwritten = self.faults.unwritten()?;
        Some(unwritten.iter().map(|part| part.start - start..part.end - start).collect())
    }

    /// Protects nothing more; any page counts as written from then on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn end(&self) -> Result<(), PagesError> {
        Ok(self.faults.end()?)
    }
}

fn addresses(pages: &SlotPages, parts: &[Range<u64>]) -> Vec<Range<usize>> {
    let start = pages.start();
    let address = |part: &Range<u64>| start + part.start as usize..start + part.end as usize;
    parts.iter().filter(|part| !part.is_empty()).map(address).collect()
}
