//! What is asked of a program that is on its way, and what comes of it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::move_report::MigrateReport;

/// What others ask of a program that moves, and learn of it.
#[derive(Debug)]
pub(super) struct MoveControl {
    state: Mutex<MoveControlState>,
    changed: Condvar,
    /// Is raised when something is asked.
    pub(super) signal: OwnedFd,
}

#[derive(Debug, Default)]
struct MoveControlState {
    reclaim: bool,
    /// Why it cannot go on here as an operator has said.
    refusal: Option<String>,
    outcome: Option<Result<MigrateReport, String>>,
}

impl MoveControl {
    pub(super) fn new() -> Result<Arc<Self>, String> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let signal = eventfd(0, flags).map_err(|error| format!("cannot move it: {error}"))?;
        Ok(Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), signal }))
    }

    fn lock(&self) -> MutexGuard<'_, MoveControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self, outcome: Result<MigrateReport, String>) {
        self.lock().outcome = Some(outcome);
        self.changed.notify_all();
    }

    /// What has come of it, if that is known in time.
    pub(super) fn outcome(&self, patience: Duration) -> Option<Result<MigrateReport, String>> {
        let waits = |state: &mut MoveControlState| state.outcome.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.outcome.clone()
    }

    pub(super) fn is_reclaimed(&self) -> bool {
        self.lock().reclaim
    }

    pub(super) fn refuse(&self, why: String) {
        let mut state = self.lock();
        (state.reclaim, state.refusal) = (false, Some(why));
    }

    /// Why the program cannot go on here as an operator has said, if that is so.
    pub(super) fn refusal(&self) -> Option<String> {
        self.lock().refusal.take()
    }

    /// Has the program go on here, by an operator's word.
    pub(super) fn reclaim(&self) {
        {
            let mut state = self.lock();
            (state.reclaim, state.refusal) = (true, None);
        }
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
    }
}
