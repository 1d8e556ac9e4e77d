//! What a reset did.

use crate::strategy::config::ResetKind;

/// What a reset did.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{Image, ResetKind, Slot, SlotConfig};
///
/// # fn main() -> Result<(), pagefork_pages::PagesError> {
/// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
/// # let memories = Vec::new();
/// # let zones = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
/// let image = Image::new("example", base - 4096..base, [(base - 4096, &[1; 8][..])])?;
/// let mut slot = Slot::new(zones, &image, &[])?;
/// assert_eq!(slot.reset()?.by, ResetKind::Discard);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ResetReport {
    /// How it was done.
    pub by: ResetKind,
    /// Whether the kernel was asked which pages are private.
    pub scanned: bool,
    /// Whether it was asked for nothing but pages that are write-protected no more, or never were,
    /// which takes a fraction of the time.
    pub lifted: bool,
    /// Number of private pages outside the stack, where that is known.
    pub private: Option<u64>,
    /// Number of pages that no earlier run had made private.
    pub new: u64,
    /// Number of pages whose contents were put back in place.
    pub restored: u64,
    /// Number of private pages that were discarded, where that is known.
    pub discarded: u64,
    /// Number of private pages that are kept under write protection, without being looked at.
    pub protected: u64,
    /// Number of pages that were so until they took a page fault since the last reset.
    pub returned: u64,
}

impl ResetReport {
    /// Of a reset that looks at no page.
    pub(super) fn blind(by: ResetKind) -> Self {
        let (restored, discarded, protected, returned) = (0, 0, 0, 0);
        let (scanned, lifted, private, new) = (false, false, None, 0);
        Self { by, scanned, lifted, private, new, restored, discarded, protected, returned }
    }
}
