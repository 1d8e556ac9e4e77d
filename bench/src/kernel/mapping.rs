//! Memory at a place of its own.
//!
//! # Safety
//! A mapping owns its address space, nobody has a reference into it but by its methods, and any bytes are
//! right there. A touch of a part that is inaccessible ends the process.

#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;

use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;

/// What may be done with pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    None,
    Read,
    Write,
}

/// Private memory, without a page at first, that starts at a multiple of its length.
pub(crate) struct Mapping {
    start: *mut u8,
    length: usize,
    /// All that was reserved, to have that place in it.
    reserved: *mut u8,
    huge: bool,
    /// Of which it has copies of the pages that are written; without, pages of zeros.
    file: Option<OwnedFd>,
}

// SAFETY: what one thread may do with the address space, any may.
unsafe impl Send for Mapping {}
// SAFETY: methods that change anything borrow it for that.
unsafe impl Sync for Mapping {}

const FLAGS: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

impl Mapping {
    /// Maps so many bytes, a power of two. With `huge` the kernel may use huge pages.
    ///
    /// # Panics
    /// If the kernel refuses, as other methods do.
    pub(crate) fn new(length: usize, access: Access, huge: bool) -> Self {
        Self::of(length, access, huge, None)
    }

    /// The same, with the contents of a file in memory that nobody writes to any more.
    pub(crate) fn of_file(file: OwnedFd, length: usize) -> Self {
        Self::of(length, Access::Write, false, Some(file))
    }

    fn of(length: usize, access: Access, huge: bool, file: Option<OwnedFd>) -> Self {
        assert!(length.is_power_of_two() && length >= PAGE);
        // SAFETY: the kernel chooses a place.
        let reserved =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), 2 * length, ProtFlags::empty(), FLAGS) };
        let reserved: *mut u8 = reserved.expect("address space").cast();
        let start =
            reserved.wrapping_add(reserved.addr().next_multiple_of(length) - reserved.addr());
        let mut mapping = Self { start, length, reserved, huge, file };
        mapping.map_anew(access);
        mapping
    }

    /// Unmaps all of it, and maps it again, as programs do that keep nothing. Nothing else gets
    /// its place in between.
    pub(crate) fn map_anew(&mut self, access: Access) {
        let start = self.start.cast();
        // SAFETY: the range is the mapping's own.
        unsafe {
            let (protection, flags) = (protection(access), FLAGS | MapFlags::FIXED);
            let mapped = match &self.file {
                Some(file) => mm::mmap(start, self.length, protection, flags, file, 0),
                None => mm::mmap_anonymous(start, self.length, protection, flags),
            };
            mapped.expect("a mapping");
            let advice = if self.huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
            // Without huge pages in the kernel there is nothing to advise.
            let _ = mm::madvise(start, self.length, advice);
        }
    }

    pub(crate) fn protect(&mut self, range: Range<usize>, access: Access) {
        let flags = MprotectFlags::from_bits_retain(protection(access).bits());
        let (start, length) = self.part(range);
        // SAFETY: the range is the mapping's own.
        unsafe { mm::mprotect(start.cast(), length, flags) }.expect("access is changed");
    }

    /// Makes the page of an address of a mapping writable, for a handler of signals: async-signal-safe.
    pub(crate) fn lift(address: u64) {
        let start = address as usize & !(PAGE - 1);
        let start = ptr::with_exposed_provenance_mut(start);
        let flags = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range is a mapping's own.
        unsafe { mm::mprotect(start, PAGE, flags) }.expect("there is room for a map more");
    }

    /// Gives pages back: what is read there next is zeros.
    pub(crate) fn discard(&mut self, range: Range<usize>) {
        let (start, length) = self.part(range);
        // SAFETY: the range is the mapping's own.
        unsafe { mm::madvise(start.cast(), length, Advice::LinuxDontNeed) }.expect("pages go");
    }

    pub(crate) fn fill(&mut self, range: Range<usize>, byte: u8) {
        let (start, length) = self.part(range);
        // SAFETY: the range is the mapping's own.
        unsafe { start.write_bytes(byte, length) };
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let (start, length) = self.part(offset..offset + bytes.len());
        // SAFETY: the range is the mapping's own.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), length) };
    }

    /// The eight bytes at a multiple of eight.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        let (start, _) = self.part(offset..offset + 8);
        // SAFETY: the range is the mapping's own, and aligned. Volatile, because a handler may bring the page.
        unsafe { start.cast::<u64>().read_volatile() }
    }

    pub(crate) fn set_word(&mut self, offset: usize, word: u64) {
        let (start, _) = self.part(offset..offset + 8);
        // SAFETY: as in `word`.
        unsafe { start.cast::<u64>().write_volatile(word) };
    }

    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        let (start, length) = self.part(range);
        // SAFETY: the range is the mapping's own; bytes are written by methods that borrow it for writing.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Addresses of all of it.
    pub(crate) fn addresses(&self) -> Range<u64> {
        let start = self.start.addr() as u64;
        start..start + self.length as u64
    }

    #[inline]
    fn part(&self, range: Range<usize>) -> (*mut u8, usize) {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} of a mapping");
        (self.start.wrapping_add(range.start), range.end - range.start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's own, with what was reserved around it.
        let _ = unsafe { mm::munmap(self.reserved.cast(), 2 * self.length) };
    }
}

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::None => ProtFlags::empty(),
        Access::Read => ProtFlags::READ,
        Access::Write => ProtFlags::READ | ProtFlags::WRITE,
    }
}
