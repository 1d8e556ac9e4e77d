//! The side of a migration that has the instance, until it has handed it over.

use std::time::{Duration, Instant};

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

use crate::base::moment::Moment;
use crate::wire::message::byte_string;
use crate::wire::migration::{MigrationId, MigrationMessage, MigrationStep};

/// What a source must remember, also over the end of its process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SourceRecord {
    /// The migration.
    pub migration: MigrationId,
    /// Its epoch.
    pub epoch: u64,
    /// How far it is.
    pub state: SourceState,
}

/// How far a migration is, as its source knows. [`MigrationSource`] has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SourceState {
    /// The target was asked.
    Offered,
    /// The target would take it. The instance runs here.
    Accepted,
    /// The migration has ended, and the instance goes on here.
    GoesOn,
    /// It may be the target's: it does not run here any more.
    HandedOver {
        /// What was handed over.
        image: ContentHash,
        /// With which the target opens it.
        #[serde(with = "byte_string")]
        token: Vec<u8>,
    },
    /// It is the target's.
    Taken,
    /// The target has declined it, and an operator has to say what is to become of it.
    Declined,
}

/// What a source is told. [`MigrationSource`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceInput {
    /// A connection to the target is there: what it may not have got is sent again.
    Connected,
    /// The target has sent something.
    Received(MigrationMessage),
    /// A state of the running instance can be fetched.
    Ahead {
        /// The image.
        image: ContentHash,
        /// A token for it.
        token: Vec<u8>,
    },
    /// The instance is suspended and sealed, and is to be handed over.
    HandOver {
        /// The image.
        image: ContentHash,
        /// A token for it.
        token: Vec<u8>,
    },
    /// The caller wants the instance to go on here. Ignored after the hand-over.
    Withdraw,
    /// An operator says that the instance is not the target's and goes on here.
    OperatorGoesOn,
    /// Nothing but that time has passed.
    Tick,
}

/// What a source does. The caller does it in order. [`MigrationSource`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceOutput {
    /// To be kept in place of the one before. It is on the disk before anything behind it is done.
    Record(SourceRecord),
    /// To be kept likewise, but an instance rests meanwhile: before anything behind it is done, another
    /// process finds it, as long as the system goes on; and it is on the disk soon after.
    Note(SourceRecord),
    /// To be sent to the target.
    Send(MigrationMessage),
    /// The target would take the instance: rounds ahead, and the hand-over, may begin.
    Accepted,
    /// The target has what it wants of a state ahead.
    AheadHere(ContentHash),
    /// The migration has ended, and the instance goes on here.
    GoesOn {
        /// Why.
        why: String,
    },
    /// The instance is the target's.
    Taken,
    /// The target has declined what was handed over. It does not go on by itself.
    Declined {
        /// What the target says.
        why: String,
    },
}

/// Which records a process finds that goes on where another one ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KnownRecords {
    /// All that were kept: the system has not been started anew since.
    All,
    /// Those that were on the disk. What was noted last may be missing.
    OnDisk,
}

/// The side of a migration that has the instance. After [`SourceState::HandedOver`] was recorded,
/// nothing but an operator's word makes the instance go on here: the target may have it, whatever
/// becomes of connections and processes.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use pagefork_image::ContentHash;
/// use pagefork_postcopy::*;
///
/// let now = Moment { at: Instant::now(), unix_s: 0 };
/// let (id, patience) = (MigrationId([7; 16]), Duration::from_secs(10));
/// let (mut source, offer) = MigrationSource::offer(id, 1, "counter", patience, now);
/// let mut target = MigrationTarget::new(id);
/// let Some(SourceOutput::Send(offer)) = offer.last() else { panic!() };
/// assert!(target.handle(TargetInput::Received(offer.clone())).contains(&TargetOutput::Asked {
///     instance: "counter".to_owned(),
/// }));
///
/// // The target's caller decides.
/// let answer = target.handle(TargetInput::Accept);
/// let Some(TargetOutput::Send(accept)) = answer.last() else { panic!() };
/// let accepted = source.handle(SourceInput::Received(accept.clone()), now);
/// assert!(accepted.contains(&SourceOutput::Accepted));
///
/// // The instance is suspended.
/// let (image, token) = (ContentHash::of(b"manifest"), Vec::new());
/// let handed = source.handle(SourceInput::HandOver { image, token }, now);
/// let [SourceOutput::Note(record), SourceOutput::Send(hand_over)] = &handed[..] else { panic!() };
/// assert!(matches!(record.state, SourceState::HandedOver { .. }));
/// target.handle(TargetInput::Received(hand_over.clone()));
/// let taken = target.handle(TargetInput::Take);
/// let [TargetOutput::Record(_), TargetOutput::Send(taken), TargetOutput::Own] = &taken[..] else {
///     panic!()
/// };
/// let done = source.handle(SourceInput::Received(taken.clone()), now);
/// assert!(done.contains(&SourceOutput::Taken));
/// ```
#[derive(Debug)]
pub struct MigrationSource {
    record: SourceRecord,
    instance: String,
    /// By when the target must have answered the offer.
    deadline: Option<Instant>,
}

impl MigrationSource {
    /// Offers an instance that was handed over `epoch` times before. If the target has not
    /// answered after `patience`, the migration ends and the instance goes on.
    pub fn offer(
        migration: MigrationId,
        epoch: u64,
        instance: &str,
        patience: Duration,
        now: Moment,
    ) -> (Self, Vec<SourceOutput>) {
        let record = SourceRecord { migration, epoch, state: SourceState::Offered };
        let instance = instance.to_owned();
        let source = Self { record, instance, deadline: Some(now.at + patience) };
        let output = vec![source.recorded(), source.send(source.offered())];
        (source, output)
    }

