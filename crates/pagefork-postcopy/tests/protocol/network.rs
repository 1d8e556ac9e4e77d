//! A network in memory, with memory nodes at its other end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, GROUP_SIZE, ImageDraft, ImageHead, ImageLimits, ImageReader, Manifest, PageRuns,
    PublicKey, SavedInstance,
};
use pagefork_postcopy::{
    ConnectionId, FetchLimits, FetchPlan, ImageKey, Lane, MemoryInput, MemoryNode, MemoryOutput,
    Moment, PeerAccess, RunningInput, RunningNode, RunningOutput, ServeLimits, ServedImage,
};

/// The same numbers in every run.
#[derive(Clone)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// An image of so many groups: some of zeros, some that compress, some that do not, some alike.
pub(crate) fn image(groups: u64, seed: u64) -> ImageReader {
    let mut numbers = Numbers(seed);
    let mut bytes = Vec::new();
    for group in 0..groups {
        let kind = if group == 0 || group + 1 == groups { 1 } else { numbers.below(4) };
        for at in 0..GROUP_SIZE {
            bytes.push(match kind {
                0 => 0,
                1 => (at / 64 + group) as u8 | 1,
                2 => numbers.below(256) as u8,
                _ => (at % 251) as u8,
            });
        }
    }
    let size = bytes.len() as u64;
    let extents = std::iter::once(0..size).collect();
    let instance = SavedInstance { extents, ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![vec![(0, bytes)]]);
    let mut file = Cursor::new(Vec::new());
    ImageDraft::new(manifest, &pages).write(&mut file).unwrap();
    let image = ImageReader::open(Box::new(file.into_inner()), &ImageLimits::default()).unwrap();
    assert_eq!(image.group_count(), groups);
    image
}

pub(crate) fn start() -> Moment {
    Moment { at: Instant::now(), unix_s: 1_800_000_000 }
}

pub(crate) const PEER: [u8; 32] = [1; 32];

/// What the network does.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Bytes take up to this long, one way.
    pub(crate) delay: Duration,
    /// One of so many deliveries cuts its connection; none if zero.
    pub(crate) cut: u64,
    /// Deliveries are cut in pieces.
    pub(crate) pieces: bool,
}

impl Faults {
    pub(crate) fn none() -> Self {
        Self { delay: Duration::ZERO, cut: 0, pieces: false }
    }
}

/// Bytes on their way, and when they arrive.
type Way = VecDeque<(Instant, Vec<u8>)>;

/// A connection with a memory node at its end.
pub(crate) struct Wire {
    pub(crate) node: MemoryNode,
    up: Way,
    down: BTreeMap<Lane, Way>,
}

/// A running node, and the memory nodes that it is connected to.
pub(crate) struct Network {
    pub(crate) now: Moment,
    pub(crate) runner: RunningNode,
    pub(crate) wires: BTreeMap<ConnectionId, Wire>,
    pub(crate) image: Arc<ImageReader>,
    pub(crate) certain: Vec<Range<u64>>,
    pub(crate) access: PeerAccess,
    pub(crate) serve: ServeLimits,
    pub(crate) faults: Faults,
    pub(crate) numbers: Numbers,
    pub(crate) next_connection: u64,
    /// What the running node has said, but bytes.
    pub(crate) seen: Vec<RunningOutput>,
    /// Groups that were given out, each once and with right bytes.
    pub(crate) groups: BTreeSet<u64>,
    /// In which order they were.
    pub(crate) order: Vec<u64>,
    pub(crate) leases: BTreeMap<ContentHash, Instant>,
    pub(crate) bytes_down: usize,
    /// What the groups that came have taken memory nodes of processors.
    pub(crate) cpu: Duration,
    /// The most groups that a memory node was reading or sending at once, in bytes.
    pub(crate) in_flight_max: usize,
    /// What a memory node that left has said.
    pub(crate) left: Vec<String>,
    /// What the running node says it has, and has, for groups: it is told so when their image is open.
    pub(crate) cache: BTreeMap<(u64, ContentHash), Vec<u8>>,
}

/// What each group takes a memory node of a processor: no whole microseconds.
pub(crate) const CPU_OF_READ: Duration = Duration::from_nanos(1500);

pub(crate) const KEY: ImageKey = ImageKey(7);

