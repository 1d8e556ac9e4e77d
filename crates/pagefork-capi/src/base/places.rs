//! Places for things that come and go with something that is there already: a few that need no memory
//! of their own, and as many more as are asked for, whose memory stays until all go.

use std::cell::{Cell, UnsafeCell};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;

/// How many places there are without memory of their own.
const COUNT: usize = 6;

/// How many further places are made at once.
const CHUNK_COUNT: usize = 16;

/// Bytes of one, and how they are aligned.
const SIZE: usize = 160;

/// Reached by pointers alone.
#[repr(align(16))]
struct PlaceBytes(#[expect(dead_code, reason = "it is space")] UnsafeCell<MaybeUninit<[u8; SIZE]>>);

/// A place, and what leads to the next.
#[repr(C)]
struct LinkedPlace {
    bytes: PlaceBytes,
    /// The next one that is free, if this one is. Apart from the bytes: what was in them last can be read
    /// until something else takes the place.
    next: Cell<Option<NonNull<LinkedPlace>>>,
}

/// A place and its bytes have the same address.
const _: () = assert!(offset_of!(LinkedPlace, bytes) == 0);

impl LinkedPlace {
    const fn new() -> Self {
        let bytes = PlaceBytes(UnsafeCell::new(MaybeUninit::uninit()));
        Self { bytes, next: Cell::new(None) }
    }
}

/// Has each of these places lead to the next, and the last one to nothing; returns the first.
fn linked(places: &[LinkedPlace]) -> Option<NonNull<LinkedPlace>> {
    let mut next = None;
    for place in places.iter().rev() {
        place.next.set(next.replace(NonNull::from(place)));
    }
    next
}

/// Further places, which are made and freed together.
struct Chunk {
    places: [LinkedPlace; CHUNK_COUNT],
    /// The chunk that was made before.
    before: Option<NonNull<Chunk>>,
}

/// Places for things. Threads use it one at a time.
pub(crate) struct Places {
    /// The place that is taken next: the one that was given back last.
    free: Cell<Option<NonNull<LinkedPlace>>>,
    /// The chunk that was made last. Each was leaked from a box.
    chunks: Cell<Option<NonNull<Chunk>>>,
    first: [LinkedPlace; COUNT],
}

impl Places {
    /// None are there before [`Places::settle`].
    pub(crate) const fn new() -> Self {
        let first = [const { LinkedPlace::new() }; COUNT];
        Self { free: Cell::new(None), chunks: Cell::new(None), first }
    }

    /// All of the first few are free. They stay where they are from here on, and none is taken.
    pub(crate) fn settle(&self) {
        self.free.set(linked(&self.first));
    }

    /// Takes a place for a `T`, which is not there yet. What was in it before can be read until then.
    #[inline(always)]
    pub(crate) fn take<T>(&self) -> NonNull<T> {
        const { assert!(size_of::<T>() <= SIZE && align_of::<T>() <= align_of::<PlaceBytes>()) };
        match self.free.get() {
            Some(place) => {
                // SAFETY: what is free stays where it is as long as these places do.
                self.free.set(unsafe { place.as_ref() }.next.get());
                place.cast()
            }
            None => further_place(self).cast(),
        }
    }

    /// Gives a place back. What was in it can be read until something else is.
    ///
    /// # Safety
    /// [`Places::take`] of these places gave it, and it was not given back since.
    #[inline(always)]
    pub(crate) unsafe fn give_back<T>(&self, place: NonNull<T>) {
        let place = place.cast::<LinkedPlace>();
        // SAFETY: by this function's contract it is a place, which stays where it is as long as these do.
        unsafe { place.as_ref() }.next.set(self.free.replace(Some(place)));
    }

    /// Makes places, and takes one of them.
    fn take_further(&self) -> NonNull<LinkedPlace> {
        let places = std::array::from_fn(|_| LinkedPlace::new());
        let chunk = NonNull::from(Box::leak(Box::new(Chunk { places, before: self.chunks.get() })));
        self.chunks.set(Some(chunk));
        // SAFETY: it was leaked just now. Places are lent by pointers to all of it, as each is shared.
        let places = unsafe { &chunk.as_ref().places };
        linked(places);
        self.free.set(places[0].next.get());
        NonNull::from(&places[0])
    }

    /// Whether there are more than the first few.
    pub(crate) fn has_further(&self) -> bool {
        self.chunks.get().is_some()
    }

    /// Frees the memory of further places: none at all is taken, and nothing is read that was in one.
    pub(crate) fn free_further(&self) {
        self.free_chunks();
        self.settle();
    }

    fn free_chunks(&self) {
        while let Some(chunk) = self.chunks.take() {
            // SAFETY: it was leaked from a box, and by the caller's word nothing leads to it.
            let chunk = unsafe { Box::from_raw(chunk.as_ptr()) };
            self.chunks.set(chunk.before);
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.free_chunks();
    }
}

/// A further place. It cannot unwind: what will be there need not be freed meanwhile, and so is made where it
/// stays.
#[cold]
extern "C" fn further_place(places: &Places) -> NonNull<LinkedPlace> {
    places.take_further()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled() -> Box<Places> {
        let places = Box::new(Places::new());
        places.settle();
        places
    }

    impl Places {
        fn is_first<T>(&self, place: NonNull<T>) -> bool {
            self.first.iter().any(|first| NonNull::from(first).cast() == place)
        }
    }

    #[test]
    fn places_are_apart_and_come_back() {
        let places = settled();
        let count = COUNT + 3 * CHUNK_COUNT;
        for round in 0..3 {
            let taken: Vec<NonNull<[u64; 16]>> = (0..count).map(|_| places.take()).collect();
            for (index, place) in taken.iter().enumerate() {
                assert_eq!(place.addr().get() % 16, 0, "{index}");
                // SAFETY: it was taken for this.
                unsafe { place.write([index as u64; 16]) };
            }
            let first = taken.iter().filter(|place| places.is_first(**place)).count();
            assert_eq!(first, COUNT, "round {round}");
            for (index, place) in taken.iter().enumerate() {
                // SAFETY: it was written, by none but the turn of its own index if they are apart.
                assert_eq!(unsafe { place.read() }, [index as u64; 16]);
            }
            // Any order will do.
            for index in (0..count).map(|index| (index * 7 + round) % count) {
                // SAFETY: each is given back once: 7 and the count have no common divisor.
                unsafe { places.give_back(taken[index]) };
            }
            // What was in them can still be read.
            for (index, place) in taken.iter().enumerate() {
                // SAFETY: the memory stays, and nothing has taken the place.
                assert_eq!(unsafe { place.read() }, [index as u64; 16]);
            }
        }
        // SAFETY: chunks stay as long as the places.
        let before = |chunk: &NonNull<Chunk>| unsafe { chunk.as_ref() }.before;
        let chunks = std::iter::successors(places.chunks.get(), before);
        assert_eq!(chunks.count(), 3, "free places are taken before others are made");
        places.free_further();
        assert!(!places.has_further());
        for index in 0..=COUNT {
            assert_eq!(places.is_first(places.take::<u8>()), index < COUNT, "{index}");
        }
    }

    #[test]
    fn the_place_that_was_given_back_last_is_taken() {
        let places = settled();
        let taken: Vec<NonNull<u8>> = (0..COUNT).map(|_| places.take()).collect();
        for position in [4, 1, 2] {
            // SAFETY: each was taken above.
            unsafe { places.give_back(taken[position]) };
        }
        let again: Vec<NonNull<u8>> = (0..3).map(|_| places.take()).collect();
        assert_eq!(again, [taken[2], taken[1], taken[4]]);
    }
}
