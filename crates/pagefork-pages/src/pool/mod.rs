//! Things that hold slots, kept between two uses: by thread, and by what they were
//! used for, so that what is taken was last used on the same thread for the same.
//!
//! ```text
//!   thread 1: shelf ( rack of key 0, rack of key 1, ... )  --- half of a full rack --->
//!   thread 2: shelf ( rack of key 0, rack of key 1, ... )  <-- a batch, if empty -----  depot
//! ```
//!
//! The hot path is [`Pool::take`] and [`Pool::put`] on the thread's own shelf. It waits
//! for nobody: where another thread is looking through the shelf, the depot serves, and
//! that is behind a lock.

use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::os::error::PagesError;

/// What wakes up to look after idle things.
mod reaper;
/// What one thread has parked.
mod thread_cache;

use thread_cache::{Counts, Parked, Racks, Shelf};

/// A rack that grows beyond this gives half of itself to the depot.
const RACK_MAX: usize = 32;

/// What an empty rack takes from the depot at most.
const BATCH: usize = 8;

/// Something that a pool can keep.
pub trait Park: Send + 'static {
    /// Bytes that stay in memory while it is parked.
    fn resident(&self) -> u64;

    /// Pages that its last use had written, as far as that is known.
    fn written(&self) -> u64 {
        0
    }

    /// Gives those bytes back and stays usable.
    ///
    /// # Errors
    /// Whatever went wrong: the pool drops it then.
    fn discard(&mut self) -> Result<(), PagesError>;
}

/// How much a pool keeps. Limits hold for all threads together; each thread may go
/// beyond them by one thing for a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// How many things are kept; those that were parked first make way.
    pub kept_max: usize,
    /// Bytes that parked things may keep in memory together.
    pub resident_max: u64,
    /// Bytes that things parked for one key, that is, for one image, may keep in
    /// memory together.
    pub resident_max_per_image: u64,
    /// How long something may lie unused before its address space is given back.
    pub idle_max: Option<Duration>,
    /// Whether the pages of what lies unused are given back when the system is short of
    /// memory, as Linux says in `/proc/pressure/memory`.
    pub heed_pressure: bool,
}

impl Default for PoolConfig {
    /// Everything is kept, for a minute.
    fn default() -> Self {
        Self {
            kept_max: usize::MAX,
            resident_max: u64::MAX,
            resident_max_per_image: u64::MAX,
            idle_max: Some(Duration::from_secs(60)),
            heed_pressure: true,
        }
    }
}

impl PoolConfig {
    fn is_limited(&self) -> bool {
        self.kept_max != usize::MAX
            || self.resident_max != u64::MAX
            || self.resident_max_per_image != u64::MAX
    }
}

/// What a pool has done, and what it has. Counts of a moment in which other threads
/// go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Things that were there when they were asked for.
    pub taken: u64,
    /// Times that nothing was there.
    pub missed: u64,
    /// Things that came back.
    pub put: u64,
    /// Of those, how many were not kept, or made others go, for a limit.
    pub refused: u64,
    /// Things whose pages were given back, for a limit or the system's sake.
    pub discarded: u64,
    /// Things that were dropped because they lay idle, or were purged.
    pub trimmed: u64,
    /// Pages that things had written by the time they were put here, as far as that is
    /// known.
    pub written: u64,
    /// Things parked now.
    pub parked: u64,
    /// Bytes that those keep in memory.
    pub resident: u64,
}

/// What something is parked for. Never the same twice in a pool's life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    index: u32,
    generation: u32,
}

/// Things that are kept between two uses, by thread and by what they are used for. Clones
/// are the same pool. [`Pool::take`] and [`Pool::put`] wait for nobody: each thread has a
/// shelf of its own, and where somebody else is tidying it up, a depot behind a lock.
#[derive(Debug)]
pub struct Pool<T: Park>(Arc<Shared<T>>);

