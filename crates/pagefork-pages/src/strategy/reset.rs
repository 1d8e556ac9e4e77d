//! What every way to reset a slot has in common.

use std::fmt;
use std::sync::Arc;

use crate::image::Image;
use crate::os::error::PagesError;
use crate::pages::slot_pages::SlotPages;
use crate::pages::zones::MemorySize;
use crate::strategy::config::{Choice, ResetKind};
use crate::strategy::stack::Stack;
use crate::strategy::writers::Run;

/// What a reset did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ResetReport {
    /// How it was done.
    pub by: ResetKind,
    /// Whether the kernel was asked which pages are private.
    pub scanned: bool,
    /// Private pages there were outside the stack, where that is known.
    pub private: Option<u64>,
    /// Pages that no earlier run had made private.
    pub new: u64,
    /// Pages whose contents were put back in place.
    pub restored: u64,
    /// Private pages that were discarded, where that is known.
    pub discarded: u64,
}

impl ResetReport {
    /// Of a strategy that looks at no page.
    pub(super) fn blind(by: ResetKind) -> Self {
        Self { by, scanned: false, private: None, new: 0, restored: 0, discarded: 0 }
    }
}

/// A way to make a slot equal to its image again.
pub(crate) trait Strategy: fmt::Debug + Send + Sync {
    /// Makes every page but kept ones of the stack as the image, and memories as
    /// long as at first. After an error the slot is as before, or not whole.
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        run: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError>;

    /// Says that the slot has just been made on the current thread, and nothing written to it
    /// since.
    fn begin(&mut self, _: &SlotPages) {}

    /// Has [`Stack`] know every page of the stack that is private, after a reset that left
    /// it unseen: which strategies do that ask the kernel no other way.
    ///
    /// # Errors
    /// If the kernel does not say; nothing has changed then.
    fn look_at_stack(&mut self, _: &mut SlotPages, _: &mut Stack) -> Result<(), PagesError> {
        Ok(())
    }

    /// Says that all pages are fresh: whatever was known of them is wrong.
    fn forget(&mut self) {}

    /// What it chose, if it chooses.
    fn choice(&self) -> Option<Choice> {
        None
    }
}

/// Fills a slot anew, from another image or its own.
pub(crate) fn refill(
    pages: &mut SlotPages,
    strategy: &mut dyn Strategy,
    stack: &mut Stack,
    from: Option<(&Arc<Image>, &[MemorySize])>,
) -> Result<ResetReport, PagesError> {
    let filled = match from {
        Some((image, sizes)) => pages.refill(image, sizes),
        None => pages.refill_same(),
    };
    // Also after an error, if pages may have gone. After another one those of a slot that is
    // half reset are where they were.
    if pages.is_unfilled() || filled.is_ok() {
        strategy.forget();
        stack.forget();
    }
    filled.map(|()| ResetReport::blind(ResetKind::Remap))
}
