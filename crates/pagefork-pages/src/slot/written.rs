//! Writes by others than the code in a slot.

use std::ops::Range;

use pagefork_layout::page;

use super::Slot;
use crate::strategy::writers::ExternalWriter;

impl Slot {
    /// Announces that the kernel, or another process, is about to write at these addresses, as far as
    /// the slot has them, before the slot is used otherwise. As of [`Slot::note_external_writer`] the
    /// next reset knows of it; and where pages cannot be written so that writes are noticed
    /// ([`DeltaTracker::Protect`](crate::DeltaTracker::Protect) and
    /// [`DeltaTracker::Fault`](crate::DeltaTracker::Fault)), these are writable from now until the
    /// next snapshot, which has them looked at.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::{Image, MemorySize, MemoryZone, Slot, SlotConfig};
    ///
    /// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
    /// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
    /// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
    /// let image = Image::new("example", base..base, [])?;
    /// let size = MemorySize { initial: 64 << 10, maximum: 1 << 20 };
    /// let mut slot = Slot::new(config, &image, &[size])?;
    /// slot.enter();
    /// let start = slot.memory(0).addr();
    /// // Before a file is read into the first 100 bytes of the memory:
    /// slot.note_external_write(start..start + 100);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn note_external_write(&mut self, addresses: Range<usize>) {
        self.writers.note_external(ExternalWriter::UntilReset);
        let size = self.pages.zones().size;
        let offset = |address: usize| (address.saturating_sub(self.pages.start()) as u64).min(size);
        let range = offset(addresses.start)..offset(addresses.end);
        if !range.is_empty() {
            self.deltas.note_write(&self.pages, page::covering(range));
        }
    }
}