#[derive(Debug)]
struct Shared<T: Park> {
    /// Different from that of any other pool of the process.
    id: u64,
    config: RwLock<PoolConfig>,
    keys: Mutex<Keys>,
    depot: Mutex<Racks<T>>,
    shelves: Mutex<Vec<Arc<Shelf<T>>>>,
    /// Of threads that have ended, and of what no thread's shelf was concerned with.
    counts: Counts,
    /// Of threads that are ending, and have no shelf any more.
    common: Arc<Shelf<T>>,
    /// The process that the keeper was started in, or 0.
    keeper: AtomicU64,
}

#[derive(Debug, Default)]
struct Keys {
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Keys {
    fn is_current(&self, key: Key) -> bool {
        self.generations.get(key.index as usize) == Some(&key.generation)
    }
}

impl<T: Park> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Park> Pool<T> {
    /// An empty pool.
    pub fn new(config: PoolConfig) -> Self {
        Self(Arc::new_cyclic(|this| Shared {
            id: thread_cache::next_id(),
            config: RwLock::new(config),
            keys: Mutex::default(),
            depot: Mutex::default(),
            shelves: Mutex::default(),
            counts: Counts::default(),
            common: Arc::new(Shelf::new(this.clone(), config.is_limited())),
            keeper: AtomicU64::new(0),
        }))
    }

    /// A new key.
    ///
    /// # Panics
    /// If there are 2^32 keys.
    pub fn add_key(&self) -> Key {
        let mut keys = lock(&self.0.keys);
        if let Some(index) = keys.free.pop() {
            return Key { index, generation: keys.generations[index as usize] };
        }
        let index = u32::try_from(keys.generations.len()).expect("there are less than 2^32 keys");
        keys.generations.push(0);
        Key { index, generation: 0 }
    }

    /// Ends a key, and drops what is parked for it. What is put under it later is
    /// dropped when it is trimmed, when another key takes its place, or by
    /// [`Pool::clear_key`].
    pub fn remove_key(&self, key: Key) {
        let mut keys = lock(&self.0.keys);
        // A number that has been used up is not used again.
        if keys.is_current(key)
            && let Some(next) = key.generation.checked_add(1)
        {
            keys.generations[key.index as usize] = next;
            keys.free.push(key.index);
        }
        drop(keys);
        self.clear_key(key);
    }

    /// Drops what is parked for a key, be it ended or not.
    pub fn clear_key(&self, key: Key) {
        let mut gone = Vec::new();
        self.0.each_racks(|racks| gone.extend(racks.remove(key)));
    }

    /// Something that was parked for this key, the latest of this thread first.
    #[inline]
    pub fn take(&self, key: Key) -> Option<T> {
        let shelf = Shelf::of_this_thread(&self.0);
        let found = shelf.with(|racks| racks.pop(key)).flatten();
        match found {
            Some(found) => {
                shelf.counts.taken.add(1);
                Some(found.item)
            }
            None => self.take_from_depot(key, shelf),
        }
    }

    #[cold]
    fn take_from_depot(&self, key: Key, shelf: &Shelf<T>) -> Option<T> {
        let mut batch = lock(&self.0.depot).split_latest(key, BATCH);
        let found = batch.pop();
        if !batch.is_empty() {
            let left = shelf.with(|racks| racks.append(key, &mut batch));
            if left.is_none() {
                self.0.append_to_depot(key, &mut batch);
            }
        }
        match found {
            Some(_) => shelf.counts.taken.add(1),
            None => shelf.counts.missed.add(1),
        }
        found.map(|found| found.item)
    }

    /// Parks something for this key, or drops it where a limit says so.
    #[inline]
    pub fn put(&self, key: Key, item: T) {
        self.local().put(key, item, |_| true);
    }

    /// What this thread parks in this pool.
    #[inline]
    pub fn local(&self) -> LocalPool<T> {
        LocalPool { shelf: Shelf::shared_of_this_thread(&self.0), not_send: PhantomData }
    }

