use super::config::ResetKind;
use super::dirty_set::{Found, Restorer};
use super::reset::{ResetReport, Strategy};
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::os::faults::Faults;
use crate::pages::slot_pages::SlotPages;

/// As `Scan`, but without the scan if nothing can have become private since the
/// last reset, or what can is known from where few faults were. Pages known to be private are
/// restored each time: writing to them takes no fault.
#[derive(Debug)]
pub(crate) struct Resident {
    restorer: Restorer,
    /// Counted when the slot was made, or at the last reset. Invariant: the restorer knows
    /// every page that was private then, and since then no page could become huge.
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
        self.stop_counting();
        self.restorer.find(pages, stack)?;
        self.restorer.finish(pages, stack, ResetKind::Scan, Found::All)
    }

    /// As [`Strategy::reset`], and whether a scan was not needed.
    pub(crate) fn reset_counting(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        let now = Faults::now()?;
        // What is known is complete only when a search has succeeded.
        let shown = match self.before.take() {
            Some(before) if run.shows_in_faults(before, now) => {
                before == now && stack.has_link() || self.restorer.add(pages, stack, before)
            }
            _ => false,
        };
        let found = match shown && !self.restorer.doubts() {
            false => {
                self.restorer.find(pages, stack)?;
                Found::All
            }
            true if stack.is_cleared_always() => {
                self.restorer.find_stack(pages, stack)?;
                Found::Stack
            }
            true => Found::Nothing,
        };
        let report = self.restorer.finish(pages, stack, ResetKind::Resident, found)?;
        if pages.has_small_pages() && self.restorer.is_complete() {
            self.before = Some(now);
        }
        Ok(report)
    }

    /// What restores.
    pub(crate) fn restorer(&mut self) -> &mut Restorer {
        &mut self.restorer
    }

    /// Whether a reset might need no scan.
    pub(crate) fn counts(&self) -> bool {
        self.before.is_some()
    }

    /// Has the next reset scan.
    pub(crate) fn stop_counting(&mut self) {
        self.before = None;
    }
}

impl Strategy for Resident {
    fn begin(&mut self, pages: &SlotPages) {
        if pages.is_untouched() {
            self.before = Faults::at_hand();
        }
    }

    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        self.reset_counting(pages, run, stack)
    }

    fn look_at_stack(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<(), PagesError> {
        self.restorer.look_at_stack(pages, stack)?;
        if !self.restorer.is_complete() {
            self.stop_counting();
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.before = None;
        self.restorer.forget();
    }
}
