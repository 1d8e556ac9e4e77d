//! What this kernel can do, tried one by one on real pages, for showing it to
//! people. A probe works only if the contents of pages are right afterwards:
//! some emulators report success and do nothing.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::time::Duration;

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::os::error::PagesError;
use crate::os::limits::Facts;
use crate::os::reservation::Reservation;
use crate::os::sys::PageKind;
use crate::os::userfault::{self, Userfault};
use crate::os::{memfd, sys};

/// Something that a kernel can do, or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Probe {
    /// Files in memory: `memfd_create`, written and read.
    ImageFile,
    /// Seals after which a memfd can be neither written nor cut.
    Seals,
    /// Sealing a memfd against execution (kernel 6.3).
    NoExecSeal,
    /// Private maps of a memfd: a write shows in the one map and nowhere else.
    CopyOnWrite,
    /// `MADV_DONTNEED`: pages of an image read as the image again, others as zero.
    Discard,
    /// Growth of a memory: `mprotect` makes more pages accessible, which read as
    /// zero, and leaves the others as they are.
    Grow,
    /// `MADV_NOHUGEPAGE`, which keeps huge pages out of a range.
    NoHugePages,
    /// Maps made with `MAP_STACK` have no huge pages from the start (kernel 6.7).
    SmallMaps,
    /// `/proc/self/pagemap` tells pages of an image from private copies.
    Pagemap,
    /// PAGEMAP_SCAN does so for many pages at once (kernel 6.7).
    Scan,
    /// userfaultfd write protection that the kernel lifts itself, read and reset by
    /// PAGEMAP_SCAN (kernel 6.7): which pages were written.
    TrackWrites,
    /// userfaultfd for pages that have nothing yet: the fault is reported, and the
    /// page can be filled.
    Missing,
    /// The same with SIGBUS to the thread that faulted.
    MissingSignal,
    /// `/dev/userfaultfd`, for faults of the kernel itself.
    UserfaultDevice,
}

/// What trying something out showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It does what it should, as the contents of pages show.
    Works,
    /// It does not: what was seen.
    Fails(String),
}

impl Probe {
    /// All probes; later ones build on earlier ones.
    pub const ALL: [Self; 14] = [
        Self::ImageFile,
        Self::Seals,
        Self::NoExecSeal,
        Self::CopyOnWrite,
        Self::Discard,
        Self::Grow,
        Self::NoHugePages,
        Self::SmallMaps,
        Self::Pagemap,
        Self::Scan,
        Self::TrackWrites,
        Self::Missing,
        Self::MissingSignal,
        Self::UserfaultDevice,
    ];

    /// Tries it out. Takes milliseconds; up to two seconds where a kernel never
    /// answers. [`Probe::MissingSignal`] starts a process that dies at once.
    pub fn try_out(self) -> Outcome {
        let tried = match self {
            Self::ImageFile => file_as_image(),
            Self::Seals => seals(),
            Self::NoExecSeal => no_exec_seal(),
            Self::CopyOnWrite => copy_on_write(),
            Self::Discard => discard(),
            Self::Grow => grow(),
            Self::NoHugePages => no_huge_pages(),
            Self::SmallMaps => small_maps(),
            Self::Pagemap => pagemap(),
            Self::Scan => scan(),
            Self::TrackWrites => track_writes(),
            Self::Missing => missing(),
            Self::MissingSignal => missing_signal(),
            Self::UserfaultDevice => userfault_device(),
        };
        match tried {
            Ok(()) => Outcome::Works,
            Err(Seen(what)) => Outcome::Fails(what),
        }
    }
}

/// What decides how many instances a process can have; `None` where there is no
/// limit or it cannot be told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Number of kernel maps now, and how many there may be.
    pub maps: Option<(u64, u64)>,
    /// Bytes of address space in use.
    pub mapped: u64,
    /// Bytes of address space that may be in use: RLIMIT_AS.
    pub address_space: Option<u64>,
    /// Bytes of private writable memory in use.
    pub data_used: u64,
    /// Bytes of private writable memory that may be in use: RLIMIT_DATA.
    pub data: Option<u64>,
    /// Number of descriptors that may be open: RLIMIT_NOFILE.
    pub descriptors: Option<u64>,
    /// Bytes that a file may have: RLIMIT_FSIZE.
    pub file_size: Option<u64>,
    /// Bytes promised to all processes, and the most that are; only with
    /// `vm.overcommit_memory` 2, where the kernel keeps to that.
    pub commit: Option<(u64, u64)>,
}

