//! Vectors as C sees them: a number of elements, and where they are.
//!
//! # Safety
//!
//! The memory is malloc's. C may fill a vector itself, so that what a `CVec` says is believed as
//! the header promises it: `data` leads to `size` elements, which are initialised wherever they
//! are read.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::{ptr, slice};

use pagefork::Result;

use crate::base::border::{BorderError, given};

/// A vector of C's.
///
/// It does not free its elements: C says when, or an [`OwnedVec`].
#[repr(C)]
pub(crate) struct CVec<T> {
    size: usize,
    data: *mut T,
}

// SAFETY: a vector leads to its elements, and to nothing else.
unsafe impl<T: Send> Send for CVec<T> {}

// SAFETY: a shared vector gives shared elements.
unsafe impl<T: Sync> Sync for CVec<T> {}

/// What can be an element: it is copied and freed with its vector.
pub(crate) trait Element: Sized {
    /// A copy that is owned apart.
    fn copy(&self) -> Self;
}

impl Element for u8 {
    fn copy(&self) -> Self {
        *self
    }
}

impl<T: Element> Element for Option<Box<T>> {
    fn copy(&self) -> Self {
        self.as_deref().map(|value| Box::new(value.copy()))
    }
}

impl<T> CVec<T> {
    /// A vector without elements.
    pub(crate) const EMPTY: Self = Self { size: 0, data: ptr::null_mut() };

    /// A vector of these elements, which it gets.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(elements: Vec<T>) -> Result<Self> {
        let vec = Self::uninitialized(elements.len())?;
        let mut elements = elements;
        // SAFETY: the vector is new, and has room for as many elements, which are no longer used
        // where they were.
        unsafe {
            vec.data.copy_from_nonoverlapping(elements.as_ptr(), vec.size);
            elements.set_len(0);
        }
        Ok(vec)
    }

    /// A vector of so many elements, all of whose bytes are zero.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn uninitialized(size: usize) -> Result<Self> {
        if size == 0 {
            return Ok(Self::EMPTY);
        }
        // SAFETY: `calloc` takes any numbers.
        let data = unsafe { libc::calloc(size, size_of::<T>()) }.cast::<T>();
        match data.is_null() {
            true => Err(BorderError::Unfit(format!("no memory for {size} elements")).into()),
            false => Ok(Self { size, data }),
        }
    }

    /// A vector that others own.
    pub(crate) fn of(elements: &mut [T]) -> Self {
        Self { size: elements.len(), data: elements.as_mut_ptr() }
    }

    /// How many elements there are.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The elements.
    ///
    /// # Errors
    /// If there should be some, and the pointer to them is null.
    pub(crate) fn elements(&self) -> Result<&[T]> {
        if self.size == 0 {
            return Ok(&[]);
        }
        given((!self.data.is_null()).then_some(()), "data of a vector with elements")?;
        // SAFETY: by the header's word there are as many elements, and `data` is not null.
        Ok(unsafe { slice::from_raw_parts(self.data, self.size) })
    }

    /// The places of the elements, which may not be there.
    ///
    /// # Errors
    /// If there should be some, and the pointer to them is null.
    pub(crate) fn places(&mut self) -> Result<&mut [MaybeUninit<T>]> {
        if self.size == 0 {
            return Ok(&mut []);
        }
        given((!self.data.is_null()).then_some(()), "data of a vector with elements")?;
        // SAFETY: by the header's word there is room for as many elements.
        Ok(unsafe { slice::from_raw_parts_mut(self.data.cast(), self.size) })
    }

    /// Gives the vector away, and leaves an empty one.
    pub(crate) fn take(&mut self) -> OwnedVec<T> {
        OwnedVec(std::mem::replace(self, Self::EMPTY))
    }
}

impl<T: Element> CVec<T> {
    /// A copy of the vector and all its elements.
    ///
    /// # Errors
    /// If there is no memory, or the vector is malformed.
    pub(crate) fn copy(&self) -> Result<Self> {
        Self::new(self.elements()?.iter().map(Element::copy).collect())
    }
}

/// A vector that is freed with what owns it.
#[repr(transparent)]
pub(crate) struct OwnedVec<T>(CVec<T>);

impl<T> OwnedVec<T> {
    /// The elements.
    ///
    /// # Errors
    /// If there should be some, and the pointer to them is null.
    pub(crate) fn elements_mut(&mut self) -> Result<&mut [T]> {
        self.0.elements()?;
        if self.0.size == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the elements are there, as was just seen, and the vector owns them.
        Ok(unsafe { slice::from_raw_parts_mut(self.0.data, self.0.size) })
    }
}

impl<T> From<CVec<T>> for OwnedVec<T> {
    fn from(vec: CVec<T>) -> Self {
        Self(vec)
    }
}

impl<T> Deref for OwnedVec<T> {
    type Target = CVec<T>;

    fn deref(&self) -> &CVec<T> {
        &self.0
    }
}

impl<T> Drop for OwnedVec<T> {
    fn drop(&mut self) {
        if self.0.data.is_null() {
            return;
        }
        // SAFETY: the vector was given away as a whole: its elements are there, its memory is
        // malloc's, and nothing uses either any more.
        unsafe {
            ptr::slice_from_raw_parts_mut(self.0.data, self.0.size).drop_in_place();
            libc::free(self.0.data.cast());
        }
    }
}

/// Writes to a place of C's.
///
/// # Errors
/// If there is none.
pub(crate) fn put<T>(out: Option<&mut MaybeUninit<T>>, what: &'static str, value: T) -> Result<()> {
    given(out, what)?.write(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_copied_and_freed_with_their_elements() {
        let vec = CVec::new(vec![Some(Box::new(1u8)), None, Some(Box::new(3))]).unwrap();
        let copy = OwnedVec::from(vec.copy().unwrap());
        drop(OwnedVec::from(vec));
        let elements: Vec<Option<u8>> =
            copy.elements().unwrap().iter().map(|element| element.as_deref().copied()).collect();
        assert_eq!(elements, [Some(1), None, Some(3)]);
    }

    #[test]
    fn a_vector_that_cannot_be_is_refused() {
        assert!(CVec::<u64>::uninitialized(usize::MAX / 4).is_err());
        assert!(CVec::<u8> { size: 1, data: ptr::null_mut() }.elements().is_err());
        assert!(CVec::<u8>::EMPTY.elements().unwrap().is_empty());
    }
}
