use std::ops::Range;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use super::faults::Faults;
use super::{ResetKind, ResetReport, Stack};
use crate::error::PagesError;
use crate::mend::BLOCKS;
use crate::pagemap::{Finder, Method};
use crate::slot_pages::SlotPages;
use crate::userfault::{Region, SWAPPED};

/// At so many new pages a run counts as large.
const LARGE: u64 = 64;

/// Of a page that is known to be written only the blocks are restored that differ, unless
/// there are so many of them: then all of it is restored the next times, without a look at
/// what it is.
const DENSE: u32 = BLOCKS / 2;
const BLIND: u8 = 3;

/// A page that was as the image at so many looks running is let go: at first, and
/// twice as many each time that it comes back soon, up to the maximum. Code that writes
/// what is there already would otherwise take a fault every few runs.
const PATIENCE: u8 = 3;
const PATIENCE_MAX: u8 = 128;

/// So many resets are soon: for a page, besides those that it was looked at.
const SOON: u64 = 16;

/// So many pages that were let go are remembered.
const LEFT_MAX: usize = 512;

/// At most so many calls a reset are spent on letting pages go, as long as that
/// throws away no more than gaps.
const DISCARDS_MAX: usize = 8;

/// Finds private pages, restores them in place, and lets go those that only cost.
///
/// Between resets it knows every page outside the stack that is private (or has
/// just been told by [`Restorer::forget`] that it knows nothing).
#[derive(Debug)]
pub(crate) struct Restorer {
    finder: Finder,
    /// Pages to keep at most.
    kept_max: usize,
    /// Ascending.
    known: Vec<Known>,
    /// Pages that were let go because they were as the image, ascending.
    left: Vec<Left>,
    /// Resets so far.
    resets: u64,
    /// Pages that the last search found and no earlier one.
    new: u64,
    /// The reset after the last large run.
    large_at: Option<u64>,
    /// What [`Self::is_complete`] says.
    is_complete: bool,
    // What follows is room that is kept between resets, so that they allocate
    // nothing.
    regions: Vec<Region>,
    merged: Vec<Known>,
    doomed: Vec<Range<u64>>,
}

/// What a search has just looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    Nothing,
    /// The stack alone.
    Stack,
    /// The whole slot.
    All,
}

/// A page that is private.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Slot offset.
    page: u64,
    /// So many times more it is restored without a look.
    blind: u8,
    /// So many times running it was as the image.
    equal: u8,
    /// So many times it must be that to be let go.
    patience: u8,
    fate: Fate,
}

/// A page that was let go.
#[derive(Clone, Copy, Debug)]
struct Left {
    page: u64,
    /// How much patience was had with it.
    patience: u8,
    /// At which reset.
    at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is as the image and stays.
    Stays,
    /// As found by a search: in swap space, or written by a run that is an exception.
    Unwanted,
    /// It is as the image, and can go.
    Goes,
    /// It can go, and is as it was found.
    GoesWritten,
    /// It has been discarded.
    Gone,
}

impl Restorer {
    pub(crate) fn new(finder: Finder, resident_max: u64) -> Self {
        Self {
            finder,
            kept_max: usize::try_from(resident_max / PAGE_SIZE).unwrap_or(usize::MAX),
            known: Vec::new(),
            left: Vec::new(),
            resets: 0,
            new: 0,
            large_at: None,
            is_complete: true,
            regions: Vec::new(),
            merged: Vec::new(),
            doomed: Vec::new(),
        }
    }

