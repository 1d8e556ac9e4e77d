//! Looking at pages of files that could be cut short.
//!
//! A page that its file has no more raises SIGBUS. Asking for the length of the file beforehand
//! takes longer than a warm reset, and is out of date when it is answered; and of what the embedder
//! reads nothing is known at all. So slots with such pages are listed, and the handler of the signal
//! puts zeros in the place of a page that is gone: the instruction goes on, and the slot is known to
//! be no longer what it should be.
//!
//! ```text
//!  FIRST -> [ slot | slot | none | slot ]    entries stay for ever, and are used again
//!              |
//!              +-- is_gone, and the word of who has to know it
//! ```

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use pagefork_layout::page::{PAGE_SIZE, round_down};

use crate::os::lock::lock;

/// A slot, or none.
#[derive(Debug)]
struct Entry {
    /// Odd while the addresses change: the handler asks for none then that it could find.
    version: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Whether something else is in the place of a page.
    is_gone: AtomicBool,
    /// Where it is noted then, and which bits; null if nobody asked.
    noted_in: AtomicPtr<AtomicU32>,
    bits: AtomicU32,
    next: *const Entry,
}

// SAFETY: `next` never changes, and points to an entry that stays for ever.
unsafe impl Sync for Entry {}

static FIRST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

/// Entries without a slot.
static FREE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

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
    let Some(entry) = entries().find(|entry| entry.has(address)) else { return false };
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
    entry.note_gone();
    mapped != libc::MAP_FAILED
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries are never freed.
    let entry = |entry: *const Entry| unsafe { entry.as_ref() };
    let first = entry(FIRST.load(Ordering::Acquire));
    std::iter::successors(first, move |last| entry(last.next))
}

impl Entry {
    /// A new one, at the head of the list.
    fn leaked() -> &'static Self {
        let mut new = Box::new(Self {
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            is_gone: AtomicBool::new(false),
            noted_in: AtomicPtr::new(ptr::null_mut()),
            bits: AtomicU32::new(0),
            next: ptr::null(),
        });
        // Only who holds the lock of the free entries comes here.
        new.next = FIRST.load(Ordering::Relaxed);
        let new: &'static Self = Box::leak(new);
        FIRST.store(ptr::from_ref(new).cast_mut(), Ordering::Release);
        new
    }

    fn has(&self, address: usize) -> bool {
        let version = self.version.load(Ordering::Acquire);
        let addresses = self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_settled =
            version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed);
        // An entry that changes is not that of a slot which is in use.
        is_settled && addresses.contains(&address)
    }

    fn set(&self, addresses: Range<usize>) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(addresses.start, Ordering::Relaxed);
        self.end.store(addresses.end, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

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
pub(crate) struct FileWatch(&'static Entry);

impl FileWatch {
    pub(crate) fn new(addresses: Range<usize>) -> Self {
        let mut free = lock(&FREE);
        let entry = free.pop().unwrap_or_else(Entry::leaked);
        drop(free);
        entry.set(addresses);
        Self(entry)
    }

    /// Whether something else is in the place of a page.
    #[inline]
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.0.is_gone.load(Ordering::Relaxed)
    }

    /// Says that all is there again.
    pub(crate) fn begin_anew(&self) {
        self.0.is_gone.store(false, Ordering::Relaxed);
    }

    /// Sets these bits in `word` when a page is found to be gone; null: nowhere.
    ///
    /// # Safety
    /// The word is valid until another is given, or this is dropped.
    pub(crate) unsafe fn note_in(&self, word: *const AtomicU32, bits: u32) {
        self.0.bits.store(bits, Ordering::Relaxed);
        self.0.noted_in.store(word.cast_mut(), Ordering::Relaxed);
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.0.set(0..0);
        self.begin_anew();
        self.0.noted_in.store(ptr::null_mut(), Ordering::Relaxed);
        lock(&FREE).push(self.0);
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
