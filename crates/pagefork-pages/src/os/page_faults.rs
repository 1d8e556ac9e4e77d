//! Pages that get their contents when they are touched: userfaultfd, by which a touch of a page that
//! has none is a SIGBUS in the thread that touches it. A handler copies the page from where its
//! contents lie, and some behind it; or makes it zero, if a memory has grown as far, and else leaves
//! the signal to whoever makes a trap of it. What an image has can be copied by [threads] instead.
//!
//! [threads]: crate::os::fault_threads

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pagefork_layout::page::{PAGE_SIZE, joined, round_down};
use rustix::io::Errno;

use crate::os::absent_pages;
use crate::os::address_list::{AddressEntry, AddressList};
use crate::os::error::{Call, PagesError};
use crate::os::fault_threads::{FaultThreads, Giving, Pager};
use crate::os::features::Tried;
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::reservation::Reservation;
use crate::os::sys::CallFailure;
use crate::os::userfaultfd::{RegisterMode, Userfaultfd, feature};

/// Where pages are touched one after the other, twice as many are copied each time, up to this many.
const ROW_MAX: u64 = 64;
/// This often in a row a touch of a page that has contents may raise a signal: of threads that
/// touched it at the same time. More often, and the signal has another reason.
const AGAIN_MAX: usize = 1000;

/// What pages have that are zero. Nobody writes here, so it takes no memory but the kernel's page of
/// zeros.
static ZEROS: [u8; (ROW_MAX * PAGE_SIZE) as usize] = [0; (ROW_MAX * PAGE_SIZE) as usize];

/// Slots with such pages.
static SERVED: AddressList<AtomicPtr<Served>> = AddressList::new();

/// Whole pages, and what is in them.
#[derive(Debug)]
pub(crate) struct ServedRange {
    pub(crate) addresses: Range<u64>,
    pub(crate) contents: TouchContents,
}

/// What pages have once they are touched.
#[derive(Debug)]
pub(crate) enum TouchContents {
    /// What lies at this address.
    At(usize),
    Zeros,
    /// Zeros up to an end that moves, and nothing from there on: a touch there is not served.
    Grown(Box<dyn GrowthEnd>),
}

/// How far a memory has grown.
pub(crate) trait GrowthEnd: fmt::Debug + Send + Sync {
    /// The address behind its last page, now. Async-signal-safe.
    fn end(&self) -> u64;
}

impl TouchContents {
    /// Whether touches decide how far pages go: then they are signals, which can become traps.
    fn is_grown(&self) -> bool {
        matches!(self, Self::Grown(_))
    }
}

impl ServedRange {
    /// The end of the pages that may have contents now.
    fn end(&self) -> u64 {
        match &self.contents {
            TouchContents::At(_) | TouchContents::Zeros => self.addresses.end,
            TouchContents::Grown(growth) => {
                growth.end().clamp(self.addresses.start, self.addresses.end)
            }
        }
    }
}

/// Gives the page at an address its contents, if it is one that gets them when it is touched. Whether
/// the instruction that has touched it, to write or not, is to be made again. For handlers of SIGBUS.
pub(super) fn serve_touch(address: usize, is_write: bool) -> bool {
    let Some(entry) = SERVED.find(address) else { return false };
    // SAFETY: the entry is that of a slot which the thread uses that has just touched it, so what is
    // served lives until that has been done.
    let served = unsafe { entry.of_handler.load(Ordering::Acquire).as_ref() };
    let given = served.and_then(|served| served.give_own(address as u64, is_write));
    given.is_some_and(|given| given != Giving::Never)
}

/// The userfaultfd of this process that raises signals at touches.
#[derive(Debug)]
struct TouchSource {
    file: Arc<Userfaultfd>,
    /// The process whose pages it knows.
    process: u64,
}

