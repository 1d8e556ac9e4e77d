use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::config::ResetKind;
use super::reset::ResetReport;
use super::returns::{Costs, Gone, GonePage, Returns, page_number};
use super::stack::Stack;
use crate::os::error::PagesError;
use crate::os::fault_ring::thread_time;
use crate::os::faults;
use crate::os::pagemap::Finder;
use crate::os::pagemap_scan::PageRegion;
use crate::pages::budget::{Budget, Share};
use crate::pages::restore::BLOCKS;
use crate::pages::slot_pages::SlotPages;

/// How private pages become known.
mod find;

/// Of a page that is known to be written only the blocks are restored that differ, unless
/// there are so many of them: then all of it is restored the next times, without a look at
/// what it is.
const DENSE: u32 = BLOCKS / 2;
const BLIND: u8 = 3;

/// So many resets go by between two times that it is judged how long to keep pages, and
/// between two times that looks are timed.
const JUDGED: u64 = 16;
const TIMED: u64 = 8;

/// Of fewer pages the time of a look is not measured: they lie in the processor's caches.
const TIMED_PAGES: usize = 64;

/// What a look costs until it was measured, in nanoseconds.
const LOOK: u32 = 150;
const LOOK_MIN: u64 = 20;
const LOOK_MAX: u64 = 2000;

/// How often a page may be as the image that is perhaps not private.
const PATIENCE: u8 = 128;

/// A page that took a fault and has been as the image at so many looks was perhaps only read.
const DOUBT: u8 = 3;

/// At most so many calls a reset are spent on letting pages go, as long as that throws away
/// no more than gaps between them, in which no page is kept.
const DISCARDS_MAX: usize = 8;

/// At so many new pages a run counts as large.
const LARGE: u64 = 64;

/// So many resets after a large run the next one is no exception.
const SOON: u64 = 16;

/// Finds private pages, restores them in place, and lets go those that only cost.
///
/// Between resets it knows every page outside the stack that is private (or has
/// just been told by [`Restorer::forget`] that it knows nothing). The life of a page, as a
/// reset sees it:
///
/// ```text
///  it was             the run                    then it is      what that takes
///  as the image       wrote it                   kept or gone    page fault, discarding or restoring
///  kept               wrote it                   kept            comparing, writing what differs
///  kept               left it as it was          kept            comparing
///  kept, for long     left it as it was          gone            discarding
///  kept               wrote it, without budget   gone            discarding
///  gone               wrote it                   kept or gone    page fault, ...
/// ```
///
/// Gone is as the image, and remembered for a while. For how long pages are kept that are not
/// written, and whether at all, [`Returns`] says: of pages that were *hot*, written by two runs
/// that follow on each other, and of others.
#[derive(Debug)]
pub(crate) struct Restorer {
    finder: Finder,
    /// Pages to keep at most, whatever the budget has.
    kept_max: u64,
    share: Share,
    /// Ascending.
    known: Vec<Known>,
    gone: Gone,
    /// Of pages that are not hot, and of those that are.
    returns: [Returns; 2],
    /// What a look costs, in nanoseconds.
    look: u32,
    /// Resets so far.
    resets: u64,
    /// Pages that the last search found and no earlier one.
    new: u64,
    /// The reset after the last large run.
    large_at: Option<u64>,
    /// Whether a page was perhaps only read, and when that was last found out.
    doubts: bool,
    doubted_at: u64,
    /// What [`Self::is_complete`] says.
    is_complete: bool,
    // What follows is room that is kept between resets, so that they allocate
    // nothing.
    regions: Vec<PageRegion>,
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
    /// At so many looks running it was as the image.
    equal: u8,
    /// So many it may be, if not 0; else as [`Returns`] say.
    patience: u8,
    /// So many times more it is restored without a look.
    blind: u8,
    /// Whether it is found for the first time since it was as the image.
    is_new: bool,
    /// Whether it is private for certain: else it took a fault, which may have been to read.
    is_private: bool,
    /// Whether it has differed from the image.
    is_written: bool,
    /// Whether the last two times that it was written were by runs that follow on each other.
    hot: bool,
    fate: Fate,
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
    pub(crate) fn new(finder: Finder, resident_max: u64, budget: &Budget) -> Self {
        Self {
            finder,
            kept_max: resident_max / PAGE_SIZE,
            share: Share::new(budget.clone()),
            known: Vec::new(),
            gone: Gone::default(),
            returns: [Returns::UNKNOWN; 2],
            look: LOOK,
            resets: 0,
            new: 0,
            large_at: None,
            doubts: false,
            doubted_at: 0,
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
        self.gone.clear();
        self.share.resize(0);
    }

    /// Whether pages are discarded without a look, since they return too late.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.returns[0].keep() == 0
    }

