//! Looking at pages of files that could be cut short.
//!
//! A page that its file has no more raises SIGBUS. Asking for the length of the file beforehand
//! takes longer than a warm reset, and is out of date when it is answered; and of what the embedder
//! reads nothing is known at all. So slots with such pages are listed, and the handler of the signal
//! puts zeros in the place of a page that is gone: the instruction goes on, and the slot is known to
//! be no longer what it should be.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use pagefork_layout::page::{PAGE_SIZE, round_down};

use crate::os::address_list::{AddressEntry, AddressList};

/// Slots with pages that could be gone.
static WATCHED: AddressList<LostPages> = AddressList::new();

/// What a slot has lost, and who has to know it.
#[derive(Default, Debug)]
struct LostPages {
    /// Whether something else is in the place of a page.
    is_gone: AtomicBool,
    /// Where it is noted then, and which bits; null if nobody asked.
    noted_in: AtomicPtr<AtomicU32>,
    bits: AtomicU32,
}

/// Whether a handler of SIGBUS calls [`stand_in`].
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Says that from now on a handler of SIGBUS in this process calls [`stand_in`]: then slots look at
/// pages of files without asking for the length of the file each time.
///
/// # Examples
///
/// See [`stand_in`].
pub fn stand_in_is_called() {
    IS_CALLED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed)
}

/// Puts zeros in the place of the page at this address if it is one of a slot: it lies in a file that
/// was cut short or that the disk cannot give. The slot is given up then: see
/// [`Slot::has_lost_pages`](crate::Slot::has_lost_pages). Returns whether the instruction that has
/// raised the signal goes on.
///
/// For handlers of SIGBUS, with the code `BUS_ADRERR`, raised by code that uses the slot: it is
/// async-signal-safe, and changes `errno`.
///
/// # Examples
///
/// ```
/// // What a handler does with the address in its `siginfo_t`:
/// let page = [0u8; 4096];
/// assert!(!pagefork_pages::stand_in(page.as_ptr().addr()), "it is no page of a slot");
/// // Once it is installed:
/// pagefork_pages::stand_in_is_called();
/// ```
pub fn stand_in(address: usize) -> bool {
    let Some(entry) = WATCHED.find(address) else { return false };
    let page = round_down(address as u64) as usize;
    // SAFETY: it is a page of a slot that the thread uses which has just touched it, and which does
    // not exist: nothing can have been read of it, and what was written is gone.
    let mapped = unsafe {
        libc::mmap(
            ptr::with_exposed_provenance_mut(page),
            PAGE_SIZE as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    entry.of_handler.note_gone();
    mapped != libc::MAP_FAILED
}

impl LostPages {
    fn note_gone(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
        let word = self.noted_in.load(Ordering::Relaxed);
        // SAFETY: by the contract of `FileWatch::note_in` a word that is not null is valid.
        if let Some(word) = unsafe { word.as_ref() } {
            word.fetch_or(self.bits.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// As long as it lives, pages that are gone at these addresses, of a slot, are replaced.
#[derive(Debug)]
pub(crate) struct FileWatch(&'static AddressEntry<LostPages>);

impl FileWatch {
    pub(crate) fn new(addresses: Range<usize>) -> Self {
        Self(WATCHED.add(addresses, |_| ()))
    }

    /// Whether something else is in the place of a page.
    #[inline]
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.0.of_handler.is_gone.load(Ordering::Relaxed)
    }

    /// Says that all is there again.
    pub(crate) fn begin_anew(&self) {
        self.0.of_handler.is_gone.store(false, Ordering::Relaxed);
    }

    /// Sets these bits in `word` when a page is found to be gone; null: nowhere.
    ///
    /// # Safety
    /// The word is valid until another is given, or this is dropped.
    pub(crate) unsafe fn note_in(&self, word: *const AtomicU32, bits: u32) {
        self.0.of_handler.bits.store(bits, Ordering::Relaxed);
        self.0.of_handler.noted_in.store(word.cast_mut(), Ordering::Relaxed);
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        WATCHED.remove(self.0, |lost| {
            lost.is_gone.store(false, Ordering::Relaxed);
            lost.noted_in.store(ptr::null_mut(), Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_slots_are_replaced_and_who_asked_is_told() {
        let pages = vec![7u8; 8 * PAGE_SIZE as usize];
        let start = round_down(pages.as_ptr() as u64 + PAGE_SIZE - 1) as usize;
        let size = PAGE_SIZE as usize;
        let byte = |page: usize| pages[start + page * size - pages.as_ptr() as usize];
        let other = FileWatch::new(start + 4 * size..start + 5 * size);
        let watch = FileWatch::new(start + size..start + 3 * size);
        let word = AtomicU32::new(1);
        // SAFETY: the word lives longer.
        unsafe { watch.note_in(&raw const word, 4) };
        assert!(!stand_in(start + size - 1) && !stand_in(start + 3 * size) && !stand_in(0));
        assert!(!watch.has_lost_pages());
        assert!(stand_in(start + 2 * size + 9));
        assert_eq!([0, 1, 2, 3].map(byte), [7, 7, 0, 7]);
        assert!(watch.has_lost_pages() && !other.has_lost_pages());
        assert_eq!(word.load(Ordering::Relaxed), 1 | 4);
        watch.begin_anew();
        assert!(!watch.has_lost_pages());
        drop(watch);
        assert!(!stand_in(start + size), "nothing is watched any more");
        let next = FileWatch::new(start + 6 * size..start + 7 * size);
        assert!(stand_in(start + 6 * size) && next.has_lost_pages());
        assert_eq!(word.load(Ordering::Relaxed), 1 | 4, "the word was the last one's");
    }
}
