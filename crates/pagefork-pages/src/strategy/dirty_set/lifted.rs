//! A search for nothing but pages whose write protection was lifted: how pages become known where
//! page faults do not show them.

use std::ops::Range;
use std::time::Instant;

use pagefork_layout::page::PAGE_SIZE;

use super::{Action, DirtyPage, DirtySet, pages_in};
use crate::os::error::PagesError;
use crate::os::pagemap_scan::{PageRegion, SWAPPED, WRITTEN};
use crate::os::times;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::stack::Stack;
use crate::strategy::tuning::{SEARCH_MAX, SEARCH_MIN, UNKNOWN_GAP, UNKNOWN_RANGES_MAX};

/// Invariant of [`DirtySet::find_lifted`]: a page of a slot that is write-protected is as the image.
/// It was when it was protected ([`Protection`](crate::strategy::protection::Protection)), or it was
/// the image's own page, and the kernel lifts the protection of a page before anything is written to
/// it, by whoever it is. Of the image's own pages the first write makes a private one, which is not
/// protected. So what is protected needs no look, and all else that has contents is reported.
impl DirtySet {
    /// Whether [`Self::find_lifted`] finds what was written: pages are registered to be protected.
    pub(crate) fn can_find_lifted(&self) -> bool {
        self.protection.is_watching()
    }

    /// Searches the slot for private pages, stack included, as [`Self::find`], but for those that
    /// are protected. What was known of other pages stays. It changes no page: after an error the
    /// slot is as before.
    pub(crate) fn find_lifted(
        &mut self,
        pages: &SlotPages,
        stack: &Stack,
    ) -> Result<(), PagesError> {
        let begun = Instant::now();
        self.find_unprotected(pages, stack)?;
        self.find_unknown(pages, stack)?;
        self.add_found(stack);
        debug_assert!(self.pages.is_sorted_by(|low, high| low.page < high.page));
        let measured = || with_measured(Some(self.search), begun);
        self.search = times::fixed().map_or_else(measured, |times| times.search);
        Ok(())
    }

    /// Finds what is not protected: `regions`.
    fn find_unprotected(&mut self, pages: &SlotPages, stack: &Stack) -> Result<(), PagesError> {
        self.regions.clear();
        let start = pages.start() as u64;
        // As `find` does.
        if pages.any_grows_by_faults() {
            for part in pages.parts() {
                let addresses = start + part.start..start + part.end;
                self.finder.find_unprotected(addresses, &mut self.regions)?;
            }
        } else {
            let addresses = start + pages.zones().stack.start..start + pages.dirty_end();
            self.finder.find_unprotected(addresses, &mut self.regions)?;
        }
        make_offsets(&mut self.regions, start);
        // Pages of zeros that were read deep in the stack are not private, and need not go.
        let in_stack = self.regions.iter().take_while(|region| region.start < stack.end()).count();
        if self.regions.first().is_some_and(|region| region.start < stack.kept_start()) {
            let zone = stack.zone();
            self.unknown.clear();
            self.finder.find(start + zone.start..start + zone.end, &mut self.unknown)?;
            make_offsets(&mut self.unknown, start);
            let behind =
                |region: &PageRegion| PageRegion { start: region.start.max(zone.end), ..*region };
            let behind =
                self.regions[..in_stack].last().filter(|last| last.end > zone.end).map(behind);
            self.regions.splice(..in_stack, self.unknown.iter().copied().chain(behind));
        }
        Ok(())
    }

    /// Finds which of the unprotected pages are private that were neither known nor protected:
    /// `unknown`. The others, which runs have only read, are protected, so that no later search
    /// reports them until they are written.
    fn find_unknown(&mut self, pages: &SlotPages, stack: &Stack) -> Result<(), PagesError> {
        let mut ranges = std::mem::take(&mut self.to_discard);
        ranges.clear();
        let mut known = self.pages.iter().map(|dirty| dirty.page).peekable();
        for (page, _) in pages_outside(&self.regions, stack) {
            while known.next_if(|&known| known < page).is_some() {}
            if known.peek() == Some(&page) || self.protection.contains(page) {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if page - last.end <= UNKNOWN_GAP => last.end = page + PAGE_SIZE,
                _ => ranges.push(page..page + PAGE_SIZE),
            }
        }
        join(&mut ranges, pages);
        self.unknown.clear();
        let looked = ranges.iter().try_for_each(|range| self.look_at_unknown(range, pages));
        make_offsets(&mut self.unknown, pages.start() as u64);
        self.to_discard = ranges;
        looked
    }