    /// Has what comes weigh more than what was.
    pub(crate) fn fade(&mut self) {
        self.returns.iter_mut().for_each(Returns::fade);
        self.returns.iter_mut().for_each(Returns::fade);
    }

    /// Whether a search would pay that tells pages that were read from those that are private.
    pub(crate) fn doubts(&self) -> bool {
        self.doubts && self.resets >= self.doubted_at + JUDGED
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
        if found == Found::All {
            self.doubted_at = self.resets;
        }
        let private = self.known.len() as u64;
        let restored = self.restore(pages);
        if self.resets.is_multiple_of(JUDGED) {
            let costs = Costs { look: self.look, fault: faults::fault_ns() };
            self.returns.iter_mut().for_each(|returns| returns.judge(costs, self.resets));
            // Where few pages are kept, what was measured before is less and less to be believed.
            self.look = (self.look * 7 + LOOK) / 8;
        }
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
        self.discard_exceptions();
        self.heed_budget();
        self.doubts = false;
        let timed = self.resets.is_multiple_of(TIMED) && self.known.len() >= TIMED_PAGES;
        let start = timed.then(thread_time);
        let (mut restored, mut looks) = (0, 0usize);
        let (mut ranges, mut last_to_go) = (0, None);
        let mut cover = Cover::new(pages.parts());
        for known in &mut self.known {
            let page = known.page;
            let accessible = cover.contains(page);
            let can_go = pages.can_discard(&(page..page + PAGE_SIZE));
            let keep = match known.patience {
                0 => self.returns[usize::from(known.hot)].keep(),
                patience => patience,
            };
            let unwanted = known.fate == Fate::Unwanted || !pages.can_restore(page);
            let is_new = std::mem::take(&mut known.is_new);
            if can_go && (unwanted || keep == 0 && known.is_private) {
                known.fate = if accessible { Fate::GoesWritten } else { Fate::Goes };
                if !is_new {
                    // Whether the run wrote it was not looked at.
                    let last = self.resets.saturating_sub(u64::from(known.equal) + 1);
                    self.gone.remember(known.gone(last), self.resets);
                    continue;
                }
            } else if can_go && keep == 0 && accessible && known.differs(pages) {
                known.fate = Fate::GoesWritten;
            } else {
                known.fate = Fate::Stays;
                looks += 1;
                // SAFETY: the page is accessible, during a reset nobody else uses it, and what
                // cannot be restored goes. What is inaccessible was as the image when it became
                // so.
                if accessible && unsafe { known.restore(pages) } {
                    restored += 1;
                    (known.is_private, known.is_written) = (true, true);
                } else {
                    known.equal = known.equal.saturating_add(1);
                    let keep = if known.is_private { keep.max(1) } else { PATIENCE };
                    let beside = last_to_go == Some(page - PAGE_SIZE);
                    if known.equal >= keep && can_go && (beside || ranges < DISCARDS_MAX) {
                        ranges += usize::from(!beside);
                        last_to_go = Some(page);
                        known.fate = Fate::Goes;
                        let last = self.resets.saturating_sub(u64::from(known.equal));
                        self.gone.remember(known.gone(last), self.resets);
                    }
                    self.doubts |= known.equal >= DOUBT && !known.is_private;
                    continue;
                }
            }
            if !is_new {
                let gap = u64::from(known.equal) + 1;
                self.returns[usize::from(known.hot)].note_again(gap);
                known.hot = gap == 1;
            }
            known.equal = 0;
            self.returns[usize::from(known.hot)].note_written();
            if known.fate != Fate::Stays {
                known.is_written = true;
                self.gone.remember(known.gone(self.resets), self.resets);
            }
        }
        if let Some(start) = start
            && looks >= TIMED_PAGES
        {
            let look = (thread_time() - start).as_nanos() as u64 / looks as u64;
            // One that was disturbed must not count for much.
            let look = look.clamp(LOOK_MIN, 2 * u64::from(self.look)).min(LOOK_MAX);
            self.look = ((u64::from(self.look) * 3 + look) / 4) as u32;
        }
        restored
    }

