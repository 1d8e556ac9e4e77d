//! What a node that runs programs and its clients say to each other. `docs/PROTOCOL.md` has the
//! messages.

use std::fmt;
use std::io::{self, ErrorKind};
use std::str::FromStr;
use std::time::Duration;

use pagefork_image::{ContentHash, PublicKey, SavedHolder};
use pagefork_postcopy::{MigrationId, MigrationMessage};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::move_report::MigrateReport;
use super::needs::ProgramNeeds;
use super::snapshots::CaptureReport;

/// Bytes of a message at most, its length not counted.
pub(super) const MESSAGE_MAX: usize = 256 << 10;

/// Bytes of a stream, or of a module, that one message carries.
pub(super) const PART: usize = 32 << 10;

/// Bytes of the last changes of a program that moves at most: of more, the target fetches the image.
pub(super) const LAST_CHANGES_MAX: usize = 16 << 20;

/// A program that a node runs: 16 random bytes, which it keeps wherever it goes.
///
/// # Examples
///
/// ```
/// use pagefork_node::ProgramId;
///
/// let id: ProgramId = "000102030405060708090a0b0c0d0e0f".parse()?;
/// assert_eq!(id.to_string(), "000102030405060708090a0b0c0d0e0f");
/// assert!("0001".parse::<ProgramId>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProgramId(pub(crate) [u8; 16]);

impl fmt::Display for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ProgramId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramId({self})")
    }
}

impl FromStr for ProgramId {
    type Err = String;

    /// # Errors
    /// If `text` is other than 32 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no program: those are 32 hexadecimal digits");
        let is_good = text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_good).ok_or_else(wrong)?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// What a node is to start. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProgramSource {
    /// A module, in the binary format: its `_start` is called.
    Module(#[serde(skip)] Vec<u8>),
    /// A program that was captured: an image of the node's store, by its name or hash, or
    /// `NODE/IMAGE`, an image of a node that it knows by this name.
    Image(String),
}

/// How a node is to start a program. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramStart {
    /// What the program is called: as images are. Several may have the same name.
    pub name: String,
    /// What it is.
    pub source: ProgramSource,
    /// Its arguments, its own name the first of them; none for an image, which has its own.
    pub arguments: Vec<Vec<u8>>,
    /// Its variables, each `name=value`; none for an image.
    pub variables: Vec<Vec<u8>>,
    /// Those of the node's directories that it gets, by the names that it knows them by.
    pub directories: Vec<String>,
    /// Directories of its session, by the names that it knows them by: each is empty, and goes
    /// where it goes.
    pub sessions: Vec<String>,
    /// Whether it gets the node's listening sockets.
    pub sockets: bool,
    /// How long it may run; the node has a limit of its own.
    pub timeout: Option<Duration>,
}

impl ProgramStart {
    /// A program without arguments, variables and directories.
    pub fn new(name: impl Into<String>, source: ProgramSource) -> Self {
        Self {
            name: name.into(),
            source,
            arguments: Vec::new(),
            variables: Vec::new(),
            directories: Vec::new(),
            sessions: Vec::new(),
            sockets: false,
            timeout: None,
        }
    }
}

/// What has become of a program. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProgramEnd {
    /// It ended with this exit code.
    Exited(i32),
    /// It was stopped, by a client or because its time was up.
    Stopped(String),
    /// It has failed: a trap, mostly, with its backtrace.
    Failed(String),
}

/// Where a program is in its life. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProgramPhase {
    /// It runs.
    Running,
    /// It runs, and is on its way to the node with this key.
    Moving {
        /// The key of the node that is to have it.
        to: [u8; 32],
    },
    /// It does not run here: it was handed over to that node, which has not answered yet.
    HandedOver {
        /// The key of the node that may have it.
        to: [u8; 32],
    },
    /// It does not run: that node has declined what was handed over. An operator has to say what is
    /// to become of it.
    Declined {
        /// The key of the node.
        to: [u8; 32],
        /// What it says.
        why: String,
    },
    /// It is at that node.
    Moved {
        /// The key of the node that has it.
        to: [u8; 32],
    },
    /// It was here, and is lost.
    Lost(String),
    /// It has ended.
    Ended(ProgramEnd),
}

/// A program of a node. [`ProgramNode`](crate::ProgramNode) has an example.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramInfo {
    /// The program.
    pub id: ProgramId,
    /// What it is called.
    pub name: String,
    /// Where it is in its life.
    pub phase: ProgramPhase,
    /// Whether a client has its streams.
    pub is_attached: bool,
    /// Of one that has moved away before its pages: how far its second place is.
    pub kept: Option<KeptGroups>,
}

