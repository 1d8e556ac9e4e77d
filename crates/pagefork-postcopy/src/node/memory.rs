//! The side of a memory node: it gives one peer the images that it may have, within limits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, GROUP_SIZE, GroupProof, ImageHead, PublicKey, TrustedKeys};

use crate::base::error::{ProtocolError, TokenError};
use crate::base::limits::ServeLimits;
use crate::base::moment::{Moment, earlier};
use crate::node::backlog::Backlog;
use crate::wire::body::{BodyEncoder, GroupBody};
use crate::wire::frame::{FrameDecoder, Lane, encode};
use crate::wire::message::{
    EndReason, GroupRange, Hello, Message, PROTOCOL_VERSION, Priority, Welcome, ranges,
};
use crate::wire::migration::MigrationMessage;
use crate::wire::token::{ImageToken, TokenRights};

/// Ranges of groups that go in one message.
pub(crate) const RANGES_MAX: usize = 1024;

/// Bytes of a head that go in one message.
const HEAD_PART: usize = 16 << 10;

/// Which images a peer may open. [`MemoryNode`] has an example.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAccess {
    /// All of them, with leases: a node that is trusted.
    All,
    /// Some, and those for which it shows a token.
    Some {
        /// What it may have without one, with leases.
        images: BTreeSet<ContentHash>,
        /// Whose tokens count.
        issuers: TrustedKeys,
    },
}

/// An image that a memory node can give. [`MemoryNode`] has an example.
#[derive(Clone, Debug)]
pub struct ServedImage {
    /// What it is.
    pub head: Arc<ImageHead>,
    /// Groups that every instance touches, to be sent along, in this order.
    pub certain: Vec<Range<u64>>,
}

/// What a memory node is told. [`MemoryNode`] has an example.
#[derive(Clone, Debug)]
pub enum MemoryInput<'a> {
    /// Bytes have come from the peer.
    Received(&'a [u8]),
    /// The image of [`MemoryOutput::Resolve`]; `None` if there is none.
    Resolved {
        /// Its number on the connection.
        image: u32,
        /// The image.
        found: Option<ServedImage>,
    },
    /// The group of [`MemoryOutput::Read`]; `None` if it cannot be read.
    Read {
        /// The image's number on the connection.
        image: u32,
        /// The group.
        group: u64,
        /// Its bytes and proof.
        found: Option<(Vec<u8>, GroupProof)>,
        /// How long a processor has worked for this connection since the last answer to a `Read`: reading, encoding
        /// and sending. Zero, if that is not known.
        cpu: Duration,
    },
    /// The network has taken so many bytes of what was sent.
    Taken(usize),
    /// A step of a migration is to be sent.
    Migration(MigrationMessage),
    /// Nothing but that time has passed.
    Tick,
}

