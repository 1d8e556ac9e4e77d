use super::reset::{self, ResetReport, Strategy};
use super::stack::Stack;
use super::writers::Run;
use crate::os::error::PagesError;
use crate::pages::slot_pages::SlotPages;

/// New maps every time. The baseline of measurements, and the way out where a
/// kernel only pretends to discard.
#[derive(Debug)]
pub(crate) struct Remap;

impl Strategy for Remap {
    fn reset(
        &mut self,
        pages: &mut SlotPages,
        _: &Run,
        stack: &mut Stack,
    ) -> Result<ResetReport, PagesError> {
        reset::refill(pages, self, stack, None)
    }
}
