//! Peers that talk nonsense, ask too much, lie, or say nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pagefork_image::{ContentHash, GroupProof, ImageHead, ImageReader, PublicKey};
use pagefork_postcopy::{
    ConnectionId, EndReason, FAREWELL_MAX, FetchLimits, FetchPlan, FrameDecoder, GroupBody,
    GroupRange, Hello, HolderLoss, Lane, MESSAGE_SIZE_MAX, MemoryInput, MemoryNode, MemoryOutput,
    Message, MigrationId, MigrationMessage, MigrationStep, Moment, PROTOCOL_VERSION, PeerAccess,
    Priority, ProtocolError, RunningInput, RunningNode, RunningOutput, ServeLimits, ServedImage,
    Welcome, encode,
};

use crate::network::{KEY, Numbers, image, start};

const LIMITS: fn() -> ServeLimits = || ServeLimits {
    requests: 8,
    bytes_in_flight: 50_000,
    images: 2,
    known_groups: 3,
    ..ServeLimits::default()
};

/// The image that is fetched.
fn reader() -> &'static ImageReader {
    static IMAGE: OnceLock<ImageReader> = OnceLock::new();
    IMAGE.get_or_init(|| image(100, 1))
}

fn hello() -> Message {
    Message::Hello(Hello { version: PROTOCOL_VERSION, zstd: false, certain_groups: 4 })
}

fn open(number: u32) -> Message {
    Message::Open { image: number, name: "counter".into(), token: Vec::new(), head: None }
}

fn ask(image: u32, first: u64, count: u32) -> Message {
    let groups = vec![GroupRange { first, count }];
    Message::Ask { image, priority: Priority::Urgent, groups }
}

/// A memory node with one image, to which these messages come.
struct Victim {
    node: MemoryNode,
    now: Moment,
    reads: usize,
    sent: usize,
}

impl Victim {
    fn new() -> Self {
        let now = start();
        let peer = PublicKey::from_bytes([1; 32]);
        let node = MemoryNode::new(peer, PeerAccess::All, LIMITS(), now);
        Self { node, now, reads: 0, sent: 0 }
    }

    /// Tells it something. Gives why it leaves, if it does.
    fn tell(&mut self, input: MemoryInput<'_>) -> Option<ProtocolError> {
        let mut left = None;
        for output in self.node.handle(input, self.now) {
            match output {
                MemoryOutput::Resolve { image: number, .. } => {
                    let head = Arc::new(ImageHead::read(reader()).unwrap());
                    let found = Some(ServedImage { head, certain: Vec::new() });
                    let resolved = MemoryInput::Resolved { image: number, found };
                    left = left.or(self.tell(resolved));
                }
                MemoryOutput::Read { .. } => self.reads += 1,
                MemoryOutput::Send { bytes, .. } => self.sent += bytes.len(),
                MemoryOutput::Close(why) => left = Some(why),
                _ => {}
            }
        }
        left
    }

    fn receive(&mut self, message: &Message) -> Option<ProtocolError> {
        self.tell(MemoryInput::Received(&encode(message)))
    }
}

/// Why a memory node leaves a peer that sends this; it must.
fn left(messages: &[Message]) -> ProtocolError {
    let mut victim = Victim::new();
    let left = messages.iter().find_map(|message| victim.receive(message));
    let left = left.unwrap_or_else(|| panic!("nothing is wrong with {messages:?}"));
    // Then it neither says nor does anything any more.
    assert!(victim.receive(&open(99)).is_none());
    assert!(victim.node.deadline().is_none());
    left
}

