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
    /// How often an operator has said that it goes on here.
    words: u64,
    /// The last of these words, until it was followed.
    reclaim: Option<u64>,
    /// Up to which of them it cannot go on here, and why.
    refusal: Option<(u64, String)>,
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

    /// Nothing has come of it, unless something has.
    pub(super) fn end_without(&self, why: &str) {
        self.lock().outcome.get_or_insert_with(|| Err(why.to_owned()));
        self.changed.notify_all();
    }

    /// What has come of it, if that is known in time.
    pub(super) fn outcome(&self, patience: Duration) -> Option<Result<MigrateReport, String>> {
        let waits = |state: &mut MoveControlState| state.outcome.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.outcome.clone()
    }

    /// An operator's word that the program goes on here, by its number.
    pub(super) fn word(&self) -> Option<u64> {
        self.lock().reclaim
    }

    pub(super) fn refuse(&self, word: u64, why: String) {
        let mut state = self.lock();
        state.reclaim = state.reclaim.filter(|reclaim| *reclaim > word);
        state.refusal = Some((word, why));
    }

    /// Why the program cannot go on here as this word says, if that is so.
    pub(super) fn refusal(&self, word: u64) -> Option<String> {
        let refusal = self.lock().refusal.clone();
        refusal.filter(|(refused, _)| *refused >= word).map(|(_, why)| why)
    }

    /// Has the program go on here, by an operator's word. Returns its number.
    pub(super) fn reclaim(&self) -> u64 {
        let word = {
            let mut state = self.lock();
            state.words += 1;
            state.reclaim = Some(state.words);
            state.words
        };
        let _ = rustix::io::write(&self.signal, &1_u64.to_ne_bytes());
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_an_operator_has_its_own_answer() {
        let control = MoveControl::new().unwrap();
        let first = control.reclaim();
        assert_eq!((control.word(), control.refusal(first)), (Some(first), None));
        // While it is looked whether that is possible.
        let second = control.reclaim();
        control.refuse(first, "there is no room".to_owned());
        assert_eq!(control.word(), Some(second), "it is looked again");
        for _ in 0..2 {
            assert_eq!(control.refusal(first).unwrap(), "there is no room");
        }
        assert_eq!(control.refusal(second), None);
        control.refuse(second, "nor now".to_owned());
        assert_eq!(
            (control.word(), control.refusal(second).unwrap()),
            (None, "nor now".to_owned())
        );
    }
}
