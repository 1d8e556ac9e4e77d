//! How much memory slots may keep together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use pagefork_layout::page::PAGE_SIZE;

/// Pages that slots which share it may keep private between runs, all together. Clones are
/// the same budget. Stacks and link zones, some pages a slot, are not of it.
///
/// # Examples
///
/// ```
/// use pagefork_pages::{
///     Budget, Image, MemorySize, MemoryZone, ResetKind, Slot, SlotConfig, StrategyConfig,
/// };
///
/// # let (stack, link, base) = (1 << 16..1 << 17, 1 << 17..1 << 18, 1 << 20);
/// # let memories = vec![MemoryZone { start: base, reservation: 1 << 20, guard: 1 << 20 }];
/// # let config = SlotConfig { stack, link, image_floor: 1 << 18, base, memories, size: 4 << 20 };
/// let image = Image::new("example", base..base, [])?;
/// let size = MemorySize { initial: 65_536, maximum: 1 << 20 };
/// let strategies = StrategyConfig { reset: ResetKind::Scan, ..StrategyConfig::default() };
/// let budget = Budget::new(8 << 20);
/// let mut slot = Slot::within(config, &image, &[size], &strategies.check()?, &budget)?;
/// slot.reset()?;
/// assert!(budget.used() <= budget.max());
/// # Ok::<(), pagefork_pages::PagesError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetPages>);

#[derive(Debug)]
struct BudgetPages {
    /// Set when it is first asked for, if not before.
    max: OnceLock<u64>,
    /// Invariant: the sum of all shares. It may be more than `max` for a moment, when several
    /// ask at a time.
    used: AtomicU64,
}

impl Budget {
    /// A budget of `bytes` bytes.
    ///
    /// # Examples
    ///
    /// See [`Budget`].
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(BudgetPages { max: (bytes / PAGE_SIZE).into(), used: AtomicU64::new(0) }))
    }

    /// Bytes that slots may keep together.
    ///
    /// # Examples
    ///
    /// See [`Budget`].
    pub fn max(&self) -> u64 {
        self.0.max().saturating_mul(PAGE_SIZE)
    }

    /// Bytes that slots have of it, at this moment: some more than they keep.
    ///
    /// # Examples
    ///
    /// See [`Budget`].
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed).saturating_mul(PAGE_SIZE)
    }
}

impl Default for Budget {
    /// A quarter of this machine's memory, or of what the process's control group may have if
    /// that is less.
    fn default() -> Self {
        Self(Arc::new(BudgetPages { max: OnceLock::new(), used: AtomicU64::new(0) }))
    }
}

impl BudgetPages {
    fn max(&self) -> u64 {
        *self.max.get_or_init(|| crate::os::limits::memory() / 4 / PAGE_SIZE)
    }
}

/// What one slot has of a budget.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Budget,
    pages: u64,
}

impl BudgetShare {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, pages: 0 }
    }

    /// Makes it enough for `wanted` pages, or for as many as the budget has; returns how many.
    /// What it has too much it gives back, but for some: most slots keep as many the next time,
    /// and others need not be asked then.
    pub(crate) fn resize(&mut self, wanted: u64) -> u64 {
        let spare = (wanted / 4).max(8);
        let used = &self.budget.0.used;
        if wanted > self.pages {
            let more = wanted - self.pages + spare;
            let before = used.fetch_add(more, Relaxed);
            let granted = more.min(self.budget.0.max().saturating_sub(before));
            used.fetch_sub(more - granted, Relaxed);
            self.pages += granted;
        } else if self.pages - wanted > 2 * spare {
            let less = self.pages - wanted - spare;
            used.fetch_sub(less, Relaxed);
            self.pages -= less;
        }
        self.pages.min(wanted)
    }
}

impl BudgetShare {
    /// Whether half of the budget is left: for pages that are kept though runs seldom write them,
    /// so that those that each run writes find room.
    pub(crate) fn leaves_spare(&self) -> bool {
        self.budget.0.used.load(Relaxed) <= self.budget.0.max() / 2
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.pages, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_never_more_than_the_budget_and_come_back() {
        let budget = Budget::new(100 * PAGE_SIZE);
        let mut shares: Vec<BudgetShare> =
            (0..4).map(|_| BudgetShare::new(budget.clone())).collect();
        let granted: u64 = shares.iter_mut().map(|share| share.resize(40)).sum();
        assert!((80..=100).contains(&granted), "{granted}");
        assert!(budget.used() <= budget.max());
        shares.truncate(1);
        assert_eq!(shares[0].resize(80), 80);
        assert_eq!(shares[0].resize(200), 100);
        assert_eq!(shares[0].resize(3), 3);
        assert!(budget.used() <= 20 * PAGE_SIZE, "{}", budget.used());
        shares.clear();
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn threads_that_ask_at_a_time_get_no_more_than_there_is() {
        let budget = Budget::new(1000 * PAGE_SIZE);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let mut share = BudgetShare::new(budget.clone());
                scope.spawn(move || {
                    for round in 0..10_000 {
                        share.resize((round * 7 + thread * 31) % 600);
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
        assert!(Budget::default().max() >= 16 << 20);
    }
}