#[test]
fn each_limit_of_a_memory_node_holds() {
    let exceeded = |error: ProtocolError, limit: u64| match error {
        ProtocolError::Exceeded { limit: told, .. } => assert_eq!(told, limit),
        other => panic!("{other}"),
    };
    exceeded(left(&[hello(), open(0), open(1), open(2)]), 2);
    exceeded(left(&[hello(), open(0), ask(0, 0, 9)]), 8);
    exceeded(left(&[hello(), open(0), ask(0, 0, 8), ask(0, 8, 1)]), 8);
    // Each of these ranges is short enough by itself.
    let all = |first| GroupRange { first, count: 3 };
    let groups = || vec![all(0), all(0), all(0)];
    let cancel = |groups| Message::Cancel { image: 0, groups };
    exceeded(left(&[hello(), open(0), cancel(groups())]), 8);
    exceeded(left(&[hello(), open(0), cancel(vec![GroupRange { first: 0, count: u32::MAX }])]), 8);
    let (priority, groups) = (Priority::Planned, groups());
    exceeded(left(&[hello(), open(0), Message::Ask { image: 0, priority, groups }]), 8);
    // What was asked for is asked for twice, and then again.
    let again = [hello(), open(0), ask(0, 0, 4), ask(0, 0, 4), ask(0, 0, 4), ask(0, 0, 1)];
    assert!(left(&again).to_string().contains("again"));
    let hashes = (0..4).map(|byte| ContentHash::from_bytes([byte; 32])).collect();
    exceeded(left(&[hello(), open(0), Message::Have { hashes }]), 3);
    let renewals = std::iter::repeat_n(Message::Renew { image: 0 }, 100_000);
    let messages: Vec<Message> = [hello(), open(0)].into_iter().chain(renewals).collect();
    exceeded(left(&messages), 50_000);
}

#[test]
fn bytes_that_are_asked_for_and_not_taken_are_bounded() {
    let mut victim = Victim::new();
    let mut given = 0;
    assert!(victim.receive(&hello()).is_none());
    assert!(victim.receive(&open(0)).is_none());
    assert!(victim.receive(&ask(0, 0, 8)).is_none());
    while given < victim.reads {
        let group = given as u64;
        let found = Some(right_group(group));
        assert!(
            victim
                .tell(MemoryInput::Read { image: 0, group, found, cpu: Duration::ZERO })
                .is_none()
        );
        given += 1;
    }
    assert!(given < 8, "all were read, though nothing was taken");
    assert!(victim.sent < 70_000, "{} bytes", victim.sent);
    victim.now = victim.now.after(Duration::from_secs(59));
    assert!(victim.receive(&Message::KeepAlive).is_none());
    victim.now = victim.now.after(Duration::from_secs(2));
    let stalled = victim.tell(MemoryInput::Tick);
    assert!(matches!(stalled, Some(ProtocolError::Stalled { .. })), "{stalled:?}");
}

#[test]
fn nonsense_ends_the_connection() {
    let unexpected = |messages: &[Message]| {
        let error = left(messages);
        assert!(matches!(error, ProtocolError::Unexpected(_)), "{messages:?}: {error}");
    };
    unexpected(&[open(0)]);
    unexpected(&[hello(), hello()]);
    unexpected(&[hello(), open(3), open(3)]);
    unexpected(&[hello(), open(3), open(2)]);
    unexpected(&[hello(), ask(0, 0, 1)]);
    unexpected(&[hello(), open(0), ask(0, 100, 1)]);
    unexpected(&[hello(), open(0), ask(0, u64::MAX, 2)]);
    unexpected(&[hello(), open(0), ask(0, 5, 0)]);
    let cancel = |count| Message::Cancel { image: 0, groups: vec![GroupRange { first: 0, count }] };
    unexpected(&[hello(), open(0), cancel(0)]);
    let (migration, step) = (MigrationId([1; 16]), MigrationStep::Withdraw);
    let step = MigrationMessage { migration, epoch: 1, step };
    unexpected(&[hello(), Message::Migration(step)]);
    unexpected(&[hello(), Message::Ended { image: 0, why: EndReason::NotFound }]);

    let of_bytes = |bytes: &[u8]| Victim::new().tell(MemoryInput::Received(bytes));
    let too_long = of_bytes(&(MESSAGE_SIZE_MAX + 1).to_le_bytes());
    assert!(matches!(too_long, Some(ProtocolError::MessageTooLong { .. })));
    for bytes in [&[0, 0, 0, 0][..], &[1, 0, 0, 0, 200], &[2, 0, 0, 0, 11, 0]] {
        assert!(matches!(of_bytes(bytes), Some(ProtocolError::Malformed(_))), "{bytes:?}");
    }
    for version in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let other = Message::Hello(Hello { version, zstd: true, certain_groups: 0 });
        let said = left(&[other]).to_string();
        let versions = [format!("version {version} "), format!("version {PROTOCOL_VERSION}:")];
        assert!(versions.iter().all(|version| said.contains(version)), "{said}");
        assert!(said.contains("use the same release"), "{said}");
    }
}

