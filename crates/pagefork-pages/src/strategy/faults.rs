use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::PagesError;
use crate::fault_ring::FaultRing;
use crate::pagemap;
use crate::sys;

/// Until when the current thread had taken how many page faults in its own code; faults
/// that the kernel takes for it may be counted too, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Faults {
    pub(crate) thread: Thread,
    count: Count,
}

/// Numbers that differ if there was a fault in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Count {
    /// Bytes that the kernel has written into a ring, one record a fault.
    Ring(u64),
    /// Faults without and with input.
    Usage(i64, i64),
}

/// A thread, never mistaken for a later one, nor for the same thread in a forked
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thread {
    number: u64,
    process: u64,
}

/// What a thread counts its faults by.
#[derive(Debug)]
enum Counter {
    /// Nobody has asked.
    Unknown,
    /// Memory that the kernel writes.
    Ring(FaultRing),
    /// A system call.
    Usage,
}

#[derive(Debug)]
struct OfThread {
    thread: Thread,
    counter: Counter,
}

thread_local! {
    static OF_THREAD: RefCell<OfThread> = const {
        RefCell::new(OfThread { thread: Thread::NONE, counter: Counter::Unknown })
    };
}

impl Thread {
    const NONE: Self = Self { number: 0, process: 0 };

    pub(crate) fn current() -> Self {
        let process = pagemap::this_process();
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
        let _ = OF_THREAD.try_with(|own| {
            let old = own.replace(OfThread { thread, counter: Counter::Unknown });
            // The ring of a parent is not mapped in a forked process.
            if let (Counter::Ring(ring), true) = (old.counter, old.thread.process != process) {
                std::mem::forget(ring);
            }
        });
        thread
    }
}

impl Faults {
    /// # Errors
    /// If faults cannot be counted.
    pub(crate) fn now() -> Result<Self, PagesError> {
        let thread = Thread::current();
        let count = OF_THREAD.try_with(|own| {
            let own = &mut *own.borrow_mut();
            if let Counter::Unknown = own.counter {
                own.counter = FaultRing::new().map_or(Counter::Usage, Counter::Ring);
            }
            match &own.counter {
                Counter::Ring(ring) => Some(Count::Ring(ring.written())),
                _ => None,
            }
        });
        let count = match count {
            Ok(Some(count)) => count,
            _ => {
                let (minor, major) = sys::count_faults()?;
                Count::Usage(minor, major)
            }
        };
        Ok(Self { thread, count })
    }
}

/// Whether the current thread counts its page faults without a system call.
pub fn counts_faults_in_memory() -> bool {
    matches!(Faults::now(), Ok(Faults { count: Count::Ring(_), .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Run;

    /// Touches so many fresh pages.
    fn touch(pages: usize) {
        let mut fresh = crate::reservation::Reservation::new(pages as u64 * 4096, 4096).unwrap();
        fresh.commit(0..pages as u64 * 4096).unwrap();
        for page in 0..pages {
            let place = fresh.start() + page * 4096;
            // SAFETY: the page is accessible and nobody else's.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place).write_volatile(1) };
        }
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
    fn the_same_counts_of_another_thread_mean_nothing() {
        let here = Faults::now().unwrap();
        let there = std::thread::spawn(Thread::current).join().unwrap();
        assert_ne!(there, here.thread);
        let mut run = Run::default();
        run.enter();
        assert!(!run.made_nothing_private(Some(Faults { thread: there, ..here }), here));
    }

    #[test]
    fn later_counts_differ() {
        let now = Faults::now().unwrap();
        let mut run = Run::default();
        run.enter();
        assert!(run.made_nothing_private(Some(now), now));
        touch(1);
        assert!(!run.made_nothing_private(Some(now), Faults::now().unwrap()));
    }
}
