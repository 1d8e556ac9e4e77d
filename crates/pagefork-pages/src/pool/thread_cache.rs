use std::any::Any;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{Key, Park, PoolCounters, Shared, lock};
use crate::os::error::PagesError;
use crate::os::fork::call_in_children;

/// Something parked, and since when.
#[derive(Debug)]
pub(super) struct Parked<T> {
    pub(super) item: T,
    /// Bytes.
    pub(super) resident: u64,
    since: u64,
}

impl<T: Park> Parked<T> {
    pub(super) fn new(item: T) -> Self {
        Self { resident: item.resident(), item, since: now() }
    }

    pub(super) fn discard(&mut self) -> Result<(), PagesError> {
        self.item.discard()?;
        self.resident = self.item.resident();
        Ok(())
    }
}

/// Milliseconds of a clock that is cheap to read, and steps every few of them.
pub(super) fn now() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

pub(super) fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is parked for one key, the oldest first.
#[derive(Debug)]
struct Rack<T> {
    generation: u32,
    items: Vec<Parked<T>>,
    /// Bytes.
    resident: u64,
}

/// What is parked, by key.
#[derive(Debug)]
pub(super) struct Racks<T> {
    /// By the index of the key.
    racks: Vec<Rack<T>>,
    parked: u64,
    resident: u64,
    /// What was put under keys that have ended: to be dropped once nobody waits.
    stale: Vec<Parked<T>>,
}

impl<T> Default for Racks<T> {
    fn default() -> Self {
        Self { racks: Vec::new(), parked: 0, resident: 0, stale: Vec::new() }
    }
}

impl<T: Park> Racks<T> {
    pub(super) fn parked(&self) -> u64 {
        self.parked
    }

    pub(super) fn resident(&self) -> u64 {
        self.resident
    }

    pub(super) fn resident_of(&mut self, key: Key) -> u64 {
        self.rack(key).map_or(0, |rack| rack.resident)
    }

    #[inline]
    pub(super) fn pop(&mut self, key: Key) -> Option<Parked<T>> {
        let rack = self.rack(key)?;
        let parked = rack.items.pop()?;
        rack.resident -= parked.resident;
        self.note_gone(&parked);
        Some(parked)
    }

    /// How many are parked for a key.
    pub(super) fn length(&mut self, key: Key) -> usize {
        self.rack(key).map_or(0, |rack| rack.items.len())
    }

    /// Returns what is put under a key that has ended.
    #[inline]
    pub(super) fn push(&mut self, key: Key, parked: Parked<T>) -> Option<Parked<T>> {
        if self.rack(key).is_none() && !self.add_rack(key) {
            return Some(parked);
        }
        self.parked += 1;
        self.resident += parked.resident;
        let rack = self.rack(key).expect("it was just added");
        rack.resident += parked.resident;
        rack.items.push(parked);
        None
    }

    pub(super) fn append(&mut self, key: Key, batch: &mut Vec<Parked<T>>) {
        for parked in batch.drain(..) {
            let stale = self.push(key, parked);
            self.stale.extend(stale);
        }
    }

    /// The latest `count`, the latest last.
    pub(super) fn split_latest(&mut self, key: Key, count: usize) -> Vec<Parked<T>> {
        let Some(rack) = self.rack(key) else { return Vec::new() };
        let at = rack.items.len().saturating_sub(count);
        let batch = rack.items.split_off(at);
        self.note_all_gone(key, &batch);
        batch
    }

    /// The oldest `count`, the latest last.
    pub(super) fn split_oldest(&mut self, key: Key, count: usize) -> Vec<Parked<T>> {
        let Some(rack) = self.rack(key) else { return Vec::new() };
        let count = count.min(rack.items.len());
        let batch: Vec<_> = rack.items.drain(..count).collect();
        self.note_all_gone(key, &batch);
        batch
    }

    /// Empties the rack of a key.
    pub(super) fn remove(&mut self, key: Key) -> Vec<Parked<T>> {
        self.split_latest(key, usize::MAX)
    }

    /// The one that was parked first of all.
    pub(super) fn pop_oldest(&mut self) -> Option<Parked<T>> {
        let first = |rack: &Rack<T>| rack.items.first().map(|parked| parked.since);
        let oldest = self
            .racks
            .iter_mut()
            .filter(|rack| first(rack).is_some())
            .min_by_key(|rack| first(rack).expect("it has something"))?;
        let parked = oldest.items.remove(0);
        oldest.resident -= parked.resident;
        self.note_gone(&parked);
        Some(parked)
    }

