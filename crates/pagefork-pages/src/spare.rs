//! Address space for slots to come.
//!
//! A process that makes slots one after the other will make more of them. So the system call
//! that reserves one reserves as many as were made since the last was dropped, which costs the
//! same, up to a limit. What is left over goes when a slot goes, or is never made where address
//! space is limited: others may need it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagefork_layout::slot::SLOT_ALIGN;
use rustix::process::{Resource, getrlimit};

use crate::error::PagesError;
use crate::reservation::Reservation;
use crate::sys::PageKind;

/// So many slots are reserved at once at most.
const TOGETHER_MAX: u64 = 16;

static SPARE: Mutex<Spare> = Mutex::new(Spare { rest: None, made: 0 });

struct Spare {
    /// As many slots as are left over, all of one size.
    rest: Option<(u64, Reservation)>,
    /// Slots that were made since the last was dropped.
    made: u64,
}

/// Reserves `size` bytes for a slot, at a multiple of [`SLOT_ALIGN`].
///
/// # Errors
/// As of [`Reservation::of`].
pub(crate) fn reserve(kind: PageKind, size: u64) -> Result<Reservation, PagesError> {
    let mut spare = spare();
    let one = match &mut spare.rest {
        Some((each, rest)) if *each == size && rest.kind() == kind => {
            let head = rest.split_off(size);
            head.unwrap_or_else(|| spare.rest.take().expect("it is the last").1)
        }
        None => {
            let together = spare.made.clamp(1, TOGETHER_MAX);
            let (one, rest) = reserve_several(kind, size, together)?;
            spare.rest = rest.map(|rest| (size, rest));
            one
        }
        Some(_) => Reservation::of(kind, size, SLOT_ALIGN).or_else(|_| {
            // What is left over may be what is missing.
            spare.rest = None;
            Reservation::of(kind, size, SLOT_ALIGN)
        })?,
    };
    spare.made += 1;
    Ok(one)
}

/// One slot, and what is left over of as many as are wanted, or of none.
fn reserve_several(
    kind: PageKind,
    size: u64,
    count: u64,
) -> Result<(Reservation, Option<Reservation>), PagesError> {
    if count > 1 && size.is_multiple_of(SLOT_ALIGN) && is_unlimited() {
        let all = size.checked_mul(count);
        if let Some(mut all) = all.and_then(|all| Reservation::of(kind, all, SLOT_ALIGN).ok()) {
            let one = all.split_off(size).expect("there are several");
            return Ok((one, Some(all)));
        }
    }
    Ok((Reservation::of(kind, size, SLOT_ALIGN)?, None))
}

/// Says that a slot is dropped: gives back what is left over.
pub(crate) fn give_back() {
    let mut spare = spare();
    spare.made = 0;
    let rest = spare.rest.take();
    drop(spare);
    drop(rest);
}

fn spare() -> MutexGuard<'static, Spare> {
    // Nothing here panics with half of a change made.
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process may have as much address space as there is.
fn is_unlimited() -> bool {
    getrlimit(Resource::As).current.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * SLOT_ALIGN;

    /// Others may drop slots meanwhile, so nothing is said of what lies beside what.
    #[test]
    fn many_slots_are_aligned_and_apart_and_of_the_size_and_kind_that_was_asked_for() {
        let mut all = Vec::new();
        for number in 0..100u64 {
            let size = if number % 7 == 3 { SIZE + SLOT_ALIGN } else { SIZE };
            let kind = if number % 11 == 5 { PageKind::Small } else { PageKind::Any };
            let mut one = reserve(kind, size).unwrap();
            assert_eq!(one.kind(), kind);
            assert!(one.start().is_multiple_of(SLOT_ALIGN as usize));
            one.commit(size - 4096..size).unwrap();
            one.write(size - 8, &number.to_le_bytes());
            all.push((one, size));
            if number % 50 == 49 {
                give_back();
            }
        }
        all.sort_by_key(|(one, _)| one.start());
        assert!(
            all.is_sorted_by(|(low, size), (high, _)| low.start() + *size as usize <= high.start())
        );
    }
}