    /// Says that pages have changed otherwise: nothing is known until the next
    /// search.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.left.clear();
    }

    /// Looks for private pages, stack included. Changes no page: after an error the
    /// slot is as before.
    pub(crate) fn find(&mut self, pages: &SlotPages, stack: &Stack) -> Result<(), PagesError> {
        self.regions.clear();
        let start = pages.start() as u64;
        let stack_start = pages.zones().stack.start;
        match self.finder.method() {
            // What is not mapped or not accessible costs a scan nothing.
            Method::Scan { .. } => {
                let addresses = start + stack_start..start + pages.dirty_end();
                self.finder.find(addresses, &mut self.regions)?;
            }
            Method::Read => {
                for part in pages.parts() {
                    self.finder.find(start + part.start..start + part.end, &mut self.regions)?;
                }
            }
        }
        self.make_offsets(start);
        self.merge(pages, stack);
        debug_assert!(self.known.is_sorted_by(|low, high| low.page < high.page));
        Ok(())
    }

    /// As [`Self::find`], of the stack alone; what is known of other pages stays.
    pub(crate) fn find_stack(
        &mut self,
        pages: &SlotPages,
        stack: &Stack,
    ) -> Result<(), PagesError> {
        self.regions.clear();
        let (start, zone) = (pages.start() as u64, stack.zone());
        self.finder.find(start + zone.start..start + zone.end, &mut self.regions)?;
        self.make_offsets(start);
        Ok(())
    }

    /// Makes offsets in a slot that starts there of the addresses that were found.
    fn make_offsets(&mut self, start: u64) {
        for region in &mut self.regions {
            region.start -= start;
            region.end -= start;
        }
    }

    /// Adds the pages at which the current thread has taken a fault, and which may be private
    /// now, to those that are known; `false` if it is not known which those are. Changes no
    /// page.
    pub(crate) fn add(&mut self, pages: &SlotPages, stack: &mut Stack, since: Faults) -> bool {
        let mut addresses = [0; _];
        let Some(count) = since.addresses_since(&mut addresses) else { return false };
        let start = pages.start() as u64;
        for address in &addresses[..count] {
            let page = round_down(address.wrapping_sub(start));
            if !pages.parts().any(|part| part.contains(&page)) {
                // It is in no zone, or was a trap.
            } else if stack.is_link(page) {
                stack.keep_link();
            } else if page >= stack.end() {
                self.add_page(page);
            } else if page >= stack.kept_start() {
                stack.keep(page);
            } else {
                return false;
            }
        }
        self.doomed.clear();
        self.doomed.reserve(self.known.len());
        // Whoever runs code in the slot has written that first: if there was no fault, pages
        // become private without, as those of locked memory do (`mlockall`).
        stack.has_link()
    }

    fn add_page(&mut self, page: u64) {
        if let Err(index) = self.known.binary_search_by_key(&page, |known| known.page) {
            let patience = patience_with(page, &mut self.left, self.resets);
            // It may have been read alone.
            let known = Known { page, blind: 0, equal: 0, patience, fate: Fate::Stays };
            self.known.insert(index, known);
            self.new += 1;
        }
    }

    /// Makes `known` what was found, with what was known of each page.
    fn merge(&mut self, pages: &SlotPages, stack: &Stack) {
        let stack_end = stack.end();
        let found = self.regions.iter().filter(|region| region.end > stack_end);
        let found = found.map(|region| (region.end - region.start) / PAGE_SIZE).sum::<u64>();
        let large = found >= self.known.len() as u64 + LARGE;
        // Of the first run in a slot nothing can be said, and of two that follow on each
        // other, that there will be more.
        let exception = large && self.resets > 0 && !self.was_large();
        if large {
            self.large_at = Some(self.resets);
        }
        let mut cover = Cover::new(pages.parts());
        let mut old = self.known.iter().peekable();
        self.merged.clear();
        self.new = 0;
        for region in &self.regions {
            let swapped = region.categories & SWAPPED != 0;
            let fate = if swapped { Fate::Unwanted } else { Fate::Stays };
            for page in (region.start.max(stack_end)..region.end).step_by(PAGE_SIZE as usize) {
                while let Some(&gone) = old.next_if(|known| known.page < page) {
                    // A page that is not accessible may be out of sight, private
                    // as it is.
                    if !cover.contains(gone.page) {
                        self.merged.push(gone);
                    }
                }
                if stack.is_link(page) {
                    // It is the owner's.
                } else if let Some(&known) = old.next_if(|known| known.page == page) {
                    self.merged.push(Known { fate, ..known });
                } else {
                    self.new += 1;
                    // What large runs write must not be looked at for long.
                    let patience = match large {
                        true => PATIENCE,
                        false => patience_with(page, &mut self.left, self.resets),
                    };
                    let fate = if exception { Fate::Unwanted } else { fate };
                    self.merged.push(Known { page, blind: 0, equal: 0, patience, fate });
                }
            }
        }
        for &rest in old {
            if !cover.contains(rest.page) {
                self.merged.push(rest);
            }
        }
        std::mem::swap(&mut self.known, &mut self.merged);
        // Now rather than in a later reset, which would find the same or less.
        self.merged.clear();
        self.merged.reserve(self.known.capacity());
        self.doomed.clear();
        self.doomed.reserve(self.known.len());
    }

    /// Whether there was a large run not long ago.
    fn was_large(&self) -> bool {
        self.large_at.is_some_and(|at| self.resets - at <= SOON)
    }

    /// Makes every known page as the image, or discards it, and shrinks memories.
    /// `found`: what was just searched; of the rest, earlier results still hold.
    ///
    /// # Errors
    /// The slot is not whole then.
    pub(crate) fn finish(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
        by: ResetKind,
        found: Found,
    ) -> Result<ResetReport, PagesError> {
        pages.begin();
        self.resets += 1;
        match found {
            Found::Nothing => stack.leave_unseen(),
            Found::Stack | Found::All => self.is_complete = self.reset_stack(pages, stack),
        }
        let private = self.known.len() as u64;
        let restored = self.restore(pages);
        let discarded = self.let_go(pages)?;
        pages.shrink_all()?;
        pages.finish();
        stack.reset(pages);
        let new = std::mem::take(&mut self.new);
        let scanned = found == Found::All;
        Ok(ResetReport { by, scanned, private: Some(private), new, restored, discarded })
    }

    /// Asks the kernel which pages of the stack are private, after a reset that did not; keeps
    /// few.
    ///
    /// # Errors
    /// If it does not say; the slot is as before.
    pub(crate) fn look_at_stack(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
    ) -> Result<(), PagesError> {
        self.find_stack(pages, stack)?;
        self.is_complete = self.reset_stack(pages, stack);
        Ok(())
    }

    /// Whether the pages that are known, and those of the stack, are all that are private.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Keeps the highest pages of the stack as they are and clears the others, as
    /// the search has found them. Whether those are private no more.
    fn reset_stack(&self, pages: &mut SlotPages, stack: &mut Stack) -> bool {
        stack.forget();
        let (kept_start, end) = (stack.kept_start(), stack.end());
        let mut deep = false;
        for region in self.regions.iter().take_while(|region| region.start < end) {
            deep |= region.start < kept_start;
            for page in page_range(region.start.max(kept_start)..region.end.min(end)) {
                stack.keep(page);
            }
        }
        // Whatever of it is private: it is small.
        stack.keep_link();
        let below = pages.zones().stack.start..kept_start;
        let goes = !deep || pages.can_discard(&below) && pages.discard(below).is_ok();
        if !goes {
            for region in self.regions.iter().take_while(|region| region.start < kept_start) {
                for page in page_range(region.start..region.end.min(kept_start)) {
                    // SAFETY: stacks are accessible, and during a reset nobody else
                    // uses them; no image lies there.
                    unsafe { pages.restore(page) };
                }
            }
        }
        goes
    }

    /// Restores known pages in place, or says that they go. Returns how many were
    /// restored.
    fn restore(&mut self, pages: &SlotPages) -> u64 {
        let mut restored = 0;
        let mut cover = Cover::new(pages.parts());
        for (index, known) in self.known.iter_mut().enumerate() {
            let page = known.page;
            let accessible = cover.contains(page);
            let can_go = pages.can_discard(&(page..page + PAGE_SIZE));
            let must_go =
                index >= self.kept_max || known.fate == Fate::Unwanted || !pages.can_restore(page);
            if can_go && must_go {
                known.fate = if accessible { Fate::GoesWritten } else { Fate::Goes };
                continue;
            }
            known.fate = Fate::Stays;
            // SAFETY: the page is accessible, during a reset nobody else uses it, and what
            // cannot be restored goes. What is inaccessible was as the image when it became
            // so.
            if accessible && unsafe { known.restore(pages) } {
                restored += 1;
                known.equal = 0;
            } else {
                known.equal = (known.equal + 1).min(known.patience);
                if known.equal == known.patience && can_go {
                    known.fate = Fate::Goes;
                    remember(&mut self.left, known, self.resets);
                }
            }
        }
        restored
    }

    /// Discards the pages that go; a page that does not is restored. Returns how
    /// many pages are no longer private.
    fn let_go(&mut self, pages: &mut SlotPages) -> Result<u64, PagesError> {
        let mut result = Ok(());
        self.doomed.clear();
        for known in &self.known {
            if matches!(known.fate, Fate::Goes | Fate::GoesWritten) {
                match self.doomed.last_mut() {
                    Some(last) if last.end == known.page => last.end += PAGE_SIZE,
                    _ => self.doomed.push(known.page..known.page + PAGE_SIZE),
                }
            }
        }
        if self.doomed.is_empty() {
            return Ok(0);
        }
        self.join(pages);
        for range in &self.doomed {
            let discarded = pages.discard(range.clone());
            let first = self.known.partition_point(|known| known.page < range.start);
            let inside = self.known[first..].iter_mut().take_while(|known| known.page < range.end);
            for known in inside {
                let Err(failure) = &discarded else {
                    known.fate = Fate::Gone;
                    continue;
                };
                // Nothing is lost by keeping it.
                if known.fate == Fate::GoesWritten && pages.can_restore(known.page) {
                    // SAFETY: written pages are accessible, and nobody else uses
                    // them.
                    unsafe { pages.restore(known.page) };
                } else if known.fate == Fate::GoesWritten {
                    result = Err(failure.clone());
                }
                known.fate = Fate::Stays;
            }
        }
        let before = self.known.len();
        self.known.retain(|known| known.fate != Fate::Gone);
        result.map(|()| (before - self.known.len()) as u64)
    }

    /// Makes few ranges of many, across ever wider gaps: pages in gaps are as the
    /// image, and so they are when they are discarded.
    fn join(&mut self, pages: &SlotPages) {
        let mut gap_max = 4 * PAGE_SIZE;
        while self.doomed.len() > DISCARDS_MAX && gap_max < pages.zones().size {
            self.doomed.dedup_by(|next, last| {
                let gap = last.end..next.start;
                let joins = gap.end - gap.start <= gap_max && pages.can_discard(&gap);
                if joins {
                    last.end = next.end;
                }
                joins
            });
            gap_max *= 4;
        }
    }
}

