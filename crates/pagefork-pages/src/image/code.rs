//! Machine code in memory, without a kernel map for each piece of it.
//!
//! ```text
//!  region   | code | code | code | free | code |            free              | 16 MiB
//!           |---- read, execute -| none |-r-x--|------------ none ------------|
//! ```
//!
//! A piece of code takes whole pages of a *region*. They are made writable, written,
//! and made executable: never both. The kernel makes one map of neighbours with the
//! same protection, so there are about as many maps as holes. Pages that were freed
//! are emptied and made inaccessible, until others take them.
//!
//! Code is put near this library's own, where there is room: a call from one to the other that goes beyond
//! 4 GiB takes longer, on processors that predict where it leads from some of the address.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::PagesError;
use crate::os::lock::lock;
use crate::os::reservation::Reservation;

/// At most this many pieces of code are mapped from files at the same time. Each is a kernel
/// map of its own.
pub const CODE_FILES_MAX: usize = 1024;

/// Bytes of a region; more for a piece of code that is larger.
const REGION_SIZE: usize = 16 << 20;

/// At most this many free ranges are kept inaccessible, each a kernel map or two. Further ones
/// hold zeros that could be executed.
const HOLES_MAX: usize = 1024;

/// A copy of machine code that can be executed. It never changes, and cannot be
/// written. Dropping it gives its pages back: nothing of it may run then.
///
/// # Examples
///
/// ```
/// // mov eax, 7; ret
/// let code = pagefork_pages::CodePages::new(&[0xb8, 7, 0, 0, 0, 0xc3])?;
/// assert_eq!(code.bytes().len(), 6);
/// // SAFETY: the code is a function of this type, and lives longer than the call takes.
/// let seven: extern "C" fn() -> i32 = unsafe { std::mem::transmute(code.start()) };
/// assert_eq!(seven(), 7);
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Debug)]
pub struct CodePages {
    /// Invariant: whole pages that are ours alone; readable and executable once
    /// [`Self::new`] has returned.
    range: Range<usize>,
    /// Bytes of code.
    size: usize,
}

impl CodePages {
    /// A copy of `code`; what follows it up to the next page is zero.
    ///
    /// # Errors
    /// The limit that was met; [`PagesError::System`] where nothing may be executed
    /// but files.
    ///
    /// # Examples
    ///
    /// See [`CodePages`].
    pub fn new(code: &[u8]) -> Result<Self, PagesError> {
        let (size, length) = (code.len(), code.len().next_multiple_of(PAGE_SIZE as usize));
        if size == 0 {
            let nowhere = PAGE_SIZE as usize;
            return Ok(Self { range: nowhere..nowhere, size });
        }
        // If a later step fails, the destructor gives the pages back.
        let own = Self { range: arena().take(length)?, size };
        let start: *mut u8 = ptr::with_exposed_provenance_mut(own.range.start);
        // SAFETY: the pages are writable and ours alone by the type's invariant.
        unsafe {
            start.copy_from_nonoverlapping(code.as_ptr(), size);
            start.wrapping_add(size).write_bytes(0, length - size);
        }
        arena().make_executable(&own.range)?;
        Ok(own)
    }

    /// Address of the first byte, at the start of a page.
    ///
    /// # Examples
    ///
    /// See [`CodePages`].
    pub fn start(&self) -> *const u8 {
        ptr::with_exposed_provenance(self.range.start)
    }

    /// The code.
    ///
    /// # Examples
    ///
    /// See [`CodePages`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are readable, and never written while `self` lives; of no
        // bytes any aligned address is right.
        unsafe { std::slice::from_raw_parts(self.start(), self.size) }
    }
}

impl Drop for CodePages {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            arena().give_back(self.range.clone());
        }
    }
}

/// Machine code that is mapped from a file, where it was written as it is. Dropping
/// it unmaps it: nothing of it may run then.
///
/// # Examples
///
/// ```
/// use std::os::fd::AsFd;
///
/// use pagefork_pages::CodeFile;
///
/// let file = std::fs::File::open("/proc/self/exe")?;
/// if CodeFile::has_room() {
///     // SAFETY: a program is larger, and is not written while it runs.
///     let mapped = unsafe { CodeFile::map(file.as_fd(), 0, 4096, 4096)? };
///     assert_eq!(mapped.bytes()[..4], *b"\x7fELF");
///     assert!(mapped.start().is_aligned());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CodeFile {
    pages: Reservation,
    size: usize,
}

static CODE_FILES: AtomicUsize = AtomicUsize::new(0);

impl CodeFile {
    /// Whether there are fewer than [`CODE_FILES_MAX`] of them; else code is to be
    /// copied, which costs no map.
    ///
    /// # Examples
    ///
    /// See [`CodeFile`].
    pub fn has_room() -> bool {
        CODE_FILES.load(Ordering::Relaxed) < CODE_FILES_MAX
    }

    /// Maps `size` bytes of a file, not none, from byte `offset` of it on, a multiple
    /// of the page size. The first `code` bytes become executable, all or whole pages.
    ///
    /// # Errors
    /// The limit that was met; [`PagesError::System`] if nothing of that file may be
    /// executed.
    ///
    /// # Safety
    /// The file has those bytes, and they never change while this lives.
    ///
    /// # Examples
    ///
    /// See [`CodeFile`].
    pub unsafe fn map(
        file: BorrowedFd<'_>,
        offset: u64,
        size: usize,
        code: usize,
    ) -> Result<Self, PagesError> {
        let whole_pages = |bytes: usize| bytes.next_multiple_of(PAGE_SIZE as usize) as u64;
        let length = whole_pages(size);
        let mut pages = reserve_near(length)?;
        pages.map_view(0..length, file, offset)?;
        pages.make_executable(0..whole_pages(code.min(size)))?;
        CODE_FILES.fetch_add(1, Ordering::Relaxed);
        Ok(Self { pages, size })
    }

