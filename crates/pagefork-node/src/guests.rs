//! What guests take whose pages come while they run.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagefork::IncompleteImage;

use crate::times::thread_cpu;

/// Time that has passed for a thread, and what the thread took of a processor in it.
///
/// # Examples
///
/// ```
/// use pagefork_node::ThreadClock;
///
/// let clock = ThreadClock::start();
/// let (first, second) = (clock.spent(), clock.spent());
/// assert!(first.wall <= second.wall && first.cpu <= second.cpu);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeSpent {
    /// What has passed.
    pub wall: Duration,
    /// What the thread took of a processor.
    pub cpu: Duration,
}

impl TimeSpent {
    pub(crate) fn add(&mut self, other: Self) {
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// Since when a thread does something. It stays with its thread, whose time on a processor it counts.
///
/// # Examples
///
/// See [`TimeSpent`].
#[derive(Clone, Copy, Debug)]
pub struct ThreadClock {
    began: Instant,
    cpu: Duration,
    /// Another thread's time on a processor is not to be compared with this one's.
    of_thread: PhantomData<*const ()>,
}

impl ThreadClock {
    /// From now on.
    ///
    /// # Examples
    ///
    /// See [`TimeSpent`].
    pub fn start() -> Self {
        Self { began: Instant::now(), cpu: thread_cpu(), of_thread: PhantomData }
    }

    /// What has passed since then.
    ///
    /// # Examples
    ///
    /// See [`TimeSpent`].
    pub fn spent(&self) -> TimeSpent {
        // In the reverse order, so that no more of a processor than time is counted.
        let cpu = thread_cpu().saturating_sub(self.cpu);
        TimeSpent { wall: self.began.elapsed(), cpu }
    }
}

/// What guests of an image have taken, all threads that ran them together. [`GuestClock`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GuestTimes {
    /// How often guests were run.
    pub runs: u64,
    /// What that took.
    pub spent: TimeSpent,
    /// How long they could not go on for want of pages.
    pub blocked: Duration,
}

impl GuestTimes {
    /// What the runs have waited for besides pages, in seconds: files, streams, a processor. Less than
    /// nothing where threads have computed while they waited: until they slept, and since they were woken.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use pagefork_node::{GuestTimes, TimeSpent};
    ///
    /// let spent = TimeSpent { wall: Duration::from_secs(4), cpu: Duration::from_secs(1) };
    /// let times = GuestTimes { runs: 1, spent, blocked: Duration::from_secs(2) };
    /// assert_eq!(times.remainder_seconds(), 1.0);
    /// let said = times.to_string();
    /// assert!(said.starts_with("1 run of guests: they computed for 1000.00 ms"), "{said}");
    /// ```
    pub fn remainder_seconds(&self) -> f64 {
        self.spent.wall.as_secs_f64() - (self.spent.cpu + self.blocked).as_secs_f64()
    }
}

impl fmt::Display for GuestTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, spent, blocked } = self;
        let milliseconds = |time: &Duration| time.as_secs_f64() * 1e3;
        let (computed, waited) = (milliseconds(&spent.cpu), milliseconds(blocked));
        let (other, plural) = (self.remainder_seconds() * 1e3, if *runs == 1 { "" } else { "s" });
        write!(
            f,
            "{runs} run{plural} of guests: they computed for {computed:.2} ms, waited {waited:.2} ms for groups, and \
             {other:.2} ms for other things"
        )
    }
}

