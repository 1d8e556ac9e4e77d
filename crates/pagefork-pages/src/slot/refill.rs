//! How a slot is made as another image: filled anew, or, before anybody has used it, in place.

use std::sync::Arc;

use super::Slot;
use crate::image::Image;
use crate::os::error::PagesError;
use crate::pages::zones::MemorySize;
use crate::strategy::report::ResetReport;
use crate::strategy::stack::Owner;

impl Slot {
    /// Fills the slot from another image, with other sizes; maps are made anew.
    ///
    /// # Errors
    /// As of [`Slot::new`]; the slot then either is as before or not whole.
    ///
    /// # Panics
    /// If there are not as many sizes as memories.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Owner, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let first = Image::new("first", base..base + 4096, [(base, &b"first"[..])])?;
    /// let second = Image::new("second", base..base + 4096, [(base, &b"second"[..])])?;
    /// let size = |pages: u64| MemorySize { initial: pages << 16, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &first, &[size(1)])?;
    /// slot.reset_to(&second, &[size(2)], Owner(1))?;
    /// assert_eq!(slot.memory_size(0), 128 << 10);
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// assert_eq!(unsafe { slot.memory(0).read() }, b's');
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn reset_to(
        &mut self,
        image: &Arc<Image>,
        sizes: &[MemorySize],
        owner: Owner,
    ) -> Result<ResetReport, PagesError> {
        let report = self.refill(image, sizes)?;
        self.hand_to(owner);
        Ok(report)
    }

    /// As [`Slot::reset_to`], and the owner stays. What nobody has used since it was made, or last made as
    /// an image, is not mapped anew if both images map the same files and memories have the same
    /// sizes: pages that this image has a [copy](Image::copied_pages) of are written, unless the slot has the same one.
    /// Returns whether that was so. A slot can be made ahead so, while it is not known yet what the
    /// last few pages of it are to be.
    ///
    /// Not only code, but everybody else that writes to the slot has to have been announced, as of
    /// [`Slot::enter`], and the link zone not to have been written.
    ///
    /// # Errors
    /// As of [`Slot::new`]; the slot then either is as before or not whole.
    ///
    /// # Panics
    /// If there are not as many sizes as memories.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let root = Image::new("example", base..base + (64 << 10), [(base, &[1; 64 << 10][..])])?;
    /// let extents = || vec![base..base + (64 << 10)];
    /// let later = Image::branch(&root, "example", extents(), [(base + 4096, &[2; 4096][..])])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &root, &[size])?;
    /// assert!(slot.advance_to(&later, &[size])?);
    /// // SAFETY: the memory is accessible, and no other code uses it.
    /// assert_eq!(unsafe { (slot.memory(0).read(), slot.memory(0).add(4096).read()) }, (1, 2));
    ///
    /// // Code runs in it: then it is filled anew.
    /// slot.enter();
    /// // SAFETY: as above.
    /// unsafe { slot.memory(0).write(3) };
    /// assert!(!slot.advance_to(&later, &[size])?);
    /// // SAFETY: as above.
    /// assert_eq!(unsafe { slot.memory(0).read() }, 1);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn advance_to(
        &mut self,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<bool, PagesError> {
        if !self.is_fresh || !self.writers.are_none() {
            return self.refill(image, sizes).map(|_| false);
        }
        let Self { deltas, pages, strategy, .. } = self;
        pages.check_process()?;
        deltas.end()?;
        let Some(fresh) = pages.advance(image, sizes)? else {
            return self.refill(image, sizes).map(|_| false);
        };
        strategy.forget(&fresh, pages);
        self.resident = pages.copied_size();
        Ok(true)
    }

    /// Fills it anew.
    pub(super) fn refill(
        &mut self,
        image: &Arc<Image>,
        sizes: &[MemorySize],
    ) -> Result<ResetReport, PagesError> {
        self.is_fresh = false;
        let Self { deltas, pages, strategy, stack, .. } = self;
        pages.check_process()?;
        deltas.end()?;
        let report = strategy.refill(pages, stack, Some((image, sizes)))?;
        (self.resident, self.written) = (pages.copied_size(), 0);
        self.writers.note_reset();
        self.is_fresh = true;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use pagefork_layout::module::{MemoryType, ModuleInfo};
    use pagefork_layout::page::PAGE_SIZE;
    use pagefork_layout::slot::{SlotLayout, SlotLimits};

    use super::*;
    use crate::{ResetKind, StrategyConfig};

    #[test]
    fn a_slot_that_is_filled_anew_has_its_share_of_kernel_maps_by_the_image_that_it_has() {
        let memories = vec![MemoryType::new(0, None)];
        let module = ModuleInfo { memories, ..ModuleInfo::default() };
        let layout = SlotLayout::new(&module, &SlotLimits::default()).unwrap();
        // By touches each part of an image that lies apart is a map of its own.
        let config = StrategyConfig { reset: ResetKind::Fault, ..Default::default() };
        let strategies = config.check().unwrap();
        let sizes = [MemorySize { initial: 1 << 20, maximum: 1 << 20 }];
        let image = |parts: u64| {
            let extent = layout.base..layout.base + (1 << 20);
            let parts = (0..parts).map(|part| (layout.base + 4 * part * PAGE_SIZE, &[1, 2, 3][..]));
            Image::new("parts", extent, parts).unwrap()
        };
        let (few, many) = (image(1), image(40));
        let new = |image| Slot::with_strategies(&layout, image, &sizes, &strategies).unwrap();
        let mut slot = new(&few);
        let counts = [new(&few).pages.maps_max(), new(&many).pages.maps_max()];
        if slot.strategy().used == ResetKind::Fault {
            assert!(counts[1] >= counts[0] + 39, "{counts:?}");
        }
        for (image, count) in [(&many, counts[1]), (&few, counts[0]), (&many, counts[1])] {
            slot.reset_to(image, &sizes, Owner(1)).unwrap();
            assert_eq!(slot.pages.maps_max(), count);
        }
    }
}