/// What a memory node does, in order. [`MemoryNode`] has an example.
#[derive(Debug)]
pub enum MemoryOutput {
    /// Bytes for the peer.
    Send {
        /// On which stream.
        lane: Lane,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// The image of this name, or with this hash in hexadecimal digits, is wanted.
    Resolve {
        /// Its number on the connection.
        image: u32,
        /// The name.
        name: String,
    },
    /// A group is wanted, with its proof.
    Read {
        /// The image's number on the connection.
        image: u32,
        /// What it is.
        hash: ContentHash,
        /// The group.
        group: u64,
    },
    /// The peer has shown a token for this image, which counts until then, whatever becomes of the
    /// connection.
    Shown {
        /// The image.
        hash: ContentHash,
        /// Until when.
        until: Instant,
    },
    /// The peer depends on an image until then, whatever becomes of the connection.
    Leased {
        /// The image.
        hash: ContentHash,
        /// Until when.
        until: Instant,
    },
    /// The peer has not, or no longer, opened an image that was found for it, by any number: nothing of it is
    /// read for this connection any more, and if it was leased here, the peer does not depend on it.
    Released {
        /// The image.
        hash: ContentHash,
    },
    /// The connection is to be closed, once what was sent is gone; nothing follows.
    Close(ProtocolError),
}

/// The side of a memory node, for one connection. It does no I/O: it is told what has come, what
/// was read and what time it is, and says what to send, what to read, and when it wants to be told
/// the time again.
///
/// # Examples
///
/// ```
/// use std::collections::VecDeque;
/// use std::sync::Arc;
/// use std::time::Instant;
///
/// use pagefork_image::*;
/// use pagefork_postcopy::*;
///
/// # let instance = SavedInstance { extents: vec![0..1 << 20], ..SavedInstance::default() };
/// # let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
/// # let pages = PageRuns::new(vec![vec![(0, vec![7; 1 << 20])]]);
/// # let mut file = std::io::Cursor::new(Vec::new());
/// # ImageDraft::new(manifest, &pages).write(&mut file)?;
/// # let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default())?;
/// let now = Moment { at: Instant::now(), unix_s: 1_800_000_000 };
/// let peer = PublicKey::from_bytes([1; 32]);
/// let mut node = MemoryNode::new(peer, PeerAccess::All, ServeLimits::default(), now);
/// let mut runner = RunningNode::new(FetchLimits::default());
/// let (connection, key) = (ConnectionId(1), ImageKey(1));
/// runner.handle(RunningInput::Open { image: key, name: "counter".into(), hash: None,
///     plan: FetchPlan::default() }, now);
/// let holder = RunningInput::AddHolder { image: key, connection, token: Vec::new() };
/// let mut to_runner = runner.handle(RunningInput::Connected { connection }, now);
/// to_runner.extend(runner.handle(holder, now));
///
/// let mut groups = 0;
/// while !to_runner.is_empty() {
///     let mut to_node = VecDeque::new();
///     for output in to_runner.drain(..) {
///         match output {
///             RunningOutput::Send { bytes, .. } => {
///                 to_node.extend(node.handle(MemoryInput::Received(&bytes), now));
///             }
///             RunningOutput::Group { .. } => groups += 1,
///             _ => {}
///         }
///     }
///     while let Some(output) = to_node.pop_front() {
///         match output {
///             MemoryOutput::Resolve { image: number, .. } => {
///                 let head = Arc::new(ImageHead::read(&image)?);
///                 let found = Some(ServedImage { head, certain: Vec::new() });
///                 to_node.extend(node.handle(MemoryInput::Resolved { image: number, found }, now));
///             }
///             MemoryOutput::Read { image: number, group, .. } => {
///                 let found = Some((image.read_group(group)?, image.proof(group)?));
///                 let cpu = std::time::Duration::ZERO;
///                 let read = MemoryInput::Read { image: number, group, found, cpu };
///                 to_node.extend(node.handle(read, now));
///             }
///             MemoryOutput::Send { lane, bytes } => {
///                 node.handle(MemoryInput::Taken(bytes.len()), now);
///                 let received = RunningInput::Received { connection, lane, bytes: &bytes };
///                 to_runner.extend(runner.handle(received, now));
///             }
///             _ => {}
///         }
///     }
/// }
/// assert_eq!(groups, image.group_count());
/// # Ok::<(), ImageError>(())
/// ```
#[derive(Debug)]
pub struct MemoryNode {
    peer: PublicKey,
    access: PeerAccess,
    limits: ServeLimits,
    decoder: FrameDecoder,
    hello: Option<Hello>,
    encoder: BodyEncoder,
    /// The number that the next image has at least.
    next_number: u64,
    images: BTreeMap<u32, OpenImage>,
    heads: VecDeque<HeadOnItsWay>,
    backlog: Backlog,
    known: HashSet<ContentHash>,
    /// When groups were asked for, or somebody began to wait for them.
    asked: HashMap<(u32, u64), Instant>,
    /// Groups that were asked for though they were here to be sent, less those that were answered since.
    asked_again: u32,
    /// Time of a processor that the peer was not told of.
    cpu: Duration,
    /// Bytes that the network has not taken.
    unsent: usize,
    /// When something came last.
    heard: Instant,
    /// When the network has taken something last, or had nothing.
    taken: Instant,
    has_ended: bool,
    output: Vec<MemoryOutput>,
}

/// An image that the peer has opened.
#[derive(Debug)]
enum OpenImage {
    /// It is being looked for.
    Resolving { name: String, token: Option<ImageToken>, head: Option<ContentHash> },
    /// It is there.
    Open {
        head: Arc<ImageHead>,
        rights: TokenRights,
        /// When the token expires.
        token_until: Option<Instant>,
        lease_until: Option<Instant>,
    },
}

/// A head of which not all was sent.
#[derive(Debug)]
struct HeadOnItsWay {
    image: u32,
    head: Arc<ImageHead>,
    offset: usize,
    certain: Vec<u64>,
}

impl MemoryNode {
    /// One for a connection to `peer`, which has authenticated itself.
    pub fn new(peer: PublicKey, access: PeerAccess, limits: ServeLimits, now: Moment) -> Self {
        Self {
            peer,
            access,
            limits,
            decoder: FrameDecoder::default(),
            hello: None,
            encoder: BodyEncoder::new(false),
            next_number: 0,
            images: BTreeMap::new(),
            heads: VecDeque::new(),
            backlog: Backlog::default(),
            known: HashSet::new(),
            asked: HashMap::new(),
            asked_again: 0,
            cpu: Duration::ZERO,
            unsent: 0,
            heard: now.at,
            taken: now.at,
            has_ended: false,
            output: Vec::new(),
        }
    }

