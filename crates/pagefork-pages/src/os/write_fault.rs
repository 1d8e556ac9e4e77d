//! Which pages were written: userfaultfd, by which the first write to a write-protected page is a
//! SIGBUS in the thread that writes. A handler notes the page and lifts the protection.
//!
//! Protection is in page tables and cuts no map, so pages are noted one by one, however many there
//! are; where a run writes one page after the other, more of them at once.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pagefork_layout::page::{PAGE_SIZE, joined, without};

use crate::os::address_list::{AddressEntry, AddressList};
use crate::os::error::{Call, PagesError};
use crate::os::features::Tried;
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::reservation::Reservation;
use crate::os::sys::{self, CallFailure};
use crate::os::userfaultfd::{RegisterMode, Userfaultfd, feature};
use crate::os::{absent_pages, memfd, page_faults};

/// At most this many pages are lifted at once: each that is not written then is compared in vain.
const RUN_MAX: usize = 64;
/// Bytes of pages that are protected already, over which one walk is quicker than another call.
const GAP_MAX: u64 = 32 * PAGE_SIZE;
/// This often in a row a page may be written though its protection was lifted: by threads that wrote
/// to it at the same time. More often, and the signal has another reason.
const AGAIN_MAX: usize = 1000;

/// Whether a handler of SIGBUS calls [`serve_fault`].
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Slots with protected pages.
static PROTECTED: AddressList<AtomicPtr<Protected>> = AddressList::new();

/// Says that from now on a handler of SIGBUS in this process calls [`serve_fault`]: then
/// [`DeltaTracker::Fault`](crate::DeltaTracker::Fault) can write-protect pages of slots, slots can be
/// reset by [`ResetKind::Fault`](crate::ResetKind::Fault), and their memories grow by
/// [`GrowthKind::Fault`](crate::GrowthKind::Fault).
///
/// # Examples
///
/// See [`serve_fault`].
pub fn serve_fault_is_called() {
    IS_CALLED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed)
}

/// Gives the page at this address contents if a slot has it get them when it is touched, or, if the
/// instruction has written, lifts its write protection if a slot has it to notice writes. Returns
/// whether the instruction that has raised the signal is to be made again.
///
/// For handlers of SIGBUS with the code `BUS_ADRERR`, raised by code that uses the slot, the host's
/// too: it is async-signal-safe, takes no lock, and leaves `errno`.
///
/// # Examples
///
/// ```
/// // What a handler does with the address in its `siginfo_t`:
/// let page = [0u8; 4096];
/// let is_write = true;
/// assert!(!pagefork_pages::serve_fault(page.as_ptr().addr(), is_write), "it is no page of a slot");
/// // Once it is installed:
/// pagefork_pages::serve_fault_is_called();
/// ```
pub fn serve_fault(address: usize, is_write: bool) -> bool {
    // SAFETY: the C library asks nothing of who calls it.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` is of this thread, and there as long as that is.
    let before = unsafe { errno.read() };
    let is_served = page_faults::serve_touch(address, is_write) || is_write && serve_write(address);
    // SAFETY: `errno` is of this thread, which has not ended.
    unsafe { errno.write(before) };
    is_served
}

fn serve_write(address: usize) -> bool {
    let Some(entry) = PROTECTED.find(address) else { return false };
    // SAFETY: the entry is that of a slot which the thread uses that has just written there, so what
    // is protected lives until the write has been made.
    let protected = unsafe { entry.of_handler.load(Ordering::Acquire).as_ref() };
    protected.is_some_and(|protected| protected.lift_around(address))
}

/// The userfaultfd of this process that raises signals at writes.
#[derive(Debug)]
struct FaultSource {
    file: Userfaultfd,
    /// Whether pages without contents can be protected, too (kernel 6.4).
    protects_empty: bool,
    /// The process whose pages it knows.
    process: u64,
}

impl FaultSource {
    /// The one of this process, which stays open.
    fn of_this_process() -> Result<Arc<Self>, CallFailure> {
        static OPEN: Mutex<Option<Arc<FaultSource>>> = Mutex::new(None);
        let process = this_process();
        let mut open = lock(&OPEN);
        if let Some(source) = &*open
            && source.process == process
        {
            return Ok(Arc::clone(source));
        }
        let calls = [Call::FaultWrites, Call::UnfaultWrites];
        let all = feature::SIGBUS | feature::PROTECT_UNPOPULATED;
        let opened = Userfaultfd::open(all, calls).map(|file| (file, true));
        let least = |_| Userfaultfd::open(feature::SIGBUS, calls).map(|file| (file, false));
        let (file, protects_empty) = opened.or_else(least)?;
        let source = Arc::new(Self { file, protects_empty, process });
        *open = Some(Arc::clone(&source));
        Ok(source)
    }

