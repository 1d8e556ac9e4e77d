//! The life of a page: which pages are private, which of them are kept, and which are evicted.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::fault_ring::thread_time;
use crate::os::faults::fault_ns;
use crate::os::pagemap::Finder;
use crate::os::pagemap_scan::PageRegion;
use crate::pages::budget::{Budget, BudgetShare};
use crate::pages::slot_pages::{AllFresh, SlotPages};
use crate::strategy::config::ResetKind;
use crate::strategy::evicted::{Evicted, EvictedPage, page_number};
use crate::strategy::report::ResetReport;
use crate::strategy::returns::{PageCosts, ReturnTimes};
use crate::strategy::stack::Stack;
use crate::strategy::tuning::{
    COPIES, DENSE, DISCARDS_MAX, DOUBT, KEEP_UNCHANGED, LOOK, LOOK_FADES, LOOK_MAX, LOOK_MIN,
    LOOK_TIMED, MANY_PAGES, WINDOW,
};

/// How private pages become known.
mod find;

/// All private pages of a slot outside the stack, and what resets do to them. The stack's are
/// [`Stack`]'s matter.
///
/// A page is in one of three states:
///
/// - *clean*: not private, so it is as the image and costs nothing;
/// - *kept*: private, in this set; as the image between a reset and the next run;
/// - *evicted*: clean, and remembered for a while in [`Evicted`], so that its return is noticed.
///
/// Each reset takes each page through one line of this table. A *look* compares a page with the
/// image; `keep` is what [`ReturnTimes`] say of it: for how many unchanged looks it pays to keep
/// such a page.
///
/// ```text
///  state     what the reset sees                            next state   cost
///  clean     the run wrote it; keep > 0                     kept         page fault, look, restore
///  clean     the run wrote it; keep = 0                     evicted      page fault, discard
///  clean     the run only read it                           clean        page fault
///  kept      changed                                        kept         look, restore
///  kept      changed; keep = 0                              evicted      look, discard
///  kept      unchanged, fewer than `keep` times in a row    kept         look
///  kept      unchanged, `keep` times in a row               evicted      look, discard
///  kept      beyond the budget, in swap space, new in an    evicted      discard
///            exceptionally large run, or not restorable
///  kept      the slot's copy of a differing page            kept         look, restore if changed
///  kept      inaccessible, as the memory shrank             kept         nothing
///  kept      a scan finds it no longer private              clean        nothing
///  kept      its discard fails                              kept         restore
///  evicted   the run wrote it                               as if clean  as if clean
///  any       all pages of the slot are fresh                clean        nothing; kept if the
///                                                                        slot has a copy
/// ```
///
/// A discard costs a call for up to [`DISCARDS_MAX`] ranges, and a page fault when the page is
/// written again. A restore writes the blocks that differ.
///
/// Of a branch a slot has copies of some pages ([`SlotPages::differing_pages`]), which no discard
/// brings back: they are kept from the first, whatever that costs.
///
/// Invariant: between resets every private page is in the set. So a page leaves it in three
/// places only: a discard of the page has succeeded ([`DirtySet::evict`]), a scan did not find
/// the accessible page (`merge`), or all pages are fresh, which takes a proof ([`AllFresh`]).
#[derive(Debug)]
pub(crate) struct DirtySet {
    finder: Finder,
    /// Pages to keep at most, even if the budget has more.
    kept_max: u64,
    share: BudgetShare,
    /// Ascending.
    pages: Vec<DirtyPage>,
    evicted: Evicted,
    /// Of pages that are not hot, and of those that are.
    returns: [ReturnTimes; 2],
    /// What a look costs, in nanoseconds.
    look: u32,
    /// Resets so far.
    resets: u64,
    /// Pages that the last search found and no earlier one.
    new: u64,
    /// The number of the last reset after a large run.
    large_at: Option<u64>,
    /// Whether a page was perhaps only read, and the reset that last scanned.
    doubts: bool,
    scanned_at: u64,
    /// What [`Self::is_complete`] says.
    is_complete: bool,
    /// Why the reset that is under way cannot read the image, if it cannot.
    unreadable: Option<PagesError>,
    // Room that is kept between resets, so that they allocate nothing.
    regions: Vec<PageRegion>,
    merged: Vec<DirtyPage>,
    to_discard: Vec<Range<u64>>,
}