impl TouchSource {
    /// The one of this process, which stays open.
    fn of_this_process() -> Result<Arc<Self>, CallFailure> {
        static OPEN: Mutex<Option<Arc<TouchSource>>> = Mutex::new(None);
        let process = this_process();
        let mut open = lock(&OPEN);
        if let Some(source) = &*open
            && source.process == process
        {
            return Ok(Arc::clone(source));
        }
        let calls = [Call::ServeFaults, Call::UnserveFaults];
        let file = Arc::new(Userfaultfd::open(feature::SIGBUS, calls)?);
        let source = Arc::new(Self { file, process });
        *open = Some(Arc::clone(&source));
        Ok(source)
    }

    fn is_of_this_process(&self) -> bool {
        self.process == this_process()
    }
}

/// What a handler does with pages that are registered.
#[derive(Debug)]
struct Served {
    source: Arc<TouchSource>,
    /// What the pages are registered with that do not [grow](TouchContents::Grown).
    file_of_image: Arc<Userfaultfd>,
    /// Ascending, none empty.
    ranges: Vec<ServedRange>,
    /// The end of the last pages that were copied, and how many they were.
    last: (AtomicU64, AtomicU64),
    /// The last page that was touched again, and how often.
    again: (AtomicU64, AtomicUsize),
}

impl Pager for Served {
    fn give(&self, address: u64, is_write: bool) -> Giving {
        // A message of a page that was served by then: since, another image has come, which has none there.
        self.give_own(address, is_write).unwrap_or(Giving::Already)
    }
}

impl Served {
    /// Gives a page contents if it is one that gets them so. Async-signal-safe.
    fn give_own(&self, address: u64, is_write: bool) -> Option<Giving> {
        // Of a forked process nothing is registered, and the file is that of its parent.
        if !self.source.is_of_this_process() {
            return None;
        }
        let page = round_down(address);
        let index = self.ranges.partition_point(|range| range.addresses.end <= page);
        let range = self.ranges.get(index).filter(|range| range.addresses.contains(&page));
        let range = range?;
        // What a memory has not grown to has no contents, also when the pages before it get theirs.
        let end = range.end();
        if page >= end {
            return None;
        }
        let count = match self.last.0.load(Ordering::Relaxed) == page {
            true => (self.last.1.load(Ordering::Relaxed) * 2).clamp(1, ROW_MAX),
            false => 1,
        };
        let mut count = match range.contents {
            TouchContents::Zeros => 1,
            TouchContents::At(_) | TouchContents::Grown(_) => count.min((end - page) / PAGE_SIZE),
        };
        let mut failures = 0;
        loop {
            match self.fill(range, page..page + count * PAGE_SIZE, is_write) {
                Ok(length) => {
                    self.last.0.store(page + length, Ordering::Relaxed);
                    self.last.1.store(length / PAGE_SIZE, Ordering::Relaxed);
                    self.again.1.store(0, Ordering::Relaxed);
                    return Some(Giving::Now);
                }
                Err(CallFailure { errno: Errno::EXIST, .. }) => {
                    let is_too_often = self.is_too_often(page);
                    return Some(if is_too_often { Giving::Never } else { Giving::Already });
                }
                // The pages behind it may be of another map.
                Err(_) if count > 1 => count = 1,
                // Maps of the process change (EAGAIN), or memory is short: who touches a page cannot be
                // told, and there may be some in a moment.
                Err(_) if failures >= AGAIN_MAX => return Some(Giving::Never),
                Err(_) => failures += 1,
            }
        }
    }

