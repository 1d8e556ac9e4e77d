//! The PAGEMAP_SCAN request of `/proc/PID/pagemap`: the structures and numbers of the kernel's
//! `linux/fs.h`.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::os::error::Call;
use crate::os::sys::{CallFailure, attempt_or_pretend, last_error};

/// The page was written since it was last write-protected, or has never been. A page that is not
/// written though it has no contents was discarded while it was protected.
pub(crate) const WRITTEN: u64 = 1 << 1;
/// The page is the mapped file's own, not a private copy.
const OF_FILE: u64 = 1 << 2;
/// The page is in memory.
const PRESENT: u64 = 1 << 3;
/// The page is in swap space, or on its way from one place to another.
pub(crate) const SWAPPED: u64 = 1 << 4;
/// The page is the one page of zeros that all share.
const ZERO_PAGE: u64 = 1 << 5;

/// Addresses of pages with the same categories, which a scan found: the kernel's
/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PageRegion {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) categories: u64,
}

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    pages_max: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    reported: u64,
}

/// Write-protects the pages that are found, and fails where that is not watched asynchronously.
const PROTECT: u64 = 1 << 0 | 1 << 1;

/// What a scan looks for, and what it does to what it finds.
struct Query {
    flags: u64,
    /// Categories that a page must not have to match, of those in the next two fields.
    inverted: u64,
    all_of: u64,
    any_of: u64,
    reported: u64,
}

impl Query {
    fn arguments(&self, addresses: Range<u64>) -> ScanArguments {
        ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            flags: self.flags,
            start: addresses.start,
            end: addresses.end,
            walk_end: addresses.start,
            regions: 0,
            region_count: 0,
            pages_max: 0,
            inverted: self.inverted,
            all_of: self.all_of,
            any_of: self.any_of,
            reported: self.reported,
        }
    }
}

/// Write-protects again the pages of a range that were written since they were protected, of pages
/// that are [registered](super::write_watch::WriteWatch) and were all protected once. It says nothing of
/// them, so the kernel looks at nothing but their protection, which takes a thirtieth of
/// [`scan_private`]. Pages without contents would get a mark that looks like a page in swap space.
pub(crate) fn protect_written(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
) -> Result<(), CallFailure> {
    let query =
        Query { flags: PROTECT, inverted: 0, all_of: WRITTEN, any_of: 0, reported: WRITTEN };
    let mut arguments = query.arguments(addresses.clone());
    attempt_or_pretend(Call::Scan, 0, Some(()), || match run(pagemap, &mut arguments) {
        Ok(_) if arguments.walk_end == addresses.end => Ok(()),
        Ok(_) => Err(Errno::AGAIN),
        Err(errno) => Err(errno),
    })
}

const SCAN: Opcode = opcode::read_write::<ScanArguments>(b'f', 16);

// The number contains the size of the structure.
const _: () = assert!(SCAN == 0xc060_6610 && size_of::<PageRegion>() == 24);

/// Appends to `regions` the pages of a range that are private and have contents of
/// their own, in memory or in swap space; categories say [`SWAPPED`] and [`WRITTEN`]. With `zeros`
/// the shared page of zeros counts, too. With `watch` the pages count as unwritten from then on:
/// they are [registered](super::write_watch::WriteWatch). Returns the address where the kernel stopped: if there was no
/// room for more regions, the search continues there.
pub(crate) fn scan_private(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    zeros: bool,
    watch: bool,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    let neither = if zeros { OF_FILE } else { OF_FILE | ZERO_PAGE };
    let query = Query {
        flags: if watch { PROTECT } else { 0 },
        inverted: neither,
        all_of: neither,
        any_of: PRESENT | SWAPPED,
        reported: SWAPPED | WRITTEN,
    };
    scan(pagemap, addresses, &query, regions)
}

/// As [`scan_private`], appends the pages that have contents and are not write-protected, private or
/// not: those whose protection was lifted by a write, and those that never had any. The kernel looks
/// at nothing but entries of page tables, so it takes a fifteenth of [`scan_private`], which has to
/// look at what lies in each page.
pub(crate) fn scan_unprotected(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    let query = Query {
        flags: 0,
        inverted: 0,
        all_of: WRITTEN,
        any_of: PRESENT | SWAPPED,
        reported: SWAPPED | WRITTEN,
    };
    scan(pagemap, addresses, &query, regions)
}

/// Appends the pages that have contents, private or not; categories say [`WRITTEN`], of pages that are
/// [registered](super::write_watch::WriteWatch). The kernel looks at nothing but entries of page tables, as for
/// [`scan_unprotected`].
pub(crate) fn scan_present(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    let any_of = PRESENT | SWAPPED;
    let query = Query { flags: 0, inverted: 0, all_of: 0, any_of, reported: WRITTEN };
    scan(pagemap, addresses, &query, regions)
}

/// Write-protects the pages of a range that are the mapped file's own, and the shared page of zeros
/// unless that counts as private (`zeros`): the kernel looks and protects in one step, so that no page
/// that is private by then is protected. They are
/// [registered](super::write_watch::WriteWatch). Appends them, and returns where it stopped, as
/// [`scan_private`].
pub(crate) fn protect_shared(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    zeros: bool,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    let any_of = if zeros { OF_FILE } else { OF_FILE | ZERO_PAGE };
    let query = Query { flags: PROTECT, inverted: 0, all_of: WRITTEN, any_of, reported: WRITTEN };
    scan(pagemap, addresses, &query, regions)
}

fn scan(
    pagemap: BorrowedFd<'_>,
    addresses: Range<u64>,
    query: &Query,
    regions: &mut Vec<PageRegion>,
) -> Result<u64, CallFailure> {
    const ROOM_MIN: usize = 32;
    regions.reserve(ROOM_MIN);
    let room = regions.spare_capacity_mut();
    let mut arguments = ScanArguments {
        regions: room.as_mut_ptr().expose_provenance() as u64,
        region_count: room.len() as u64,
        ..query.arguments(addresses.clone())
    };
    attempt_or_pretend(Call::Scan, 0, Some(addresses.end), || {
        let count = run(pagemap, &mut arguments)?;
        // SAFETY: the kernel has written `count` regions, as it says.
        unsafe { regions.set_len(regions.len() + count) };
        Ok(arguments.walk_end)
    })
}

/// Asks the kernel, which says how many regions it has written where the arguments have room for them.
fn run(pagemap: BorrowedFd<'_>, arguments: &mut ScanArguments) -> Result<usize, Errno> {
    let (pagemap, request) = (pagemap.as_raw_fd(), SCAN as libc::Ioctl);
    // SAFETY: the request is of `ScanArguments`, changes the contents of no page, and writes to the
    // structure and at most `region_count` regions, for which there is room.
    let count = unsafe { libc::ioctl(pagemap, request, std::ptr::from_mut(arguments)) };
    usize::try_from(count).map_err(|_| last_error())
}