/// What a reset has searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Searched {
    Nothing,
    /// The stack alone.
    Stack,
    /// The whole slot.
    All,
}

/// A private page.
#[derive(Clone, Copy, Debug)]
struct DirtyPage {
    /// Slot offset.
    page: u64,
    /// Looks in a row that found it unchanged.
    unchanged: u8,
    /// Unchanged looks until it is evicted, if not 0; else as [`ReturnTimes`] say.
    keep: u8,
    /// How often it will be copied without a look.
    copies: u8,
    /// Whether this reset is the first to see it since it was clean.
    is_new: bool,
    /// Whether it is private for certain: else it took a fault, which may have been to read.
    is_private: bool,
    /// Whether it has been changed since it was clean.
    is_written: bool,
    /// Whether the last two runs that wrote it followed on each other.
    hot: bool,
    action: Action,
}

/// What a reset does to a private page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// It is as the image, and is kept.
    Keep,
    /// It is to be evicted without a look: in swap space, beyond the budget, or of an
    /// exceptional run.
    EvictUnseen,
    /// It is as the image, and is evicted.
    Evict,
    /// It is evicted, and not as the image until then.
    EvictChanged,
    /// It has been discarded.
    Evicted,
}

impl DirtySet {
    pub(crate) fn new(finder: Finder, resident_max: u64, budget: &Budget) -> Self {
        Self {
            finder,
            kept_max: resident_max / PAGE_SIZE,
            share: BudgetShare::new(budget.clone()),
            pages: Vec::new(),
            evicted: Evicted::default(),
            returns: [ReturnTimes::UNKNOWN; 2],
            look: LOOK,
            resets: 0,
            new: 0,
            large_at: None,
            doubts: false,
            scanned_at: 0,
            is_complete: true,
            unreadable: None,
            regions: Vec::new(),
            merged: Vec::new(),
            to_discard: Vec::new(),
        }
    }

    /// Forgets all pages, since they are fresh, but for those that the slot has a copy of.
    pub(crate) fn forget(&mut self, _: &AllFresh, pages: &SlotPages) {
        self.pages.clear();
        self.evicted.clear();
        self.share.resize(0);
        self.begin(pages);
    }

    /// Has a set that is empty know the pages that the slot has a copy of.
    pub(crate) fn begin(&mut self, pages: &SlotPages) {
        debug_assert!(self.pages.is_empty());
        let copy = |page| DirtyPage { is_new: false, ..DirtyPage::new(page, Action::Keep, true) };
        self.pages.extend(pages.differing_pages().map(copy));
    }

