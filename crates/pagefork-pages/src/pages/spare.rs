//! Address space of slots: for those to come, and what guards the lowest.
//!
//! ```text
//!  | pre-guard | slot | slot | slot | not handed out yet |   one reservation
//! ```
//!
//! A process that makes slots one after the other will make more of them. So the system call
//! that reserves one reserves as many as were made since the last was dropped, which costs the
//! same, up to a limit. What is left over goes when a slot goes, or is never made where address
//! space is limited: others may need it.
//!
//! Code that a miscompilation makes reach below its memory finds nothing there: the guards of
//! the slot below, or the pre-guard. If the slot below goes, a part of its address space stays
//! as the pre-guard of the one above.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use pagefork_layout::slot::{PRE_GUARD, SLOT_ALIGN};
use rustix::process::{Resource, getrlimit};

use crate::os::error::PagesError;
use crate::os::lock::lock;
use crate::os::reservation::{PageKind, Reservation};

/// At most this many slots are reserved at once.
const TOGETHER_MAX: u64 = 16;

const _: () = assert!(PRE_GUARD.is_multiple_of(SLOT_ALIGN));

static SPARE: Mutex<Spare> = Mutex::new(Spare { rest: None, made: 0, live: BTreeMap::new() });

struct Spare {
    /// As many slots as are left over, all of one size.
    rest: Option<(u64, Reservation)>,
    /// Slots that were made since the last was dropped.
    made: u64,
    /// By the address of each slot the guard below it that is its own. Invariant: it is
    /// [`PRE_GUARD`] bytes long, or another of these slots lies right below it, of the same
    /// reservation.
    live: BTreeMap<usize, Option<Reservation>>,
}

/// The address space of a slot.
#[derive(Debug)]
pub(crate) struct SlotSpace {
    /// `None` while it is dropped, or once it is leaked.
    pages: Option<Reservation>,
}

impl SlotSpace {
    /// Reserves `size` bytes for a slot, at a multiple of [`SLOT_ALIGN`].
    ///
    /// # Errors
    /// As of [`Reservation::of`].
    pub(crate) fn reserve(kind: PageKind, size: u64) -> Result<Self, PagesError> {
        let mut spare = lock(&SPARE);
        let (pages, guard) = spare.reserve(kind, size)?;
        spare.live.insert(pages.start(), guard);
        spare.made += 1;
        Ok(Self { pages: Some(pages) })
    }
}

impl Deref for SlotSpace {
    type Target = Reservation;

    fn deref(&self) -> &Reservation {
        self.pages.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for SlotSpace {
    fn deref_mut(&mut self) -> &mut Reservation {
        self.pages.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for SlotSpace {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            let gone = lock(&SPARE).give_back(pages);
            // Without the lock.
            drop(gone);
        }
    }
}

impl SlotSpace {
    /// Neither uses the address space again nor gives it back.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(self.pages.take());
    }
}

impl Spare {
    /// The pages of one slot, and its own guard.
    fn reserve(
        &mut self,
        kind: PageKind,
        size: u64,
    ) -> Result<(Reservation, Option<Reservation>), PagesError> {
        let rest = match &mut self.rest {
            Some((each, rest)) if *each == size && rest.kind() == kind => {
                let head = rest.split_off(size);
                let one = head.unwrap_or_else(|| self.rest.take().expect("it is the last").1);
                return Ok((one, None));
            }
            Some(_) => None,
            None => several(kind, size, self.made.clamp(1, TOGETHER_MAX)),
        };
        let mut all = match rest {
            Some(all) => all,
            None => Reservation::of(kind, PRE_GUARD + size, SLOT_ALIGN).or_else(|error| {
                // What is left over may be what is missing.
                self.rest.take().ok_or(error)?;
                Reservation::of(kind, PRE_GUARD + size, SLOT_ALIGN)
            })?,
        };
        let guard = all.split_off(PRE_GUARD);
        match all.split_off(size) {
            Some(one) => {
                self.rest = Some((size, all));
                Ok((one, guard))
            }
            None => Ok((all, guard)),
        }
    }

