//! The messages of the protocol. `docs/PROTOCOL.md` says who sends which and when.

use std::ops::Range;

use pagefork_image::ContentHash;
use serde::{Deserialize, Serialize};

use crate::wire::body::GroupBody;
use crate::wire::migration::MigrationMessage;

/// Version of the protocol: both sides must have the same. It is raised whenever a message changes, or one is
/// added. 2: groups say how long they took. 3: contents are told apart by the tree. 4: groups say what of a processor they took.
pub const PROTOCOL_VERSION: u32 = 4;

/// A message. The order of the variants is their number in bytes; [`FrameDecoder`] has an example.
///
/// [`FrameDecoder`]: crate::FrameDecoder
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// Of a running node, first of all.
    Hello(Hello),
    /// Of a memory node, in answer.
    Welcome(Welcome),
    /// Of either: the last message, and why.
    Farewell {
        /// For people. Of a long one, [`FAREWELL_MAX`](crate::FAREWELL_MAX) bytes travel.
        text: String,
    },

    /// Of a running node: an image is to be opened.
    Open {
        /// What the image is called on this connection from now on; each number is higher than the
        /// one before.
        image: u32,
        /// A name in the node's store, or a hash in hexadecimal digits.
        name: String,
        /// An [`ImageToken`](crate::ImageToken), or nothing if the peer needs none.
        #[serde(with = "byte_string")]
        token: Vec<u8>,
        /// The image whose head is here already, so that only its groups are needed.
        head: Option<ContentHash>,
    },
    /// Of a running node: nothing more of the image is needed.
    Close {
        /// The image.
        image: u32,
    },
    /// Of a running node: these groups are wanted.
    Ask {
        /// The image.
        image: u32,
        /// Why.
        priority: Priority,
        /// Which groups: each is in one range at most, and all together are no more than [`Welcome::requests`].
        groups: Vec<GroupRange>,
    },
    /// Of a running node: a guest waits for a group that was asked for before. If it was sent in
    /// the meantime, it is not sent again.
    Raise {
        /// The image.
        image: u32,
        /// The group.
        group: u64,
    },
    /// Of a running node: these groups are not wanted any more, because they came from elsewhere.
    /// Each is answered all the same: as it was asked for, or as [`Message::Dropped`].
    Cancel {
        /// The image.
        image: u32,
        /// Which groups, as many as in [`Message::Ask`] at most.
        groups: Vec<GroupRange>,
    },
    /// Of a running node: groups whose contents it may have, so that they need not travel.
    Have {
        /// What stands for each in the image's tree.
        hashes: Vec<ContentHash>,
    },
    /// Of a running node: groups that it has said it has, and has no more, or does not need any more.
    Lack {
        /// What stands for each in the image's tree.
        hashes: Vec<ContentHash>,
    },
    /// Of a running node: it still depends on the image.
    Renew {
        /// The image.
        image: u32,
    },
    /// Of a running node: it is there.
    KeepAlive,

    /// Of a memory node: the image is open, and its head follows, unless that is there.
    Opened {
        /// The image.
        image: u32,
        /// What it is.
        hash: ContentHash,
        /// Bytes of the manifest that follow.
        manifest_size: u64,
        /// Bytes of the signatures that follow the manifest.
        signatures_size: u64,
        /// How long it is spared by collection; zero if the token gives no lease.
        lease_ms: u64,
        /// Groups that follow the head unasked.
        certain: Vec<GroupRange>,
    },
    /// Of a memory node: the next bytes of an image's head.
    HeadPart {
        /// The image.
        image: u32,
        /// Of the manifest, then of the signatures.
        #[serde(with = "byte_string")]
        bytes: Vec<u8>,
    },
    /// Of a memory node: an image is not open any more, or never was.
    Ended {
        /// The image.
        image: u32,
        /// Why.
        why: EndReason,
    },
    /// Of a memory node: a group.
    Group {
        /// The image.
        image: u32,
        /// The group, from 0.
        group: u64,
        /// Its contents.
        body: GroupBody,
        /// Its neighbours in the image's hash tree, from the bottom up.
        proof: Vec<[u8; 32]>,
        /// Microseconds from the question until it was read; of one that was not asked for, zero.
        spent_us: u32,
        /// Microseconds of a processor that the memory node has taken for this connection since the group before, for
        /// reports.
        cpu_us: u32,
    },
    /// Of a memory node: these groups were taken back in time, and will not be sent.
    Dropped {
        /// The image.
        image: u32,
        /// Which groups.
        groups: Vec<GroupRange>,
    },
    /// Of a memory node: it cannot read a group.
    GroupFailed {
        /// The image.
        image: u32,
        /// The group.
        group: u64,
    },
    /// Of a memory node: the image is spared for this long from now.
    Renewed {
        /// The image.
        image: u32,
        /// How long.
        lease_ms: u64,
    },

    /// A step of a hand-over.
    Migration(MigrationMessage),
}

/// What a running node says of itself. The version stands first in every version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// Whether it can decompress.
    pub zstd: bool,
    /// Groups that it accepts unasked with an image.
    pub certain_groups: u32,
}

/// What a memory node says of itself, and allows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// Groups that may be asked for and not answered.
    pub requests: u32,
    /// Images that may be open.
    pub images: u32,
    /// Hashes that it remembers of groups that the other side has.
    pub known_groups: u32,
    /// After this time without a message it leaves.
    pub idle_ms: u64,
}

/// Why groups are asked for: the first ones go first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Priority {
    /// A guest waits.
    Urgent,
    /// A guest will probably touch them soon.
    Planned,
    /// The image is to be complete.
    Background,
}

/// Why an image is not open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    /// There is no image of this name, or it cannot be read.
    NotFound,
    /// The token does not allow it: it is malformed, foreign, expired, or for something else.
    NotAllowed,
    /// The lease, or the token, has expired.
    Expired,
}

/// Groups one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupRange {
    /// The first one, from 0.
    pub first: u64,
    /// How many.
    pub count: u32,
}

impl GroupRange {
    /// The numbers of the groups; `None` if there is none, or their numbers exceed 64 bits.
    pub(crate) fn groups(self) -> Option<Range<u64>> {
        let end = self.first.checked_add(u64::from(self.count))?;
        (self.count > 0).then_some(self.first..end)
    }
}

/// Joins groups, which are in any order, to ranges.
pub(crate) fn ranges(groups: impl IntoIterator<Item = u64>) -> Vec<GroupRange> {
    let mut ranges: Vec<GroupRange> = Vec::new();
    for group in groups {
        match ranges.last_mut() {
            Some(last) if last.first + u64::from(last.count) == group && last.count < u32::MAX => {
                last.count += 1;
            }
            _ => ranges.push(GroupRange { first: group, count: 1 }),
        }
    }
    ranges
}

/// Bytes as one string of them, not as a list of numbers.
pub(crate) mod byte_string {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct WholeBytes;
        impl Visitor<'_> for WholeBytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        from.deserialize_bytes(WholeBytes)
    }
}
