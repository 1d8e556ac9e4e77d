//! How guests run that are polled: for how long at once, and by whom.

use std::sync::Arc;
use std::time::Duration;

/// Runs what it is given, once, before it returns.
pub(crate) type RunTurn = dyn Fn(&mut (dyn FnMut() + Send)) + Send + Sync;

/// How the guests of a store run in calls that may wait.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    /// How long a guest runs until it lets others run.
    pub(crate) interval: Option<Duration>,
    /// Whether a deadline in epochs may have them do that, too.
    pub(crate) yield_at_deadlines: bool,
    /// The embedder's own way of running them.
    pub(crate) runner: Option<Arc<RunTurn>>,
}

impl Turns {
    /// Whether guests just run.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        !self.may_yield() && self.runner.is_none()
    }

    /// Whether guests may let others run wherever they can be interrupted.
    #[inline]
    pub(crate) fn may_yield(&self) -> bool {
        self.interval.is_some() || self.yield_at_deadlines
    }
}