/// How far a second place is with the pages of a program that has moved before them. They count when all are there: until
/// then the program is lost if its source is.
///
/// # Examples
///
/// ```
/// use pagefork_node::KeptGroups;
///
/// let kept = KeptGroups { sent: 512, groups: 2048 };
/// assert_eq!(kept.to_string(), "512 of 2048 groups");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptGroups {
    /// Groups of 16 KiB that its source has sent there; `groups`, once all are there and have a name.
    pub sent: u64,
    /// How many there are.
    pub groups: u64,
}

impl fmt::Display for KeptGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} groups", self.sent, self.groups)
    }
}

/// What gets all pages of a program that moves before them, besides its target.
/// [`MigrateOptions::second`](crate::MigrateOptions::second) says what for.
///
/// # Examples
///
/// ```
/// use pagefork_node::SecondPlace;
///
/// let place = SecondPlace::Objects("s3://bucket/pages".to_owned());
/// assert_eq!(place.to_string(), "the object store s3://bucket/pages");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SecondPlace {
    /// The node with this key.
    Node(#[serde(with = "key_bytes")] PublicKey),
    /// The object store that both nodes know by this URL.
    Objects(String),
    /// None: the program is lost if its source is.
    Nowhere,
}

impl fmt::Display for SecondPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(key) => write!(f, "node {key}"),
            Self::Objects(url) => write!(f, "the object store {url}"),
            Self::Nowhere => f.write_str("no second place"),
        }
    }
}

/// What goes before each step of a program that moves, so that the target knows what it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct MoveOffer {
    pub(super) program: ProgramId,
    pub(super) name: String,
    /// The directories of the node that it has.
    pub(super) directories: Vec<String>,
    pub(super) has_sockets: bool,
    /// Who signs what is handed over.
    pub(super) signer: [u8; 32],
    /// What will have its pages, too.
    pub(super) second: Option<SecondPlace>,
    /// What it needs, with the first step.
    pub(super) needs: Option<ProgramNeeds>,
}

/// Who has the streams of a program: 16 random bytes of the client's choice. It may attach again
/// while the node believes that it is there.
pub(super) type ClientId = [u8; 16];

/// Of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ClientRequest {
    /// The first message: is this client let in?
    Hello,
    List,
    /// A module follows, in [`ClientRequest::Module`], of so many bytes.
    Start(ProgramStart, u64),
    Module(Vec<u8>),
    /// `outputs` is how far this client has the outputs, if it had them before.
    Attach {
        program: String,
        client: ClientId,
        outputs: Option<[u64; 2]>,
    },
    /// Bytes of standard input from a position on.
    Input {
        at: u64,
        bytes: Vec<u8>,
        ends: bool,
    },
    /// All output before these positions has gone where it goes to.
    Took {
        outputs: [u64; 2],
    },
    Stop {
        program: String,
    },
    KeepAlive,
    /// A program is to move to the node with this key.
    Migrate {
        program: String,
        to: [u8; 32],
        rounds: u8,
        patience: Duration,
        second: Option<SecondPlace>,
    },
    /// A program that was handed over is to go on here.
    Reclaim {
        program: String,
    },
    /// Of a node: an image of it is to be kept for another node, whose program's pages are in it.
    Keep {
        image: ContentHash,
        program: ProgramId,
        holder: [u8; 32],
    },
    /// Of a node: bytes of an image of what has changed last of a program that moves from it, and where
    /// they lie there. Those at 0 are the last; what none covers is zero. A hand-over follows.
    LastChanges {
        at: u64,
        #[serde(with = "byte_string")]
        bytes: Vec<u8>,
    },
    /// Of a node: a step of a program that moves.
    Move {
        offer: MoveOffer,
        message: MigrationMessage,
    },
    /// Of a node: whether a program that has moved here may need pages of this image.
    Needs(ContentHash),
    /// An image is to be made of a program, which runs on.
    Snapshot {
        program: String,
        name: Option<String>,
        patience: Duration,
        holders: Vec<SavedHolder>,
    },
    /// Of a node: it has on its disk what has become of a program that it has handed over. There is no answer.
    Known(MigrationId),
}