impl Network {
    pub(crate) fn new(image: ImageReader, seed: u64, faults: Faults) -> Self {
        Self {
            now: start(),
            runner: RunningNode::new(FetchLimits::default()),
            wires: BTreeMap::new(),
            image: Arc::new(image),
            certain: Vec::new(),
            access: PeerAccess::All,
            serve: ServeLimits::default(),
            faults,
            numbers: Numbers(seed),
            next_connection: 0,
            seen: Vec::new(),
            groups: BTreeSet::new(),
            order: Vec::new(),
            leases: BTreeMap::new(),
            bytes_down: 0,
            cpu: Duration::ZERO,
            in_flight_max: 0,
            left: Vec::new(),
            cache: BTreeMap::new(),
        }
    }

    pub(crate) fn open(&mut self, plan: FetchPlan) {
        let (name, hash) = ("counter".to_owned(), None);
        self.tell(RunningInput::Open { image: KEY, name, hash, plan });
    }

    /// Connects to another memory node that has the image.
    pub(crate) fn connect(&mut self, token: Vec<u8>) -> ConnectionId {
        let connection = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let peer = PublicKey::from_bytes(PEER);
        let node = MemoryNode::new(peer, self.access.clone(), self.serve.clone(), self.now);
        let down = Lane::ALL.map(|lane| (lane, Way::new())).into();
        self.wires.insert(connection, Wire { node, up: Way::new(), down });
        self.tell(RunningInput::Connected { connection });
        self.tell(RunningInput::AddHolder { image: KEY, connection, token });
        connection
    }

    pub(crate) fn cut(&mut self, connection: ConnectionId) {
        if self.wires.remove(&connection).is_some() {
            self.tell(RunningInput::Disconnected { connection });
        }
    }

    fn arrival(&mut self, way_end: Option<Instant>) -> Instant {
        let delay = self.faults.delay.as_micros() as u64;
        let at = self.now.at + Duration::from_micros(self.numbers.below(delay + 1));
        // A stream keeps its order.
        way_end.map_or(at, |end| end.max(at))
    }

    /// Tells the running node something, and does what it says.
    pub(crate) fn tell(&mut self, input: RunningInput<'_>) {
        for output in self.runner.handle(input, self.now) {
            match output {
                RunningOutput::Send { connection, bytes } => {
                    let end = self.wires.get(&connection).and_then(|wire| wire.up.back());
                    let at = self.arrival(end.map(|(at, _)| *at));
                    if let Some(wire) = self.wires.get_mut(&connection) {
                        wire.up.push_back((at, bytes));
                    }
                }
                RunningOutput::Group { group, bytes, cpu, .. } => {
                    self.cpu += cpu;
                    assert!(self.groups.insert(group), "group {group} was given twice");
                    self.order.push(group);
                    assert!(bytes == self.image.read_group(group).unwrap(), "group {group}");
                }
                RunningOutput::LookUp { group, hash, .. } => {
                    let bytes = self.cache.get(&(group, hash)).cloned();
                    self.seen.push(RunningOutput::LookUp { image: KEY, group, hash });
                    self.tell(RunningInput::LookedUp { image: KEY, group, bytes });
                }
                RunningOutput::Close { connection, why } => {
                    self.wires.remove(&connection);
                    self.seen.push(RunningOutput::Close { connection, why });
                }
                RunningOutput::Opened { image, head } => {
                    self.seen.push(RunningOutput::Opened { image, head });
                    let groups = self.cache.keys().copied().collect();
                    self.tell(RunningInput::Here { image, groups });
                }
                other => self.seen.push(other),
            }
        }
    }

