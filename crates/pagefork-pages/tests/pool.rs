//! What a pool promises: what is taken was parked for the same, nothing is lost or
//! handed out twice, limits hold, and nobody waits.

mod common;
#[path = "common/matrix.rs"]
mod matrix;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use matrix::*;
use pagefork_pages::{Key, LocalPool, PagesError, Park, Pool, PoolConfig, ResetKind, Slot};

/// Counts how many of its kind there are.
struct Thing {
    number: usize,
    bytes: u64,
    alive: Arc<AtomicUsize>,
}

impl Thing {
    fn new(number: usize, bytes: u64, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self { number, bytes, alive: Arc::clone(alive) }
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Park for Thing {
    fn resident(&self) -> u64 {
        self.bytes
    }

    fn discard(&mut self) -> Result<(), PagesError> {
        self.bytes = 0;
        Ok(())
    }
}

fn alive() -> Arc<AtomicUsize> {
    Arc::default()
}

fn kept_for_ever() -> PoolConfig {
    PoolConfig { idle_max: None, heed_pressure: false, ..PoolConfig::default() }
}

#[test]
fn what_is_taken_was_parked_last_for_the_same_key() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let (a, b) = (pool.add_key(), pool.add_key());
    assert!(pool.take(a).is_none());
    for number in 0..3 {
        pool.put(a, Thing::new(number, 10, &alive));
        pool.put(b, Thing::new(100 + number, 1, &alive));
    }
    let counters = pool.counters();
    assert_eq!((counters.parked, counters.resident, counters.put), (6, 33, 6));
    assert_eq!(pool.take(a).unwrap().number, 2);
    assert_eq!(pool.take(b).unwrap().number, 102);
    assert_eq!(pool.take(a).unwrap().number, 1);
    assert_eq!(pool.take(a).unwrap().number, 0);
    assert!(pool.take(a).is_none());
    let counters = pool.counters();
    assert_eq!((counters.taken, counters.missed, counters.parked), (4, 2, 2));
    drop(pool);
    assert_eq!(alive.load(Ordering::SeqCst), 0, "a pool that goes takes everything along");
}

#[test]
fn a_removed_key_keeps_nothing_and_its_place_is_used_again() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let old = pool.add_key();
    pool.put(old, Thing::new(0, 0, &alive));
    pool.remove_key(old);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let new = pool.add_key();
    assert_ne!(old, new);
    pool.put(new, Thing::new(1, 0, &alive));
    // Too late: it must neither stay nor push the other out.
    pool.put(old, Thing::new(2, 0, &alive));
    assert!(pool.take(old).is_none());
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    pool.remove_key(old);
    assert_eq!(pool.take(new).unwrap().number, 1);
}

#[test]
fn what_was_put_under_a_removed_key_goes_when_it_is_cleared() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let key = pool.add_key();
    pool.remove_key(key);
    pool.put(key, Thing::new(0, 0, &alive));
    pool.clear_key(key);
    assert_eq!((alive.load(Ordering::SeqCst), pool.counters().parked), (0, 0));
}

#[test]
fn a_thread_that_ends_leaves_what_it_parked_to_others() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let key = pool.add_key();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..5 {
                pool.put(key, Thing::new(number, 7, &alive));
            }
        });
    });
    // The scope ends before the thread's destructors have run.
    while pool.take(key).map(|thing| pool.put(key, thing)).is_none() {
        std::thread::yield_now();
    }
    let mut numbers: Vec<_> =
        std::iter::from_fn(|| pool.take(key)).map(|thing| thing.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    assert_eq!(pool.counters().put, 6, "the counts of a thread that ended remain");
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn what_one_thread_parks_another_finds_before_it_piles_up() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let key = pool.add_key();
    let (send, receive) = std::sync::mpsc::sync_channel::<Thing>(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for thing in receive {
                pool.put(key, thing);
            }
        });
        for number in 0..10_000 {
            let thing = pool.take(key).unwrap_or_else(|| Thing::new(number, 0, &alive));
            send.send(thing).unwrap();
        }
        drop(send);
    });
    let made = alive.load(Ordering::SeqCst);
    assert!(made < 200, "{made} were made where some dozens do");
}

#[test]
fn many_threads_lose_nothing_and_share_nothing() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let keys: Vec<_> = (0..4).map(|_| pool.add_key()).collect();
    std::thread::scope(|scope| {
        for seed in 0..4usize {
            let (pool, alive, keys) = (&pool, &alive, &keys);
            scope.spawn(move || {
                let mut held = Vec::new();
                for step in 0..5_000usize {
                    let random = step.wrapping_mul(0x9e37_79b9).wrapping_add(seed * 77) >> 3;
                    let index = random % keys.len();
                    match random % 7 {
                        0..3 => held.push((
                            index,
                            pool.take(keys[index]).unwrap_or_else(|| Thing::new(index, 1, alive)),
                        )),
                        3..6 => {
                            if let Some((index, thing)) = held.pop() {
                                assert_eq!(thing.number, index, "of another key");
                                pool.put(keys[index], thing);
                            }
                        }
                        _ if step % 500 == 0 => drop(pool.discard(Duration::ZERO)),
                        _ => drop(pool.counters()),
                    }
                }
            });
        }
    });
    pool.purge();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let counters = pool.counters();
    assert_eq!((counters.parked, counters.resident), (0, 0));
}

