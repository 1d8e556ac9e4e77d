//! Which pages of a range are private to this process and have contents of their
//! own, by `/proc/self/pagemap`.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use pagefork_layout::page::PAGE_SIZE;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::os::error::{Call, PagesError};
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::pagemap_scan::{
    PageRegion, SWAPPED, WRITTEN, protect_shared, protect_written, scan_present, scan_private,
    scan_unprotected,
};
use crate::os::sys::{CallFailure, attempt};

/// How private pages are found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Method {
    /// PAGEMAP_SCAN, which reports ranges.
    Scan {
        /// Whether the shared page of zeros counts as private. It must where a private
        /// page of zeros can become that by itself, and an image has something else there.
        zeros: bool,
    },
    /// Reading an entry a page. It cannot tell the shared page of zeros from a
    /// private page of zeros.
    Read,
}

/// Finds private pages. Processes forked from this one get a page map of their
/// own when they first look.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    method: Method,
    pagemap: Arc<Pagemap>,
}

#[derive(Debug)]
struct Pagemap {
    file: OwnedFd,
    /// The process that it shows.
    process: u64,
}

impl Finder {
    /// Opens the page map, one a process for all.
    pub(crate) fn new(method: Method) -> Result<Self, PagesError> {
        Ok(Self { method, pagemap: Pagemap::of_this_process()? })
    }

    pub(crate) fn method(&self) -> Method {
        self.method
    }

    /// Appends the private pages of `addresses` to `regions`, ascending, where
    /// categories say [`SWAPPED`] and [`WRITTEN`]. It is complete, or an error.
    pub(crate) fn find(
        &mut self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        let found = match self.method {
            Method::Scan { zeros } => self.scan(addresses, regions, |pagemap, part, regions| {
                scan_private(pagemap, part, zeros, false, regions)
            }),
            Method::Read => self.read(addresses, regions),
        };
        Ok(found?)
    }

    /// As [`Self::find`], by PAGEMAP_SCAN, of pages that are registered with a
    /// [`WriteWatch`](super::write_watch::WriteWatch): they count as unwritten from then on. After
    /// an error it is lost which of them were written.
    pub(crate) fn find_and_watch(
        &mut self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        let zeros = self.takes_zeros();
        Ok(self.scan(addresses, regions, |pagemap, part, regions| {
            scan_private(pagemap, part, zeros, true, regions)
        })?)
    }

    /// Appends the pages of `addresses` that have contents and are not write-protected, private or
    /// not, as [`Self::find`] does, by PAGEMAP_SCAN: see [`scan_unprotected`].
    pub(crate) fn find_unprotected(
        &mut self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        Ok(self.scan(addresses, regions, scan_unprotected)?)
    }

    /// Appends the pages of `addresses` that have contents, private or not, by PAGEMAP_SCAN: see [`scan_present`].
    pub(crate) fn find_present(
        &mut self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        Ok(self.scan(addresses, regions, scan_present)?)
    }

    /// Write-protects pages that are registered with a [`WriteWatch`](super::write_watch::WriteWatch),
    /// have contents and are not private, and appends them: see [`protect_shared`].
    pub(crate) fn protect_shared(
        &mut self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        let zeros = self.takes_zeros();
        Ok(self.scan(addresses, regions, |pagemap, part, regions| {
            protect_shared(pagemap, part, zeros, regions)
        })?)
    }

    /// Whether the shared page of zeros counts as private.
    fn takes_zeros(&self) -> bool {
        matches!(self.method, Method::Scan { zeros: true })
    }

    /// Protects again what was written of pages that were all protected: see [`protect_written`].
    pub(crate) fn watch_again(&mut self, addresses: Range<u64>) -> Result<(), PagesError> {
        self.reopen_if_forked()?;
        Ok(protect_written(self.pagemap.file.as_fd(), addresses)?)
    }

    fn reopen_if_forked(&mut self) -> Result<(), PagesError> {
        if self.pagemap.process != this_process() {
            self.pagemap = Pagemap::of_this_process()?;
        }
        Ok(())
    }

