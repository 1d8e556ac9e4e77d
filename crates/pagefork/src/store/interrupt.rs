//! Interrupts from other threads, and timeouts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use crate::base::error::SystemError;
use crate::code::epochs::{self, EpochClock};
use crate::store::thread;

/// Interrupts the guest that runs in a store, from any thread. Cheap to clone.
///
/// The guest traps with [`TrapCode::Interrupt`](crate::TrapCode) at its next
/// function entry or loop iteration; a host function that runs is not disturbed
/// unless it [asks](crate::Caller::interruption), but the guest traps where it returns; a guest
/// that waits for an [asynchronous](crate::Linker::func_wrap_async) one traps at once.
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
    ///
    /// # Examples
    ///
    /// See [`InterruptHandle`].
    pub fn interrupt(&self) {
        wake(self.interrupts.request());
    }

    /// Asks that the call that runs now be suspended, if it was made with
    /// [`Func::call_suspendable`](crate::Func::call_suspendable) or
    /// [`Store::resume`](crate::Store::resume): at the guest's next function entry or loop
    /// iteration, or where a host function returns to it. Host functions that wait break off if
    /// they [ask](Interruption::is_suspension_requested), as those of WASI do. While host
    /// functions run between the guest's frames, the request waits until the last of them has
    /// returned. One that comes while no such call runs is forgotten.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{CallProgress, Engine, Instance, Module, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (memory (export "memory") 1)
    ///     (func (export "count") (loop (i32.store (i32.const 0)
    ///         (i32.add (i32.load (i32.const 0)) (i32.const 1))) (br 0))))"#)?;
    /// let mut store = Store::new(&engine, ());
    /// let instance = Instance::new(&mut store, &module, &[])?;
    /// let count = instance.get_func(&mut store, "count").expect("it is exported");
    ///
    /// let handle = store.interrupt_handle()?;
    /// let (done, stop) = std::sync::mpsc::channel::<()>();
    /// let other_thread = std::thread::spawn(move || {
    ///     while stop.recv_timeout(std::time::Duration::from_millis(1)).is_err() {
    ///         handle.suspend();
    ///     }
    /// });
    /// let progress = count.call_suspendable(&mut store, &[])?;
    /// done.send(()).expect("the thread listens");
    /// other_thread.join().expect("it ends");
    /// assert!(matches!(progress, CallProgress::Suspended));
    /// store.abandon();
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn suspend(&self) {
        self.interrupts.request_suspension();
    }
}

/// Tells host code that waits or works for long whether the guest that called it is to be
/// stopped, by a timeout or an [`InterruptHandle`]. It traps where the host code returns. Futures of
/// [asynchronous](crate::Linker::func_wrap_async) host functions need not ask: they are dropped.
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
    ///
    /// # Examples
    ///
    /// See [`Interruption`].
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.interrupts.is_some_and(|interrupts| interrupts.is_noted())
    }

    /// Whether the guest is to be [suspended](InterruptHandle::suspend): a host function that
    /// waits can return [`Caller::suspend_before`](crate::Caller::suspend_before) then.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagefork::{CallProgress, Caller, Engine, Linker, Module, Result, Store};
    ///
    /// let engine = Engine::default();
    /// let module = Module::new(&engine, r#"(module (import "host" "wait" (func $wait))
    ///     (func (export "run") (call $wait)))"#)?;
    /// let mut linker = Linker::new(&engine);
    /// // Waits until the data is true, and takes no thread while the guest is suspended.
    /// linker.func_wrap("host", "wait", |mut caller: Caller<'_, bool>| -> Result<()> {
    ///     while !caller.data() {
    ///         if caller.interruption().is_suspension_requested() {
    ///             return Err(caller.suspend_before());
    ///         }
    ///         std::thread::sleep(Duration::from_millis(1));
    ///     }
    ///     Ok(())
    /// })?;
    /// let mut store = Store::new(&engine, false);
    /// let run = linker.instantiate(&mut store, &module)?.get_func(&mut store, "run").unwrap();
    /// let handle = store.interrupt_handle()?;
    /// // A request that comes before the call is forgotten, so it is sent until it works.
    /// let (done, stop) = std::sync::mpsc::channel::<()>();
    /// let other_thread = std::thread::spawn(move || {
    ///     while stop.recv_timeout(Duration::from_millis(1)).is_err() {
    ///         handle.suspend();
    ///     }
    /// });
    /// assert!(matches!(run.call_suspendable(&mut store, &[])?, CallProgress::Suspended));
    /// done.send(()).expect("the thread listens");
    /// other_thread.join().expect("it ends");
    ///
    /// *store.data_mut() = true;
    /// assert!(matches!(store.resume()?, CallProgress::Finished(_)));
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    #[inline]
    pub fn is_suspension_requested(&self) -> bool {
        self.interrupts.is_some_and(|interrupts| interrupts.is_suspension_requested())
    }

    /// Whether one of the two is or can become so while the store is borrowed: the call has a
    /// timeout, or an [`InterruptHandle`] exists. Otherwise there is no need to ask.
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork::{Caller, Engine, Func, Store};
    ///
    /// let mut store = Store::new(&Engine::default(), ());
    /// let asks = |caller: Caller<'_, ()>| i32::from(caller.interruption().is_possible());
    /// let asks = Func::wrap(&mut store, asks).typed::<(), i32>(&store)?;
    /// assert_eq!(asks.call(&mut store, ())?, 0);
    /// let _handle = store.interrupt_handle()?;
    /// assert_eq!(asks.call(&mut store, ())?, 1);
    /// # Ok::<(), pagefork::Error>(())
    /// ```
    pub fn is_possible(&self) -> bool {
        self.is_requested()
            || self.interrupts.is_some_and(|interrupts| Arc::strong_count(interrupts) > 1)
    }
}