    /// Goes on where a process ended whose last record this is: the last one that was kept at all, by
    /// what it `knows`. What was not handed over goes on here, and the target is told so; where that
    /// is not known, an operator is waited for.
    pub fn restore(mut record: SourceRecord, knows: KnownRecords) -> (Self, Vec<SourceOutput>) {
        let state = match (&record.state, knows) {
            (SourceState::Offered, _) => Some(SourceState::GoesOn),
            (SourceState::Accepted, KnownRecords::All) => Some(SourceState::GoesOn),
            // The note of the hand-over may be what is missing.
            (SourceState::Accepted, KnownRecords::OnDisk) => Some(SourceState::Declined),
            _ => None,
        };
        let is_changed = state.is_some();
        record.state = state.unwrap_or(record.state);
        let source = Self { record, instance: String::new(), deadline: None };
        let output = match (is_changed, &source.record.state) {
            (false, _) => Vec::new(),
            (true, SourceState::GoesOn) => {
                let why = "its node was started anew before the hand-over".to_owned();
                vec![source.recorded(), SourceOutput::GoesOn { why }]
            }
            (true, _) => {
                let why =
                    "its system was started anew while it may have been handed over".to_owned();
                vec![source.recorded(), SourceOutput::Declined { why }]
            }
        };
        (source, output)
    }

    /// How far it is.
    pub fn state(&self) -> &SourceState {
        &self.record.state
    }

    /// How often the instance was handed over before.
    pub fn epoch(&self) -> u64 {
        self.record.epoch
    }

    /// When [`SourceInput::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Does a step.
    pub fn handle(&mut self, input: SourceInput, now: Moment) -> Vec<SourceOutput> {
        match input {
            SourceInput::Connected => self.resend(),
            SourceInput::Received(message) => self.received(message),
            SourceInput::Ahead { image, token } => match self.record.state {
                SourceState::Accepted => vec![self.send(MigrationStep::Ahead { image, token })],
                _ => Vec::new(),
            },
            SourceInput::HandOver { image, token } => match self.record.state {
                SourceState::Accepted => {
                    self.record.state = SourceState::HandedOver { image, token: token.clone() };
                    let step = MigrationStep::HandOver { image, token };
                    // That it was accepted is on the disk: without this note, nobody goes on by itself.
                    vec![SourceOutput::Note(self.record.clone()), self.send(step)]
                }
                _ => Vec::new(),
            },
            SourceInput::Withdraw => self.go_on("it was asked to"),
            SourceInput::OperatorGoesOn => match self.record.state {
                SourceState::HandedOver { .. } | SourceState::Declined => {
                    self.record.state = SourceState::GoesOn;
                    let why = "an operator has said so".to_owned();
                    let withdraw = self.send(MigrationStep::Withdraw);
                    vec![self.recorded(), withdraw, SourceOutput::GoesOn { why }]
                }
                _ => self.go_on("an operator has said so"),
            },
            SourceInput::Tick if self.deadline.is_some_and(|deadline| deadline <= now.at) => {
                self.go_on("the target has not answered in time")
            }
            SourceInput::Tick => Vec::new(),
        }
    }

    fn received(&mut self, message: MigrationMessage) -> Vec<SourceOutput> {
        if message.migration != self.record.migration || message.epoch != self.record.epoch {
            return Vec::new();
        }
        match (message.step, &self.record.state) {
            (MigrationStep::Accept, SourceState::Offered) => {
                self.deadline = None;
                self.record.state = SourceState::Accepted;
                vec![self.recorded(), SourceOutput::Accepted]
            }
            (MigrationStep::Refuse { text }, SourceState::Offered | SourceState::Accepted) => {
                self.go_on(&format!("the target refuses: {text:?}"))
            }
            (MigrationStep::AheadHere { image }, SourceState::Accepted) => {
                vec![SourceOutput::AheadHere(image)]
            }
            (MigrationStep::Taken, SourceState::HandedOver { .. }) => {
                self.record.state = SourceState::Taken;
                vec![SourceOutput::Note(self.record.clone()), SourceOutput::Taken]
            }
            (MigrationStep::Declined { text }, SourceState::HandedOver { .. }) => {
                self.record.state = SourceState::Declined;
                vec![self.recorded(), SourceOutput::Declined { why: text }]
            }
            _ => Vec::new(),
        }
    }

    /// Ends the migration where that is still possible.
    fn go_on(&mut self, why: &str) -> Vec<SourceOutput> {
        if !matches!(self.record.state, SourceState::Offered | SourceState::Accepted) {
            return Vec::new();
        }
        self.deadline = None;
        self.record.state = SourceState::GoesOn;
        let why = why.to_owned();
        vec![self.recorded(), self.send(MigrationStep::Withdraw), SourceOutput::GoesOn { why }]
    }

    fn resend(&self) -> Vec<SourceOutput> {
        match &self.record.state {
            SourceState::Offered => vec![self.send(self.offered())],
            SourceState::GoesOn => vec![self.send(MigrationStep::Withdraw)],
            SourceState::HandedOver { image, token } => {
                let (image, token) = (*image, token.clone());
                vec![self.send(MigrationStep::HandOver { image, token })]
            }
            SourceState::Accepted | SourceState::Taken | SourceState::Declined => Vec::new(),
        }
    }

    fn offered(&self) -> MigrationStep {
        MigrationStep::Offer { instance: self.instance.clone() }
    }

    fn recorded(&self) -> SourceOutput {
        SourceOutput::Record(self.record.clone())
    }

    fn send(&self, step: MigrationStep) -> SourceOutput {
        let SourceRecord { migration, epoch, .. } = self.record;
        SourceOutput::Send(MigrationMessage { migration, epoch, step })
    }
}