    /// Has `part` scan all of `addresses`, as far as it gets each time.
    fn scan(
        &self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
        part: impl Fn(BorrowedFd<'_>, Range<u64>, &mut Vec<PageRegion>) -> Result<u64, CallFailure>,
    ) -> Result<(), CallFailure> {
        let pagemap = self.pagemap.file.as_fd();
        let mut at = addresses.start;
        while at < addresses.end {
            let before = regions.len();
            let stopped = part(pagemap, at..addresses.end, regions)?;
            // Where a call filled the kernel's own buffer of 512 regions and then went
            // on to the end, Linux 6.18 says that it stopped at the former.
            let seen = regions.last().map_or(stopped, |region| stopped.max(region.end));
            let stopped = if regions.len() > before { seen } else { stopped };
            if stopped <= at {
                // A kernel that does not get on would keep us here for ever.
                return Err(CallFailure { call: Call::Scan, errno: Errno::PROTO, requested: 0 });
            }
            at = stopped;
        }
        Ok(())
    }

    fn read(
        &self,
        addresses: Range<u64>,
        regions: &mut Vec<PageRegion>,
    ) -> Result<(), CallFailure> {
        const ENTRIES: usize = 512;
        const ENTRY: u64 = size_of::<u64>() as u64;
        let mut buffer = [0u8; ENTRIES * ENTRY as usize];
        let mut at = addresses.start;
        while at < addresses.end {
            let count = ((addresses.end - at) / PAGE_SIZE).min(ENTRIES as u64) * ENTRY;
            let into = &mut buffer[..count as usize];
            let (file, offset) = (&self.pagemap.file, at / PAGE_SIZE * ENTRY);
            let length = attempt(Call::ReadPagemap, 0, || {
                retry_on_intr(|| rustix::io::pread(file, &mut *into, offset))
            })?;
            let (entries, _) = buffer[..length].as_chunks();
            if entries.is_empty() {
                let (call, errno) = (Call::ReadPagemap, Errno::PROTO);
                return Err(CallFailure { call, errno, requested: 0 });
            }
            for &entry in entries {
                if let Some(categories) = categories(u64::from_le_bytes(entry)) {
                    push(regions, at, categories);
                }
                at += PAGE_SIZE;
            }
        }
        Ok(())
    }
}

/// What a scan would report of a page with this entry, if it is private.
fn categories(entry: u64) -> Option<u64> {
    const ENTRY_PRESENT: u64 = 1 << 63;
    const ENTRY_SWAPPED: u64 = 1 << 62;
    const ENTRY_OF_FILE: u64 = 1 << 61;
    const ENTRY_PROTECTED: u64 = 1 << 57;
    if entry & ENTRY_OF_FILE != 0 || entry & (ENTRY_PRESENT | ENTRY_SWAPPED) == 0 {
        return None;
    }
    let swapped = if entry & ENTRY_SWAPPED != 0 { SWAPPED } else { 0 };
    Some(swapped | if entry & ENTRY_PROTECTED == 0 { WRITTEN } else { 0 })
}

fn push(regions: &mut Vec<PageRegion>, page: u64, categories: u64) {
    match regions.last_mut() {
        Some(last) if last.end == page && last.categories == categories => last.end += PAGE_SIZE,
        _ => regions.push(PageRegion { start: page, end: page + PAGE_SIZE, categories }),
    }
}

impl Pagemap {
    /// The page map that all slots of this process share; it stays open.
    fn of_this_process() -> Result<Arc<Self>, PagesError> {
        static OPEN: Mutex<Option<Arc<Pagemap>>> = Mutex::new(None);
        let process = this_process();
        let mut open = lock(&OPEN);
        if let Some(pagemap) = &*open
            && pagemap.process == process
        {
            return Ok(Arc::clone(pagemap));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = attempt(Call::OpenPagemap, 0, || {
            rustix::fs::open("/proc/self/pagemap", flags, Mode::empty())
        })?;
        let pagemap = Arc::new(Self { file, process });
        *open = Some(Arc::clone(&pagemap));
        Ok(pagemap)
    }
}
