//! Page faults that the current thread has taken.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::error::PagesError;
use crate::os::fault_ring::{self, Addresses, FaultRing};
use crate::os::fork::this_process;
use crate::os::{sys, times};

/// Until when the current thread had taken how many page faults in its own code; faults
/// that the kernel takes for it may be counted too, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Faults {
    pub(crate) thread: ThreadId,
    count: FaultCount,
}

/// Numbers that differ if there was a fault in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FaultCount {
    /// Bytes that the kernel has written into a ring, one record a fault.
    Ring(u64),
    /// Faults without and with input.
    Usage(i64, i64),
}

/// A thread, never mistaken for a later one, nor for the same thread in a forked
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadId {
    number: u64,
    process: u64,
}

/// What a thread counts its faults by.
#[derive(Debug)]
enum FaultCounter {
    /// It was not needed yet.
    Unknown,
    /// Memory that the kernel writes.
    Ring(FaultRing),
    /// A system call.
    Usage,
}

#[derive(Debug)]
struct ThreadFaults {
    thread: ThreadId,
    counter: FaultCounter,
    /// How often a slot had to do without the counter.
    missed: u32,
}

/// This often a thread does without a ring, which takes two system calls to make, and in a
/// process the first one some milliseconds: it may come only once.
const MISSED_MAX: u32 = 8;

/// What [`fault_ns`] says where it was not measured, and within which bounds a measurement is
/// believed: another program may have had the processor.
const FAULT: u32 = 2500;
const FAULT_MIN: u32 = 800;
const FAULT_MAX: u32 = 6000;

thread_local! {
    static OF_THREAD: RefCell<ThreadFaults> = const {
        RefCell::new(ThreadFaults::new(ThreadId::NONE))
    };
}

impl ThreadId {
    const NONE: Self = Self { number: 0, process: 0 };

    #[inline]
    pub(crate) fn current() -> Self {
        let process = this_process();
        let known = OF_THREAD.try_with(|own| own.borrow().thread).unwrap_or(Self::NONE);
        match known {
            Self { number: 1.., process: known_process } if known_process == process => known,
            _ => Self::introduce(process),
        }
    }

    /// Gives the thread a number, another one in a forked process.
    #[cold]
    fn introduce(process: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let thread = Self { number: NEXT.fetch_add(1, Ordering::Relaxed), process };
        // At the end of a thread it gets a number each time: it is never known again.
        let _ = OF_THREAD.try_with(|own| own.replace(ThreadFaults::new(thread)));
        thread
    }
}

impl ThreadFaults {
    const fn new(thread: ThreadId) -> Self {
        Self { thread, counter: FaultCounter::Unknown, missed: 0 }
    }

    fn count_in_memory(&mut self) -> Option<FaultCount> {
        if let FaultCounter::Unknown = self.counter {
            self.counter = FaultRing::new().map_or(FaultCounter::Usage, FaultCounter::Ring);
        }
        match &self.counter {
            FaultCounter::Ring(ring) => Some(FaultCount::Ring(ring.written())),
            _ => None,
        }
    }
}

impl Faults {
    /// If that takes no system call, or is asked for often.
    pub(crate) fn try_now() -> Option<Self> {
        let thread = ThreadId::current();
        let count = OF_THREAD.try_with(|own| {
            let own = &mut *own.borrow_mut();
            if let FaultCounter::Unknown = own.counter {
                own.missed += 1;
                if own.missed <= MISSED_MAX {
                    return None;
                }
            }
            own.count_in_memory()
        });
        Some(Self { thread, count: count.ok()?? })
    }

    /// How many faults the current thread has taken since an earlier time, if that was the current one, too.
    pub(crate) fn since(self, earlier: Self) -> Option<u64> {
        let count = match (self.count, earlier.count) {
            (FaultCount::Ring(now), FaultCount::Ring(before)) => {
                now.wrapping_sub(before) / fault_ring::RECORD_SIZE
            }
            (FaultCount::Usage(minor, major), FaultCount::Usage(minor_before, major_before)) => {
                u64::try_from(minor - minor_before + major - major_before).ok()?
            }
            _ => return None,
        };
        (self.thread == earlier.thread).then_some(count)
    }

    /// Copies the addresses of all faults that the current thread has taken since `self`, if
    /// there is room for them and they are known; says how many.
    pub(crate) fn addresses_since(self, into: &mut Addresses) -> Option<usize> {
        let (FaultCount::Ring(before), true) = (self.count, self.thread == ThreadId::current())
        else {
            return None;
        };
        let count = OF_THREAD.try_with(|own| match &own.borrow().counter {
            FaultCounter::Ring(ring) => ring.since(before, into),
            _ => None,
        });
        count.ok()?
    }