/// The interrupt words of a store's slots, and whether an interrupt is wanted.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// What is to be looked at, as bits: what entries and returns of host functions test
    /// without taking the lock.
    due: AtomicU32,
    state: Mutex<InterruptState>,
    /// See [`Interrupts::task`].
    task: AtomicPtr<Context<'static>>,
}

/// Why a guest may not just be entered, or go on when a host function returns: a bit of
/// [`Interrupts::due`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// An interrupt was requested since they were last cleared.
    Interrupt = 1,
    /// The guest may be suspended.
    Suspension = 2,
    /// The store is broken.
    Broken = 4,
    /// An outermost entry has more to do than to enter.
    Preparation = 8,
    /// The store's deadline in epochs has come, at which guests trap.
    Epoch = 16,
    /// The guest's suspension was requested since requests were last cleared.
    SuspensionRequest = 32,
    /// Host code has touched pages of an image's file that are gone: the store is broken.
    LostPages = 64,
    /// Pages of an image may be absent.
    AbsentPages = 128,
    /// A host function that has not returned yet has failed.
    Raised = 256,
}

impl Due {
    /// The bits that say that the guest must end.
    const INTERRUPTS: u32 = Self::Interrupt as u32 | Self::Epoch as u32;

    /// The bits that matter where a host function returns.
    pub(crate) const AFTER_HOST_CALLS: u32 = Self::INTERRUPTS
        | Self::Suspension as u32
        | Self::SuspensionRequest as u32
        | Self::Broken as u32
        | Self::LostPages as u32
        | Self::AbsentPages as u32
        | Self::Raised as u32;

    /// The bits of requests that are meant for one call.
    const REQUESTS: u32 = Self::Interrupt as u32 | Self::SuspensionRequest as u32;
}

#[derive(Debug, Default)]
struct InterruptState {
    /// Addresses of the interrupt words. Invariant: each is in a mapped slot;
    /// the store empties the list before it unmaps.
    words: Vec<usize>,
    requested: bool,
    /// Whether the store's deadline in epochs has come.
    epoch: bool,
    /// Whether a callback is asked then.
    epoch_calls: bool,
    /// Whether every interruption point is to call the host, interrupt or not.
    every_point: bool,
    /// Whether the guest is to let others run.
    yields: bool,
    /// Whether it is to be suspended.
    suspends: bool,
    /// Who waits for the end of a host call that the guest waits for.
    waker: Option<Waker>,
}

