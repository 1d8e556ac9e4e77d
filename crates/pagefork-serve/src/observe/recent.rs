use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::handler::failure::FailureKind;

/// Failures that are kept.
const COUNT_MAX: usize = 20;

/// Characters of a failure's text that are kept.
const TEXT_MAX: usize = 300;

/// The last failures, for the status page.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<RecentFailure>>);

#[derive(Clone, Debug)]
pub(crate) struct RecentFailure {
    pub(crate) when: SystemTime,
    pub(crate) kind: FailureKind,
    pub(crate) id: String,
    /// What the log says of it, cut.
    pub(crate) text: String,
}

impl Recent {
    pub(crate) fn add(&self, kind: FailureKind, id: String, text: &str) {
        let text = text.chars().take(TEXT_MAX).collect();
        let failure = RecentFailure { when: SystemTime::now(), kind, id, text };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == COUNT_MAX {
            all.pop_back();
        }
        all.push_front(failure);
    }

    /// The last one first.
    pub(crate) fn all(&self) -> Vec<RecentFailure> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_failures_are_kept_and_cut() {
        let recent = Recent::default();
        for number in 0..100 {
            recent.add(FailureKind::Trap, number.to_string(), &"\u{e4}".repeat(1000));
        }
        let all = recent.all();
        assert_eq!((all.len(), &*all[0].id, &*all[19].id), (20, "99", "80"));
        assert_eq!(all[0].text.chars().count(), TEXT_MAX);
    }
}
