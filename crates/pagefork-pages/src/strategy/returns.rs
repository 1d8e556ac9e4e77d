//! How soon written pages are written again, and how long it pays to keep them.
//!
//! A page that is kept private costs a look at each reset; one that was let go costs a page
//! fault when it is written again. Which is cheaper depends on how many resets go by until
//! then. [`Returns`] counts that, and says for how long to keep a page; [`Gone`] remembers
//! pages that were let go, so that their return is noticed too.

use pagefork_layout::page::PAGE_SIZE;

/// The choices: a page is let go after this many resets at which it was as the image. Pages
/// that return later than the last of them count as those that never do.
const KEEP: [u8; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Of pages that are kept so long there are many.
const LONG: u8 = 8;

/// The choice until there is evidence.
const KEEP_AT_FIRST: u8 = 3;

/// So many times pages must have been written before anything is concluded.
const EVIDENCE: u32 = 64;

/// All counts are halved after so many resets, if there is twice the evidence.
const FADE: u64 = 64;

/// What a page costs, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Costs {
    /// To compare a kept page with the image.
    pub(super) look: u32,
    /// To discard it, and have it made private again.
    pub(super) fault: u32,
}

/// How soon pages of one kind return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Returns {
    /// Times that pages were written.
    written: u32,
    /// After how many of those they were written again soon: within `KEEP` resets, and no
    /// sooner than the element before says.
    again: [u32; KEEP.len()],
    /// How long to keep them, in resets at which they were as the image; 0: they are
    /// discarded without a look.
    keep: u8,
}

impl Returns {
    pub(super) const UNKNOWN: Self =
        Self { written: 0, again: [0; KEEP.len()], keep: KEEP_AT_FIRST };

    /// For how many resets to keep a page that is not written.
    pub(super) fn keep(&self) -> u8 {
        self.keep
    }

    /// Says that a page was written.
    pub(super) fn note_written(&mut self) {
        self.written += 1;
    }

    /// Says that a page was written again, `gap` resets after the last time.
    pub(super) fn note_again(&mut self, gap: u64) {
        if let Some(count) = KEEP.iter().position(|&keep| gap <= u64::from(keep)) {
            self.again[count] += 1;
        }
    }

    /// Makes what comes weigh more than what was.
    pub(super) fn fade(&mut self) {
        self.written /= 2;
        self.again.iter_mut().for_each(|count| *count /= 2);
    }

    /// Chooses how long to keep pages.
    pub(super) fn judge(&mut self, costs: Costs, resets: u64) {
        if self.written < EVIDENCE {
            return;
        }
        let best = KEEP.into_iter().min_by_key(|&keep| self.cost(keep, costs)).unwrap_or(0);
        let (mut kept, mut gone) = (self.cost(best, costs), self.cost(0, costs));
        // To begin or to end keeping many pages costs a fault each: only if an eighth is saved.
        match self.keep {
            0 if best >= LONG => kept += kept / 8,
            LONG.. => gone += gone / 8,
            _ => (),
        }
        self.keep = if kept < gone { best } else { 0 };
        if resets.is_multiple_of(FADE) && self.written >= 2 * EVIDENCE {
            self.fade();
        }
    }

    /// What the pages that were written would have cost if they had been kept so long,
    /// in nanoseconds.
    fn cost(&self, keep: u8, Costs { look, fault }: Costs) -> u64 {
        let (look, fault) = (u64::from(look), u64::from(fault));
        // A page that differs is written too, which costs half as much as the look.
        let restore = if keep == 0 { 0 } else { look + look / 2 };
        let (mut cost, mut rest, mut sooner) = (0, u64::from(self.written), 0);
        for (&within, &again) in KEEP.iter().zip(&self.again).filter(|(within, _)| **within <= keep)
        {
            let again = u64::from(again).min(rest);
            // Between two writes there are looks at which it is as the image.
            cost += again * (restore + (sooner + u64::from(within) - 1) / 2 * look);
            rest -= again;
            sooner = u64::from(within);
        }
        cost + rest * (restore + u64::from(keep) * look + fault)
    }
}