    /// Address of the first byte, at the start of a page.
    ///
    /// # Examples
    ///
    /// See [`CodeFile`].
    pub fn start(&self) -> *const u8 {
        ptr::with_exposed_provenance(self.pages.start())
    }

    /// The code, and what lies behind it.
    ///
    /// # Examples
    ///
    /// See [`CodeFile`].
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are readable, and never change while `self` lives, as was
        // promised for the file.
        unsafe { std::slice::from_raw_parts(self.start(), self.size) }
    }
}

impl Drop for CodeFile {
    fn drop(&mut self) {
        CODE_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// So far below our own code are the first pages for that of guests: far enough for what belongs to the
/// program or library.
const DISTANCE_MIN: usize = 256 << 20;

/// Nor farther than this: then those places are looked at again that were taken first.
const DISTANCE_MAX: usize = 2 << 30;

/// Reserves pages for code near our own, if there is room, else anywhere. What they are near to lies higher:
/// behind a program is its heap, which grows.
fn reserve_near(size: u64) -> Result<Reservation, PagesError> {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    let length = size as usize;
    let taken = TAKEN.fetch_add(length, Ordering::Relaxed) % (DISTANCE_MAX - DISTANCE_MIN);
    let ours = (reserve_near as *const ()).addr() & !(REGION_SIZE - 1);
    // Without room below there is no wish.
    let wish = ours.saturating_sub(DISTANCE_MIN + taken + length);
    Reservation::wished(size, wish)
}

/// All regions of the process, and what of them is free. Addresses and sizes in
/// bytes, of whole pages.
struct CodeArena {
    /// By address.
    regions: BTreeMap<usize, CodeRegion>,
    /// Sizes of what is free, by address. Invariant: none crosses from one region to
    /// another or adjoins another in the same region.
    free: BTreeMap<usize, usize>,
    /// The same as (size, address).
    by_size: BTreeSet<(usize, usize)>,
}

struct CodeRegion {
    pages: Reservation,
    size: usize,
    used: usize,
}

fn arena() -> MutexGuard<'static, CodeArena> {
    static ARENA: Mutex<CodeArena> = Mutex::new(CodeArena::new());
    lock(&ARENA)
}

impl CodeArena {
    const fn new() -> Self {
        Self { regions: BTreeMap::new(), free: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// Pages that can be written and belong to the caller.
    fn take(&mut self, length: usize) -> Result<Range<usize>, PagesError> {
        let (size, start) = match self.by_size.range((length, 0)..).next() {
            Some(&fitting) => fitting,
            None => self.add_region(length)?,
        };
        let region = region_of(&mut self.regions, start);
        region.pages.commit(region.offsets(start..start + length))?;
        region.used += length;
        self.remove_free(start, size);
        if size > length {
            self.add_free(start + length, size - length);
        }
        Ok(start..start + length)
    }

    /// Adds a region in which `length` bytes are free.
    fn add_region(&mut self, length: usize) -> Result<(usize, usize), PagesError> {
        let size = length.max(REGION_SIZE);
        let pages = reserve_near(size as u64)?;
        let start = pages.start();
        self.regions.insert(start, CodeRegion { pages, size, used: 0 });
        self.add_free(start, size);
        Ok((size, start))
    }

    fn make_executable(&mut self, range: &Range<usize>) -> Result<(), PagesError> {
        let region = region_of(&mut self.regions, range.start);
        Ok(region.pages.make_executable(region.offsets(range.clone()))?)
    }

    fn give_back(&mut self, range: Range<usize>) {
        let region = region_of(&mut self.regions, range.start);
        region.used -= range.len();
        let (region_start, region_end) = (region.pages.start(), region.pages.start() + region.size);
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&low, &size)) = self.free.range(region_start..start).next_back()
            && low + size == start
        {
            start = low;
        }
        if end < region_end
            && let Some(&size) = self.free.get(&end)
        {
            end += size;
        }
        if start < range.start || end > range.end || self.free.len() < HOLES_MAX {
            // Its neighbours too: one of them may have been a hole too many. At the
            // limit of maps this fails, and then the pages are emptied at least.
            let _ = region.pages.protect(region.offsets(start..end));
        }
        // Who takes them next writes all of them.
        let _ = region.pages.discard(region.offsets(range.clone()));
        let is_empty = region.used == 0;

        if start < range.start {
            self.remove_free(start, range.start - start);
        }
        if end > range.end {
            self.remove_free(range.end, end - range.end);
        }
        // One stays, so that a lone module that comes and goes takes it again.
        if is_empty && self.regions.len() > 1 {
            self.regions.remove(&region_start);
        } else {
            self.add_free(start, end - start);
        }
    }

    fn add_free(&mut self, start: usize, size: usize) {
        self.free.insert(start, size);
        self.by_size.insert((size, start));
    }

    fn remove_free(&mut self, start: usize, size: usize) {
        self.free.remove(&start);
        self.by_size.remove(&(size, start));
    }
}

impl CodeRegion {
    fn offsets(&self, range: Range<usize>) -> Range<u64> {
        let start = self.pages.start();
        (range.start - start) as u64..(range.end - start) as u64
    }
}

fn region_of(regions: &mut BTreeMap<usize, CodeRegion>, address: usize) -> &mut CodeRegion {
    let below = regions.range_mut(..=address).next_back();
    below.expect("code lies in a region").1
}
