use pagefork_layout::page::PAGE_SIZE;

use super::config::ResetKind;
use super::dirty_set::{Found, Restorer};
use super::reset::{ResetReport, Strategy};
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::pages::slot_pages::SlotPages;

/// No copy-on-write: pages are anonymous, the image is copied in, and what differs
/// from it is restored. All pages of an image are private then, so each costs a
/// look at every reset.
#[derive(Debug)]
pub(crate) struct Copy {
    /// Without it, every accessible page is looked at.
    pub(crate) restorer: Option<Restorer>,
}

impl Strategy for Copy {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        _: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        match &mut self.restorer {
            Some(restorer) => {
                restorer.find(pages, stack)?;
                restorer.finish(pages, stack, ResetKind::Copy, Found::All)
            }
            None => compare_all(pages, stack),
        }
    }

    fn forget(&mut self) {
        if let Some(restorer) = &mut self.restorer {
            restorer.forget();
        }
    }
}

/// Looks at every page that may have been written: this needs no help of the
/// kernel.
fn compare_all(pages: &mut SlotPages, stack: &mut Stack) -> Result<ResetReport, PagesError> {
    pages.begin();
    let mut report = ResetReport::blind(ResetKind::Copy);
    for part in pages.parts() {
        for page in part.step_by(PAGE_SIZE as usize) {
            // SAFETY: parts are accessible, during a reset nobody else uses them, and
            // an image that is copied can be read.
            report.restored += u64::from(unsafe { pages.mend(page) } > 0);
        }
    }
    pages.shrink_all()?;
    pages.finish();
    stack.forget();
    Ok(report)
}
