//! The items that one thread has parked.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Key, Park, PoolShared};
use crate::os::error::PagesError;
use crate::os::fork::call_in_children;
use crate::os::lock::lock;

/// A parked item, and since when it is parked.
#[derive(Debug)]
pub(super) struct ParkedItem<T> {
    pub(super) item: T,
    /// Bytes.
    pub(super) resident: u64,
    since: u64,
}

impl<T: Park> ParkedItem<T> {
    pub(super) fn new(item: T) -> Self {
        Self { resident: item.resident(), item, since: now() }
    }

    pub(super) fn discard(&mut self) -> Result<(), PagesError> {
        self.item.discard()?;
        self.resident = self.item.resident();
        Ok(())
    }
}

/// Milliseconds of a clock that is cheap to read, and coarse.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub(super) fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Items parked for one key, the oldest first.
#[derive(Debug)]
struct Magazine<T> {
    generation: u32,
    items: Vec<ParkedItem<T>>,
    /// Bytes.
    resident: u64,
}

/// Items parked, by key.
#[derive(Debug)]
pub(super) struct Magazines<T> {
    /// By the index of the key.
    magazines: Vec<Magazine<T>>,
    pub(super) parked: u64,
    /// Bytes.
    pub(super) resident: u64,
    /// Items that were parked for keys that have ended. They are dropped without a lock.
    stale: Vec<ParkedItem<T>>,
}

impl<T> Default for Magazines<T> {
    fn default() -> Self {
        Self { magazines: Vec::new(), parked: 0, resident: 0, stale: Vec::new() }
    }
}

impl<T: Park> Magazines<T> {
    pub(super) fn resident_of(&mut self, key: Key) -> u64 {
        self.magazine(key).map_or(0, |magazine| magazine.resident)
    }

    #[inline]
    pub(super) fn pop(&mut self, key: Key) -> Option<ParkedItem<T>> {
        let magazine = self.magazine(key)?;
        let parked = magazine.items.pop()?;
        magazine.resident -= parked.resident;
        self.note_gone(&parked);
        Some(parked)
    }

    /// Number of items parked for a key.
    pub(super) fn length(&mut self, key: Key) -> usize {
        self.magazine(key).map_or(0, |magazine| magazine.items.len())
    }

    /// Parks an item, or returns it if its key has ended.
    #[inline]
    pub(super) fn push(&mut self, key: Key, parked: ParkedItem<T>) -> Option<ParkedItem<T>> {
        if self.magazine(key).is_none() && !self.add_magazine(key) {
            return Some(parked);
        }
        self.parked += 1;
        self.resident += parked.resident;
        let magazine = self.magazine(key).expect("it was just added");
        magazine.resident += parked.resident;
        magazine.items.push(parked);
        None
    }

    pub(super) fn append(&mut self, key: Key, batch: &mut Vec<ParkedItem<T>>) {
        for parked in batch.drain(..) {
            let stale = self.push(key, parked);
            self.stale.extend(stale);
        }
    }

    /// Takes the latest `count`, the latest last.
    pub(super) fn split_latest(&mut self, key: Key, count: usize) -> Vec<ParkedItem<T>> {
        let Some(magazine) = self.magazine(key) else { return Vec::new() };
        let at = magazine.items.len().saturating_sub(count);
        let batch = magazine.items.split_off(at);
        self.note_all_gone(key, &batch);
        batch
    }

    /// Takes the oldest `count`, the latest last.
    pub(super) fn split_oldest(&mut self, key: Key, count: usize) -> Vec<ParkedItem<T>> {
        let Some(magazine) = self.magazine(key) else { return Vec::new() };
        let count = count.min(magazine.items.len());
        let batch: Vec<_> = magazine.items.drain(..count).collect();
        self.note_all_gone(key, &batch);
        batch
    }

    /// Empties the magazine of a key.
    pub(super) fn remove(&mut self, key: Key) -> Vec<ParkedItem<T>> {
        self.split_latest(key, usize::MAX)
    }