#[test]
fn limits_hold_also_when_they_are_set_later() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let (a, b) = (pool.add_key(), pool.add_key());
    for number in 0..10 {
        pool.put(a, Thing::new(number, 100, &alive));
    }
    pool.set_config(PoolConfig { kept_max: 3, ..kept_for_ever() });
    assert_eq!(alive.load(Ordering::SeqCst), 3);
    // The oldest goes for the newest, whatever it is for.
    pool.put(b, Thing::new(0, 100, &alive));
    assert_eq!(alive.load(Ordering::SeqCst), 3);
    assert_eq!(pool.take(b).unwrap().number, 0);
    assert_eq!(pool.counters().refused, 1);

    pool.set_config(PoolConfig { kept_max: 0, ..kept_for_ever() });
    pool.put(a, Thing::new(0, 0, &alive));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn beyond_a_budget_things_stay_without_their_pages() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let (a, b) = (pool.add_key(), pool.add_key());
    let config = kept_for_ever();
    pool.set_config(PoolConfig { resident_max: 250, resident_max_per_image: 150, ..config });
    pool.put(a, Thing::new(0, 100, &alive));
    pool.put(a, Thing::new(1, 100, &alive));
    assert_eq!((pool.counters().resident, pool.counters().discarded), (100, 1), "of one image");
    pool.put(b, Thing::new(2, 100, &alive));
    assert_eq!((pool.counters().resident, pool.counters().discarded), (200, 1));
    pool.put(b, Thing::new(3, 60, &alive));
    assert_eq!((pool.counters().resident, pool.counters().discarded), (200, 2), "of all");
    assert_eq!(alive.load(Ordering::SeqCst), 4);
}

#[test]
fn trimming_takes_what_lies_idle_and_nothing_else() {
    let (pool, alive) = (Pool::new(kept_for_ever()), alive());
    let key = pool.add_key();
    for number in 0..3 {
        pool.put(key, Thing::new(number, 5, &alive));
    }
    assert_eq!(pool.trim(Duration::from_secs(3600)), 0);
    assert_eq!(pool.discard(Duration::ZERO), 3);
    assert_eq!((pool.counters().parked, pool.counters().resident), (3, 0));
    assert_eq!(pool.purge(), 3);
    assert_eq!((pool.counters().trimmed, alive.load(Ordering::SeqCst)), (3, 0));
}

#[test]
fn the_keeper_trims_without_being_asked() {
    let idle_max = Some(Duration::from_millis(1));
    let (pool, alive) = (Pool::new(PoolConfig { idle_max, ..PoolConfig::default() }), alive());
    let key = pool.add_key();
    pool.put(key, Thing::new(0, 0, &alive));
    while alive.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(pool.counters().trimmed, 1);
}

/// A slot that knows how to be parked.
struct ParkedSlot(Slot);

impl Park for ParkedSlot {
    fn resident(&self) -> u64 {
        self.0.resident()
    }

    fn discard(&mut self) -> Result<(), PagesError> {
        self.0.discard()
    }
}

/// What was copied from an image stays in memory whatever is discarded, so slots that would
/// exceed the limit by it are not kept.
#[test]
fn slots_with_copied_images_stay_within_the_limit() {
    let (image, _) = dense_image(&layout(), 0x42, 16 * WASM_PAGE);
    let case = Case::new("dense", layout(), image, (16 * WASM_PAGE, 16 * WASM_PAGE));
    for reset in ResetKind::ALL {
        let pool = Pool::new(PoolConfig { resident_max: 3 * MIB, ..kept_for_ever() });
        let key = pool.add_key();
        for _ in 0..20 {
            let mut slot = case.spawn(&strategies(reset));
            slot.enter();
            write(&slot, case.memory(0), &[7; 5000]);
            slot.reset().unwrap();
            pool.put(key, ParkedSlot(slot));
        }
        let counters = pool.counters();
        assert!(counters.resident <= 3 * MIB, "{reset}: {counters:?}");
        assert!(counters.parked > 0, "{reset}: {counters:?}");
    }
}

/// What holds a thread's part of a pool may be of the thread's own values, which go after that part.
#[test]
fn what_is_put_while_a_thread_ends_is_found_by_others() {
    struct Last(Option<(LocalPool<Thing>, Key, Arc<AtomicUsize>)>);
    impl Drop for Last {
        fn drop(&mut self) {
            if let Some((local, key, alive)) = self.0.take() {
                local.put(key, Thing::new(2, 0, &alive), |_| true);
            }
        }
    }
    thread_local! {
        static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
    }
    let pool = Pool::new(PoolConfig { idle_max: None, ..PoolConfig::default() });
    let (key, alive) = (pool.add_key(), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The first value of the thread is the last one that goes.
            LAST.with_borrow_mut(|last| assert!(last.0.is_none()));
            let local = pool.local();
            local.put(key, Thing::new(1, 0, &alive), |_| true);
            LAST.with_borrow_mut(|last| last.0 = Some((local, key, Arc::clone(&alive))));
        });
        // Until all values of the thread are gone.
        thread.join().unwrap();
    });
    let mut found = [pool.take(key), pool.take(key)].map(|thing| thing.map(|it| it.number));
    found.sort_unstable();
    assert_eq!(found, [Some(1), Some(2)]);
    assert_eq!((pool.take(key).is_none(), alive.load(Ordering::SeqCst)), (true, 0));
}
