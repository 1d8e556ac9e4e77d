use crate::os::faults::{Faults, Thread};

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

    /// Whether all that was written since `before` was written by the current thread's own
    /// code: then only pages can have become private at which it has taken a fault since.
    /// Needs that no page is huge.
    pub(crate) fn shows_in_faults(&self, before: Faults, now: Faults) -> bool {
        let alone = self.entered == Entered::One(now.thread) && before.thread == now.thread;
        alone && !self.viewed && !self.viewed_for_good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faults_of_a_thread_show_what_it_wrote_alone_announced_and_without_views() {
        let now = Faults::now().unwrap();
        let mut run = Run::default();
        assert!(!run.shows_in_faults(now, now), "nobody has entered");
        run.enter();
        run.enter();
        assert!(run.shows_in_faults(now, now));
        let mut viewed = run;
        viewed.note_view(View::UntilReset);
        assert!(!viewed.shows_in_faults(now, now));
        viewed.start_anew();
        viewed.enter();
        assert!(viewed.shows_in_faults(now, now));
        viewed.note_view(View::ForGood);
        viewed.start_anew();
        viewed.enter();
        assert!(!viewed.shows_in_faults(now, now));
        std::thread::scope(|scope| scope.spawn(|| run.enter()).join().unwrap());
        assert!(!run.shows_in_faults(now, now), "another thread has entered");
    }
}
