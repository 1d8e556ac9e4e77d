//! Address space that its value owns, in page verbs: the one place that knows the flags of
//! the system calls on memory.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Mutex;

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::os::error::{Call, PagesError};
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::sys::{CallFailure, attempt, attempt_or_pretend};

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The pages of a map: by default as large as the system thinks right.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PageKind {
    #[default]
    Any,
    /// None becomes huge, if the kernel takes maps for stacks for that: since Linux 6.7
    /// (commit c4608d1bf7c6), which spares a call of `madvise` for each map.
    Small,
}

impl PageKind {
    fn flags(self) -> MapFlags {
        match self {
            Self::Any => MapFlags::empty(),
            Self::Small => MapFlags::STACK,
        }
    }
}

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
        let first = Self::placed(kind, size, 0)?;
        if first.start.is_multiple_of(align as usize) {
            return Ok(first);
        }
        drop(first);
        let mut wide = Self::placed(kind, size + align - PAGE_SIZE, 0)?;
        let head = wide.start.next_multiple_of(align as usize) - wide.start;
        wide.trim(head, size as usize)?;
        Ok(wide)
    }

    /// Reserves `size` bytes at `wish`, if they are unused, else anywhere: no access, no memory.
    pub(crate) fn wished(size: u64, wish: usize) -> Result<Self, PagesError> {
        assert!(size > 0 && size.is_multiple_of(PAGE_SIZE), "a reservation is whole pages");
        release_orphans();
        Ok(Self::placed(PageKind::Any, size, wish)?)
    }

    /// At `wish` if that is unused, else, and without a wish, where the kernel likes.
    fn placed(kind: PageKind, size: u64, wish: usize) -> Result<Self, CallFailure> {
        let length = size as usize;
        // NORESERVE goes on to hold when parts are made writable, so slots count
        // for what they touch and not for what they could touch.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | kind.flags();
        let place = attempt(Call::Reserve, size, || {
            // SAFETY: the kernel picks unused space: it follows no wish for what is used.
            unsafe {
                mm::mmap_anonymous(
                    ptr::without_provenance_mut(wish),
                    length,
                    ProtFlags::empty(),
                    flags,
                )
            }
        })?;
        Ok(Self { start: place.addr(), length, kind })
    }

    /// Gives back the first `head` bytes, and what lies behind `length` more.
    fn trim(&mut self, head: usize, length: usize) -> Result<(), CallFailure> {
        if head > 0 {
            // SAFETY: the head is ours by the type's invariant, and the caller has
            // nothing that points into it.
            unsafe { release(self.start, head)? };
            self.start += head;
            self.length -= head;
        }
        let tail = self.length - length;
        if tail > 0 {
            // SAFETY: the tail is ours by the type's invariant, and the caller has nothing that
            // points into it.
            unsafe { release(self.start + length, tail)? };
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
        let (_, length) = self.place(0..size);
        if length == 0 || length == self.length {
            return None;
        }
        let head = Self { start: self.start, length, kind: self.kind };
        self.start += length;
        self.length -= length;
        Some(head)
    }

    /// Gives back the first `size` bytes, not all; the rest starts behind them then.
    pub(crate) fn release_head(&mut self, size: u64) -> Result<(), CallFailure> {
        let (_, head) = self.place(0..size);
        assert!(head < self.length, "a reservation is not empty");
        self.trim(head, self.length - head)
    }

    /// Makes pages readable and writable; those never touched are zero.
    pub(crate) fn commit(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        self.change_access(Call::Commit, range, MprotectFlags::READ | MprotectFlags::WRITE)
    }

    /// Makes pages inaccessible; they keep their contents until [`Self::discard`].
    pub(crate) fn protect(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        self.change_access(Call::Protect, range, MprotectFlags::empty())
    }

    /// Makes pages readable and executable, and not writable.
    pub(crate) fn make_executable(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        self.change_access(Call::MakeExecutable, range, MprotectFlags::READ | MprotectFlags::EXEC)
    }

    /// After an error it may be done for some of the pages.
    fn change_access(
        &mut self,
        call: Call,
        range: Range<u64>,
        access: MprotectFlags,
    ) -> Result<(), CallFailure> {
        let (start, length) = self.place(range);
        if length == 0 {
            return Ok(());
        }
        // SAFETY: `place` keeps within what is ours by the type's invariant.
        let change = |length| unsafe { mm::mprotect(start, length, access) };
        #[cfg(debug_assertions)]
        if crate::os::inject::fails_half_way() {
            let _ = change(PAGE_SIZE as usize);
        }
        let requested = if call == Call::Protect { 0 } else { length as u64 };
        attempt(call, requested, || change(length))
    }

    /// Replaces pages by a copy-on-write map of `file`, from `offset` in it.
    pub(crate) fn map_private(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let flags = MapFlags::PRIVATE | self.kind.flags();
        self.map(Call::MapPrivate, range, READ_WRITE, flags, Some((file, offset)))
    }

    /// Replaces pages by `file`, from `offset` in it, for reading.
    pub(crate) fn map_view(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        // Private, because kernels before 6.7 refuse shared maps of sealed files.
        let flags = MapFlags::PRIVATE;
        self.map(Call::MapView, range, ProtFlags::READ, flags, Some((file, offset)))
    }

    /// Replaces pages by `file`, from `offset` in it, for writing to it. Processes that are
    /// forked do not get the map.
    pub(crate) fn map_window(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let file = Some((file, offset));
        self.map(Call::MapWindow, range.clone(), READ_WRITE, MapFlags::SHARED, file)?;
        self.advise(Call::KeepFromFork, range, Advice::LinuxDontFork)
    }

    /// Replaces pages by `file`, from its start, for reading and writing. What lies beyond the end
    /// of the file cannot be accessed: a touch is a SIGBUS. Processes that are forked share it.
    pub(crate) fn map_shared(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
    ) -> Result<(), CallFailure> {
        let flags = MapFlags::SHARED | self.kind.flags();
        self.map(Call::MapGrowth, range, READ_WRITE, flags, Some((file, 0)))
    }

    /// Takes pages out of the file that they are mapped from, for which they read as zero then.
    pub(crate) fn punch(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        self.advise(Call::Punch, range, Advice::LinuxRemove)
    }

    /// As [`Self::map_private`], but that the pages are inaccessible until [`Self::commit`], and that
    /// processes which are forked do not get the map.
    pub(crate) fn map_inaccessible(
        &mut self,
        range: Range<u64>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), CallFailure> {
        let flags = MapFlags::PRIVATE | self.kind.flags();
        let (access, of_file) = (ProtFlags::empty(), Some((file, offset)));
        self.map(Call::MapPrivate, range.clone(), access, flags, of_file)?;
        self.advise(Call::KeepFromFork, range, Advice::LinuxDontFork)
    }

    /// Puts fresh pages in the place of used ones: no access, no contents, no advice and no
    /// file, as [`Self::new`] made them.
    pub(crate) fn replace(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        let flags = MapFlags::PRIVATE | self.kind.flags();
        self.map(Call::Replace, range, ProtFlags::empty(), flags, None)
    }

    /// Puts a map of a file from an offset on, or of fresh pages, in the place of pages.
    fn map(
        &mut self,
        call: Call,
        range: Range<u64>,
        access: ProtFlags,
        flags: MapFlags,
        file: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<(), CallFailure> {
        let (start, length) = self.place(range);
        if length == 0 {
            return Ok(());
        }
        let flags = flags | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `place` keeps within what is ours by the type's invariant.
        let made = attempt(call, length as u64, || unsafe {
            match file {
                Some((file, offset)) => mm::mmap(start, length, access, flags, file, offset),
                None => mm::mmap_anonymous(start, length, access, flags),
            }
        })?;
        assert_eq!(made, start, "a fixed map lies where it was asked for");
        Ok(())
    }

    /// Throws away what has been written to pages: afterwards anonymous pages read as zero
    /// and pages of an image as the image.
    pub(crate) fn discard(&mut self, range: Range<u64>) -> Result<(), CallFailure> {
        self.advise(Call::Discard, range, Advice::LinuxDontNeed)
    }

    /// Keeps huge pages out of a range, now and later. `false` from kernels that have no huge
    /// pages: they do not know the advice.
    pub(crate) fn refuse_huge_pages(&mut self, range: Range<u64>) -> Result<bool, CallFailure> {
        match self.advise(Call::RefuseHugePages, range, Advice::LinuxNoHugepage) {
            Err(failure) if failure.errno == Errno::INVAL => Ok(false),
            advised => advised.map(|()| true),
        }
    }

    /// Maps pages of files that are not there yet, and reads them from where the files lie. `false`
    /// from kernels before 5.14, which do not know the advice.
    pub(crate) fn prefetch(&mut self, range: Range<u64>) -> Result<bool, CallFailure> {
        match self.advise(Call::Prefetch, range, Advice::LinuxPopulateRead) {
            Err(failure) if failure.errno == Errno::INVAL => Ok(false),
            advised => advised.map(|()| true),
        }
    }

    fn advise(&mut self, call: Call, range: Range<u64>, advice: Advice) -> Result<(), CallFailure> {
        let (start, length) = self.place(range);
        if length == 0 {
            return Ok(());
        }
        attempt_or_pretend(call, 0, Some(()), || {
            // SAFETY: `place` keeps within what is ours by the type's invariant.
            unsafe { mm::madvise(start, length, advice) }
        })
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

    /// As [`Self::write`], by one of several threads that share the pages.
    ///
    /// # Panics
    /// As [`Self::write`].
    ///
    /// # Safety
    /// The pages are accessible, and no other thread reads or writes these bytes meanwhile.
    pub(crate) unsafe fn write_shared(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.length as u64), "a write within the pages");
        let place: *mut u8 = ptr::with_exposed_provenance_mut(self.start + offset as usize);
        // SAFETY: the range is ours by the type's invariant; by this function's contract it is
        // accessible, and nothing else uses it meanwhile.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Address and length of a range of offsets.
    fn place(&self, range: Range<u64>) -> (*mut c_void, usize) {
        assert!(
            range.start <= range.end
                && range.end <= self.length as u64
                && range.start.is_multiple_of(PAGE_SIZE)
                && range.end.is_multiple_of(PAGE_SIZE),
            "{range:#x?} is no range of pages within {:#x} bytes",
            self.length
        );
        (at(self.start + range.start as usize), (range.end - range.start) as usize)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours by the type's invariant, and pointers
        // into it are not used after it is dropped, as its users are told.
        if unsafe { release(self.start, self.length) }.is_err() {
            // Freeing the middle of one map makes two of it, so this can fail at
            // the limit of maps. The range stays ours until that has passed.
            lock(&ORPHANS).push((self.start, self.length, this_process()));
        } else {
            release_orphans();
        }
    }
}

/// Has processes that are forked get the maps at addresses again.
pub(crate) fn give_to_forks(addresses: Range<u64>) -> Result<(), CallFailure> {
    let length = (addresses.end - addresses.start) as usize;
    attempt(Call::KeepFromFork, 0, || {
        // SAFETY: no contents and no access of this process change.
        unsafe { mm::madvise(at(addresses.start as usize), length, Advice::LinuxDoFork) }
    })
}

/// Address, size and process of ranges that could not be given back yet.
static ORPHANS: Mutex<Vec<(usize, usize, u64)>> = Mutex::new(Vec::new());

fn release_orphans() {
    lock(&ORPHANS).retain(|&(start, length, process)| {
        // A forked process may not have had the map, and something else there.
        // SAFETY: a range in the list is owned by the list alone.
        process != this_process() || unsafe { release(start, length) }.is_err()
    });
}

fn at(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Gives address space back.
///
/// # Safety
/// The range is whole pages that the caller owns, and does not any more when this succeeds. No
/// Rust reference points into it.
unsafe fn release(address: usize, length: usize) -> Result<(), CallFailure> {
    // SAFETY: by this function's contract.
    attempt(Call::Release, 0, || unsafe { mm::munmap(at(address), length) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::procmaps;

    const ALIGN: u64 = 2 << 20;

    /// A wish is no order: what is there stays.
    #[test]
    fn a_wish_for_used_pages_is_not_followed() {
        let mut used = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        used.commit(0..2 * PAGE_SIZE).unwrap();
        let word = ptr::with_exposed_provenance_mut::<u64>(used.start() + PAGE_SIZE as usize);
        // SAFETY: the pages are ours, and were made writable.
        unsafe { word.write(7) };
        for offset in [0, PAGE_SIZE as usize] {
            let wished = Reservation::wished(2 * PAGE_SIZE, used.start() + offset).unwrap();
            assert!(wished.start().abs_diff(used.start()) >= 2 * PAGE_SIZE as usize);
            drop(wished);
            // SAFETY: the page is still ours, which is what this test is about.
            assert_eq!(unsafe { word.read() }, 7);
        }
    }

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