    /// Gives pages of a range their contents, of zeros no more than [`ROW_MAX`]; how many bytes got them.
    fn fill(
        &self,
        range: &ServedRange,
        pages: Range<u64>,
        is_write: bool,
    ) -> Result<u64, CallFailure> {
        let from = match range.contents {
            TouchContents::At(from) => from + (pages.start - range.addresses.start) as usize,
            // What is only read takes no memory.
            TouchContents::Grown(_) if !is_write => {
                return self.source.file.zero(Call::CopyPage, pages);
            }
            TouchContents::Zeros | TouchContents::Grown(_) => ZEROS.as_ptr().addr(),
        };
        let file = match range.contents.is_grown() {
            true => &self.source.file,
            false => &self.file_of_image,
        };
        let length = pages.end - pages.start;
        let length = match range.contents {
            TouchContents::At(_) => length,
            TouchContents::Zeros | TouchContents::Grown(_) => length.min(ZEROS.len() as u64),
        };
        file.copy_from(Call::CopyPage, pages.start, from, length)
    }

    /// Whether a page was touched again and again.
    fn is_too_often(&self, page: u64) -> bool {
        if self.again.0.swap(page, Ordering::Relaxed) != page {
            self.again.1.store(0, Ordering::Relaxed);
        }
        self.again.1.fetch_add(1, Ordering::Relaxed) >= AGAIN_MAX
    }
}

/// Pages that get their contents when they are touched, as long as it lives.
#[derive(Debug)]
pub(crate) struct PageFaults {
    entry: &'static AddressEntry<AtomicPtr<Served>>,
    of_handler: Arc<Served>,
    span: Range<u64>,
    /// Those that copy what an image has, if it is not who touches it.
    threads: Option<Arc<FaultThreads>>,
}

impl PageFaults {
    /// Registers pages, ascending and apart, which have no contents yet: after [discarding] them they
    /// have none again. What an image has is copied by so many threads, or with none by who touches it.
    /// Before pages are discarded that a memory has grown by, [its end](GrowthEnd) is
    /// where it will be, so that no touch of them is served.
    ///
    /// [discarding]: Reservation::discard
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Safety
    /// Until it is dropped the pages belong to the caller, and where their contents lie nothing
    /// changes.
    pub(crate) unsafe fn new(ranges: Vec<ServedRange>, threads: u32) -> Result<Self, CallFailure> {
        let source = TouchSource::of_this_process()?;
        let has_image = ranges.iter().any(|range| !range.contents.is_grown());
        let threads = match threads {
            0 => None,
            count if has_image => Some(FaultThreads::of_this_process(count)?),
            _ => None,
        };
        let file_of_image = Arc::clone(threads.as_ref().map_or(&source.file, |own| own.file()));
        for (is_grown, file) in [(true, &source.file), (false, &file_of_image)] {
            let parts = ranges.iter().filter(|range| range.contents.is_grown() == is_grown);
            for part in joined(parts.map(|range| range.addresses.clone()).collect()) {
                file.register(part, RegisterMode::Missing)?;
            }
        }
        let span = ranges.first().map_or(0, |first| first.addresses.start)
            ..ranges.last().map_or(0, |last| last.addresses.end);
        let last = (AtomicU64::new(0), AtomicU64::new(0));
        let again = (AtomicU64::new(0), AtomicUsize::new(0));
        let of_handler = Arc::new(Served { source, file_of_image, ranges, last, again });
        let pointer = Arc::as_ptr(&of_handler).cast_mut();
        let addresses = span.start as usize..span.end as usize;
        let entry = SERVED.add(addresses, |known| known.store(pointer, Ordering::Release));
        if let Some(threads) = &threads {
            threads.add(span.clone(), Arc::clone(&of_handler) as Arc<dyn Pager>);
        }
        Ok(Self { entry, of_handler, span, threads })
    }

    /// Ends it. The result keeps threads for pages that are registered anew.
    pub(crate) fn end(self) -> Option<Arc<FaultThreads>> {
        self.threads.clone()
    }