#[test]
fn who_says_nothing_is_left() {
    let mut victim = Victim::new();
    victim.now = victim.now.after(Duration::from_secs(59));
    assert!(victim.tell(MemoryInput::Tick).is_none());
    assert_eq!(victim.node.deadline(), Some(victim.now.at + Duration::from_secs(1)));
    victim.now = victim.now.after(Duration::from_secs(1));
    assert!(matches!(victim.tell(MemoryInput::Tick), Some(ProtocolError::Idle { seconds: 60 })));
}

#[test]
fn groups_that_are_answered_may_be_asked_for_again() {
    let mut victim = Victim::new();
    assert!(victim.receive(&hello()).is_none());
    assert!(victim.receive(&open(0)).is_none());
    for _ in 0..100 {
        for _ in 0..2 {
            assert!(victim.receive(&ask(0, 5, 1)).is_none());
        }
        let found = Some(right_group(5));
        let read = MemoryInput::Read { image: 0, group: 5, found, cpu: Duration::ZERO };
        assert!(victim.tell(read).is_none());
        let sent = std::mem::take(&mut victim.sent);
        assert!(victim.tell(MemoryInput::Taken(sent)).is_none());
    }
    assert_eq!(victim.reads, 100);
}

#[test]
fn what_is_taken_back_of_an_image_that_has_ended_is_no_offence() {
    let mut victim = Victim::new();
    let cancel = Message::Cancel { image: 0, groups: vec![GroupRange { first: 0, count: 8 }] };
    for message in [hello(), open(0), ask(0, 0, 8), Message::Close { image: 0 }] {
        assert!(victim.receive(&message).is_none());
    }
    let sent = victim.sent;
    assert!(victim.receive(&cancel).is_none());
    assert_eq!(victim.sent, sent, "it has nothing to say");
}

/// The text becomes longer where it is quoted: each quotation mark has two bytes then.
#[test]
fn who_leaves_with_a_long_text_is_told_nothing() {
    let text = "\"".repeat(MESSAGE_SIZE_MAX as usize - 10);
    // Its length, its number, and that of the text.
    let mut bytes = postcard::to_allocvec(&Message::Farewell { text: text.clone() }).unwrap();
    bytes.splice(..0, (bytes.len() as u32).to_le_bytes());
    let mut victim = Victim::new();
    assert!(victim.receive(&hello()).is_none());
    let sent = victim.sent;
    let left = victim.tell(MemoryInput::Received(&bytes));
    assert!(matches!(left, Some(ProtocolError::PeerLeft(said)) if said == text));
    assert_eq!(victim.sent, sent, "it has left");
    let mut dupe = Dupe::connected();
    dupe.seen.clear();
    dupe.tell(RunningInput::Received { connection: LIAR, lane: Lane::Control, bytes: &bytes });
    assert!(matches!(dupe.left(), Some(ProtocolError::PeerLeft(_))));
    assert!(!dupe.seen.iter().any(|seen| matches!(seen, RunningOutput::Send { .. })));
}

#[test]
fn long_texts_of_farewells_are_cut_between_characters() {
    for (long, cut) in [("a", FAREWELL_MAX), ("\u{20ac}", FAREWELL_MAX / 3 * 3)] {
        let mut decoder = FrameDecoder::default();
        let text = long.repeat(MESSAGE_SIZE_MAX as usize);
        decoder.push(&encode(&Message::Farewell { text: text.clone() }));
        let said = Message::Farewell { text: text[..cut].to_owned() };
        assert_eq!(decoder.message().unwrap(), Some(said));
    }
}

