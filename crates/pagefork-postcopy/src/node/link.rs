//! What a running node knows of one of its connections.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use pagefork_image::{ContentHash, GroupProof};

use crate::base::moment::earlier;
use crate::node::memory::RANGES_MAX;
use crate::node::running::ImageKey;
use crate::wire::frame::{FrameDecoder, Lane};
use crate::wire::message::Welcome;

/// Hashes that go in one message.
const HASHES_MAX: usize = 512;

/// So many hashes that a peer need not have in mind go together.
const UNNEEDED_MAX: usize = 256;

/// A peer that says that it waits for less is told that this node is there as if it waited for this.
const IDLE_MIN: Duration = Duration::from_millis(100);

/// A connection to a memory node.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) decoders: BTreeMap<Lane, FrameDecoder>,
    pub(crate) welcome: Option<Welcome>,
    /// The images that are open, or being opened, by their numbers here.
    pub(crate) images: BTreeMap<u32, ImageKey>,
    pub(crate) next_number: u32,
    /// Groups that were asked for and not answered.
    pub(crate) asked: BTreeMap<(u32, u64), AskedGroup>,
    /// Images that are not open yet, or whose head is not here.
    pub(crate) opening: u32,
    /// What the peer was ever told that this node has.
    pub(crate) told: HashSet<ContentHash>,
    /// Of these, what was not here after all: it is not said again, of whichever image.
    lost: HashSet<ContentHash>,
    /// Of those that were told, what the peer has in mind.
    minded: HashSet<ContentHash>,
    /// Of these, what it need not have in mind any more, and is to be told so.
    unneeded: Vec<ContentHash>,
    /// Since when it owes something without having answered anything.
    pub(crate) owes_since: Option<Instant>,
    /// When something was sent last.
    pub(crate) spoke: Instant,
    /// When it was connected, and how long the peer's greeting has taken since: a round trip.
    connected: Instant,
    pub(crate) round_trip: Duration,
}

/// A group that was asked for.
#[derive(Debug)]
pub(crate) struct AskedGroup {
    /// When; `None` if the peer has announced it.
    pub(crate) at: Option<Instant>,
    /// How long the peer has had it, as it says.
    pub(crate) spent: Duration,
    /// What the peer has taken of a processor since its group before, as it says.
    pub(crate) cpu: Duration,
    /// Since when a guest waits for it.
    pub(crate) urgent_since: Option<Instant>,
    /// The hash of bytes that this node has itself, and their proof.
    pub(crate) look_up: Option<(ContentHash, GroupProof)>,
    /// Whether those bytes were not here after all, so that the peer has to send them.
    pub(crate) is_lacking: bool,
}

impl AskedGroup {
    /// Of a group that the peer sends unasked.
    pub(crate) fn announced() -> Self {
        let (spent, cpu) = <_>::default();
        Self { at: None, spent, cpu, urgent_since: None, look_up: None, is_lacking: false }
    }

    pub(crate) fn new(is_urgent: bool, now: Instant) -> Self {
        Self { at: Some(now), urgent_since: is_urgent.then_some(now), ..Self::announced() }
    }
}

impl Link {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            decoders: Lane::ALL.map(|lane| (lane, FrameDecoder::default())).into(),
            welcome: None,
            images: BTreeMap::new(),
            next_number: 0,
            asked: BTreeMap::new(),
            opening: 0,
            told: HashSet::new(),
            lost: HashSet::new(),
            minded: HashSet::new(),
            unneeded: Vec::new(),
            owes_since: Some(now),
            spoke: now,
            connected: now,
            round_trip: Duration::ZERO,
        }
    }

    /// Of hashes of contents that are here, those that the peer is to be told: it does not have them in
    /// mind, and has room for them.
    pub(crate) fn have(&mut self, here: impl Iterator<Item = ContentHash>) -> Vec<ContentHash> {
        let limit = self.welcome.as_ref().map_or(0, |welcome| welcome.known_groups) as usize;
        let mut hashes = Vec::new();
        for hash in here {
            let has_room = self.minded.len() < limit && hashes.len() < HASHES_MAX;
            if has_room && !self.lost.contains(&hash) && self.minded.insert(hash) {
                self.told.insert(hash);
                hashes.push(hash);
            }
        }
        hashes
    }

    /// The peer need not have these in mind any more. Gives what it is to be told of that, once that is
    /// enough for a message.
    pub(crate) fn need_not(&mut self, hashes: &[ContentHash]) -> Vec<ContentHash> {
        self.unneeded.extend(hashes.iter().filter(|hash| self.minded.contains(hash)));
        // Where few fit, they make room sooner.
        if self.unneeded.len() < UNNEEDED_MAX.min(self.minded.len() / 2) {
            return Vec::new();
        }
        self.taken_back(None)
    }

    /// What was said to be here is not. Gives all that the peer is to have in mind no longer.
    pub(crate) fn lacks(&mut self, hash: ContentHash) -> Vec<ContentHash> {
        self.lost.insert(hash);
        self.taken_back(Some(hash))
    }

    fn taken_back(&mut self, lost: Option<ContentHash>) -> Vec<ContentHash> {
        let mut hashes: Vec<ContentHash> =
            lost.into_iter().chain(self.unneeded.drain(..)).collect();
        hashes.retain(|hash| self.minded.remove(hash));
        hashes
    }

    /// Groups that may be asked for and not answered, `limit` at most.
    pub(crate) fn requests_max(&self, limit: u32) -> usize {
        let welcome = self.welcome.as_ref();
        welcome.map_or(0, |welcome| welcome.requests.min(limit)) as usize
    }

    /// Groups that one message may name: of a peer that allows few to be asked for, those that it sends unasked can
    /// be more.
    pub(crate) fn named_max(&self) -> usize {
        self.requests_max(RANGES_MAX as u32).max(1)
    }

    /// Whether another image may be opened.
    pub(crate) fn may_open(&self) -> bool {
        let images = self.welcome.as_ref().map_or(1, |welcome| welcome.images.max(1));
        self.images.len() < images as usize && self.next_number < u32::MAX
    }

    fn owes(&self) -> bool {
        let waits = |asked: &AskedGroup| asked.look_up.is_none();
        self.welcome.is_none() || self.opening > 0 || self.asked.values().any(waits)
    }

    /// The peer has greeted.
    pub(crate) fn greeted(&mut self, welcome: Welcome, now: Instant) {
        self.round_trip = now.saturating_duration_since(self.connected);
        self.welcome = Some(welcome);
        self.answered();
    }

    /// The peer has answered something.
    pub(crate) fn answered(&mut self) {
        self.owes_since = None;
    }

    /// To be called when all of an input was handled.
    pub(crate) fn note_debt(&mut self, now: Instant) {
        self.owes_since = match self.owes() {
            true => self.owes_since.or(Some(now)),
            false => None,
        };
    }

    /// When the peer has owed an answer for too long.
    pub(crate) fn stalls_at(&self, timeout: Duration) -> Option<Instant> {
        let waits = self.asked.values().filter(|asked| asked.look_up.is_none());
        let urgent = waits.filter_map(|asked| asked.urgent_since).min();
        earlier(self.owes_since, urgent).map(|since| since + timeout)
    }

    /// When the peer is to be told that this node is there: not as often as any peer may like.
    pub(crate) fn speaks_at(&self) -> Option<Instant> {
        let idle = Duration::from_millis(self.welcome.as_ref()?.idle_ms).max(IDLE_MIN);
        self.spoke.checked_add(idle / 3)
    }
}
