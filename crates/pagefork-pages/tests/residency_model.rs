//! The table of which groups are here, in all orders in which threads can take turns: nobody waits
//! for what has come, no group comes twice, and no request is lost.

use std::time::Instant;

use loom::sync::Arc;
use loom::thread;

/// What [`residency`] imports, of the model: a futex is a lock and a condition.
mod os {
    pub(crate) mod word {
        use std::time::Instant;

        use loom::sync::{Condvar, Mutex};

        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

        loom::lazy_static! {
            static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
        }

        pub(crate) fn wait(word: &AtomicU32, expected: u32, _deadline: Instant) -> bool {
            let guard = SLEEPERS.0.lock().unwrap();
            if word.load(Ordering::SeqCst) == expected {
                drop(SLEEPERS.1.wait(guard).unwrap());
            }
            true
        }

        pub(crate) fn wake(_word: &AtomicU32) {
            let _guard = SLEEPERS.0.lock().unwrap();
            SLEEPERS.1.notify_all();
        }
    }
}

#[path = "../src/image/residency.rs"]
#[allow(dead_code, reason = "each model uses a part of it")]
mod residency;

use residency::{Missed, Presence, Residency};

fn wait(residency: &Residency) -> Result<(), Missed> {
    residency.wait(0, Instant::now())
}

/// Tries all orders in which threads are interrupted at most three times.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn who_waits_for_a_group_goes_on_when_it_comes() {
    model(|| {
        let residency = Arc::new(Residency::new(1));
        let waiter = {
            let residency = Arc::clone(&residency);
            thread::spawn(move || assert_eq!(wait(&residency), Ok(())))
        };
        // One that is given up half-way changes nothing.
        drop(residency.begin(0).unwrap());
        assert_eq!(residency.begin(0).unwrap().finish(), 1);
        waiter.join().unwrap();
        assert_eq!(residency.state(0), Presence::Present);
    });
}

#[test]
fn of_two_who_bring_a_group_one_does() {
    model(|| {
        let residency = Arc::new(Residency::new(1));
        let bring = |residency: Arc<Residency>| residency.begin(0).map(|arrival| arrival.finish());
        let other = {
            let residency = Arc::clone(&residency);
            thread::spawn(move || bring(residency))
        };
        let here = bring(Arc::clone(&residency));
        let there = other.join().unwrap();
        assert!(here.is_some() != there.is_some(), "{here:?} {there:?}");
        assert_eq!((residency.present(), wait(&residency)), (1, Ok(())));
    });
}

#[test]
fn nobody_waits_for_what_is_given_up_even_if_it_was_on_its_way() {
    model(|| {
        let residency = Arc::new(Residency::new(1));
        let waiter = {
            let residency = Arc::clone(&residency);
            thread::spawn(move || wait(&residency))
        };
        let arriving = {
            let residency = Arc::clone(&residency);
            thread::spawn(move || drop(residency.begin(0)))
        };
        residency.end();
        arriving.join().unwrap();
        assert_eq!(waiter.join().unwrap(), Err(Missed::Poisoned));
        assert!(residency.begin(0).is_none() && residency.poisoned() == 1);
    });
}

#[test]
fn what_is_asked_for_is_taken_once_and_never_lost() {
    model(|| {
        let residency = Arc::new(Residency::new(1));
        let asking = {
            let residency = Arc::clone(&residency);
            thread::spawn(move || usize::from(residency.want(0)) + usize::from(residency.want(0)))
        };
        let mut taken = 0;
        residency.take_wanted(|_| taken += 1);
        let asked = asking.join().unwrap();
        residency.take_wanted(|_| taken += 1);
        assert_eq!(taken, asked, "each time that it was news to ask");
        assert!((1..=2).contains(&taken));
    });
}
