//! userfaultfd and the PAGEMAP_SCAN call of `/proc/PID/pagemap`: the structures
//! and numbers of the kernel's `linux/userfaultfd.h` and `linux/fs.h`, and as
//! much around them as trying them out needs.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::UserfaultfdFlags;

/// Faults of the kernel itself are not reported, so no privilege is needed.
const USER_MODE_ONLY: u32 = 1;

/// Pages that have nothing yet can be write-protected too.
pub(crate) const WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel lifts write protection itself, and remembers that it did.
pub(crate) const WP_ASYNC: u64 = 1 << 15;

/// Faults on pages that are write-protected.
pub(crate) const WRITE_PROTECT: u64 = 1 << 1;

/// The page was written since it was write-protected.
pub(crate) const WRITTEN: u64 = 1 << 1;
/// The page is the mapped file's own, not a private copy.
pub(crate) const OF_FILE: u64 = 1 << 2;
/// The page is in memory.
pub(crate) const PRESENT: u64 = 1 << 3;

const API_VERSION: u64 = 0xaa;
const GROUP: u8 = 0xaa;

#[repr(C)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeRequest {
    start: u64,
    length: u64,
}

#[repr(C)]
struct RegisterRequest {
    range: RangeRequest,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ProtectRequest {
    range: RangeRequest,
    mode: u64,
}

/// Pages of one kind that a scan found: their addresses.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FoundPages {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) categories: u64,
}

#[repr(C)]
struct ScanRequest {
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

/// Write-protects the pages that are found.
const SCAN_WRITE_PROTECT: u64 = 1 << 0;
/// Fails where write protection is not watched asynchronously.
const SCAN_CHECK_ASYNC: u64 = 1 << 1;

const API: Opcode = opcode::read_write::<ApiRequest>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<RegisterRequest>(GROUP, 0x00);
const PROTECT: Opcode = opcode::read_write::<ProtectRequest>(GROUP, 0x06);
const SCAN: Opcode = opcode::read_write::<ScanRequest>(b'f', 16);

// The numbers contain the sizes of the structures.
const _: () = assert!(API == 0xc018_aa3f);
const _: () = assert!(REGISTER == 0xc020_aa00);
const _: () = assert!(PROTECT == 0xc018_aa06);
const _: () = assert!(SCAN == 0xc060_6610);
const _: () = assert!(size_of::<FoundPages>() == 24);

/// Something that page faults of this process are reported to. Closing it wakes
/// waiting threads.
pub(crate) struct Userfault(OwnedFd);

impl Userfault {
    /// Opens one by the system call, and switches `features` on.
    pub(crate) fn by_call(features: u64) -> Result<Self, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: nothing happens to any page before one is registered.
        let file = unsafe { rustix::mm::userfaultfd(flags)? };
        Self::start(file, features)
    }

    fn start(file: OwnedFd, features: u64) -> Result<Self, Errno> {
        let mut api = ApiRequest { api: API_VERSION, features, ioctls: 0 };
        // SAFETY: the request is of this structure.
        unsafe { control(file.as_fd(), API, &mut api)? };
        match api.features & features == features {
            true => Ok(Self(file)),
            false => Err(Errno::INVAL),
        }
    }

    /// Reports faults of a kind in a range of pages.
    ///
    /// # Safety
    /// The caller owns the range, and answers its faults or lets no thread touch it.
    pub(crate) unsafe fn register(
        &self,
        address: usize,
        length: usize,
        mode: u64,
    ) -> Result<(), Errno> {
        let range = RangeRequest { start: address as u64, length: length as u64 };
        let mut register = RegisterRequest { range, mode, ioctls: 0 };
        // SAFETY: the request is of this structure; the caller owns the range.
        unsafe { control(self.0.as_fd(), REGISTER, &mut register) }
    }

    /// Write-protects pages.
    ///
    /// # Safety
    /// The range is the caller's.
    pub(crate) unsafe fn protect(&self, address: usize, length: usize) -> Result<(), Errno> {
        let range = RangeRequest { start: address as u64, length: length as u64 };
        let mut protect = ProtectRequest { range, mode: 1 };
        // SAFETY: the request is of this structure; the caller owns the range.
        unsafe { control(self.0.as_fd(), PROTECT, &mut protect) }
    }
}

/// Lists the pages of a range that are of all the categories `all_of`, where those
/// in `inverted` count as their opposites. With `protect`, the pages found are
/// write-protected again by the same call.
///
/// # Safety
/// With `protect`, the range is the caller's.
pub(crate) unsafe fn scan(
    pagemap: &File,
    addresses: std::ops::Range<u64>,
    all_of: u64,
    inverted: u64,
    protect: bool,
) -> Result<Vec<FoundPages>, Errno> {
    let mut regions = [FoundPages::default(); 16];
    let mut scan = ScanRequest {
        size: size_of::<ScanRequest>() as u64,
        flags: if protect { SCAN_WRITE_PROTECT | SCAN_CHECK_ASYNC } else { 0 },
        start: addresses.start,
        end: addresses.end,
        walk_end: 0,
        regions: regions.as_mut_ptr().expose_provenance() as u64,
        region_count: regions.len() as u64,
        pages_max: 0,
        inverted,
        all_of,
        any_of: 0,
        reported: all_of,
    };
    // SAFETY: the request is of this structure, and writes at most as many
    // regions as it says there are; the caller owns what is protected.
    let count = unsafe { control_counting(pagemap.as_fd(), SCAN, &mut scan)? };
    Ok(regions[..count].to_vec())
}

/// # Safety
/// The request reads and writes a `T`, and what it does is the caller's right.
unsafe fn control<T>(file: BorrowedFd<'_>, request: Opcode, value: &mut T) -> Result<(), Errno> {
    // SAFETY: by this function's contract, which is the same.
    unsafe { control_counting(file, request, value).map(drop) }
}

/// # Safety
/// As of [`control`].
unsafe fn control_counting<T>(
    file: BorrowedFd<'_>,
    request: Opcode,
    value: &mut T,
) -> Result<usize, Errno> {
    let value: *mut T = value;
    // SAFETY: by this function's contract the request is one of a `T`, which `value` is.
    let count =
        unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, value.cast::<c_void>()) };
    usize::try_from(count).map_err(|_| last_errno())
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
