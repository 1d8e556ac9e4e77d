//! What several connections of one peer depend on, and what a peer is kept waiting with.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

use std::sync::{Mutex, mpsc};

use pagefork_image::{
    GROUP_SIZE, ImageDraft, Manifest, PageRuns, SavedCode, SavedInstance, SecretKey,
};
use pagefork_postcopy::{
    FrameDecoder, GroupRange, Hello, Lane, Message, PROTOCOL_VERSION, Priority, encode,
};

use super::*;
use crate::address::Transport;
use crate::fetch::reach;
use crate::identity::Protocol;
use crate::strangers::{TRANSPORTS, stranger};

/// Groups of the image of a store.
const GROUPS: u32 = 64;

/// A store with an image that has no name: collection removes it unless somebody depends on it.
struct GivingStore {
    path: std::path::PathBuf,
    images: ImageStore,
    hash: ContentHash,
    leases: Leases,
    shown: ShownTokens,
}

impl GivingStore {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagefork-{name}-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let code = images.save_code(b"machine code").unwrap().hash();
        let code = SavedCode { hash: code, ..SavedCode::default() };
        let size = u64::from(GROUPS) * GROUP_SIZE;
        let instance = SavedInstance { code, extents: vec![0..size], ..SavedInstance::default() };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, vec![7; size as usize])]]);
        let hash = images.save(ImageDraft::new(manifest, &pages)).unwrap().hash();
        Self { path, images, hash, leases: Leases::default(), shown: ShownTokens::default() }
    }

    fn giver(&self) -> PageGiver<'_> {
        let peer = PublicKey::from_bytes([2; 32]);
        let (kept, times) = ((&self.leases, &self.shown), NodeTimes::default());
        PageGiver::new(&self.images, kept, peer, PeerAccess::All, &times)
    }

    /// A connection of the peer, greeted.
    fn connect(&self) -> PageGiver<'_> {
        let mut giver = self.giver();
        let said = said(&mut giver, &[hello()]);
        assert!(matches!(said[..], [Message::Welcome(_)]), "{said:?}");
        giver
    }

    fn open(&self, image: u32) -> Message {
        Message::Open { image, name: self.hash.to_string(), token: Vec::new(), head: None }
    }

    /// Whether the image is there after a collection.
    fn is_spared(&self) -> bool {
        self.images.collect().unwrap();
        self.images.find(&self.hash.to_string()).is_ok()
    }
}

impl Drop for GivingStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn hello() -> Message {
    Message::Hello(Hello { version: PROTOCOL_VERSION, zstd: true, certain_groups: 0 })
}

fn ask(image: u32, first: u64, count: u32) -> Message {
    let groups = vec![GroupRange { first, count }];
    Message::Ask { image, priority: Priority::Urgent, groups }
}

/// What a memory node says to messages that come in one flight.
fn said(giver: &mut PageGiver<'_>, messages: &[Message]) -> Vec<Message> {
    let bytes: Vec<u8> = messages.iter().flat_map(encode).collect();
    let mut to_do = VecDeque::from(giver.node.handle(MemoryInput::Received(&bytes), now()));
    let mut decoder = FrameDecoder::default();
    while let Some(output) = to_do.pop_front() {
        match output {
            MemoryOutput::Send { bytes, .. } => {
                decoder.push(&bytes);
                to_do.extend(giver.node.handle(MemoryInput::Taken(bytes.len()), now()));
            }
            MemoryOutput::Close(why) => panic!("{why}"),
            output => {
                let mut next = VecDeque::from(giver.carry_out(output));
                next.append(&mut to_do);
                to_do = next;
            }
        }
    }
    std::iter::from_fn(|| decoder.message().unwrap()).collect()
}

#[test]
fn what_one_connection_of_a_peer_gives_back_another_one_still_has() {
    let giving = GivingStore::new("two-connections");
    let [mut first, mut second] = [(); 2].map(|()| giving.connect());
    said(&mut first, &[giving.open(0)]);
    said(&mut second, &[giving.open(0)]);
    said(&mut first, &[Message::Close { image: 0 }]);
    drop(first);
    // The second one is lost, and may come back.
    drop(second);
    assert!(giving.is_spared(), "the lease of the second connection went with the first one");
    // Nobody gives that back: it ends by itself, as do those of all who were lost before.
    for _ in 0..10 {
        said(&mut giving.connect(), &[giving.open(0)]);
    }
    assert_eq!(giving.leases.connections(), 0, "leases of connections stay that are lost");
    assert!(giving.is_spared());
}

#[test]
fn who_gives_back_an_image_has_it_leased_no_more() {
    let giving = GivingStore::new("given-back");
    let mut giver = giving.connect();
    said(&mut giver, &[giving.open(0)]);
    assert_eq!(giving.leases.connections(), 1);
    said(&mut giver, &[Message::Close { image: 0 }]);
    assert!(!giving.is_spared(), "a lease stays that was given back");
}

