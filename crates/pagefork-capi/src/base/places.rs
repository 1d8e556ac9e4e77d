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

#[repr(align(16))]
struct PlaceBytes(UnsafeCell<MaybeUninit<[u8; SIZE]>>);

impl PlaceBytes {
    const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

/// A place beyond the first few.
#[repr(C)]
struct FurtherPlace {
    bytes: PlaceBytes,
    /// The next one that is free, if this one is. Apart from the bytes: what was in them last can be read
    /// until something else takes the place.
    next: Cell<Option<NonNull<FurtherPlace>>>,
}

/// A place and its bytes have the same address.
const _: () = assert!(offset_of!(FurtherPlace, bytes) == 0);

/// Further places, which are made and freed together.
struct Chunk {
    places: [FurtherPlace; CHUNK_COUNT],
    /// The chunk that was made before.
    before: Option<NonNull<Chunk>>,
}

/// Places for things. Threads use it one at a time.
pub(crate) struct Places {
    /// A bit for each of the first few that is taken.
    taken: Cell<u8>,
    places: [PlaceBytes; COUNT],
    /// The further place that is taken next.
    free: Cell<Option<NonNull<FurtherPlace>>>,
    /// The chunk that was made last. Each was leaked from a box.
    chunks: Cell<Option<NonNull<Chunk>>>,
}

impl Places {
    /// All are free.
    pub(crate) const fn new() -> Self {
        let places = [const { PlaceBytes::new() }; COUNT];
        Self { taken: Cell::new(0), places, free: Cell::new(None), chunks: Cell::new(None) }
    }

    /// Takes a place for a `T`, which is not there yet. What was in it before can be read until then.
    #[inline]
    pub(crate) fn take<T>(&self) -> NonNull<T> {
        const { assert!(size_of::<T>() <= SIZE && align_of::<T>() <= align_of::<PlaceBytes>()) };
        let taken = self.taken.get();
        match self.places.get(taken.trailing_ones() as usize) {
            Some(place) => {
                // The lowest bit that is not set.
                self.taken.set(taken | (taken + 1));
                NonNull::from(&place.0).cast()
            }
            None => further_place(self).cast(),
        }
    }

    /// Which of the first few places this is; `None` if it is a further one.
    #[inline]
    fn position<T>(&self, pointer: NonNull<T>) -> Option<usize> {
        let first = self.places.as_ptr().addr();
        let position = pointer.addr().get().wrapping_sub(first) / size_of::<PlaceBytes>();
        (position < COUNT).then_some(position)
    }

    /// Gives a place back. What was in it can be read until something else is.
    ///
    /// # Safety
    /// [`Places::take`] of these places gave it, and it was not given back since.
    #[inline]
    pub(crate) unsafe fn give_back<T>(&self, place: NonNull<T>) {
        match self.position(place) {
            Some(position) => self.taken.set(self.taken.get() & !(1 << position)),
            // SAFETY: by this function's contract it is in a chunk, which is freed with these places.
            None => unsafe { self.give_further_back(place.cast()) },
        }
    }

    /// # Safety
    /// As of [`Places::give_back`], of a place in a chunk.
    unsafe fn give_further_back(&self, place: NonNull<FurtherPlace>) {
        // SAFETY: by this function's contract.
        unsafe { place.as_ref() }.next.set(self.free.replace(Some(place)));
    }

    /// Takes a further place.
    fn take_further(&self) -> NonNull<FurtherPlace> {
        let place = self.free.get().unwrap_or_else(|| self.make_chunk());
        // SAFETY: what is free is in a chunk, which is freed with these places.
        self.free.set(unsafe { place.as_ref() }.next.get());
        place
    }

    /// Makes places, all of them free; returns the first.
    #[cold]
    fn make_chunk(&self) -> NonNull<FurtherPlace> {
        let place = || FurtherPlace { bytes: PlaceBytes::new(), next: Cell::new(None) };
        let places = std::array::from_fn(|_| place());
        let chunk = NonNull::from(Box::leak(Box::new(Chunk { places, before: self.chunks.get() })));
        self.chunks.set(Some(chunk));
        // SAFETY: it was leaked just now. Places are lent by pointers to all of it, as each is shared.
        let places = unsafe { &chunk.as_ref().places };
        let mut next = None;
        for place in places.iter().rev() {
            place.next.set(next.replace(NonNull::from(place)));
        }
        self.free.set(next);
        NonNull::from(&places[0])
    }

    /// Frees the memory of further places: none is taken, and nothing is read that was in one.
    pub(crate) fn free_further(&mut self) {
        self.free.set(None);
        while let Some(chunk) = self.chunks.take() {
            // SAFETY: it was leaked from a box, and by this function's word nothing leads to it.
            let chunk = unsafe { Box::from_raw(chunk.as_ptr()) };
            self.chunks.set(chunk.before);
        }
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.free_further();
    }
}

/// A further place. It cannot unwind: what will be there need not be freed meanwhile, and so is made where it
/// stays.
#[cold]
extern "C" fn further_place(places: &Places) -> NonNull<FurtherPlace> {
    places.take_further()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_apart_and_come_back() {
        let mut places = Places::new();
        let count = COUNT + 3 * CHUNK_COUNT;
        for round in 0..3 {
            let taken: Vec<NonNull<[u64; 16]>> = (0..count).map(|_| places.take()).collect();
            for (index, place) in taken.iter().enumerate() {
                let is_own = places.position(*place).is_some();
                assert_eq!((is_own, place.addr().get() % 16), (index < COUNT, 0), "{index}");
                // SAFETY: it was taken for this.
                unsafe { place.write([index as u64; 16]) };
            }
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
        assert!(places.chunks.get().is_none());
        let further = (0..=COUNT).map(|_| places.take::<u8>()).last();
        assert_eq!(further.and_then(|place| places.position(place)), None);
    }

    #[test]
    fn the_first_free_place_is_taken() {
        let places = Places::new();
        let taken: Vec<NonNull<u8>> = (0..COUNT).map(|_| places.take()).collect();
        for position in [4, 1, 2] {
            // SAFETY: each was taken above.
            unsafe { places.give_back(taken[position]) };
        }
        let again: Vec<NonNull<u8>> = (0..3).map(|_| places.take()).collect();
        assert_eq!(again, [taken[1], taken[2], taken[4]]);
    }
}