impl InterruptState {
    fn show(&self) {
        let wanted = self.requested || self.epoch || self.yields || self.suspends;
        let value = u32::from(wanted || self.every_point);
        for word in &self.words {
            let word = std::ptr::with_exposed_provenance_mut::<u32>(*word);
            // SAFETY: listed words are in mapped slots, aligned, and otherwise
            // only read, by guests.
            unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Relaxed);
        }
    }
}

impl Interrupts {
    fn state(&self) -> MutexGuard<'_, InterruptState> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be [woken](wake) is who waits.
    #[must_use]
    fn request(&self) -> Option<Waker> {
        let mut state = self.state();
        state.requested = true;
        self.set_due(Due::Interrupt, true);
        state.show();
        state.waker.take()
    }

    fn request_suspension(&self) {
        let mut state = self.state();
        state.suspends = true;
        self.set_due(Due::SuspensionRequest, true);
        state.show();
    }

    /// Whether the guest is to be suspended.
    #[inline]
    pub(crate) fn is_suspension_requested(&self) -> bool {
        self.due.load(Ordering::Relaxed) & Due::SuspensionRequest as u32 != 0
    }

    /// Whether the guest's suspension was requested, which is forgotten.
    pub(crate) fn take_suspension_request(&self) -> bool {
        let requested = self.is_suspension_requested();
        if requested {
            let mut state = self.state();
            self.set_due(Due::SuspensionRequest, false);
            state.suspends = false;
            state.show();
        }
        requested
    }

    /// Has the task woken at the next request.
    pub(crate) fn wake_at_request(&self, waker: &Waker) {
        let mut state = self.state();
        match &mut state.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Forgets the task that was to be woken, once nothing waits any more.
    pub(crate) fn forget_waker(&self) {
        let waker = self.state().waker.take();
        // What it frees is the executor's.
        drop(waker);
    }

    /// Asks the guest to let others run at its next interruption point.
    pub(crate) fn request_yield(&self) {
        let mut state = self.state();
        state.yields = true;
        state.show();
    }

    /// Whether the guest was asked to let others run, which is forgotten.
    pub(crate) fn take_yield(&self) -> bool {
        let mut state = self.state();
        let yields = std::mem::take(&mut state.yields);
        if yields {
            state.show();
        }
        yields
    }

    /// The task that polls a call of the store's guest now; null if none does.
    pub(crate) fn task(&self) -> *mut Context<'static> {
        self.task.load(Ordering::Relaxed)
    }

    /// Says which task polls from now on; returns the one before.
    #[inline]
    pub(crate) fn set_task(&self, task: *mut Context<'static>) -> *mut Context<'static> {
        // Only the thread that enters the store's guest writes it: no exchange is needed.
        let outer = self.task.load(Ordering::Relaxed);
        self.task.store(task, Ordering::Relaxed);
        outer
    }

    /// Whether an interrupt is wanted. It is until the next call of the embedder's begins,
    /// so that nothing between the guest's frames can swallow it.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.due.load(Ordering::Relaxed) & Due::INTERRUPTS != 0
    }