    fn look_at_unknown(&mut self, range: &Range<u64>, pages: &SlotPages) -> Result<(), PagesError> {
        let start = pages.start() as u64;
        let addresses = |part: &Range<u64>| start + part.start..start + part.end;
        let before = self.unknown.len();
        self.finder.find(addresses(range), &mut self.unknown)?;
        let found = self.unknown.len();
        let private: u64 = self.unknown[before..].iter().map(|one| one.end - one.start).sum();
        if private < range.end - range.start {
            for part in self.protection.watched_in(range) {
                // Of what fails here, and is protected later, searches take longer and find no less.
                let _ = self.finder.protect_shared(addresses(&part), &mut self.unknown);
            }
            self.unknown.truncate(found);
        }
        Ok(())
    }

    /// Adds what was found to the set.
    fn add_found(&mut self, stack: &Stack) {
        let mut known = std::mem::take(&mut self.pages);
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        // Faults of the same run may have shown some before.
        let count = |was_protected: bool| {
            let new = known.iter().filter(|dirty| dirty.is_new);
            new.filter(|dirty| dirty.was_protected == was_protected).count() as u64
        };
        (self.new, self.returned) = (count(false), count(true));
        let regions = std::mem::take(&mut self.regions);
        let mut at = 0;
        for (page, action) in pages_outside(&regions, stack) {
            at += known[at..].iter().take_while(|dirty| dirty.page < page).count();
            match known.get_mut(at) {
                Some(dirty) if dirty.page == page => dirty.action = action,
                _ if self.protection.take(page) => found.push(self.returned_page(page, action)),
                _ => (),
            }
        }
        self.regions = regions;
        let returned = found.len();
        let unknown = std::mem::take(&mut self.unknown);
        let written = unknown.iter().filter(|region| region.categories & WRITTEN != 0);
        for (page, action) in pages_outside(written, stack) {
            let is_in =
                |all: &[DirtyPage]| all.binary_search_by_key(&page, |dirty| dirty.page).is_ok();
            if is_in(&known) || is_in(&found[..returned]) {
                continue;
            }
            // Another thread may have written it since the first search.
            let dirty = match self.protection.take(page) {
                true => self.returned_page(page, action),
                false => self.new_page(page, action, true),
            };
            found.push(dirty);
        }
        self.unknown = unknown;
        found.sort_unstable_by_key(|dirty| dirty.page);
        self.merged.clear();
        self.merged.reserve(known.len() + found.len());
        let mut old = known.iter().peekable();
        for dirty in &found {
            while let Some(&before) = old.next_if(|before| before.page < dirty.page) {
                self.merged.push(before);
            }
            self.merged.push(*dirty);
        }
        self.merged.extend(old);
        self.found = found;
        self.pages = std::mem::replace(&mut self.merged, known);
        self.merged.clear();
        self.to_discard.clear();
        self.to_discard.reserve(self.pages.len());
    }
}

/// The pages of regions but for those of the stack, and of the link zone, which is kept for the owner,
/// and what is to be done to each.
fn pages_outside<'a>(
    regions: impl IntoIterator<Item = &'a PageRegion>,
    stack: &'a Stack,
) -> impl Iterator<Item = (u64, Action)> {
    regions.into_iter().flat_map(|region| {
        let swapped = region.categories & SWAPPED != 0;
        let action = if swapped { Action::EvictUnseen } else { Action::Keep };
        let pages = pages_in(region.start.max(stack.end())..region.end.max(stack.end()));
        pages.filter(|&page| !stack.is_link(page)).map(move |page| (page, action))
    })
}

/// Makes few ranges of many, across ever wider gaps: what lies in a gap is known or protected, or has no
/// contents, and is found as what it is.
fn join(ranges: &mut Vec<Range<u64>>, pages: &SlotPages) {
    let mut gap_max = UNKNOWN_GAP;
    // Where memories grow by faults, a gap may be none of the slot's.
    while ranges.len() > UNKNOWN_RANGES_MAX && !pages.any_grows_by_faults() {
        gap_max *= 4;
        ranges.dedup_by(|next, last| {
            let joins = next.start - last.end <= gap_max;
            if joins {
                last.end = next.end;
            }
            joins
        });
    }
}

/// Turns the addresses that were found into offsets in a slot that starts here.
fn make_offsets(regions: &mut [PageRegion], start: u64) {
    for region in regions {
        region.start -= start;
        region.end -= start;
    }
}

/// What searches take, with one that began then. Another program may have had the processor, so one
/// measurement must not count for much.
pub(in crate::strategy) fn with_measured(before: Option<u32>, begun: Instant) -> u32 {
    let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let took = took.clamp(SEARCH_MIN, SEARCH_MAX);
    match before.map(u64::from) {
        None => took as u32,
        Some(before) => ((before * 3 + took.min(2 * before)) / 4) as u32,
    }
}
