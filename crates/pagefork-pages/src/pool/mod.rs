//! Items that hold slots, parked between two uses. A thread takes an item that it used last
//! for the same key, if it can. The terms are those of Bonwick and Adams, "Magazines and
//! Vmem", 2001.
//!
//! ```text
//!   thread 1: cache ( magazine of key 0, magazine of key 1, ... )  --- half of a full one -->
//!   thread 2: cache ( magazine of key 0, magazine of key 1, ... )  <-- a batch, if empty ---  depot
//! ```
//!
//! The hot path is [`Pool::take`] and [`Pool::put`] on the thread's own cache. It never waits:
//! while another thread inspects the cache, the depot serves, which is behind a lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::os::error::PagesError;
use crate::os::lock::lock;

/// A thread that drops idle items.
mod reaper;
/// The items that one thread has parked.
mod thread_cache;

use thread_cache::{HeldCache, Magazines, ParkedItem, PoolCounts, PoolEvent, ThreadCache};

/// A magazine that grows beyond this gives half of itself to the depot.
const MAGAZINE_MAX: usize = 32;

/// What an empty magazine takes from the depot at most.
const BATCH: usize = 8;

/// An item that a pool can keep. [`Pool`] has an example.
pub trait Park: Send + 'static {
    /// Bytes that stay in memory while it is parked.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    fn resident(&self) -> u64;

    /// Pages that its last use had written, as far as that is known.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    fn written(&self) -> u64 {
        0
    }

    /// Gives those bytes back and stays usable.
    ///
    /// # Errors
    /// Any error: the pool drops the item then.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    fn discard(&mut self) -> Result<(), PagesError>;
}

/// How much a pool keeps. Limits hold for all threads together; each thread may exceed them by
/// one item for a moment.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_pages::{PagesError, Park, Pool, PoolConfig};
///
/// #[derive(Debug)]
/// struct Item;
///
/// impl Park for Item {
///     fn resident(&self) -> u64 {
///         4096
///     }
///
///     fn discard(&mut self) -> Result<(), PagesError> {
///         Ok(())
///     }
/// }
///
/// let config = PoolConfig { kept_max: 1, idle_max: None, ..PoolConfig::default() };
/// let pool = Pool::new(config);
/// let key = pool.add_key();
/// // The second takes the place of the first.
/// pool.put(key, Item);
/// pool.local().put(key, Item, |_| true);
/// let counters = pool.counters();
/// assert_eq!((counters.put, counters.parked, counters.refused), (2, 1, 1));
/// assert_eq!(counters.resident, 4096);
/// assert_eq!(pool.trim(Duration::from_secs(3600)), 0);
/// assert_eq!(pool.purge(), 1);
/// pool.remove_key(key);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// Number of items that are kept; those that were parked first are dropped first.
    pub kept_max: usize,
    /// Bytes that parked items may keep in memory together.
    pub resident_max: u64,
    /// Bytes that items parked for one key, that is, for one image, may keep in memory
    /// together.
    pub resident_max_per_image: u64,
    /// How long an item may lie unused before its address space is given back.
    pub idle_max: Option<Duration>,
    /// Whether the pages of unused items are given back when the system is short of
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

/// What a pool has done, and what it has. Other threads continue while it is counted.
/// [`PoolConfig`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PoolCounters {
    /// Number of items that were found when they were asked for.
    pub taken: u64,
    /// Number of times that none was found.
    pub missed: u64,
    /// Number of items that were parked.
    pub put: u64,
    /// Number of those that a limit refused, or that replaced others because of a limit.
    pub refused: u64,
    /// Number of items whose pages were given back, because of a limit or of the system's need.
    pub discarded: u64,
    /// Number of items that were dropped because they were idle, or purged.
    pub trimmed: u64,
    /// Number of pages that items had written when they were parked, as far as that is known.
    pub written: u64,
    /// Number of items parked now.
    pub parked: u64,
    /// Bytes that those keep in memory.
    pub resident: u64,
}

/// What an item is parked for. A pool never gives the same key twice. [`Pool`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    index: u32,
    generation: u32,
}

