//! Both sides of the post-copy protocol, with a peer that may say anything.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pagefork_image::{
    ContentHash, ImageDraft, ImageHead, ImageLimits, ImageReader, Manifest, PageRuns, PublicKey,
    SavedInstance,
};
use pagefork_postcopy::{
    ConnectionId, EndReason, FetchLimits, FetchPlan, GroupBody, GroupRange, Hello, ImageKey, Lane,
    MemoryInput, MemoryNode, MemoryOutput, Message, Moment, PROTOCOL_VERSION, PeerAccess, Priority,
    RunningInput, RunningNode, RunningOutput, ServeLimits, ServedImage, encode,
};

const KEY: ImageKey = ImageKey(1);

/// Bytes that a memory node may have on their way.
const IN_FLIGHT: usize = 100_000;

/// Whatever a peer says, in whatever order: a running node gives out nothing but right groups, each
/// once, and a memory node keeps its limits. Neither panics, and a pair of them that is left alone
/// comes to the end.
pub fn postcopy(data: &[u8]) {
    let Some((choice, data)) = data.split_first() else { return };
    let mut pair = Pair::new();
    let is_hostile = choice % 4 != 0;
    for step in data.chunks_exact(4) {
        pair.step([step[0], step[1], step[2], step[3]], is_hostile);
    }
    if !is_hostile {
        pair.finish();
    }
}

fn image() -> &'static ImageReader {
    static IMAGE: OnceLock<ImageReader> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let bytes: Vec<u8> = (0..20 * 16384u32).map(|at| (at >> 14) as u8 % 7 * 31).collect();
        let extents = vec![0..bytes.len() as u64];
        let instance = SavedInstance { extents, ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, bytes)]]);
        let mut file = Cursor::new(Vec::new());
        ImageDraft::new(manifest, &pages).write(&mut file).expect("memory takes all");
        let limits = ImageLimits::default();
        ImageReader::open(Box::new(file.into_inner()), &limits).expect("it was just written")
    })
}

/// A running node, and a memory node at the other end of its only connection.
struct Pair {
    now: Moment,
    runner: RunningNode,
    node: MemoryNode,
    connection: u64,
    to_node: Vec<Vec<u8>>,
    to_runner: Vec<(Lane, Vec<u8>)>,
    given: BTreeSet<u64>,
    is_open: bool,
    is_whole: bool,
    /// Groups that the memory node is reading.
    reading: usize,
}

impl Pair {
    fn new() -> Self {
        let now = Moment { at: Instant::now(), unix_s: 1_800_000_000 };
        let mut pair = Self {
            now,
            runner: RunningNode::new(FetchLimits::default()),
            node: memory_node(now),
            connection: 0,
            to_node: Vec::new(),
            to_runner: Vec::new(),
            given: BTreeSet::new(),
            is_open: false,
            is_whole: false,
            reading: 0,
        };
        let (name, plan) = ("a".to_owned(), FetchPlan::default());
        pair.tell_runner(RunningInput::Open { image: KEY, name, hash: Some(image().hash()), plan });
        pair.connect();
        pair
    }

    /// A new connection in place of the one before.
    fn connect(&mut self) {
        self.tell_runner(RunningInput::Disconnected { connection: ConnectionId(self.connection) });
        self.connection += 1;
        self.node = memory_node(self.now);
        self.reading = 0;
        self.to_node.clear();
        self.to_runner.clear();
        let connection = ConnectionId(self.connection);
        self.tell_runner(RunningInput::Connected { connection });
        self.tell_runner(RunningInput::AddHolder { image: KEY, connection, token: Vec::new() });
    }

    fn tell_runner(&mut self, input: RunningInput<'_>) {
        let mut inputs = Vec::new();
        for output in self.runner.handle(input, self.now) {
            match output {
                RunningOutput::Send { bytes, .. } => self.to_node.push(bytes),
                RunningOutput::Group { group, bytes, .. } => {
                    assert!(self.given.insert(group), "group {group} is given once");
                    let right = image().read_group(group).expect("it is in the image");
                    assert!(right == bytes, "group {group} has other bytes");
                }
                RunningOutput::LookUp { group, .. } => {
                    let bytes = (group % 2 == 0).then(|| vec![31; 16384]);
                    inputs.push(RunningInput::LookedUp { image: KEY, group, bytes });
                }
                RunningOutput::Opened { .. } => {
                    self.is_open = true;
                    inputs.push(RunningInput::Here { image: KEY, groups: here() });
                }
                RunningOutput::Whole { .. } => self.is_whole = true,
                _ => {}
            }
        }
        inputs.into_iter().for_each(|input| self.tell_runner(input));
    }

    fn tell_node(&mut self, input: MemoryInput<'_>) {
        let mut inputs = Vec::new();
        for output in self.node.handle(input, self.now) {
            match output {
                MemoryOutput::Send { lane, bytes } => self.to_runner.push((lane, bytes)),
                MemoryOutput::Resolve { image: number, .. } => {
                    let head = Arc::new(ImageHead::read(image()).expect("it is in memory"));
                    let certain = vec![2..4];
                    let found = Some(ServedImage { head, certain });
                    inputs.push(MemoryInput::Resolved { image: number, found });
                }
                MemoryOutput::Read { image: number, group, .. } => {
                    self.reading += 1;
                    assert!(self.reading * 16384 <= IN_FLIGHT + 16384, "too much is read");
                    let found = image()
                        .read_group(group)
                        .and_then(|bytes| Ok((bytes, image().proof(group)?)));
                    let found = Some(found.expect("a node asks for what the image has"));
                    inputs.push(MemoryInput::Read {
                        image: number,
                        group,
                        found,
                        cpu: Duration::ZERO,
                    });
                }
                _ => {}
            }
        }
        for input in inputs {
            if matches!(input, MemoryInput::Read { .. }) {
                self.reading -= 1;
            }
            self.tell_node(input);
        }
        assert!(self.node.unsent() <= 2 * IN_FLIGHT + 70_000, "too much waits to be sent");
    }

