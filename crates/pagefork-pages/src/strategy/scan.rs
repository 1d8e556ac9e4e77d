use super::config::ResetKind;
use super::dirty_set::{Found, Restorer};
use super::reset::{ResetReport, Strategy};
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::pages::slot_pages::SlotPages;

/// The kernel says which pages are private, and those are restored in place.
#[derive(Debug)]
pub(crate) struct Scan(pub(crate) Restorer);

impl Strategy for Scan {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        _: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        self.0.find(pages, stack)?;
        self.0.finish(pages, stack, ResetKind::Scan, Found::All)
    }

    fn forget(&mut self) {
        self.0.forget();
    }
}
