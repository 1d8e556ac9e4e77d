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
    /// The embedder's own way of running them.
    pub(crate) runner: Option<Arc<RunTurn>>,
}

impl Turns {
    /// Whether guests just run.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.interval.is_none() && self.runner.is_none()
    }
}
