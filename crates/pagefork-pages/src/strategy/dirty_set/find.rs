//! How private pages become known.

use pagefork_layout::page::{PAGE_SIZE, round_down};

use super::{Cover, Fate, Known, PATIENCE, Restorer};
use crate::os::error::PagesError;
use crate::os::faults::Faults;
use crate::os::pagemap::Method;
use crate::os::pagemap_scan::SWAPPED;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::stack::Stack;

/// A page that returns within so many resets after it was let go was needed all the time:
/// code reads it, or writes there what is there already.
const AT_ONCE: u64 = 2;

impl Restorer {
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
            // It may have been read alone.
            let known = self.new_page(page, Fate::Stays, false);
            self.known.insert(index, known);
        }
    }

    /// A page that no earlier run had made private, or that was let go since.
    fn new_page(&mut self, page: u64, fate: Fate, is_private: bool) -> Known {
        self.new += 1;
        let mut known = Known::new(page, fate, is_private);
        if let Some(before) = self.gone.take(page) {
            let gap = u64::from((self.resets as u32 + 1).wrapping_sub(before.written));
            match before.unwritten {
                Some(looks) if gap <= u64::from(looks) + AT_ONCE => known.patience = PATIENCE,
                Some(_) => (),
                None => self.returns[usize::from(before.hot)].note_again(gap),
            }
            known.hot = gap == 1;
        }
        known
    }

    /// Makes `known` what was found, with what was known of each page.
    fn merge(&mut self, pages: &SlotPages, stack: &Stack) {
        let stack_end = stack.end();
        let mut cover = Cover::new(pages.parts());
        let regions = std::mem::take(&mut self.regions);
        let mut merged = std::mem::take(&mut self.merged);
        let known = std::mem::take(&mut self.known);
        let mut old = known.iter().peekable();
        merged.clear();
        self.new = 0;
        for region in &regions {
            let swapped = region.categories & SWAPPED != 0;
            let fate = if swapped { Fate::Unwanted } else { Fate::Stays };
            for page in (region.start.max(stack_end)..region.end).step_by(PAGE_SIZE as usize) {
                while let Some(&gone) = old.next_if(|known| known.page < page) {
                    // A page that is not accessible may be out of sight, private
                    // as it is.
                    if !cover.contains(gone.page) {
                        merged.push(gone);
                    }
                }
                if stack.is_link(page) {
                    // It is the owner's.
                } else if let Some(&known) = old.next_if(|known| known.page == page) {
                    // Faults may have shown it just now.
                    self.new += u64::from(known.is_new);
                    merged.push(Known { fate, is_private: true, ..known });
                } else {
                    merged.push(self.new_page(page, fate, true));
                }
            }
        }
        for &rest in old {
            if !cover.contains(rest.page) {
                merged.push(rest);
            }
        }
        self.regions = regions;
        self.known = merged;
        self.merged = known;
        // Now rather than in a later reset, which would find the same or less.
        self.merged.clear();
        self.merged.reserve(self.known.capacity());
        self.doomed.clear();
        self.doomed.reserve(self.known.len());
    }
}