    /// Takes what has happened, and gives what is to be done.
    pub fn handle(&mut self, input: MemoryInput<'_>, now: Moment) -> Vec<MemoryOutput> {
        if self.has_ended {
            return Vec::new();
        }
        if let Err(error) = self.step(input, now) {
            // Who has left needs no telling.
            if !matches!(error, ProtocolError::PeerLeft(_)) {
                let text = error.to_string();
                self.send(Lane::Control, &Message::Farewell { text });
            }
            self.output.push(MemoryOutput::Close(error));
            self.has_ended = true;
        }
        std::mem::take(&mut self.output)
    }

    /// When [`MemoryInput::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        if self.has_ended {
            return None;
        }
        let idle = self.heard + self.limits.idle;
        let stalled = (self.unsent > 0).then(|| self.taken + self.limits.idle);
        let ends = self.images.values().filter_map(OpenImage::ends).min();
        earlier(Some(idle), earlier(stalled, ends))
    }

    /// Whether the peer has opened an image with the right to take its instance over.
    pub fn may_take_over(&self, image: ContentHash) -> bool {
        self.images.values().any(|open| match open {
            OpenImage::Open { head, rights, .. } => head.hash() == image && rights.take_over,
            OpenImage::Resolving { .. } => false,
        })
    }

    /// Whether the peer has an image open, by whichever number. Where a message is answered after others that came with
    /// it, one that was [let go](MemoryOutput::Released) can be open again.
    pub fn has_open(&self, image: ContentHash) -> bool {
        self.images.values().any(|open| match open {
            OpenImage::Open { head, .. } => head.hash() == image,
            OpenImage::Resolving { .. } => false,
        })
    }

    /// Whether the peer may have an image that is [looked for](MemoryOutput::Resolve), if it is this one: else nothing
    /// of it need be read.
    pub fn may_have(&self, image: u32, hash: ContentHash) -> bool {
        match self.images.get(&image) {
            Some(OpenImage::Resolving { name, token, .. }) => {
                self.allows(name, token.as_ref(), hash)
            }
            Some(OpenImage::Open { .. }) | None => false,
        }
    }

    fn allows(&self, name: &str, token: Option<&ImageToken>, hash: ContentHash) -> bool {
        match (token, &self.access) {
            (Some(token), _) => token.check_subject(name, hash).is_ok(),
            (None, PeerAccess::All) => true,
            (None, PeerAccess::Some { images, .. }) => images.contains(&hash),
        }
    }

    /// Whether the peer may have nothing, as far as it has shown: anybody can be it, so it does not stay by talking.
    fn is_strange(&self) -> bool {
        match &self.access {
            PeerAccess::All => false,
            PeerAccess::Some { images, .. } => images.is_empty() && self.images.is_empty(),
        }
    }

    /// Bytes that were given to be sent and that the network has not taken.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    fn step(&mut self, input: MemoryInput<'_>, now: Moment) -> Result<(), ProtocolError> {
        self.check_time(now)?;
        match input {
            MemoryInput::Received(bytes) => {
                if !self.is_strange() {
                    self.heard = now.at;
                }
                self.decoder.push(bytes);
                while let Some(message) = self.decoder.message()? {
                    self.message(message, now)?;
                    // Whoever asks without end and reads nothing would fill our memory.
                    if self.unsent > self.limits.bytes_in_flight.saturating_mul(2) {
                        let limit = self.limits.bytes_in_flight as u64;
                        let what = "answers that it does not read";
                        return Err(ProtocolError::Exceeded { what, limit });
                    }
                }
            }
            MemoryInput::Resolved { image, found } => self.resolved(image, found, now),
            MemoryInput::Read { image, group, found, cpu } => {
                self.cpu += cpu;
                self.was_read(image, group, found, now);
            }
            MemoryInput::Taken(bytes) => {
                self.unsent = self.unsent.saturating_sub(bytes);
                self.taken = now.at;
            }
            MemoryInput::Migration(message) => {
                self.send(Lane::Control, &Message::Migration(message));
            }
            MemoryInput::Tick => {}
        }
        self.pump();
        if self.unsent == 0 {
            self.taken = now.at;
        }
        Ok(())
    }

    /// Ends what has lasted long enough.
    fn check_time(&mut self, now: Moment) -> Result<(), ProtocolError> {
        let idle = self.limits.idle;
        if now.at >= self.heard + idle {
            return Err(ProtocolError::Idle { seconds: idle.as_secs() });
        }
        if self.unsent > 0 && now.at >= self.taken + idle {
            return Err(ProtocolError::Stalled { seconds: idle.as_secs() });
        }
        let is_over = |open: &OpenImage| open.ends().is_some_and(|end| end <= now.at);
        let over: Vec<u32> =
            self.images.iter().filter(|(_, open)| is_over(open)).map(|(image, _)| *image).collect();
        for image in over {
            self.end(image, EndReason::Expired);
        }
        Ok(())
    }

    fn message(&mut self, message: Message, now: Moment) -> Result<(), ProtocolError> {
        if self.hello.is_none() != matches!(message, Message::Hello(_)) {
            return Err(ProtocolError::Unexpected("a greeting comes first, and once"));
        }
        match message {
            Message::Hello(hello) => {
                self.encoder = BodyEncoder::new(hello.zstd);
                self.hello = Some(hello);
                let welcome = Welcome {
                    version: PROTOCOL_VERSION,
                    requests: self.limits.requests,
                    images: self.limits.images,
                    known_groups: self.limits.known_groups,
                    idle_ms: self.limits.idle.as_millis() as u64,
                };
                self.send(Lane::Control, &Message::Welcome(welcome));
            }
            Message::Farewell { text } => return Err(ProtocolError::PeerLeft(text)),
            Message::Open { image, name, token, head } => {
                self.open(image, name, &token, head, now)?
            }
            Message::Close { image } => self.forget(image),
            Message::Ask { image, priority, groups } => self.ask(image, priority, &groups, now)?,
            Message::Raise { image, group } => {
                if let Some(asked) = self.asked.get_mut(&(image, group)) {
                    *asked = now.at;
                }
                self.backlog.raise((image, group));
            }
            Message::Cancel { image, groups } => self.cancel(image, &groups)?,
            // It says so of groups that it is about to ask for: its image has ended, which it does not know yet.
            Message::Have { .. } if self.images.is_empty() => {}
            Message::Have { hashes } => {
                self.known.extend(hashes);
                let limit = self.limits.known_groups;
                if self.known.len() > limit as usize {
                    let (what, limit) = ("hashes of groups that it has", u64::from(limit));
                    return Err(ProtocolError::Exceeded { what, limit });
                }
            }
            Message::Lack { hashes } => {
                for hash in &hashes {
                    self.known.remove(hash);
                }
            }
            Message::Renew { image } => self.renew(image, now),
            Message::KeepAlive => {}
            // Programs are handed over by connections of their own.
            Message::Migration(_) => {
                return Err(ProtocolError::Unexpected(
                    "a step of a migration, on a connection for pages",
                ));
            }
            Message::Welcome(_)
            | Message::Opened { .. }
            | Message::HeadPart { .. }
            | Message::Ended { .. }
            | Message::Group { .. }
            | Message::Dropped { .. }
            | Message::GroupFailed { .. }
            | Message::Renewed { .. } => {
                return Err(ProtocolError::Unexpected("an answer, though nothing was asked"));
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        image: u32,
        name: String,
        token: &[u8],
        head: Option<ContentHash>,
        now: Moment,
    ) -> Result<(), ProtocolError> {
        if u64::from(image) < self.next_number {
            return Err(ProtocolError::Unexpected("an image's number that is not a new one"));
        }
        self.next_number = u64::from(image) + 1;
        if self.images.len() >= self.limits.images as usize {
            let limit = u64::from(self.limits.images);
            return Err(ProtocolError::Exceeded { what: "open images", limit });
        }
        // Nothing is looked for, and nothing is told, before the token was checked.
        let token = match &self.access {
            PeerAccess::All => None,
            PeerAccess::Some { images, .. } if token.is_empty() && !images.is_empty() => None,
            PeerAccess::Some { issuers, .. } => {
                match ImageToken::check(token, issuers, &self.peer, now.unix_s) {
                    Ok(token) => Some(token),
                    Err(error) => {
                        let why = match error {
                            TokenError::Expired => EndReason::Expired,
                            _ => EndReason::NotAllowed,
                        };
                        self.send(Lane::Control, &Message::Ended { image, why });
                        return Ok(());
                    }
                }
            }
        };
        let resolving = OpenImage::Resolving { name: name.clone(), token, head };
        self.images.insert(image, resolving);
        self.output.push(MemoryOutput::Resolve { image, name });
        Ok(())
    }

    fn resolved(&mut self, image: u32, found: Option<ServedImage>, now: Moment) {
        let Some(OpenImage::Resolving { name, token, head: known }) = self.images.get(&image)
        else {
            return;
        };
        let is_allowed = |hash| self.allows(name, token.as_ref(), hash);
        let has_expired = |token: &ImageToken| now.until_unix(token.expires_unix_s).is_none();
        let served = match found {
            // Whether there is an image of another name is nothing that a token tells.
            None if token.is_some() => return self.end(image, EndReason::NotAllowed),
            None => return self.end(image, EndReason::NotFound),
            Some(served) if !is_allowed(served.head.hash()) => {
                let why = match token {
                    Some(_) => EndReason::NotAllowed,
                    // What it may not have is not there for it.
                    None => EndReason::NotFound,
                };
                return self.end_found(image, served.head.hash(), why);
            }
            Some(served) if token.as_ref().is_some_and(has_expired) => {
                return self.end_found(image, served.head.hash(), EndReason::Expired);
            }
            Some(served) => served,
        };
        let token_until = token.as_ref().and_then(|token| now.until_unix(token.expires_unix_s));
        let rights = match token {
            Some(token) => token.rights,
            None => TokenRights { lease: true, take_over: true },
        };
        if let Some(until) = token_until {
            self.output.push(MemoryOutput::Shown { hash: served.head.hash(), until });
        }
        let is_known = *known == Some(served.head.hash());
        let groups = served.head.group_count();
        let hash = served.head.hash();
        let mut open = OpenImage::Open {
            head: Arc::clone(&served.head),
            rights,
            token_until,
            lease_until: None,
        };
        let lease_ms = self.lease(&mut open, now);
        self.images.insert(image, open);

        let certain_max = self.hello.as_ref().map_or(0, |hello| hello.certain_groups) as usize;
        let certain = served.certain.iter().flat_map(|range| range.start..range.end.min(groups));
        let mut seen = HashSet::new();
        // In the order in which they are named: who starts waits for the first ones alone.
        let certain = certain.filter(|group| seen.insert(*group));
        let certain: Vec<u64> = certain.take(certain_max.min(RANGES_MAX)).collect();
        let (manifest_size, signatures_size) = match is_known {
            true => (0, 0),
            false => {
                let head = &served.head;
                (head.manifest_bytes().len() as u64, head.signature_bytes().len() as u64)
            }
        };
        self.send(
            Lane::Control,
            &Message::Opened {
                image,
                hash,
                manifest_size,
                signatures_size,
                lease_ms,
                certain: ranges(certain.iter().copied()),
            },
        );
        let offset = if is_known { head_size(&served.head) } else { 0 };
        self.heads.push_back(HeadOnItsWay { image, head: served.head, offset, certain });
    }

    /// Gives an image a lease from now on, if its token does. Gives its time in milliseconds.
    fn lease(&mut self, open: &mut OpenImage, now: Moment) -> u64 {
        let OpenImage::Open { head, rights, token_until, lease_until } = open else { return 0 };
        if !rights.lease {
            return 0;
        }
        let until = now.at + self.limits.lease;
        let until = token_until.map_or(until, |token| token.min(until));
        *lease_until = Some(until);
        self.output.push(MemoryOutput::Leased { hash: head.hash(), until });
        // A lease that ends in this very moment is still one.
        (until - now.at).max(Duration::from_millis(1)).as_millis() as u64
    }

    fn renew(&mut self, image: u32, now: Moment) {
        let Some(mut open) = self.images.remove(&image) else { return };
        let lease_ms = self.lease(&mut open, now);
        self.images.insert(image, open);
        self.send(Lane::Control, &Message::Renewed { image, lease_ms });
    }

    fn ask(
        &mut self,
        image: u32,
        priority: Priority,
        groups: &[GroupRange],
        now: Moment,
    ) -> Result<(), ProtocolError> {
        self.check_named(groups)?;
        let count = match self.images.get(&image) {
            Some(OpenImage::Open { head, .. }) => head.group_count(),
            // It has ended in the meantime, which the peer does not know yet.
            None if u64::from(image) < self.next_number => return Ok(()),
            _ => return Err(ProtocolError::Unexpected("groups of an image that is not open")),
        };
        let lane = match priority {
            Priority::Urgent => Lane::Urgent,
            Priority::Planned => Lane::Planned,
            Priority::Background => Lane::Background,
        };
        for range in groups {
            let groups = range.groups().filter(|groups| groups.end <= count);
            let groups =
                groups.ok_or(ProtocolError::Unexpected("groups that are not in the image"))?;
            let limit = u64::from(self.limits.requests);
            if self.backlog.asked() as u64 + u64::from(range.count) > limit {
                let what = "groups that were asked for and not answered";
                return Err(ProtocolError::Exceeded { what, limit });
            }
            for group in groups {
                if self.backlog.has((image, group)) {
                    self.asks_again()?;
                }
                self.asked.insert((image, group), now.at);
                self.backlog.add((image, group), lane);
            }
        }
        Ok(())
    }

    /// Each group that is named takes time, and a range of any length takes the same few bytes.
    fn check_named(&self, groups: &[GroupRange]) -> Result<(), ProtocolError> {
        let limit = u64::from(self.limits.requests);
        match groups.iter().map(|range| u64::from(range.count)).sum::<u64>() > limit {
            true => Err(ProtocolError::Exceeded { what: "groups in one message", limit }),
            false => Ok(()),
        }
    }

    /// A group is asked for that has no answer yet. Peers do so of what was announced here, and lost by another node;
    /// without end it would be work for nothing.
    fn asks_again(&mut self) -> Result<(), ProtocolError> {
        self.asked_again += 1;
        match self.asked_again > self.limits.requests {
            true => {
                let limit = u64::from(self.limits.requests);
                let what = "groups again that have no answer yet";
                Err(ProtocolError::Exceeded { what, limit })
            }
            false => Ok(()),
        }
    }

    fn cancel(&mut self, image: u32, groups: &[GroupRange]) -> Result<(), ProtocolError> {
        self.check_named(groups)?;
        // It has ended in the meantime, which the peer does not know yet.
        if !matches!(self.images.get(&image), Some(OpenImage::Open { .. })) {
            return Ok(());
        }
        let mut dropped = Vec::new();
        for range in groups {
            let wrong = ProtocolError::Unexpected("groups taken back that can be in no image");
            dropped.extend(self.backlog.take_back(image, range.groups().ok_or(wrong)?));
        }
        for group in &dropped {
            self.asked.remove(&(image, *group));
        }
        for groups in dropped.chunks(RANGES_MAX) {
            let groups = ranges(groups.iter().copied());
            self.send(Lane::Control, &Message::Dropped { image, groups });
        }
        Ok(())
    }

    fn was_read(
        &mut self,
        image: u32,
        group: u64,
        found: Option<(Vec<u8>, GroupProof)>,
        now: Moment,
    ) {
        let asked = self.asked.remove(&(image, group));
        self.asked_again = self.asked_again.saturating_sub(1);
        let Some(lane) = self.backlog.read((image, group)) else { return };
        let message = match found {
            None => Message::GroupFailed { image, group },
            Some((bytes, proof)) => {
                let known = self.known_leaf(image, group, &bytes);
                let body = match known {
                    Some(hash) => GroupBody::Known(hash),
                    None => self.encoder.encode(&bytes),
                };
                let spent = asked.map_or(Duration::ZERO, |at| now.at.saturating_duration_since(at));
                let spent_us = u32::try_from(spent.as_micros()).unwrap_or(u32::MAX);
                // What is less than a microsecond is said later.
                let cpu_us = u32::try_from(self.cpu.as_micros()).unwrap_or(u32::MAX);
                self.cpu -= Duration::from_micros(cpu_us.into());
                Message::Group { image, group, body, proof: proof.neighbours, spent_us, cpu_us }
            }
        };
        self.send(lane, &message);
    }

    /// What stands for a group in its image's tree, if the peer has it.
    fn known_leaf(&self, image: u32, group: u64, bytes: &[u8]) -> Option<ContentHash> {
        // Who has nothing costs no hash.
        if self.known.is_empty() {
            return None;
        }
        let Some(OpenImage::Open { head, .. }) = self.images.get(&image) else { return None };
        head.leaf(group, bytes).ok().filter(|leaf| self.known.contains(leaf))
    }

    fn end(&mut self, image: u32, why: EndReason) {
        self.forget(image);
        self.send(Lane::Control, &Message::Ended { image, why });
    }

    /// Ends what was found, and the peer may not have.
    fn end_found(&mut self, image: u32, hash: ContentHash, why: EndReason) {
        self.end(image, why);
        self.release(hash);
    }

    fn forget(&mut self, image: u32) {
        // Of what is not open there is nothing, and to look for it would take time.
        if !self.images.contains_key(&image) {
            return;
        }
        self.backlog.cancel_image(image);
        self.asked.retain(|(of, _), _| *of != image);
        self.heads.retain(|head| head.image != image);
        if let Some(OpenImage::Open { head, .. }) = self.images.remove(&image) {
            self.release(head.hash());
        }
    }

    /// An image can be let go, unless the peer has it open by another number, too.
    fn release(&mut self, hash: ContentHash) {
        if !self.has_open(hash) {
            self.output.push(MemoryOutput::Released { hash });
        }
    }

    /// Reads and sends as much as may be on its way.
    fn pump(&mut self) {
        let on_its_way = |node: &Self| node.unsent + node.backlog.reading() * GROUP_SIZE as usize;
        while on_its_way(self) < self.limits.bytes_in_flight {
            if !self.backlog.is_urgent() && self.send_head() {
                continue;
            }
            let Some((image, group)) = self.backlog.next() else { return };
            match self.images.get(&image) {
                Some(OpenImage::Open { head, .. }) => {
                    let hash = head.hash();
                    self.output.push(MemoryOutput::Read { image, hash, group });
                }
                _ => {
                    self.asked.remove(&(image, group));
                    self.backlog.read((image, group));
                }
            }
        }
    }

    /// Sends the next part of a head, or what follows it. Gives whether there was one.
    fn send_head(&mut self) -> bool {
        let Some(next) = self.heads.front_mut() else { return false };
        let (manifest, signatures) = (next.head.manifest_bytes(), next.head.signature_bytes());
        let rest = match next.offset.checked_sub(manifest.len()) {
            None => &manifest[next.offset..],
            Some(offset) => &signatures[offset..],
        };
        if rest.is_empty() {
            let Some(HeadOnItsWay { image, certain, .. }) = self.heads.pop_front() else {
                return false;
            };
            certain.into_iter().for_each(|group| self.backlog.add((image, group), Lane::Control));
            return true;
        }
        let bytes = rest[..rest.len().min(HEAD_PART)].to_vec();
        next.offset += bytes.len();
        let part = Message::HeadPart { image: next.image, bytes };
        self.send(Lane::Control, &part);
        true
    }

    fn send(&mut self, lane: Lane, message: &Message) {
        let bytes = encode(message);
        self.unsent += bytes.len();
        self.output.push(MemoryOutput::Send { lane, bytes });
    }
}

impl OpenImage {
    /// When it is over, unless it is renewed.
    fn ends(&self) -> Option<Instant> {
        match self {
            Self::Resolving { .. } => None,
            Self::Open { token_until, lease_until, .. } => earlier(*token_until, *lease_until),
        }
    }
}

/// Bytes of a head that travel.
fn head_size(head: &ImageHead) -> usize {
    head.manifest_bytes().len() + head.signature_bytes().len()
}