    /// Moves what was parked before `before`, or everything.
    pub(super) fn take_idle(&mut self, before: u64, all: bool, into: &mut Vec<Parked<T>>) {
        let mut keyed = Vec::new();
        self.take_idle_keyed(before, all, &mut keyed);
        into.extend(keyed.into_iter().map(|(_, parked)| parked));
    }

    pub(super) fn take_idle_keyed(
        &mut self,
        before: u64,
        all: bool,
        into: &mut Vec<(Key, Parked<T>)>,
    ) {
        for index in 0..self.racks.len() {
            let rack = &self.racks[index];
            let key = Key { index: index as u32, generation: rack.generation };
            let count = rack.items.partition_point(|parked| all || parked.since < before);
            if count > 0 {
                let idle = self.split_oldest(key, count);
                into.extend(idle.into_iter().map(|parked| (key, parked)));
            }
        }
    }

    fn rack(&mut self, key: Key) -> Option<&mut Rack<T>> {
        let rack = self.racks.get_mut(key.index as usize)?;
        (rack.generation == key.generation).then_some(rack)
    }

    /// Makes place for a key, unless the place is a later key's by now.
    fn add_rack(&mut self, key: Key) -> bool {
        let index = key.index as usize;
        while self.racks.len() <= index {
            self.racks.push(Rack { generation: 0, items: Vec::new(), resident: 0 });
        }
        let generation = self.racks[index].generation;
        if generation > key.generation {
            return false;
        }
        let old = self.remove(Key { index: key.index, generation });
        self.stale.extend(old);
        self.racks[index].generation = key.generation;
        true
    }

    fn note_gone(&mut self, parked: &Parked<T>) {
        self.parked -= 1;
        self.resident -= parked.resident;
    }

    fn note_all_gone(&mut self, key: Key, gone: &[Parked<T>]) {
        let bytes: u64 = gone.iter().map(|parked| parked.resident).sum();
        self.parked -= gone.len() as u64;
        self.resident -= bytes;
        if let Some(rack) = self.rack(key) {
            rack.resident -= bytes;
        }
    }
}

/// What one thread has parked. Others look into it only to tidy up.
pub(super) struct Shelf<T: Park> {
    /// Whether somebody is at `racks`.
    busy: AtomicBool,
    racks: UnsafeCell<Racks<T>>,
    pub(super) counts: Counts,
    /// Whether the pool's limits are to be looked at.
    pub(super) limited: AtomicBool,
    pub(super) pool: Weak<Shared<T>>,
}

// SAFETY: `racks` is used by whoever has set `busy` alone, and what is parked may be
// sent to that thread.
unsafe impl<T: Park> Sync for Shelf<T> {}

impl<T: Park> fmt::Debug for Shelf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("counts", &self.counts.get()).finish_non_exhaustive()
    }
}

impl<T: Park> Shelf<T> {
    pub(super) fn new(pool: Weak<Shared<T>>, limited: bool) -> Self {
        Self {
            busy: AtomicBool::new(false),
            racks: UnsafeCell::default(),
            counts: Counts::default(),
            limited: limited.into(),
            pool,
        }
    }

    /// The shelf that this thread has in this pool.
    #[inline]
    pub(super) fn of_this_thread(pool: &Arc<Shared<T>>) -> &Self {
        let (id, shelf) = LATEST.get();
        if id == pool.id {
            // SAFETY: the pool with this number made it, so it is of this type. The
            // pool, which is borrowed, keeps it until this thread ends, which clears
            // `LATEST`.
            return unsafe { &*shelf.cast::<Self>() };
        }
        Self::find_or_make(pool)
    }

    /// As [`Shelf::of_this_thread`], for longer than the pool may be there.
    #[inline]
    pub(super) fn shared_of_this_thread(pool: &Arc<Shared<T>>) -> Arc<Self> {
        let shelf: *const Self = Self::of_this_thread(pool);
        // SAFETY: all shelves are made by `Arc::new`, and this one is there now.
        unsafe {
            Arc::increment_strong_count(shelf);
            Arc::from_raw(shelf)
        }
    }

