//! How pages come under write protection, and leave it for good.

use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::{Action, DirtyPage, DirtySet};
use crate::os::faults::{counts_faults_in_memory, fault_ns};
use crate::os::write_watch::protected_fault_ns;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::config::Reason;
use crate::strategy::returns::PageCosts;
use crate::strategy::tuning::{PROTECT_GAP, PROTECTED_GAP};

impl DirtySet {
    /// Has pages be kept under protection from now on where that costs less than discarding them,
    /// or not; then those that are become as others.
    pub(crate) fn protect_from_now_on(&mut self, on: bool) {
        let before = self.protection.is_on();
        self.protection.switch(on);
        if before != self.protection.is_on() {
            if before {
                self.keep_unprotected();
            }
            // For how long it pays to keep pages depends on what follows.
            self.judge();
        }
    }

    /// Has no page be kept under protection from now on, also none that is: somebody writes at any time, also
    /// between a look and the protection, and perhaps to pages that the kernel has pinned, where nothing lifts it.
    pub(crate) fn protect_never(&mut self) {
        self.protection.forbid();
        if self.protection.count() > 0 {
            self.keep_unprotected();
        }
    }

    /// Whether pages can be kept under protection, as far as it is known.
    pub(crate) fn could_protect(&self, pages: &SlotPages) -> bool {
        self.protection.is_possible(pages)
    }

    /// Number of pages that are kept under protection.
    pub(crate) fn protected_count(&self) -> u64 {
        self.protection.count()
    }

    /// Why some are.
    pub(crate) fn why_protected(&self) -> Reason {
        let (pages, look_ns, fault_ns) = (self.protected_count(), self.look, protected_fault_ns());
        match self.search_ns() {
            0 => Reason::SeldomWritten { pages, look_ns, fault_ns },
            search_ns => Reason::SeldomWrittenSearched { pages, look_ns, fault_ns, search_ns },
        }
    }

    /// Whether pages that return after they were protected could be found by a search for nothing else.
    pub(crate) fn could_find_lifted(&self, pages: &SlotPages) -> bool {
        self.protection.could_watch(pages)
    }

    /// Whether as many searches for lifted protection, and the faults of the pages that they have
    /// found, cost no more than searches of all pages, and discards, did before pages were protected.
    pub(crate) fn search_pays(&self, searches: u32, found: u64) -> bool {
        let Some(search_all) = self.search_all else { return true };
        let each = |search: u32, page: u32| {
            u64::from(searches) * u64::from(search) + found * u64::from(page)
        };
        let restored = protected_fault_ns() + self.look + self.look / 2;
        each(self.search, restored) <= each(search_all, fault_ns())
    }

    /// What a search for them takes that each reset needs of a run that wrote some; 0 where page
    /// faults show them.
    fn search_ns(&self) -> u32 {
        if counts_faults_in_memory() { 0 } else { self.search }
    }

    /// Chooses for how long pages are kept.
    pub(super) fn judge(&mut self) {
        let costs = self.costs();
        self.returns.iter_mut().for_each(|returns| returns.judge(costs, self.resets));
    }

    /// What pages cost as they are kept now.
    fn costs(&self) -> PageCosts {
        match self.protection.is_on() {
            true => PageCosts {
                look: self.look,
                away: protected_fault_ns(),
                restores: true,
                search: self.search_ns(),
            },
            false => PageCosts { look: self.look, away: fault_ns(), restores: false, search: 0 },
        }
    }

    /// Gives back of this many protected pages those that are beyond the budget, and returns how
    /// many. Those that cannot be discarded stay: they are as the image.
    pub(super) fn release_protected(&mut self, count: u64, pages: &mut SlotPages) -> u64 {
        let known = self.pages.len() as u64 + count;
        let beyond = known - self.share.resize(known.min(self.kept_max));
        if beyond > 0 {
            // What was discarded until it failed is taken away.
            let _ = self.protection.discard(beyond, pages);
        }
        count - self.protection.count()
    }

