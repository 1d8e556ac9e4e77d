//! Which pages were written: they are read-only, and a handler of SIGSEGV makes those writable that
//! somebody writes to, and notes which.
//!
//! Each range that is made writable can make two more maps. Ranges grow with their number, and after
//! the last one all is made writable at once: so no guest can use up the maps of a process.

use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use pagefork_layout::page::{PAGE_SIZE, joined};
use rustix::mm::{self, MprotectFlags};

use crate::os::address_list::{AddressEntry, AddressList};
use crate::os::error::Call;
use crate::os::limits;
use crate::os::sys::{CallFailure, attempt};

/// As many ranges have one size, each next size being eight times as large.
const LIFTS_A_SIZE: usize = 64;
/// Pages: 1, 8, 64, 512.
const SIZES: usize = 4;
/// As many ranges are made writable one by one.
pub(crate) const LIFTS_MAX: usize = LIFTS_A_SIZE * SIZES;
/// The number of ranges from which on all pages may be writable: one more than can be noted.
const ALL: usize = LIFTS_MAX + 1;

/// Whether a handler of SIGSEGV calls [`lift_protection`].
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// Slots with read-only pages.
static GUARDED: AddressList<AtomicPtr<Guarded>> = AddressList::new();

/// Says that from now on a handler of SIGSEGV in this process calls [`lift_protection`]: then
/// [`DeltaTracker::Protect`](crate::DeltaTracker::Protect) can make pages of slots read-only.
///
/// # Examples
///
/// See [`lift_protection`].
pub fn lift_protection_is_called() {
    IS_CALLED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_called() -> bool {
    IS_CALLED.load(Ordering::Relaxed)
}

/// Whether read-only pages can be made writable again at any time, so that
/// [`DeltaTracker::Protect`](crate::DeltaTracker::Protect) works: not where what can be written counts
/// against a limit (`vm.overcommit_memory` 2, or RLIMIT_DATA), which may be used up then.
///
/// # Examples
///
/// ```
/// println!("pages can be protected: {}", pagefork_pages::protects_writes());
/// ```
pub fn protects_writes() -> bool {
    !limits::writable_counts()
}

/// Makes the page at this address writable if a slot has made it read-only to notice writes. Returns
/// whether the instruction that has raised the signal goes on.
///
/// For handlers of SIGSEGV with the code `SEGV_ACCERR`, raised by a *write* of code that uses the slot:
/// it is async-signal-safe, takes no lock, and leaves `errno`.
///
/// # Examples
///
/// ```
/// // What a handler does with the address in its `siginfo_t`:
/// let page = [0u8; 4096];
/// assert!(!pagefork_pages::lift_protection(page.as_ptr().addr()), "it is no page of a slot");
/// // Once it is installed:
/// pagefork_pages::lift_protection_is_called();
/// ```
pub fn lift_protection(address: usize) -> bool {
    let Some(entry) = GUARDED.find(address) else { return false };
    // SAFETY: the entry is that of a slot which the thread uses that has just written
    // there, so its guard lives until the write has been made.
    let guarded = unsafe { entry.of_handler.load(Ordering::Acquire).as_ref() };
    guarded.is_some_and(|guarded| guarded.lift_around(address))
}

/// Pages that are read-only, but for the ranges that were made writable.
#[derive(Debug)]
struct Guarded {
    /// Addresses: ascending, apart, none empty. Each is whole maps when it is made read-only.
    parts: Vec<Range<usize>>,
    /// How many ranges were made writable; from [`ALL`] on everything may be.
    count: AtomicUsize,
    /// Where they start and end.
    lifted: [(AtomicUsize, AtomicUsize); LIFTS_MAX],
}

impl Guarded {
    /// Makes pages around one that somebody writes to writable.
    fn lift_around(&self, address: usize) -> bool {
        let Some(part) = self.parts.iter().find(|part| part.contains(&address)) else {
            return false;
        };
        self.lift(part, address..address + 1)
    }

    /// Makes pages of one part writable, and some around them. Whether they are now.
    fn lift(&self, part: &Range<usize>, addresses: Range<usize>) -> bool {
        let size = self.count.load(Ordering::Relaxed).min(LIFTS_MAX - 1) / LIFTS_A_SIZE;
        let length = (PAGE_SIZE as usize) << (3 * size);
        let start = addresses.start & !(length - 1);
        let end = addresses.end.next_multiple_of(length);
        let range = start.max(part.start)..end.min(part.end);
        // They are noted before anybody can write to them.
        let index = self.count.fetch_add(1, Ordering::Relaxed);
        if let Some((start, end)) = self.lifted.get(index) {
            start.store(range.start, Ordering::Relaxed);
            end.store(range.end, Ordering::Relaxed);
            if change(Call::UnguardWrites, range).is_ok() {
                return true;
            }
        }
        // Too many ranges, or the process has no map left: then all is one map again, for which the
        // kernel needs none.
        self.count.store(ALL, Ordering::Relaxed);
        self.lift_all().is_ok()
    }

    fn lift_all(&self) -> Result<(), CallFailure> {
        self.parts.iter().try_for_each(|part| change(Call::UnguardWrites, part.clone()))
    }

    fn protect(&self) -> Result<(), CallFailure> {
        self.count.store(0, Ordering::Relaxed);
        self.parts.iter().try_for_each(|part| change(Call::GuardWrites, part.clone()))
    }
}

/// Makes pages read-only, or writable.
fn change(call: Call, range: Range<usize>) -> Result<(), CallFailure> {
    let access = match call {
        Call::GuardWrites => MprotectFlags::READ,
        _ => MprotectFlags::READ | MprotectFlags::WRITE,
    };
    let length = range.end - range.start;
    attempt(call, length as u64, || {
        let start = ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the range lies in a part of a guard, whose maker owns it: `WriteGuard::new`.
        unsafe { mm::mprotect(start, length, access) }
    })
}

/// Pages whose writes are noticed, as long as it lives.
#[derive(Debug)]
pub(crate) struct WriteGuard {
    entry: &'static AddressEntry<AtomicPtr<Guarded>>,
    guarded: Arc<Guarded>,
}

impl WriteGuard {
    /// Makes pages at addresses read-only, ascending and apart. If that fails all count as written.
    ///
    /// # Safety
    /// Until it is dropped the pages belong to the caller, who may write to them.
    pub(crate) unsafe fn new(parts: Vec<Range<usize>>) -> Self {
        let span =
            parts.first().map_or(0, |part| part.start)..parts.last().map_or(0, |part| part.end);
        let lifted = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; LIFTS_MAX];
        let guarded = Arc::new(Guarded { parts, count: AtomicUsize::new(0), lifted });
        let pointer = Arc::as_ptr(&guarded).cast_mut();
        let entry = GUARDED.add(span, |known| known.store(pointer, Ordering::Release));
        let guard = Self { entry, guarded };
        guard.protect();
        guard
    }

    /// Makes all read-only again: nothing counts as written then, unless that fails.
    pub(crate) fn protect(&self) {
        if self.guarded.protect().is_err() {
            self.guarded.count.store(ALL, Ordering::Relaxed);
            // If that fails, too, a fault tries it again.
            let _ = self.guarded.lift_all();
        }
    }

    pub(crate) fn parts(&self) -> &[Range<usize>] {
        &self.guarded.parts
    }

    /// Makes pages writable before somebody writes to them who takes no signal: the kernel. They count
    /// as written.
    pub(crate) fn lift(&self, addresses: Range<usize>) {
        for part in self.parts() {
            let common = addresses.start.max(part.start)..addresses.end.min(part.end);
            // Many a program reads again and again into one buffer.
            if !common.is_empty() && !self.has_lifted(&common) {
                self.guarded.lift(part, common);
            }
        }
    }

    /// Whether all of a range was made writable at once. Nobody else uses the pages meanwhile.
    fn has_lifted(&self, range: &Range<usize>) -> bool {
        let contains = |(start, end): &(AtomicUsize, AtomicUsize)| {
            start.load(Ordering::Relaxed) <= range.start && range.end <= end.load(Ordering::Relaxed)
        };
        let count = self.guarded.count.load(Ordering::Relaxed);
        // Where all may be writable, it is not known whether that has worked.
        self.guarded.lifted.get(..count).is_some_and(|lifted| lifted.iter().any(contains))
    }

    /// Addresses of what may have been written, ascending, apart; `None`: any of them.
    pub(crate) fn written(&self) -> Option<Vec<Range<u64>>> {
        let lifted = self.guarded.lifted.get(..self.guarded.count.load(Ordering::Relaxed))?;
        let range = |(start, end): &(AtomicUsize, AtomicUsize)| {
            start.load(Ordering::Relaxed) as u64..end.load(Ordering::Relaxed) as u64
        };
        Some(joined(lifted.iter().map(range).collect()))
    }

    /// Makes all writable.
    ///
    /// # Errors
    /// If the kernel refuses; they are guarded as before then.
    pub(crate) fn end(&self) -> Result<(), CallFailure> {
        let ended = self.guarded.lift_all();
        if ended.is_err() {
            self.guarded.count.store(ALL, Ordering::Relaxed);
        }
        ended
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        let _ = self.guarded.lift_all();
        GUARDED.remove(self.entry, |known| known.store(ptr::null_mut(), Ordering::Release));
    }
}
