//! Pages come from another node as they are needed: each is the image's, or none comes.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

#[path = "common/datagrams.rs"]
mod datagrams;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use datagrams::{Datagrams, PLACES, deaf_after};
use pagefork_image::{
    ContentHash, ImageDraft, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance, SecretKey,
    TrustedKeys,
};
use pagefork_node::{
    MemoryPeer, MemoryServer, NodeError, NodeTimes, PageSink, PageTimes, RemoteImage, ServeOptions,
    fetch_code,
};
use pagefork_postcopy::{FetchPlan, PlanReport};
use rustix::event::{EventfdFlags, eventfd};

const SIZE: u64 = 4 << 20;
const GROUP: u64 = 16 << 10;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

fn contents() -> Vec<u8> {
    (0..SIZE as u32 / 4).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

/// Keeps what comes, and lets threads wait for it.
#[derive(Debug)]
struct Memory {
    groups: Mutex<BTreeMap<u64, Vec<u8>>>,
    came: Condvar,
    wanted: Mutex<Vec<u64>>,
    signal: OwnedFd,
    is_given_up: AtomicBool,
    /// Whether what somebody waits for was looked at.
    has_asked: AtomicBool,
    installed: AtomicU64,
    /// In which order they came.
    order: Mutex<Vec<u64>>,
}

impl Memory {
    /// How many groups came before this one.
    fn before(&self, group: u64) -> usize {
        let order = self.order.lock().unwrap();
        order.iter().position(|came| *came == group).expect("it came")
    }

    fn new() -> Arc<Self> {
        Arc::new(Self {
            groups: Mutex::default(),
            came: Condvar::new(),
            wanted: Mutex::default(),
            signal: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            is_given_up: AtomicBool::new(false),
            has_asked: AtomicBool::new(false),
            installed: AtomicU64::new(0),
            order: Mutex::default(),
        })
    }

    /// Waits until somebody has begun to wait for a group, and that is known.
    fn wait_until_asked(&self) {
        let begun = Instant::now();
        while !self.has_asked.load(Ordering::SeqCst) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody looks");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a guest does; `None` if it is given up.
    fn touch(&self, group: u64) -> Option<Vec<u8>> {
        self.wanted.lock().unwrap().push(group);
        rustix::io::write(&self.signal, &1_u64.to_ne_bytes()).unwrap();
        let groups = self.groups.lock().unwrap();
        let is_open = |groups: &mut BTreeMap<u64, Vec<u8>>| {
            !groups.contains_key(&group) && !self.is_given_up.load(Ordering::SeqCst)
        };
        self.came.wait_while(groups, is_open).unwrap().get(&group).cloned()
    }

    fn assert_is_right(&self, group: u64) {
        let found = self.touch(group).expect("it comes");
        let at = (group * GROUP) as usize;
        assert_eq!(found, contents()[at..at + GROUP as usize]);
    }
}

impl PageSink for Memory {
    fn wanted(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }

    fn take_wanted(&self) -> Vec<u64> {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        let wanted = std::mem::take(&mut *self.wanted.lock().unwrap());
        self.has_asked.fetch_or(!wanted.is_empty(), Ordering::SeqCst);
        wanted
    }

    fn install(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        self.installed.fetch_add(1, Ordering::SeqCst);
        self.order.lock().unwrap().push(group);
        self.groups.lock().unwrap().insert(group, bytes.to_vec());
        self.came.notify_all();
        Ok(())
    }

    fn give_up(&self, _: &NodeError) {
        let _groups = self.groups.lock().unwrap();
        self.is_given_up.store(true, Ordering::SeqCst);
        self.came.notify_all();
    }
}

/// A memory node with an image, and an empty store.
struct Pair {
    path: PathBuf,
    here: ImageStore,
    peer: MemoryPeer,
    image: ContentHash,
    code: ContentHash,
}

impl Pair {
    /// The node listens at `place`.
    fn new(name: &str, place: &str) -> Self {
        let transport = if place.starts_with("quic") { "quic" } else { "tls" };
        let name = format!("pages-{name}-{transport}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        let there = ImageStore::open(path.join("there")).unwrap();
        let code = there.save_code(b"machine code").unwrap().hash();
        let instance = SavedInstance {
            extents: vec![0..SIZE],
            memory_sizes: vec![SIZE],
            code: SavedCode { hash: code, ..SavedCode::default() },
            ..SavedInstance::default()
        };
        let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
        let pages = PageRuns::new(vec![vec![(0, contents())]]);
        let draft = ImageDraft::new(manifest, &pages).sign_with(&[key(3)]);
        let image = there.save(draft).unwrap().hash();
        there.set_name("counter", image).unwrap();
        let mut options = ServeOptions::new(key(1));
        let runner = key(2).public();
        options.access = Arc::new(move |peer| *peer == runner);
        let server = MemoryServer::bind(place, there, options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(1).public() };
        thread::spawn(move || server.run());
        let here = ImageStore::open(path.join("here")).unwrap();
        Self { path, here, peer, image, code }
    }

    fn open(&self, peer: &MemoryPeer, plan: FetchPlan, times: PageTimes) -> RemoteImage {
        let signers = TrustedKeys::from_iter([key(3).public()]);
        RemoteImage::open(peer, &key(2), "counter", &signers, plan, times).unwrap()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Nothing but what somebody waits for.
fn on_demand() -> FetchPlan {
    FetchPlan { certain: false, stride: false, background: false, ..FetchPlan::default() }
}

#[test]
fn what_is_touched_comes_and_nothing_else_unless_asked_for() {
    PLACES.into_iter().for_each(touched);
}

fn touched(place: &str) {
    let pair = Pair::new("touched", place);
    let image = pair.open(&pair.peer, on_demand(), PageTimes::default());
    assert_eq!(image.head().hash(), pair.image);
    let memory = Memory::new();
    let fetch = image.fetch_into(memory.clone()).unwrap();
    for group in [200, 3, 255, 0, 3] {
        memory.assert_is_right(group);
    }
    assert_eq!(memory.installed.load(Ordering::SeqCst), 4);
    assert!(!fetch.is_finished());
    drop(fetch);
    assert_eq!(memory.touch(9), None, "who waits is told");

    let memory = Memory::new();
    let image = pair.open(&pair.peer, FetchPlan::default(), PageTimes::default());
    let fetch = image.fetch_into(memory.clone()).unwrap();
    memory.assert_is_right(100);
    fetch.join().unwrap();
    (0..SIZE / GROUP).for_each(|group| memory.assert_is_right(group));
    assert_eq!(memory.installed.load(Ordering::SeqCst), SIZE / GROUP);
}

#[test]
fn an_image_without_pages_is_whole_with_its_head() {
    PLACES.into_iter().for_each(empty);
}

fn empty(place: &str) {
    let pair = Pair::new("empty", place);
    let there = ImageStore::open(pair.path.join("there")).unwrap();
    let pages = PageRuns::default();
    let draft = ImageDraft::new(Manifest::default(), &pages).sign_with(&[key(3)]);
    there.set_name("empty", there.save(draft).unwrap().hash()).unwrap();
    let (signers, times) = (TrustedKeys::from_iter([key(3).public()]), PageTimes::default());
    let image =
        RemoteImage::open(&pair.peer, &key(2), "empty", &signers, on_demand(), times).unwrap();
    let report = image.fetch_into(Memory::new()).unwrap().join().unwrap();
    assert_eq!((report.connections, report.plan), (1, PlanReport::default()));
    assert!(report.received > 0);
}

#[test]
fn code_comes_by_its_hash_and_once() {
    PLACES.into_iter().for_each(code);
}

fn code(place: &str) {
    let pair = Pair::new("code", place);
    let image = pair.open(&pair.peer, on_demand(), PageTimes::default());
    for _ in 0..2 {
        let times = NodeTimes::default();
        fetch_code(&pair.peer, &key(2), image.head(), &pair.here, &times).unwrap();
        assert_eq!(pair.here.codes().unwrap(), [pair.code]);
    }
    assert!(pair.here.images().unwrap().is_empty());
}

#[test]
fn who_is_not_trusted_or_not_there_is_refused() {
    PLACES.into_iter().for_each(refused);
}

fn refused(place: &str) {
    let pair = Pair::new("refused", place);
    let open = |own: u8, name: &str, signer: u8| {
        let signers = TrustedKeys::from_iter([key(signer).public()]);
        let times = PageTimes::default();
        RemoteImage::open(&pair.peer, &key(own), name, &signers, on_demand(), times).map(|_| ())
    };
    assert!(matches!(open(2, "other", 3), Err(NodeError::Refused { .. })));
    assert!(matches!(open(2, "counter", 4), Err(NodeError::Image(_))));
    assert!(open(4, "counter", 3).is_err(), "a stranger");
    open(2, &pair.image.to_string(), 3).unwrap();
}

/// A network between the two, that is cut when it is told to.
enum Network {
    Bytes(Relay),
    Datagrams(Datagrams),
}

impl Network {
    fn new(to: &MemoryPeer) -> Self {
        match to.address.starts_with("quic") {
            true => Self::Datagrams(Datagrams::good(&to.address)),
            false => Self::Bytes(Relay::new(&to.address)),
        }
    }

    /// The node behind it.
    fn peer(&self, to: &MemoryPeer) -> MemoryPeer {
        let address = match self {
            Self::Bytes(relay) => relay.address.clone(),
            Self::Datagrams(datagrams) => datagrams.address.clone(),
        };
        MemoryPeer { address, ..to.clone() }
    }

    fn cut(&self, is_cut: bool) {
        match self {
            Self::Bytes(relay) => relay.cut(is_cut),
            Self::Datagrams(datagrams) => datagrams.is_cut.store(is_cut, Ordering::SeqCst),
        }
    }
}

/// Carries bytes between the two, and breaks off when it is told to.
struct Relay {
    address: String,
    is_cut: Arc<AtomicBool>,
}

impl Relay {
    fn new(to: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let is_cut = Arc::new(AtomicBool::new(false));
        let (to, cut) = (to.to_owned(), Arc::clone(&is_cut));
        thread::spawn(move || {
            for socket in listener.incoming() {
                let Ok(from) = socket else { return };
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(onward) = TcpStream::connect(&to) else { continue };
                let ways =
                    [(from.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, from)];
                for (from, onward) in ways {
                    let cut = Arc::clone(&cut);
                    thread::spawn(move || carry(from, onward, &cut));
                }
            }
        });
        Self { address, is_cut }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        // Both ways look twice a millisecond.
        thread::sleep(Duration::from_millis(20));
    }
}

fn carry(mut from: TcpStream, mut onward: TcpStream, is_cut: &AtomicBool) {
    from.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut bytes = [0; 4096];
    while !is_cut.load(Ordering::SeqCst) {
        match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) if onward.write_all(&bytes[..count]).is_ok() => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), onward.shutdown(Shutdown::Both));
}

/// Carries bytes between the two, of which it has few at once, and none to who asks while it is held.
fn narrow(to: &str, is_held: &Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (to, held): (std::net::SocketAddr, _) = (to.parse().unwrap(), Arc::clone(is_held));
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let far = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        far.set_recv_buffer_size(16 << 10).unwrap();
        far.connect(&to.into()).unwrap();
        let mut far = TcpStream::from(far);
        let (mut asks, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut asks, &mut asked));
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = far.read(&mut bytes) {
            while held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            near.write_all(&bytes[..count]).unwrap();
        }
    });
    address
}

