//! Which pages were written: userfaultfd, whose write protection the kernel lifts itself and
//! remembers that it did (WP_ASYNC).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use pagefork_layout::page::PAGE_SIZE;

use crate::os::error::{Call, PagesError};
use crate::os::fault_ring::thread_time;
use crate::os::features::Tried;
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::pagemap::{Finder, Method};
use crate::os::pagemap_scan::{PageRegion, WRITTEN};
use crate::os::reservation::Reservation;
use crate::os::sys::CallFailure;
use crate::os::userfaultfd::{RegisterMode, Userfaultfd, feature};
use crate::os::{memfd, sys, times};

/// What the kernel must be able to do: protect pages that have nothing yet, and lift the
/// protection by itself.
const FEATURES: u64 = feature::PROTECT_UNPOPULATED | feature::PROTECT_ASYNC;

/// What ranges of pages are registered with whose writes the kernel remembers. A process has one
/// for all slots. It stays open: where it is closed while pages are registered, kernels before 6.9 leave
/// marks in page tables, and nobody notes writes to those pages.
#[derive(Debug)]
pub(crate) struct WriteWatch {
    file: Userfaultfd,
    /// The process whose pages it knows.
    process: u64,
}

impl WriteWatch {
    /// The one of this process, which stays open.
    pub(crate) fn of_this_process() -> Result<Arc<Self>, CallFailure> {
        static OPEN: Mutex<Option<Arc<WriteWatch>>> = Mutex::new(None);
        let process = this_process();
        let mut open = lock(&OPEN);
        if let Some(watch) = &*open
            && watch.process == process
        {
            return Ok(Arc::clone(watch));
        }
        let file = Userfaultfd::open(FEATURES, [Call::WatchWrites, Call::UnwatchWrites])?;
        let watch = Arc::new(Self { file, process });
        *open = Some(Arc::clone(&watch));
        Ok(watch)
    }

    /// Whether it is of this process, and not of one that this was forked from. Pages of a forked
    /// process are registered nowhere.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == this_process()
    }

    /// Registers the pages at addresses, some of which may be registered already. Pages that were
    /// not count as written until they are [looked at](Finder::find_and_watch).
    pub(crate) fn register(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        self.file.register(addresses, RegisterMode::Protected)
    }

    /// Write-protects the pages at addresses that are registered, which have contents. The first
    /// write to each is a page fault of the thread that writes, and then the kernel lifts the
    /// protection of the page by itself.
    pub(crate) fn protect(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        self.file.write_protect(addresses)
    }

    /// Undoes [`Self::register`], and lifts the write protection.
    pub(crate) fn unregister(&self, addresses: Range<u64>) -> Result<(), CallFailure> {
        self.file.unregister(addresses)
    }
}

/// Whether the kernel notes which pages are written, so that
/// [`DeltaTracker::Writes`](crate::DeltaTracker::Writes) works in full. It is tried once a process.
///
/// # Examples
///
/// ```
/// println!("writes are noted by the kernel: {}", pagefork_pages::notes_writes());
/// ```
pub fn notes_writes() -> bool {
    notes().is_some()
}

/// Whether a search that asks for nothing but lifted protection finds all that was written, so that
/// protected pages pay where page faults are not counted in memory. It is tried once a process.
pub(crate) fn finds_lifted() -> bool {
    notes().is_some_and(|notes| notes.finds_lifted)
}

/// What the kernel notes of writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WriteNotes {
    /// Whether [`Finder::find_unprotected`] finds them among pages that are only read.
    finds_lifted: bool,
}

/// What it notes; `None`: nothing.
fn notes() -> Option<WriteNotes> {
    static NOTES: Tried<WriteNotes> = Tried::new();
    // What a limit was in the way of can work later.
    NOTES.get(|| probe().ok().flatten().ok_or(())).ok()
}

/// The least that protecting a page and the fault at its next write have taken, in nanoseconds; 0:
/// not measured.
static PROTECTED_FAULT: AtomicU32 = AtomicU32::new(0);

/// What [`protected_fault_ns`] says where it was not measured, and the bounds within which a
/// measurement is believed: another program may have had the processor.
const FAULT: u32 = 1400;
const FAULT_MIN: u32 = 400;
const FAULT_MAX: u32 = 4000;

