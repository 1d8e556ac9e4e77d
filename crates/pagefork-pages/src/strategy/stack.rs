use std::ops::Range;

use pagefork_layout::page::PAGE_SIZE;

use super::Strategies;
use crate::slot::SlotConfig;
use crate::slot_pages::SlotPages;

/// At most so many bytes of a stack are kept.
pub const STACK_KEPT_MAX: u64 = 64 * PAGE_SIZE;

/// Whose bytes a slot may show: a key that the embedder chooses, of the module, the
/// image and the tenant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner(pub u64);

/// The pages of a stack that outlive a reset: the highest, where each run starts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stack {
    /// Slot offsets of all of it.
    zone: Range<u64>,
    /// Pages that may be kept.
    kept_max: u64,
    clear_always: bool,
    /// Bit `i`: the page `i + 1` below the top may hold bytes. Invariant: between a
    /// reset and the next run, no other page of the stack does.
    kept: u64,
    owner: Option<Owner>,
}

impl Stack {
    pub(crate) fn new(strategies: &Strategies, zones: &SlotConfig) -> Self {
        let config = strategies.config();
        Self {
            zone: zones.stack.clone(),
            kept_max: config.stack_kept / PAGE_SIZE,
            clear_always: config.clear_stack,
            kept: 0,
            owner: None,
        }
    }

    /// Says that all pages are fresh.
    pub(crate) fn forget(&mut self) {
        self.kept = 0;
    }

    /// Slot offset where pages start that may be kept.
    pub(crate) fn kept_start(&self) -> u64 {
        self.zone.end.saturating_sub(self.kept_max * PAGE_SIZE).max(self.zone.start)
    }

    /// Slot offset where the stack ends.
    pub(crate) fn end(&self) -> u64 {
        self.zone.end
    }

    /// Says that a page holds bytes and is kept.
    pub(crate) fn keep(&mut self, page: u64) {
        debug_assert!((self.kept_start()..self.zone.end).contains(&page));
        self.kept |= 1 << ((self.zone.end - page) / PAGE_SIZE - 1);
    }

    /// Clears kept pages, if that is to be done at each reset.
    pub(crate) fn reset(&mut self, pages: &SlotPages) {
        if self.clear_always {
            self.clear(pages);
        }
    }

    pub(crate) fn hand_to(&mut self, owner: Owner, pages: &SlotPages) {
        assert!(pages.is_whole(), "only a whole slot is handed to an owner");
        if self.owner.replace(owner) != Some(owner) {
            self.clear(pages);
        }
    }

    fn clear(&self, pages: &SlotPages) {
        let mut rest = self.kept;
        while rest != 0 {
            let page = self.zone.end - (u64::from(rest.trailing_zeros()) + 1) * PAGE_SIZE;
            // SAFETY: stacks are always accessible, and between runs nobody uses
            // them; no image lies there.
            unsafe { pages.restore(page) };
            rest &= rest - 1;
        }
    }
}
