//! The system calls, in page verbs: the one place that knows flags. Each call
//! is made at most once, except where a signal interrupts it, and reports its
//! failure as a [`CallFailure`].
//!
//! # Safety
//!
//! The functions that are unsafe here change what lies at an address. Their
//! common contract: `address` and `length` are multiples of the page size, the
//! range lies within address space that the caller has reserved and owns, and
//! no Rust reference points into it.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::os::error::Call;
use crate::os::pagemap_scan::{self, PageRegion};

/// A system call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallFailure {
    pub(crate) call: Call,
    pub(crate) errno: Errno,
    /// Bytes it asked for, where that means something.
    pub(crate) requested: u64,
}

/// Seals of an image: its bytes and its length are final, and so are the seals.
pub(crate) const IMAGE_SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Seals of a memfd that images share: as those of an image, but who has already
/// mapped it for writing goes on to have it so.
pub(crate) const ARENA_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK);

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

/// Reserves `length` bytes of address space: no access, no memory promised.
pub(crate) fn reserve(length: usize, kind: PageKind) -> Result<usize, CallFailure> {
    // NORESERVE goes on to hold when parts are made writable, so slots count
    // for what they touch and not for what they could touch.
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | kind.flags();
    let place = attempt_with(Call::Reserve, length as u64, None, || {
        // SAFETY: without an address wish the kernel picks unused space.
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), flags) }
    })?;
    Ok(place.addr())
}

/// Makes reserved pages readable and writable; those never touched are zero.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn commit(address: usize, length: usize) -> Result<(), CallFailure> {
    // SAFETY: the caller owns the range.
    unsafe {
        change_access(Call::Commit, address, length, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// Makes pages inaccessible; they keep their contents until [`discard`].
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn protect(address: usize, length: usize) -> Result<(), CallFailure> {
    // SAFETY: the caller owns the range.
    unsafe { change_access(Call::Protect, address, length, MprotectFlags::empty()) }
}

/// After an error it may be done for some of the pages.
///
/// # Safety
/// As the module says.
unsafe fn change_access(
    call: Call,
    address: usize,
    length: usize,
    access: MprotectFlags,
) -> Result<(), CallFailure> {
    // SAFETY: the caller owns the range, of which this is a part.
    let change = |length| unsafe { rustix::mm::mprotect(at(address), length, access) };
    #[cfg(debug_assertions)]
    if crate::os::inject::fails_half_way() {
        let _ = change(pagefork_layout::page::PAGE_SIZE as usize);
    }
    let requested = if call == Call::Commit { length as u64 } else { 0 };
    attempt(call, requested, (), || change(length))
}

/// Makes pages readable and executable, and not writable.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn make_executable(address: usize, length: usize) -> Result<(), CallFailure> {
    let access = MprotectFlags::READ | MprotectFlags::EXEC;
    attempt_with(Call::MakeExecutable, length as u64, None, || {
        // SAFETY: the caller owns the range.
        unsafe { rustix::mm::mprotect(at(address), length, access) }
    })
}

/// Maps `length` bytes of `file` copy-on-write over reserved pages.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn map_private(
    address: usize,
    length: usize,
    kind: PageKind,
    file: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), CallFailure> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE | kind.flags();
    let place = attempt(Call::MapPrivate, length as u64, at(address), || {
        // SAFETY: the caller owns the range that the map replaces.
        unsafe { rustix::mm::mmap(at(address), length, READ_WRITE, flags, file, offset) }
    })?;
    assert_eq!(place.addr(), address, "a fixed map lies where it was asked for");
    Ok(())
}

/// Throws page contents away: afterwards anonymous pages read as zero and pages
/// of an image as the image.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn discard(address: usize, length: usize) -> Result<(), CallFailure> {
    attempt(Call::Discard, 0, (), || {
        // SAFETY: the caller owns the range.
        unsafe { rustix::mm::madvise(at(address), length, Advice::LinuxDontNeed) }
    })
}

