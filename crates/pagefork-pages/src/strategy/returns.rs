//! How soon written pages are written again, and how long it pays to keep them.
//!
//! A page that is kept private costs a look at each reset; an evicted one costs a page fault
//! when it is written again. Which is cheaper depends on how many resets lie in between.
//! [`ReturnTimes`] counts them, and says for how long to keep a page.

use crate::strategy::tuning::{
    EVIDENCE, FADE, KEEP, KEEP_AT_FIRST, KEEP_LONG, KEEP_MAX, RETURNED_MAX,
};

/// What a page costs, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageCosts {
    /// To compare a kept page with the image.
    pub(super) look: u32,
    /// To discard it, and have it made private again; or to protect it, and lift the protection.
    pub(super) away: u32,
    /// Whether a page that leaves has to be restored first: to be protected.
    pub(super) restores: bool,
    /// To search for pages that returned after they were protected, once a reset; 0 where page faults
    /// show them.
    pub(super) search: u32,
}

/// How soon pages of one kind are written again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReturnTimes {
    /// Number of times that pages were written.
    written: u32,
    /// How many of those were followed by another write within `KEEP[i]` resets, and not within
    /// `KEEP[i - 1]`.
    again: [u32; KEEP.len()],
    /// During how many resets that was, and after how many it was last judged.
    during: u32,
    judged_at: u64,
    /// The number of unchanged looks after which a page is evicted; 0: pages are discarded
    /// without a look.
    keep: u8,
}

impl ReturnTimes {
    /// Of nothing that was seen until so many resets.
    pub(super) fn unknown(resets: u64) -> Self {
        let again = [0; KEEP.len()];
        Self { written: 0, again, during: 0, judged_at: resets, keep: KEEP_AT_FIRST }
    }

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
        self.during /= divisor;
        self.again.iter_mut().for_each(|count| *count /= divisor);
    }

    /// Chooses how long to keep pages.
    pub(super) fn judge(&mut self, costs: PageCosts, resets: u64) {
        self.during += resets.saturating_sub(self.judged_at) as u32;
        self.judged_at = resets;
        if self.written < EVIDENCE {
            return;
        }
        // Most pages of most modules are written by each run, and are not worth a calculation.
        if self.again[0] >= self.written - self.written / 16 && 2 * costs.look <= costs.away {
            self.keep = KEEP[0];
            self.fade_in_time(resets);
            return;
        }
        let Costs { best, mut kept, mut gone } = self.costs(costs);
        // A change from keeping many pages to keeping none, or back, costs a fault a page, so it
        // has to save an eighth.
        match self.keep {
            0 if best >= KEEP_LONG => kept += kept / 8,
            KEEP_LONG.. => gone += gone / 8,
            _ => (),
        }
        self.keep = if kept < gone { best } else { 0 };
        self.fade_in_time(resets);
    }

    /// Has future returns weigh more than past ones, if there is evidence enough.
    fn fade_in_time(&mut self, resets: u64) {
        if resets.is_multiple_of(FADE) && self.written >= 2 * EVIDENCE {
            self.fade(2);
        }
    }

    /// What the written pages would have cost with each choice.
    fn costs(&self, PageCosts { look, away, restores, search }: PageCosts) -> Costs {
        let (look, away) = (u64::from(look), u64::from(away));
        // A page that differs is written too, which costs half as much as the look.
        let restore = look + look / 2;
        // Pages that were protected return by page faults that have to be listed.
        let resets = u64::from(self.during.max(1));
        let listed = resets * RETURNED_MAX;
        // Those of one run take one search.
        let searches = |returns: u64| returns.min(resets) * u64::from(search);
        let may = |leave: u64| !restores || leave <= listed;
        let (mut stayed, mut rest, mut sooner) = (0, u64::from(self.written), 0);
        let mut gone = u64::MAX / 2;
        if may(rest) {
            gone = rest * (if restores { restore } else { 0 } + away) + searches(rest);
        }
        let mut costs = [u64::MAX / 2; KEEP.len()];
        for ((within, &again), cost) in KEEP.into_iter().zip(&self.again).zip(&mut costs) {
            let again = u64::from(again).min(rest);
            // Between two writes there are looks that find it unchanged.
            stayed += again * (restore + (sooner + u64::from(within) - 1) / 2 * look);
            rest -= again;
            sooner = u64::from(within);
            if may(rest) || within == KEEP_MAX {
                let left = rest * (restore + u64::from(within) * look + away);
                *cost = stayed + left + searches(rest);
            }
        }
        let least = costs.into_iter().fold(u64::MAX / 2, u64::min);
        // Looks are measured again and again, and take longer while others need the processor: so
        // protection has to save a fifth.
        let most = if restores { least + least / 4 } else { least };
        let index = match restores {
            true => costs.iter().rposition(|&cost| cost <= most),
            false => costs.iter().position(|&cost| cost <= most),
        };
        let index = index.unwrap_or(KEEP.len() - 1);
        gone += if restores { gone / 4 } else { 0 };
        Costs { best: KEEP[index], kept: costs[index], gone }
    }
}

/// What choices would have cost, in nanoseconds.
struct Costs {
    /// The best number of looks but 0, and what it would have cost.
    best: u8,
    kept: u64,
    /// To keep none.
    gone: u64,
}

#[cfg(test)]
mod tests {
    use pagefork_layout::page::PAGE_SIZE;

    use super::*;
    use crate::strategy::evicted::{Evicted, EvictedPage, page_number};

    const COSTS: PageCosts = PageCosts { look: 100, away: 2500, restores: false, search: 0 };

    fn at(offset: u64, run: u64) -> EvictedPage {
        let hot = run.is_multiple_of(2);
        EvictedPage { page: page_number(offset), written: run as u32, unwritten: None, hot }
    }

    /// The choice for runs that write `count` pages each, chosen at random of `of`.
    fn kept(count: u64, of: u64) -> u8 {
        kept_by(COSTS, count, of)
    }

    fn kept_by(costs: PageCosts, count: u64, of: u64) -> u8 {
        let (mut returns, mut evicted) = (ReturnTimes::unknown(0), Evicted::default());
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
                returns.judge(costs, run);
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

    /// Pages that return after some sixty runs: to find one takes a search, which takes the longer the
    /// larger the slot is.
    #[test]
    fn pages_that_return_are_kept_where_a_search_costs_more_than_looks() {
        let costs = PageCosts { look: 60, away: 1400, restores: true, search: 0 };
        assert!(kept_by(costs, 1, 60) < KEEP_MAX, "{}", kept_by(costs, 1, 60));
        let of_a_large_slot = PageCosts { search: 500_000, ..costs };
        assert_eq!(kept_by(of_a_large_slot, 1, 60), KEEP_MAX);
    }
}
