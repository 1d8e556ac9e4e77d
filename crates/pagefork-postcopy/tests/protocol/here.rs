//! Groups that peers say are here: what becomes of them when they are not, or the peer is gone.

use std::time::Duration;

use pagefork_image::{ContentHash, GroupProof, ImageHead, ImageReader};
use pagefork_postcopy::{
    ConnectionId, FetchLimits, FetchPlan, GroupBody, GroupRange, ImageKey, Lane, Message, Moment,
    PROTOCOL_VERSION, PlanLayer, Priority, RunningInput, RunningNode, RunningOutput, Welcome,
    encode,
};

use crate::network::{KEY, image, start};

const PEER: ConnectionId = ConnectionId(1);

/// Another one that has the image.
const NEXT: ConnectionId = ConnectionId(2);

/// Another image, of the same bytes.
const OTHER: ImageKey = ImageKey(8);

const GROUP: u64 = 5;

/// A running node, a peer that has two images of the same bytes, and what the node has said.
struct Told {
    node: RunningNode,
    now: Moment,
    image: ImageReader,
    seen: Vec<RunningOutput>,
}

impl Told {
    fn new() -> Self {
        let node = RunningNode::new(FetchLimits::default());
        let mut told = Self { node, now: start(), image: image(100, 1), seen: Vec::new() };
        told.tell(RunningInput::Connected { connection: PEER });
        let (version, requests, images) = (PROTOCOL_VERSION, 8, 2);
        let (known_groups, idle_ms) = (8, 60_000);
        let welcome = Welcome { version, requests, images, known_groups, idle_ms };
        told.hear(Lane::Control, &Message::Welcome(welcome));
        told
    }

    /// Opens an image, by the next number, of which a group is here.
    fn open(&mut self, key: ImageKey, number: u32) {
        let plan =
            FetchPlan { held: true, stride: false, background: false, ..FetchPlan::default() };
        self.tell(RunningInput::Open { image: key, name: "counter".into(), hash: None, plan });
        self.tell(RunningInput::AddHolder { image: key, connection: PEER, token: Vec::new() });
        let head = ImageHead::read(&self.image).unwrap();
        let opened = Message::Opened {
            image: number,
            hash: head.hash(),
            manifest_size: head.manifest_bytes().len() as u64,
            signatures_size: head.signature_bytes().len() as u64,
            lease_ms: 0,
            certain: Vec::new(),
        };
        self.hear(Lane::Control, &opened);
        let bytes = [head.manifest_bytes(), head.signature_bytes()].concat();
        self.hear(Lane::Control, &Message::HeadPart { image: number, bytes });
        let groups = vec![(GROUP, self.leaf())];
        self.tell(RunningInput::Here { image: key, groups });
    }

    /// The group is asked for before anybody waits for it.
    fn plan(&mut self, key: ImageKey) {
        let recorded = std::iter::once(GROUP..GROUP + 1).collect();
        self.tell(RunningInput::Begin { image: key, recorded, looks_here: false });
    }

    fn need(&mut self, key: ImageKey) {
        let deadline = self.now.at + Duration::from_secs(1000);
        self.tell(RunningInput::Need { image: key, group: GROUP, deadline });
    }

    /// The peer says that what it was told is here is in the group.
    fn is_known(&mut self, number: u32) {
        let body = GroupBody::Known(self.leaf());
        let GroupProof { neighbours: proof } = self.image.proof(GROUP).unwrap();
        let known =
            Message::Group { image: number, group: GROUP, body, proof, spent_us: 0, cpu_us: 0 };
        self.hear(Lane::Planned, &known);
    }

    fn look_up(&mut self, key: ImageKey, bytes: Option<Vec<u8>>) {
        self.tell(RunningInput::LookedUp { image: key, group: GROUP, bytes });
    }

    fn leaf(&self) -> ContentHash {
        self.image.leaves(GROUP..GROUP + 1).unwrap()[0]
    }

    fn bytes(&self) -> Vec<u8> {
        self.image.read_group(GROUP).unwrap()
    }

    fn tell(&mut self, input: RunningInput<'_>) {
        self.seen.extend(self.node.handle(input, self.now));
    }

    fn hear(&mut self, lane: Lane, message: &Message) {
        self.hear_of(PEER, lane, message);
    }

    fn hear_of(&mut self, connection: ConnectionId, lane: Lane, message: &Message) {
        let bytes = encode(message);
        self.tell(RunningInput::Received { connection, lane, bytes: &bytes });
    }

    /// Another peer has the first image, whose head is here, and sends these groups of it unasked.
    fn next_holder(&mut self, connection: ConnectionId, certain: Vec<GroupRange>) {
        self.tell(RunningInput::Connected { connection });
        self.tell(RunningInput::AddHolder { image: KEY, connection, token: Vec::new() });
        let (version, requests, images) = (PROTOCOL_VERSION, 8, 2);
        let (known_groups, idle_ms) = (8, 60_000);
        let welcome = Welcome { version, requests, images, known_groups, idle_ms };
        let hash = self.image.hash();
        let (manifest_size, signatures_size) = (0, 0);
        let opened = Message::Opened {
            image: 0,
            hash,
            manifest_size,
            signatures_size,
            lease_ms: 0,
            certain,
        };
        for message in [Message::Welcome(welcome), opened] {
            self.hear_of(connection, Lane::Control, &message);
        }
    }

    /// How often it has sent this.
    fn sent(&self, message: &Message) -> usize {
        let sent = |seen: &&RunningOutput| matches!(seen, RunningOutput::Send { bytes, .. } if *bytes == encode(message));
        self.seen.iter().filter(sent).count()
    }

