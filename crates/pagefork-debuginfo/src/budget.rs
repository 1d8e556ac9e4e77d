//! The limit of what is read and kept of debug information.

use std::sync::atomic::{AtomicI64, Ordering};

use super::Unreadable;

/// Steps for each byte of debug information. What compilers write takes one or two:
/// each byte is read once, and some attributes have no bytes of their own.
const STEPS_PER_BYTE: u64 = 4;

/// Bytes that are kept for each byte of debug information; what compilers write takes
/// about as many as it has itself, if all of it is asked for.
const KEPT_PER_BYTE: u64 = 4;

/// For what is small, a little more.
const SMALL: u64 = 64 << 10;

/// At most this many bytes are kept of a module.
const KEPT_MAX: u64 = 64 << 20;

/// How much of a module's debug information is still read, and kept, by all who ask
/// for as long as the module lives.
pub(super) struct ReadBudget {
    steps: AtomicI64,
    kept: AtomicI64,
}

impl ReadBudget {
    /// For debug information of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        let steps = size.saturating_mul(STEPS_PER_BYTE).saturating_add(SMALL);
        let kept = size.saturating_mul(KEPT_PER_BYTE).saturating_add(SMALL).min(KEPT_MAX);
        Self { steps: (steps.min(1 << 62) as i64).into(), kept: (kept as i64).into() }
    }

    /// Reads `count` bytes, or goes through as many things.
    pub(super) fn read(&self, count: usize) -> Result<(), Unreadable> {
        take(&self.steps, count)
    }

    /// Keeps `bytes` more.
    pub(super) fn keep(&self, bytes: usize) -> Result<(), Unreadable> {
        take(&self.kept, bytes)
    }

    /// Whether there was more than that.
    pub(super) fn is_exhausted(&self) -> bool {
        self.steps.load(Ordering::Relaxed) < 0 || self.kept.load(Ordering::Relaxed) < 0
    }
}

/// Once below zero it stays there: later readers get nothing either.
fn take(left: &AtomicI64, count: usize) -> Result<(), Unreadable> {
    let count = i64::try_from(count).map_err(|_| Unreadable)?;
    let before = left.load(Ordering::Relaxed);
    if before < 0 {
        return Err(Unreadable);
    }
    match left.fetch_sub(count, Ordering::Relaxed) >= count {
        true => Ok(()),
        false => Err(Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exhausted_stays_so() {
        let budget = ReadBudget::new(0);
        assert!(budget.read(SMALL as usize).is_ok() && !budget.is_exhausted());
        assert!(budget.read(1).is_err() && budget.is_exhausted());
        assert!(budget.read(usize::MAX).is_err() && budget.read(0).is_err());
        assert!(budget.keep(SMALL as usize).is_ok());
        for size in [1, u64::MAX] {
            assert!(ReadBudget::new(size).keep(KEPT_MAX as usize + 1).is_err());
        }
    }
}
