//! What a slot keeps of its stack for the same owner.

use std::ops::Range;

use pagefork_layout::page::{PAGE_SIZE, round_down};

use crate::pages::slot_pages::{AllFresh, SlotPages};
use crate::pages::zones::SlotConfig;
use crate::strategy::config::Strategies;

/// Whose bytes a slot may show: a key that the embedder derives from the module, the image and
/// the tenant.
///
/// # Examples
///
/// See [`Slot::reset_to`](crate::Slot::reset_to).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u128);

/// What outlives a reset, as long as the owner is the same: the highest pages of the stack,
/// where each run starts, and the link zone, which guests cannot reach and which is written
/// before each run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    /// Slot offsets of the pages that it shares with no other zone.
    zone: Range<u64>,
    /// Its part of the link zone's first page, which is kept with the link zone.
    shared: Range<u64>,
    /// Number of pages that may be kept, besides that one.
    kept_max: u64,
    clear_always: bool,
    /// Bit `i`: the page `i + 1` below the top may hold bytes. Invariant: between a reset and
    /// the next run no other page of the stack holds any, unless `unseen`.
    kept: u64,
    /// Whether code has run since a search last showed which pages are private. A signal handler
    /// without a stack of its own has its frame written onto this stack by the kernel, which
    /// shows in no page fault of the thread.
    unseen: bool,
    /// Slot offsets of the pages of the link zone.
    link: Range<u64>,
    /// Whether they may hold bytes.
    link_kept: bool,
    owner: Option<Owner>,
}

impl Stack {
    pub(crate) fn new(strategies: &Strategies, zones: &SlotConfig) -> Self {
        let config = strategies.config();
        let zone = zones.stack.start..round_down(zones.stack.end);
        let shared = zone.end..zones.stack.end;
        let kept_max = config.stack_kept / PAGE_SIZE;
        Self {
            kept_max: if shared.is_empty() { kept_max } else { kept_max.saturating_sub(1) },
            // If no page may be kept, the shared part must not keep anything either.
            clear_always: config.clear_stack || kept_max == 0,
            kept: 0,
            unseen: false,
            zone,
            shared,
            link: round_down(zones.link.start)..zones.link.end,
            link_kept: false,
            owner: None,
        }
    }

    /// Forgets all pages, since they are fresh.
    pub(crate) fn forget(&mut self, _: &AllFresh) {
        self.relearn();
    }

    /// Forgets all pages, after each has been searched or restored.
    pub(crate) fn relearn(&mut self) {
        self.kept = 0;
        self.unseen = false;
        self.link_kept = false;
    }

    /// Notes that code has run, and no search has shown which pages are private.
    pub(crate) fn leave_unseen(&mut self) {
        self.unseen = true;
    }

    /// Whether each reset is to clear the stack.
    pub(crate) fn is_cleared_always(&self) -> bool {
        self.clear_always
    }

    /// Whether private pages have to be searched before the slot is handed to an owner.
    pub(crate) fn hides_from(&self, owner: Owner) -> bool {
        self.unseen && self.owner != Some(owner)
    }

    /// Whether the page is of the link zone.
    pub(crate) fn is_link(&self, page: u64) -> bool {
        self.link.contains(&page)
    }

    /// Notes that the link zone holds bytes.
    pub(crate) fn keep_link(&mut self) {
        self.link_kept = true;
    }

    /// Whether the link zone may hold bytes.
    pub(crate) fn has_link(&self) -> bool {
        self.link_kept
    }

    /// Number of pages that are kept.
    pub(crate) fn kept_count(&self) -> u64 {
        let link = if self.link_kept { (self.link.end - self.link.start) / PAGE_SIZE } else { 0 };
        u64::from(self.kept.count_ones()) + link
    }

    /// Slot offset of the first page that may be kept.
    pub(crate) fn kept_start(&self) -> u64 {
        self.zone.end.saturating_sub(self.kept_max * PAGE_SIZE).max(self.zone.start)
    }

    /// Slot offset where the pages of the stack end.
    pub(crate) fn end(&self) -> u64 {
        self.zone.end
    }

    /// Slot offsets of the pages of the stack.
    pub(crate) fn zone(&self) -> Range<u64> {
        self.zone.clone()
    }

    /// Notes that a page holds bytes and is kept.
    pub(crate) fn keep(&mut self, page: u64) {
        debug_assert!((self.kept_start()..self.zone.end).contains(&page));
        self.kept |= 1 << ((self.zone.end - page) / PAGE_SIZE - 1);
    }

    /// Clears kept pages, if that is to be done at each reset.
    pub(crate) fn reset(&mut self, pages: &SlotPages) {
        if self.clear_always {
            self.clear(pages);
            self.clear_link(self.shared.clone(), pages);
        }
    }

    #[inline]
    pub(crate) fn hand_to(&mut self, owner: Owner, pages: &SlotPages) {
        assert!(pages.is_whole(), "only a whole slot is handed to an owner");
        if self.owner.replace(owner) != Some(owner) {
            self.clear(pages);
            // It stays marked as kept: it is private, so a later run may write it without a fault.
            self.clear_link(self.link.clone(), pages);
        }
    }

    /// Clears a part of the pages of the link zone.
    fn clear_link(&self, part: Range<u64>, pages: &SlotPages) {
        if self.link_kept {
            // SAFETY: the link zone is always accessible, and between runs no code uses it; no
            // image lies there.
            unsafe { pages.clear(part) };
        }
    }

    /// Clears the whole stack, including pages that are not known to hold bytes.
    pub(crate) fn clear_all(&mut self, pages: &mut SlotPages) {
        let zone = self.zone();
        if !pages.can_discard(&zone) || pages.discard(zone.clone()).is_err() {
            // SAFETY: stacks are always accessible, and between runs no code uses them; no image
            // lies there.
            unsafe { pages.clear(zone) };
        }
        self.kept = 0;
        self.unseen = false;
    }

    fn clear(&self, pages: &SlotPages) {
        let mut rest = self.kept;
        while rest != 0 {
            let page = self.zone.end - (u64::from(rest.trailing_zeros()) + 1) * PAGE_SIZE;
            // SAFETY: stacks are always accessible, and between runs no code uses them; no image
            // lies there.
            unsafe { pages.restore(page) };
            rest &= rest - 1;
        }
    }
}