    /// # Errors
    /// If faults cannot be counted.
    #[inline]
    pub(crate) fn now() -> Result<Self, PagesError> {
        let thread = ThreadId::current();
        let count = OF_THREAD.try_with(|own| own.borrow_mut().count_in_memory());
        let count = match count {
            Ok(Some(count)) => count,
            _ => {
                let (minor, major) = sys::count_faults()?;
                FaultCount::Usage(minor, major)
            }
        };
        Ok(Self { thread, count })
    }
}

/// What it costs to discard a private page and to make it private again, in nanoseconds:
/// three times a fault at a fresh page, since most pages are read first, and then copied.
pub(crate) fn fault_ns() -> u32 {
    if let Some(times) = times::fixed() {
        return times.fault;
    }
    fault_ring::fresh_fault_ns()
        .map_or(FAULT, |fresh| fresh.saturating_mul(3).clamp(FAULT_MIN, FAULT_MAX))
}

/// Whether the current thread counts its page faults without a system call.
///
/// # Examples
///
/// ```
/// if !pagefork_pages::counts_faults_in_memory() {
///     println!("perf is forbidden here: each reset takes a system call more");
/// }
/// ```
pub fn counts_faults_in_memory() -> bool {
    // In a forked process the thread begins anew.
    let _ = ThreadId::current();
    OF_THREAD.try_with(|own| own.borrow_mut().count_in_memory().is_some()).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::writers::Writers;

    /// Touches fresh pages; says where they were.
    fn touch(pages: usize) -> usize {
        let mut fresh =
            crate::os::reservation::Reservation::new(pages as u64 * 4096, 4096).unwrap();
        fresh.commit(0..pages as u64 * 4096).unwrap();
        for page in 0..pages {
            let place = fresh.start() + page * 4096;
            // SAFETY: the page is accessible, and no other code uses it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place).write_volatile(1) };
        }
        fresh.start()
    }

    #[test]
    fn every_fault_counts() {
        for _ in 0..2000 {
            let before = Faults::now().unwrap();
            touch(1);
            assert_ne!(before, Faults::now().unwrap());
        }
        // More than a ring holds, and more in a tick than are sampled of other events.
        let before = Faults::now().unwrap();
        touch(50_000);
        let after = Faults::now().unwrap();
        assert_ne!(before, after);
        touch(1);
        assert_ne!(after, Faults::now().unwrap());
    }

    #[test]
    fn the_counts_of_another_thread_mean_nothing() {
        let here = Faults::now().unwrap();
        let there = std::thread::spawn(ThreadId::current).join().unwrap();
        assert_ne!(there, here.thread);
        let before = Faults { thread: there, ..here };
        let mut writers = Writers::default();
        writers.enter();
        assert!(writers.show_in_faults(here, here));
        assert!(!writers.show_in_faults(before, here));
        assert!(before.addresses_since(&mut [0; _]).is_none());
    }

    #[test]
    fn few_faults_are_listed_and_many_are_not() {
        if !counts_faults_in_memory() {
            return;
        }
        let before = Faults::now().unwrap();
        let pages = touch(3);
        let now = Faults::now().unwrap();
        assert_ne!(before, now);
        let mut listed: Addresses = [0; _];
        let count = before.addresses_since(&mut listed).unwrap();
        let mut places = (pages..pages + 3 * 4096).step_by(4096);
        assert!(places.all(|place| listed[..count].contains(&(place as u64))), "{listed:x?}");
        touch(1000);
        assert!(before.addresses_since(&mut listed).is_none());
        // What was overwritten meanwhile is not listed.
        assert!(now.addresses_since(&mut listed).is_none());
        let last = Faults::now().unwrap();
        assert!(last.addresses_since(&mut listed).unwrap() < 8);
    }

    #[test]
    fn a_thread_that_asks_often_gets_a_counter() {
        std::thread::spawn(|| {
            let first = Faults::try_now();
            let later: Vec<bool> =
                (0..2 * MISSED_MAX).map(|_| Faults::try_now().is_some()).collect();
            assert!(first.is_none());
            assert_eq!(later.contains(&true), counts_faults_in_memory());
            assert!(later.is_sorted(), "once it has one, it has");
        })
        .join()
        .unwrap();
    }
}