impl Limits {
    /// The limits of this process as they are now.
    pub fn read() -> Self {
        let facts = Facts::read();
        Self {
            maps: facts.maps,
            mapped: facts.mapped,
            address_space: facts.address_space_limit,
            data_used: facts.data,
            data: facts.data_limit,
            descriptors: getrlimit(Resource::Nofile).current,
            file_size: getrlimit(Resource::Fsize).current,
            commit: facts.commit,
        }
    }
}

/// What was seen instead of what should be.
struct Seen(String);

impl From<PagesError> for Seen {
    fn from(error: PagesError) -> Self {
        Self(error.to_string())
    }
}

impl From<sys::Failure> for Seen {
    fn from(failure: sys::Failure) -> Self {
        PagesError::from(failure).into()
    }
}

type Tried = Result<(), Seen>;

fn check(holds: bool, otherwise: &str) -> Tried {
    if holds { Ok(()) } else { Err(Seen(otherwise.to_owned())) }
}

fn refused(what: &str) -> impl Fn(Errno) -> Seen {
    move |errno| Seen(format!("{what}: {}", std::io::Error::from(errno)))
}

const PAGE: usize = PAGE_SIZE as usize;
const IMAGE_BYTE: u8 = 0x5a;

/// Pages to try things on: the first ones are a private map of an image of
/// [`IMAGE_BYTE`]s, the others anonymous and zero.
struct Pages {
    reservation: Reservation,
    /// Invariant: the first pages, as many as this, are readable and writable.
    accessible: usize,
    /// The image, sealed.
    file: OwnedFd,
}

impl Pages {
    fn new(of_image: u64, anonymous: u64) -> Result<Self, Seen> {
        let file = filled_file(of_image.max(1))?;
        memfd::seal(&file)?;
        let size = (of_image + anonymous) * PAGE_SIZE;
        let mut reservation = Reservation::new(size, PAGE_SIZE)?;
        reservation.commit(of_image * PAGE_SIZE..size)?;
        reservation.map_private(0..of_image * PAGE_SIZE, file.as_fd(), 0)?;
        Ok(Self { reservation, accessible: (of_image + anonymous) as usize, file })
    }

    fn address(&self, page: usize) -> usize {
        self.reservation.start() + page * PAGE
    }

    fn addresses(&self) -> Range<u64> {
        self.address(0) as u64..self.address(self.accessible) as u64
    }

    fn place(&self, page: usize) -> *mut u8 {
        assert!(page < self.accessible, "only accessible pages are touched");
        ptr::with_exposed_provenance_mut(self.address(page))
    }

    /// The first byte of a page.
    fn read(&self, page: usize) -> u8 {
        // SAFETY: `place` gives accessible pages alone, by the type's invariant.
        unsafe { self.place(page).read_volatile() }
    }

    /// The first byte of a page, read by a system call.
    fn read_by_kernel(&self, page: usize) -> Result<u8, Seen> {
        let (file, _) = memfd::create("probe")?;
        // SAFETY: as in `read`; the kernel reads one byte.
        let count = unsafe { libc::write(file.as_raw_fd(), self.place(page).cast(), 1) };
        check(count == 1, "a system call could not read the page")?;
        let mut byte = [0];
        sys::read_image(file.as_fd(), &mut byte, 0)?;
        Ok(byte[0])
    }

    fn write(&mut self, page: usize, byte: u8) {
        // SAFETY: as in `read`; the pages are ours alone.
        unsafe { self.place(page).write_volatile(byte) }
    }
}

fn filled_file(pages: u64) -> Result<OwnedFd, Seen> {
    let (file, _) = memfd::create("probe")?;
    sys::resize_image(file.as_fd(), pages * PAGE_SIZE)?;
    sys::write_image(file.as_fd(), &vec![IMAGE_BYTE; (pages * PAGE_SIZE) as usize], 0)?;
    Ok(file)
}

fn file_as_image() -> Tried {
    let file = filled_file(1)?;
    let mut bytes = [0; PAGE];
    let count = sys::read_image(file.as_fd(), &mut bytes, 0)?;
    check(count == PAGE && bytes == [IMAGE_BYTE; PAGE], "a memfd does not keep what is written")
}

