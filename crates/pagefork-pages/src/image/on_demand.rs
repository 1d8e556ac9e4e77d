//! Copies of the pages of a file that could be cut short: what the host reads instead of a map.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::lock::lock;
use crate::os::reservation::Reservation;

/// Room for a copy of each page of a file that images need, filled page by page as they are asked
/// for, and once for all slots. A page that no reset restores takes no memory.
///
/// ```text
///  file     | page 0 | page 1 | page 2 | page 3 |     may be cut short: only `read` touches it
///  pages    |        | page 1 |        | page 3 |     in memory, read by resets
///  present  0b1010
/// ```
pub(super) struct PageCopies {
    pages: Reservation,
    /// A bit for each page: it is set once the page has its bytes, which never change then.
    present: Box<[AtomicU64]>,
    /// Held while a page is filled: its bytes are written by one thread.
    filling: Mutex<()>,
}

impl PageCopies {
    /// Room for `size` bytes, whole pages and not none.
    ///
    /// # Errors
    /// The limit that was met.
    pub(super) fn new(size: u64) -> Result<Self, PagesError> {
        let mut pages = Reservation::new(size, PAGE_SIZE)?;
        pages.commit(0..size)?;
        let words = (size / PAGE_SIZE).div_ceil(64);
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { pages, present, filling: Mutex::new(()) })
    }

    /// Address of the first byte.
    pub(super) fn start(&self) -> usize {
        self.pages.start()
    }

    /// Has `read` fill the page at byte `offset`, a multiple of the page size, unless it is there.
    ///
    /// # Errors
    /// What `read` fails with: the page is as before.
    pub(super) fn fetch(
        &self,
        offset: u64,
        read: impl FnOnce(&mut [u8]) -> Result<(), PagesError>,
    ) -> Result<(), PagesError> {
        let page = offset / PAGE_SIZE;
        let (word, bit) = (&self.present[(page / 64) as usize], 1 << (page % 64));
        if word.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        let _filling = lock(&self.filling);
        if word.load(Ordering::Acquire) & bit != 0 {
            return Ok(());
        }
        // What fails half-way leaves nothing behind.
        let mut bytes = [0; PAGE_SIZE as usize];
        read(&mut bytes)?;
        // SAFETY: all pages were made accessible by `new`; the lock keeps other writers out, and
        // nothing reads a page whose bit is not set.
        unsafe { self.pages.write_shared(offset, &bytes) };
        word.fetch_or(bit, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn each_page_is_read_once_however_many_threads_ask() {
        const PAGES: u64 = 130;
        let copies = PageCopies::new(PAGES * PAGE_SIZE).unwrap();
        let reads = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for page in 0..PAGES {
                        let fill = |bytes: &mut [u8]| {
                            reads.fetch_add(1, Ordering::Relaxed);
                            bytes.fill(page as u8 + 1);
                            Ok(())
                        };
                        copies.fetch(page * PAGE_SIZE, fill).unwrap();
                        let place = copies.start() + (page * PAGE_SIZE) as usize;
                        // SAFETY: the page is accessible, and never written once it is there.
                        let byte = unsafe { *std::ptr::with_exposed_provenance::<u8>(place) };
                        assert_eq!(byte, page as u8 + 1);
                    }
                });
            }
        });
        assert_eq!(reads.into_inner(), PAGES as usize);
    }

    #[test]
    fn a_page_that_could_not_be_read_is_asked_for_again() {
        let copies = PageCopies::new(PAGE_SIZE).unwrap();
        let fails = |bytes: &mut [u8]| {
            bytes.fill(7);
            Err(PagesError::ResetIncomplete)
        };
        copies.fetch(0, fails).unwrap_err();
        let works = |bytes: &mut [u8]| {
            bytes.fill(9);
            Ok(())
        };
        copies.fetch(0, works).unwrap();
        // SAFETY: the page is accessible, and never written once it is there.
        let byte = unsafe { *std::ptr::with_exposed_provenance::<u8>(copies.start()) };
        assert_eq!(byte, 9);
    }
}
