use super::config::ResetKind;
use super::reset::{ResetReport, Strategy};
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::pages::slot_pages::SlotPages;

/// The kernel throws the written pages away. Each page that a later run writes
/// costs a fault again.
#[derive(Debug)]
pub(crate) struct Discard;

impl Strategy for Discard {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        _: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        pages.discard_all()?;
        stack.forget();
        Ok(ResetReport::blind(ResetKind::Discard))
    }
}