/// A page that was let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GonePage {
    /// Its number in the slot; `u32::MAX` where there is none.
    pub(super) page: u32,
    /// After which reset it was last written, or found if it never was.
    pub(super) written: u32,
    /// If it never was as long as it was kept: at how many resets it was looked at.
    pub(super) unwritten: Option<u8>,
    /// Whether the last two times that it was written were by runs that follow on each other.
    pub(super) hot: bool,
}

/// The number of the page at a slot offset, as far as numbers go.
pub(super) fn page_number(offset: u64) -> u32 {
    u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX)
}

/// Pages that were let go, each in the one place that its number leads to. What is forgotten
/// because another takes the place costs a fault, nothing else.
#[derive(Clone, Default, Debug)]
pub(super) struct Gone {
    /// A power of two, or none.
    places: Vec<GonePage>,
}

impl Gone {
    const PLACES_MIN: usize = 64;
    const PLACES_MAX: usize = 8192;
    const NONE: GonePage = GonePage { page: u32::MAX, written: 0, unwritten: None, hot: false };

    /// Remembers a page; `now` counts resets.
    pub(super) fn remember(&mut self, gone: GonePage, now: u64) {
        if self.places.is_empty() {
            self.places = vec![Self::NONE; Self::PLACES_MIN];
        }
        let mut place = self.place(gone.page);
        while self.is_needed(place, gone.page, now) && self.places.len() < Self::PLACES_MAX {
            let all = vec![Self::NONE; self.places.len() * 2];
            let old = std::mem::replace(&mut self.places, all);
            for one in old.into_iter().filter(|one| one.page != u32::MAX) {
                let place = self.place(one.page);
                self.places[place] = one;
            }
            place = self.place(gone.page);
        }
        self.places[place] = gone;
    }

    /// Whether another page has the place that may return soon.
    fn is_needed(&self, place: usize, page: u32, now: u64) -> bool {
        let other = self.places[place];
        let age = (now as u32).wrapping_sub(other.written);
        other.page != page && other.page != u32::MAX && age <= u32::from(KEEP[KEEP.len() - 1])
    }

    /// What is remembered of the page at a slot offset, which is forgotten.
    pub(super) fn take(&mut self, offset: u64) -> Option<GonePage> {
        let page = page_number(offset);
        if self.places.is_empty() || page == u32::MAX {
            return None;
        }
        let place = self.place(page);
        let found = self.places[place];
        (found.page == page).then(|| std::mem::replace(&mut self.places[place], Self::NONE))
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.places.fill(Self::NONE);
    }

    fn place(&self, page: u32) -> usize {
        let bits = self.places.len().trailing_zeros();
        (page.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { look: 100, fault: 2500 };

    fn at(offset: u64, run: u64) -> GonePage {
        let hot = run.is_multiple_of(2);
        GonePage { page: page_number(offset), written: run as u32, unwritten: None, hot }
    }

    /// How long pages are kept of which each run writes so many of so many.
    fn kept(count: u64, of: u64) -> u8 {
        let (mut returns, mut gone) = (Returns::UNKNOWN, Gone::default());
        let mut random = 1u64;
        for run in 1..2000 {
            for _ in 0..count {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (random >> 33) % of * PAGE_SIZE;
                if let Some(before) = gone.take(page) {
                    returns.note_again(run - u64::from(before.written));
                }
                returns.note_written();
                gone.remember(at(page, run), run);
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

    #[test]
    fn a_page_that_was_let_go_is_remembered_as_long_as_it_may_return_soon() {
        let mut gone = Gone::default();
        for page in 0..1000 {
            gone.remember(at(page * PAGE_SIZE, page), page);
        }
        for page in 980..1000 {
            let found = gone.take(page * PAGE_SIZE).unwrap();
            assert_eq!(found, at(page * PAGE_SIZE, page));
            assert_eq!(gone.take(page * PAGE_SIZE), None, "it is taken");
        }
        gone.clear();
        assert!((0..1000).all(|page| gone.take(page * PAGE_SIZE).is_none()));
        // All of an enormous slot have a place, or none.
        gone.remember(at(u64::MAX / 2, 1), 1);
        assert_eq!(gone.take(u64::MAX / 2), None);
    }
}