fn seals() -> Tried {
    let file = filled_file(1)?;
    memfd::seal(&file)?;
    let written = sys::write_image(file.as_fd(), &[0], 0).is_ok();
    check(!written, "a sealed memfd could still be written")?;
    let cut = sys::resize_image(file.as_fd(), 0).is_ok();
    check(!cut, "a sealed memfd could still be cut")
}

fn no_exec_seal() -> Tried {
    let (_, sealed) = memfd::create("probe")?;
    check(sealed, "the kernel does not know MFD_NOEXEC_SEAL")
}

fn copy_on_write() -> Tried {
    let mut one = Pages::new(1, 0)?;
    let mut other = Reservation::new(PAGE_SIZE, PAGE_SIZE)?;
    other.map_private(0..PAGE_SIZE, one.file.as_fd(), 0)?;
    one.write(0, 1);
    // SAFETY: the page was mapped readable above.
    let seen = unsafe { ptr::with_exposed_provenance::<u8>(other.start()).read_volatile() };
    let mut byte = [0];
    sys::read_image(one.file.as_fd(), &mut byte, 0)?;
    check(one.read(0) == 1, "a page does not keep what is written")?;
    check(seen == IMAGE_BYTE && byte == [IMAGE_BYTE], "a private write showed elsewhere")
}

fn discard() -> Tried {
    let mut pages = Pages::new(1, 1)?;
    pages.write(0, 1);
    pages.write(1, 1);
    pages.reservation.discard(0..2 * PAGE_SIZE)?;
    check(pages.read(0) == IMAGE_BYTE, "a discarded page of an image kept what was written")?;
    check(pages.read(1) == 0, "a discarded anonymous page kept what was written")
}

fn grow() -> Tried {
    let mut reservation = Reservation::new(3 * PAGE_SIZE, PAGE_SIZE)?;
    reservation.commit(0..PAGE_SIZE)?;
    let mut pages = Pages { reservation, accessible: 1, file: filled_file(1)? };
    pages.write(0, 1);
    for page in 1..3 {
        pages.reservation.commit(page as u64 * PAGE_SIZE..(page as u64 + 1) * PAGE_SIZE)?;
        pages.accessible = page + 1;
        check(pages.read(page) == 0, "a new page was not zero")?;
        pages.write(page, 1);
    }
    check((0..3).all(|page| pages.read(page) == 1), "growth changed pages")
}

fn no_huge_pages() -> Tried {
    let pages = Pages::new(0, 1)?;
    // SAFETY: the page is ours; the advice changes no contents.
    let advised = unsafe {
        let advice = rustix::mm::Advice::LinuxNoHugepage;
        rustix::mm::madvise(pages.place(0).cast(), PAGE, advice)
    };
    if advised == Err(Errno::INVAL) {
        // A kernel without huge pages needs no advice against them.
        return Ok(());
    }
    advised.map_err(refused("madvise"))?;
    let follows = refuses_huge_pages(pages.address(0)).unwrap_or(true);
    check(follows, "the advice was accepted and not followed")
}

fn small_maps() -> Tried {
    let map = Reservation::of(PageKind::Small, PAGE_SIZE, PAGE_SIZE)?;
    let refuses = refuses_huge_pages(map.start()) == Some(true);
    check(refuses, "/proc/self/smaps does not say so of such a map")
}

/// Whether the map at an address has no huge pages, if the kernel says so.
pub(crate) fn refuses_huge_pages(address: usize) -> Option<bool> {
    let maps = fs::read_to_string("/proc/self/smaps").ok()?;
    let starts_it = |line: &&str| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&address))
    };
    let mut lines = maps.lines().skip_while(|line| starts_it(line) != Some(true));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"))?;
    Some(flags.split(' ').any(|flag| flag == "nh"))
}

/// Pages 0 and 1 are of an image, 2 and 3 anonymous; 1 and 3 are written.
fn half_written() -> Result<Pages, Seen> {
    let mut pages = Pages::new(2, 2)?;
    check((pages.read(0), pages.read(2)) == (IMAGE_BYTE, 0), "pages do not start as they should")?;
    pages.write(1, 1);
    pages.write(3, 1);
    Ok(pages)
}

fn open_pagemap() -> Result<File, Seen> {
    File::open("/proc/self/pagemap").map_err(|error| Seen(format!("/proc/self/pagemap: {error}")))
}