    /// Whether host code has touched pages that are gone.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.due.load(Ordering::Relaxed) & Due::LostPages as u32 != 0
    }

    /// Whether the deadline has come and a callback is to be asked.
    pub(crate) fn is_epoch_due(&self) -> bool {
        let state = self.state();
        state.epoch && state.epoch_calls
    }

    /// Says that the deadline has come, or that it has not.
    #[must_use]
    fn set_epoch(&self, has_come: bool) -> Option<Waker> {
        let mut state = self.state();
        if state.epoch == has_come {
            return None;
        }
        state.epoch = has_come;
        let traps = has_come && !state.epoch_calls;
        self.set_due(Due::Epoch, traps);
        state.show();
        if traps { state.waker.take() } else { None }
    }

    /// Says what happens at the deadline: a trap, or a callback is asked.
    pub(crate) fn set_epoch_traps(&self, traps: bool) {
        let mut state = self.state();
        state.epoch_calls = !traps;
        self.set_due(Due::Epoch, state.epoch && traps);
    }

    /// The bits of what is due, which live as long as the interrupts.
    pub(crate) fn due(&self) -> *const AtomicU32 {
        &raw const self.due
    }

    pub(crate) fn set_due(&self, what: Due, is_due: bool) {
        let bit = what as u32;
        match (is_due, self.due.load(Ordering::Relaxed) & bit != 0) {
            (true, false) => drop(self.due.fetch_or(bit, Ordering::Relaxed)),
            (false, true) => drop(self.due.fetch_and(!bit, Ordering::Relaxed)),
            _ => (),
        }
    }

    /// Forgets requests that came too late for the call that they were meant for.
    pub(crate) fn clear(&self) {
        if self.due.load(Ordering::Relaxed) & Due::REQUESTS != 0 {
            let mut state = self.state();
            self.set_due(Due::Interrupt, false);
            self.set_due(Due::SuspensionRequest, false);
            (state.requested, state.suspends) = (false, false);
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

/// What happens when the time of a [`Deadline`] has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AtEnd {
    /// The guest is interrupted.
    Interrupt,
    /// It lets others run.
    Yield,
}

impl Deadline {
    /// # Errors
    /// If the thread that watches the time cannot be started.
    pub(crate) fn after(
        timeout: Duration,
        interrupts: &Arc<Interrupts>,
        at_end: AtEnd,
    ) -> Result<Option<Self>, SystemError> {
        // A time that far away never comes.
        let Some(at) = Instant::now().checked_add(timeout) else { return Ok(None) };
        let mut watchdog = Watchdog::get();
        watchdog.run()?;
        watchdog.count += 1;
        let key = (at, watchdog.count);
        let watched =
            Watched { interrupts: Arc::clone(interrupts), at_end, thread: thread::number() };
        watchdog.deadlines.insert(key, watched);
        if watchdog.deadlines.first_key_value().is_some_and(|(first, _)| *first == key) {
            epochs::ring();
        }
        Ok(Some(Self { key }))
    }

    /// How long it is until then.
    pub(crate) fn rest(&self) -> Duration {
        self.key.0.saturating_duration_since(Instant::now())
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // Interrupts are requested under this lock: none comes after it.
        Watchdog::get().deadlines.remove(&self.key);
    }
}

/// A deadline in epochs, until it is dropped.
#[derive(Debug)]
pub(crate) struct EpochWatch {
    epochs: Arc<EpochClock>,
    deadline: u64,
    number: u64,
    interrupts: Arc<Interrupts>,
    is_watched: bool,
}

impl EpochWatch {
    /// Where the thread that watches cannot be started, [`watch_deadlines`] says so.
    pub(crate) fn new(
        epochs: &Arc<EpochClock>,
        deadline: u64,
        interrupts: &Arc<Interrupts>,
    ) -> Self {
        let mut watchdog = Watchdog::get();
        let is_watched = watchdog.run().is_ok();
        watchdog.count += 1;
        let number = watchdog.count;
        let queue = watchdog.epochs.entry(Arc::as_ptr(epochs).addr()).or_default();
        queue.insert((deadline, number), (Arc::clone(epochs), Arc::clone(interrupts)));
        epochs.add_watched();
        // What advanced the epoch before may have rung for nobody.
        let mut wakers = Vec::new();
        watchdog.look_at_epochs(&mut wakers);
        drop(watchdog);
        wakers.into_iter().for_each(wake);
        let (epochs, interrupts) = (Arc::clone(epochs), Arc::clone(interrupts));
        Self { epochs, deadline, number, interrupts, is_watched }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }
}

impl Drop for EpochWatch {
    fn drop(&mut self) {
        let mut watchdog = Watchdog::get();
        let engine = Arc::as_ptr(&self.epochs).addr();
        if let Some(queue) = watchdog.epochs.get_mut(&engine)
            && queue.remove(&(self.deadline, self.number)).is_some()
        {
            self.epochs.remove_watched();
            if queue.is_empty() {
                watchdog.epochs.remove(&engine);
            }
        }
        // Deadlines come under this lock: none comes after it.
        // Nobody waits for a deadline that has not come.
        let _ = self.interrupts.set_epoch(false);
    }
}

/// Sees that deadlines are watched.
///
/// # Errors
/// If the thread that does so cannot be started.
pub(crate) fn watch_deadlines() -> Result<(), SystemError> {
    Watchdog::get().run()
}

/// The deadlines in epochs of one engine, by the epoch and their numbers.
type EpochQueue = BTreeMap<(u64, u64), (Arc<EpochClock>, Arc<Interrupts>)>;

/// What the one thread of the process knows that waits for deadlines.
struct Watchdog {
    deadlines: BTreeMap<(Instant, u64), Watched>,
    /// By the address of the engine's epochs.
    epochs: BTreeMap<usize, EpochQueue>,
    /// How many deadlines there have been: tells equal times apart.
    count: u64,
    /// The process that has the thread.
    thread: Option<u64>,
}

struct Watched {
    interrupts: Arc<Interrupts>,
    at_end: AtEnd,
    /// The thread whose call it is.
    thread: u64,
}

static WATCHDOG: Mutex<Watchdog> = Mutex::new(Watchdog {
    deadlines: BTreeMap::new(),
    epochs: BTreeMap::new(),
    count: 0,
    thread: None,
});

impl Watchdog {
    fn get() -> MutexGuard<'static, Self> {
        // Nothing in here panics half-way.
        WATCHDOG.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees that this process has the thread: one that was forked does not have that of its
    /// parent.
    fn run(&mut self) -> Result<(), SystemError> {
        let process = pagefork_pages::this_process();
        if self.thread != Some(process) {
            watch_forks();
            let thread = std::thread::Builder::new().name("pagefork-timeouts".to_owned());
            thread.spawn(watch).map_err(SystemError::Watchdog)?;
            self.thread = Some(process);
        }
        Ok(())
    }

    /// Tells the stores whose deadlines in epochs have come.
    fn look_at_epochs(&mut self, wakers: &mut Vec<Option<Waker>>) {
        self.epochs.retain(|_, queue| {
            while let Some(first) = queue.first_entry()
                && first.get().0.now() >= first.key().0
            {
                let (epochs, interrupts) = first.remove();
                epochs.remove_watched();
                wakers.push(interrupts.set_epoch(true));
            }
            !queue.is_empty()
        });
    }

    /// Requests the interrupts whose time has come; returns the time until the next one.
    ///
    /// Those who wait are to be [woken](wake) then.
    fn look(&mut self, wakers: &mut Vec<Option<Waker>>) -> Option<Duration> {
        self.look_at_epochs(wakers);
        let now = Instant::now();
        while let Some(first) = self.deadlines.first_entry() {
            if first.key().0 > now {
                return Some(first.key().0 - now);
            }
            let Watched { interrupts, at_end, .. } = first.remove();
            match at_end {
                AtEnd::Interrupt => wakers.push(interrupts.request()),
                AtEnd::Yield => interrupts.request_yield(),
            }
        }
        None
    }
}

/// Wakes who waits. Not to be called with a lock held: what it runs is the executor's.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Waits for deadlines.
fn watch() {
    loop {
        let rung = epochs::rung();
        let working = pagefork_pages::working();
        let mut wakers = Vec::new();
        let wait = Watchdog::get().look(&mut wakers);
        wakers.into_iter().for_each(wake);
        drop(working);
        epochs::wait(rung, wait);
    }
}

/// Has calls that are under way when a host function forks go on with their time limits in the
/// forked process too. Those of other threads do not go on there.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    extern "C" fn forked() {
        let thread = thread::number();
        // Held by a thread that is gone, if that was in a call: see `Engine`.
        if let Ok(mut watchdog) = WATCHDOG.try_lock() {
            watchdog.deadlines.retain(|_, watched| watched.thread == thread);
            if !watchdog.deadlines.is_empty() || !watchdog.epochs.is_empty() {
                // If it cannot be started, the next call says so.
                let _ = watchdog.run();
            }
        }
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler runs on the one thread of a process that the C library has just
        // made whole again, allocator included; it waits for no lock.
        let watched = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        assert_eq!(watched, 0, "a handler of forks takes a few bytes");
    });
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
        let cancelled = Deadline::after(time, &dropped, AtEnd::Interrupt).unwrap();
        let waiting = Deadline::after(time, &kept, AtEnd::Interrupt).unwrap();
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