/// Items that are kept between two uses, by thread and by key. Clones are the same pool.
/// [`Pool::take`] and [`Pool::put`] never wait for another thread's work: each thread has a
/// cache of its own, and while another thread inspects that, a depot behind a lock serves.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use pagefork_pages::{PagesError, Park, Pool, PoolConfig};
///
/// #[derive(PartialEq, Debug)]
/// struct Buffer(Vec<u8>);
///
/// impl Park for Buffer {
///     fn resident(&self) -> u64 {
///         self.0.capacity() as u64
///     }
///
///     fn written(&self) -> u64 {
///         self.0.len().div_ceil(4096) as u64
///     }
///
///     fn discard(&mut self) -> Result<(), PagesError> {
///         self.0 = Vec::new();
///         Ok(())
///     }
/// }
///
/// let pool = Pool::new(PoolConfig::default());
/// let key = pool.add_key();
/// assert_eq!(pool.take(key), None);
/// pool.put(key, Buffer(vec![1]));
/// assert_eq!(pool.take(key), Some(Buffer(vec![1])));
///
/// // Items that are not used for long give their pages back.
/// pool.put(key, Buffer(vec![2]));
/// assert_eq!(pool.discard(Duration::ZERO), 1);
/// assert_eq!(pool.take(key), Some(Buffer(vec![])));
///
/// pool.put(key, Buffer(vec![3]));
/// pool.clear_key(key);
/// assert_eq!(pool.take(key), None);
/// pool.set_config(PoolConfig { kept_max: 0, ..pool.config() });
/// assert!(pool.keeps_nothing());
/// ```
#[derive(Debug)]
pub struct Pool<T: Park>(Arc<PoolShared<T>>);

#[derive(Debug)]
struct PoolShared<T: Park> {
    /// Different from that of any other pool of the process.
    id: u64,
    config: RwLock<PoolConfig>,
    keys: Mutex<Keys>,
    depot: Mutex<Magazines<T>>,
    caches: Mutex<Vec<Arc<ThreadCache<T>>>>,
    /// Of threads that have ended, and of work that no thread's cache has done.
    counts: PoolCounts,
    /// Serves threads that are ending, which have no cache any more.
    common: Arc<ThreadCache<T>>,
    /// The process that the reaper was started in, or 0.
    reaper: AtomicU64,
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
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn new(config: PoolConfig) -> Self {
        Self(Arc::new_cyclic(|this| PoolShared {
            id: thread_cache::next_id(),
            config: RwLock::new(config),
            keys: Mutex::default(),
            depot: Mutex::default(),
            caches: Mutex::default(),
            counts: PoolCounts::default(),
            common: Arc::new(ThreadCache::new(this.clone(), config.is_limited())),
            reaper: AtomicU64::new(0),
        }))
    }

