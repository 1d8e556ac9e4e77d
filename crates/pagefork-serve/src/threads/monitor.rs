//! The monitor: a thread that notices event loops without a driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::threads::event_loop::EventLoop;

/// Shortest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_micros(100);

/// Sleeps while all event loops have drivers.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    awake: AtomicBool,
    closed: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Monitor {
    /// To be called after a driver has left its event loop.
    pub(crate) fn wake(&self) {
        if !self.awake.load(Ordering::SeqCst) && !self.awake.swap(true, Ordering::SeqCst) {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.thread.get().inspect(|thread| thread.unpark());
    }

    /// Names the thread that runs the monitor, before any event loop is driven.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Calls `take_over` for event loops that were without a driver at two looks and in between.
    pub(crate) fn run(
        &self,
        event_loops: &[Arc<EventLoop>],
        interval: Duration,
        take_over: impl Fn(&Arc<EventLoop>),
    ) {
        let mut seen: Vec<u64> = event_loops.iter().map(|event_loop| event_loop.turns()).collect();
        while !self.closed.load(Ordering::SeqCst) {
            if !self.awake.load(Ordering::SeqCst) {
                std::thread::park();
                continue;
            }
            self.sleep(interval.max(INTERVAL_MIN));
            // A driver that leaves from here on wakes the monitor again.
            self.awake.store(false, Ordering::SeqCst);
            for (event_loop, seen) in event_loops.iter().zip(&mut seen) {
                let turns = event_loop.turns();
                let is_driven = turns % 2 == 1;
                if !is_driven && turns == *seen {
                    take_over(event_loop);
                }
                if !is_driven || turns != *seen {
                    self.awake.store(true, Ordering::SeqCst);
                }
                *seen = turns;
            }
        }
    }

    /// Waits this long, or until the monitor is closed.
    fn sleep(&self, time: Duration) {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            && !self.closed.load(Ordering::SeqCst)
        {
            std::thread::park_timeout(left);
        }
    }
}