    /// What is kept.
    pub fn config(&self) -> PoolConfig {
        *self.0.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is kept: then nothing needs to be made ready for it.
    #[inline]
    pub fn keeps_nothing(&self) -> bool {
        let shelf = Shelf::of_this_thread(&self.0);
        shelf.limited.load(Relaxed) && self.config().kept_max == 0
    }

    /// Changes what is kept; what is beyond it now is dropped.
    pub fn set_config(&self, config: PoolConfig) {
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        self.0.each_shelf(|shelf| shelf.limited.store(config.is_limited(), Relaxed));
        self.0.start_keeper();
        if config.is_limited() {
            self.0.shrink(&config);
        }
    }

    /// Drops what has been parked for longer than `idle`. Returns how many that were.
    pub fn trim(&self, idle: Duration) -> usize {
        self.0.trim(idle)
    }

    /// Drops everything that is parked. Returns how many that were.
    pub fn purge(&self) -> usize {
        self.0.trim(Duration::ZERO)
    }

    /// Gives the pages back of what has been parked for longer than `idle`, and keeps
    /// its address space. Returns how many that were.
    pub fn discard(&self, idle: Duration) -> usize {
        self.0.discard(idle)
    }

    /// What has happened so far.
    pub fn counters(&self) -> PoolCounters {
        let shared = &*self.0;
        let mut sum = shared.counts.get();
        shared.each_shelf(|shelf| sum = sum.plus(shelf.counts.get()));
        shared.each_racks(|racks| {
            sum.parked += racks.parked();
            sum.resident += racks.resident();
        });
        sum
    }
}

/// What one thread has of a pool. It can outlive the pool: then nothing is kept.
#[derive(Debug)]
pub struct LocalPool<T: Park> {
    shelf: Arc<Shelf<T>>,
    /// Counts of a shelf are one thread's.
    not_send: PhantomData<*const ()>,
}

impl<T: Park> LocalPool<T> {
    /// As [`Pool::put`], unless `keep`, which is asked while nobody else can take the
    /// thing or remove its key, says no: then it is dropped.
    #[inline]
    pub fn put(&self, key: Key, item: T, keep: impl FnOnce(&T) -> bool) {
        let shelf = &*self.shelf;
        shelf.counts.put.add(1);
        shelf.counts.written.add(item.written());
        let mut parked = Some(Parked::new(item));
        if shelf.limited.load(Relaxed) {
            parked = parked.and_then(|parked| self.make_room(key, parked));
        }
        let Some(parked) = parked else { return };
        let mut parked = Some(parked);
        let full = shelf.with(|racks| {
            if racks.length(key) >= RACK_MAX {
                return (true, None);
            }
            let parked = parked.take().expect("it is put once");
            let keeps = keep(&parked.item);
            // Nobody knows of it who is not told in here.
            (false, if keeps { racks.push(key, parked) } else { Some(parked) })
        });
        match full {
            // Whatever is not kept is dropped here, where nobody waits.
            Some((false, _)) => (),
            _ => self.put_into_depot(key, parked),
        }
    }

    /// Brings half a rack into the depot, and what has found no place on the shelf.
    #[cold]
    fn put_into_depot(&self, key: Key, parked: Option<Parked<T>>) {
        let Some(pool) = self.shelf.pool.upgrade() else { return };
        let mut batch: Vec<_> =
            self.shelf.with(|racks| racks.split_oldest(key, RACK_MAX / 2)).unwrap_or_default();
        batch.extend(parked);
        pool.append_to_depot(key, &mut batch);
    }