    /// A new key.
    ///
    /// # Panics
    /// If there are 2^32 keys.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn add_key(&self) -> Key {
        let mut keys = lock(&self.0.keys);
        if let Some(index) = keys.free.pop() {
            return Key { index, generation: keys.generations[index as usize] };
        }
        let index = u32::try_from(keys.generations.len()).expect("there are less than 2^32 keys");
        keys.generations.push(0);
        Key { index, generation: 0 }
    }

    /// Ends a key, and drops the items that are parked for it. Items that are parked for it later
    /// are dropped when they are trimmed, when another key takes its place, or by
    /// [`Pool::clear_key`].
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    pub fn remove_key(&self, key: Key) {
        let mut keys = lock(&self.0.keys);
        // An index whose generations are used up is not used again.
        if keys.is_current(key)
            && let Some(next) = key.generation.checked_add(1)
        {
            keys.generations[key.index as usize] = next;
            keys.free.push(key.index);
        }
        drop(keys);
        self.clear_key(key);
    }

    /// Drops the items that are parked for a key, ended or not.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn clear_key(&self, key: Key) {
        let mut gone = Vec::new();
        self.0.each_magazines(|magazines| gone.extend(magazines.remove(key)));
    }

    /// Takes an item that was parked for this key, the latest of this thread first.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    #[inline]
    pub fn take(&self, key: Key) -> Option<T> {
        let cache = ThreadCache::of_this_thread(&self.0);
        let found = cache.with(|magazines| magazines.pop(key)).flatten();
        match found {
            Some(found) => {
                cache.counts.add(PoolEvent::Taken, 1);
                Some(found.item)
            }
            None => self.take_from_depot(key, cache),
        }
    }

    #[cold]
    fn take_from_depot(&self, key: Key, cache: &ThreadCache<T>) -> Option<T> {
        let mut batch = lock(&self.0.depot).split_latest(key, BATCH);
        let found = batch.pop();
        if !batch.is_empty() {
            let left = cache.with(|magazines| magazines.append(key, &mut batch));
            if left.is_none() {
                self.0.append_to_depot(key, &mut batch);
            }
        }
        match found {
            Some(_) => cache.counts.add(PoolEvent::Taken, 1),
            None => cache.counts.add(PoolEvent::Missed, 1),
        }
        found.map(|found| found.item)
    }

    /// Parks an item for this key, or drops it if a limit says so.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    #[inline]
    pub fn put(&self, key: Key, item: T) {
        self.local().put(key, item, |_| true);
    }

    /// This thread's part of the pool.
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    #[inline]
    pub fn local(&self) -> LocalPool<T> {
        LocalPool(HeldCache::of_this_thread(&self.0))
    }

    /// The limits of what is kept.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn config(&self) -> PoolConfig {
        *self.0.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is kept, so that no item needs to be prepared for it.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    #[inline]
    pub fn keeps_nothing(&self) -> bool {
        let cache = ThreadCache::of_this_thread(&self.0);
        cache.limited.load(Relaxed) && self.config().kept_max == 0
    }

    /// Changes the limits, and drops what exceeds them now.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn set_config(&self, config: PoolConfig) {
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        self.0.each_cache(|cache| cache.limited.store(config.is_limited(), Relaxed));
        self.0.start_reaper();
        if config.is_limited() {
            self.0.shrink(&config);
        }
    }

    /// Drops items that have been parked for longer than `idle`. Returns their number.
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    pub fn trim(&self, idle: Duration) -> usize {
        self.0.trim(idle)
    }

    /// Drops all parked items. Returns their number.
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    pub fn purge(&self) -> usize {
        self.0.trim(Duration::ZERO)
    }

    /// Gives back the pages of items that have been parked for longer than `idle`, and keeps
    /// their address space. Returns their number.
    ///
    /// # Examples
    ///
    /// See [`Pool`].
    pub fn discard(&self, idle: Duration) -> usize {
        self.0.discard(idle)
    }

    /// Counts since the pool was made.
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    pub fn counters(&self) -> PoolCounters {
        let shared = &*self.0;
        let mut sum = shared.counts.get();
        shared.each_cache(|cache| {
            sum.iter_mut().zip(cache.counts.get()).for_each(|(sum, count)| *sum += count);
        });
        let [taken, missed, put, refused, discarded, trimmed, written] = sum;
        let (mut parked, mut resident) = (0, 0);
        shared.each_magazines(|magazines| {
            parked += magazines.parked;
            resident += magazines.resident;
        });
        PoolCounters { taken, missed, put, refused, discarded, trimmed, written, parked, resident }
    }
}

/// One thread's part of a pool. It can outlive the pool, and keeps nothing then. [`PoolConfig`]
/// has an example.
#[derive(Debug)]
pub struct LocalPool<T: Park>(HeldCache<T>);

impl<T: Park> LocalPool<T> {
    /// As [`Pool::put`], but drops the item if `keep` returns false. While `keep` runs, no other
    /// thread can take the item or remove its key.
    ///
    /// # Examples
    ///
    /// See [`PoolConfig`].
    #[inline]
    pub fn put(&self, key: Key, item: T, keep: impl FnOnce(&T) -> bool) {
        let cache = &*self.0;
        cache.counts.add(PoolEvent::Put, 1);
        cache.counts.add(PoolEvent::Written, item.written());
        let mut parked = Some(ParkedItem::new(item));
        if cache.limited.load(Relaxed) {
            parked = parked.and_then(|parked| self.make_room(key, parked));
        }
        let Some(parked) = parked else { return };
        let mut parked = Some(parked);
        let full = cache.with(|magazines| {
            if magazines.length(key) >= MAGAZINE_MAX {
                return (true, None);
            }
            let parked = parked.take().expect("it is put once");
            let keeps = keep(&parked.item);
            // No other thread can see the item until this closure returns.
            (false, if keeps { magazines.push(key, parked) } else { Some(parked) })
        });
        match full {
            // An item that is not kept is dropped here, where no lock is held.
            Some((false, _)) => (),
            _ => self.put_into_depot(key, parked),
        }
    }

    /// Moves half a magazine into the depot, and an item that has no room in the cache.
    #[cold]
    fn put_into_depot(&self, key: Key, parked: Option<ParkedItem<T>>) {
        let Some(pool) = self.0.pool.upgrade() else { return };
        let mut batch: Vec<_> = self
            .0
            .with(|magazines| magazines.split_oldest(key, MAGAZINE_MAX / 2))
            .unwrap_or_default();
        batch.extend(parked);
        pool.append_to_depot(key, &mut batch);
    }