    fn deliver(&mut self, [place, change, value]: [u8; 3]) {
        let altered = |mut bytes: Vec<u8>| {
            if change > 0 && !bytes.is_empty() {
                let at = usize::from(change) * 37 % bytes.len();
                bytes[at] = value;
            }
            bytes
        };
        if place % 2 == 0 && !self.to_node.is_empty() {
            let bytes = altered(self.to_node.remove(0));
            self.tell_node(MemoryInput::Received(&bytes));
        } else if !self.to_runner.is_empty() {
            // The first message of any stream.
            let index = usize::from(place / 2) % self.to_runner.len();
            let lane = self.to_runner[index].0;
            let first = self.to_runner.iter().position(|(other, _)| *other == lane);
            let (lane, bytes) = self.to_runner.remove(first.unwrap_or(index));
            self.tell_node(MemoryInput::Taken(bytes.len()));
            let (connection, bytes) = (ConnectionId(self.connection), altered(bytes));
            self.tell_runner(RunningInput::Received { connection, lane, bytes: &bytes });
        }
    }

    fn step(&mut self, [kind, a, b, c]: [u8; 4], is_hostile: bool) {
        let group = u64::from(a % 24);
        match kind % 16 {
            0..=5 => self.deliver([a, if is_hostile && b > 200 { b } else { 0 }, c]),
            6 => {
                let deadline = self.now.at + Duration::from_millis(b.into());
                self.tell_runner(RunningInput::Need { image: KEY, group, deadline });
            }
            7 => {
                self.now = self.now.after(Duration::from_millis(u64::from(a) * u64::from(b)));
                self.tell_runner(RunningInput::Tick);
                self.tell_node(MemoryInput::Tick);
            }
            8 if c % 4 == 0 => self.connect(),
            9 => {
                self.tell_runner(RunningInput::Touched { image: KEY, groups: group..u64::from(b) })
            }
            10 if is_hostile => {
                let bytes = encode(&message([a, b, c]));
                self.tell_node(MemoryInput::Received(&bytes));
            }
            11 if is_hostile => {
                let (connection, bytes) =
                    (ConnectionId(self.connection), encode(&message([a, b, c])));
                let lane = Lane::ALL[usize::from(b % 4)];
                self.tell_runner(RunningInput::Received { connection, lane, bytes: &bytes });
            }
            12 if is_hostile && self.is_open && c % 8 == 0 => {
                self.given.extend(group..group + u64::from(b % 4));
                let groups = group..group + u64::from(b % 4);
                self.tell_runner(RunningInput::Given { image: KEY, groups });
            }
            13 => self.tell_runner(RunningInput::MemoryPressure),
            _ => {}
        }
    }

    /// What is left alone ends with the whole image.
    fn finish(&mut self) {
        for round in 0.. {
            if self.is_whole {
                break;
            }
            if self.to_node.is_empty() && self.to_runner.is_empty() {
                self.connect();
            }
            self.deliver([round as u8, 0, 0]);
            assert!(round < 5000, "only {:?} has come", self.given);
        }
        assert_eq!(self.given.len() as u64, image().group_count());
    }
}

/// What the running node says it has, of which it has some.
fn here() -> Vec<(u64, ContentHash)> {
    let leaves = image().leaves(5..19).expect("it is in memory");
    (5..).zip(leaves).collect()
}

fn memory_node(now: Moment) -> MemoryNode {
    let limits = ServeLimits { requests: 8, bytes_in_flight: IN_FLIGHT, ..ServeLimits::default() };
    MemoryNode::new(PublicKey::from_bytes([1; 32]), PeerAccess::All, limits, now)
}

/// Some message, of either side.
fn message([kind, a, b]: [u8; 3]) -> Message {
    let (image_number, group) = (u32::from(a % 3), u64::from(b % 24));
    let groups = vec![GroupRange { first: group, count: u32::from(a % 5) }];
    match kind % 14 {
        0 => Message::Hello(Hello { version: PROTOCOL_VERSION, zstd: a > 9, certain_groups: 4 }),
        1 => Message::Open { image: image_number, name: "a".into(), token: vec![a], head: None },
        2 => Message::Close { image: image_number },
        3 => Message::Ask { image: image_number, priority: Priority::Planned, groups },
        4 => Message::Raise { image: image_number, group },
        5 => Message::Cancel { image: image_number, groups },
        6 => Message::Have { hashes: vec![here()[usize::from(a % 14)].1] },
        7 => Message::Renew { image: image_number },
        8 => Message::Opened {
            image: image_number,
            hash: image().hash(),
            manifest_size: a.into(),
            signatures_size: 0,
            lease_ms: b.into(),
            certain: groups,
        },
        9 => Message::HeadPart { image: image_number, bytes: vec![b; a.into()] },
        10 => Message::Ended { image: image_number, why: EndReason::Expired },
        11 => Message::Dropped { image: image_number, groups },
        12 => Message::GroupFailed { image: image_number, group },
        _ => {
            // The right bytes of one group for another one, too.
            let other = u64::from(a) % image().group_count();
            let (bytes, proof) = (image().read_group(other), image().proof(other));
            let body = GroupBody::Plain(bytes.expect("it is in the image"));
            let proof = proof.expect("it is in the image").neighbours;
            Message::Group { image: image_number, group, body, proof, spent_us: 0, cpu_us: 0 }
        }
    }
}