/// A running node that has opened an image at a memory node which is hostile from then on.
struct Dupe {
    node: RunningNode,
    now: Moment,
    seen: Vec<RunningOutput>,
}

const LIAR: ConnectionId = ConnectionId(1);

impl Dupe {
    fn connected() -> Self {
        let limits = FetchLimits { certain_groups: 4, ..FetchLimits::default() };
        let mut dupe = Self { node: RunningNode::new(limits), now: start(), seen: Vec::new() };
        let plan = FetchPlan { stride: false, background: false, ..FetchPlan::default() };
        dupe.tell(RunningInput::Open { image: KEY, name: "counter".into(), hash: None, plan });
        dupe.connect(LIAR);
        dupe
    }

    fn connect(&mut self, connection: ConnectionId) {
        self.connect_with(connection, 8);
    }

    /// The same, to one that lets so many groups be asked for.
    fn connect_with(&mut self, connection: ConnectionId, requests: u32) {
        self.tell(RunningInput::Connected { connection });
        self.tell(RunningInput::AddHolder { image: KEY, connection, token: Vec::new() });
        let welcome = Welcome {
            version: PROTOCOL_VERSION,
            requests,
            images: 1,
            known_groups: 1,
            idle_ms: 60_000,
        };
        self.hear_from(connection, &Message::Welcome(welcome));
    }

    /// One that waits for group 5.
    fn waiting() -> Self {
        let mut dupe = Self::connected();
        head(vec![]).iter().for_each(|message| dupe.hear(message));
        assert!(dupe.seen.iter().any(|seen| matches!(seen, RunningOutput::Opened { .. })));
        let deadline = dupe.now.at + Duration::from_secs(1000);
        dupe.tell(RunningInput::Need { image: KEY, group: 5, deadline });
        dupe
    }

    fn tell(&mut self, input: RunningInput<'_>) {
        self.seen.extend(self.node.handle(input, self.now));
    }

    fn hear(&mut self, message: &Message) {
        self.hear_on(Lane::Control, message);
    }

    fn hear_from(&mut self, connection: ConnectionId, message: &Message) {
        let (lane, bytes) = (Lane::Control, encode(message));
        self.tell(RunningInput::Received { connection, lane, bytes: &bytes });
    }

    fn hear_on(&mut self, lane: Lane, message: &Message) {
        let bytes = encode(message);
        self.tell(RunningInput::Received { connection: LIAR, lane, bytes: &bytes });
    }

    /// Why it has left the peer; nothing may have been given out.
    fn left(&self) -> Option<&ProtocolError> {
        assert!(!self.seen.iter().any(|seen| matches!(seen, RunningOutput::Group { .. })));
        self.seen.iter().find_map(|seen| match seen {
            RunningOutput::Close { connection: LIAR, why } => Some(why),
            _ => None,
        })
    }

    fn is_stranded(&self) -> bool {
        self.seen.iter().any(|seen| matches!(seen, RunningOutput::Stranded { image: KEY }))
    }
}

/// What opens an image of a hundred groups.
fn head(certain: Vec<GroupRange>) -> Vec<Message> {
    let head = ImageHead::read(reader()).unwrap();
    let bytes = [head.manifest_bytes(), head.signature_bytes()].concat();
    let opened = Message::Opened {
        image: 0,
        hash: head.hash(),
        manifest_size: head.manifest_bytes().len() as u64,
        signatures_size: head.signature_bytes().len() as u64,
        lease_ms: 0,
        certain,
    };
    vec![opened, Message::HeadPart { image: 0, bytes }]
}

fn right_group(group: u64) -> (Vec<u8>, GroupProof) {
    (reader().read_group(group).unwrap(), reader().proof(group).unwrap())
}