/// What it costs to write-protect a page and to write to it again, in nanoseconds: twice what it
/// takes in a row of pages, since most are protected by calls of their own.
pub(crate) fn protected_fault_ns() -> u32 {
    if let Some(times) = times::fixed() {
        return times.protected_fault;
    }
    match PROTECTED_FAULT.load(Relaxed) {
        0 => FAULT,
        each => each.saturating_mul(2).clamp(FAULT_MIN, FAULT_MAX),
    }
}

/// Measures it.
fn time_protected_faults(watch: &WriteWatch) -> Result<(), PagesError> {
    const PAGES: u64 = 64;
    const ROUNDS: usize = 4;
    let mut pages = Reservation::new(PAGES * PAGE_SIZE, PAGE_SIZE)?;
    pages.commit(0..PAGES * PAGE_SIZE)?;
    let addresses = pages.start() as u64..pages.end() as u64;
    watch.register(addresses.clone())?;
    for round in 0..=ROUNDS {
        let begun = thread_time();
        if round > 0 {
            watch.protect(addresses.clone())?;
        }
        for address in addresses.clone().step_by(PAGE_SIZE as usize) {
            let place = ptr::with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: `pages` owns the page, which `commit` made accessible.
            unsafe { place.write_volatile(1) };
        }
        // The first round makes the pages.
        if round > 0 {
            let each = (thread_time() - begun).as_nanos() as u64 / PAGES;
            let each = u32::try_from(each).unwrap_or(u32::MAX).max(1);
            let less = |least| (least == 0 || each < least).then_some(each);
            let _ = PROTECTED_FAULT.fetch_update(Relaxed, Relaxed, less);
        }
    }
    Ok(watch.unregister(addresses)?)
}

/// Tries it on pages of a file and others: nothing but what was written is found, each time, and
/// pages keep what was written.
fn probe() -> Result<Option<WriteNotes>, PagesError> {
    const COUNT: usize = 6;
    // Where a filter forbids it that is all.
    let watch = WriteWatch::of_this_process()?;
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), 3 * PAGE_SIZE)?;
    sys::write_image(file.as_fd(), &[1; 3 * PAGE_SIZE as usize], 0)?;
    let mut pages = Reservation::new(COUNT as u64 * PAGE_SIZE, PAGE_SIZE)?;
    pages.commit(0..COUNT as u64 * PAGE_SIZE)?;
    pages.map_private(0..3 * PAGE_SIZE, file.as_fd(), 0)?;
    let place = |page: usize| {
        ptr::with_exposed_provenance_mut::<u8>(pages.start() + page * PAGE_SIZE as usize)
    };
    let addresses = pages.start() as u64..pages.end() as u64;
    watch.register(addresses.clone())?;
    let mut finder = Finder::new(Method::Scan { zeros: false })?;
    let written = |finder: &mut Finder| {
        let (mut present, mut regions) = (Vec::new(), Vec::new());
        finder.find_present(addresses.clone(), &mut present)?;
        finder.find_and_watch(addresses.clone(), &mut regions)?;
        let written = |regions: &[PageRegion]| {
            let written = regions.iter().filter(|region| region.categories & WRITTEN != 0);
            page_numbers(written, addresses.start)
        };
        let (asked_first, mut written) = (written(&present), written(&regions));
        // What is written is among what a look at page tables alone finds so; else nothing below is as it should be.
        if !written.iter().all(|page| asked_first.contains(page)) {
            written.push(u64::MAX);
        }
        Ok::<_, PagesError>(written)
    };
    // Of both kinds the first page is read, the second written, the third not touched at first.
    for page in [0, 3] {
        // SAFETY: `pages` owns the pages, which `commit` made accessible.
        unsafe {
            place(page).read_volatile();
            place(page + 1).write_volatile(2);
        }
    }
    let first = written(&mut finder)?;
    let none = written(&mut finder)?;
    time_protected_faults(&watch)?;
    for page in [1, 2, 5] {
        // SAFETY: `pages` owns the page, which `commit` made accessible.
        unsafe { place(page).write_volatile(3) };
    }
    let later = written(&mut finder)?;
    // SAFETY: `pages` owns the pages, which `commit` made accessible.
    let bytes = [0, 1, 2, 3, 4, 5].map(|page| unsafe { place(page).read_volatile() });
    // Protected alone, too.
    let page =
        |page: u64| addresses.start + page * PAGE_SIZE..addresses.start + (page + 1) * PAGE_SIZE;
    watch.protect(page(1))?;
    watch.protect(page(4))?;
    // SAFETY: `pages` owns the page, which `commit` made accessible.
    unsafe { place(4).write_volatile(bytes[4]) };
    let alone = written(&mut finder)?;
    // And after a write, among others that are.
    // SAFETY: `pages` owns the page, which `commit` made accessible.
    unsafe { place(1).write_volatile(bytes[1]) };
    finder.watch_again(page(1).start..page(2).end)?;
    // SAFETY: `pages` owns the page, which `commit` made accessible.
    unsafe { place(2).write_volatile(bytes[2]) };
    let again = written(&mut finder)?;
    let notes = alone == [4]
        && again == [2]
        && first == [1, 4]
        && none.is_empty()
        && later == [1, 2, 5]
        && bytes == [1, 3, 3, 0, 2, 3];
    watch.unregister(addresses)?;
    // What fails there, or is disturbed twice by what else goes on in the system, takes nothing but this
    // search away.
    let mut finds_lifted = || tries_lifted(&watch, file.as_fd(), &mut finder).unwrap_or(false);
    let finds_lifted = notes && (finds_lifted() || finds_lifted());
    Ok(notes.then_some(WriteNotes { finds_lifted }))
}