/// Puts fresh pages in the place of used ones: no access, no contents, no advice
/// and no file, as [`reserve`] made them.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn replace(
    address: usize,
    length: usize,
    kind: PageKind,
) -> Result<(), CallFailure> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED | kind.flags();
    let place = attempt(Call::Replace, length as u64, at(address), || {
        // SAFETY: the caller owns the range that the map replaces.
        unsafe { rustix::mm::mmap_anonymous(at(address), length, ProtFlags::empty(), flags) }
    })?;
    assert_eq!(place.addr(), address, "a fixed map lies where it was asked for");
    Ok(())
}

/// Maps `length` bytes of `file` over reserved pages, for reading.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn map_view(
    address: usize,
    length: usize,
    file: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), CallFailure> {
    // Private, because kernels before 6.7 refuse shared maps of sealed files.
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let place = attempt_with(Call::MapView, length as u64, None, || {
        // SAFETY: the caller owns the range that the map replaces.
        unsafe { rustix::mm::mmap(at(address), length, ProtFlags::READ, flags, file, offset) }
    })?;
    assert_eq!(place.addr(), address, "a fixed map lies where it was asked for");
    Ok(())
}

/// Maps `length` bytes of `file` over reserved pages, for writing to the file.
/// Processes that are forked do not get the map.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn map_window(
    address: usize,
    length: usize,
    file: BorrowedFd<'_>,
    offset: u64,
) -> Result<(), CallFailure> {
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    let place = attempt_with(Call::MapWindow, length as u64, None, || {
        // SAFETY: the caller owns the range that the map replaces.
        unsafe { rustix::mm::mmap(at(address), length, READ_WRITE, flags, file, offset) }
    })?;
    assert_eq!(place.addr(), address, "a fixed map lies where it was asked for");
    attempt(Call::KeepFromFork, 0, (), || {
        // SAFETY: the range is the map that was just made.
        unsafe { rustix::mm::madvise(at(address), length, Advice::LinuxDontFork) }
    })
}

/// Keeps huge pages out of a range, now and later. `false` from kernels that have no huge
/// pages: they do not know the advice.
///
/// # Safety
/// As the module says.
pub(crate) unsafe fn refuse_huge_pages(address: usize, length: usize) -> Result<bool, CallFailure> {
    attempt(Call::RefuseHugePages, 0, true, || {
        // SAFETY: the caller owns the range.
        match unsafe { rustix::mm::madvise(at(address), length, Advice::LinuxNoHugepage) } {
            Err(Errno::INVAL) => Ok(false),
            advised => advised.map(|()| true),
        }
    })
}

/// Gives address space back.
///
/// # Safety
/// As the module says; the caller owns the range no longer when this succeeds.
pub(crate) unsafe fn release(address: usize, length: usize) -> Result<(), CallFailure> {
    attempt(Call::Release, 0, (), || {
        // SAFETY: the caller owns the range.
        unsafe { rustix::mm::munmap(at(address), length) }
    })
}

/// Makes an empty memfd that can be sealed. `executable` leaves out the flag
/// that forbids running it, which kernels before 6.3 do not know.
pub(crate) fn create_image(name: &str, executable: bool) -> Result<OwnedFd, CallFailure> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if !executable {
        flags |= MemfdFlags::NOEXEC_SEAL;
    }
    attempt_with(Call::CreateImage, 0, None, || rustix::fs::memfd_create(name, flags))
}

/// Sets the length of a memfd; the bytes read as zero.
pub(crate) fn resize_image(file: BorrowedFd<'_>, length: u64) -> Result<(), CallFailure> {
    attempt(Call::ResizeImage, length, (), || rustix::fs::ftruncate(file, length))
}

/// Writes all of `bytes`.
pub(crate) fn write_image(
    file: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut offset: u64,
) -> Result<(), CallFailure> {
    while !bytes.is_empty() {
        let length = bytes.len();
        let written = attempt(Call::WriteImage, length as u64, length, || {
            rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, offset))
        })?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Reads until `into` is full or the file ends; returns the bytes read.
