//! Pages that stay private under write protection, so that resets need not look at them.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::sys::CallFailure;
use crate::os::write_watch::{finds_lifted, notes_writes};
use crate::pages::slot_pages::SlotPages;
use crate::pages::watched_pages::WatchedPages;

/// The pages of a slot that are kept under write protection: private, as the image, and not looked
/// at by resets.
///
/// Invariant: a page of it was as the image when it was protected, and has been since, unless it
/// took a page fault. The kernel lifts the protection of a page at its first write, whoever
/// writes, and notes that it did: so the faults of the writing thread show such pages, and a
/// search shows all. That a page of it is protected no more, or not private, costs nothing but a
/// look.
#[derive(Debug)]
pub(super) struct Protection {
    use_of: ProtectionUse,
    /// Whether the kernel or a limit has refused it, until pages are fresh.
    is_refused: bool,
    watched: Option<WatchedPages>,
    /// Slot offsets of what is watched: of what images hold, as much as memories have at first.
    parts: Vec<Range<u64>>,
    /// A bit for each page of the slot, as far as the last part reaches.
    pages: Vec<u64>,
    count: u64,
}

/// Whether pages are to be kept under protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProtectionUse {
    /// None, also later.
    Never,
    /// None now.
    Off,
    On,
}

impl Protection {
    pub(super) fn new(use_of: ProtectionUse) -> Self {
        let (watched, parts, pages) = (None, Vec::new(), Vec::new());
        Self { use_of, is_refused: false, watched, parts, pages, count: 0 }
    }

    /// Has pages be kept under protection from now on, or not.
    pub(super) fn switch(&mut self, on: bool) {
        if self.use_of != ProtectionUse::Never {
            self.use_of = if on { ProtectionUse::On } else { ProtectionUse::Off };
        }
    }

    /// Has none be kept under protection again.
    pub(super) fn forbid(&mut self) {
        self.use_of = ProtectionUse::Never;
    }

    /// Whether pages are to be kept under protection, as far as it is known that they can.
    pub(super) fn is_on(&self) -> bool {
        self.use_of == ProtectionUse::On && !self.is_refused
    }

    /// Whether pages are registered, so that a search tells which are protected no more.
    pub(super) fn is_watching(&self) -> bool {
        let is_watching =
            |watched: &WatchedPages| watched.is_complete() && watched.is_of_this_process();
        self.is_on() && finds_lifted() && self.watched.as_ref().is_some_and(is_watching)
    }

    /// Whether some are kept, or would be if that were [switched on](Self::switch), as far as it is
    /// known.
    pub(super) fn is_possible(&self, pages: &SlotPages) -> bool {
        self.use_of != ProtectionUse::Never && !self.is_refused && can_be_watched(pages)
    }

    /// As [`Self::is_possible`], and whether a search could tell which are protected no more.
    pub(super) fn could_watch(&self, pages: &SlotPages) -> bool {
        self.is_possible(pages) && finds_lifted()
    }

    /// The parts of a range that are registered.
    pub(super) fn watched_in(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let common = |part: &Range<u64>| part.start.max(range.start)..part.end.min(range.end);
        self.parts.iter().map(common).filter(|part| !part.is_empty())
    }

    /// Number of pages.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether a page can be protected; the first time it tries the kernel, and has it watch.
    pub(super) fn covers(&mut self, page: u64, pages: &SlotPages) -> bool {
        self.is_on() && self.prepare(pages) && self.parts.iter().any(|part| part.contains(&page))
    }

    fn prepare(&mut self, pages: &SlotPages) -> bool {
        let is_ready = self.watched.as_ref().is_some_and(WatchedPages::is_complete);
        // Of a process that this one was forked from nothing is registered here.
        if is_ready && self.watched.as_ref().is_some_and(WatchedPages::is_of_this_process) {
            return true;
        }
        if !can_be_watched(pages) {
            return false;
        }
        self.is_refused = !self.watch(pages);
        !self.is_refused
    }