/// Tries the search for lifted protection on six pages that are registered, the first three of a file,
/// and on one before and one behind them that are not: all that has contents there is found each time.
/// The first of each three was only read at first, and the others are private and protected.
fn tries_lifted(
    watch: &WriteWatch,
    file: BorrowedFd<'_>,
    finder: &mut Finder,
) -> Result<bool, PagesError> {
    const COUNT: u64 = 8;
    let mut pages = Reservation::new(COUNT * PAGE_SIZE, PAGE_SIZE)?;
    pages.commit(0..COUNT * PAGE_SIZE)?;
    pages.map_private(PAGE_SIZE..4 * PAGE_SIZE, file, 0)?;
    let addresses = pages.start() as u64..pages.end() as u64;
    let registered = addresses.start + PAGE_SIZE..addresses.end - PAGE_SIZE;
    watch.register(registered.clone())?;
    let place = |page: u64| {
        ptr::with_exposed_provenance_mut::<u8>((addresses.start + page * PAGE_SIZE) as usize)
    };
    let unprotected = |finder: &mut Finder| {
        let mut regions = Vec::new();
        finder.find_unprotected(addresses.clone(), &mut regions)?;
        Ok::<_, PagesError>(page_numbers(&regions, addresses.start))
    };
    for page in [1, 4, 7] {
        // SAFETY: `pages` owns the page, which `commit` made accessible.
        unsafe { place(page).read_volatile() };
    }
    for page in [0, 2, 3, 5, 6] {
        // SAFETY: `pages` owns the page, which `commit` made accessible.
        unsafe { place(page).write_volatile(3) };
    }
    finder.find_and_watch(registered.clone(), &mut Vec::new())?;
    let only_read = unprotected(finder)?;
    finder.protect_shared(registered.clone(), &mut Vec::new())?;
    let none = unprotected(finder)?;
    for page in [1, 4, 6] {
        // SAFETY: `pages` owns the page, which `commit` made accessible.
        unsafe { place(page).write_volatile(7) };
    }
    // By the kernel.
    // SAFETY: `pages` owns the page, which `commit` made accessible, and no reference to it is held.
    let into = unsafe { std::slice::from_raw_parts_mut(place(5), 1) };
    let read = rustix::io::pread(file, into, 0).is_ok();
    let written = unprotected(finder)?;
    // What is discarded is written no more until it is.
    pages.discard(2 * PAGE_SIZE..3 * PAGE_SIZE)?;
    let discarded = unprotected(finder)?;
    // SAFETY: `pages` owns the page, which `commit` made accessible.
    unsafe { place(2).wrapping_add(1).write_volatile(7) };
    let all = unprotected(finder)?;
    // SAFETY: `pages` owns the pages, which `commit` made accessible.
    let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|page| unsafe { place(page).read_volatile() });
    watch.unregister(registered)?;
    Ok(only_read == [0, 1, 4, 7]
        && none == [0, 7]
        && read
        && written == [0, 1, 4, 5, 6, 7]
        && discarded == [0, 1, 4, 5, 6, 7]
        && all == [0, 1, 2, 4, 5, 6, 7]
        && bytes == [3, 7, 1, 3, 7, 1, 7, 0])
}