#[test]
fn what_somebody_waits_for_does_not_stand_behind_all_else() {
    PLACES.into_iter().for_each(urgent);
}

fn urgent(place: &str) {
    let pair = Pair::new("urgent", place);
    let (address, is_held) = match pair.peer.address.starts_with("quic") {
        true => {
            let datagrams = Datagrams::good(&pair.peer.address);
            (datagrams.address, datagrams.is_held)
        }
        false => {
            let is_held = Arc::new(AtomicBool::new(false));
            (narrow(&pair.peer.address, &is_held), is_held)
        }
    };
    let peer = MemoryPeer { address, ..pair.peer.clone() };
    let plan = FetchPlan { recorded: vec![0..220], ..on_demand() };
    let image = pair.open(&peer, plan, PageTimes::default());
    let memory = Memory::new();
    is_held.store(true, Ordering::SeqCst);
    let _fetch = image.fetch_into(memory.clone()).unwrap();
    // As much is on its way as can be.
    thread::sleep(Duration::from_millis(300));
    thread::scope(|scope| {
        let guest = scope.spawn(|| memory.assert_is_right(250));
        memory.wait_until_asked();
        // It is on its way to the node then.
        thread::sleep(Duration::from_millis(500));
        is_held.store(false, Ordering::SeqCst);
        guest.join().unwrap();
    });
    let before = memory.before(250);
    // A dozen are on their way; without precedence it is a hundred and more.
    assert!(before < 40, "{before} groups came before the one that somebody waits for");
}