    /// Takes the item that was parked first.
    pub(super) fn pop_oldest(&mut self) -> Option<ParkedItem<T>> {
        let first = |magazine: &Magazine<T>| magazine.items.first().map(|parked| parked.since);
        let oldest = self
            .magazines
            .iter_mut()
            .filter(|magazine| first(magazine).is_some())
            .min_by_key(|magazine| first(magazine).expect("it has something"))?;
        let parked = oldest.items.remove(0);
        oldest.resident -= parked.resident;
        self.note_gone(&parked);
        Some(parked)
    }

    /// Moves the items that were parked before `before`, or all.
    pub(super) fn take_idle(
        &mut self,
        before: u64,
        all: bool,
        into: &mut Vec<(Key, ParkedItem<T>)>,
    ) {
        for index in 0..self.magazines.len() {
            let magazine = &self.magazines[index];
            let key = Key { index: index as u32, generation: magazine.generation };
            let count = magazine.items.partition_point(|parked| all || parked.since < before);
            if count > 0 {
                let idle = self.split_oldest(key, count);
                into.extend(idle.into_iter().map(|parked| (key, parked)));
            }
        }
    }

    fn magazine(&mut self, key: Key) -> Option<&mut Magazine<T>> {
        let magazine = self.magazines.get_mut(key.index as usize)?;
        (magazine.generation == key.generation).then_some(magazine)
    }

    /// Makes a magazine for a key, unless a later key has its index by now.
    fn add_magazine(&mut self, key: Key) -> bool {
        let index = key.index as usize;
        while self.magazines.len() <= index {
            self.magazines.push(Magazine { generation: 0, items: Vec::new(), resident: 0 });
        }
        let generation = self.magazines[index].generation;
        if generation > key.generation {
            return false;
        }
        let old = self.remove(Key { index: key.index, generation });
        self.stale.extend(old);
        self.magazines[index].generation = key.generation;
        true
    }

    fn note_gone(&mut self, parked: &ParkedItem<T>) {
        self.parked -= 1;
        self.resident -= parked.resident;
    }

    fn note_all_gone(&mut self, key: Key, gone: &[ParkedItem<T>]) {
        let bytes: u64 = gone.iter().map(|parked| parked.resident).sum();
        self.parked -= gone.len() as u64;
        self.resident -= bytes;
        if let Some(magazine) = self.magazine(key) {
            magazine.resident -= bytes;
        }
    }
}

/// The items that one thread has parked. Other threads look into it only to enforce limits.
pub(super) struct ThreadCache<T: Park> {
    /// Whether a thread uses `magazines`.
    busy: AtomicBool,
    magazines: UnsafeCell<Magazines<T>>,
    pub(super) counts: PoolCounts,
    /// Whether the pool has limits.
    pub(super) limited: AtomicBool,
    pub(super) pool: Weak<PoolShared<T>>,
}

// SAFETY: only the thread that has set `busy` uses `magazines`, and items are `Send`.
unsafe impl<T: Park> Sync for ThreadCache<T> {}

impl<T: Park> fmt::Debug for ThreadCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadCache").field("counts", &self.counts.get()).finish_non_exhaustive()
    }
}

impl<T: Park> ThreadCache<T> {
    pub(super) fn new(pool: Weak<PoolShared<T>>, limited: bool) -> Self {
        Self {
            busy: AtomicBool::new(false),
            magazines: UnsafeCell::default(),
            counts: PoolCounts::default(),
            limited: limited.into(),
            pool,
        }
    }

    /// This thread's cache in this pool.
    #[inline]
    pub(super) fn of_this_thread(pool: &Arc<PoolShared<T>>) -> &Self {
        let (id, cache) = LATEST.get();
        if id == pool.id {
            // SAFETY: the pool with this number made it, so it is of this type. The pool, which
            // is borrowed, keeps it until this thread ends, which clears `LATEST`.
            return unsafe { &*cache.cast::<Self>() };
        }
        Self::find_or_make(pool)
    }

