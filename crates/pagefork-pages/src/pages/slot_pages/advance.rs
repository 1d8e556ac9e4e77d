//! Slots that nobody has written to, made as another image that maps the same files.

use std::mem;
use std::sync::Arc;

use super::{AllFresh, Condition, SlotPages, check_fit};
use crate::image::Image;
use crate::os::error::PagesError;
use crate::pages::zones::MemorySize;

impl SlotPages {
    /// Makes a slot as `image`, in place. No page of it may be private but those that it has copies of.
    /// `None`, and nothing has changed, if it has to be filled: the image maps other files, is copied or
    /// served, or memories have other sizes; or it has pages as mapped of which the slot has copies.
    ///
    /// # Errors
    /// The slot is as before if the image does not fit or its file was cut short, and unfilled after
    /// other errors.
    pub(crate) fn advance(
        &mut self,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<Option<AllFresh>, PagesError> {
        self.check_process()?;
        check_fit(&self.zones, image, sizes)?;
        let has_same_maps = Arc::ptr_eq(image.root(), self.image.root())
            && self.memories.iter().map(|memory| &memory.size).eq(sizes)
            && !self.setup.copies_image
            && self.served.is_none()
            && !image.is_incomplete()
            && self.is_whole();
        // A copy that the image does not have would be private, and no reset would know it.
        let has_all = |image: &Image| {
            self.image.differing().iter().all(|old| image.differing_page(old.page).is_some())
        };
        if !has_same_maps || !has_all(image) {
            return Ok(None);
        }
        image.check_length()?;
        self.condition = Condition::Unfilled;
        let before = mem::replace(&mut self.image, Arc::clone(image));
        for differing in image.differing() {
            let old = before.differing_page(differing.page);
            if !old.is_some_and(|old| old.is_same(differing)) {
                // SAFETY: images lie in what is accessible as soon as a slot is filled, and no other
                // code uses a slot while it is borrowed.
                unsafe { self.restore(differing.page) };
            }
        }
        self.end_look()?;
        self.condition = Condition::Whole;
        Ok(Some(AllFresh(())))
    }
}