#[test]
fn the_head_and_what_starts_need_come_in_the_answer_to_what_is_said_first() {
    PLACES.into_iter().for_each(answered_at_once);
}

/// After the handshake there is one round trip, and no other one for what would not have fitted into it.
fn answered_at_once(place: &str) {
    // More than a handshake has, and less than the head and a group.
    const BEGUN: usize = 4 << 10;
    let pair = Pair::new("at-once", place);
    let there = ImageStore::open(pair.path.join("there")).unwrap();
    let needed = [200, 17, 5];
    there.set_touched(pair.image, &needed.map(|group| group..group + 1)).unwrap();
    let address = deaf_after(BEGUN, &pair.peer.address);
    let peer = MemoryPeer { address, ..pair.peer.clone() };
    let plan = FetchPlan { certain: true, ..on_demand() };
    let memory = Memory::new();
    let _fetch = pair.open(&peer, plan, PageTimes::default()).fetch_into(memory.clone()).unwrap();
    needed.into_iter().for_each(|group| memory.assert_is_right(group));
    assert_eq!(*memory.order.lock().unwrap(), needed, "in the order in which they are needed");
}

#[test]
fn a_connection_that_is_lost_is_made_again_and_pages_go_on_coming() {
    PLACES.into_iter().for_each(lost);
}

