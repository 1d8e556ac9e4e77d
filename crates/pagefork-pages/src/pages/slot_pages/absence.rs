//! What slots do of whose images pages are absent: they wait for them, and in forked processes they
//! touch nothing.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::SlotPages;
use crate::image::Image;
use crate::os::error::AbsentPage;

impl SlotPages {
    /// # Errors
    /// [`AbsentPage`] in a process that was forked while pages of the image were absent. It has holes
    /// where those were mapped, in which other threads may have mapped something since. So there the
    /// slot cannot be used: this comes before pages of it are read, written or mapped. Also in one
    /// that shares with its parent what memories have grown by.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), AbsentPage> {
        self.image.check_process()?;
        self.check_served_process()?;
        self.check_growth_process()
    }

    /// Waits until all that the slot can show of its image in a range of slot offsets is here, also for
    /// the kernel.
    ///
    /// # Errors
    /// [`AbsentPage`] names what did not come.
    pub(crate) fn wait(&self, range: Range<u64>) -> Result<(), AbsentPage> {
        self.touch_served(range.clone());
        if self.image.is_incomplete() { self.image.wait(range) } else { Ok(()) }
    }
}

impl Drop for SlotPages {
    fn drop(&mut self) {
        // In a forked process the holes are others'. Else a part may go on as the guard of another slot,
        // which forked processes are to have.
        let is_torn = self.image.check_process().is_err();
        let whole = 0..self.zones.size;
        if self.image.is_incomplete() {
            if is_torn || self.pages.replace(whole).is_err() {
                self.pages.leak();
                std::mem::forget(std::mem::take(&mut self.registered));
            }
        } else if self.is_bound() {
            // Else a guard would keep a file, an empty one.
            let _ = self.pages.replace(whole);
        }
    }
}

/// Waits for the pages that a slot has copies of: below a copy lies the page of the root.
pub(super) fn wait_for_copies(image: &Image) -> Result<(), AbsentPage> {
    if !image.is_incomplete() {
        return Ok(());
    }
    let pages = image.differing().iter().map(|differing| differing.page);
    pages.into_iter().try_for_each(|page| image.wait(page..page + PAGE_SIZE))
}
