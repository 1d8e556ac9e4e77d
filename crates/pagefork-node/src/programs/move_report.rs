//! How a program has moved, in figures.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::KeptGroups;

/// How a program has moved, as its source has seen it.
/// [`ProgramClient::migrate`](crate::ProgramClient::migrate) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MigrateReport {
    /// States that were sent ahead while it ran.
    pub rounds: u8,
    /// Bytes of these states: of pages, and of what lies among them.
    pub ahead: u64,
    /// Bytes of what was handed over when it rested: with rounds, what had changed since the last one
    /// of them; without, all of it, of which the target gets most after the program goes on there.
    pub changes: u64,
    /// All of its pages are at a second place, too: it outlives the loss of its source.
    pub is_kept: bool,
    /// How far its second place was then, if it has one.
    pub kept: Option<KeptGroups>,
    /// How long it took to capture it. The program rests from the beginning of this on.
    pub capturing: Duration,
    /// How long it took then to make an image of that.
    pub saving: Duration,
    /// How long it took then until the image and the hand-over were on their way.
    pub sending: Duration,
    /// How long it took then until the target said that the program goes on there.
    pub taking: Duration,
}

impl MigrateReport {
    /// How long the program rested: until its source knew that it goes on at its target.
    ///
    /// # Examples
    ///
    /// See [`ProgramClient::migrate`](crate::ProgramClient::migrate).
    pub fn pause(&self) -> Duration {
        let Self { capturing, saving, sending, taking, .. } = self;
        *capturing + *saving + *sending + *taking
    }
}

impl fmt::Display for MigrateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let Self { rounds, ahead, changes, capturing, saving, sending, taking, .. } = *self;
        write!(
            f,
            "it rested {:.1} ms: capturing {:.1}, saving {:.1}, sending {:.1}, until it was taken \
             {:.1}; {changes} bytes were handed over, {ahead} went ahead in {rounds} rounds",
            ms(self.pause()),
            ms(capturing),
            ms(saving),
            ms(sending),
            ms(taking)
        )
    }
}