fn pagemap() -> Tried {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    let pages = half_written()?;
    let map = open_pagemap()?;
    let entry = |page: usize| {
        let mut word = [0; 8];
        let at = pages.address(page) as u64 / PAGE_SIZE * 8;
        let read = map.read_exact_at(&mut word, at);
        read.map_err(|error| Seen(format!("/proc/self/pagemap: {error}")))?;
        Ok::<_, Seen>(u64::from_le_bytes(word) & (PRESENT | OF_FILE))
    };
    check(entry(0)? == PRESENT | OF_FILE, "it does not know a page of an image")?;
    check(entry(1)? == PRESENT && entry(3)? == PRESENT, "it does not know a private page")
}

fn scan() -> Tried {
    let pages = Pages::new(3, 0).and_then(|mut pages| {
        check(pages.read(0) == IMAGE_BYTE, "a page does not start as its image")?;
        pages.write(1, 1);
        Ok(pages)
    })?;
    let pagemap = open_pagemap()?;
    let (all_of, inverted) = (userfault::PRESENT | userfault::OF_FILE, userfault::OF_FILE);
    // SAFETY: nothing is protected.
    let found = unsafe { userfault::scan(&pagemap, pages.addresses(), all_of, inverted, false) };
    let found = found.map_err(refused("PAGEMAP_SCAN"))?;
    check(numbers(&pages, &found) == [1], "the scan did not find the private page, and it alone")
}

fn track_writes() -> Tried {
    let features = userfault::WP_ASYNC | userfault::WP_UNPOPULATED;
    let watch = Userfault::by_call(features).map_err(refused("userfaultfd with WP_ASYNC"))?;
    let mut pages = Pages::new(2, 2)?;
    let pagemap = open_pagemap()?;
    let (address, length) = (pages.address(0), pages.accessible * PAGE);
    // SAFETY: the pages are ours, and the kernel itself answers these faults.
    unsafe {
        let mode = userfault::WRITE_PROTECT;
        watch.register(address, length, mode).map_err(refused("UFFDIO_REGISTER"))?;
        watch.protect(address, length).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    }
    let written = |pages: &Pages| {
        // SAFETY: the pages are ours.
        let found =
            unsafe { userfault::scan(&pagemap, pages.addresses(), userfault::WRITTEN, 0, true) };
        Ok::<_, Seen>(numbers(pages, &found.map_err(refused("PAGEMAP_SCAN"))?))
    };
    check(pages.read(0) == IMAGE_BYTE && pages.read(2) == 0, "a watched page reads wrongly")?;
    check(written(&pages)?.is_empty(), "pages were called written that were only read")?;
    pages.write(1, 1);
    pages.write(3, 1);
    check(written(&pages)? == [1, 3], "the pages that were written were not found")?;
    check(written(&pages)?.is_empty(), "finding written pages did not reset them")?;
    pages.write(0, 1);
    pages.write(1, 2);
    check(written(&pages)? == [0, 1], "later writes were not found")?;
    let bytes: Vec<u8> = (0..4).map(|page| pages.read(page)).collect();
    check(bytes == [1, 2, 0, 1], "a watched page did not keep what was written")
}

/// The pages that regions are of, by number.
fn numbers(pages: &Pages, regions: &[userfault::Region]) -> Vec<u64> {
    let start = pages.addresses().start;
    let page = |region: &userfault::Region| {
        (region.start - start) / PAGE_SIZE..(region.end - start) / PAGE_SIZE
    };
    regions.iter().flat_map(page).collect()
}

fn missing() -> Tried {
    let open = || Userfault::by_call(0).map_err(refused("userfaultfd"));
    filled_by(open, |pages| Ok(pages.read(0)))
}

fn userfault_device() -> Tried {
    let open = || Userfault::by_device(0).map_err(refused("/dev/userfaultfd"));
    filled_by(open, |pages| pages.read_by_kernel(0))
}

