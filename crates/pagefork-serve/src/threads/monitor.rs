use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::threads::event_loop::EventLoop;

/// Between two looks.
const INTERVAL_MIN: Duration = Duration::from_micros(100);

/// Sleeps while lanes have leaders.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    awake: AtomicBool,
    closed: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Monitor {
    /// To be said after a lane was left.
    pub(crate) fn wake(&self) {
        if !self.awake.load(Ordering::SeqCst) && !self.awake.swap(true, Ordering::SeqCst) {
            self.thread.get().inspect(|thread| thread.unpark());
        }
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.thread.get().inspect(|thread| thread.unpark());
    }

    /// Says which thread is to be woken. Comes before any lane is led.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// What the thread does: has lanes taken over that were without a leader at two looks
    /// and in between. While none is ever left, it does nothing.
    pub(crate) fn run(
        &self,
        lanes: &[Arc<EventLoop>],
        interval: Duration,
        take_over: impl Fn(&Arc<EventLoop>),
    ) {
        let mut seen: Vec<u64> = lanes.iter().map(|lane| lane.turns()).collect();
        while !self.closed.load(Ordering::SeqCst) {
            if !self.awake.load(Ordering::SeqCst) {
                std::thread::park();
                continue;
            }
            self.sleep(interval.max(INTERVAL_MIN));
            // What is left from here on wakes it again.
            self.awake.store(false, Ordering::SeqCst);
            for (lane, seen) in lanes.iter().zip(&mut seen) {
                let turns = lane.turns();
                let is_led = turns % 2 == 1;
                if !is_led && turns == *seen {
                    take_over(lane);
                }
                if !is_led || turns != *seen {
                    self.awake.store(true, Ordering::SeqCst);
                }
                *seen = turns;
            }
        }
    }

    /// Waits this long, or until it is closed.
    fn sleep(&self, time: Duration) {
        let begun = Instant::now();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero())
            && !self.closed.load(Ordering::SeqCst)
        {
            std::thread::park_timeout(left);
        }
    }
}
