//! What C owns by a pointer that says itself how it is freed: its memory need not be a box.

use std::mem;
use std::ops::Deref;
use std::ptr::NonNull;

/// What C owns, and deletes.
pub(crate) trait Deletable {
    /// Frees it with its memory.
    ///
    /// # Safety
    /// C owned it by this pointer, and nothing uses it any more.
    unsafe fn delete(this: NonNull<Self>);
}

/// A pointer of C's to what it owns.
///
/// Invariant of the representation: nothing but the pointer.
#[repr(transparent)]
pub(crate) struct CBox<T: Deletable>(NonNull<T>);

// SAFETY: it is what it leads to.
unsafe impl<T: Deletable + Send> Send for CBox<T> {}

// SAFETY: shared, it gives what it leads to, shared.
unsafe impl<T: Deletable + Sync> Sync for CBox<T> {}

impl<T: Deletable> CBox<T> {
    /// What C owns from here on.
    ///
    /// # Safety
    /// [`Deletable::delete`] may be called once of this pointer, and until then it leads to a `T`.
    pub(crate) unsafe fn new(pointer: NonNull<T>) -> Self {
        Self(pointer)
    }

    /// The pointer, for [`CBox::new`].
    pub(crate) fn into_raw(self) -> *mut T {
        let pointer = self.0.as_ptr();
        mem::forget(self);
        pointer
    }
}

impl<T: Deletable> Deref for CBox<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: by the contract of `new` it leads to a `T`.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Deletable> Drop for CBox<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`; this is the only time.
        unsafe { T::delete(self.0) }
    }
}