    /// Takes the pages of a slot; returns what is not needed any more.
    fn give_back(&mut self, pages: Reservation) -> [Option<Reservation>; 2] {
        self.made = 0;
        let left_over = self.rest.take().map(|(_, rest)| rest);
        let guard = self.live.remove(&pages.start()).flatten();
        let mut all = match guard {
            Some(guard) => guard.join(pages),
            None => pages,
        };
        let above = self.live.range_mut(all.start()..).next();
        let Some((&start, above)) = above else { return [left_over, Some(all)] };
        let guard_start = above.as_ref().map_or(start, Reservation::start);
        let missing = PRE_GUARD.saturating_sub((start - guard_start) as u64);
        if guard_start != all.end() || missing == 0 {
            return [left_over, Some(all)];
        }
        let gone = all.size().checked_sub(missing).and_then(|beyond| all.split_off(beyond));
        let stays = 0..all.size();
        // Of most slots that is a guard already. If it cannot be, it is zeros.
        let _ = all.protect(stays.clone());
        let _ = all.discard(stays);
        *above = Some(match above.take() {
            Some(high) => all.join(high),
            None => all,
        });
        [left_over, gone]
    }
}

/// As many slots as are wanted, and the guard below them; `None` if there cannot be several.
fn several(kind: PageKind, size: u64, count: u64) -> Option<Reservation> {
    if count < 2 || !size.is_multiple_of(SLOT_ALIGN) || getrlimit(Resource::As).current.is_some() {
        return None;
    }
    let all = size.checked_mul(count)?.checked_add(PRE_GUARD)?;
    Reservation::of(kind, all, SLOT_ALIGN).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::procmaps;

    const SIZE: u64 = 3 * SLOT_ALIGN;

    /// Tests take turns: each knows all slots of its sizes.
    static TURN: Mutex<()> = Mutex::new(());

    fn reserve(kind: PageKind, size: u64) -> SlotSpace {
        SlotSpace::reserve(kind, size).unwrap()
    }

    /// Others may drop slots meanwhile, so nothing is said of what lies beside what.
    #[test]
    fn many_slots_are_aligned_and_apart_and_of_the_size_and_kind_that_was_asked_for() {
        let _turn = TURN.lock();
        let mut all = Vec::new();
        for number in 0..100u64 {
            let size = if number % 7 == 3 { SIZE + SLOT_ALIGN } else { SIZE };
            let kind = if number % 11 == 5 { PageKind::Small } else { PageKind::Any };
            let mut one = reserve(kind, size);
            assert_eq!(one.kind(), kind);
            assert!(one.start().is_multiple_of(SLOT_ALIGN as usize));
            one.commit(size - 4096..size).unwrap();
            one.write(size - 8, &number.to_le_bytes());
            all.push((one, size));
            if number % 50 == 49 {
                drop(reserve(kind, size));
            }
        }
        all.sort_by_key(|(one, _)| one.start());
        assert!(
            all.is_sorted_by(|(low, size), (high, _)| low.start() + *size as usize <= high.start())
        );
    }

    /// For any set of slots that are dropped, in any order.
    #[test]
    fn below_each_slot_is_a_guard_or_another_slot() {
        let _turn = TURN.lock();
        let mut all: Vec<SlotSpace> = Vec::new();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 9) as usize % below
        };
        for round in 0..40 {
            for _ in 0..random(12) {
                // Of some, a part of the guard below the next is not enough for that.
                let size = [SIZE, SIZE, SIZE, PRE_GUARD + SIZE][round / 3 % 4];
                let mut one = reserve(PageKind::Any, size);
                one.commit(SLOT_ALIGN..size - SLOT_ALIGN).unwrap();
                all.push(one);
            }
            for _ in 0..random(12).min(all.len()) {
                drop(all.swap_remove(random(all.len())));
            }
            let spaces = all.iter().map(|one| one.start() as u64..one.end() as u64);
            let spaces: Vec<_> = spaces.collect();
            let maps = procmaps::read().unwrap();
            for one in &spaces {
                let mut at = one.start;
                while one.start - at < PRE_GUARD && !spaces.iter().any(|other| other.end == at) {
                    let map = maps.iter().find(|map| map.range.start < at && at <= map.range.end);
                    let map = map.unwrap_or_else(|| panic!("nothing is below {at:#x}"));
                    assert!(!map.read && !map.write && !map.execute, "{map:?} is below {one:x?}");
                    let next = spaces.iter().map(|other| other.end).filter(|end| *end < at);
                    at = next.fold(map.range.start, u64::max);
                }
            }
        }
    }
}
