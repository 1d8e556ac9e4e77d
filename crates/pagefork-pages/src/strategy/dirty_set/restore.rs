//! What becomes of each page at a reset: it is restored, or it is to leave the set.

use pagefork_layout::page::PAGE_SIZE;

use super::{Action, DirtyPage, DirtySet, RangeCursor};
use crate::os::fault_ring::thread_time;
use crate::os::times;
use crate::pages::slot_pages::SlotPages;
use crate::strategy::tuning::{
    DISCARDS_MAX, DOUBT, KEEP_UNCHANGED, LOOK_MAX, LOOK_MIN, LOOK_TIMED, MANY_PAGES, WINDOW,
};

/// What has been done to known pages so far, and what is to be done.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Restored {
    /// Number of pages that were restored.
    pub(super) restored: u64,
    /// Whether some are to be evicted, or protected.
    pub(super) evicts: bool,
    pub(super) protects: bool,
    /// Number of ranges of unchanged pages that are to be evicted, and the last page of them.
    ranges: usize,
    last_evicted: Option<u64>,
}

impl DirtySet {
    /// Restores known pages in place, or decides that they leave the set.
    pub(super) fn restore(&mut self, pages: &SlotPages) -> Restored {
        self.evict_exceptions();
        self.heed_budget(pages);
        self.doubts = false;
        let mut result = Restored::default();
        if self.pages.is_empty() {
            return result;
        }
        // Fewer pages lie in the processor's caches, and those that were protected seldom do, so they
        // say nothing of the costs of others.
        let known = self.pages.len() as u64;
        let tells = known >= MANY_PAGES && self.returned * 4 <= known;
        let timed = self.resets.is_multiple_of(LOOK_TIMED) && tells && times::fixed().is_none();
        let start = timed.then(thread_time);
        let mut looks = 0;
        let mut cursor = RangeCursor::new(pages.parts());
        let mut all = std::mem::take(&mut self.pages);
        for dirty in &mut all {
            let accessible = cursor.contains(dirty.page);
            let keep = match dirty.keep {
                0 => self.returns[usize::from(dirty.hot)].keep(),
                keep => keep,
            };
            let is_new = std::mem::take(&mut dirty.is_new);
            let is_usual = accessible && keep > 0 && !is_new && dirty.action == Action::Keep;
            if !is_usual && self.leaves(dirty, is_new, keep, accessible, pages, &mut result) {
                continue;
            }
            looks += 1;
            // SAFETY: the page is accessible, during a reset no other code uses it, and what cannot
            // be restored leaves. What is inaccessible was as the image when it became so.
            if accessible && unsafe { dirty.restore(pages) } {
                result.restored += 1;
                dirty.is_private = true;
                self.note_written(dirty, is_new);
            } else {
                dirty.unchanged = dirty.unchanged.saturating_add(1);
                let keep = if dirty.is_private { keep.max(1) } else { KEEP_UNCHANGED };
                if dirty.unchanged >= keep || dirty.action != Action::Keep {
                    self.let_go(dirty, accessible, pages, &mut result);
                }
                self.doubts |= dirty.unchanged >= DOUBT && !dirty.is_private;
            }
        }
        self.pages = all;
        if let Some(start) = start
            && looks >= MANY_PAGES
        {
            let look = (thread_time() - start).as_nanos() as u64 / looks;
            // A measurement that was disturbed must not count for much.
            let look = look.clamp(LOOK_MIN, 2 * u64::from(self.look)).min(LOOK_MAX);
            self.look = ((u64::from(self.look) * 3 + look) / 4) as u32;
        }
        result
    }

