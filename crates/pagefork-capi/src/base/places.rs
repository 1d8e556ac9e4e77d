//! Places for a few things that come and go with something that is there already: none of them
//! needs memory of its own.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// How many places there are.
const COUNT: usize = 6;

/// Bytes of one, and how they are aligned.
const SIZE: usize = 160;

#[repr(align(16))]
struct PlaceBytes(UnsafeCell<MaybeUninit<[u8; SIZE]>>);

/// A few places. Threads use it one at a time.
pub(crate) struct Places {
    /// A bit for each that is taken.
    taken: Cell<u8>,
    places: [PlaceBytes; COUNT],
}

impl Places {
    /// All are free.
    pub(crate) const fn new() -> Self {
        let places = [const { PlaceBytes(UnsafeCell::new(MaybeUninit::uninit())) }; COUNT];
        Self { taken: Cell::new(0), places }
    }

    /// Takes a place for a `T`, which is not there yet; `None` if all are taken.
    #[inline]
    pub(crate) fn take<T>(&self) -> Option<NonNull<T>> {
        const { assert!(size_of::<T>() <= SIZE && align_of::<T>() <= align_of::<PlaceBytes>()) };
        let taken = self.taken.get();
        let place = self.places.get(taken.trailing_ones() as usize)?;
        // The lowest bit that is not set.
        self.taken.set(taken | (taken + 1));
        NonNull::new(place.0.get()).map(NonNull::cast)
    }

    /// Which place this is; `None` if it is somewhere else.
    #[inline]
    pub(crate) fn position<T>(&self, pointer: NonNull<T>) -> Option<usize> {
        let first = self.places.as_ptr().addr();
        let position = pointer.addr().get().wrapping_sub(first) / size_of::<PlaceBytes>();
        (position < COUNT).then_some(position)
    }

    /// Gives a place back; what was in it is gone.
    #[inline]
    pub(crate) fn give_back(&self, position: usize) {
        self.taken.set(self.taken.get() & !(1 << position));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_come_back() {
        let places = Places::new();
        let taken: Vec<NonNull<[u64; 16]>> = (0..COUNT).map(|_| places.take().unwrap()).collect();
        assert!(places.take::<u8>().is_none());
        for (index, place) in taken.iter().enumerate() {
            assert_eq!(places.position(*place), Some(index));
            assert!(taken[..index].iter().all(|other| other.addr() != place.addr()));
        }
        let other = 0u64;
        assert_eq!(places.position(NonNull::from(&other)), None);
        for position in [4, 1, 2] {
            places.give_back(position);
        }
        let again: Vec<_> = (0..3).map(|_| places.take().unwrap()).collect();
        assert_eq!(again, [taken[1], taken[2], taken[4]]);
        assert!(places.take::<u8>().is_none());
    }
}