    #[cold]
    fn find_or_make(pool: &Arc<PoolShared<T>>) -> &Self {
        let known = OWN.try_with(|own| {
            let own = own.0.borrow();
            let found = own.iter().find(|(id, _)| *id == pool.id);
            found.map(|(_, cache)| Arc::as_ptr(cache).cast::<()>())
        });
        let address = match known {
            Ok(Some(address)) => {
                // A forked process has no reaper yet.
                pool.start_reaper();
                address
            }
            Ok(None) => {
                pool.start_reaper();
                // Under the lock, so that a change of limits comes before or after.
                let mut caches = lock(&pool.caches);
                let config = *pool.config.read().unwrap_or_else(PoisonError::into_inner);
                let cache = Arc::new(Self::new(Arc::downgrade(pool), config.is_limited()));
                let address = Arc::as_ptr(&cache).cast::<()>();
                caches.push(Arc::clone(&cache));
                drop(caches);
                OWN.with(|own| {
                    let mut caches = own.0.borrow_mut();
                    if HELD.get() == 0 {
                        caches.retain(|(_, cache)| cache.is_used());
                    }
                    caches.push((pool.id, cache));
                });
                address
            }
            // The thread is about to end, and has given up its caches.
            Err(_) => return &pool.common,
        };
        LATEST.set((pool.id, address));
        // SAFETY: the pool, which is borrowed, keeps the cache until this thread ends.
        unsafe { &*address.cast::<Self>() }
    }

    /// Uses the magazines, unless another thread does.
    #[inline]
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Magazines<T>) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was not set, so no other thread uses them.
        let magazines = unsafe { &mut *self.magazines.get() };
        let result = work(magazines);
        let stale = std::mem::take(&mut magazines.stale);
        self.busy.store(false, Ordering::Release);
        drop(stale);
        Some(result)
    }

    /// Uses the magazines, after other threads.
    pub(super) fn wait_with<R>(&self, mut work: impl FnMut(&mut Magazines<T>) -> R) -> R {
        loop {
            if let Some(result) = self.with(&mut work) {
                return result;
            }
            std::thread::yield_now();
        }
    }
}

/// The current thread's cache for as long as it is held, also when the pool is gone. The thread counts
/// what it holds in memory of its own: an [`Arc`] would take a third as long as all else that parking does.
pub(super) struct HeldCache<T: Park> {
    /// Invariant: it is `common`'s, or one of the thread's own, and counts in `HELD`.
    cache: NonNull<ThreadCache<T>>,
    /// Of a thread that has given up its own.
    common: Option<Arc<ThreadCache<T>>>,
}

impl<T: Park> HeldCache<T> {
    #[inline]
    pub(super) fn of_this_thread(pool: &Arc<PoolShared<T>>) -> Self {
        let cache = ThreadCache::of_this_thread(pool);
        if ptr::eq(cache, &*pool.common) {
            let common = Arc::clone(&pool.common);
            return Self { cache: cache.into(), common: Some(common) };
        }
        HELD.set(HELD.get() + 1);
        Self { cache: cache.into(), common: None }
    }
}

impl<T: Park> Deref for HeldCache<T> {
    type Target = ThreadCache<T>;

    #[inline]
    fn deref(&self) -> &ThreadCache<T> {
        // SAFETY: by the invariant of `cache`: `common` is held, and of its own caches a thread gives
        // none up while any counts in `HELD`. This value does not leave the thread.
        unsafe { self.cache.as_ref() }
    }
}

impl<T: Park> Drop for HeldCache<T> {
    #[inline]
    fn drop(&mut self) {
        if self.common.is_none() {
            HELD.set(HELD.get() - 1);
        }
    }
}

impl<T: Park> fmt::Debug for HeldCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A cache of a pool of any type.
trait AnyThreadCache {
    /// Whether its pool is still there.
    fn is_used(&self) -> bool;

    /// Moves all items to the depot, since the thread ends.
    fn leave(&self);

    /// Has all that is put here from now on go to the depot, too; if there is none, nowhere.
    fn close(&self);
}