    /// Whether pages are discarded without a look, since they return too late.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.returns[0].keep() == 0
    }

    /// Has future returns weigh more than past ones.
    pub(crate) fn fade(&mut self) {
        self.returns.iter_mut().for_each(|returns| returns.fade(4));
    }

    /// Whether a scan would pay, which tells pages that were only read from private ones.
    pub(crate) fn doubts(&self) -> bool {
        self.doubts && self.resets >= self.scanned_at + u64::from(WINDOW)
    }

    /// Makes every known page as the image or discards it, and shrinks memories. Of what was not
    /// searched, earlier results still hold.
    ///
    /// # Errors
    /// The slot is not whole then.
    pub(crate) fn finish(
        &mut self,
        pages: &mut SlotPages,
        stack: &mut Stack,
        by: ResetKind,
        searched: Searched,
    ) -> Result<ResetReport, PagesError> {
        pages.begin();
        self.resets += 1;
        match searched {
            Searched::Nothing => stack.leave_unseen(),
            Searched::Stack | Searched::All => self.is_complete = self.reset_stack(pages, stack),
        }
        if searched == Searched::All {
            self.scanned_at = self.resets;
        }
        let private = self.pages.len() as u64;
        let restored = self.restore(pages);
        if self.resets.is_multiple_of(WINDOW.into()) {
            let costs = PageCosts { look: self.look, fault: fault_ns() };
            self.returns.iter_mut().for_each(|returns| returns.judge(costs, self.resets));
            self.look = (self.look * (LOOK_FADES - 1) + LOOK) / LOOK_FADES;
        }
        let discarded = self.evict(pages)?;
        if let Some(error) = self.unreadable.take() {
            return Err(error);
        }
        pages.shrink_all()?;
        pages.finish();
        stack.reset(pages);
        let new = std::mem::take(&mut self.new);
        let scanned = searched == Searched::All;
        Ok(ResetReport { by, scanned, private: Some(private), new, restored, discarded })
    }

    /// Asks the kernel which pages of the stack are private, after a reset that did not; keeps
    /// few.
    ///
    /// # Errors
    /// If the kernel does not tell; the slot is as before.
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

    /// Keeps the highest private pages of the stack as they are, and clears the others. Whether
    /// the others are private no more.
    fn reset_stack(&self, pages: &mut SlotPages, stack: &mut Stack) -> bool {
        stack.relearn();
        let (kept_start, end) = (stack.kept_start(), stack.end());
        let mut deep = false;
        for region in self.regions.iter().take_while(|region| region.start < end) {
            deep |= region.start < kept_start;
            for page in pages_in(region.start.max(kept_start)..region.end.min(end)) {
                stack.keep(page);
            }
        }
        // The link zone is small, so it is kept whether it is private or not.
        stack.keep_link();
        let below = pages.zones().stack.start..kept_start;
        let goes = !deep || pages.can_discard(&below) && pages.discard(below).is_ok();
        if !goes {
            for region in self.regions.iter().take_while(|region| region.start < kept_start) {
                for page in pages_in(region.start..region.end.min(kept_start)) {
                    // SAFETY: stacks are accessible, and during a reset no other code uses
                    // them; no image lies there.
                    unsafe { pages.restore(page) };
                }
            }
        }
        goes
    }

    /// Restores known pages in place, or decides that they are evicted. Returns how many were
    /// restored.
    fn restore(&mut self, pages: &SlotPages) -> u64 {
        self.evict_exceptions();
        self.heed_budget(pages);
        self.doubts = false;
        // Fewer pages lie in the processor's caches, so they say nothing of the costs of others.
        let timed = self.resets.is_multiple_of(LOOK_TIMED) && self.pages.len() as u64 >= MANY_PAGES;
        let start = timed.then(thread_time);
        let (mut restored, mut looks) = (0, 0);
        let (mut ranges, mut last_evicted) = (0, None);
        let mut cursor = RangeCursor::new(pages.parts());
        for dirty in &mut self.pages {
            let page = dirty.page;
            let accessible = cursor.contains(page);
            let can_discard = pages.can_discard(&(page..page + PAGE_SIZE));
            let keep = match dirty.keep {
                0 => self.returns[usize::from(dirty.hot)].keep(),
                keep => keep,
            };
            let is_new = std::mem::take(&mut dirty.is_new);
            // What once could be restored can be as long as it is kept, and else it is evicted.
            let can_restore = match is_new.then(|| pages.can_restore(page)) {
                None => true,
                Some(Ok(can_restore)) => can_restore,
                Some(Err(error)) => {
                    self.unreadable.get_or_insert(error);
                    false
                }
            };
            let unseen = dirty.action == Action::EvictUnseen || !can_restore;
            if can_discard && (unseen || keep == 0 && dirty.is_private) {
                dirty.action = if accessible { Action::EvictChanged } else { Action::Evict };
                if !is_new {
                    // Whether the run wrote it was not looked at.
                    let last = self.resets.saturating_sub(u64::from(dirty.unchanged) + 1);
                    self.evicted.remember(dirty.evicted(last), self.resets);
                    continue;
                }
            } else if can_discard && keep == 0 && accessible && dirty.differs(pages) {
                dirty.action = Action::EvictChanged;
            } else {
                dirty.action = Action::Keep;
                looks += 1;
                // SAFETY: the page is accessible, during a reset no other code uses it, and what
                // cannot be restored is evicted. What is inaccessible was as the image when it
                // became so.
                if accessible && unsafe { dirty.restore(pages) } {
                    restored += 1;
                    (dirty.is_private, dirty.is_written) = (true, true);
                } else {
                    dirty.unchanged = dirty.unchanged.saturating_add(1);
                    let keep = if dirty.is_private { keep.max(1) } else { KEEP_UNCHANGED };
                    let adjoins = last_evicted == Some(page - PAGE_SIZE);
                    let cheap = adjoins || ranges < DISCARDS_MAX;
                    if dirty.unchanged >= keep && can_discard && cheap {
                        ranges += usize::from(!adjoins);
                        last_evicted = Some(page);
                        dirty.action = Action::Evict;
                        let last = self.resets.saturating_sub(u64::from(dirty.unchanged));
                        self.evicted.remember(dirty.evicted(last), self.resets);
                    }
                    self.doubts |= dirty.unchanged >= DOUBT && !dirty.is_private;
                    continue;
                }
            }
            // The run wrote it.
            if !is_new {
                let gap = u64::from(dirty.unchanged) + 1;
                self.returns[usize::from(dirty.hot)].note_again(gap);
                dirty.hot = gap == 1;
            }
            dirty.unchanged = 0;
            self.returns[usize::from(dirty.hot)].note_written();
            if dirty.action != Action::Keep {
                dirty.is_written = true;
                self.evicted.remember(dirty.evicted(self.resets), self.resets);
            }
        }
        if let Some(start) = start
            && looks >= MANY_PAGES
        {
            let look = (thread_time() - start).as_nanos() as u64 / looks;
            // A measurement that was disturbed must not count for much.
            let look = look.clamp(LOOK_MIN, 2 * u64::from(self.look)).min(LOOK_MAX);
            self.look = ((u64::from(self.look) * 3 + look) / 4) as u32;
        }
        restored
    }

    /// Evicts what a large run has written, unless there was another large run in the last
    /// window. Of the first run in a slot nothing is known.
    fn evict_exceptions(&mut self) {
        if self.new < MANY_PAGES {
            return;
        }
        let soon = |at: u64| self.resets - at <= u64::from(WINDOW);
        let was_large = self.large_at.is_some_and(soon);
        self.large_at = Some(self.resets);
        if self.resets > 1 && !was_large {
            let new = self.pages.iter_mut().filter(|dirty| dirty.is_new);
            new.for_each(|dirty| dirty.action = Action::EvictUnseen);
        }
    }

    /// Evicts what is beyond the budget: first pages that the last runs did not write, then
    /// others. What cannot be discarded stays.
    fn heed_budget(&mut self, pages: &SlotPages) {
        let count = self.pages.len() as u64;
        let kept = self.share.resize(count.min(self.kept_max));
        let mut beyond = count - kept;
        for of_last_runs in [false, true] {
            for dirty in self.pages.iter_mut().rev() {
                if beyond == 0 {
                    return;
                }
                if of_last_runs == (dirty.unchanged == 0)
                    && dirty.action == Action::Keep
                    && pages.can_discard(&(dirty.page..dirty.page + PAGE_SIZE))
                {
                    dirty.action = Action::EvictUnseen;
                    beyond -= 1;
                }
            }
        }
    }

    /// Discards the pages that are evicted; if that fails, a page is restored and kept. Returns
    /// how many pages are no longer private.
    fn evict(&mut self, pages: &mut SlotPages) -> Result<u64, PagesError> {
        let mut result = Ok(());
        self.to_discard.clear();
        for dirty in &self.pages {
            if matches!(dirty.action, Action::Evict | Action::EvictChanged) {
                match self.to_discard.last_mut() {
                    Some(last) if last.end == dirty.page => last.end += PAGE_SIZE,
                    _ => self.to_discard.push(dirty.page..dirty.page + PAGE_SIZE),
                }
            }
        }
        if self.to_discard.is_empty() {
            return Ok(0);
        }
        self.join_ranges(pages);
        for range in &self.to_discard {
            let discarded = pages.discard(range.clone());
            let first = self.pages.partition_point(|dirty| dirty.page < range.start);
            let inside = self.pages[first..].iter_mut().take_while(|dirty| dirty.page < range.end);
            for dirty in inside {
                let Err(failure) = &discarded else {
                    dirty.action = Action::Evicted;
                    continue;
                };
                let can_restore = || pages.can_restore(dirty.page).unwrap_or(false);
                if dirty.action == Action::EvictChanged && can_restore() {
                    // SAFETY: changed pages are accessible, and no other code uses them.
                    unsafe { pages.restore(dirty.page) };
                } else if dirty.action == Action::EvictChanged {
                    result = Err(failure.clone());
                }
                // Whether it can be restored is asked again.
                (dirty.action, dirty.is_new) = (Action::Keep, true);
            }
        }
        let before = self.pages.len();
        self.pages.retain(|dirty| dirty.action != Action::Evicted);
        result.map(|()| (before - self.pages.len()) as u64)
    }

    /// Makes few ranges of many, across ever wider gaps without kept pages. Pages in gaps are as
    /// the image before and after they are discarded.
    fn join_ranges(&mut self, pages: &SlotPages) {
        let mut gap_max = 4 * PAGE_SIZE;
        let known = &self.pages;
        let keeps_some = |gap: &Range<u64>| {
            let first = known.partition_point(|dirty| dirty.page < gap.start);
            known.get(first).is_some_and(|dirty| dirty.page < gap.end)
        };
        while self.to_discard.len() > DISCARDS_MAX && gap_max < pages.zones().size {
            self.to_discard.dedup_by(|next, last| {
                let gap = last.end..next.start;
                let joins =
                    gap.end - gap.start <= gap_max && pages.can_discard(&gap) && !keeps_some(&gap);
                if joins {
                    last.end = next.end;
                }
                joins
            });
            gap_max *= 4;
        }
    }
}