/// Counts what guests of an image take: those that are run by [`GuestClock::run`], on any threads.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use pagefork::image::{ImageHead, ImageStore};
/// use pagefork::{Engine, IncompleteImage, Instance, Linker, LoadOptions, Module};
/// use pagefork::{SaveOptions, Snapshot, Store};
/// use pagefork_node::GuestClock;
///
/// # let path = std::env::temp_dir().join(format!("pagefork-guests-{}", std::process::id()));
/// let images = ImageStore::open(&path)?;
/// let engine = Engine::default();
/// let module = Module::new(&engine, r#"(module
///     (memory 1) (data (i32.const 0) "here")
///     (func (export "first") (result i32) (i32.load8_u (i32.const 0))))"#)?;
/// let mut store = Store::new(&engine, ());
/// Instance::new(&mut store, &module, &[])?;
/// let saved = images.load(store.snapshot()?.save(&images, SaveOptions::new())?)?;
/// let head = Arc::new(ImageHead::read(saved.chain().tip())?);
/// let image = IncompleteImage::new(head, Duration::from_secs(10))?;
/// # if !image.runs_incomplete() {
/// #     return Ok(());
/// # }
/// let clock = GuestClock::new(&image);
/// let linker = Linker::new(&engine);
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         for group in image.missing().into_iter().flatten() {
///             let bytes = saved.chain().tip().read_group(group).expect("it is in a file");
///             image.install(group, &bytes).expect("there is room");
///         }
///     });
///     let options = LoadOptions::new().module(&module);
///     let snapshot: Snapshot<()> = Snapshot::load_incomplete(&linker, &image, &images, options)?;
///     let (mut store, instance) = snapshot.instance_pre()?.spawn(())?;
///     let first = instance.get_typed_func::<(), i32>(&mut store, "first")?;
///     assert_eq!(clock.run(|| first.call(&mut store, ()))?, i32::from(b'h'));
///     Ok::<(), pagefork::Error>(())
/// })?;
/// let times = clock.times();
/// assert_eq!(times.runs, 1);
/// assert!(times.blocked <= times.spent.wall && times.spent.cpu <= times.spent.wall);
/// # std::fs::remove_dir_all(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct GuestClock {
    image: Arc<IncompleteImage>,
    counts: Arc<Mutex<GuestCounts>>,
}

#[derive(Debug, Default)]
struct GuestCounts {
    /// Runs that have ended.
    ended: GuestTimes,
    /// Runs that have not, and how long threads had waited for the image's pages when the first of them began.
    running: u64,
    blocked_before: Duration,
}

impl GuestClock {
    /// Of an image; what is loaded of it before counts for no guest.
    ///
    /// # Examples
    ///
    /// See [`GuestClock`].
    pub fn new(image: &Arc<IncompleteImage>) -> Self {
        Self { image: Arc::clone(image), counts: Arc::default() }
    }

    /// Runs guests on this thread. It counts what the thread takes, and what anybody waits for pages of the
    /// image while a run lasts.
    ///
    /// # Examples
    ///
    /// See [`GuestClock`].
    pub fn run<R>(&self, guests: impl FnOnce() -> R) -> R {
        // Counted also when it panics: who catches that goes on to count others.
        let _run = GuestRun::begin(self);
        guests()
    }

    /// What the runs took that have ended. What was waited for counts as soon as no run lasts.
    ///
    /// # Examples
    ///
    /// See [`GuestClock`].
    pub fn times(&self) -> GuestTimes {
        self.counts().ended
    }

    fn counts(&self) -> MutexGuard<'_, GuestCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run, which ends when this is dropped.
struct GuestRun<'a> {
    of: &'a GuestClock,
    clock: ThreadClock,
}

impl<'a> GuestRun<'a> {
    fn begin(of: &'a GuestClock) -> Self {
        let clock = ThreadClock::start();
        let mut counts = of.counts();
        if counts.running == 0 {
            counts.blocked_before = of.image.residency().blocked;
        }
        counts.running += 1;
        drop(counts);
        Self { of, clock }
    }
}

impl Drop for GuestRun<'_> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        counts.running -= 1;
        counts.ended.runs += 1;
        if counts.running == 0 {
            let (now, before) = (self.of.image.residency().blocked, counts.blocked_before);
            counts.ended.blocked += now.saturating_sub(before);
        }
        // Last, so that no wait that counts is outside of it.
        counts.ended.spent.add(self.clock.spent());
    }
}