    fn watch(&mut self, pages: &SlotPages) -> bool {
        if !notes_writes() {
            return false;
        }
        self.watched.take_if(|watched| !watched.is_of_this_process());
        self.parts = pages.initial_image_parts().filter(|part| !part.is_empty()).collect();
        let start = pages.start() as u64;
        let addresses = self.parts.iter().map(|part| start + part.start..start + part.end);
        let addresses: Vec<_> = addresses.collect();
        let watches = match &mut self.watched {
            Some(watched) => watched.reach(addresses),
            None => {
                self.watched = WatchedPages::new(addresses);
                self.watched.as_ref().is_some_and(WatchedPages::is_complete)
            }
        };
        let end = self.parts.last().map_or(0, |part| part.end);
        let words = (end / PAGE_SIZE).div_ceil(64) as usize;
        if self.pages.len() != words {
            (self.pages, self.count) = (vec![0; words], 0);
        }
        watches
    }

    /// Write-protects pages that [are covered](Self::covers) and as the image, and adds them.
    pub(super) fn add(&mut self, range: Range<u64>, pages: &SlotPages) -> Result<(), CallFailure> {
        let start = pages.start() as u64;
        if let Some(watched) = &self.watched {
            watched.protect(start + range.start..start + range.end)?;
            range.step_by(PAGE_SIZE as usize).for_each(|page| self.add_protected(page));
        }
        Ok(())
    }

    /// Adds a page that is as the image and was protected by other means.
    pub(super) fn add_protected(&mut self, page: u64) {
        let (word, bit) = place(page);
        if let Some(word) = self.pages.get_mut(word) {
            self.count += u64::from(*word & bit == 0);
            *word |= bit;
        }
    }

    /// Whether two ranges that are covered lie in the same part.
    pub(super) fn are_in_one_part(&self, low: &Range<u64>, high: &Range<u64>) -> bool {
        self.parts.iter().any(|part| part.contains(&low.start) && part.contains(&high.start))
    }

    pub(super) fn contains(&self, page: u64) -> bool {
        let (word, bit) = place(page);
        self.pages.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Whether all pages of a range are protected, as far as it is known.
    pub(super) fn contains_all(&self, range: Range<u64>) -> bool {
        let mut page = range.start;
        while page < range.end {
            let (word, bit) = place(page);
            let is_whole = bit == 1 && range.end - page >= 64 * PAGE_SIZE;
            let (wanted, length) = if is_whole { (u64::MAX, 64) } else { (bit, 1) };
            if self.pages.get(word).is_none_or(|word| word & wanted != wanted) {
                return false;
            }
            page += length * PAGE_SIZE;
        }
        true
    }

    /// Takes a page away that is perhaps protected no more. Whether it was there.
    pub(super) fn take(&mut self, page: u64) -> bool {
        let (word, bit) = place(page);
        let Some(word) = self.pages.get_mut(word) else { return false };
        let was_there = *word & bit != 0;
        *word &= !bit;
        self.count -= u64::from(was_there);
        was_there
    }

    /// Lifts the protection of all pages, and takes them away; ascending.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        if let Some(watched) = &mut self.watched {
            // If that fails, they take a fault more. Where pages are watched, one that is only read
            // takes a fault for itself, rather than with its neighbours.
            let _ = watched.unregister();
        }
        let mut all = Vec::with_capacity(self.count as usize);
        for (index, word) in self.pages.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                let bit = u64::from(bits.trailing_zeros());
                all.push((index as u64 * 64 + bit) * PAGE_SIZE);
                bits &= bits - 1;
            }
        }
        self.count = 0;
        all
    }

    /// Takes all pages of a range away: they are private no more.
    pub(super) fn forget_in(&mut self, range: Range<u64>) {
        let end = range.end.min(self.pages.len() as u64 * 64 * PAGE_SIZE);
        let mut page = range.start;
        while page < end && self.count > 0 {
            if page.is_multiple_of(64 * PAGE_SIZE) && self.pages[place(page).0] == 0 {
                page += 64 * PAGE_SIZE;
            } else {
                self.take(page);
                page += PAGE_SIZE;
            }
        }
    }

    /// Gives back at least `count` pages, those at high addresses first, or as many as can be.
    /// Returns how many.
    pub(super) fn discard(&mut self, count: u64, pages: &mut SlotPages) -> Result<u64, PagesError> {
        let before = self.count;
        let wanted = before.saturating_sub(count);
        for word in (0..self.pages.len()).rev() {
            while self.count > wanted && self.pages[word] != 0 {
                let bits = self.pages[word];
                let end = 64 - bits.leading_zeros();
                let length = (bits << (64 - end)).leading_ones();
                let at = |bit: u32| (word as u64 * 64 + u64::from(bit)) * PAGE_SIZE;
                let range = at(end - length)..at(end);
                pages.discard(range.clone())?;
                range.step_by(PAGE_SIZE as usize).for_each(|page| _ = self.take(page));
            }
        }
        Ok(before - self.count)
    }

    /// Forgets all pages, since they are fresh, and other maps may be in the place of those that
    /// were watched.
    pub(super) fn forget(&mut self) {
        if self.count > 0 {
            self.pages.fill(0);
            self.count = 0;
        }
        self.is_refused = false;
        if let Some(watched) = &mut self.watched {
            watched.note_replaced();
        }
    }

    /// Tries no more until pages are fresh.
    pub(super) fn refuse(&mut self) {
        self.is_refused = true;
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if let Some(watched) = &mut self.watched {
            // The addresses may go on to guard another slot. If it fails there, nothing is wrong
            // with that: nothing is ever written to a guard.
            let _ = watched.unregister();
        }
    }
}