    /// Whether it is of this process, and not of one that this was forked from.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.of_handler.source.is_of_this_process()
    }

    /// Copies all that an image has, but for pages that have contents. What cannot be copied now is when
    /// it is touched, and so is what is zero, which may be much. Returns how many bytes were copied.
    pub(crate) fn give_all(&self) -> u64 {
        let mut copied = 0;
        for range in &self.of_handler.ranges {
            let (mut page, end) = match range.contents {
                TouchContents::At(_) => (range.addresses.start, range.addresses.end),
                TouchContents::Zeros | TouchContents::Grown(_) => continue,
            };
            while page < end {
                page += match self.of_handler.fill(range, page..end, true) {
                    Ok(length) => {
                        copied += length;
                        length
                    }
                    Err(CallFailure { errno: Errno::EXIST, .. }) => PAGE_SIZE,
                    Err(_) => break,
                };
            }
        }
        copied
    }

    /// Has all pages of a range of addresses get their contents that have any, so that the kernel can
    /// read and write them, which raises no signal.
    pub(crate) fn touch(&self, addresses: Range<u64>) {
        for range in &self.of_handler.ranges {
            let common = round_down(addresses.start.max(range.addresses.start))
                ..addresses.end.min(range.end());
            for page in common.step_by(PAGE_SIZE as usize) {
                let place = ptr::with_exposed_provenance::<u8>(page as usize);
                // SAFETY: the page is the caller's, and accessible; the handler gives it contents.
                unsafe { place.read_volatile() };
            }
        }
    }
}

impl Drop for PageFaults {
    fn drop(&mut self) {
        // Other maps take the place of the pages, or have taken it; so their registration ends.
        if let Some(threads) = &self.threads
            && self.is_of_this_process()
        {
            threads.remove(self.span.clone());
        }
        SERVED.remove(self.entry, |known| known.store(ptr::null_mut(), Ordering::Release));
    }
}

/// Whether a touch of a page without contents is a signal in the thread that touches it, so that
/// [`ResetKind::Fault`](crate::ResetKind::Fault) and [`GrowthKind::Fault`](crate::GrowthKind::Fault)
/// work. It is tried once a process.
///
/// # Examples
///
/// ```
/// println!("touches of pages raise signals: {}", pagefork_pages::faults_at_touches());
/// ```
pub fn faults_at_touches() -> bool {
    static FAULTS: Tried<bool> = Tried::new();
    // What a limit was in the way of can work later.
    FAULTS.get(|| if probe().unwrap_or(false) { Ok(true) } else { Err(()) }).is_ok()
}

/// Whether a touch can be a message to [threads](crate::StrategyConfig::fault_threads), too, and what they
/// cannot copy a signal; from Linux 6.6 on. It is tried once a process.
///
/// # Examples
///
/// ```
/// println!("threads can copy pages that are touched: {}", pagefork_pages::faults_in_messages());
/// ```
pub fn faults_in_messages() -> bool {
    static MESSAGES: Tried<bool> = Tried::new();
    let calls = [Call::ServeFaults, Call::UnserveFaults];
    MESSAGES.get(|| Userfaultfd::open_for_messages(calls).map(|_| true).map_err(drop)).is_ok()
}

