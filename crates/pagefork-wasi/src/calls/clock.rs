//! Clocks: those of the host, so that there is no state, or the embedder's own.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};

use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;

impl WasiCtx {
    /// `clock_res_get`: writes the resolution of a clock, nanoseconds.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] for an unknown clock, [`Errno::Fault`].
    pub fn clock_res_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        clock: u32,
        result: u32,
    ) -> Result {
        let resolution = match self.grants.shared.sources.resolution_ns(clock) {
            Some(own) => own,
            None => nanoseconds(clock_getres(host_clock(clock)?)),
        };
        memory.write_words(result, [resolution])
    }

    /// `clock_time_get`: writes the time of a clock, nanoseconds. The precision that the guest
    /// asks for is ignored.
    ///
    /// Both CPU clocks are that of the thread that runs the guest. A guest has one thread, and
    /// should not learn what the rest of the process does.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] for an unknown clock, [`Errno::Fault`].
    pub fn clock_time_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        clock: u32,
        _precision_ns: u64,
        result: u32,
    ) -> Result {
        let now = match self.grants.shared.sources.now_ns(clock) {
            Some(own) => own,
            None => now_ns(host_clock(clock)?),
        };
        memory.write_words(result, [now])
    }
}

/// Time of a clock, nanoseconds.
pub(crate) fn now_ns(clock: ClockId) -> u64 {
    nanoseconds(clock_gettime(clock))
}

fn host_clock(clock: u32) -> Result<ClockId> {
    match clock {
        0 => Ok(ClockId::Realtime),
        1 => Ok(ClockId::Monotonic),
        2 | 3 => Ok(ClockId::ThreadCPUTime),
        _ => Err(Errno::Inval),
    }
}

/// Nanoseconds since 1970, from 1970 to 2554.
pub(crate) fn nanoseconds(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let fraction = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(fraction)
}
