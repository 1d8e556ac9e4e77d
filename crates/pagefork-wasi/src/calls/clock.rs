//! Clocks: those of the host, or the embedder's own.

use rustix::time::{ClockId, clock_getres};

use crate::base::errno::{Errno, Result};
use crate::base::guest_memory::GuestMemory;
use crate::state::ctx::WasiCtx;
use crate::state::sources::{host_now_ns, timespec_ns};

impl WasiCtx {
    /// `clock_res_get`: writes the resolution of a clock, nanoseconds.
    ///
    /// # Errors
    ///
    /// [`Errno::Inval`] for an unknown clock, [`Errno::Fault`].
    ///
    /// # Examples
    ///
    /// ```
    /// use pagefork_wasi::{Errno, GuestMemory, WasiCtx};
    ///
    /// let mut ctx = WasiCtx::builder().build()?;
    /// let mut bytes = [0; 8];
    /// // The clock 1 never goes back.
    /// ctx.clock_res_get(&mut GuestMemory::new(&mut bytes[..]), 1, 0)?;
    /// assert_ne!(u64::from_le_bytes(bytes), 0);
    /// let unknown = ctx.clock_res_get(&mut GuestMemory::new(&mut bytes[..]), 9, 0);
    /// assert_eq!(unknown, Err(Errno::Inval));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock_res_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        clock: u32,
        result: u32,
    ) -> Result {
        let resolution = match self.grants.shared.sources.resolution_ns(clock) {
            Some(own) => own,
            None => timespec_ns(clock_getres(host_clock(clock)?)),
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
    ///
    /// # Examples
    ///
    /// See [`HostWallClock`](crate::HostWallClock).
    pub fn clock_time_get(
        &mut self,
        memory: &mut GuestMemory<'_>,
        clock: u32,
        _precision_ns: u64,
        result: u32,
    ) -> Result {
        let now = match clock {
            0 => self.grants.shared.sources.wall_ns(),
            1 => self.monotonic_ns(),
            _ => host_now_ns(host_clock(clock)?),
        };
        memory.write_words(result, [now])
    }
}

fn host_clock(clock: u32) -> Result<ClockId> {
    match clock {
        0 => Ok(ClockId::Realtime),
        1 => Ok(ClockId::Monotonic),
        2 | 3 => Ok(ClockId::ThreadCPUTime),
        _ => Err(Errno::Inval),
    }
}
