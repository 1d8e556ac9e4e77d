//! The threads that share out work.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::ThreadPoolBuilder;

/// Does work that is shared out by rayon, on all threads of its current pool.
///
/// A forked process has none of the threads of rayon's own pool, so work that waits for them never
/// ends. There each piece of work gets a pool of its own.
pub(crate) fn on_all<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    /// The process that uses rayon's own pool, or 0.
    static USER: AtomicU32 = AtomicU32::new(0);
    let own = process::id();
    let user = USER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
    if user.is_ok() || user == Err(own) || rayon::current_thread_index().is_some() {
        return work();
    }
    let pool = ThreadPoolBuilder::new().build();
    // Without a thread more it is done on this one.
    let alone = || ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    match pool.or_else(|_| alone()) {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}