impl Known {
    /// Makes the page as the image. Returns whether it was not, as far as it is known.
    ///
    /// # Safety
    /// As of [`SlotPages::restore`].
    unsafe fn restore(&mut self, pages: &SlotPages) -> bool {
        if self.blind > 0 {
            self.blind -= 1;
            // SAFETY: as the caller says.
            unsafe { pages.restore(self.page) };
            return true;
        }
        // SAFETY: as above.
        let differing = unsafe { pages.mend(self.page) };
        if differing >= DENSE {
            self.blind = BLIND;
        }
        differing > 0
    }
}

/// How much patience to have with a page that is new.
fn patience_with(page: u64, left: &mut Vec<Left>, resets: u64) -> u8 {
    match left.binary_search_by_key(&page, |left| left.page) {
        Ok(index) => left.remove(index).patience_again(resets),
        Err(_) => PATIENCE,
    }
}

/// Notes that a page is let go. Pages whose room is used up are forgotten all at once:
/// patience is learned anew.
fn remember(left: &mut Vec<Left>, &Known { page, patience, .. }: &Known, at: u64) {
    if left.len() == LEFT_MAX {
        left.clear();
    }
    let gone = Left { page, patience, at };
    match left.binary_search_by_key(&page, |left| left.page) {
        Ok(index) => left[index] = gone,
        Err(index) => left.insert(index, gone),
    }
}

impl Left {
    /// How much patience to have now that it is back.
    fn patience_again(self, now: u64) -> u8 {
        let soon = now - self.at <= SOON + u64::from(self.patience);
        if soon { self.patience.saturating_mul(2).min(PATIENCE_MAX) } else { PATIENCE }
    }
}

fn page_range(range: Range<u64>) -> impl Iterator<Item = u64> {
    range.step_by(PAGE_SIZE as usize)
}

/// Whether ascending places lie in one of ascending ranges.
struct Cover<I> {
    ranges: I,
    current: Option<Range<u64>>,
}

impl<I: Iterator<Item = Range<u64>>> Cover<I> {
    fn new(mut ranges: I) -> Self {
        let current = ranges.next();
        Self { ranges, current }
    }

    fn contains(&mut self, place: u64) -> bool {
        while let Some(range) = &self.current {
            if place < range.end {
                return range.start <= place;
            }
            self.current = self.ranges.next();
        }
        false
    }
}
