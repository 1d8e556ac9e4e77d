use super::{ResetReport, Run, Stack, Strategy};
use crate::error::PagesError;
use crate::slot_pages::SlotPages;

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
        super::refill(pages, self, stack, None)
    }
}