/// Of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum NodeReply {
    /// What was asked for is not done.
    Refused(String),
    /// A program of the list; [`NodeReply::Done`] ends it.
    Program(ProgramInfo),
    Started(ProgramId),
    Done,
    /// The streams are this client's. Outputs follow from these positions on.
    Attached {
        program: ProgramId,
        outputs: [u64; 2],
    },
    /// Input is here up to `received`, and may come up to `until`. If it `lacks` what was sent
    /// beyond, that is to be sent again.
    Input {
        received: u64,
        until: u64,
        lacks: bool,
    },
    /// Bytes of an output, the first of which has this position.
    Output {
        which: u8,
        at: u64,
        bytes: Vec<u8>,
    },
    Ended(ProgramEnd),
    KeepAlive,
    /// The program is on its way to the node with this key.
    Moving([u8; 32]),
    /// The program is at the node with this key.
    Moved([u8; 32]),
    /// Steps of a program that moves.
    Steps(Vec<MigrationMessage>),
    /// Whether pages of an image are needed.
    Needed(bool),
    /// A program is at the node to which it was to move.
    Migrated(MigrateReport),
    /// There is an image of a program.
    Captured(CaptureReport),
}

impl NodeReply {
    /// Something is not done, for this reason: as much of it as fits a message.
    pub(super) fn refused(why: impl Into<String>) -> Self {
        Self::Refused(shortened(why.into()))
    }
}

/// A text that fits a message, whatever a peer has said in it.
pub(super) fn shortened(mut text: String) -> String {
    const TEXT_MAX: usize = 16 << 10;
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

/// Keys as their bytes.
mod key_bytes {
    use pagefork_image::PublicKey;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &PublicKey, to: S) -> Result<S::Ok, S::Error> {
        key.as_bytes().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PublicKey, D::Error> {
        <[u8; 32]>::deserialize(from).map(PublicKey::from_bytes)
    }
}

/// Bytes that are copied as a whole. They are encoded as lists of bytes are.
mod byte_string {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
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

/// A message as it travels: its length in four bytes, then itself.
///
/// # Panics
/// If it is too long: who makes messages splits them before.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    let bytes = postcard::to_extend(message, vec![0; 4]);
    let mut bytes = bytes.expect("memory takes all messages");
    let size = bytes.len() - 4;
    assert!(size <= MESSAGE_MAX, "a message has {size} bytes");
    bytes[..4].copy_from_slice(&(size as u32).to_le_bytes());
    bytes
}

/// Takes messages from the bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    read: usize,
}

impl Inbox {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// If there is something of a message, once all that were whole were taken: its bytes, or what it may have at most.
    pub(super) fn part(&self) -> Option<u64> {
        let rest = self.bytes.get(self.read..).filter(|rest| !rest.is_empty())?;
        let size = rest.first_chunk::<4>().map(|size| u64::from(u32::from_le_bytes(*size)));
        Some(size.unwrap_or(MESSAGE_MAX as u64))
    }

    /// Bytes that came and are of no message that was taken.
    pub(super) fn unread(&self) -> usize {
        self.bytes.len() - self.read
    }

    /// The next message; `None` until all of it is here.
    ///
    /// # Errors
    /// If what came is none.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let rest = &self.bytes[self.read..];
        let Some((size, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let size = u32::from_le_bytes(*size) as usize;
        if size > MESSAGE_MAX {
            return Err(nonsense("a message that is too long"));
        }
        let Some(message) = rest.get(..size) else { return Ok(None) };
        let message = match postcard::take_from_bytes(message) {
            Ok((message, [])) => message,
            _ => return Err(nonsense("a message that means nothing")),
        };
        self.read += 4 + size;
        Ok(Some(message))
    }
}

/// Told apart from what the system and TLS say by its kind.
pub(super) const NONSENSE: ErrorKind = ErrorKind::InvalidInput;

pub(super) fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(NONSENSE, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went_however_they_are_cut() {
        let messages = [
            ClientRequest::List,
            ClientRequest::Input { at: 7, bytes: vec![1, 2, 3], ends: true },
            ClientRequest::Start(ProgramStart::new("a", ProgramSource::Image("b".into())), 0),
        ];
        let all: Vec<u8> = messages.iter().flat_map(encode).collect();
        for size in [1, 3, all.len()] {
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
            for part in all.chunks(size) {
                inbox.push(part);
                while let Some(message) = inbox.next::<ClientRequest>().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, messages);
        }
    }

    #[test]
    fn nonsense_is_an_error_before_anything_is_held_for_it() {
        let refused = |bytes: &[u8]| {
            let mut inbox = Inbox::default();
            inbox.push(bytes);
            inbox.next::<ClientRequest>().unwrap_err();
        };
        refused(&u32::MAX.to_le_bytes());
        refused(&[1, 0, 0, 0, 99]);
        // Behind a message that is over.
        refused(&[2, 0, 0, 0, 0, 0]);
        // A list that says that it is long.
        refused(&[8, 0, 0, 0, 3, 255, 255, 255, 255, 255, 255, 3]);
    }
}
