//! The side of a migration that is to have the instance.

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

use crate::migrate::source::KnownRecords;
use crate::wire::migration::{MigrationId, MigrationMessage, MigrationStep};

/// What a target must remember, also over the end of its process: as long as the source may send
/// the hand-over again, which it does until it has its answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TargetRecord {
    /// The migration.
    pub migration: MigrationId,
    /// Its epoch.
    pub epoch: u64,
    /// How far it is.
    pub state: TargetState,
}

/// How far a migration is, as its target knows.
/// [`MigrationSource`](crate::MigrationSource) has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TargetState {
    /// Nothing was asked yet, or the source goes on.
    Idle,
    /// The caller decides.
    Asked,
    /// The source was told that the instance would be taken.
    Accepted,
    /// The instance was handed over, and the caller takes it or declines.
    HandedOver,
    /// It is this node's.
    Own,
    /// It will never be this node's.
    Declined,
}

/// What a target is told. [`MigrationSource`](crate::MigrationSource) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetInput {
    /// The source has sent something.
    Received(MigrationMessage),
    /// The caller would take the instance.
    Accept,
    /// The caller would not, or will not.
    Refuse {
        /// Why, for people.
        text: String,
    },
    /// What the caller wants of a state ahead is here.
    AheadHere(ContentHash),
    /// Everything is here that the instance needs to go on, and accepted: it is taken.
    Take,
}

/// What a target does, in order, as [`SourceOutput`](crate::SourceOutput).
/// [`MigrationSource`](crate::MigrationSource) has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TargetOutput {
    /// To be kept in place of the one before. It is on the disk before anything behind it is done.
    Record(TargetRecord),
    /// To be kept likewise, but an instance rests meanwhile: before anything behind it is done, another
    /// process finds it, as long as the system goes on; and it is on the disk soon after.
    Note(TargetRecord),
    /// To be sent to the source.
    Send(MigrationMessage),
    /// An instance is offered: [`TargetInput::Accept`] or [`TargetInput::Refuse`] is due.
    Asked {
        /// What it is called.
        instance: String,
    },
    /// A state of it can be fetched ahead.
    Ahead {
        /// The image.
        image: ContentHash,
        /// With which it is opened.
        token: Vec<u8>,
    },
    /// It was handed over: [`TargetInput::Take`] or [`TargetInput::Refuse`] is due.
    HandedOver {
        /// The image.
        image: ContentHash,
        /// With which it is opened.
        token: Vec<u8>,
    },
    /// It is this node's, and is to run.
    Own,
    /// The source keeps it.
    Withdrawn,
}

/// The side of a migration that is to have the instance.
/// [`MigrationSource`](crate::MigrationSource) has an example.
#[derive(Debug)]
pub struct MigrationTarget {
    record: TargetRecord,
    /// That the instance may come is on the disk, so that it need not wait for it when it has come.
    is_bound: bool,
}

impl MigrationTarget {
    /// One for a migration of which the first message has just come.
    pub fn new(migration: MigrationId) -> Self {
        let record = TargetRecord { migration, epoch: 0, state: TargetState::Idle };
        Self { record, is_bound: false }
    }

    /// Goes on where a process ended whose last record this is: the last one that was kept at all, by
    /// what it `knows`. Where it is not known whether the instance has run here, it never will: it would
    /// do again what it has done.
    pub fn restore(mut record: TargetRecord, knows: KnownRecords) -> (Self, Vec<TargetOutput>) {
        let is_bound = record.state == TargetState::Accepted;
        let is_unsure = is_bound && knows == KnownRecords::OnDisk;
        if is_unsure {
            record.state = TargetState::Declined;
        }
        let target = Self { record, is_bound };
        let outputs = is_unsure.then(|| target.recorded()).into_iter().collect();
        (target, outputs)
    }

    /// How far it is.
    pub fn state(&self) -> TargetState {
        self.record.state
    }