    /// Makes room for `parked` within the limits: drops others, discards its pages, or drops it.
    #[cold]
    fn make_room(&self, key: Key, mut parked: ParkedItem<T>) -> Option<ParkedItem<T>> {
        let (pool, cache) = (self.0.pool.upgrade()?, &*self.0);
        let config = *pool.config.read().unwrap_or_else(PoisonError::into_inner);
        let (mut count, mut all, mut of_key) = (0usize, 0u64, 0u64);
        pool.each_magazines(|magazines| {
            count += magazines.parked as usize;
            all += magazines.resident;
            of_key += magazines.resident_of(key);
        });
        let exceeds = |parked: &ParkedItem<T>| {
            parked.resident > config.resident_max.saturating_sub(all)
                || parked.resident > config.resident_max_per_image.saturating_sub(of_key)
        };
        if exceeds(&parked) {
            cache.counts.add(PoolEvent::Discarded, 1);
            // A copied image keeps its pages.
            if parked.discard().is_err() || exceeds(&parked) {
                cache.counts.add(PoolEvent::Refused, 1);
                return None;
            }
        }
        if count < config.kept_max {
            return Some(parked);
        }
        cache.counts.add(PoolEvent::Refused, 1);
        // The oldest of this thread is dropped; to compare with other threads' takes too long.
        let oldest = if config.kept_max == 0 { None } else { cache.with(Magazines::pop_oldest) };
        let oldest = oldest.flatten().or_else(|| lock(&pool.depot).pop_oldest());
        (oldest.is_some() && config.kept_max > 0).then_some(parked)
    }
}

impl<T: Park> PoolShared<T> {
    /// Calls `look` for the magazines of every cache and of the depot.
    fn each_magazines(&self, mut look: impl FnMut(&mut Magazines<T>)) {
        self.each_cache(|cache| {
            cache.wait_with(&mut look);
        });
        look(&mut lock(&self.depot));
    }

    fn each_cache(&self, mut look: impl FnMut(&ThreadCache<T>)) {
        for cache in lock(&self.caches).iter() {
            look(cache);
        }
        look(&self.common);
    }

    /// Moves a batch into the depot, unless its key has been removed meanwhile: then the batch
    /// stays with the caller.
    fn append_to_depot(&self, key: Key, batch: &mut Vec<ParkedItem<T>>) {
        let keys = lock(&self.keys);
        if keys.is_current(key) {
            lock(&self.depot).append(key, batch);
        }
    }

    fn trim(&self, idle: Duration) -> usize {
        let mut gone = Vec::new();
        let before = thread_cache::now().saturating_sub(thread_cache::ticks(idle));
        self.each_magazines(|magazines| magazines.take_idle(before, idle.is_zero(), &mut gone));
        self.counts.add_shared(PoolEvent::Trimmed, gone.len() as u64);
        gone.len()
    }

    fn discard(&self, idle: Duration) -> usize {
        let mut idles = Vec::new();
        let before = thread_cache::now().saturating_sub(thread_cache::ticks(idle));
        self.each_magazines(|magazines| magazines.take_idle(before, idle.is_zero(), &mut idles));
        let mut count = 0;
        // Outside of all locks. Threads that ask meanwhile find nothing, and make new items.
        for (key, mut parked) in idles {
            if parked.resident > 0 && parked.discard().is_err() {
                continue;
            }
            count += 1;
            self.append_to_depot(key, &mut vec![parked]);
        }
        self.counts.add_shared(PoolEvent::Discarded, count as u64);
        count
    }

    /// Drops what exceeds the limits, the oldest first.
    fn shrink(&self, config: &PoolConfig) {
        let (mut count, mut bytes) = (0usize, 0u64);
        self.each_magazines(|magazines| {
            count += magazines.parked as usize;
            bytes += magazines.resident;
        });
        let mut gone = Vec::new();
        while count > config.kept_max || bytes > config.resident_max {
            let mut one = None;
            self.each_magazines(|magazines| one = one.take().or_else(|| magazines.pop_oldest()));
            let Some(one) = one else { break };
            count -= 1;
            bytes -= one.resident;
            gone.push(one);
        }
        self.counts.add_shared(PoolEvent::Trimmed, gone.len() as u64);
    }
}

impl<T: Park> Drop for PoolShared<T> {
    fn drop(&mut self) {
        // Threads keep their caches, which are empty then.
        self.trim(Duration::ZERO);
    }
}
