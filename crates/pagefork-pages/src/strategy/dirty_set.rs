//! The life of a page: which pages are private, which of them are kept, and which are evicted.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::pagemap::{Finder, Method};
use crate::os::pagemap_scan::PageRegion;
use crate::pages::budget::{Budget, BudgetShare};
use crate::pages::slot_pages::{AllFresh, SlotPages};
use crate::strategy::config::ResetKind;
use crate::strategy::evicted::{Evicted, EvictedPage, page_number};
use crate::strategy::protection::{Protection, ProtectionUse};
use crate::strategy::report::ResetReport;
use crate::strategy::returns::ReturnTimes;
use crate::strategy::stack::Stack;
use crate::strategy::tuning::{COPIES, DENSE, DISCARDS_MAX, LOOK, LOOK_FADES, SEARCH, WINDOW};

use self::restore::Restored;

pub(super) use self::lifted::with_measured;

/// How private pages become known.
mod find;
/// What becomes of each page at a reset.
mod restore;
/// How pages come under write protection.
mod protect;
/// How pages become known whose protection was lifted.
mod lifted;

/// All private pages of a slot outside the stack, and what resets do to them. The stack's are
/// [`Stack`]'s matter.
///
/// A page is in one of four states:
///
/// - *clean*: not private, so it is as the image and costs nothing;
/// - *kept*: private, in this set; as the image between a reset and the next run;
/// - *protected*: as kept, but in [`Protection`]: no reset looks at it until it took a page fault;
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
///  protected the run wrote it                               as if clean  shorter page fault, look,
///                                                                        restore, protect
///  protected beyond the budget                              clean        discard, page fault
///  protected none are to be protected any more              kept         look
///  any       all pages of the slot are fresh                clean        nothing; kept if the
///                                                                        slot has a copy
/// ```
///
/// Where pages can be protected, what this table evicts is protected instead, after a restore, but
/// for pages beyond the budget, in swap space, or not restorable, and those that were perhaps only
/// read. Their return is noticed like that of evicted ones.
///
/// A discard costs a call for up to [`DISCARDS_MAX`] ranges, and a page fault when the page is
/// written again. A restore writes the blocks that differ.
///
/// Of a branch a slot has copies of some pages ([`SlotPages::differing_pages`]), which no discard
/// brings back: they are kept from the first, whatever that costs.
///
/// Invariant: between resets every private page is in the set, or protected. So a page leaves it in
/// four places only: a discard of the page has succeeded ([`DirtySet::evict`]), it was protected
/// (`protect_pages`), a scan did not find the accessible page (`merge`), or all pages are fresh,
/// which takes a proof ([`AllFresh`]).
#[derive(Debug)]
pub(crate) struct DirtySet {
    finder: Finder,
    /// Pages to keep at most, even if the budget has more.
    kept_max: u64,
    share: BudgetShare,
    /// Ascending.
    pages: Vec<DirtyPage>,
    evicted: Evicted,
    protection: Protection,
    /// Of pages that are not hot, and of those that are.
    returns: [ReturnTimes; 2],
    /// What a look costs, in nanoseconds.
    look: u32,
    /// What a search for lifted protection takes, in nanoseconds.
    search: u32,
    /// What a search of all pages took when none were protected.
    search_all: Option<u32>,
    /// Resets so far.
    resets: u64,
    /// Pages that the last search found and no earlier one, but for those that were protected.
    new: u64,
    /// Pages that were protected and took a fault since.
    returned: u64,
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
    unknown: Vec<PageRegion>,
    found: Vec<DirtyPage>,
    merged: Vec<DirtyPage>,
    to_discard: Vec<Range<u64>>,
}

/// What a reset has searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Searched {
    Nothing,
    /// The stack alone.
    Stack,
    /// The whole slot but for pages that are protected.
    Lifted,
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
    /// Whether it was protected until the run.
    was_protected: bool,
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
    /// It is to be evicted without a look: in swap space, or beyond the budget.
    EvictUnseen,
    /// It is of an exceptional run: to be protected, or else evicted without a look.
    Leave,
    /// It is as the image, and is to be protected.
    Protect,
    /// It is protected.
    Protected,
    /// It is as the image, and is evicted.
    Evict,
    /// It is evicted, and not as the image until then.
    EvictChanged,
    /// It has been discarded.
    Evicted,
}