    /// Does a step.
    pub fn handle(&mut self, input: TargetInput) -> Vec<TargetOutput> {
        match (input, self.record.state) {
            (TargetInput::Received(message), _) => self.received(message),
            (TargetInput::Accept, TargetState::Asked) => {
                self.record.state = TargetState::Accepted;
                vec![self.send(MigrationStep::Accept)]
            }
            (TargetInput::Refuse { text }, TargetState::Asked | TargetState::Accepted) => {
                let refuse = self.send(MigrationStep::Refuse { text });
                self.unbind(refuse)
            }
            (TargetInput::AheadHere(image), TargetState::Accepted) => {
                let here = self.send(MigrationStep::AheadHere { image });
                match std::mem::replace(&mut self.is_bound, true) {
                    true => vec![here],
                    // While it still runs at its source, so that its hand-over waits for no disk.
                    false => vec![self.recorded(), here],
                }
            }
            (TargetInput::Take, TargetState::HandedOver) => {
                self.record.state = TargetState::Own;
                let record = match self.is_bound {
                    true => TargetOutput::Note(self.record.clone()),
                    false => self.recorded(),
                };
                vec![record, self.send(MigrationStep::Taken), TargetOutput::Own]
            }
            (TargetInput::Refuse { text }, TargetState::HandedOver) => {
                self.record.state = TargetState::Declined;
                vec![self.recorded(), self.send(MigrationStep::Declined { text })]
            }
            _ => Vec::new(),
        }
    }

    fn received(&mut self, message: MigrationMessage) -> Vec<TargetOutput> {
        let is_settled = matches!(self.record.state, TargetState::Own | TargetState::Declined);
        let is_ours = message.migration == self.record.migration
            && (!is_settled || message.epoch == self.record.epoch);
        if !is_ours {
            return Vec::new();
        }
        self.record.epoch = message.epoch;
        match (message.step, self.record.state) {
            (MigrationStep::HandOver { .. }, TargetState::Own) => {
                vec![self.send(MigrationStep::Taken)]
            }
            (MigrationStep::HandOver { .. }, TargetState::Declined) => {
                let text = "it was declined before".to_owned();
                vec![self.send(MigrationStep::Declined { text })]
            }
            // Whatever came before it was lost: the source does not go back.
            (MigrationStep::HandOver { image, token }, _) => {
                self.record.state = TargetState::HandedOver;
                vec![TargetOutput::HandedOver { image, token }]
            }
            (MigrationStep::Offer { instance }, TargetState::Idle) => {
                self.record.state = TargetState::Asked;
                vec![TargetOutput::Asked { instance }]
            }
            (MigrationStep::Offer { .. }, TargetState::Accepted) => {
                vec![self.send(MigrationStep::Accept)]
            }
            (MigrationStep::Ahead { image, token }, TargetState::Accepted) => {
                vec![TargetOutput::Ahead { image, token }]
            }
            (MigrationStep::Withdraw, TargetState::Asked | TargetState::Accepted) => {
                self.unbind(TargetOutput::Withdrawn)
            }
            // An operator has said that it goes on there; what was not taken must not be.
            (MigrationStep::Withdraw, TargetState::HandedOver) => {
                self.record.state = TargetState::Declined;
                vec![self.recorded(), TargetOutput::Withdrawn]
            }
            _ => Vec::new(),
        }
    }

    /// The instance does not come, which is on the disk before that is said if the other was.
    fn unbind(&mut self, then: TargetOutput) -> Vec<TargetOutput> {
        self.record.state = TargetState::Idle;
        match std::mem::take(&mut self.is_bound) {
            true => vec![self.recorded(), then],
            false => vec![then],
        }
    }

    fn recorded(&self) -> TargetOutput {
        TargetOutput::Record(self.record.clone())
    }

    fn send(&self, step: MigrationStep) -> TargetOutput {
        let TargetRecord { migration, epoch, .. } = self.record;
        TargetOutput::Send(MigrationMessage { migration, epoch, step })
    }
}