    /// Whether it is of this process, and not of one that this was forked from, whose pages it
    /// would change.
    fn is_of_this_process(&self) -> bool {
        self.process == this_process()
    }
}

/// Whole pages at addresses, side by side.
#[derive(Debug)]
struct Part {
    addresses: Range<usize>,
    /// A bit for each page that may have been written.
    written: Box<[AtomicU64]>,
}

impl Part {
    fn new(addresses: Range<usize>) -> Self {
        let words = addresses.len().div_ceil(PAGE_SIZE as usize).div_ceil(64);
        Self { addresses, written: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn page_of(&self, address: usize) -> usize {
        (address - self.addresses.start) / PAGE_SIZE as usize
    }

    fn address_of(&self, page: usize) -> usize {
        self.addresses.start + page * PAGE_SIZE as usize
    }

    fn is_written(&self, page: usize) -> bool {
        self.written[page / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    fn note(&self, pages: Range<usize>) {
        for page in pages {
            self.written[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        self.written.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Addresses of the pages that are noted.
    fn all_written(&self) -> impl Iterator<Item = Range<u64>> {
        let words = self.written.iter().enumerate();
        let bits = words.flat_map(|(index, word)| {
            let mut word = word.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(index * 64 + bit)
            })
        });
        bits.map(|page| self.address_of(page) as u64..self.address_of(page + 1) as u64)
    }
}

/// What a handler does with pages that are registered.
#[derive(Debug)]
struct Protected {
    source: Arc<FaultSource>,
    /// Ascending, apart, none empty.
    parts: Vec<Part>,
    /// Whether any page may have been written, and none is protected.
    is_ended: AtomicBool,
    /// The end of the last pages that were lifted, and how many they were.
    last: (AtomicUsize, AtomicUsize),
    /// The last page that was written again, and how often.
    again: (AtomicUsize, AtomicUsize),
}

impl Protected {
    fn lift_around(&self, address: usize) -> bool {
        let has = |part: &&Part| part.addresses.contains(&address);
        let Some(part) = self.parts.iter().find(has) else { return false };
        // No page of a forked process is protected, and the file is that of its parent.
        if !self.source.is_of_this_process() {
            return false;
        }
        let page = part.page_of(address);
        if part.is_written(page) && self.is_too_often(part.address_of(page)) {
            return false;
        }
        let (last_end, last_count) = (&self.last.0, &self.last.1);
        let count = match last_end.load(Ordering::Relaxed) == part.address_of(page) {
            true => (last_count.load(Ordering::Relaxed) * 2).clamp(1, RUN_MAX),
            false => 1,
        };
        let end = (page + count).min(part.page_of(part.addresses.end));
        last_end.store(part.address_of(end), Ordering::Relaxed);
        last_count.store(end - page, Ordering::Relaxed);
        self.lift(part, page..end)
    }

    /// Whether a page was written again and again.
    fn is_too_often(&self, page: usize) -> bool {
        let (at, count) = (&self.again.0, &self.again.1);
        if at.swap(page, Ordering::Relaxed) != page {
            count.store(0, Ordering::Relaxed);
        }
        count.fetch_add(1, Ordering::Relaxed) >= AGAIN_MAX
    }

    /// Makes pages writable. Whether they are now.
    fn lift(&self, part: &Part, pages: Range<usize>) -> bool {
        // They are noted before anybody can write to them.
        part.note(pages.clone());
        let addresses = part.address_of(pages.start) as u64..part.address_of(pages.end) as u64;
        self.source.file.lift_protection(addresses).is_ok() || self.end().is_ok()
    }

    /// Protects nothing more. Any page counts as written from then on.
    fn end(&self) -> Result<(), CallFailure> {
        self.is_ended.store(true, Ordering::Relaxed);
        // Pages of a forked process are not registered.
        if !self.source.is_of_this_process() {
            return Ok(());
        }
        let mut parts = self.parts.iter().map(|part| &part.addresses);
        parts.try_for_each(|part| self.source.file.unregister(part.start as u64..part.end as u64))
    }
}

/// Pages whose writes are noticed, as long as it lives.
#[derive(Debug)]
pub(crate) struct WriteFaults {
    entry: &'static AddressEntry<AtomicPtr<Protected>>,
    of_handler: Arc<Protected>,
    /// Addresses of the pages that were protected the last time: ascending, apart. Those that are
    /// noted are protected no more.
    protected: Vec<Range<u64>>,
}

impl WriteFaults {
    /// Registers pages at addresses, ascending and apart, of which none is protected yet.
    ///
    /// # Errors
    /// If the kernel refuses; none is registered then.
    ///
    /// # Safety
    /// Until it is dropped or [ended](Self::end) the pages belong to the caller.
    pub(crate) unsafe fn new(parts: Vec<Range<usize>>) -> Result<Self, CallFailure> {
        let source = FaultSource::of_this_process()?;
        let span =
            parts.first().map_or(0, |part| part.start)..parts.last().map_or(0, |part| part.end);
        let none = || (AtomicUsize::new(0), AtomicUsize::new(0));
        let protected = Protected {
            source,
            parts: parts.into_iter().map(Part::new).collect(),
            is_ended: AtomicBool::new(false),
            last: none(),
            again: none(),
        };
        for Part { addresses, .. } in &protected.parts {
            let addresses = addresses.start as u64..addresses.end as u64;
            if let Err(failure) = protected.source.file.register(addresses, RegisterMode::Protected)
            {
                // What is not registered cannot be unregistered, and needs not.
                let _ = protected.end();
                return Err(failure);
            }
        }
        let of_handler = Arc::new(protected);
        let pointer = Arc::as_ptr(&of_handler).cast_mut();
        let entry = PROTECTED.add(span, |known| known.store(pointer, Ordering::Release));
        Ok(Self { entry, of_handler, protected: Vec::new() })
    }

    /// Whether it has these parts, in this process, and has not ended.
    pub(crate) fn is_of(&self, parts: &[Range<usize>]) -> bool {
        let own = &self.of_handler;
        let same = own.parts.iter().map(|part| &part.addresses).eq(parts);
        same && own.source.is_of_this_process() && !own.is_ended.load(Ordering::Relaxed)
    }

    /// Write-protects these of its pages, ascending and apart. None counts as written then. Of pages
    /// that have no contents the first write is noticed only where [`protects_empty`] says so; and
    /// makes them private anywhere.
    ///
    /// # Errors
    /// If the kernel refuses: then it has ended, if that was possible.
    pub(crate) fn protect(&mut self, private: Vec<Range<u64>>) -> Result<(), CallFailure> {
        let still = self.unwritten().unwrap_or_default();
        let fresh = without(&private, &still);
        let protect = || {
            let mut fresh = fresh.iter().peekable();
            for region in &private {
                while let Some(first) = fresh.next_if(|part| part.start < region.end) {
                    let mut span = first.clone();
                    let near = |part: &&Range<u64>, end: u64| {
                        part.start < region.end && part.start - end <= GAP_MAX
                    };
                    while let Some(part) = fresh.next_if(|part| near(part, span.end)) {
                        span.end = part.end;
                    }
                    self.of_handler.source.file.write_protect(span)?;
                }
            }
            Ok(())
        };
        if let Err(failure) = protect() {
            let _ = self.end();
            return Err(failure);
        }
        self.of_handler.parts.iter().for_each(Part::forget);
        self.of_handler.last.0.store(0, Ordering::Relaxed);
        self.protected = private;
        Ok(())
    }

    /// Makes pages writable before somebody writes to them who takes no signal: the kernel. They count
    /// as written.
    pub(crate) fn lift(&self, addresses: Range<usize>) {
        let own = &*self.of_handler;
        if own.is_ended.load(Ordering::Relaxed) {
            // The kernel may have refused that.
            let _ = own.end();
            return;
        }
        if !own.source.is_of_this_process() {
            return;
        }
        for part in &own.parts {
            let common = addresses.start.max(part.addresses.start)
                ..addresses.end.min(part.addresses.end).next_multiple_of(PAGE_SIZE as usize);
            if common.start < common.end {
                let pages = part.page_of(common.start)..part.page_of(common.end);
                // Many a program reads again and again into one buffer.
                if !pages.clone().all(|page| part.is_written(page)) {
                    own.lift(part, pages);
                }
            }
        }
    }

    /// Addresses of the pages that were protected and have not been written since: ascending, apart.
    /// `None`: any may have been.
    pub(crate) fn unwritten(&self) -> Option<Vec<Range<u64>>> {
        let own = &*self.of_handler;
        if own.is_ended.load(Ordering::Relaxed) || !own.source.is_of_this_process() {
            return None;
        }
        let written = own.parts.iter().flat_map(Part::all_written);
        Some(without(&self.protected, &joined(written.collect())))
    }

    /// Protects nothing more; any page counts as written from then on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn end(&self) -> Result<(), CallFailure> {
        self.of_handler.end()
    }
}

impl Drop for WriteFaults {
    fn drop(&mut self) {
        let _ = self.end();
        PROTECTED.remove(self.entry, |known| known.store(ptr::null_mut(), Ordering::Release));
    }
}

/// Whether pages that have no contents can be protected, too.
pub(crate) fn protects_empty() -> bool {
    FaultSource::of_this_process().is_ok_and(|source| source.protects_empty)
}

/// Whether a write to a protected page is a signal in the thread that writes, so that
/// [`DeltaTracker::Fault`](crate::DeltaTracker::Fault) works. It is tried once a process.
///
/// # Examples
///
/// ```
/// println!("writes to protected pages raise signals: {}", pagefork_pages::faults_at_writes());
/// ```
pub fn faults_at_writes() -> bool {
    static FAULTS: Tried<bool> = Tried::new();
    // What a limit was in the way of can work later.
    FAULTS.get(|| if probe().unwrap_or(false) { Ok(true) } else { Err(()) }).is_ok()
}

/// Tries it on pages of a file and others, by writes of the kernel, which are errors where code would
/// get a signal: those are refused that are protected, and pages keep what they had.
fn probe() -> Result<bool, PagesError> {
    use std::os::fd::AsFd;
    const COUNT: u64 = 4;
    // Where a filter forbids it that is all.
    let source = FaultSource::of_this_process()?;
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), 2 * PAGE_SIZE)?;
    sys::write_image(file.as_fd(), &[1; 2 * PAGE_SIZE as usize], 0)?;
    let mut pages = Reservation::new(COUNT * PAGE_SIZE, PAGE_SIZE)?;
    pages.commit(0..COUNT * PAGE_SIZE)?;
    pages.map_private(0..2 * PAGE_SIZE, file.as_fd(), 0)?;
    let place = |page: u64| {
        ptr::with_exposed_provenance_mut::<u8>(pages.start() + (page * PAGE_SIZE) as usize)
    };
    let address = |page: u64| pages.start() as u64 + page * PAGE_SIZE;
    for page in 0..COUNT {
        // SAFETY: `pages` owns the page, which `commit` made accessible.
        unsafe { place(page).write_volatile(2) };
    }
    source.file.register(address(0)..address(COUNT), RegisterMode::Protected)?;
    source.file.write_protect(address(1)..address(3))?;
    let refused = || (0..COUNT).map(|page| absent_pages::refuses_write(place(page).addr()));
    let mut works = refused().collect::<Result<Vec<_>, _>>()? == [false, true, true, false];
    source.file.lift_protection(address(2)..address(3))?;
    works &= refused().collect::<Result<Vec<_>, _>>()? == [false, true, false, false];
    source.file.unregister(address(0)..address(COUNT))?;
    works &= !refused().collect::<Result<Vec<_>, _>>()?.contains(&true);
    // SAFETY: `pages` owns the pages, which `commit` made accessible.
    let bytes = [0, 1, 2, 3].map(|page| unsafe { place(page).add(1).read_volatile() });
    Ok(works && bytes == [1, 1, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_raise_signals_at_writes_is_not_used() {
        use crate::os::inject::{fail_all, pretend};
        if !faults_at_writes() {
            eprintln!("NOT TESTED: this kernel raises no signals at writes");
            return;
        }
        assert_eq!(probe(), Ok(true));
        let fails = |outcome: Result<bool, PagesError>| assert!(!matches!(outcome, Ok(true)));
        fails(fail_all(Call::FaultWrites, libc::EPERM, probe));
        fails(fail_all(Call::UnfaultWrites, libc::EPERM, probe));
        // Requests that report success and do nothing.
        fails(pretend(Call::FaultWrites, probe));
        fails(pretend(Call::UnfaultWrites, probe));
        // That it was refused once is not for ever.
        assert!(faults_at_writes());
    }
}
