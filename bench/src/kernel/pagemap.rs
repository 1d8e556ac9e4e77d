//! `/proc/self/pagemap`: what the kernel says of pages, entry by entry and by PAGEMAP_SCAN.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::PAGE;

/// Of the kernel's `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct Scan {
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

const SCAN: Opcode = opcode::read_write::<Scan>(b'f', 16);

/// The request, which returns how many regions were found.
struct ScanRequest<'a>(&'a mut Scan);

// SAFETY: the number is the one of the structure, which the kernel reads and writes.
unsafe impl Ioctl for ScanRequest<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(usize::try_from(output).unwrap_or(0))
    }
}

const WRITTEN: u64 = 1 << 1;
const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;

/// What is searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// Those that were written since they were protected last, where the kernel remembers that.
    Written,
    /// Copies of pages of a file.
    Private,
}

/// The page map of this process.
pub(crate) struct PageMap(File);

impl PageMap {
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// Calls `found` with addresses of such pages, in order.
    pub(crate) fn find(
        &self,
        addresses: Range<u64>,
        pages: Pages,
        mut found: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        let mut regions = [Region::default(); 256];
        let mut start = addresses.start;
        while start < addresses.end {
            let (count, walked) = self.scan(start..addresses.end, pages, 0, &mut regions)?;
            regions[..count].iter().for_each(|region| found(region.start..region.end));
            start = walked;
        }
        Ok(())
    }

    /// Protects all pages that are written: they are not until the next write.
    pub(crate) fn protect_written(&self, addresses: Range<u64>) -> io::Result<()> {
        const PROTECT: u64 = 1 << 0;
        const WHERE_WATCHED: u64 = 1 << 1;
        self.scan(addresses, Pages::Written, PROTECT | WHERE_WATCHED, &mut []).map(drop)
    }

    /// How many regions were found, and how far it went.
    fn scan(
        &self,
        addresses: Range<u64>,
        pages: Pages,
        flags: u64,
        regions: &mut [Region],
    ) -> io::Result<(usize, u64)> {
        let (inverted, all_of, any_of) = match pages {
            Pages::Written => (0, WRITTEN, 0),
            Pages::Private => (OF_FILE, OF_FILE, PRESENT | SWAPPED),
        };
        let list = if regions.is_empty() { 0 } else { regions.as_mut_ptr().expose_provenance() };
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags,
            start: addresses.start,
            end: addresses.end,
            walk_end: addresses.start,
            regions: list as u64,
            region_count: regions.len() as u64,
            pages_max: 0,
            inverted,
            all_of,
            any_of,
            reported: WRITTEN,
        };
        // SAFETY: the kernel writes no more regions than there are.
        let count = unsafe { ioctl(&self.0, ScanRequest(&mut scan)) }?;
        Ok((count, scan.walk_end))
    }

    /// Calls `found` with the address of each page whose entry has this bit.
    pub(crate) fn with_bit(
        &self,
        addresses: Range<u64>,
        bit: u32,
        mut found: impl FnMut(u64),
    ) -> io::Result<()> {
        let count = (addresses.end - addresses.start) as usize / PAGE;
        let mut entries = vec![0; count * 8];
        self.0.read_exact_at(&mut entries, addresses.start / PAGE as u64 * 8)?;
        let pages = (addresses.start..).step_by(PAGE);
        for (address, entry) in pages.zip(entries.chunks_exact(8)) {
            let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
            if entry >> bit & 1 != 0 {
                found(address);
            }
        }
        Ok(())
    }
}
