//! The side of a migration that is to have the instance.

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

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
    /// To be kept in place of the one before.
    Record(TargetRecord),
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
}

impl MigrationTarget {
    /// One for a migration of which the first message has just come.
    pub fn new(migration: MigrationId) -> Self {
        Self { record: TargetRecord { migration, epoch: 0, state: TargetState::Idle } }
    }

    /// Goes on where a process ended whose last record this is.
    pub fn restore(record: TargetRecord) -> Self {
        Self { record }
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
                self.record.state = TargetState::Idle;
                vec![self.send(MigrationStep::Refuse { text })]
            }
            (TargetInput::AheadHere(image), TargetState::Accepted) => {
                vec![self.send(MigrationStep::AheadHere { image })]
            }
            (TargetInput::Take, TargetState::HandedOver) => {
                self.record.state = TargetState::Own;
                vec![self.recorded(), self.send(MigrationStep::Taken), TargetOutput::Own]
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
                self.record.state = TargetState::Idle;
                vec![TargetOutput::Withdrawn]
            }
            // An operator has said that it goes on there; what was not taken must not be.
            (MigrationStep::Withdraw, TargetState::HandedOver) => {
                self.record.state = TargetState::Declined;
                vec![self.recorded(), TargetOutput::Withdrawn]
            }
            _ => Vec::new(),
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
