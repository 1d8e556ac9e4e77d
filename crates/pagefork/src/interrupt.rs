use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::error::SystemError;

/// Interrupts whatever guest runs in a store, from any thread. Cheap to clone.
///
/// The guest traps with [`TrapCode::Interrupt`](crate::TrapCode) at its next
/// function entry or loop iteration; a host function that runs is not disturbed
/// unless it [asks](crate::Caller::interruption), but the guest traps where it returns.
/// So does every guest around, up to the embedder's call. An interrupt that comes while
/// no guest runs is forgotten when the next call begins, and one that comes after the
/// store was dropped does nothing.
///
/// # Examples
///
/// ```
/// use pagefork::{Engine, Instance, Module, Store, Trap, TrapCode};
///
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module (func (export "spin") (loop (br 0))))"#)?;
/// let mut store = Store::new(&engine, ());
/// let instance = Instance::new(&mut store, &module, &[])?;
/// let spin = instance.get_typed_func::<(), ()>(&mut store, "spin")?;
///
/// let handle = store.interrupt_handle()?;
/// // An interrupt that comes before the call is forgotten, so it is sent until it works.
/// let (done, stop) = std::sync::mpsc::channel::<()>();
/// let watchdog = std::thread::spawn(move || {
///     while stop.recv_timeout(std::time::Duration::from_millis(1)).is_err() {
///         handle.interrupt();
///     }
/// });
/// let error = spin.call(&mut store, ()).unwrap_err();
/// done.send(()).expect("the watchdog listens");
/// watchdog.join().expect("it ends");
/// assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct InterruptHandle {
    interrupts: Arc<Interrupts>,
}

impl InterruptHandle {
    pub(crate) fn new(interrupts: &Arc<Interrupts>) -> Self {
        Self { interrupts: Arc::clone(interrupts) }
    }

    /// Interrupts the call that runs now.
    pub fn interrupt(&self) {
        self.interrupts.request();
    }
}

/// Tells host code that waits or works for long whether the guest that called it is to be
/// stopped, by a timeout or an [`InterruptHandle`]. It traps where the host code returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use pagefork::{Caller, Engine, Func, Instance, Module, Store, Trap, TrapCode};
///
/// let engine = Engine::default();
/// let text = r#"(module (import "" "wait" (func)) (func $start (call 0)) (start $start))"#;
/// let module = Module::new(&engine, text)?;
/// let mut store = Store::new(&engine, ());
/// let wait = Func::wrap(&mut store, |caller: Caller<'_, ()>| {
///     while !caller.interruption().is_requested() {
///         std::thread::sleep(Duration::from_millis(1));
///     }
/// });
/// store.set_timeout(Some(Duration::from_millis(5)))?;
/// let error = Instance::new(&mut store, &module, &[wait.into()]).unwrap_err();
/// assert_eq!(error.downcast_ref::<Trap>().expect("a trap").code(), TrapCode::Interrupt);
/// # Ok::<(), pagefork::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Interruption<'a> {
    interrupts: Option<&'a Arc<Interrupts>>,
}

impl<'a> Interruption<'a> {
    /// Nothing can ask for the guest.
    pub const NEVER: Self = Self { interrupts: None };

    pub(crate) fn of(interrupts: &'a Arc<Interrupts>) -> Self {
        Self { interrupts: Some(interrupts) }
    }

    /// Whether the guest is to be stopped. Costs a load from memory, and stays true until
    /// the embedder's call has ended.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.interrupts.is_some_and(|interrupts| interrupts.is_noted())
    }

    /// Whether that is or can become so while the store is borrowed: the call has a
    /// timeout, or somebody has an [`InterruptHandle`]. Otherwise there is no need to ask.
    pub fn is_possible(&self) -> bool {
        self.is_requested()
            || self.interrupts.is_some_and(|interrupts| Arc::strong_count(interrupts) > 1)
    }
}

/// The interrupt words of a store's slots, and whether an interrupt is wanted.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Whether anything was requested since the last time it was cleared: what
    /// entries and returns from host functions look at without taking the lock.
    noted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Addresses of the interrupt words. Invariant: each is in a mapped slot;
    /// the store empties the list before it unmaps.
    words: Vec<usize>,
    requested: bool,
    /// Whether every interruption point is to call the host, interrupt or not.
    every_point: bool,
}

impl State {
    fn show(&self) {
        let value = u32::from(self.requested || self.every_point);
        for word in &self.words {
            let word = std::ptr::with_exposed_provenance_mut::<u32>(*word);
            // SAFETY: listed words are in mapped slots, aligned, and otherwise
            // only read, by guests.
            unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Relaxed);
        }
    }
}

