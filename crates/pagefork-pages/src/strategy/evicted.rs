//! Pages that were evicted, remembered for a while.

use pagefork_layout::page::PAGE_SIZE;

use crate::strategy::tuning::KEEP;

/// A page that was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EvictedPage {
    /// Its number in the slot; `u32::MAX` where there is none.
    pub(super) page: u32,
    /// The number of the reset before which it was last written, or found if it never was.
    pub(super) written: u32,
    /// If it was not written while it was kept: how many looks found it unchanged.
    pub(super) unwritten: Option<u8>,
    /// Whether the last two runs that wrote it followed on each other.
    pub(super) hot: bool,
}

/// The number of the page at a slot offset; `u32::MAX` for those that have none.
pub(super) fn page_number(offset: u64) -> u32 {
    u32::try_from(offset / PAGE_SIZE).unwrap_or(u32::MAX)
}

/// Evicted pages, in a hash table without collisions: a later page takes the place of an earlier
/// one. To forget a page costs a fault, nothing else.
#[derive(Clone, Default, Debug)]
pub(super) struct Evicted {
    /// A power of two, or none.
    places: Vec<EvictedPage>,
}

impl Evicted {
    const PLACES_MIN: usize = 64;
    const PLACES_MAX: usize = 8192;
    const NONE: EvictedPage =
        EvictedPage { page: u32::MAX, written: 0, unwritten: None, hot: false };

    /// Remembers a page; `now` counts resets.
    pub(super) fn remember(&mut self, evicted: EvictedPage, now: u64) {
        if self.places.is_empty() {
            self.places = vec![Self::NONE; Self::PLACES_MIN];
        }
        let mut place = self.place(evicted.page);
        while self.is_needed(place, evicted.page, now) && self.places.len() < Self::PLACES_MAX {
            let all = vec![Self::NONE; self.places.len() * 2];
            let old = std::mem::replace(&mut self.places, all);
            for one in old.into_iter().filter(|one| one.page != u32::MAX) {
                let place = self.place(one.page);
                self.places[place] = one;
            }
            place = self.place(evicted.page);
        }
        self.places[place] = evicted;
    }

    /// Whether the place is taken by another page, which may return soon.
    fn is_needed(&self, place: usize, page: u32, now: u64) -> bool {
        let other = self.places[place];
        let age = (now as u32).wrapping_sub(other.written);
        other.page != page && other.page != u32::MAX && age <= u32::from(KEEP[KEEP.len() - 1])
    }

    /// Takes what is remembered of the page at a slot offset.
    pub(super) fn take(&mut self, offset: u64) -> Option<EvictedPage> {
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

    fn at(offset: u64, run: u64) -> EvictedPage {
        let hot = run.is_multiple_of(2);
        EvictedPage { page: page_number(offset), written: run as u32, unwritten: None, hot }
    }

    #[test]
    fn an_evicted_page_is_remembered_as_long_as_it_may_return_soon() {
        let mut evicted = Evicted::default();
        for page in 0..1000 {
            evicted.remember(at(page * PAGE_SIZE, page), page);
        }
        for page in 980..1000 {
            let found = evicted.take(page * PAGE_SIZE).unwrap();
            assert_eq!(found, at(page * PAGE_SIZE, page));
            assert_eq!(evicted.take(page * PAGE_SIZE), None, "it is taken");
        }
        evicted.clear();
        assert!((0..1000).all(|page| evicted.take(page * PAGE_SIZE).is_none()));
        // All of an enormous slot have a place, or none.
        evicted.remember(at(u64::MAX / 2, 1), 1);
        assert_eq!(evicted.take(u64::MAX / 2), None);
    }
}
