//! When something happens: the crate reads no clock.

use std::time::{Duration, Instant};

/// The time at which something is handled, by two clocks of the caller.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use pagefork_postcopy::Moment;
///
/// let now = Moment { at: Instant::now(), unix_s: 1_800_000_000 };
/// let later = now.after(Duration::from_secs(10));
/// assert_eq!(later.unix_s, 1_800_000_010);
/// assert_eq!(now.until_unix(1_800_000_010), Some(later.at));
/// assert_eq!(later.until_unix(1_800_000_010), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// By a clock that never goes back: all deadlines are of this one.
    pub at: Instant,
    /// Seconds since 1970, by which tokens expire.
    pub unix_s: u64,
}

impl Moment {
    /// The moment that is `time` later.
    pub fn after(self, time: Duration) -> Self {
        Self { at: self.at + time, unix_s: self.unix_s.saturating_add(time.as_secs()) }
    }

    /// When it is `unix_s`; `None` if it is already. What is a hundred years off counts as that.
    pub fn until_unix(self, unix_s: u64) -> Option<Instant> {
        const CENTURY_S: u64 = 100 * 366 * 24 * 3600;
        let left = unix_s.checked_sub(self.unix_s).filter(|left| *left > 0)?;
        Some(self.at + Duration::from_secs(left.min(CENTURY_S)))
    }
}

/// The earlier of two deadlines.
pub(crate) fn earlier(deadline: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (deadline, other) {
        (Some(deadline), Some(other)) => Some(deadline.min(other)),
        (deadline, other) => deadline.or(other),
    }
}