fn lost(place: &str) {
    let pair = Pair::new("lost", place);
    let relay = Network::new(&pair.peer);
    let peer = relay.peer(&pair.peer);
    let memory = Memory::new();
    let image = pair.open(&peer, on_demand(), PageTimes::default());
    let _fetch = image.fetch_into(memory.clone()).unwrap();
    for round in 0..3 {
        memory.assert_is_right(round);
        relay.cut(true);
        thread::scope(|scope| {
            // It is asked for while nobody can be reached.
            scope.spawn(|| memory.assert_is_right(100 + round));
            thread::sleep(Duration::from_millis(50));
            relay.cut(false);
        });
    }
}

#[test]
fn a_node_that_stays_away_is_said_and_nobody_waits_for_ever() {
    PLACES.into_iter().for_each(gone);
}

fn gone(place: &str) {
    let pair = Pair::new("gone", place);
    let relay = Network::new(&pair.peer);
    let peer = relay.peer(&pair.peer);
    // Over QUIC nothing tells of a cut but silence.
    let node = NodeTimes { idle: Duration::from_secs(2), ..NodeTimes::default() };
    let times = PageTimes { node, lost: Duration::from_millis(500), ..PageTimes::default() };
    let memory = Memory::new();
    let fetch = pair.open(&peer, on_demand(), times).fetch_into(memory.clone()).unwrap();
    memory.assert_is_right(7);
    relay.cut(true);
    let begun = Instant::now();
    assert_eq!(memory.touch(8), None);
    let error = fetch.join().unwrap_err();
    assert!(matches!(error, NodeError::Lost { .. }), "{error}");
    assert!(begun.elapsed() >= Duration::from_millis(400), "it was tried for a while");
    assert!(memory.touch(7).is_some(), "what is here stays");
}

#[test]
fn pages_come_right_over_a_network_that_loses_doubles_and_changes_datagrams() {
    let pair = Pair::new("bad", PLACES[1]);
    let network = Datagrams::bad(&pair.peer.address, 20);
    let peer = MemoryPeer { address: network.address, ..pair.peer.clone() };
    let memory = Memory::new();
    let image = pair.open(&peer, FetchPlan::default(), PageTimes::default());
    image.fetch_into(memory.clone()).unwrap().join().unwrap();
    (0..SIZE / GROUP).for_each(|group| memory.assert_is_right(group));
}

/// Prints what a group takes that somebody waits for, one after the other, over each transport in turn.
#[test]
#[ignore = "measures"]
fn how_long_somebody_waits_for_a_group() {
    for place in PLACES.into_iter().cycle().take(10) {
        let pair = Pair::new("measured", place);
        let memory = Memory::new();
        let image = pair.open(&pair.peer, on_demand(), PageTimes::default());
        let _fetch = image.fetch_into(memory.clone()).unwrap();
        let begun = Instant::now();
        (0..SIZE / GROUP).for_each(|group| drop(memory.touch(group).expect("it comes")));
        let each = begun.elapsed() / (SIZE / GROUP) as u32;
        println!("{place}: {each:?} a group");
    }
}
