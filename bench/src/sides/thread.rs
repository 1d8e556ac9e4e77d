//! A thread for each side, so that what an engine, or the kernel for it, keeps for a thread is not used by
//! another: Pagefork has the kernel note all page faults of a thread, which each fault of wasmtime's would pay for.

use std::fmt;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// The thread on which all that a side does is done. Clones are the same thread.
#[derive(Clone)]
pub struct SideThread(Arc<ThreadPool>);

impl SideThread {
    /// A new one.
    pub(crate) fn new(side: &str) -> Self {
        let name = side.to_owned();
        let threads = ThreadPoolBuilder::new().num_threads(1).thread_name(move |_| name.clone());
        Self(Arc::new(threads.build().expect("this machine has room for a thread")))
    }

    /// Does work on it while the caller waits, so that two sides never work at a time.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.0.install(work)
    }
}

impl fmt::Debug for SideThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SideThread").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread::current;

    use super::*;

    #[test]
    fn each_side_has_a_thread_of_its_own_and_panics_come_from_there() {
        let [one, other] = ["one", "other"].map(SideThread::new);
        let id = |thread: &SideThread| thread.run(|| current().id());
        assert_eq!(id(&one), id(&one.clone()));
        assert!(id(&one) != id(&other) && id(&one) != current().id());
        let wrong = catch_unwind(AssertUnwindSafe(|| one.run(|| panic!("it was wrong"))));
        assert_eq!(wrong.unwrap_err().downcast_ref(), Some(&"it was wrong"));
        assert_eq!(one.run(|| 7), 7, "it goes on");
    }
}