    fn has(&self, seen: impl Fn(&RunningOutput) -> bool) -> bool {
        self.seen.iter().any(seen)
    }

    /// Whether the right bytes were given out.
    fn is_here(&self, key: ImageKey) -> bool {
        let right = self.bytes();
        self.has(|seen| match seen {
            RunningOutput::Group { image, group: GROUP, bytes, .. } => {
                *image == key && *bytes == right
            }
            _ => false,
        })
    }
}

fn ask(image: u32, priority: Priority) -> Message {
    Message::Ask { image, priority, groups: vec![GroupRange { first: GROUP, count: 1 }] }
}

fn is_close(seen: &RunningOutput) -> bool {
    matches!(seen, RunningOutput::Close { .. })
}

#[test]
fn a_group_that_was_not_here_after_all_is_asked_for_as_one_that_is_waited_for_if_it_is() {
    for waits in [false, true] {
        let mut told = Told::new();
        told.open(KEY, 0);
        told.plan(KEY);
        told.is_known(0);
        assert!(told.has(|seen| matches!(seen, RunningOutput::LookUp { .. })));
        if waits {
            told.need(KEY);
        }
        told.now = told.now.after(Duration::from_secs(15));
        told.look_up(KEY, None);
        assert_eq!(told.sent(&ask(0, Priority::Urgent)), usize::from(waits));
        // It was asked for once before.
        assert_eq!(told.sent(&ask(0, Priority::Planned)), 2 - usize::from(waits));
        assert_eq!(told.sent(&Message::Raise { image: 0, group: GROUP }), 0);
        // The peer is not to blame for the time that it was looked for here.
        told.now = told.now.after(Duration::from_secs(15));
        told.tell(RunningInput::Tick);
        assert!(!told.has(is_close));
    }
}

#[test]
fn what_was_not_here_after_all_is_not_said_to_be_here_again_for_another_image() {
    let mut told = Told::new();
    told.open(KEY, 0);
    told.need(KEY);
    let have = Message::Have { hashes: vec![told.leaf()] };
    assert_eq!(told.sent(&have), 1);
    told.is_known(0);
    told.look_up(KEY, None);
    assert_eq!(told.sent(&Message::Lack { hashes: vec![told.leaf()] }), 1);
    told.open(OTHER, 1);
    told.need(OTHER);
    assert_eq!(told.sent(&ask(1, Priority::Urgent)), 1);
    // Else the answer for the first image could be by this hash again, which is what a liar says.
    assert_eq!(told.sent(&have), 1);
}

#[test]
fn what_a_peer_has_said_is_here_is_here_though_the_peer_is_gone() {
    for farewell in [false, true] {
        let mut told = Told::new();
        told.open(KEY, 0);
        told.need(KEY);
        told.is_known(0);
        match farewell {
            true => told.hear(Lane::Control, &Message::Farewell { text: "it leaves".into() }),
            false => told.tell(RunningInput::Disconnected { connection: PEER }),
        }
        assert!(!told.is_here(KEY));
        let bytes = told.bytes();
        told.look_up(KEY, Some(bytes));
        assert!(told.is_here(KEY));
        assert_eq!(told.node.report(KEY).map(|report| report.here), Some(1));
    }
}

#[test]
fn what_is_not_here_though_a_peer_has_said_so_that_is_gone_is_asked_of_the_next_one() {
    for bytes in [None, Some(vec![9; 16384])] {
        let mut told = Told::new();
        told.open(KEY, 0);
        told.need(KEY);
        told.is_known(0);
        told.tell(RunningInput::Disconnected { connection: PEER });
        told.look_up(KEY, bytes);
        assert!(!told.is_here(KEY) && !told.has(is_close));
        told.next_holder(NEXT, Vec::new());
        assert_eq!(told.sent(&ask(0, Priority::Urgent)), 2);
        let report = told.node.report(KEY).unwrap();
        assert_eq!((report.here, report.counts(PlanLayer::Fault).asked), (0, 2));
    }
}

#[test]
fn what_the_next_holder_sends_unasked_is_not_asked_of_it_though_it_is_not_here() {
    let mut told = Told::new();
    told.open(KEY, 0);
    told.need(KEY);
    told.is_known(0);
    told.tell(RunningInput::Disconnected { connection: PEER });
    told.next_holder(NEXT, vec![GroupRange { first: GROUP, count: 1 }]);
    told.look_up(KEY, None);
    assert_eq!(told.sent(&ask(0, Priority::Urgent)), 1, "the first holder was asked");
    // It comes once, and the second answer to two questions would be a lie.
    let body = GroupBody::Plain(told.bytes());
    let GroupProof { neighbours: proof } = told.image.proof(GROUP).unwrap();
    let group = Message::Group { image: 0, group: GROUP, body, proof, spent_us: 0, cpu_us: 0 };
    told.hear_of(NEXT, Lane::Control, &group);
    assert!(told.is_here(KEY) && !told.has(is_close));
    // It is gone before it has sent what it has announced: then others are asked.
    let mut told = Told::new();
    told.open(KEY, 0);
    told.need(KEY);
    told.is_known(0);
    told.tell(RunningInput::Disconnected { connection: PEER });
    told.next_holder(NEXT, vec![GroupRange { first: GROUP, count: 1 }]);
    told.look_up(KEY, None);
    told.tell(RunningInput::Disconnected { connection: NEXT });
    told.next_holder(ConnectionId(3), Vec::new());
    assert_eq!(told.sent(&ask(0, Priority::Urgent)), 2);
}
