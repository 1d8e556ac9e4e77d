use super::faults::{Faults, Thread};

/// How long somebody can write to a slot who is not the code in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum View {
    /// At most until the next reset.
    UntilReset,
    /// For as long as the slot lives.
    ForGood,
}

/// What is known about who could write to a slot since its last reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Run {
    entered: Entered,
    viewed: bool,
    viewed_for_good: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Entered {
    /// So whoever wrote did not say so.
    #[default]
    Nobody,
    One(Thread),
    Several,
}

impl Run {
    pub(crate) fn enter(&mut self) {
        let thread = Thread::current();
        self.entered = match self.entered {
            Entered::Nobody => Entered::One(thread),
            Entered::One(other) if other == thread => return,
            _ => Entered::Several,
        };
    }

    pub(crate) fn note_view(&mut self, view: View) {
        match view {
            View::UntilReset => self.viewed = true,
            View::ForGood => self.viewed_for_good = true,
        }
    }

    /// Says that the slot has been reset.
    pub(crate) fn start_anew(&mut self) {
        self.entered = Entered::Nobody;
        self.viewed = false;
    }

    /// Whether all that was written since `before` was written by the current
    /// thread, which has taken no page fault since: then no page can have become
    /// private. Needs that no page is huge.
    pub(crate) fn made_nothing_private(&self, before: Option<Faults>, now: Faults) -> bool {
        let alone = self.entered == Entered::One(now.thread);
        alone && !self.viewed && !self.viewed_for_good && before == Some(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_announced_thread_without_views_and_faults_made_nothing_private() {
        let now = Faults::now().unwrap();
        let mut run = Run::default();
        assert!(!run.made_nothing_private(Some(now), now), "nobody has entered");
        run.enter();
        run.enter();
        assert!(run.made_nothing_private(Some(now), now));
        assert!(!run.made_nothing_private(None, now));
        let mut viewed = run;
        viewed.note_view(View::UntilReset);
        assert!(!viewed.made_nothing_private(Some(now), now));
        viewed.start_anew();
        viewed.enter();
        assert!(viewed.made_nothing_private(Some(now), now));
        viewed.note_view(View::ForGood);
        viewed.start_anew();
        viewed.enter();
        assert!(!viewed.made_nothing_private(Some(now), now));
        std::thread::scope(|scope| scope.spawn(|| run.enter()).join().unwrap());
        assert!(!run.made_nothing_private(Some(now), now), "another thread has entered");
    }
}