    /// Whether a page is to be evicted without a look; else it is to be kept, or to be protected
    /// after a look.
    #[inline(never)]
    fn leaves(
        &mut self,
        dirty: &mut DirtyPage,
        is_new: bool,
        keep: u8,
        accessible: bool,
        pages: &SlotPages,
        result: &mut Restored,
    ) -> bool {
        let page = dirty.page;
        // What once could be restored can be as long as it is kept, and else it is evicted.
        let can_restore = match is_new.then(|| pages.can_restore(page)) {
            None => true,
            Some(Ok(can_restore)) => can_restore,
            Some(Err(error)) => {
                self.unreadable.get_or_insert(error);
                false
            }
        };
        let action = std::mem::replace(&mut dirty.action, Action::Keep);
        let unseen = action != Action::Keep || !can_restore;
        if !pages.can_discard(&(page..page + PAGE_SIZE)) || keep > 0 && !unseen {
            return false;
        }
        let may_stay = accessible && can_restore && action != Action::EvictUnseen;
        if may_stay && self.can_protect(page, pages) && (dirty.is_private || dirty.differs(pages)) {
            dirty.action = Action::Protect;
            result.protects = true;
            return false;
        }
        let was_written = unseen || dirty.is_private || accessible && dirty.differs(pages);
        if !was_written {
            return false;
        }
        dirty.action = if accessible { Action::EvictChanged } else { Action::Evict };
        result.evicts = true;
        if (unseen || dirty.is_private) && !is_new {
            // Whether the run wrote it was not looked at.
            let last = self.resets.saturating_sub(u64::from(dirty.unchanged) + 1);
            self.evicted.remember(dirty.evicted(last), self.resets);
        } else {
            self.note_written(dirty, is_new);
        }
        true
    }

    /// Whether a page can be protected, and the budget has room for pages that are written seldom.
    fn can_protect(&mut self, page: u64, pages: &SlotPages) -> bool {
        self.protection.is_on() && self.share.leaves_spare() && self.protection.covers(page, pages)
    }

    /// Notes that the run wrote a page.
    fn note_written(&mut self, dirty: &mut DirtyPage, is_new: bool) {
        dirty.is_written = true;
        if !is_new {
            let gap = u64::from(dirty.unchanged) + 1;
            self.returns[usize::from(dirty.hot)].note_again(gap);
            dirty.hot = gap == 1;
        }
        dirty.unchanged = 0;
        self.returns[usize::from(dirty.hot)].note_written();
        if dirty.action != Action::Keep {
            self.evicted.remember(dirty.evicted(self.resets), self.resets);
        }
    }

    /// Has a page that was found unchanged leave the set, if it can.
    #[inline(never)]
    fn let_go(
        &mut self,
        dirty: &mut DirtyPage,
        accessible: bool,
        pages: &SlotPages,
        result: &mut Restored,
    ) {
        let page = dirty.page;
        if dirty.action == Action::Keep {
            if !pages.can_discard(&(page..page + PAGE_SIZE)) {
                return;
            }
            let adjoins = result.last_evicted == Some(page - PAGE_SIZE);
            if accessible && dirty.is_private && self.can_protect(page, pages) {
                dirty.action = Action::Protect;
                result.protects = true;
            } else if adjoins || result.ranges < DISCARDS_MAX {
                dirty.action = Action::Evict;
                result.evicts = true;
                result.ranges += usize::from(!adjoins);
                result.last_evicted = Some(page);
            } else {
                return;
            }
        }
        let last = self.resets.saturating_sub(u64::from(dirty.unchanged));
        self.evicted.remember(dirty.evicted(last), self.resets);
    }

    /// Has what a large run has written leave the set, unless there was another large run in the
    /// last window. Of the first run in a slot nothing is known.
    fn evict_exceptions(&mut self) {
        if self.new + self.returned < MANY_PAGES {
            return;
        }
        let soon = |at: u64| self.resets - at <= u64::from(WINDOW);
        let was_large = self.large_at.is_some_and(soon);
        self.large_at = Some(self.resets);
        if self.resets > 1 && !was_large {
            let new = self.pages.iter_mut().filter(|dirty| dirty.is_new);
            let new = new.filter(|dirty| dirty.action == Action::Keep);
            new.for_each(|dirty| dirty.action = Action::Leave);
        }
    }

    /// Evicts what is beyond the budget: first pages that the last runs did not write, then
    /// others. What cannot be discarded stays.
    fn heed_budget(&mut self, pages: &SlotPages) {
        let count = self.pages.len() as u64 + self.protection.count();
        let kept = self.share.resize(count.min(self.kept_max));
        let mut beyond = count - kept;
        for of_last_runs in [false, true] {
            for dirty in self.pages.iter_mut().rev() {
                if beyond == 0 {
                    return;
                }
                if of_last_runs == (dirty.unchanged == 0)
                    && matches!(dirty.action, Action::Keep | Action::Leave)
                    && pages.can_discard(&(dirty.page..dirty.page + PAGE_SIZE))
                {
                    dirty.action = Action::EvictUnseen;
                    beyond -= 1;
                }
            }
        }
    }
}
