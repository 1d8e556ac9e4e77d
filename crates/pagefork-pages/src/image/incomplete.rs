//! The pages of an image that runs before all of it is here.
//!
//! ```text
//!  alias      | group | . | group | group | . | . |     one writable map, registered
//!                 ^ copied in, verified before
//!  file       | group | . | group | group | . | . |     sealed: no other map can write it
//!                 v mapped copy-on-write
//!  slots      | group | . | group | group | . | . |     registered, every one
//!                       ^ SIGBUS in the thread that touches it
//!  table        present absent ...
//! ```
//!
//! A hole of the file that is read through any map which is not registered becomes a page of zeros
//! for all of them. So there is no such map: each is made inaccessible, registered, and only then
//! made accessible; forked processes get none; and the file is read by no system call before the
//! [table](super::residency) says that the pages are here. In forked processes the addresses are
//! free, and other threads may map something there: so what would use or unmap them is refused, and
//! what is dropped is leaked. Pages are copied into the file alone,
//! never into a slot, where they would be private without a page fault that strategies notice.
//! The registrations end when all is here, so nobody ever reads a hole, poisoned ones included.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pagefork_layout::page::PAGE_SIZE;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::image::residency::{Missed, Presence, Residency};
use crate::os::absent_pages::{self, serves_absent_pages};
use crate::os::error::{Absence, AbsentPage, FileProblem, PagesError};
use crate::os::fork::this_process;
use crate::os::lock::lock;
use crate::os::reservation::{Reservation, give_to_forks};
use crate::os::signal_file::SignalFile;
use crate::os::userfaultfd::{RegisterMode, Userfaultfd};
use crate::os::{memfd, sys};

/// Bytes of pages that come together: a group. The last one of an image may have fewer.
pub const PAGE_GROUP: u64 = 16 << 10;

/// The longest that anybody waits for a group.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The pages of an image that are not all here yet, in a memfd that all its slots map.
///
/// Who has the pages elsewhere [installs](Self::install) them group by group. Whoever needs a group
/// that is absent asks for it ([`Self::take_wanted`]) and waits, but not for longer than the
/// patience that was set.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_pages::{FileSpan, Image, IncompletePages, PAGE_GROUP};
///
/// let pages = IncompletePages::new("example", 20 << 10, Duration::from_secs(10))?;
/// let span = FileSpan { slot: 0..20 << 10, file_offset: 0 };
/// let image = Image::from_incomplete(&pages, "example", vec![0..1 << 20], &[span], [])?;
///
/// // Another thread brings what is asked for.
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         while pages.missing().first() == Some(&(0..2)) {
///             for group in pages.take_wanted() {
///                 let size = pages.group_size(group) as usize;
///                 pages.install(group, &vec![7; size]).unwrap();
///             }
///         }
///     });
///     let mut bytes = [0; 2];
///     image.read(PAGE_GROUP, &mut bytes)?;
///     assert_eq!(bytes, [7, 7]);
///     Ok::<(), pagefork_pages::PagesError>(())
/// })?;
/// assert_eq!((pages.residency().present, pages.is_whole()), (1, false));
/// pages.install(0, &[8; PAGE_GROUP as usize])?;
/// assert!(pages.is_whole());
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Debug)]
pub struct IncompletePages {
    file: OwnedFd,
    size: u64,
    /// Address of the alias, which stays where it is.
    start: usize,
    /// Where the kernel has none, nothing runs before all is here.
    faults: Option<Userfaultfd>,
    residency: Residency,
    patience: Duration,
    wanted: SignalFile,
    waits: AtomicU64,
    waited_nanoseconds: AtomicU64,
    waiting_cpu_nanoseconds: AtomicU64,
    blocked_nanoseconds: AtomicU64,
    maps: Mutex<Maps>,
    is_whole: AtomicBool,
    process: u64,
}

