//! How often threads wait for locks of the kernel, such as that of a process's map.

use std::io;
use std::path::Path;

use perf_event::events::Tracepoint;
use perf_event::{Builder, Counter};

/// Where the kernel's tracepoints are, if somebody has mounted them.
const TRACING: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Counts how often a thread finds a lock of the kernel taken.
pub(crate) struct LockWaits(Counter);

/// # Errors
/// Why this system does not tell.
pub(crate) fn lock_waits_are_counted() -> io::Result<()> {
    LockWaits::of_this_thread().map(drop)
}

impl LockWaits {
    /// # Errors
    /// If the tracepoint cannot be read, or the kernel does not let this process count it.
    pub(crate) fn of_this_thread() -> io::Result<Self> {
        let read =
            |root| std::fs::read_to_string(Path::new(root).join("events/lock/contention_begin/id"));
        let id = read(TRACING[0]).or_else(|_| read(TRACING[1])).map_err(|error| {
            let what =
                "lock:contention_begin is not readable; tracefs is to be mounted, and read by root";
            io::Error::new(error.kind(), format!("{what} ({error})"))
        })?;
        let id = id.trim().parse().map_err(io::Error::other)?;
        let event = Tracepoint::with_id(id);
        Builder::new(event).observe_self().include_kernel().enabled(true).build().map(Self)
    }

    /// How often so far.
    pub(crate) fn count(&mut self) -> u64 {
        self.0.read().expect("it was opened")
    }
}