/// Tries it on pages: what has no contents cannot be read by the kernel, which is an error where code
/// would get a signal; it has what was copied, or zeros, the page behind it has nothing, and all have
/// nothing again once they were discarded.
fn probe() -> Result<bool, PagesError> {
    const BYTE: u8 = 0x5a;
    let source = TouchSource::of_this_process()?;
    let mut pages = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE)?;
    let start = pages.start() as u64;
    source.file.register(start..start + 2 * PAGE_SIZE, RegisterMode::Missing)?;
    pages.commit(0..2 * PAGE_SIZE)?;
    let refused = |page: u64| absent_pages::is_refused((start + page * PAGE_SIZE) as usize);
    let mut works = true;
    for _ in 0..2 {
        works &= refused(0)? && refused(1)?;
        let copied = source.file.copy(start, &[BYTE; PAGE_SIZE as usize])?;
        let place = ptr::with_exposed_provenance::<u8>(start as usize);
        // SAFETY: the page is accessible, and the kernel was asked whether it has contents.
        let found = !refused(0)? && unsafe { place.read_volatile() } == BYTE;
        works &= found && copied == PAGE_SIZE && refused(1)?;
        let exists = |outcome| matches!(outcome, Err(CallFailure { errno: Errno::EXIST, .. }));
        works &= exists(source.file.copy(start, &ZEROS[..PAGE_SIZE as usize]));
        pages.discard(0..2 * PAGE_SIZE)?;
        works &= refused(0)?;
        let zeroed = source.file.zero(Call::ServeFaults, start..start + PAGE_SIZE)?;
        // SAFETY: the page is accessible, and the kernel was asked whether it has contents.
        let found = !refused(0)? && unsafe { place.read_volatile() } == 0;
        works &= found && zeroed == PAGE_SIZE && refused(1)?;
        pages.discard(0..2 * PAGE_SIZE)?;
    }
    Ok(works)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that copies pages can come too late with a message: its page was served, and the slot has
    /// another image now, which has nothing there.
    #[test]
    fn a_message_of_a_page_that_is_no_more_refuses_none() {
        if !faults_at_touches() {
            return eprintln!("NOT TESTED: this kernel raises no signals at touches");
        }
        let mut pages = Reservation::new(2 * PAGE_SIZE, PAGE_SIZE).unwrap();
        pages.commit(0..2 * PAGE_SIZE).unwrap();
        let start = pages.start() as u64;
        let addresses = start..start + PAGE_SIZE;
        let ranges = vec![ServedRange { addresses, contents: TouchContents::Zeros }];
        // SAFETY: the pages are the test's, and stay.
        let served = unsafe { PageFaults::new(ranges, 0) }.unwrap();
        let give = |page| Pager::give(&*served.of_handler, start + page * PAGE_SIZE, false);
        assert_eq!((give(0), give(1)), (Giving::Now, Giving::Already));
        assert!(!serve_touch((start + PAGE_SIZE) as usize, false));
    }

    /// The kernel ends a copy at a page that has contents already, and says how far it came.
    #[test]
    fn a_copy_that_ends_early_is_not_taken_for_the_whole() {
        if !faults_at_touches() {
            return eprintln!("NOT TESTED: this kernel raises no signals at touches");
        }
        const COUNT: u64 = 4;
        let bytes = vec![9u8; (COUNT * PAGE_SIZE) as usize];
        let mut pages = Reservation::new(COUNT * PAGE_SIZE, PAGE_SIZE).unwrap();
        pages.commit(0..COUNT * PAGE_SIZE).unwrap();
        let start = pages.start() as u64;
        let addresses = start..start + COUNT * PAGE_SIZE;
        let contents = TouchContents::At(bytes.as_ptr().expose_provenance());
        // SAFETY: the pages are the test's, and stay, as the bytes do.
        let served =
            unsafe { PageFaults::new(vec![ServedRange { addresses, contents }], 0) }.unwrap();
        let give = |page| Pager::give(&*served.of_handler, start + page * PAGE_SIZE, false);
        assert_eq!(give(2), Giving::Now);
        assert_eq!(served.give_all(), 3 * PAGE_SIZE);
        for page in 0..COUNT {
            let address = (start + page * PAGE_SIZE) as usize;
            assert_eq!(absent_pages::is_refused(address), Ok(false), "page {page} has no contents");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn what_does_not_raise_signals_at_touches_is_not_used() {
        use crate::os::inject::{fail_all, pretend};
        if !faults_at_touches() {
            eprintln!("NOT TESTED: this kernel raises no signals at touches");
            return;
        }
        assert_eq!(probe(), Ok(true));
        let fails = |outcome: Result<bool, PagesError>| assert!(!matches!(outcome, Ok(true)));
        fails(fail_all(Call::ServeFaults, libc::EPERM, probe));
        fails(pretend(Call::ServeFaults, probe));
        fails(pretend(Call::Discard, probe));
        // That it was refused once is not for ever.
        assert!(faults_at_touches());
    }
}