#[test]
fn an_image_that_is_opened_anew_while_it_is_closed_stays_open_and_leased() {
    let giving = GivingStore::new("opened-anew");
    let mut giver = giving.connect();
    said(&mut giver, &[giving.open(0)]);
    let at_once = [giving.open(1), Message::Close { image: 0 }];
    said(&mut giver, &at_once);
    let given = said(&mut giver, &[ask(1, 3, 1)]);
    assert!(matches!(given[..], [Message::Group { image: 1, group: 3, .. }]), "{given:?}");
    drop(giver);
    assert!(giving.is_spared(), "it has a lease by its new number");
}

/// A connection with a memory node, of which the test has both ends, and a peer that always waits for all groups of
/// an image, which have few bytes when they are compressed: each is gone as soon as it is read.
struct Greedy {
    peer: Duplex,
    node: Duplex,
    decoders: BTreeMap<Lane, FrameDecoder>,
    /// The number of the next image.
    next_image: u32,
    /// How many images it was told are not there, and how many groups it has.
    ended: u32,
    groups: u32,
}

impl Greedy {
    fn new(transport: Transport, giving: &GivingStore) -> Self {
        let (accepted, channel) = mpsc::channel();
        let accepted = Mutex::new(accepted);
        let node = stranger(transport, &SecretKey::from_seed([1; 32]), move |channel| {
            accepted.lock().unwrap().send(channel).unwrap();
        });
        let own = SecretKey::from_seed([2; 32]);
        let peer = reach(&node, &own, Protocol::Pages, &NodeTimes::default()).unwrap();
        let [mut peer, node] =
            [peer, channel.recv().unwrap()].map(|channel| Duplex::new(channel).unwrap());
        for message in [hello(), giving.open(0)] {
            peer.push(Lane::Control, encode(&message));
        }
        let decoders = Lane::ALL.map(|lane| (lane, FrameDecoder::default())).into();
        Self { peer, node, decoders, next_image: 1, ended: 0, groups: 0 }
    }

    /// Asks for many images that are not there, and takes all back but one.
    fn flood(&mut self) {
        for is_closed in std::iter::repeat_n(true, 100).chain([false]) {
            let (image, name) = (self.next_image, "none".to_owned());
            self.next_image += 1;
            let open = Message::Open { image, name, token: Vec::new(), head: None };
            self.peer.push(Lane::Control, encode(&open));
            if is_closed {
                self.peer.push(Lane::Control, encode(&Message::Close { image }));
            }
        }
    }

    /// Lets both sides have a turn. What has come is asked for again.
    fn turn(&mut self, giver: &mut PageGiver<'_>) {
        self.peer.send().unwrap();
        assert!(matches!(giver.pass(&mut self.node).unwrap(), Pass::GoesOn | Pass::Waits));
        let arrived = self.peer.receive().unwrap();
        for (lane, bytes) in arrived.others.into_iter().chain([(Lane::Control, arrived.bytes)]) {
            let decoder = self.decoders.get_mut(&lane).unwrap();
            decoder.push(&bytes);
            while let Some(message) = decoder.message().unwrap() {
                match message {
                    Message::Group { group, .. } => {
                        self.groups += 1;
                        self.peer.push(Lane::Control, encode(&ask(0, group, 1)));
                    }
                    Message::Opened { .. } => {
                        self.peer.push(Lane::Control, encode(&ask(0, 0, GROUPS)));
                    }
                    Message::Ended { .. } => self.ended += 1,
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn what_a_peer_asks_for_beside_groups_does_not_pile_up_while_groups_are_read() {
    for transport in TRANSPORTS {
        let giving = GivingStore::new(&format!("flooded-{transport:?}"));
        let mut giver = giving.giver();
        let mut greedy = Greedy::new(transport, &giving);
        let until = Instant::now() + Duration::from_secs(60);
        let mut turns = 0;
        while greedy.groups < GROUPS * 4 || greedy.ended < 100 {
            // Some of what is asked for is on its way.
            if greedy.next_image / 101 < greedy.ended + 20 {
                greedy.flood();
            }
            greedy.turn(&mut giver);
            let waiting = giver.reads.len();
            assert!(waiting <= BYTES_IN_FLIGHT / GROUP_SIZE as usize, "{waiting} wait to be done");
            turns += 1;
            let (groups, ended) = (greedy.groups, greedy.ended);
            assert!(Instant::now() < until, "{turns} turns, {groups} groups, {ended} images");
        }
    }
}

#[test]
fn who_ends_a_connection_right_behind_many_questions_has_ended_it() {
    for transport in TRANSPORTS {
        let giving = GivingStore::new(&format!("ended-{transport:?}"));
        let mut greedy = Greedy::new(transport, &giving);
        greedy.flood();
        let Greedy { mut peer, node, .. } = greedy;
        std::thread::scope(|scope| {
            let served = scope.spawn(|| giving.giver().serve(node));
            let ended = peer.end();
            served.join().unwrap().unwrap();
            ended.unwrap();
        });
    }
}
