//! What holds in a process that was forked.
//!
//! It is another process: page maps, counters of page faults and windows that its parent has
//! open are not its own. And of its parent's threads it has one, so ours are started anew when
//! they are needed. As they hold [`working`] while they do something, none of them is gone in
//! the middle of it with a lock held.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use pagefork_layout::page::PAGE_SIZE;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::os::lock::lock;

/// A number that differs between a process and those forked from it, however they are: by
/// `fork(3)` or a system call. It is never 0.
///
/// # Examples
///
/// ```
/// let process = pagefork_pages::this_process();
/// assert!(process != 0 && process == pagefork_pages::this_process());
/// ```
pub fn this_process() -> u64 {
    static WORD: OnceLock<&AtomicU64> = OnceLock::new();
    let word = WORD.get_or_init(|| {
        watch();
        wiped_word()
    });
    match word.load(Ordering::Relaxed) {
        0 => introduce(word),
        number => number,
    }
}

/// Gives this process a number.
#[cold]
fn introduce(word: &AtomicU64) -> u64 {
    // A forked process goes on from here: with numbers that its parent never had.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let known = word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    known.map_or_else(|known| known, |_| number)
}

/// Which the handler of forks sets to 0, if there is no other word.
static FALLBACK: AtomicU64 = AtomicU64::new(0);

/// A word that is 0 in a process that was just forked.
fn wiped_word() -> &'static AtomicU64 {
    let size = PAGE_SIZE as usize;
    // SAFETY: a fresh page, which stays for ever, and which the kernel alone changes: in
    // processes that are forked, before any thread reads it. Zeros are a value of the type.
    unsafe {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let Ok(page) = mm::mmap_anonymous(ptr::null_mut(), size, access, flags) else {
            return &FALLBACK;
        };
        if mm::madvise(page, size, Advice::LinuxWipeOnFork).is_err() {
            let _ = mm::munmap(page, size);
            return &FALLBACK;
        }
        AtomicU64::from_ptr(page.cast())
    }
}

static WORK: Mutex<()> = Mutex::new(());

/// Keeps this process from being forked by `fork(3)` as long as the result is held: for
/// threads that the embedder knows nothing of, while they hold locks. What runs meanwhile must
/// not fork.
///
/// # Examples
///
/// ```
/// let shared = std::sync::Mutex::new(0);
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         // A forked process would not have this thread, and find the lock held for good.
///         let _working = pagefork_pages::working();
///         *shared.lock().unwrap() += 1;
///     });
/// });
/// ```
pub fn working() -> MutexGuard<'static, ()> {
    lock(&WORK)
}

/// What else a forked process does before anything else.
static FORGET: OnceLock<fn()> = OnceLock::new();

/// Has forked processes call `forget`, which uses nothing but atomics and words of its thread.
/// There is one such function.
pub(crate) fn call_in_children(forget: fn()) {
    FORGET.get_or_init(|| forget);
}

/// Held by the thread that forks, from before until after.
struct Held(UnsafeCell<Option<MutexGuard<'static, ()>>>);

// SAFETY: only the thread that has locked `WORK` uses it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Asks to be told of forks.
fn watch() {
    extern "C" fn before() {
        let guard = working();
        // SAFETY: this thread has the lock.
        unsafe { *HELD.0.get() = Some(guard) };
    }
    extern "C" fn after() {
        // SAFETY: this thread has had the lock since `before`.
        let guard = unsafe { (*HELD.0.get()).take() };
        drop(guard);
    }
    extern "C" fn after_in_child() {
        FALLBACK.store(0, Ordering::Relaxed);
        if let Some(forget) = FORGET.get() {
            forget();
        }
        after();
    }
    // SAFETY: the handlers use atomics, a lock that only this thread holds then, and
    // a thread-local word.
    let watched = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after_in_child)) };
    assert_eq!(watched, 0, "a handler of forks takes a few bytes");
}