#[derive(Debug)]
struct Maps {
    /// All of the file, for writing until it is whole.
    alias: ManuallyDrop<Reservation>,
    /// Addresses in slots that are registered, or whose registration has failed.
    registered: Vec<Range<u64>>,
}

/// How much of an incomplete image is here. [`IncompletePages`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResidencyCounts {
    /// Groups of the image.
    pub groups: u64,
    /// Those that are here.
    pub present: u64,
    /// Those that will never be.
    pub poisoned: u64,
    /// How often one was needed that was not here.
    pub waits: u64,
    /// How long threads have waited for each of these, all together: one that waits for several at once
    /// waits for each.
    pub waited: Duration,
    /// What these threads have taken of a processor while they waited: to ask, to sleep and to wake. It is a part
    /// of their processor time, and of the time that they have waited.
    pub waiting_cpu: Duration,
    /// How long threads could not go on for want of groups, all together: one that waits for several at
    /// once waits once, so that this is no longer than those threads have run.
    pub blocked: Duration,
}

impl IncompletePages {
    /// An image's pages, `size` bytes, of which none is here. `patience` is how long anybody waits
    /// for a group, a year at most. `name` is as of [`Image::new`](crate::Image::new).
    ///
    /// # Errors
    /// The limit that was met.
    ///
    /// # Panics
    /// If that is not whole pages.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn new(name: &str, size: u64, patience: Duration) -> Result<Arc<Self>, PagesError> {
        assert!(size.is_multiple_of(PAGE_SIZE), "{size} bytes are not whole pages");
        let faults = match serves_absent_pages() {
            true => Some(absent_pages::open()?),
            false => None,
        };
        let (file, _) = memfd::create(name)?;
        sys::resize_image(file.as_fd(), size)?;
        let mut alias = Reservation::new(size.max(PAGE_SIZE), PAGE_SIZE)?;
        alias.map_window(0..size, file.as_fd(), 0)?;
        let start = alias.start();
        if let Some(faults) = &faults
            && size > 0
        {
            faults.register(start as u64..start as u64 + size, RegisterMode::Missing)?;
        }
        // From here on the alias alone can write it.
        memfd::seal_but_for_maps(&file)?;
        let pages = Self {
            file,
            size,
            start,
            faults,
            residency: Residency::new(size.div_ceil(PAGE_GROUP)),
            patience: patience.min(PATIENCE_MAX),
            wanted: SignalFile::new()?,
            waits: AtomicU64::new(0),
            waited_nanoseconds: AtomicU64::new(0),
            waiting_cpu_nanoseconds: AtomicU64::new(0),
            blocked_nanoseconds: AtomicU64::new(0),
            maps: Mutex::new(Maps { alias: ManuallyDrop::new(alias), registered: Vec::new() }),
            is_whole: AtomicBool::new(false),
            process: this_process(),
        };
        if size == 0 {
            pages.finish()?;
        }
        Ok(Arc::new(pages))
    }

    /// Whether slots can be made before all is here. Where the kernel tells nobody of faults in
    /// absent pages, they are made when it is whole.
    ///
    /// # Examples
    ///
    /// See [`serves_absent_pages`].
    pub fn runs_incomplete(&self) -> bool {
        self.faults.is_some()
    }

    /// Bytes of the image's data.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_pages::IncompletePages;
    ///
    /// let pages = IncompletePages::new("example", 8192, std::time::Duration::ZERO)?;
    /// assert_eq!(pages.size(), 8192);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a group: [`PAGE_GROUP`] but for the last one.
    ///
    /// # Panics
    /// If there is no such group; so do all functions that take one.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn group_size(&self, group: u64) -> u64 {
        assert!(group < self.residency.count(), "there is no group {group}");
        PAGE_GROUP.min(self.size - group * PAGE_GROUP)
    }

    /// Puts a group in its place, whose bytes were verified. Who waits for it goes on. `false`: it was
    /// here, comes by another thread right now, or is [given up](Self::give_up). With the
    /// last one the image is whole: nothing can write to it any more, and it costs what any other
    /// image does.
    ///
    /// # Errors
    /// [`PagesError::GroupSize`] for another number of bytes than the group has; what the system
    /// refuses. The group can be installed again then. If it was the last one it may be here, and what
    /// has failed is that the image becomes final: that is tried again whenever a group is installed.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn install(&self, group: u64, bytes: &[u8]) -> Result<bool, PagesError> {
        Ok(self.install_timed(group, bytes)?.is_some())
    }

    /// As [`Self::install`], and says when the group was in its place: before anybody who waits for it could go on,
    /// which may be long before this returns. `None`: it was not put there now.
    ///
    /// # Errors
    /// As of [`Self::install`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use pagefork_pages::IncompletePages;
    ///
    /// let pages = IncompletePages::new("example", 8192, Duration::from_secs(10))?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| pages.wait(0..4096).map(|()| Instant::now()));
    ///     let placed = pages.install_timed(0, &[7; 8192])?.expect("it was absent");
    ///     assert!(placed <= waits.join().unwrap()?);
    ///     Ok::<(), pagefork_pages::PagesError>(())
    /// })?;
    /// assert_eq!(pages.install_timed(0, &[7; 8192])?, None);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn install_timed(&self, group: u64, bytes: &[u8]) -> Result<Option<Instant>, PagesError> {
        let expected = self.group_size(group);
        if bytes.len() as u64 != expected {
            let found = bytes.len() as u64;
            return Err(PagesError::GroupSize { group, found, expected });
        }
        self.check_process()?;
        let Some(arrival) = self.residency.begin(group) else {
            self.finish_if_complete()?;
            return Ok(None);
        };
        self.place(group * PAGE_GROUP, bytes)?;
        // Who waits goes on from here, perhaps on this processor.
        let placed = Instant::now();
        if arrival.finish() == self.residency.count() {
            self.finish()?;
        }
        Ok(Some(placed))
    }

    /// Makes the image final if all groups are here and the thread that brought the last one could not,
    /// or has not yet. No group is on its way then, so that nobody needs the alias for writing.
    fn finish_if_complete(&self) -> Result<(), PagesError> {
        let is_complete = self.residency.present() == self.residency.count();
        match is_complete && !self.is_whole() {
            true => self.finish(),
            false => Ok(()),
        }
    }

    /// Copies pages into the file. The caller has the right to bring them.
    fn place(&self, offset: u64, bytes: &[u8]) -> Result<(), PagesError> {
        let Some(faults) = &self.faults else {
            let maps = lock(&self.maps);
            // SAFETY: the alias is writable until the image is whole, which it is not while a group
            // is on its way; nothing reads the pages before the table says that they are here.
            unsafe { maps.alias.write_shared(offset, bytes) };
            return Ok(());
        };
        let address = self.start as u64 + offset;
        let mut done = 0;
        while done < bytes.len() {
            done += match faults.copy(address + done as u64, &bytes[done..]) {
                Ok(copied) => copied as usize,
                // It came with an arrival that failed half-way: the same bytes.
                Err(failure) if failure.errno == Errno::EXIST => PAGE_SIZE as usize,
                // The maps of the process change right now.
                Err(failure) if failure.errno == Errno::AGAIN => 0,
                Err(failure) => return Err(failure.into()),
            };
        }
        Ok(())
    }

    /// Makes the image as final as any other. Several threads may want that: one does it, and if that
    /// fails the next one goes on from there.
    fn finish(&self) -> Result<(), PagesError> {
        let mut maps = lock(&self.maps);
        if self.is_whole() {
            return Ok(());
        }
        // The last map that could write goes, and with it its registration.
        maps.alias.map_view(0..self.size, self.file.as_fd(), 0)?;
        // It may have been sealed by one who could not end the registrations.
        if !sys::is_sealed(self.file.as_fd())? {
            memfd::seal(&self.file)?;
        }
        if let Some(faults) = &self.faults {
            while let Some(addresses) = maps.registered.last() {
                faults.unregister(addresses.clone())?;
                give_to_forks(addresses.clone())?;
                maps.registered.pop();
            }
        }
        self.is_whole.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives up what is absent: nobody has it any more. Who waits for it, or will, gets an error at
    /// once, and a guest that touches it traps. Returns how many groups that are.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_pages::{Absence, AbsentPage, IncompletePages, PagesError};
    ///
    /// let pages = IncompletePages::new("example", 8192, Duration::from_secs(10))?;
    /// assert_eq!(pages.give_up(), 1);
    /// let error = pages.wait(0..4096).unwrap_err();
    /// assert_eq!(error, AbsentPage { group: 0, why: Absence::GivenUp });
    /// # Ok::<(), PagesError>(())
    /// ```
    pub fn give_up(&self) -> u64 {
        self.residency.end();
        self.residency.poisoned()
    }

    /// A descriptor that can be polled for reading: it becomes ready when somebody begins to wait
    /// for a group, until [`Self::take_wanted`] is called.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_pages::IncompletePages;
    /// use rustix::event::{PollFd, PollFlags, poll};
    ///
    /// let pages = IncompletePages::new("example", 8192, Duration::from_millis(1))?;
    /// assert!(pages.wait(0..4096).is_err(), "nobody brings it");
    /// let mut asked = [PollFd::from_borrowed_fd(pages.wanted_signal(), PollFlags::IN)];
    /// assert_eq!(poll(&mut asked, None)?, 1);
    /// assert_eq!(pages.take_wanted(), [0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wanted_signal(&self) -> BorrowedFd<'_> {
        self.wanted.as_fd()
    }

    /// The groups that somebody has begun to wait for since the last call, ascending, but for those
    /// that have come meanwhile.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn take_wanted(&self) -> Vec<u64> {
        // First, so that what is asked for from now on is signalled anew.
        self.wanted.clear();
        let mut groups = Vec::new();
        self.residency.take_wanted(|group| groups.push(group));
        groups
    }

    /// How much of the image is here.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn residency(&self) -> ResidencyCounts {
        ResidencyCounts {
            groups: self.residency.count(),
            present: self.residency.present(),
            poisoned: self.residency.poisoned(),
            waits: self.waits.load(Ordering::Relaxed),
            waited: Duration::from_nanos(self.waited_nanoseconds.load(Ordering::Relaxed)),
            waiting_cpu: Duration::from_nanos(self.waiting_cpu_nanoseconds.load(Ordering::Relaxed)),
            blocked: Duration::from_nanos(self.blocked_nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Whether a group is here.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_pages::IncompletePages;
    ///
    /// let pages = IncompletePages::new("example", 8192, Duration::from_secs(10))?;
    /// assert!(!pages.is_present(0));
    /// assert!(pages.install(0, &[1; 8192])? && pages.is_present(0));
    /// assert!(!pages.install(0, &[2; 8192])?, "it is here");
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn is_present(&self, group: u64) -> bool {
        self.residency.state(group) == Presence::Present
    }

    /// The groups that are not here: ascending, apart.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn missing(&self) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        for group in (0..self.residency.count()).filter(|group| !self.is_present(*group)) {
            match missing.last_mut() {
                Some(last) if last.end == group => last.end += 1,
                _ => missing.push(group..group + 1),
            }
        }
        missing
    }

    /// Whether all of it is here, and final.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages`].
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Acquire)
    }

    /// Asks for the groups that a range of bytes lies in, and waits until they are here: for each
    /// of them at most as long as the patience that was set. Not for the thread that brings them.
    ///
    /// # Errors
    /// [`AbsentPage`] names the first that did not come.
    ///
    /// # Panics
    /// If the range does not lie in the image.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::give_up`].
    pub fn wait(&self, range: Range<u64>) -> Result<(), AbsentPage> {
        if self.is_whole() || range.is_empty() {
            return Ok(());
        }
        assert!(range.end <= self.size, "{range:#x?} lies outside of {:#x} bytes", self.size);
        self.check_process()?;
        let groups = range.start / PAGE_GROUP..(range.end - 1) / PAGE_GROUP + 1;
        // All at once, so that they take one round trip.
        let (mut awaited, mut is_new, mut clocks) = (Vec::new(), false, None);
        for group in groups.filter(|group| !self.is_present(*group)) {
            // Before anybody can know of it, so that no part of a wait is longer than the wait.
            clocks.get_or_insert_with(|| (Instant::now(), thread_cpu()));
            is_new |= self.ask(group);
            awaited.push(group);
        }
        let Some((began, cpu)) = clocks else { return Ok(()) };
        if is_new {
            self.wanted.raise();
        }
        let mut blocked = Duration::ZERO;
        let mut awaited = awaited.into_iter();
        let waited = awaited.try_for_each(|group| self.wait_for(group, began, &mut blocked));
        self.note_blocked(blocked, cpu);
        waited
    }

    /// Waits for bytes and reads them.
    ///
    /// # Errors
    /// As of [`Self::wait`]; if they cannot be read.
    ///
    /// # Panics
    /// As of [`Self::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_pages::IncompletePages;
    ///
    /// let pages = IncompletePages::new("example", 8192, Duration::from_secs(10))?;
    /// pages.install(0, &[3; 8192])?;
    /// let mut bytes = [0; 2];
    /// pages.read(5000, &mut bytes)?;
    /// assert_eq!(bytes, [3, 3]);
    /// # Ok::<(), pagefork_pages::PagesError>(())
    /// ```
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), PagesError> {
        self.wait(offset..offset + into.len() as u64)?;
        sys::read_image(self.file.as_fd(), into, offset)?;
        Ok(())
    }

    /// Waits until all of it is here and final.
    ///
    /// # Errors
    /// As of [`Self::wait`]; what the system refuses.
    ///
    /// # Examples
    ///
    /// See [`IncompletePages::wait`].
    pub fn wait_whole(&self) -> Result<(), PagesError> {
        self.wait(0..self.size)?;
        // The thread that brought the last group may be about to do it.
        self.finish()
    }

    /// As [`Self::wait`], of the page at a byte offset, from a signal handler too: it uses atomics,
    /// a futex, clocks and a write to an eventfd.
    pub(crate) fn wait_in_handler(&self, offset: u64) -> Result<(), AbsentPage> {
        let group = offset / PAGE_GROUP;
        self.check_process()?;
        let began = Instant::now();
        if self.is_present(group) {
            return Ok(());
        }
        let cpu = thread_cpu();
        if self.ask(group) {
            self.wanted.raise();
        }
        let mut blocked = Duration::ZERO;
        let waited = self.wait_for(group, began, &mut blocked);
        self.note_blocked(blocked, cpu);
        waited
    }

    /// This thread could not go on for so long, and had taken `cpu` of a processor before.
    fn note_blocked(&self, blocked: Duration, cpu: Duration) {
        self.blocked_nanoseconds.fetch_add(blocked.as_nanos() as u64, Ordering::Relaxed);
        let taken = thread_cpu().saturating_sub(cpu).as_nanos() as u64;
        self.waiting_cpu_nanoseconds.fetch_add(taken, Ordering::Relaxed);
    }

    /// Asks for a group unless it is here or was asked for.
    fn ask(&self, group: u64) -> bool {
        if self.residency.state(group) != Presence::Absent {
            return false;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.residency.want(group)
    }

    /// Waits for a group that was not here when this began; `blocked` gets how long that was.
    fn wait_for(
        &self,
        group: u64,
        began: Instant,
        blocked: &mut Duration,
    ) -> Result<(), AbsentPage> {
        let waited = self.residency.wait(group, Instant::now() + self.patience);
        // Read once, so that no thread was blocked for longer than its groups were waited for.
        *blocked = began.elapsed();
        self.waited_nanoseconds.fetch_add(blocked.as_nanos() as u64, Ordering::Relaxed);
        waited.map_err(|missed| {
            let why = match missed {
                Missed::Poisoned => Absence::GivenUp,
                Missed::Overdue => Absence::Overdue,
            };
            AbsentPage { group, why }
        })
    }

    /// # Errors
    /// In a process that was forked from the one with the maps before all was here: it does not have
    /// them, and nobody brings pages there.
    pub(crate) fn check_process(&self) -> Result<(), AbsentPage> {
        match self.is_whole() || self.process == this_process() {
            true => Ok(()),
            false => Err(AbsentPage { group: 0, why: Absence::Forked }),
        }
    }

    /// # Errors
    /// If a span of the pages is none of them.
    pub(super) fn check_span(&self, start: u64, needed: u64) -> Result<(), PagesError> {
        let problem = match start.is_multiple_of(PAGE_SIZE) {
            false => FileProblem::Unaligned { offset: start },
            true if needed > self.size => FileProblem::TooShort { size: self.size, needed },
            true => return Ok(()),
        };
        Err(PagesError::FileRefused(problem))
    }

    /// Address of byte `offset`, where the host reads pages that are here.
    pub(super) fn address(&self, offset: u64) -> usize {
        self.start + offset as usize
    }

    /// Maps pages copy-on-write into a slot, so that it is told of those that are absent. Unless
    /// this succeeds, they are inaccessible. `registered` gets the map, which is put there also if
    /// this fails half-way.
    ///
    /// # Errors
    /// [`PagesError::PageAbsent`] where nothing tells, and not all of it is here; the limit that was
    /// met.
    pub(crate) fn map(
        self: &Arc<Self>,
        slot: &mut Reservation,
        range: Range<u64>,
        file_offset: u64,
        registered: &mut Vec<RegisteredMap>,
    ) -> Result<(), PagesError> {
        self.check_process()?;
        let mut maps = lock(&self.maps);
        if self.is_whole() {
            slot.map_private(range, self.file.as_fd(), file_offset)?;
            return Ok(());
        }
        let group = file_offset / PAGE_GROUP;
        let Some(faults) = &self.faults else {
            return Err(AbsentPage { group, why: Absence::NotServed }.into());
        };
        let start = slot.start() as u64;
        let addresses = start + range.start..start + range.end;
        maps.registered.push(addresses.clone());
        registered.push(RegisteredMap { pages: Arc::clone(self), addresses: addresses.clone() });
        slot.map_inaccessible(range.clone(), self.file.as_fd(), file_offset)?;
        faults.register(addresses, RegisterMode::Missing)?;
        slot.commit(range)?;
        Ok(())
    }
}

impl AsFd for IncompletePages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for IncompletePages {
    fn drop(&mut self) {
        // In a forked process something else may lie there.
        if self.check_process().is_ok() {
            let maps = self.maps.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: it is not used again, as the value goes.
            unsafe { ManuallyDrop::drop(&mut maps.alias) };
        }
    }
}

/// What this thread has taken of a processor. Signal handlers may ask.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A map in a slot that is told of absent pages. It is dropped before others can have the addresses.
#[derive(Debug)]
pub(crate) struct RegisteredMap {
    pages: Arc<IncompletePages>,
    addresses: Range<u64>,
}

impl Drop for RegisteredMap {
    fn drop(&mut self) {
        if self.pages.check_process().is_err() {
            // Nothing is registered here, and who had the lock when the process was forked has it still.
            return;
        }
        lock(&self.pages.maps).registered.retain(|addresses| *addresses != self.addresses);
    }
}