    /// Makes protected pages kept ones, which the next resets look at.
    fn keep_unprotected(&mut self) {
        let known = std::mem::take(&mut self.pages);
        let mut old = known.iter().copied().peekable();
        self.merged.clear();
        self.merged.reserve_exact(known.len() + self.protection.count() as usize);
        for page in self.protection.take_all() {
            while let Some(before) = old.next_if(|dirty| dirty.page < page) {
                self.merged.push(before);
            }
            let mut dirty = DirtyPage::new(page, Action::Keep, true);
            (dirty.is_new, dirty.is_written) = (false, true);
            if let Some(before) = self.evicted.take(page) {
                let age = (self.resets as u32).wrapping_sub(before.written).saturating_sub(1);
                (dirty.unchanged, dirty.hot) = (age.min(u8::MAX.into()) as u8, before.hot);
            }
            self.merged.push(dirty);
        }
        self.merged.extend(old);
        self.pages = std::mem::replace(&mut self.merged, known);
    }

    /// Protects the pages that are to be. If that fails they are kept as others, and no more are
    /// protected until all pages are fresh, nor stay so.
    pub(super) fn protect_pages(&mut self, pages: &SlotPages) {
        self.to_discard.clear();
        for dirty in self.pages.iter().filter(|dirty| dirty.action == Action::Protect) {
            match self.to_discard.last_mut() {
                Some(last) if last.end == dirty.page => last.end += PAGE_SIZE,
                _ => self.to_discard.push(dirty.page..dirty.page + PAGE_SIZE),
            }
        }
        if self.to_discard.is_empty() {
            return;
        }
        let ranges = std::mem::take(&mut self.to_discard);
        let mut rest = &ranges[..];
        while !rest.is_empty() {
            let are_close = |pair: &&[Range<u64>]| {
                let (low, high) = (&pair[0], &pair[1]);
                high.start - low.end <= PROTECT_GAP
                    && !self.keeps_some(low.end..high.start)
                    && self.protection.are_in_one_part(low, high)
            };
            // Between these are protected pages alone.
            let are_around_protected = |pair: &&[Range<u64>]| {
                let (low, high) = (&pair[0], &pair[1]);
                high.start - low.end <= PROTECTED_GAP
                    && self.protection.contains_all(low.end..high.start)
                    && self.protection.are_in_one_part(low, high)
            };
            let around = rest.windows(2).take_while(are_around_protected).count();
            let close = match around {
                0 => rest.windows(2).take_while(are_close).count(),
                _ => around,
            };
            let (group, behind) = rest.split_at(1 + close);
            rest = behind;
            if !self.protect_group(group, around > 0, pages) {
                self.protection.refuse();
                break;
            }
        }
        self.to_discard = ranges;
        for dirty in self.pages.iter_mut().filter(|dirty| dirty.action == Action::Protect) {
            dirty.action = match self.protection.contains(dirty.page) {
                true => Action::Protected,
                false => Action::Keep,
            };
        }
        self.pages.retain(|dirty| dirty.action != Action::Protected);
        if !self.protection.is_on() {
            self.keep_unprotected();
        }
    }

    /// Protects ranges of pages that lie close together, without kept ones in between: those would
    /// take a fault more. Whether all are. `around`: in between all are protected.
    fn protect_group(&mut self, ranges: &[Range<u64>], around: bool, pages: &SlotPages) -> bool {
        let (start, end) = match ranges {
            [] => return true,
            [range] => return self.protection.add(range.clone(), pages).is_ok(),
            [first, .., last] => (first.start, last.end),
        };
        // One walk goes over the pages in between, too, which are protected already. What it does not
        // find is not private, so that a write to it is a fault anyway.
        let addresses = pages.start() as u64 + start..pages.start() as u64 + end;
        self.regions.clear();
        if around {
            if self.finder.watch_again(addresses).is_err() {
                return false;
            }
        } else if self.finder.find_and_watch(addresses, &mut self.regions).is_err() {
            return false;
        }
        let each = ranges.iter().flat_map(|range| range.clone().step_by(PAGE_SIZE as usize));
        each.for_each(|page| self.protection.add_protected(page));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::pagemap::{Finder, Method};
    use crate::pages::budget::Budget;
    use crate::strategy::protection::ProtectionUse;

    #[test]
    fn a_search_pays_where_it_takes_less_than_that_of_all_pages_did() {
        let finder = Finder::new(Method::Read).unwrap();
        let mut dirty = DirtySet::new(finder, 0, &Budget::default(), ProtectionUse::Off);
        assert!(dirty.search_pays(1, 1), "it is tried");
        (dirty.search, dirty.search_all) = (4_000, Some(100_000));
        assert!(dirty.search_pays(16, 16));
        (dirty.search, dirty.search_all) = (100_000, Some(2_000));
        assert!(!dirty.search_pays(16, 16));
    }
}