    /// Tells a memory node something, and does what it says.
    fn tell_node(&mut self, connection: ConnectionId, input: MemoryInput<'_>) {
        let Some(wire) = self.wires.get_mut(&connection) else { return };
        let mut outputs: VecDeque<_> = wire.node.handle(input, self.now).into();
        while let Some(output) = outputs.pop_front() {
            let answer = match output {
                MemoryOutput::Send { lane, bytes } => {
                    self.bytes_down += bytes.len();
                    let end = self.wires[&connection].down[&lane].back().map(|(at, _)| *at);
                    let at = self.arrival(end);
                    let wire = self.wires.get_mut(&connection).unwrap();
                    self.in_flight_max = self.in_flight_max.max(wire.node.unsent());
                    wire.down.get_mut(&lane).unwrap().push_back((at, bytes));
                    continue;
                }
                MemoryOutput::Resolve { image, name } => {
                    let head = Arc::new(ImageHead::read(&self.image).unwrap());
                    let found = Some(ServedImage { head, certain: self.certain.clone() });
                    MemoryInput::Resolved { image, found: found.filter(|_| name == "counter") }
                }
                MemoryOutput::Read { image, group, hash } => {
                    assert_eq!(hash, self.image.hash());
                    let bytes = self.image.read_group(group).unwrap();
                    let found = Some((bytes, self.image.proof(group).unwrap()));
                    MemoryInput::Read { image, group, found, cpu: CPU_OF_READ }
                }
                MemoryOutput::Leased { hash, until } => {
                    self.leases.insert(hash, until);
                    continue;
                }
                MemoryOutput::Released { hash } => {
                    self.leases.remove(&hash);
                    continue;
                }
                MemoryOutput::Close(why) => {
                    self.left.push(why.to_string());
                    continue;
                }
                MemoryOutput::Shown { .. } => continue,
            };
            let node = &mut self.wires.get_mut(&connection).unwrap().node;
            outputs.extend(node.handle(answer, self.now));
        }
    }

    /// When something arrives or is due.
    fn next(&self) -> Option<Instant> {
        let ways = self.wires.values().flat_map(|wire| wire.down.values().chain([&wire.up]));
        let arrivals = ways.filter_map(|way| way.front()).map(|(at, _)| *at);
        let nodes = self.wires.values().filter_map(|wire| wire.node.deadline());
        arrivals.chain(nodes).chain(self.runner.deadline()).min()
    }

    /// Lets things happen until `done` or the time is over. Gives whether it was done.
    pub(crate) fn run(&mut self, time: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now.at + time;
        while !done(self) {
            let Some(next) = self.next().filter(|next| *next <= end) else {
                self.now = self.now.after(end - self.now.at);
                return false;
            };
            let elapsed = next.saturating_duration_since(self.now.at);
            self.now.unix_s += elapsed.as_secs();
            self.now.at += elapsed;
            self.deliver();
            self.tell(RunningInput::Tick);
            let connections: Vec<_> = self.wires.keys().copied().collect();
            for connection in connections {
                self.tell_node(connection, MemoryInput::Tick);
            }
        }
        true
    }

    /// Delivers what has arrived.
    fn deliver(&mut self) {
        let connections: Vec<_> = self.wires.keys().copied().collect();
        for connection in connections {
            while let Some(bytes) = self.take(connection, |wire| &mut wire.up) {
                for piece in self.pieces(&bytes) {
                    self.tell_node(connection, MemoryInput::Received(piece));
                }
                if self.is_cut() {
                    self.cut(connection);
                }
            }
            // The lanes go on beside each other: none is emptied while another one waits.
            while Lane::ALL.map(|lane| self.deliver_next(connection, lane)).contains(&true) {}
        }
    }

    /// Delivers what has arrived first on a lane, if anything has.
    fn deliver_next(&mut self, connection: ConnectionId, lane: Lane) -> bool {
        let Some(bytes) = self.take(connection, |wire| wire.down.get_mut(&lane).unwrap()) else {
            return false;
        };
        self.tell_node(connection, MemoryInput::Taken(bytes.len()));
        for piece in self.pieces(&bytes) {
            self.tell(RunningInput::Received { connection, lane, bytes: piece });
        }
        if self.is_cut() {
            self.cut(connection);
        }
        true
    }

    fn take(
        &mut self,
        connection: ConnectionId,
        way: impl Fn(&mut Wire) -> &mut Way,
    ) -> Option<Vec<u8>> {
        let way = way(self.wires.get_mut(&connection)?);
        let has_come = way.front().is_some_and(|(at, _)| *at <= self.now.at);
        if has_come { way.pop_front().map(|(_, bytes)| bytes) } else { None }
    }

    fn pieces<'a>(&mut self, bytes: &'a [u8]) -> Vec<&'a [u8]> {
        if !self.faults.pieces {
            return vec![bytes];
        }
        let (first, second) = bytes.split_at(self.numbers.below(bytes.len() as u64 + 1) as usize);
        vec![first, second]
    }

    fn is_cut(&mut self) -> bool {
        self.faults.cut > 0 && self.numbers.below(self.faults.cut) == 0
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.seen.iter().any(|seen| matches!(seen, RunningOutput::Whole { .. }))
    }
}
