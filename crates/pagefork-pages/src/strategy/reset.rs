//! How one slot is reset.

use std::sync::Arc;

use crate::image::Image;
use crate::os::error::PagesError;
use crate::pages::slot_pages::{AllFresh, SlotPages};
use crate::pages::zones::MemorySize;
use crate::strategy::config::{Choice, ResetKind};
use crate::strategy::report::ResetReport;
use crate::strategy::search::Search;
use crate::strategy::stack::Stack;
use crate::strategy::writers::Writers;

use pagefork_layout::page::PAGE_SIZE;

/// How one slot is reset. After a reset that fails, the slot is as before or not whole.
#[derive(Debug)]
pub(crate) enum Strategy {
    /// New maps every time: the baseline of measurements, and the way out where a kernel only
    /// pretends to discard.
    Remap,
    /// The kernel throws written pages away. Each page that a later run writes costs a fault
    /// again.
    Discard,
    /// Every page that may have been written is compared with the image. It needs no help of
    /// the kernel.
    Compare,
    /// Private pages are found and restored in place.
    Search(Box<Search>),
}

impl Strategy {
    /// Says that the slot has just been made on the current thread, and nothing was written to
    /// it since.
    pub(crate) fn begin(&mut self, pages: &SlotPages) {
        if let Self::Search(search) = self {
            search.begin(pages);
        }
    }

    /// Makes every page but kept ones of the stack as the image, and memories as long as at
    /// first.
    pub(crate) fn reset(
        &mut self,
        pages: &mut SlotPages,
        writers: &Writers,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        if pages.is_unfilled() {
            return self.refill(pages, stack, None);
        }
        if matches!(self, Self::Remap) {
            return self.refill(pages, stack, None);
        }
        pages.begin_look()?;
        let report = self.look_and_reset(pages, writers, stack);
        pages.end_look()?;
        report
    }

    fn look_and_reset(
        &mut self,
        pages: &mut SlotPages,
        writers: &Writers,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        match self {
            Self::Remap => self.refill(pages, stack, None),
            Self::Discard => {
                stack.forget(&pages.discard_all()?);
                Ok(ResetReport::blind(match pages.serves_image() {
                    true => ResetKind::Fault,
                    false => ResetKind::Discard,
                }))
            }
            Self::Compare => compare_all(pages, stack),
            Self::Search(search) => search.reset(pages, writers, stack),
        }
    }

    /// Fills a slot anew, from another image or its own.
    pub(crate) fn refill(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
        from: Option<(&Arc<Image>, &[MemorySize])>,
    ) -> Result<ResetReport, PagesError> {
        let filled = match from {
            Some((image, sizes)) => pages.refill(image, sizes),
            None => pages.refill_same(),
        };
        // An error may come before pages were replaced, or after.
        if let Some(fresh) = filled.as_ref().ok().or(pages.unfilled().as_ref()) {
            self.forget(fresh, pages);
            stack.forget(fresh);
        }
        filled.map(|_| ResetReport::blind(ResetKind::Remap))
    }

    /// Has [`Stack`] know every private page of the stack, after a reset that did not look at
    /// it.
    ///
    /// # Errors
    /// If the kernel does not tell; nothing has changed then.
    pub(crate) fn look_at_stack(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<(), PagesError> {
        match self {
            Self::Search(search) => search.look_at_stack(pages, stack),
            _ => Ok(()),
        }
    }

    /// Forgets what is known of pages, which holds no more.
    pub(crate) fn forget(&mut self, fresh: &AllFresh, pages: &SlotPages) {
        if let Self::Search(search) = self {
            search.forget(fresh, pages);
        }
    }

    /// Whether written pages stay for the next run, so that one that goes costs a page fault.
    pub(crate) fn keeps_pages(&self) -> bool {
        match self {
            Self::Remap | Self::Discard => false,
            Self::Compare | Self::Search(_) => true,
        }
    }

    /// What it chose, if it chooses, or what it does where the slot cannot have what was chosen.
    pub(crate) fn choice(&self, pages: &SlotPages) -> Option<Choice> {
        match self {
            Self::Search(search) => search.choice(pages),
            _ => None,
        }
    }
}

fn compare_all(pages: &mut SlotPages, stack: &mut Stack) -> Result<ResetReport, PagesError> {
    pages.begin();
    let mut report = ResetReport::blind(ResetKind::Copy);
    for part in pages.parts() {
        for page in part.step_by(PAGE_SIZE as usize) {
            // SAFETY: parts are accessible, during a reset no other code uses them, and the
            // image was copied, so it can be read.
            report.restored += u64::from(unsafe { pages.restore_if_changed(page) } > 0);
        }
    }
    pages.shrink_all()?;
    pages.finish();
    stack.relearn();
    Ok(report)
}
