//! Clocks and random numbers that the embedder gives a guest in place of the host's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A clock of the embedder's own, for [`WasiCtxBuilder::wall_clock`]. States that are built from
/// one builder share it.
///
/// [`WasiCtxBuilder::wall_clock`]: crate::WasiCtxBuilder::wall_clock
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use pagefork_wasi::{GuestMemory, HostWallClock, WasiCtx};
///
/// /// It is always the same second.
/// struct Stopped(u64);
///
/// impl HostWallClock for Stopped {
///     fn resolution(&self) -> Duration {
///         Duration::from_secs(1)
///     }
///
///     fn now(&self) -> Duration {
///         Duration::from_secs(self.0)
///     }
/// }
///
/// let mut ctx = WasiCtx::builder().wall_clock(Stopped(1_000_000_000)).build()?;
/// let mut bytes = [0; 8];
/// ctx.clock_time_get(&mut GuestMemory::new(&mut bytes[..]), 0, 0, 0)?;
/// assert_eq!(u64::from_le_bytes(bytes), 1_000_000_000 * 1_000_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait HostWallClock: Send + Sync {
    /// How far apart two times are at least that differ.
    ///
    /// # Examples
    ///
    /// See [`HostWallClock`].
    fn resolution(&self) -> Duration;

    /// The time since the beginning of 1970, UTC.
    ///
    /// # Examples
    ///
    /// See [`HostWallClock`].
    fn now(&self) -> Duration;
}

/// A clock of the embedder's own that never goes back, for
/// [`WasiCtxBuilder::monotonic_clock`].
///
/// [`WasiCtxBuilder::monotonic_clock`]: crate::WasiCtxBuilder::monotonic_clock
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use pagefork_wasi::{GuestMemory, HostMonotonicClock, WasiCtx};
///
/// /// Goes on when the embedder says so.
/// struct Manual(Arc<AtomicU64>);
///
/// impl HostMonotonicClock for Manual {
///     fn resolution(&self) -> u64 {
///         1
///     }
///
///     fn now(&self) -> u64 {
///         self.0.load(Ordering::Relaxed)
///     }
/// }
///
/// let time = Arc::new(AtomicU64::new(1000));
/// let mut ctx = WasiCtx::builder().monotonic_clock(Manual(Arc::clone(&time))).build()?;
/// let mut read = || {
///     let mut bytes = [0; 8];
///     ctx.clock_time_get(&mut GuestMemory::new(&mut bytes[..]), 1, 0, 0)?;
///     Ok::<u64, pagefork_wasi::Errno>(u64::from_le_bytes(bytes))
/// };
/// let before = read()?;
/// time.fetch_add(500, Ordering::Relaxed);
/// assert_eq!(read()? - before, 500);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait HostMonotonicClock: Send + Sync {
    /// How far apart two times are at least that differ, nanoseconds.
    ///
    /// # Examples
    ///
    /// See [`HostMonotonicClock`].
    fn resolution(&self) -> u64;

    /// The time since some moment, nanoseconds.
    ///
    /// # Examples
    ///
    /// See [`HostMonotonicClock`].
    fn now(&self) -> u64;
}

/// Fills buffers with random bytes.
pub(crate) type RandomSource = dyn Fn(&mut [u8]) + Send + Sync;

/// What is the embedder's own; the rest is the host's.
#[derive(Clone, Default)]
pub(crate) struct OwnSources {
    pub(crate) wall_clock: Option<Arc<dyn HostWallClock>>,
    pub(crate) monotonic_clock: Option<Arc<dyn HostMonotonicClock>>,
    pub(crate) random: Option<Arc<RandomSource>>,
}

impl OwnSources {
    /// The time of the monotonic clock, nanoseconds.
    pub(crate) fn monotonic_ns(&self) -> u64 {
        match &self.monotonic_clock {
            Some(clock) => clock.now(),
            None => host_now_ns(ClockId::Monotonic),
        }
    }

    /// The time of day, nanoseconds since 1970.
    pub(crate) fn wall_ns(&self) -> u64 {
        match &self.wall_clock {
            Some(clock) => nanoseconds(clock.now()),
            None => host_now_ns(ClockId::Realtime),
        }
    }

    /// The resolution of the clock with this number, nanoseconds, if it is the embedder's own.
    pub(crate) fn resolution_ns(&self, clock: u32) -> Option<u64> {
        match clock {
            0 => self.wall_clock.as_ref().map(|clock| nanoseconds(clock.resolution())),
            1 => self.monotonic_clock.as_ref().map(|clock| clock.resolution()),
            _ => None,
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time of a clock of the host, nanoseconds.
pub(crate) fn host_now_ns(clock: ClockId) -> u64 {
    timespec_ns(clock_gettime(clock))
}

/// Nanoseconds since 1970, from 1970 to 2554.
pub(crate) fn timespec_ns(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let fraction = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(fraction)
}

impl fmt::Debug for OwnSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSources")
            .field("wall_clock", &self.wall_clock.is_some())
            .field("monotonic_clock", &self.monotonic_clock.is_some())
            .field("random", &self.random.is_some())
            .finish()
    }
}
