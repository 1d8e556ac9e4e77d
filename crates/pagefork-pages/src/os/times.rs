//! What faults and searches take, as a test says it in place of measurements: what is chosen by them is then
//! the same on each machine, however much else runs.

use std::cell::Cell;

/// What things take, in nanoseconds. A look at a page takes what it is believed to before it is measured.
///
/// # Examples
///
/// ```
/// # #[cfg(debug_assertions)] {
/// use pagefork_pages::inject::{Times, with_times};
///
/// let times = Times { fault: 1500, protected_fault: 1000, search: 2000, search_all: 20_000,
///     discard_all: 4000 };
/// with_times(times, || {
///     // Here slots choose by these.
/// });
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// To discard a private page, and to make it private again.
    pub fault: u32,
    /// To protect a page, and to lift the protection.
    pub protected_fault: u32,
    /// A search for lifted protection.
    pub search: u32,
    /// A search of a whole slot.
    pub search_all: u32,
    /// To discard all of a slot, where that is compared with a search.
    pub discard_all: u32,
}

thread_local! {
    static FIXED: Cell<Option<Times>> = const { Cell::new(None) };
}

/// Runs `body`, in which this thread takes these times for measured.
pub fn with_times<R>(times: Times, body: impl FnOnce() -> R) -> R {
    struct Restore(Option<Times>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FIXED.set(self.0);
        }
    }
    let _restore = Restore(FIXED.replace(Some(times)));
    body()
}

/// What is to be taken for measured; nothing in builds without debug assertions.
pub(crate) fn fixed() -> Option<Times> {
    if cfg!(debug_assertions) { FIXED.get() } else { None }
}
