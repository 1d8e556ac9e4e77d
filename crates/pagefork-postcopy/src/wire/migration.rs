//! What source and target of a migration tell each other.

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

use crate::wire::message::byte_string;

/// A migration: 16 random bytes, which the source chooses.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::MigrationId;
///
/// assert_ne!(MigrationId([1; 16]), MigrationId([2; 16]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MigrationId(pub [u8; 16]);

/// A message of a migration, which belongs to no connection: after a loss it is sent again on the
/// next one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MigrationMessage {
    /// The migration.
    pub migration: MigrationId,
    /// How often the instance had been handed over before. Who owns it has the highest.
    pub epoch: u64,
    /// The step.
    pub step: MigrationStep,
}

/// A step of a migration. [`MigrationSource`](crate::MigrationSource) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MigrationStep {
    /// Of the source: would the target take this instance?
    Offer {
        /// What the instance is called.
        instance: String,
    },
    /// Of the target: it would.
    Accept,
    /// Of the target: it would not; before the hand-over the source then goes on by itself.
    Refuse {
        /// For people.
        text: String,
    },
    /// Of the source: a state of the instance, which goes on, to be fetched ahead.
    Ahead {
        /// The image.
        image: ContentHash,
        /// With which it is opened.
        #[serde(with = "byte_string")]
        token: Vec<u8>,
    },
    /// Of the target: what it wants of a state ahead is here.
    AheadHere {
        /// The image.
        image: ContentHash,
    },
    /// Of the source: the instance goes on there. After the hand-over it is an operator who has
    /// said so.
    Withdraw,
    /// Of the source: the instance is the target's, if it takes it.
    HandOver {
        /// The image.
        image: ContentHash,
        /// With which it is opened.
        #[serde(with = "byte_string")]
        token: Vec<u8>,
    },
    /// Of the target: the instance is its own.
    Taken,
    /// Of the target: it will never take what was handed over.
    Declined {
        /// For people.
        text: String,
    },
}