impl Interrupts {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self) {
        let mut state = self.state();
        state.requested = true;
        self.noted.store(true, Ordering::Relaxed);
        state.show();
    }

    /// Whether an interrupt is wanted. It is until the next call of the embedder's begins,
    /// so that nothing between the guest's frames can swallow it.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed)
    }

    /// Forgets a request that came too late for the call that it was meant for.
    pub(crate) fn clear(&self) {
        if self.is_noted() {
            let mut state = self.state();
            self.noted.store(false, Ordering::Relaxed);
            state.requested = false;
            state.show();
        }
    }

    /// Writes the words again, after slots have been reset.
    pub(crate) fn show_again(&self) {
        self.state().show();
    }

    /// Makes every interruption point call the host, or only those after a
    /// request.
    pub(crate) fn set_every_point(&self, every_point: bool) {
        let mut state = self.state();
        state.every_point = every_point;
        state.show();
    }

    /// Adds the interrupt word of a slot.
    ///
    /// # Safety
    /// `word` is in a slot that stays mapped until the word is removed.
    pub(crate) unsafe fn add(&self, word: usize) {
        let mut state = self.state();
        state.words.push(word);
        state.show();
    }

    /// Lists these words instead of those that are.
    ///
    /// # Safety
    /// As of [`Interrupts::add`].
    pub(crate) unsafe fn list(&self, words: impl Iterator<Item = usize>) {
        let mut state = self.state();
        state.words.clear();
        state.words.extend(words);
        state.show();
    }

    pub(crate) fn remove(&self, word: usize) {
        self.state().words.retain(|known| *known != word);
    }

    /// Forgets all words: their slots are about to go.
    pub(crate) fn detach(&self) {
        self.state().words.clear();
    }
}

/// Interrupts a store's guest once a time has passed, unless dropped before.
#[derive(Debug)]
pub(crate) struct Deadline {
    key: (Instant, u64),
}

impl Deadline {
    /// # Errors
    /// If the thread that watches the time cannot be started.
    pub(crate) fn after(
        timeout: Duration,
        interrupts: &Arc<Interrupts>,
    ) -> Result<Option<Self>, SystemError> {
        // A time that far away never comes.
        let Some(at) = Instant::now().checked_add(timeout) else { return Ok(None) };
        let watchdog = Watchdog::get()?;
        let mut pending = watchdog.pending();
        pending.count += 1;
        let key = (at, pending.count);
        pending.deadlines.insert(key, Arc::clone(interrupts));
        if pending.deadlines.first_key_value().is_some_and(|(first, _)| *first == key) {
            watchdog.changed.notify_one();
        }
        Ok(Some(Self { key }))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Ok(watchdog) = Watchdog::get() {
            // Interrupts are requested under this lock: none comes after it.
            watchdog.pending().deadlines.remove(&self.key);
        }
    }
}

/// The one thread of the process that waits for deadlines.
#[derive(Default)]
struct Watchdog {
    pending: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Default)]
struct Pending {
    deadlines: BTreeMap<(Instant, u64), Arc<Interrupts>>,
    /// How many deadlines there have been: tells equal times apart.
    count: u64,
    running: bool,
}

impl Watchdog {
    fn get() -> Result<&'static Self, SystemError> {
        static WATCHDOG: OnceLock<Watchdog> = OnceLock::new();
        let watchdog = WATCHDOG.get_or_init(Self::default);
        let mut pending = watchdog.pending();
        if !pending.running {
            let thread = std::thread::Builder::new().name("pagefork-timeouts".to_owned());
            thread.spawn(|| watchdog.run()).map_err(SystemError::Watchdog)?;
            pending.running = true;
        }
        drop(pending);
        Ok(watchdog)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut pending = self.pending();
        loop {
            let now = Instant::now();
            let wait = match pending.deadlines.first_entry() {
                Some(first) if first.key().0 <= now => {
                    first.remove().request();
                    continue;
                }
                Some(first) => Some(first.key().0 - now),
                None => None,
            };
            pending = match wait {
                Some(time) => {
                    let waited = self.changed.wait_timeout(pending, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_show_requests_only_while_they_are_listed() {
        let word = Box::new(AtomicU32::new(0));
        let interrupts = Arc::new(Interrupts::default());
        // SAFETY: the box outlives the registration.
        unsafe { interrupts.add((&raw const *word).expose_provenance()) };
        let handle = InterruptHandle::new(&interrupts);
        handle.interrupt();
        assert_eq!(word.load(Ordering::Relaxed), 1);
        assert!(interrupts.is_noted() && Interruption::of(&interrupts).is_requested());
        interrupts.clear();
        assert!(!interrupts.is_noted() && !Interruption::default().is_requested());
        assert_eq!(word.load(Ordering::Relaxed), 0);
        interrupts.detach();
        handle.interrupt();
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_deadline_that_was_dropped_in_time_interrupts_nothing() {
        let (kept, dropped) = (Arc::new(Interrupts::default()), Arc::new(Interrupts::default()));
        let time = Duration::from_millis(30);
        let cancelled = Deadline::after(time, &dropped).unwrap();
        let waiting = Deadline::after(time, &kept).unwrap();
        drop(cancelled);
        let start = Instant::now();
        while !kept.is_noted() {
            assert!(start.elapsed() < Duration::from_secs(20), "no interrupt came");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= Duration::from_millis(20) && !dropped.is_noted());
        drop(waiting);
    }
}
