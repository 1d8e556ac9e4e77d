//! Resets that find private pages and restore them in place.

use std::time::Instant;

use crate::os::error::PagesError;
use crate::os::faults::Faults;
use crate::pages::slot_pages::{AllFresh, SlotPages};
use crate::strategy::auto::Auto;
use crate::strategy::config::{Choice, Reason, ResetKind};
use crate::strategy::dirty_set::{DirtySet, Searched};
use crate::strategy::report::ResetReport;
use crate::strategy::stack::Stack;
use crate::strategy::writers::Writers;

/// Finds private pages and restores them: what is done to each, [`DirtySet`] says. They are
/// found by a scan, or by the page faults that were counted since the last reset. If a run took
/// no fault, no page can have become private; if it took few, they show which pages can have. Where
/// pages are kept under write protection, a scan asks for nothing but pages without it.
/// Pages that are known to be private take no fault, so they are looked at in any case.
#[derive(Debug)]
pub(crate) struct Search {
    dirty: DirtySet,
    /// Counted when the slot was made, or at the last reset. Invariant: `dirty` knows every
    /// page that was private then, and since then no page could become huge.
    before: Option<Faults>,
    /// `Scan`, `Resident`, `Protect` or `Copy`, unless `auto` chooses.
    kind: ResetKind,
    auto: Option<Auto>,
}

impl Search {
    pub(crate) fn new(dirty: DirtySet, kind: ResetKind, auto: Option<Auto>) -> Self {
        Self { dirty, before: None, kind, auto }
    }

    pub(super) fn begin(&mut self, pages: &SlotPages) {
        self.dirty.begin(pages);
        if (counts_faults(self.kind) || self.auto.is_some()) && pages.is_untouched() {
            self.before = Faults::try_now();
        }
    }

    #[inline]
    pub(super) fn reset(
        &mut self,
        pages: &mut SlotPages,
        writers: &Writers,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        let by = self.auto.as_ref().map_or(self.kind, Auto::mode);
        // Two readings of the clock are little beside reading the page map.
        let is_compared = |auto: &Auto| auto.compares(&self.dirty);
        let begun = self.auto.as_ref().filter(|auto| is_compared(auto)).map(|_| Instant::now());
        let refused = self.auto.as_ref().is_some_and(|auto| auto.refuses_huge_pages(pages))
            && pages.refuse_huge_pages();
        let report = if refused || by == ResetKind::Discard {
            let fresh = pages.discard_all()?;
            self.forget(&fresh, pages);
            stack.forget(&fresh);
            ResetReport::blind(ResetKind::Discard)
        } else {
            self.restore(pages, writers, stack, by)?
        };
        // A reset that fails changes no mode: what a discard leaves half-done, a discard
        // completes.
        if let Some(auto) = &mut self.auto {
            auto.note(&report, pages, &mut self.dirty, begun);
        }
        Ok(report)
    }

    #[inline]
    fn restore(
        &mut self,
        pages: &mut SlotPages,
        writers: &Writers,
        stack: &mut Stack,
        by: ResetKind,
    ) -> Result<ResetReport, PagesError> {
        if writers.has_external_for_good() {
            self.dirty.protect_never();
        }
        // Also at the first reset by `Auto`: little is to be found in a slot that ran once.
        let counts = counts_faults(by) || self.before.is_some();
        let now = if counts { Some(Faults::now()?) } else { None };
        let searched = self.find(pages, writers, stack, now)?;
        let shown_as = if counts && !counts_faults(by) { ResetKind::Resident } else { by };
        let report = self.dirty.finish(pages, stack, shown_as, searched)?;
        if counts_faults(by) && pages.has_small_pages() && self.dirty.is_complete() {
            self.before = now;
        }
        Ok(report)
    }

    /// Has `dirty` know every private page that is not protected, by a scan if nothing else shows them.
    #[inline]
    fn find(
        &mut self,
        pages: &SlotPages,
        writers: &Writers,
        stack: &mut Stack,
        now: Option<Faults>,
    ) -> Result<Searched, PagesError> {
        // If this fails, the next reset scans.
        let shown = match (self.before.take(), now) {
            (Some(before), Some(now)) if writers.show_in_faults(before, now) => {
                before == now && stack.has_link() || self.dirty.add(pages, stack, before)
            }
            _ => false,
        };
        if !shown && self.dirty.can_find_lifted() {
            self.dirty.find_lifted(pages, stack)?;
            Ok(Searched::Lifted)
        } else if !shown || self.dirty.doubts() {
            self.dirty.find(pages, stack)?;
            Ok(Searched::All)
        } else if stack.is_cleared_always() {
            self.dirty.find_stack(pages, stack)?;
            Ok(Searched::Stack)
        } else {
            Ok(Searched::Nothing)
        }
    }

    pub(super) fn look_at_stack(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<(), PagesError> {
        self.dirty.look_at_stack(pages, stack)?;
        if !self.dirty.is_complete() {
            self.before = None;
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, fresh: &AllFresh, pages: &SlotPages) {
        self.before = None;
        self.dirty.forget(fresh, pages);
    }

    pub(super) fn choice(&self, pages: &SlotPages) -> Option<Choice> {
        if let Some(auto) = &self.auto {
            return Some(auto.choice(&self.dirty));
        }
        let is_refused = self.kind == ResetKind::Protect && !self.dirty.could_protect(pages);
        is_refused.then_some(Choice {
            asked: ResetKind::Protect,
            used: ResetKind::Resident,
            reason: Reason::ProtectionRefused,
        })
    }
}

/// Whether page faults are counted, so that a reset need not search.
fn counts_faults(kind: ResetKind) -> bool {
    matches!(kind, ResetKind::Resident | ResetKind::Protect)
}
