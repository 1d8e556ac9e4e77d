use std::os::fd::AsFd;
use std::ptr;
use std::sync::OnceLock;

use pagefork_layout::page::PAGE_SIZE;

use crate::error::{Feature, PagesError};
use crate::image;
use crate::reservation::Reservation;
use crate::sys;

/// What the kernel, or what stands in for it, can do: found by trying it on real
/// pages and looking at their contents, because some emulators report success
/// and do nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostFeatures {
    /// `MADV_DONTNEED` brings image bytes and zeros back. Without it a slot can
    /// be used but not reset.
    pub discard: bool,
    /// Images can be sealed against execution (kernel 6.3).
    pub noexec_seal: bool,
}

impl HostFeatures {
    /// What this host can do; tried once a process.
    ///
    /// # Errors
    /// As [`HostFeatures::probe`].
    pub fn get() -> Result<Self, PagesError> {
        // Only a success is kept: a failure may come from a limit that is lifted
        // later.
        static FEATURES: OnceLock<HostFeatures> = OnceLock::new();
        if let Some(&features) = FEATURES.get() {
            return Ok(features);
        }
        let features = Self::probe()?;
        Ok(*FEATURES.get_or_init(|| features))
    }

    /// Tries everything anew.
    ///
    /// # Errors
    /// [`PagesError::Unsupported`] names a feature that nothing works without;
    /// other errors if a limit is in the way.
    pub fn probe() -> Result<Self, PagesError> {
        let size = rustix::param::page_size();
        if size as u64 != PAGE_SIZE {
            return Err(PagesError::Unsupported {
                feature: Feature::PageSize,
                detail: "the pages of this kernel have another size",
            });
        }
        const IMAGE_BYTE: u8 = 0x5a;
        let (file, noexec_seal) = image::memfd("probe")?;
        sys::resize_image(file.as_fd(), PAGE_SIZE)?;
        sys::write_image(file.as_fd(), &[IMAGE_BYTE; PAGE_SIZE as usize], 0)?;
        image::seal(&file)?;
        if sys::write_image(file.as_fd(), &[0], 0).is_ok() {
            return Err(PagesError::Unsupported {
                feature: Feature::Seals,
                detail: "a sealed memfd could still be written",
            });
        }

        let mut pages = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE)?;
        pages.commit(PAGE_SIZE..2 * PAGE_SIZE)?;
        pages.map_private(0..PAGE_SIZE, file.as_fd(), 0)?;
        let of_image = ptr::with_exposed_provenance_mut::<u8>(pages.start());
        let anonymous = of_image.wrapping_add(size);
        for page in [of_image, anonymous] {
            // SAFETY: both pages were made writable above and are ours alone.
            unsafe { page.write_volatile(0xff) };
        }
        pages.discard(0..2 * PAGE_SIZE)?;
        // SAFETY: as above; the pages are still mapped.
        let found = unsafe { (of_image.read_volatile(), anonymous.read_volatile()) };
        Ok(Self { discard: found == (IMAGE_BYTE, 0), noexec_seal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_what_is_needed() {
        let features = HostFeatures::get().unwrap();
        assert!(features.discard);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_discard_that_reports_success_and_does_nothing_is_noticed() {
        let features = crate::inject::pretend(crate::Call::Discard, HostFeatures::probe).unwrap();
        assert!(!features.discard);
    }

    #[cfg(debug_assertions)]
    #[test]
    fn seals_that_do_not_hold_are_noticed() {
        let error =
            crate::inject::pretend(crate::Call::SealImage, HostFeatures::probe).unwrap_err();
        assert!(matches!(error, PagesError::Unsupported { feature: Feature::Seals, .. }));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_blocked_memfd_is_named_and_an_unknown_flag_is_left_out() {
        use crate::inject::fail_nth;
        let outcome = fail_nth(0, libc::ENOSYS, HostFeatures::probe);
        assert!(outcome.value.unwrap_err().to_string().contains("memfd_create"));
        let outcome = fail_nth(0, libc::EINVAL, HostFeatures::probe);
        assert_eq!(outcome.failed, Some(crate::Call::CreateImage));
        assert!(!outcome.value.unwrap().noexec_seal);
    }
}
