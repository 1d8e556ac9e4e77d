use super::faults::Faults;
use super::restorer::Restorer;
use super::{ResetKind, ResetReport, Run, Stack, Strategy};
use crate::error::PagesError;
use crate::slot_pages::SlotPages;

/// As `Scan`, but without the scan if nothing can have become private since the
/// last one. Pages known to be private are restored each time: writing to them
/// takes no fault.
#[derive(Debug)]
pub(crate) struct Resident {
    restorer: Restorer,
    /// Counted before the last scan. Invariant: the restorer knows every page that
    /// was private then, and since then no page could become huge.
    before: Option<Faults>,
}

impl Resident {
    pub(crate) fn new(restorer: Restorer) -> Self {
        Self { restorer, before: None }
    }

    /// Restores by a scan, whatever has been counted.
    pub(crate) fn scan(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        self.before = None;
        self.restorer.find(pages, stack)?;
        self.restorer.finish(pages, stack, ResetKind::Scan, true)
    }

    /// As [`Strategy::reset`], and whether a scan was not needed.
    pub(crate) fn reset_counting(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        // Not when the slot is made: most costs of a slot that runs once are such calls.
        let small_pages = pages.refuse_huge_pages();
        let now = Faults::now()?;
        let scans = !run.made_nothing_private(self.before, now);
        if scans {
            // What is known is complete only when the search has succeeded.
            self.before = None;
            self.restorer.find(pages, stack)?;
            self.before = small_pages.then_some(now);
        }
        self.restorer.finish(pages, stack, ResetKind::Resident, scans)
    }
}

impl Strategy for Resident {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        self.reset_counting(pages, run, stack)
    }

    fn forget(&mut self) {
        self.before = None;
        self.restorer.forget();
    }
}
