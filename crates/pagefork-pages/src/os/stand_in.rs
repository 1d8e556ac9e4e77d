//! Looking at pages of files that could be cut short.
//!
//! A page that its file has no more raises SIGBUS. Asking for the length of the file beforehand
//! takes longer than a warm reset, and is out of date when it is answered. So whoever looks at such
//! pages says so, and the handler of the signal puts zeros in the place of a page that is gone: the
//! instruction goes on, and at the end it is known that what was seen is not the file.

use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pagefork_layout::page::{PAGE_SIZE, round_down};

/// What this thread looks at.
struct LookedAt {
    start: Cell<usize>,
    end: Cell<usize>,
    /// Whether a page of it was gone.
    is_gone: Cell<bool>,
}

thread_local! {
    // Without a destructor and constant: access is an addition, also from a signal handler.
    static WATCHED: LookedAt =
        const { LookedAt { start: Cell::new(0), end: Cell::new(0), is_gone: Cell::new(false) } };
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

/// Puts zeros in the place of the page at this address if it is one of a slot that this thread
/// resets or looks at right now: it lies in a file that was cut short or that the disk cannot give.
/// What the thread does ends with an error then. Returns whether the instruction that has raised
/// the signal goes on.
///
/// For handlers of SIGBUS, with the code `BUS_ADRERR`: it is async-signal-safe, and changes `errno`.
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
    WATCHED.with(|watched| {
        if !(watched.start.get()..watched.end.get()).contains(&address) {
            return false;
        }
        let page = round_down(address as u64) as usize;
        // SAFETY: it is a page of a slot that this thread alone uses as long as it is watched, and
        // which does not exist: nothing can have been read of it, and what was written is gone.
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
        watched.is_gone.set(true);
        mapped != libc::MAP_FAILED
    })
}

/// As long as it lives, this thread looks at these addresses, of a slot that it alone uses.
#[derive(Debug)]
#[must_use]
pub(crate) struct FileWatch {
    /// What it looked at before, if this is a part of that.
    outer: Range<usize>,
}

impl FileWatch {
    #[inline]
    pub(crate) fn begin(addresses: Range<usize>) -> Self {
        WATCHED.with(|watched| Self {
            outer: watched.start.replace(addresses.start)..watched.end.replace(addresses.end),
        })
    }

    /// Whether all was there.
    #[inline]
    pub(crate) fn end(self) -> bool {
        WATCHED.with(|watched| !watched.is_gone.get())
    }
}

impl Drop for FileWatch {
    #[inline]
    fn drop(&mut self) {
        WATCHED.with(|watched| {
            watched.start.set(self.outer.start);
            watched.end.set(self.outer.end);
            watched.is_gone.set(watched.is_gone.get() && !self.outer.is_empty());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_watched_is_replaced() {
        let pages = vec![7u8; 8 * PAGE_SIZE as usize];
        let start = round_down(pages.as_ptr() as u64 + PAGE_SIZE - 1) as usize;
        let size = PAGE_SIZE as usize;
        let byte = |page: usize| pages[start + page * size - pages.as_ptr() as usize];
        let watch = FileWatch::begin(start + size..start + 3 * size);
        assert!(!stand_in(start + size - 1) && !stand_in(start + 3 * size) && !stand_in(0));
        assert!(stand_in(start + 2 * size + 9));
        assert_eq!([0, 1, 2, 3].map(byte), [7, 7, 0, 7]);
        assert!(!watch.end());
        assert!(!stand_in(start + size), "nothing is watched any more");
        assert!(FileWatch::begin(start..start + size).end());
    }
}
