//! Stores that no guest may be entered in: a reset has failed, or host code has touched pages of an
//! image's file that are gone.

use std::ptr;

use pagefork_layout::trap::TrapCode;

use crate::base::error::{Result, UsageError};
use crate::base::trap::Trap;
use crate::store::group::{InstanceData, StoreGroup};
use crate::store::interrupt::Due;

impl StoreGroup {
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some() || self.has_lost_pages()
    }

    /// Whether its host code has touched pages that are gone.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.interrupts.has_lost_pages()
    }

    /// Why the guest of a store that is broken cannot go on.
    pub(crate) fn broken_by(&self) -> TrapCode {
        match self.has_lost_pages() {
            true => TrapCode::ImageUnreadable,
            // A host function has failed to grow a memory.
            false => TrapCode::MemoryOutOfBounds,
        }
    }

    /// # Errors
    /// If a reset of it has failed, or its host code has touched pages that are gone.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.is_broken() {
            true if self.broken.is_some() => Err(UsageError::ResetIncomplete.into()),
            true => Err(Trap::without_backtrace(self.broken_by()).into()),
            false => Ok(()),
        }
    }

    /// Has the store learn of pages that its host code touches in the instance's slot and that are
    /// gone.
    pub(crate) fn watch_lost_pages(&self, instance: &InstanceData) {
        // SAFETY: it is taken back before the slot is parked or the interrupts go, and they are
        // given anew when the store gets others.
        unsafe { instance.slot.note_lost_pages_in(self.interrupts.due(), Due::LostPages as u32) };
    }
}

impl InstanceData {
    /// What [`StoreGroup::watch_lost_pages`] has said holds no longer.
    pub(crate) fn forget_watch(&self) {
        // SAFETY: it is taken back.
        unsafe { self.slot.note_lost_pages_in(ptr::null(), 0) };
    }
}