impl DirtyPage {
    fn new(page: u64, action: Action, is_private: bool) -> Self {
        let (is_new, is_written, hot) = (true, false, false);
        let (unchanged, keep, copies) = (0, 0, 0);
        Self { page, unchanged, keep, copies, is_new, is_private, is_written, hot, action }
    }

    /// What is remembered of it if it was last written before the reset of this number.
    fn evicted(&self, reset: u64) -> EvictedPage {
        let unwritten = (!self.is_written).then_some(self.unchanged);
        let (page, written) = (page_number(self.page), reset as u32);
        EvictedPage { page, written, unwritten, hot: self.hot }
    }

    /// Whether the page, which is accessible, is not as the image.
    fn differs(&self, pages: &SlotPages) -> bool {
        // SAFETY: the page is accessible, and during a reset no other code uses it.
        unsafe { pages.differs(self.page) }
    }

    /// Makes the page as the image. Returns whether it was changed, as far as it is known.
    ///
    /// # Safety
    /// As of [`SlotPages::restore`].
    unsafe fn restore(&mut self, pages: &SlotPages) -> bool {
        if self.copies > 0 {
            self.copies -= 1;
            // SAFETY: by this function's contract, which is that of `SlotPages::restore`.
            unsafe { pages.restore(self.page) };
            return true;
        }
        // SAFETY: by this function's contract, which is that of `SlotPages::restore`.
        let differing = unsafe { pages.restore_if_changed(self.page) };
        if differing >= DENSE {
            self.copies = COPIES;
        }
        differing > 0
    }
}

fn pages_in(range: Range<u64>) -> impl Iterator<Item = u64> {
    range.step_by(PAGE_SIZE as usize)
}

/// Tells of ascending offsets whether they lie in one of ascending ranges.
struct RangeCursor<I> {
    ranges: I,
    current: Option<Range<u64>>,
}

impl<I: Iterator<Item = Range<u64>>> RangeCursor<I> {
    fn new(mut ranges: I) -> Self {
        let current = ranges.next();
        Self { ranges, current }
    }

    fn contains(&mut self, offset: u64) -> bool {
        while let Some(range) = &self.current {
            if offset < range.end {
                return range.start <= offset;
            }
            self.current = self.ranges.next();
        }
        false
    }
}