/// Whether pages of a slot can be registered: one fault of a huge page would be for many, and a map is
/// registered with one userfaultfd alone, and that of an incomplete image has one.
fn can_be_watched(pages: &SlotPages) -> bool {
    pages.has_small_pages() && !pages.copies_image() && !pages.image().is_incomplete()
}

/// The word that a page has its bit in, and the bit.
fn place(page: u64) -> (usize, u64) {
    let number = page / PAGE_SIZE;
    ((number / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_taken_alone_and_in_ranges() {
        let mut protection = Protection::new(ProtectionUse::On);
        protection.pages = vec![0; 10];
        for page in [0, 1, 63, 64, 300, 639, 640] {
            protection.add_protected(page * PAGE_SIZE);
        }
        assert_eq!(protection.count(), 6, "one lies beyond");
        assert!(protection.take(PAGE_SIZE) && !protection.take(PAGE_SIZE));
        assert!(protection.contains(300 * PAGE_SIZE));
        let all_of = |pages: Range<u64>| pages.start * PAGE_SIZE..pages.end * PAGE_SIZE;
        assert!(protection.contains_all(all_of(63..65)) && protection.contains_all(all_of(7..7)));
        assert!(
            !protection.contains_all(all_of(62..65)) && !protection.contains_all(all_of(63..66))
        );
        assert!(!protection.contains_all(all_of(639..641)), "one lies beyond");
        (128..320).for_each(|page| protection.add_protected(page * PAGE_SIZE));
        assert!(
            protection.contains_all(all_of(130..320)) && protection.contains_all(all_of(128..256))
        );
        assert!(
            !protection.contains_all(all_of(127..320))
                && !protection.contains_all(all_of(130..321))
        );
        assert!(protection.take(200 * PAGE_SIZE) && !protection.contains_all(all_of(130..320)));
        protection.forget_in(63 * PAGE_SIZE..639 * PAGE_SIZE);
        let left: Vec<u64> =
            (0..700).filter(|page| protection.contains(page * PAGE_SIZE)).collect();
        assert_eq!((left, protection.count()), (vec![0, 639], 2));
        protection.forget();
        assert_eq!(protection.count(), 0);
    }
}
