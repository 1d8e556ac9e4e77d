//! Address space that its value owns: the safe side of `sys`.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Mutex;

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::sys::{self, CallFailure, PageKind};

/// Address space that this value owns: its methods change no other pages. Dropping it gives
/// all of it back.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Invariant: `start..start + length` is mapped, and owned by this value alone.
    start: usize,
    length: usize,
    kind: PageKind,
}

impl Reservation {
    /// Reserves `size` bytes at a multiple of `align`: no access, no memory.
    pub(crate) fn new(size: u64, align: u64) -> Result<Self, PagesError> {
        Self::of(PageKind::Any, size, align)
    }

    /// As [`Self::new`], for pages of a kind.
    pub(crate) fn of(kind: PageKind, size: u64, align: u64) -> Result<Self, PagesError> {
        assert!(size > 0 && size.is_multiple_of(PAGE_SIZE), "a reservation is whole pages");
        assert!(align.is_power_of_two() && align >= PAGE_SIZE, "an alignment is whole pages");
        release_orphans();
        // Behind an aligned neighbour the kernel's first choice is aligned too,
        // and then the two guards become one map.
        let first = Self::anywhere(kind, size)?;
        if first.start.is_multiple_of(align as usize) {
            return Ok(first);
        }
        drop(first);
        let mut wide = Self::anywhere(kind, size + align - PAGE_SIZE)?;
        let head = wide.start.next_multiple_of(align as usize) - wide.start;
        wide.trim(head, size as usize)?;
        Ok(wide)
    }

    fn anywhere(kind: PageKind, size: u64) -> Result<Self, CallFailure> {
        Ok(Self { start: sys::reserve(size as usize, kind)?, length: size as usize, kind })
    }

    /// Gives back the first `head` bytes, and what lies behind `length` more.
    fn trim(&mut self, head: usize, length: usize) -> Result<(), CallFailure> {
        if head > 0 {
            // SAFETY: the head is ours by the type's invariant, and the caller has
            // nothing that points into it.
            unsafe { sys::release(self.start, head)? };
            self.start += head;
            self.length -= head;
        }
        let tail = self.length - length;
        if tail > 0 {
            // SAFETY: the tail is ours by the type's invariant, and the caller has nothing that
            // points into it.
            unsafe { sys::release(self.start + length, tail)? };
            self.length = length;
        }
        Ok(())
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.length as u64
    }

    /// Address behind its last byte.
    pub(crate) fn end(&self) -> usize {
        self.start + self.length
    }

    /// Makes one of two, of which the other starts where this ends.
    pub(crate) fn join(mut self, high: Self) -> Self {
        assert_eq!(self.end(), high.start, "the parts of a reservation lie side by side");
        self.length += high.length;
        // It is this one's now.
        std::mem::forget(high);
        self
    }

    /// Makes two of one: the first `size` bytes, and what is left. `None` if there are no more
    /// than those.
    pub(crate) fn split_off(&mut self, size: u64) -> Option<Self> {
        let (start, length) = self.place(0..size);
        if length == 0 || length == self.length {
            return None;
        }
        self.start += length;
        self.length -= length;
        Some(Self { start, length, kind: self.kind })
    }

    /// Gives back the first `size` bytes, not all; the rest starts behind them then.
    pub(crate) fn release_head(&mut self, size: u64) -> Result<(), CallFailure> {
        let (_, head) = self.place(0..size);
        assert!(head < self.length, "a reservation is not empty");
        self.trim(head, self.length - head)
    }

    /// Makes pages readable and writable.
    pub(crate) fn commit(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: `place` keeps within what is ours by the type's invariant.
        if length > 0 { unsafe { sys::commit(address, length) } } else { Ok(()) }
    }

