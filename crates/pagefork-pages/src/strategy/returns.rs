//! How soon written pages are written again, and how long it pays to keep them.
//!
//! A page that is kept private costs a look at each reset; an evicted one costs a page fault
//! when it is written again. Which is cheaper depends on how many resets lie in between.
//! [`ReturnTimes`] counts them, and says for how long to keep a page.

use crate::strategy::tuning::{EVIDENCE, FADE, KEEP, KEEP_AT_FIRST, KEEP_LONG};

/// What a page costs, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageCosts {
    /// To compare a kept page with the image.
    pub(super) look: u32,
    /// To discard it, and have it made private again.
    pub(super) fault: u32,
}

/// How soon pages of one kind are written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReturnTimes {
    /// Number of times that pages were written.
    written: u32,
    /// How many of those were followed by another write within `KEEP[i]` resets, and not within
    /// `KEEP[i - 1]`.
    again: [u32; KEEP.len()],
    /// The number of unchanged looks after which a page is evicted; 0: pages are discarded
    /// without a look.
    keep: u8,
}

impl ReturnTimes {
    pub(super) const UNKNOWN: Self =
        Self { written: 0, again: [0; KEEP.len()], keep: KEEP_AT_FIRST };

    /// The number of unchanged looks after which a page is evicted.
    pub(super) fn keep(&self) -> u8 {
        self.keep
    }

    /// Notes that a page was written.
    pub(super) fn note_written(&mut self) {
        self.written += 1;
    }

    /// Notes that a page was written again, `gap` resets after the last time.
    pub(super) fn note_again(&mut self, gap: u64) {
        if let Some(count) = KEEP.iter().position(|&keep| gap <= u64::from(keep)) {
            self.again[count] += 1;
        }
    }

    /// Divides all counts, so that later ones weigh more.
    pub(super) fn fade(&mut self, divisor: u32) {
        self.written /= divisor;
        self.again.iter_mut().for_each(|count| *count /= divisor);
    }

    /// Chooses how long to keep pages.
    pub(super) fn judge(&mut self, costs: PageCosts, resets: u64) {
        if self.written < EVIDENCE {
            return;
        }
        let best = KEEP.into_iter().min_by_key(|&keep| self.cost(keep, costs)).unwrap_or(0);
        let (mut kept, mut gone) = (self.cost(best, costs), self.cost(0, costs));
        // A change from keeping many pages to keeping none, or back, costs a fault a page, so it
        // has to save an eighth.
        match self.keep {
            0 if best >= KEEP_LONG => kept += kept / 8,
            KEEP_LONG.. => gone += gone / 8,
            _ => (),
        }
        self.keep = if kept < gone { best } else { 0 };
        if resets.is_multiple_of(FADE) && self.written >= 2 * EVIDENCE {
            self.fade(2);
        }
    }

    /// What the written pages would have cost with this choice, in nanoseconds.
    fn cost(&self, keep: u8, PageCosts { look, fault }: PageCosts) -> u64 {
        let (look, fault) = (u64::from(look), u64::from(fault));
        // A page that differs is written too, which costs half as much as the look.
        let restore = if keep == 0 { 0 } else { look + look / 2 };
        let (mut cost, mut rest, mut sooner) = (0, u64::from(self.written), 0);
        for (&within, &again) in KEEP.iter().zip(&self.again).filter(|(within, _)| **within <= keep)
        {
            let again = u64::from(again).min(rest);
            // Between two writes there are looks that find it unchanged.
            cost += again * (restore + (sooner + u64::from(within) - 1) / 2 * look);
            rest -= again;
            sooner = u64::from(within);
        }
        cost + rest * (restore + u64::from(keep) * look + fault)
    }
}

#[cfg(test)]
mod tests {
    use pagefork_layout::page::PAGE_SIZE;

    use super::*;
    use crate::strategy::evicted::{Evicted, EvictedPage, page_number};

    const COSTS: PageCosts = PageCosts { look: 100, fault: 2500 };

    fn at(offset: u64, run: u64) -> EvictedPage {
        let hot = run.is_multiple_of(2);
        EvictedPage { page: page_number(offset), written: run as u32, unwritten: None, hot }
    }

    /// The choice for runs that write `count` pages each, chosen at random of `of`.
    fn kept(count: u64, of: u64) -> u8 {
        let (mut returns, mut evicted) = (ReturnTimes::UNKNOWN, Evicted::default());
        let mut random = 1u64;
        for run in 1..2000 {
            for _ in 0..count {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (random >> 33) % of * PAGE_SIZE;
                if let Some(before) = evicted.take(page) {
                    returns.note_again(run - u64::from(before.written));
                }
                returns.note_written();
                evicted.remember(at(page, run), run);
            }
            if run % 16 == 0 {
                returns.judge(COSTS, run);
            }
        }
        returns.keep()
    }

    #[test]
    fn pages_are_kept_where_that_costs_less_than_their_faults() {
        for (count, of, keeps) in [
            (1, 1, true),
            (3, 256, false),
            (60, 256, true),
            (3, 1024, false),
            (10, 1024, false),
            (200, 1024, true),
            (30, 4096, false),
            (1000, 4096, true),
        ] {
            assert_eq!(kept(count, of) > 0, keeps, "{count} of {of}: {}", kept(count, of));
        }
        assert_eq!(kept(1, 1), 1, "what each run writes");
    }
}
