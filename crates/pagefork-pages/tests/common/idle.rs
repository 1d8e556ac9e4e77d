//! What pages cost, as a machine says it that has nothing else to do.

#[cfg(debug_assertions)]
use pagefork_pages::inject::{Times, with_times};

/// Runs `body` as on a machine on which nothing else runs, so that `Auto` chooses alike each time.
pub(crate) fn on_an_idle_machine<R>(body: impl FnOnce() -> R) -> R {
    #[cfg(debug_assertions)]
    return with_times(
        Times {
            fault: 1500,
            protected_fault: 1000,
            search: 2000,
            search_all: 20_000,
            discard_all: 4000,
        },
        body,
    );
    #[cfg(not(debug_assertions))]
    body()
}