impl DirtySet {
    pub(crate) fn new(
        finder: Finder,
        resident_max: u64,
        budget: &Budget,
        protection: ProtectionUse,
    ) -> Self {
        Self {
            finder,
            kept_max: resident_max / PAGE_SIZE,
            share: BudgetShare::new(budget.clone()),
            pages: Vec::new(),
            evicted: Evicted::default(),
            protection: Protection::new(protection),
            returns: [ReturnTimes::unknown(0); 2],
            look: LOOK,
            search: SEARCH,
            search_all: None,
            resets: 0,
            new: 0,
            returned: 0,
            large_at: None,
            doubts: false,
            scanned_at: 0,
            is_complete: true,
            unreadable: None,
            regions: Vec::new(),
            unknown: Vec::new(),
            found: Vec::new(),
            merged: Vec::new(),
            to_discard: Vec::new(),
        }
    }

    /// Forgets all pages, since they are fresh, but for those that the slot has a copy of.
    pub(crate) fn forget(&mut self, _: &AllFresh, pages: &SlotPages) {
        self.pages.clear();
        self.evicted.clear();
        self.protection.forget();
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

    /// Whether a search reads an entry of the page map for each page.
    pub(crate) fn reads_page_map(&self) -> bool {
        self.finder.method() == Method::Read
    }

    /// Has future returns weigh more than past ones.
    pub(crate) fn fade(&mut self) {
        self.returns.iter_mut().for_each(|returns| returns.fade(4));
    }

    /// Has nothing be known of how soon pages return.
    pub(crate) fn forget_returns(&mut self) {
        self.returns = [ReturnTimes::unknown(self.resets); 2];
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
    #[inline]
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
            Searched::Stack | Searched::Lifted | Searched::All => {
                self.is_complete = self.reset_stack(pages, stack);
            }
        }
        if searched == Searched::All {
            self.scanned_at = self.resets;
        }
        let released = match self.protection.count() {
            0 => 0,
            count => self.release_protected(count, pages),
        };
        let protected = self.protection.count();
        let private = self.pages.len() as u64 + protected + released;
        let Restored { restored, evicts, protects, .. } = self.restore(pages);
        if protects {
            self.protect_pages(pages);
        }
        if self.resets.is_multiple_of(WINDOW.into()) {
            self.judge();
            self.look = (self.look * (LOOK_FADES - 1) + LOOK) / LOOK_FADES;
        }
        let discarded = released + if evicts { self.evict(pages)? } else { 0 };
        if let Some(error) = self.unreadable.take() {
            return Err(error);
        }
        pages.shrink_all()?;
        pages.finish();
        stack.reset(pages);
        let new = std::mem::take(&mut self.new);
        let returned = std::mem::take(&mut self.returned);
        let lifted = searched == Searched::Lifted;
        let scanned = lifted || searched == Searched::All;
        let (private, protected) = (Some(private), self.protection.count());
        Ok(ResetReport {
            by,
            scanned,
            lifted,
            private,
            new,
            restored,
            discarded,
            protected,
            returned,
        })
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
        let mut ranges = std::mem::take(&mut self.to_discard);
        while ranges.len() > DISCARDS_MAX && gap_max < pages.zones().size {
            ranges.dedup_by(|next, last| {
                let gap = last.end..next.start;
                let joins = gap.end - gap.start <= gap_max
                    && pages.can_discard(&gap)
                    && !self.keeps_some(gap);
                if joins {
                    last.end = next.end;
                }
                joins
            });
            gap_max *= 4;
        }
        self.to_discard = ranges;
    }

    /// Whether known pages lie in a range between those that are to leave.
    fn keeps_some(&self, gap: Range<u64>) -> bool {
        let first = self.pages.partition_point(|dirty| dirty.page < gap.start);
        self.pages.get(first).is_some_and(|dirty| dirty.page < gap.end)
    }
}

impl DirtyPage {
    fn new(page: u64, action: Action, is_private: bool) -> Self {
        let (is_new, is_written, hot) = (true, false, false);
        let (unchanged, keep, copies, was_protected) = (0, 0, 0, false);
        Self {
            page,
            unchanged,
            keep,
            copies,
            is_new,
            was_protected,
            is_private,
            is_written,
            hot,
            action,
        }
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