    #[cold]
    fn find_or_make(pool: &Arc<Shared<T>>) -> &Self {
        let known = OWN.try_with(|own| {
            own.0.borrow().iter().find(|(id, _)| *id == pool.id).map(|(_, shelf)| shelf.address())
        });
        let address = match known {
            Ok(Some(address)) => {
                // A process that was forked has no keeper yet.
                pool.start_keeper();
                address
            }
            Ok(None) => {
                pool.start_keeper();
                // Under the lock: whoever changes limits comes before or after.
                let mut shelves = lock(&pool.shelves);
                let config = *pool.config.read().unwrap_or_else(PoisonError::into_inner);
                let shelf = Arc::new(Self::new(Arc::downgrade(pool), config.is_limited()));
                let address = Arc::as_ptr(&shelf).cast::<()>();
                shelves.push(Arc::clone(&shelf));
                drop(shelves);
                OWN.with(|own| {
                    let mut shelves = own.0.borrow_mut();
                    shelves.retain(|(_, shelf)| shelf.is_used());
                    shelves.push((pool.id, shelf));
                });
                address
            }
            // The thread is about to end, and has given its shelves up.
            Err(_) => return &pool.common,
        };
        LATEST.set((pool.id, address));
        // SAFETY: the pool, which is borrowed, keeps the shelf until this thread ends.
        unsafe { &*address.cast::<Self>() }
    }

    /// Lets the thread of the shelf at its racks, unless somebody else is.
    #[inline]
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut Racks<T>) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was not set, so nobody else is here.
        let racks = unsafe { &mut *self.racks.get() };
        let result = work(racks);
        let stale = std::mem::take(&mut racks.stale);
        self.busy.store(false, Ordering::Release);
        drop(stale);
        Some(result)
    }

    /// Lets somebody else at the racks, after the thread of the shelf.
    pub(super) fn wait_with<R>(&self, mut work: impl FnMut(&mut Racks<T>) -> R) -> R {
        loop {
            if let Some(result) = self.with(&mut work) {
                return result;
            }
            std::thread::yield_now();
        }
    }
}

/// A shelf of a pool of any type.
trait AnyShelf: Any {
    fn address(&self) -> *const ();

    /// Whether its pool is still there.
    fn is_used(&self) -> bool;

    /// Gives everything to the depot: the thread ends.
    fn leave(&self);
}

impl<T: Park> AnyShelf for Shelf<T> {
    fn address(&self) -> *const () {
        ptr::from_ref(self).cast()
    }

    fn is_used(&self) -> bool {
        self.pool.strong_count() > 0
    }

    fn leave(&self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut all = Vec::new();
        self.wait_with(|racks| racks.take_idle_keyed(0, true, &mut all));
        for (key, parked) in all {
            pool.append_to_depot(key, &mut vec![parked]);
        }
        pool.counts.add_all(&self.counts.get());
        lock(&pool.shelves).retain(|shelf| !ptr::eq(&**shelf, self));
    }
}

thread_local! {
    /// The pool that was used last, by its number, and this thread's shelf in it.
    static LATEST: Cell<(u64, *const ())> = const { Cell::new((0, ptr::null())) };
    static OWN: OwnShelves = const { OwnShelves(RefCell::new(Vec::new())) };
}

/// The shelves of a thread, by the number of the pool.
struct OwnShelves(RefCell<Vec<(u64, Arc<dyn AnyShelf>)>>);

impl Drop for OwnShelves {
    fn drop(&mut self) {
        LATEST.set((0, ptr::null()));
        for (_, shelf) in self.0.take() {
            shelf.leave();
        }
    }
}

/// Has this thread look for its shelf anew, and for what else a pool needs.
fn forget_latest() {
    LATEST.set((0, ptr::null()));
}

pub(super) fn next_id() -> u64 {
    call_in_children(forget_latest);
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A number that one thread adds to, at any rate one at a time.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Where several threads add.
    pub(super) fn add_shared(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) taken: Count,
    pub(super) missed: Count,
    pub(super) put: Count,
    pub(super) refused: Count,
    pub(super) discarded: Count,
    pub(super) trimmed: Count,
    pub(super) written: Count,
}

impl Counts {
    pub(super) fn get(&self) -> PoolCounters {
        PoolCounters {
            taken: self.taken.get(),
            missed: self.missed.get(),
            put: self.put.get(),
            refused: self.refused.get(),
            discarded: self.discarded.get(),
            trimmed: self.trimmed.get(),
            written: self.written.get(),
            parked: 0,
            resident: 0,
        }
    }

    fn add_all(&self, more: &PoolCounters) {
        self.taken.add_shared(more.taken);
        self.missed.add_shared(more.missed);
        self.put.add_shared(more.put);
        self.refused.add_shared(more.refused);
        self.discarded.add_shared(more.discarded);
        self.trimmed.add_shared(more.trimmed);
        self.written.add_shared(more.written);
    }
}