/// The pages of regions, counted from one that begins at this address.
fn page_numbers<'a>(regions: impl IntoIterator<Item = &'a PageRegion>, start: u64) -> Vec<u64> {
    let page = |address: u64| (address - start) / PAGE_SIZE;
    regions.into_iter().flat_map(|region| page(region.start)..page(region.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_note_writes_is_not_used() {
        use crate::os::inject::{fail_all, pretend};
        if !notes_writes() {
            eprintln!("NOT TESTED: this kernel does not note writes");
            return;
        }
        assert_eq!(probe(), Ok(Some(WriteNotes { finds_lifted: true })));
        probe_fails(fail_all(Call::WatchWrites, libc::EPERM, probe));
        probe_fails(pretend(Call::WatchWrites, probe));
        probe_fails(pretend(Call::Scan, probe));
        probe_fails(fail_all(Call::Scan, libc::ENOTTY, probe));
        // What the search alone needs takes nothing else away.
        let without_search = Ok(Some(WriteNotes { finds_lifted: false }));
        assert_eq!(fail_all(Call::Discard, libc::ENOMEM, probe), without_search);
        // That it was refused once is not for ever.
        assert!(notes_writes());
    }

    #[test]
    fn pages_that_are_not_in_memory_are_seen() {
        if !notes_writes() {
            eprintln!("NOT TESTED: this kernel does not note writes");
            return;
        }
        let mut pages = Reservation::new(3 * PAGE_SIZE, PAGE_SIZE).unwrap();
        pages.commit(0..3 * PAGE_SIZE).unwrap();
        let addresses = pages.start() as u64..pages.end() as u64;
        let watch = WriteWatch::of_this_process().unwrap();
        watch.register(addresses.clone()).unwrap();
        for place in (pages.start()..pages.end()).step_by(PAGE_SIZE as usize) {
            // SAFETY: `pages` owns the page, which `commit` made accessible.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(place).write_volatile(1) };
        }
        let mut finder = Finder::new(Method::Scan { zeros: false }).unwrap();
        finder.find_and_watch(addresses.clone(), &mut Vec::new()).unwrap();
        // What lies in swap space is an entry of the page table that is not of a page, and so is a guard:
        // MADV_GUARD_INSTALL of Linux 6.13.
        const GUARD: libc::c_int = 102;
        let place = ptr::with_exposed_provenance_mut(pages.start() + PAGE_SIZE as usize);
        // SAFETY: `pages` owns the page, to which no reference is held.
        if unsafe { libc::madvise(place, PAGE_SIZE as usize, GUARD) } != 0 {
            eprintln!("NOT TESTED: this kernel has no guards in page tables");
            return;
        }
        let mut found = Vec::new();
        finder.find_unprotected(addresses.clone(), &mut found).unwrap();
        assert_eq!(page_numbers(&found, addresses.start), [1]);
        let mut present = Vec::new();
        finder.find_present(addresses.clone(), &mut present).unwrap();
        let written = present.iter().filter(|region| region.categories & WRITTEN != 0);
        assert_eq!(page_numbers(written, addresses.start), [1]);
        assert_eq!(page_numbers(&present, addresses.start), [0, 1, 2]);
        watch.unregister(addresses).unwrap();
    }

    #[cfg(debug_assertions)]
    #[track_caller]
    fn probe_fails(result: Result<Option<WriteNotes>, PagesError>) {
        assert!(!matches!(result, Ok(Some(_))), "{result:?}");
    }
}