#[test]
fn no_group_is_given_out_that_is_not_proved() {
    let (bytes, proof) = right_group(5);
    let (other_bytes, other_proof) = right_group(6);
    let foreign = image(100, 2);
    let (foreign_bytes, foreign_proof) =
        (foreign.read_group(5).unwrap(), foreign.proof(5).unwrap());
    let mut altered = bytes.clone();
    altered[16383] ^= 1;
    let mut no_proof = proof.clone();
    no_proof.neighbours.pop();
    let mut long_proof = proof.clone();
    long_proof.neighbours.push([0; 32]);
    let plain = |bytes: &[u8]| GroupBody::Plain(bytes.to_vec());
    let wrong = [
        (plain(&altered), &proof),
        (plain(&other_bytes), &other_proof),
        (plain(&bytes), &other_proof),
        (plain(&foreign_bytes), &foreign_proof),
        (plain(&bytes[1..]), &proof),
        (plain(&[]), &proof),
        (plain(&bytes), &no_proof),
        (plain(&bytes), &long_proof),
        (GroupBody::Zeros, &proof),
    ];
    for (body, proof) in wrong {
        let mut dupe = Dupe::waiting();
        let proof = proof.neighbours.clone();
        dupe.hear_on(
            Lane::Urgent,
            &Message::Group { image: 0, group: 5, body, proof, spent_us: 0, cpu_us: 0 },
        );
        assert!(matches!(dupe.left(), Some(ProtocolError::WrongGroup { group: 5, .. })));
        assert!(dupe.is_stranded());
    }
    let mut dupe = Dupe::waiting();
    let (body, proof) = (plain(&bytes), proof.neighbours);
    dupe.hear_on(
        Lane::Urgent,
        &Message::Group { image: 0, group: 5, body, proof, spent_us: 0, cpu_us: 0 },
    );
    let is_right = |seen: &RunningOutput| matches!(seen, RunningOutput::Group { group: 5, bytes: given, .. } if *given == bytes);
    assert!(dupe.seen.iter().any(is_right));
}

#[test]
fn compressed_groups_that_are_too_long_or_broken_are_refused() {
    let (_, proof) = right_group(5);
    let mut bodies = vec![GroupBody::Zstd(vec![1, 2, 3]), GroupBody::Zstd(Vec::new())];
    if let GroupBody::Zstd(bomb) = pagefork_postcopy::BodyEncoder::new(true).encode(&[7; 1 << 20]) {
        bodies.push(GroupBody::Zstd(bomb));
    }
    for body in bodies {
        let mut dupe = Dupe::waiting();
        let proof = proof.neighbours.clone();
        dupe.hear_on(
            Lane::Urgent,
            &Message::Group { image: 0, group: 5, body, proof, spent_us: 0, cpu_us: 0 },
        );
        assert!(dupe.left().is_some());
    }
}

#[test]
fn what_was_not_asked_for_ends_the_connection() {
    let group = |image, group| {
        let (bytes, proof) = right_group(group);
        let body = GroupBody::Plain(bytes);
        Message::Group { image, group, body, proof: proof.neighbours, spent_us: 0, cpu_us: 0 }
    };
    let known = |hash| Message::Group {
        image: 0,
        group: 5,
        body: GroupBody::Known(hash),
        proof: vec![],
        spent_us: 0,
        cpu_us: 0,
    };
    let range = vec![GroupRange { first: 5, count: 1 }];
    for message in [
        group(0, 6),
        group(9, 5),
        known(ContentHash::of(b"never said")),
        Message::GroupFailed { image: 0, group: 6 },
        Message::Dropped { image: 0, groups: range },
        Message::Dropped { image: 0, groups: vec![GroupRange { first: 0, count: u32::MAX }] },
        Message::KeepAlive,
        head(vec![]).remove(0),
        head(vec![]).remove(1),
    ] {
        let mut dupe = Dupe::waiting();
        dupe.hear(&message);
        assert!(matches!(dupe.left(), Some(ProtocolError::Unexpected(_))), "{message:?}");
    }
    let mut dupe = Dupe::waiting();
    dupe.hear_on(Lane::Urgent, &Message::Ended { image: 0, why: EndReason::Expired });
    assert!(dupe.left().is_some());
}