    /// Says of what a large run has written that it goes, unless there was another one not long
    /// ago. Of the first run in a slot nothing can be said.
    fn discard_exceptions(&mut self) {
        if self.new < LARGE {
            return;
        }
        let was_large = self.large_at.is_some_and(|at| self.resets - at <= SOON);
        self.large_at = Some(self.resets);
        if self.resets > 1 && !was_large {
            let new = self.known.iter_mut().filter(|known| known.is_new);
            new.for_each(|known| known.fate = Fate::Unwanted);
        }
    }

    /// Says of what is beyond the budget that it goes: first of pages that were not written
    /// by the last runs, then of others.
    fn heed_budget(&mut self) {
        let count = self.known.len() as u64;
        let kept = self.share.resize(count.min(self.kept_max));
        let mut beyond = count - kept;
        for of_last_runs in [false, true] {
            for known in self.known.iter_mut().rev() {
                if beyond == 0 {
                    return;
                }
                if of_last_runs == (known.equal == 0) && known.fate == Fate::Stays {
                    known.fate = Fate::Unwanted;
                    beyond -= 1;
                }
            }
        }
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
        let known = &self.known;
        let stays = |gap: &Range<u64>| {
            let first = known.partition_point(|known| known.page < gap.start);
            known.get(first).is_some_and(|known| known.page < gap.end)
        };
        while self.doomed.len() > DISCARDS_MAX && gap_max < pages.zones().size {
            self.doomed.dedup_by(|next, last| {
                let gap = last.end..next.start;
                let joins =
                    gap.end - gap.start <= gap_max && pages.can_discard(&gap) && !stays(&gap);
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
    fn new(page: u64, fate: Fate, is_private: bool) -> Self {
        let (is_new, is_written, hot) = (true, false, false);
        Self { page, equal: 0, patience: 0, blind: 0, is_new, is_private, is_written, hot, fate }
    }

    /// What is remembered of it if it was last written before this reset.
    fn gone(&self, reset: u64) -> GonePage {
        let unwritten = (!self.is_written).then_some(self.equal);
        GonePage { page: page_number(self.page), written: reset as u32, unwritten, hot: self.hot }
    }

    /// Whether the page, which is accessible, is not as the image.
    fn differs(&self, pages: &SlotPages) -> bool {
        // SAFETY: the page is accessible, and during a reset nobody else uses it.
        unsafe { pages.differs(self.page) }
    }

    /// Makes the page as the image. Returns whether it was not, as far as it is known.
    ///
    /// # Safety
    /// As of [`SlotPages::restore`].
    unsafe fn restore(&mut self, pages: &SlotPages) -> bool {
        if self.blind > 0 {
            self.blind -= 1;
            // SAFETY: by this function's contract, which is that of `SlotPages::restore`.
            unsafe { pages.restore(self.page) };
            return true;
        }
        // SAFETY: by this function's contract, which is that of `SlotPages::restore`.
        let differing = unsafe { pages.mend(self.page) };
        if differing >= DENSE {
            self.blind = BLIND;
        }
        differing > 0
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
