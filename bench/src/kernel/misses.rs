//! How often processors miss their caches, where the machine counts that: threads that write to the same line take
//! it from each other.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Counts the misses of a thread outside the kernel.
pub(crate) struct CacheMisses(Counter);

impl CacheMisses {
    /// # Errors
    /// If the machine has no counter for them, or the kernel does not let this process use it.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let counter = Builder::new(Hardware::CACHE_MISSES).observe_self().enabled(true).build();
        counter.map(Self).map_err(|error| {
            let what = "the machine has no counter for them, or the kernel keeps it for others";
            io::Error::new(error.kind(), format!("{what} ({error})"))
        })
    }

    /// How many so far.
    pub(crate) fn count(&mut self) -> u64 {
        self.0.read().expect("it was opened")
    }
}