/// Fills a page when a thread waits that does `read` to it.
fn filled_by(
    open: impl FnOnce() -> Result<Userfault, Seen>,
    read: impl FnOnce(&Pages) -> Result<u8, Seen> + Send,
) -> Tried {
    const WAIT: Duration = Duration::from_secs(2);
    let pages = Pages::new(0, 1)?;
    let watch = open()?;
    let address = pages.address(0);
    // SAFETY: the page is ours, and one thread touches it whose fault is answered,
    // or ended by closing `watch`.
    unsafe { watch.register(address, PAGE, userfault::MISSING) }
        .map_err(refused("UFFDIO_REGISTER"))?;
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().spawn_scoped(scope, || read(&pages));
        let reader = reader.map_err(|error| Seen(format!("cannot start a thread: {error}")))?;
        let fill = || {
            // SAFETY: the page is ours and has nothing yet.
            unsafe { watch.fill(address, &[IMAGE_BYTE; PAGE]) }
        };
        let answered = match watch.fault(WAIT) {
            Ok(Some(_)) => fill().map_err(refused("UFFDIO_COPY")),
            Ok(None) => Err(Seen("a page fault was not reported".to_owned())),
            Err(errno) => Err(refused("reading a fault")(errno)),
        };
        // Whatever went wrong, nobody waits any longer.
        drop(watch);
        let seen = reader.join().map_err(|_| Seen("reading a page failed".to_owned()))?;
        answered?;
        check(seen? == IMAGE_BYTE, "a page that was filled reads as something else")
    })
}

/// A process of its own, because it dies of the signal.
fn missing_signal() -> Tried {
    const REFUSED: i32 = 2;
    const NOT_SENT: i32 = 3;
    let pages = Pages::new(0, 1)?;
    let address = pages.address(0);
    // SAFETY: the child makes system calls and ends, so it needs nothing of what
    // other threads were doing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: these calls concern this child alone, and the page is its own
        // copy. An alarm ends it if a kernel does not answer.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(2);
            let watch = Userfault::by_call(userfault::SIGBUS);
            let Ok(watch) = watch else { libc::_exit(REFUSED) };
            if watch.register(address, PAGE, userfault::MISSING).is_err() {
                libc::_exit(REFUSED)
            }
            ptr::with_exposed_provenance::<u8>(address).read_volatile();
            libc::_exit(NOT_SENT)
        }
    }
    check(child > 0, "fork failed")?;
    let mut status = 0;
    loop {
        // SAFETY: waits for the child made above.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        if waited == child {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(Seen(format!("waitpid: {error}")));
        }
    }
    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status), libc::WEXITSTATUS(status)) {
        (true, libc::SIGBUS, _) => Ok(()),
        (true, signal, _) => Err(Seen(format!("the page fault raised signal {signal}"))),
        (_, _, REFUSED) => Err(Seen("userfaultfd with SIGBUS is refused".to_owned())),
        _ => Err(Seen("the page fault raised no signal".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slots_are_made_of_works_here() {
        for probe in [
            Probe::ImageFile,
            Probe::Seals,
            Probe::CopyOnWrite,
            Probe::Discard,
            Probe::Grow,
            Probe::NoHugePages,
        ] {
            assert_eq!(probe.try_out(), Outcome::Works, "{probe:?}");
        }
    }

    #[test]
    fn probes_say_the_same_again_and_leave_no_descriptor() {
        const ROUNDS: usize = 20;
        let first = Probe::ALL.map(Probe::try_out);
        let descriptors = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let before = descriptors();
        for _ in 0..ROUNDS {
            assert_eq!(Probe::ALL.map(Probe::try_out), first);
        }
        // Other tests of this process open some too, and close them.
        let after = descriptors();
        assert!(after < before + ROUNDS, "{before} descriptors, then {after}");
    }

    #[test]
    fn the_limits_of_this_process_are_there() {
        let limits = Limits::read();
        assert!(limits.maps.is_some_and(|(count, limit)| count > 0 && count < limit));
        assert!(limits.mapped > 0 && limits.descriptors.is_none_or(|limit| limit > 0));
    }

    #[cfg(debug_assertions)]
    #[test]
    fn calls_that_report_success_and_do_nothing_are_noticed() {
        use crate::os::error::Call;
        for (call, probe) in [
            (Call::Discard, Probe::Discard),
            (Call::SealImage, Probe::Seals),
            (Call::WriteImage, Probe::ImageFile),
        ] {
            let outcome = crate::os::inject::pretend(call, || probe.try_out());
            assert!(matches!(outcome, Outcome::Fails(_)), "{probe:?}");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_blocked_call_is_named() {
        let outcome = crate::os::inject::fail_from(0, libc::EPERM, || Probe::ImageFile.try_out());
        let Outcome::Fails(seen) = outcome.value else { panic!("it cannot work") };
        assert!(seen.contains("memfd_create"), "{seen}");
    }
}