    /// Makes pages inaccessible.
    pub(crate) fn protect(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::protect(address, length) } } else { Ok(()) }
    }

    /// Makes pages readable and executable, and not writable.
    pub(crate) fn make_executable(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::make_executable(address, length) } } else { Ok(()) }
    }

    /// Replaces pages by a copy-on-write map of `file`, from `offset` in it.
    pub(crate) fn map_private(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        if length == 0 {
            return Ok(());
        }
        // SAFETY: as in `commit`.
        unsafe { sys::map_private(address, length, self.kind, file, offset) }
    }

    /// Throws away what has been written to pages.
    pub(crate) fn discard(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::discard(address, length) } } else { Ok(()) }
    }

    /// Puts fresh, inaccessible pages in the place of used ones.
    pub(crate) fn replace(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::replace(address, length, self.kind) } } else { Ok(()) }
    }

    /// Replaces pages by `file`, from `offset` in it, for reading.
    pub(crate) fn map_view(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::map_view(address, length, file, offset) } } else { Ok(()) }
    }

    /// Replaces pages by `file`, from `offset` in it, for writing to it.
    pub(crate) fn map_window(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::map_window(address, length, file, offset) } } else { Ok(()) }
    }

    /// Writes to pages that are accessible, at a byte offset.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.length as u64), "a write within the pages");
        let place: *mut u8 = ptr::with_exposed_provenance_mut(self.start + offset as usize);
        // SAFETY: the range is ours by the type's invariant, and accessible, as the
        // caller says.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Keeps huge pages out of a range, if the kernel has any.
    pub(crate) fn refuse_huge_pages(&mut self, range: Range<u64>) -> Result<bool, CallFailure> {
        let (address, length) = self.place(range);
        // SAFETY: as in `commit`.
        if length > 0 { unsafe { sys::refuse_huge_pages(address, length) } } else { Ok(true) }
    }

    /// Address and length of a range of offsets.
    fn place(&self, range: Range<u64>) -> (usize, usize) {
        assert!(
            range.start <= range.end
                && range.end <= self.length as u64
                && range.start.is_multiple_of(PAGE_SIZE)
                && range.end.is_multiple_of(PAGE_SIZE),
            "{range:#x?} is no range of pages within {:#x} bytes",
            self.length
        );
        (self.start + range.start as usize, (range.end - range.start) as usize)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours by the type's invariant, and pointers
        // into it are not used after it is dropped, as its users are told.
        if unsafe { sys::release(self.start, self.length) }.is_err() {
            // Freeing the middle of one map makes two of it, so this can fail at
            // the limit of maps. The range stays ours until that has passed.
            orphans().push((self.start, self.length));
        } else {
            release_orphans();
        }
    }
}

/// Ranges that could not be given back yet.
static ORPHANS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

fn orphans() -> std::sync::MutexGuard<'static, Vec<(usize, usize)>> {
    ORPHANS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn release_orphans() {
    // SAFETY: a range in the list is owned by the list alone.
    orphans().retain(|&(start, length)| unsafe { sys::release(start, length) }.is_err());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::procmaps;

    const ALIGN: u64 = 2 << 20;

    #[test]
    fn a_reservation_is_aligned_and_inaccessible() {
        for _ in 0..4 {
            // A map of one page in between makes the kernel's next choice an
            // unaligned one.
            let _wedge = Reservation::new(PAGE_SIZE, PAGE_SIZE).unwrap();
            let reservation = Reservation::new(3 * ALIGN, ALIGN).unwrap();
            assert!(reservation.start.is_multiple_of(ALIGN as usize));
            let start = reservation.start as u64;
            let maps = procmaps::read().unwrap();
            let map = maps.iter().find(|map| map.range.contains(&start)).unwrap();
            assert!(map.range.end >= start + 3 * ALIGN);
            assert!(!map.read && !map.write && !map.execute);
        }
    }

    #[test]
    #[should_panic(expected = "no range of pages")]
    fn a_range_outside_is_refused() {
        let mut reservation = Reservation::new(ALIGN, ALIGN).unwrap();
        let _ = reservation.discard(0..ALIGN + PAGE_SIZE);
    }
}