impl<T: Park> AnyThreadCache for ThreadCache<T> {
    fn is_used(&self) -> bool {
        self.pool.strong_count() > 0
    }

    fn leave(&self) {
        let mut all = Vec::new();
        self.wait_with(|magazines| magazines.take_idle(0, true, &mut all));
        let Some(pool) = self.pool.upgrade() else { return };
        for (key, parked) in all {
            pool.append_to_depot(key, &mut vec![parked]);
        }
        for (sum, count) in pool.counts.0.iter().zip(self.counts.get()) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
        lock(&pool.caches).retain(|cache| !ptr::eq(&**cache, self));
    }

    fn close(&self) {
        match self.is_used() {
            // Nobody waits for it: the pool knows it no more since this thread has left.
            true => self.busy.store(true, Ordering::Relaxed),
            // Whoever drops the pool may be looking into it. What has limits asks the pool first,
            // and where there is none, drops what it is given.
            false => self.limited.store(true, Ordering::Relaxed),
        }
    }
}

thread_local! {
    /// The pool that was used last, by its number, and this thread's cache in it.
    static LATEST: Cell<(u64, *const ())> = const { Cell::new((0, ptr::null())) };
    static OWN: OwnCaches = const { OwnCaches(RefCell::new(Vec::new())) };
    /// How many [`HeldCache`]s there are of caches in `OWN`.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// The caches of a thread, by the number of the pool.
struct OwnCaches(RefCell<Vec<(u64, Arc<dyn AnyThreadCache>)>>);

impl Drop for OwnCaches {
    fn drop(&mut self) {
        LATEST.set((0, ptr::null()));
        for (_, cache) in self.0.take() {
            cache.leave();
            // What holds one is in a thread-local value that goes later, or never.
            if HELD.get() > 0 {
                cache.close();
                std::mem::forget(cache);
            }
        }
    }
}

pub(super) fn next_id() -> u64 {
    // There the thread looks for its cache anew, and starts the reaper if there is none.
    call_in_children(|| LATEST.set((0, ptr::null())));
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What a pool counts, in the order of the fields of [`PoolCounters`](super::PoolCounters).
#[derive(Clone, Copy)]
pub(super) enum PoolEvent {
    Taken,
    Missed,
    Put,
    Refused,
    Discarded,
    Trimmed,
    Written,
}

/// How much there was of each [`PoolEvent`].
#[derive(Debug, Default)]
pub(super) struct PoolCounts([AtomicU64; 7]);

impl PoolCounts {
    /// Adds to a count to which one thread at a time adds.
    #[inline]
    pub(super) fn add(&self, event: PoolEvent, more: u64) {
        let count = &self.0[event as usize];
        count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Adds to a count to which several threads add.
    pub(super) fn add_shared(&self, event: PoolEvent, more: u64) {
        self.0[event as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> [u64; 7] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pool, PoolConfig};
    use super::*;

    struct Item;

    impl Park for Item {
        fn resident(&self) -> u64 {
            0
        }

        fn written(&self) -> u64 {
            0
        }

        fn discard(&mut self) -> Result<(), PagesError> {
            Ok(())
        }
    }

    /// A pool that this thread has parked something in, and its cache.
    fn used() -> (Pool<Item>, Weak<ThreadCache<Item>>) {
        let pool = Pool::new(PoolConfig { idle_max: None, ..PoolConfig::default() });
        pool.put(pool.add_key(), Item);
        let cache = Arc::downgrade(&lock(&pool.0.caches)[0]);
        (pool, cache)
    }

    #[test]
    fn a_cache_stays_as_long_as_its_thread_holds_it_and_goes_afterwards() {
        let (pool, cache) = used();
        let key = pool.add_key();
        let local = pool.local();
        drop(pool);
        // Who makes another cache gives up those of pools that are gone.
        let (_other, _) = used();
        assert!(cache.strong_count() > 0, "it is held");
        local.put(key, Item, |_| true);
        drop(local);
        let (_third, _) = used();
        assert_eq!(cache.strong_count(), 0);
    }
}