    /// Sees that there is room for `parked` within the limits: others go, or its pages
    /// do, or it is dropped.
    #[cold]
    fn make_room(&self, key: Key, mut parked: Parked<T>) -> Option<Parked<T>> {
        let (pool, shelf) = (self.shelf.pool.upgrade()?, &*self.shelf);
        let config = *pool.config.read().unwrap_or_else(PoisonError::into_inner);
        let (mut count, mut all, mut of_key) = (0usize, 0u64, 0u64);
        pool.each_racks(|racks| {
            count += racks.parked() as usize;
            all += racks.resident();
            of_key += racks.resident_of(key);
        });
        let exceeds = |parked: &Parked<T>| {
            parked.resident > config.resident_max.saturating_sub(all)
                || parked.resident > config.resident_max_per_image.saturating_sub(of_key)
        };
        if exceeds(&parked) {
            shelf.counts.discarded.add(1);
            // A copied image stays.
            if parked.discard().is_err() || exceeds(&parked) {
                shelf.counts.refused.add(1);
                return None;
            }
        }
        if count < config.kept_max {
            return Some(parked);
        }
        shelf.counts.refused.add(1);
        // The oldest of this thread makes way; of others, none can be judged as fast.
        let oldest = if config.kept_max == 0 { None } else { shelf.with(Racks::pop_oldest) };
        let oldest = oldest.flatten().or_else(|| lock(&pool.depot).pop_oldest());
        (oldest.is_some() && config.kept_max > 0).then_some(parked)
    }
}

impl<T: Park> Shared<T> {
    /// Shows every shelf and the depot.
    fn each_racks(&self, mut look: impl FnMut(&mut Racks<T>)) {
        self.each_shelf(|shelf| {
            shelf.wait_with(&mut look);
        });
        look(&mut lock(&self.depot));
    }

    fn each_shelf(&self, mut look: impl FnMut(&Shelf<T>)) {
        for shelf in lock(&self.shelves).iter() {
            look(shelf);
        }
        look(&self.common);
    }

    /// Parks a batch behind the shelves, unless its key has been removed meanwhile: then
    /// it is left to the caller.
    fn append_to_depot(&self, key: Key, batch: &mut Vec<Parked<T>>) {
        let keys = lock(&self.keys);
        if keys.is_current(key) {
            lock(&self.depot).append(key, batch);
        }
    }

    fn trim(&self, idle: Duration) -> usize {
        let mut gone = Vec::new();
        let before = thread_cache::now().saturating_sub(thread_cache::ticks(idle));
        self.each_racks(|racks| racks.take_idle(before, idle.is_zero(), &mut gone));
        self.counts.trimmed.add_shared(gone.len() as u64);
        gone.len()
    }

    fn discard(&self, idle: Duration) -> usize {
        let mut idles = Vec::new();
        let before = thread_cache::now().saturating_sub(thread_cache::ticks(idle));
        self.each_racks(|racks| racks.take_idle_keyed(before, idle.is_zero(), &mut idles));
        let mut count = 0;
        // Outside of all locks; others who ask meanwhile find nothing, and make anew.
        for (key, mut parked) in idles {
            if parked.resident > 0 && parked.discard().is_err() {
                continue;
            }
            count += 1;
            self.append_to_depot(key, &mut vec![parked]);
        }
        self.counts.discarded.add_shared(count as u64);
        count
    }

    /// Drops what is beyond the limits, the oldest first.
    fn shrink(&self, config: &PoolConfig) {
        let (mut count, mut bytes) = (0usize, 0u64);
        self.each_racks(|racks| {
            count += racks.parked() as usize;
            bytes += racks.resident();
        });
        let mut gone = Vec::new();
        while count > config.kept_max || bytes > config.resident_max {
            let mut one = None;
            self.each_racks(|racks| one = one.take().or_else(|| racks.pop_oldest()));
            let Some(one) = one else { break };
            count -= 1;
            bytes -= one.resident;
            gone.push(one);
        }
        self.counts.trimmed.add_shared(gone.len() as u64);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics half-way; what is parked may only panic when dropped,
    // which is done outside.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolCounters {
    fn plus(self, other: Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            missed: self.missed + other.missed,
            put: self.put + other.put,
            refused: self.refused + other.refused,
            discarded: self.discarded + other.discarded,
            trimmed: self.trimmed + other.trimmed,
            written: self.written + other.written,
            parked: self.parked + other.parked,
            resident: self.resident + other.resident,
        }
    }
}

impl<T: Park> Drop for Shared<T> {
    fn drop(&mut self) {
        // Threads keep their shelves, empty.
        self.trim(Duration::ZERO);
    }
}
