//! What is known of who could write to a slot since its last reset.

use crate::os::faults::{Faults, ThreadId};

/// How long something other than the code in a slot can write to it.
///
/// # Examples
///
/// See [`Slot::with_strategies`](crate::Slot::with_strategies).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExternalWriter {
    /// At most until the next reset.
    UntilReset,
    /// For as long as the slot lives.
    ForGood,
}

/// Who could write to a slot since its last reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Writers {
    entered: EnteredBy,
    external: bool,
    external_for_good: bool,
}

/// The threads that announced to run code in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum EnteredBy {
    /// If something was written, it was not announced.
    #[default]
    None,
    One(ThreadId),
    Several,
}

impl Writers {
    pub(crate) fn enter(&mut self) {
        let thread = ThreadId::current();
        self.entered = match self.entered {
            EnteredBy::None => EnteredBy::One(thread),
            EnteredBy::One(other) if other == thread => return,
            _ => EnteredBy::Several,
        };
    }

    pub(crate) fn note_external(&mut self, writer: ExternalWriter) {
        match writer {
            ExternalWriter::UntilReset => self.external = true,
            ExternalWriter::ForGood => self.external_for_good = true,
        }
    }

    /// Whether something else can write to the slot at any time, also during a reset.
    pub(crate) fn has_external_for_good(&self) -> bool {
        self.external_for_good
    }

    /// Notes that the slot has been reset.
    pub(crate) fn note_reset(&mut self) {
        self.entered = EnteredBy::None;
        self.external = false;
    }

    /// Whether nobody was announced since the last reset.
    pub(crate) fn are_none(&self) -> bool {
        self.entered == EnteredBy::None && !self.external && !self.external_for_good
    }

    /// Whether all that was written since `before` was written by the current thread's own
    /// code. Then a page can have become private only if the thread has taken a fault at it
    /// since, provided that no page is huge.
    pub(crate) fn show_in_faults(&self, before: Faults, now: Faults) -> bool {
        let alone = self.entered == EnteredBy::One(now.thread) && before.thread == now.thread;
        alone && !self.external && !self.external_for_good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faults_of_a_thread_show_what_it_wrote_alone_announced_and_without_external_writers() {
        let now = Faults::now().unwrap();
        let mut writers = Writers::default();
        assert!(!writers.show_in_faults(now, now), "no thread has entered");
        writers.enter();
        writers.enter();
        assert!(writers.show_in_faults(now, now));
        let mut external = writers;
        external.note_external(ExternalWriter::UntilReset);
        assert!(!external.show_in_faults(now, now));
        external.note_reset();
        external.enter();
        assert!(external.show_in_faults(now, now));
        external.note_external(ExternalWriter::ForGood);
        external.note_reset();
        external.enter();
        assert!(!external.show_in_faults(now, now));
        std::thread::scope(|scope| scope.spawn(|| writers.enter()).join().unwrap());
        assert!(!writers.show_in_faults(now, now), "another thread has entered");
    }
}