#[test]
fn a_wrong_head_opens_nothing() {
    let opened = |change: fn(&mut Message)| {
        let mut messages = head(vec![]);
        messages.iter_mut().for_each(change);
        let mut dupe = Dupe::connected();
        messages.iter().for_each(|message| dupe.hear(message));
        assert!(!dupe.seen.iter().any(|seen| matches!(seen, RunningOutput::Opened { .. })));
        dupe.left().map(ToString::to_string)
    };
    let altered = opened(|message| {
        if let Message::HeadPart { bytes, .. } = message {
            bytes[9] ^= 1;
        }
    });
    assert!(altered.unwrap().contains("not that of the image"));
    let other = opened(|message| {
        if let Message::Opened { hash, .. } = message {
            *hash = ContentHash::of(b"other");
        }
    });
    assert!(other.unwrap().contains("not that of the image"));
    let huge = opened(|message| {
        if let Message::Opened { manifest_size, .. } = message {
            *manifest_size = u64::MAX;
        }
    });
    assert!(huge.unwrap().contains("limit"));
    let longer = opened(|message| {
        if let Message::HeadPart { bytes, .. } = message {
            bytes.push(0);
        }
    });
    assert!(longer.unwrap().contains("more of a head"));
    let mut unasked = Dupe::connected();
    unasked.hear(&head(vec![GroupRange { first: 0, count: 5 }])[0]);
    assert!(matches!(unasked.left(), Some(ProtocolError::Exceeded { limit: 4, .. })));
    let mut outside = Dupe::connected();
    head(vec![GroupRange { first: 99, count: 2 }]).iter().for_each(|part| outside.hear(part));
    assert!(matches!(outside.left(), Some(ProtocolError::Unexpected(_))));
}

#[test]
fn who_lies_about_what_an_image_is_keeps_nobody_else_from_giving_it() {
    const HONEST: ConnectionId = ConnectionId(2);
    let [Message::Opened { manifest_size, signatures_size, .. }, part] = &head(vec![])[..] else {
        panic!("two messages");
    };
    let lie = Message::Opened {
        image: 0,
        hash: ContentHash::of(b"other"),
        manifest_size: *manifest_size,
        signatures_size: *signatures_size,
        lease_ms: 0,
        certain: vec![],
    };
    for has_all_been_told in [true, false] {
        let mut dupe = Dupe::connected();
        dupe.connect(HONEST);
        dupe.hear(&lie);
        if has_all_been_told {
            dupe.hear(part);
            assert!(dupe.left().is_some());
        }
        head(vec![]).iter().for_each(|message| dupe.hear_from(HONEST, message));
        let is_open = |seen: &RunningOutput| matches!(seen, RunningOutput::Opened { .. });
        assert!(dupe.seen.iter().any(is_open));
    }
}

#[test]
fn what_another_holder_sends_unasked_is_not_asked_of_it_when_one_is_lost() {
    const HONEST: ConnectionId = ConnectionId(2);
    let mut dupe = Dupe::connected();
    dupe.connect(HONEST);
    for connection in [LIAR, HONEST] {
        let head = head(vec![GroupRange { first: 0, count: 1 }]);
        head.iter().for_each(|message| dupe.hear_from(connection, message));
    }
    let deadline = dupe.now.at + Duration::from_secs(1000);
    dupe.tell(RunningInput::Need { image: KEY, group: 0, deadline });
    dupe.seen.clear();
    dupe.hear(&Message::KeepAlive);
    assert!(dupe.left().is_some());
    for seen in &dupe.seen {
        let RunningOutput::Send { connection: HONEST, bytes } = seen else { continue };
        let mut decoder = FrameDecoder::default();
        decoder.push(bytes);
        let message = decoder.message().unwrap();
        assert!(!matches!(message, Some(Message::Ask { .. })), "{message:?}");
    }
}