pub(crate) fn read_image(
    file: BorrowedFd<'_>,
    into: &mut [u8],
    offset: u64,
) -> Result<usize, CallFailure> {
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let count = attempt(Call::ReadImage, 0, 0, || {
            rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, offset + done as u64))
        })?;
        if count == 0 {
            break;
        }
        done += count;
    }
    Ok(done)
}

/// Takes the memory for a part of a memfd, which still reads as zero.
pub(crate) fn allocate_image(
    file: BorrowedFd<'_>,
    offset: u64,
    length: u64,
) -> Result<(), CallFailure> {
    attempt(Call::AllocateImage, length, (), || {
        let flags = FallocateFlags::empty();
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, length))
    })
}

/// Adds seals to a memfd and returns those that it then has.
pub(crate) fn seal_image(file: BorrowedFd<'_>, seals: SealFlags) -> Result<SealFlags, CallFailure> {
    attempt(Call::SealImage, 0, (), || rustix::fs::fcntl_add_seals(file, seals))?;
    attempt(Call::SealImage, 0, seals, || rustix::fs::fcntl_get_seals(file))
}

/// Attributes of a file.
pub(crate) fn stat_image(file: BorrowedFd<'_>) -> Result<Stat, CallFailure> {
    attempt_with(Call::StatImage, 0, None, || rustix::fs::fstat(file))
}

/// Opens the page map of this process.
pub(crate) fn open_pagemap() -> Result<OwnedFd, CallFailure> {
    attempt_with(Call::OpenPagemap, 0, None, || {
        rustix::fs::open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    })
}

/// Appends the private pages of a range of addresses to `regions`; returns where
/// the kernel stopped.
pub(crate) fn scan_private(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    zeros: bool,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    attempt(Call::Scan, 0, addresses.end, || {
        pagemap_scan::scan_private(pagemap, addresses, zeros, &mut *regions)
    })
}

/// Whether all memory of the process takes part in merging equal pages.
pub(crate) fn merges_pages() -> bool {
    const PR_GET_MEMORY_MERGE: libc::c_int = 68;
    const NONE: libc::c_ulong = 0;
    // SAFETY: the call only tells. Kernels that do not know it merge only what they are
    // asked to.
    unsafe { libc::prctl(PR_GET_MEMORY_MERGE, NONE, NONE, NONE, NONE) == 1 }
}

/// Reads entries of a page map from byte `offset` on; returns the bytes read.
pub(crate) fn read_pagemap(
    pagemap: BorrowedFd<'_>,
    into: &mut [u8],
    offset: u64,
) -> Result<usize, CallFailure> {
    attempt_with(Call::ReadPagemap, 0, None, || {
        rustix::io::retry_on_intr(|| rustix::io::pread(pagemap, &mut *into, offset))
    })
}

/// How many page faults the current thread has taken: without and with input.
pub(crate) fn count_faults() -> Result<(i64, i64), CallFailure> {
    attempt_with(Call::CountFaults, 0, None, || {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the call fills the structure, and says whether it did.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return Err(Errno::INVAL);
            }
            usage.assume_init()
        };
        Ok((usage.ru_minflt, usage.ru_majflt))
    })
}

fn at(address: usize) -> *mut core::ffi::c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Makes a call that can also be pretended (then it yields `pretended`).
fn attempt<R>(
    call: Call,
    requested: u64,
    pretended: R,
    make: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, CallFailure> {
    attempt_with(call, requested, Some(pretended), make)
}

/// Makes a call, unless a test has decided otherwise.
pub(crate) fn attempt_with<R>(
    call: Call,
    requested: u64,
    pretended: Option<R>,
    make: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, CallFailure> {
    #[cfg(debug_assertions)]
    let make = || match (crate::os::inject::verdict(call), pretended) {
        (crate::os::inject::Injection::Fail(code), _) => Err(Errno::from_raw_os_error(code)),
        (crate::os::inject::Injection::Pretend, Some(result)) => Ok(result),
        _ => make(),
    };
    #[cfg(not(debug_assertions))]
    let _ = pretended;
    make().map_err(|errno| CallFailure { call, errno, requested })
}
