//! How private pages become known: by a search of the page map, or by page faults.

use std::time::Instant;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use super::lifted::with_measured;
use super::{Action, DirtyPage, DirtySet, RangeCursor};
use crate::os::error::PagesError;
use crate::os::faults::Faults;
use crate::os::pagemap::Method;
use crate::os::pagemap_scan::{SWAPPED, WRITTEN};
use crate::os::times;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::stack::Stack;
use crate::strategy::tuning::{AT_ONCE, KEEP_UNCHANGED};

impl DirtySet {
    /// Searches the slot for private pages, stack included. It changes no page: after an error
    /// the slot is as before.
    pub(crate) fn find(&mut self, pages: &SlotPages, stack: &Stack) -> Result<(), PagesError> {
        let begun = Instant::now();
        self.regions.clear();
        let start = pages.start() as u64;
        let stack_start = pages.zones().stack.start;
        match self.finder.method() {
            // A scan skips what is not mapped or not accessible. What a memory has grown by is both where
            // touches of it are served, and goes when memories shrink.
            Method::Scan { .. } if !pages.any_grows_by_faults() => {
                let addresses = start + stack_start..start + pages.dirty_end();
                self.finder.find(addresses, &mut self.regions)?;
            }
            Method::Scan { .. } | Method::Read => {
                for part in pages.parts() {
                    self.finder.find(start + part.start..start + part.end, &mut self.regions)?;
                }
            }
        }
        self.make_offsets(start);
        self.merge(pages, stack);
        if !self.protection.is_on() {
            let measured = || with_measured(self.search_all, begun);
            self.search_all = Some(times::fixed().map_or_else(measured, |times| times.search_all));
        }
        debug_assert!(self.pages.is_sorted_by(|low, high| low.page < high.page));
        Ok(())
    }

    /// As [`Self::find`], in the stack alone; what is known of other pages stays.
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

    /// Turns the addresses that were found into offsets in a slot.
    fn make_offsets(&mut self, start: u64) {
        for region in &mut self.regions {
            region.start -= start;
            region.end -= start;
        }
    }

    /// Adds the pages at which the current thread has taken a fault, since they may be private
    /// now. `false` if it is not known which those are. It changes no page.
    pub(crate) fn add(&mut self, pages: &SlotPages, stack: &mut Stack, since: Faults) -> bool {
        let mut addresses = [0; _];
        let Some(count) = since.addresses_since(&mut addresses) else { return false };
        let start = pages.start() as u64;
        for address in &addresses[..count] {
            let page = round_down(address.wrapping_sub(start));
            if !pages.parts().any(|part| part.contains(&page)) {
                // It is in no zone, or the access trapped.
            } else if stack.is_link(page) {
                stack.keep_link();
            } else if page >= stack.end() && self.protection.take(page) {
                self.add_returned(page);
            } else if page >= stack.end() {
                self.add_page(page);
            } else if page >= stack.kept_start() {
                stack.keep(page);
            } else {
                return false;
            }
        }
        self.to_discard.clear();
        self.to_discard.reserve(self.pages.len());
        // The link zone is written before each run. If that took no fault, pages become private
        // without faults, as those of locked memory do (`mlockall`).
        stack.has_link()
    }

    fn add_page(&mut self, page: u64) {
        if let Err(index) = self.pages.binary_search_by_key(&page, |dirty| dirty.page) {
            // The run may have only read it.
            let dirty = self.new_page(page, Action::Keep, false);
            self.pages.insert(index, dirty);
        }
    }

    /// Adds a page that was protected until this run.
    fn add_returned(&mut self, page: u64) {
        let dirty = self.returned_page(page, Action::Keep);
        let index = self.pages.partition_point(|dirty| dirty.page < page);
        self.pages.insert(index, dirty);
    }

    /// A page that was protected until this run.
    pub(super) fn returned_page(&mut self, page: u64, action: Action) -> DirtyPage {
        self.returned += 1;
        let dirty = DirtyPage::new(page, action, true);
        self.as_remembered(DirtyPage { was_protected: true, ..dirty })
    }

    /// A page that no earlier run had made private, or that was evicted since.
    pub(super) fn new_page(&mut self, page: u64, action: Action, is_private: bool) -> DirtyPage {
        self.new += 1;
        self.as_remembered(DirtyPage::new(page, action, is_private))
    }

    /// A page that was not in the set, with what is remembered of it.
    fn as_remembered(&mut self, mut dirty: DirtyPage) -> DirtyPage {
        let page = dirty.page;
        if let Some(before) = self.evicted.take(page) {
            let gap = u64::from((self.resets as u32 + 1).wrapping_sub(before.written));
            match before.unwritten {
                Some(looks) if gap <= u64::from(looks) + AT_ONCE => dirty.keep = KEEP_UNCHANGED,
                Some(_) => (),
                None => self.returns[usize::from(before.hot)].note_again(gap),
            }
            dirty.hot = gap == 1;
        }
        dirty
    }

    /// Makes the set what a search has found, with what was known of each page.
    fn merge(&mut self, pages: &SlotPages, stack: &Stack) {
        let stack_end = stack.end();
        let mut cursor = RangeCursor::new(pages.parts());
        let regions = std::mem::take(&mut self.regions);
        let mut merged = std::mem::take(&mut self.merged);
        let known = std::mem::take(&mut self.pages);
        let mut old = known.iter().peekable();
        merged.clear();
        (self.new, self.returned) = (0, 0);
        let mut searched = stack_end;
        for region in &regions {
            let swapped = region.categories & SWAPPED != 0;
            let is_written = region.categories & WRITTEN != 0;
            let action = if swapped { Action::EvictUnseen } else { Action::Keep };
            // What lies between is not private.
            self.protection.forget_in(searched..region.start);
            searched = searched.max(region.end);
            for page in (region.start.max(stack_end)..region.end).step_by(PAGE_SIZE as usize) {
                while let Some(&before) = old.next_if(|dirty| dirty.page < page) {
                    // Searches do not see inaccessible pages, which may be private, nor that a
                    // copy is not as the image if the kernel has made the page of zeros of it.
                    if !cursor.contains(before.page) || pages.is_differing(before.page) {
                        merged.push(before);
                    }
                }
                if stack.is_link(page) {
                    // It is kept for the owner.
                } else if let Some(&known) = old.next_if(|dirty| dirty.page == page) {
                    // Faults of the same run may have shown it before.
                    self.new += u64::from(known.is_new && !known.was_protected);
                    self.returned += u64::from(known.is_new && known.was_protected);
                    merged.push(DirtyPage { action, is_private: true, ..known });
                } else if !is_written {
                    // It is protected, or it was discarded while it was, and is not private.
                } else if self.protection.take(page) {
                    merged.push(self.returned_page(page, action));
                } else {
                    merged.push(self.new_page(page, action, true));
                }
            }
        }
        self.protection.forget_in(searched..pages.dirty_end());
        for &rest in old {
            if !cursor.contains(rest.page) || pages.is_differing(rest.page) {
                merged.push(rest);
            }
        }
        self.regions = regions;
        self.pages = merged;
        self.merged = known;
        // Allocate now rather than in a later reset, which would find the same or less.
        self.merged.clear();
        self.merged.reserve_exact(self.pages.capacity());
        self.to_discard.clear();
        self.to_discard.reserve(self.pages.len());
    }
}