#[test]
fn a_peer_that_waits_for_no_time_is_not_told_all_the_time_that_this_node_is_there() {
    let mut dupe = Dupe::connected();
    let connection = ConnectionId(2);
    dupe.tell(RunningInput::Connected { connection });
    let welcome =
        Welcome { version: PROTOCOL_VERSION, requests: 8, images: 1, known_groups: 1, idle_ms: 0 };
    dupe.hear_from(connection, &Message::Welcome(welcome));
    dupe.seen.clear();
    for _ in 0..1000 {
        dupe.tell(RunningInput::Tick);
    }
    assert!(!dupe.seen.iter().any(|seen| matches!(seen, RunningOutput::Send { .. })));
    dupe.now.at += Duration::from_millis(40);
    dupe.tell(RunningInput::Tick);
    assert!(dupe.seen.iter().any(|seen| matches!(seen, RunningOutput::Send { .. })));
}

/// What a memory node sends unasked counts, too, where groups are taken back: it can be more than may be asked for.
#[test]
fn no_message_takes_more_groups_back_than_may_be_asked_for() {
    let mut dupe = Dupe::connected();
    head(vec![GroupRange { first: 0, count: 4 }]).iter().for_each(|message| dupe.hear(message));
    let deadline = dupe.now.at + Duration::from_secs(1000);
    for group in 0..12 {
        dupe.tell(RunningInput::Need { image: KEY, group, deadline });
    }
    dupe.connect_with(ConnectionId(2), 3);
    head(vec![GroupRange { first: 0, count: 4 }])
        .iter()
        .for_each(|message| dupe.hear_from(ConnectionId(2), message));
    dupe.seen.clear();
    dupe.tell(RunningInput::Given { image: KEY, groups: 0..100 });
    let mut counts = BTreeMap::<_, Vec<u32>>::new();
    for seen in &dupe.seen {
        let RunningOutput::Send { connection, bytes } = seen else { continue };
        let mut decoder = FrameDecoder::default();
        decoder.push(bytes);
        if let Some(Message::Cancel { groups, .. }) = decoder.message().unwrap() {
            let count = groups.iter().map(|range| range.count).sum();
            counts.entry(*connection).or_default().push(count);
        }
    }
    assert_eq!(counts, [(LIAR, vec![8]), (ConnectionId(2), vec![3, 1])].into());
}

#[test]
fn a_source_that_stalls_or_fails_is_lost() {
    let mut dupe = Dupe::waiting();
    assert_eq!(dupe.node.deadline(), Some(dupe.now.at + Duration::from_secs(20)));
    // What says nothing about the group is no answer.
    dupe.now = dupe.now.after(Duration::from_secs(19));
    dupe.hear(&Message::Renewed { image: 0, lease_ms: 0 });
    assert!(dupe.left().is_none());
    dupe.now = dupe.now.after(Duration::from_secs(1));
    dupe.tell(RunningInput::Tick);
    assert!(matches!(dupe.left(), Some(ProtocolError::Stalled { seconds: 20 })));
    assert!(dupe.is_stranded());

    let mut dupe = Dupe::waiting();
    dupe.hear(&Message::GroupFailed { image: 0, group: 5 });
    assert!(dupe.left().is_none());
    let is_lost = |seen: &RunningOutput| {
        matches!(seen, RunningOutput::HolderLost { why: HolderLoss::GroupFailed, .. })
    };
    assert!(dupe.seen.iter().any(is_lost) && dupe.is_stranded());
}

#[test]
fn random_bytes_harm_neither_side() {
    let mut numbers = Numbers(3);
    for _ in 0..2000 {
        let (mut victim, mut dupe) = (Victim::new(), Dupe::waiting());
        victim.receive(&hello());
        victim.receive(&open(0));
        let mut bytes = encode(&match numbers.below(4) {
            0 => ask(0, 3, 2),
            1 => open(1),
            2 => Message::Dropped { image: 0, groups: vec![GroupRange { first: 5, count: 1 }] },
            _ => head(vec![]).remove(0),
        });
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(bytes.len() as u64) as usize;
            bytes[at] = numbers.below(256) as u8;
        }
        victim.tell(MemoryInput::Received(&bytes));
        let lane = Lane::ALL[numbers.below(4) as usize];
        dupe.tell(RunningInput::Received { connection: LIAR, lane, bytes: &bytes });
        dupe.left();
    }
}
