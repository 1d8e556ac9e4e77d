//! Kernel maps that are left to the rest of the process. At the kernel's limit the allocator
//! gets no memory either, and a process without memory aborts instead of reporting an error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::os::error::PagesError;
use crate::os::limits;
use crate::os::lock::lock;

/// Slots leave this many maps below the limit to the rest of the process.
const SPARE: u64 = 512;

/// All maps of the process are counted once slots come this close to the limit.
const NEAR: u64 = 8192;

/// A count is used until slots have taken this many more maps: counting takes a millisecond for
/// every few thousand maps.
const RECOUNT: u64 = 1024;

/// Maps that all slots have together.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The maps that a slot may have.
#[derive(Debug)]
pub(crate) struct MapShare(u64);

#[derive(Clone, Copy, Debug, Default)]
struct MapCount {
    maps: u64,
    /// What slots had taken then.
    taken: u64,
}

impl MapShare {
    /// # Errors
    /// [`PagesError::TooManyMaps`] if too few were left for the rest of the process.
    pub(crate) fn take(maps: u64) -> Result<Self, PagesError> {
        let taken = TAKEN.fetch_add(maps, Ordering::Relaxed) + maps;
        let share = Self(maps);
        if taken + NEAR > limit() {
            check(taken, maps)?;
        }
        Ok(share)
    }

    /// How many that are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.0
    }

    /// Takes what is wanted more; never less.
    ///
    /// # Errors
    /// As of [`Self::take`], and the share is as before.
    pub(crate) fn grow_to(&mut self, maps: u64) -> Result<(), PagesError> {
        if maps > self.0 {
            let mut more = Self::take(maps - self.0)?;
            // Dropped, it gives nothing back.
            self.0 += std::mem::take(&mut more.0);
        }
        Ok(())
    }

    /// Gives back what is wanted no more.
    pub(crate) fn shrink_to(&mut self, maps: u64) {
        TAKEN.fetch_sub(self.0.saturating_sub(maps), Ordering::Relaxed);
        self.0 = self.0.min(maps);
    }
}

impl Drop for MapShare {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

#[cold]
fn check(taken: u64, more: u64) -> Result<(), PagesError> {
    static COUNTED: Mutex<Option<MapCount>> = Mutex::new(None);
    let mut counted = lock(&COUNTED);
    let estimate = |counted: &MapCount| counted.maps + taken.saturating_sub(counted.taken);
    let holds = |counted: &&MapCount| {
        taken.abs_diff(counted.taken) < RECOUNT && estimate(counted) + SPARE <= limit()
    };
    if counted.as_ref().filter(holds).is_some() {
        return Ok(());
    }
    // Also if it cannot be counted, the kernel has the last word.
    let Some((count, limit)) = limits::count_and_limit_of_maps() else { return Ok(()) };
    *counted = Some(MapCount { maps: count, taken: taken - more });
    match count + more + SPARE <= limit {
        true => Ok(()),
        false => Err(PagesError::TooManyMaps { count, limit }),
    }
}

/// Number of maps that the kernel allowed when it was first asked.
fn limit() -> u64 {
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| limits::count_and_limit_of_maps().map_or(u64::MAX, |(_, limit)| limit))
}
