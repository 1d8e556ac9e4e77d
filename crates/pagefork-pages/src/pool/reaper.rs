//! A thread that drops idle items, and gives back pages when memory is short.

use std::cell::OnceCell;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Park, PoolShared};
use crate::os::fork::{this_process, working};

/// The system is short of memory when tasks have waited 150 ms for it within two seconds. An
/// unprivileged process may ask for that.
const PRESSURE: &[u8] = b"some 150000 2000000\0";

/// Items used within this time keep their pages when memory is short.
const FRESH: Duration = Duration::from_secs(1);

/// How often the reaper runs within the time that items may lie idle.
const LOOKS: u32 = 4;

const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(5);

impl<T: Park> PoolShared<T> {
    /// Starts the reaper, once for each process.
    pub(super) fn start_reaper(self: &Arc<Self>) {
        let config = *self.config.read().unwrap_or_else(PoisonError::into_inner);
        if config.idle_max.is_none() && !config.heed_pressure {
            return;
        }
        let process = this_process();
        if self.reaper.swap(process, Ordering::Relaxed) == process {
            return;
        }
        let pool = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("pagefork-pool".to_owned());
        // A failure is ignored: without the thread, items stay until the pool is trimmed.
        let _ = thread.spawn(move || reap(&pool));
    }
}

/// Reaps a pool until it is dropped.
fn reap<T: Park>(pool: &Weak<PoolShared<T>>) {
    // To close a watch takes the kernel some 15 ms, which the end of the process waits for. One
    // that ends soon has none: what is fresh would stay anyway.
    let (begun, pressure) = (Instant::now(), OnceCell::new());
    while let Some(shared) = pool.upgrade() {
        let work = working();
        let config = *shared.config.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(idle) = config.idle_max {
            shared.trim(idle);
        }
        // The pool may be dropped while the reaper sleeps.
        drop(shared);
        drop(work);
        let interval = config.idle_max.map_or(INTERVAL_MAX, |idle| idle / LOOKS);
        let interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        let is_fresh = begun.elapsed() < FRESH;
        let heeds_pressure = config.heed_pressure && !is_fresh;
        let pressure =
            heeds_pressure.then(|| pressure.get_or_init(watch_pressure).as_ref()).flatten();
        let interval = if is_fresh { interval.min(FRESH) } else { interval };
        if wait(pressure, interval)
            && let Some(shared) = pool.upgrade()
        {
            let _work = working();
            shared.discard(FRESH);
        }
    }
}

/// Asks Linux to report when memory is short; `None` if it cannot.
fn watch_pressure() -> Option<OwnedFd> {
    let mut file = OpenOptions::new().read(true).write(true).open("/proc/pressure/memory").ok()?;
    file.write_all(PRESSURE).ok()?;
    Some(file.into())
}

/// Waits for an interval, or until memory is short: then the result is true.
fn wait(pressure: Option<&OwnedFd>, interval: Duration) -> bool {
    let Some(pressure) = pressure else {
        std::thread::sleep(interval);
        return false;
    };
    let mut polled = [PollFd::new(pressure, PollFlags::PRI)];
    let timeout = Timespec::try_from(interval).expect("an interval of seconds");
    match poll(&mut polled, Some(&timeout)) {
        Ok(1..) => polled[0].revents().contains(PollFlags::PRI),
        Ok(_) => false,
        Err(_) => {
            std::thread::sleep(INTERVAL_MIN);
            false
        }
    }
}
