//! Images come from another node whole and with a trusted signature, or not at all.

#![allow(clippy::single_range_in_vec_init)] // Extents of one range are meant.

#[path = "common/datagrams.rs"]
mod datagrams;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use datagrams::{Datagrams, PLACES};
use pagefork_image::{
    ContentHash, ImageDraft, ImageError, ImageStore, Manifest, PageRuns, SavedCode, SavedInstance,
    SecretKey, StoredImage, TrustedKeys,
};
use pagefork_node::{
    MemoryPeer, MemoryServer, NodeError, NodeTimes, ServeEvent, ServeOptions, fetch_image,
};

/// Keys of the memory node, of the node that fetches, of who made the images, and of a stranger.
const NODE: u8 = 1;
const RUNNER: u8 = 2;
const AUTHOR: u8 = 3;
const STRANGER: u8 = 4;

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

/// A memory node with an image, its delta and their code; and an empty store.
struct Pair {
    path: PathBuf,
    here: ImageStore,
    tip: ContentHash,
    peer: MemoryPeer,
    /// Whether the runner is let in.
    is_let_in: Arc<AtomicBool>,
    events: Receiver<String>,
}

impl Pair {
    /// The delta is signed by `signer`, and what it is a delta of by nobody. The node listens at `place`.
    fn new(name: &str, place: &str, signer: u8, times: NodeTimes) -> Self {
        let transport = if place.starts_with("quic") { "quic" } else { "tls" };
        let name = format!("node-{name}-{transport}");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        let there = ImageStore::open(path.join("there")).unwrap();
        let code = there.save_code(b"machine code").unwrap().hash();
        let manifest = |parent: Option<u32>| {
            let instance = SavedInstance {
                extents: vec![0..1 << 20],
                memory_sizes: vec![1 << 20],
                parent_instance: parent,
                code: SavedCode { hash: code, ..SavedCode::default() },
                ..SavedInstance::default()
            };
            Manifest { instances: vec![instance], ..Manifest::default() }
        };
        let bytes: Vec<u8> =
            (0..1_u32 << 18).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let pages = PageRuns::new(vec![vec![(0, bytes)]]);
        let root = there.save(ImageDraft::new(manifest(None), &pages)).unwrap();
        let pages = PageRuns::new(vec![vec![(8192, vec![7; 4096])]]);
        let delta = root.chain().delta(manifest(Some(0)), &pages).unwrap();
        let tip = there.save(delta.sign_with(&[key(signer)])).unwrap().hash();
        there.set_name("counter", tip).unwrap();

        let is_let_in = Arc::new(AtomicBool::new(true));
        let mut options = ServeOptions::new(key(NODE));
        options.times = times;
        let (asked, runner) = (Arc::clone(&is_let_in), key(RUNNER).public());
        options.access = Arc::new(move |peer| *peer == runner && asked.load(Ordering::SeqCst));
        let (sender, events) = mpsc::channel();
        options.observe = Arc::new(move |event| {
            let text = match event {
                ServeEvent::Sent { image, .. } => format!("sent {image}"),
                ServeEvent::Failed { error, .. } => error.to_string(),
                other => format!("{other:?}"),
            };
            let _ = sender.send(text);
        });
        let server = MemoryServer::bind(place, there, options).unwrap();
        let peer = MemoryPeer { address: server.address().to_string(), key: key(NODE).public() };
        thread::spawn(move || server.run());
        let here = ImageStore::open(path.join("here")).unwrap();
        Self { path, here, tip, peer, is_let_in, events }
    }

    fn fetch_as(&self, own: u8, peer: &MemoryPeer, name: &str) -> Result<StoredImage, NodeError> {
        let signers = TrustedKeys::from_iter([key(AUTHOR).public()]);
        fetch_image(peer, &key(own), name, &self.here, &signers, &short())
    }

    fn fetch(&self, name: &str) -> Result<StoredImage, NodeError> {
        self.fetch_as(RUNNER, &self.peer, name)
    }

    #[track_caller]
    fn assert_nothing_came(&self) {
        assert_eq!(self.here.images().unwrap(), []);
        assert_eq!(self.here.codes().unwrap(), []);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Long enough on a busy machine, short enough for a test that waits for the end of it.
fn short() -> NodeTimes {
    NodeTimes { handshake: Duration::from_secs(3), idle: Duration::from_secs(3) }
}

#[test]
fn an_image_comes_with_its_ancestors_and_code_and_only_once() {
    PLACES.into_iter().for_each(once);
}

fn once(place: &str) {
    let pair = Pair::new("once", place, AUTHOR, NodeTimes::default());
    let image = pair.fetch("counter").unwrap();
    assert_eq!(image.hash(), pair.tip);
    image.chain().verify().unwrap();
    assert_eq!(pair.here.images().unwrap().len(), 2);
    assert_eq!(pair.here.codes().unwrap(), [ContentHash::of(b"machine code")]);
    assert_eq!(pair.events.recv().unwrap(), format!("sent {}", pair.tip));
    // Nothing has named it, so only who holds it keeps collection away.
    pair.here.collect().unwrap();
    assert_eq!(pair.fetch(&pair.tip.to_string()).unwrap().hash(), pair.tip);
    drop(image);
    pair.here.collect().unwrap();
    pair.assert_nothing_came();
    pair.fetch("counter").unwrap();
    // Of the fetch between, nothing was sent.
    assert_eq!(pair.events.recv().unwrap(), format!("sent {}", pair.tip));
    assert!(pair.events.try_recv().is_err());
}

#[test]
fn machine_code_comes_under_a_trusted_signature_or_not_at_all() {
    PLACES.into_iter().for_each(signed);
}

fn signed(place: &str) {
    let pair = Pair::new("signed", place, STRANGER, NodeTimes::default());
    let error = pair.fetch("counter").unwrap_err();
    let NodeError::Image(ImageError::NotSigned { image, signatures: 1 }) = error else {
        panic!("{error}");
    };
    assert_eq!(image, pair.tip);
    pair.assert_nothing_came();

    // Not even if the image is here already: the peer chooses what a name means.
    let there = ImageStore::open(pair.path.join("there")).unwrap();
    let stream = there.export(&[pair.tip], Vec::new(), 1).unwrap();
    let _held = pair.here.import(&stream[..]).unwrap();
    let error = pair.fetch("counter").unwrap_err();
    assert!(matches!(error, NodeError::Image(ImageError::NotSigned { .. })), "{error}");
}

#[test]
fn nodes_that_do_not_know_each_other_tell_each_other_nothing() {
    PLACES.into_iter().for_each(strangers);
}

fn strangers(place: &str) {
    let pair = Pair::new("strangers", place, AUTHOR, NodeTimes::default());
    let error = pair.fetch_as(STRANGER, &pair.peer, "counter").unwrap_err();
    assert!(matches!(error, NodeError::Handshake { .. }), "{error}");
    assert!(error.to_string().contains("must trust the other's key"), "{error}");

    let other = MemoryPeer { key: key(STRANGER).public(), ..pair.peer.clone() };
    let error = pair.fetch_as(RUNNER, &other, "counter").unwrap_err();
    assert!(matches!(error, NodeError::Handshake { .. }), "{error}");

    // Who was known once is not let in by what is left of an earlier connection.
    pair.fetch("counter").unwrap();
    pair.is_let_in.store(false, Ordering::SeqCst);
    let error = pair.fetch("counter").unwrap_err();
    assert!(matches!(error, NodeError::Handshake { .. }), "{error}");
}

#[test]
fn what_a_node_does_not_have_is_refused_by_name() {
    PLACES.into_iter().for_each(refused);
}

fn refused(place: &str) {
    let pair = Pair::new("refused", place, AUTHOR, NodeTimes::default());
    for name in ["other", "", "../counter", &"x".repeat(1000)] {
        let error = pair.fetch(name).unwrap_err();
        assert!(matches!(error, NodeError::Refused { .. }), "{name}: {error}");
        assert!(error.to_string().contains("it has no such image"), "{error}");
    }
    pair.assert_nothing_came();
}

#[test]
fn silence_ends_in_time_on_both_sides() {
    let pair = Pair::new("silent", PLACES[0], AUTHOR, short());
    // One that accepts and says nothing, and one that says a byte now and then.
    for drips in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            // A record of a handshake that has 512 bytes, as far as its head says.
            let mut bytes = [22, 3, 3, 2, 0].into_iter().chain(std::iter::repeat(2));
            while !drips || socket.write_all(&[bytes.next().unwrap()]).is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        let silent = MemoryPeer { address, ..pair.peer.clone() };
        let error = pair.fetch_as(RUNNER, &silent, "counter").unwrap_err();
        assert!(error.to_string().contains("silent for too long"), "{error}");
    }
    // A client that says nothing costs the memory node a place for a time, and nobody else any.
    let mut mute = TcpStream::connect(&pair.peer.address).unwrap();
    let (signers, patient) = (TrustedKeys::from_iter([key(AUTHOR).public()]), NodeTimes::default());
    fetch_image(&pair.peer, &key(RUNNER), "counter", &pair.here, &signers, &patient).unwrap();
    // In whichever order.
    let said = [(); 2].map(|()| pair.events.recv().unwrap());
    assert!(said.contains(&format!("sent {}", pair.tip)), "{said:?}");
    assert!(said.iter().any(|said| said.contains("silent for too long")), "{said:?}");
    assert!(matches!(mute.read(&mut [0]), Ok(0) | Err(_)), "it is closed");
}

/// What a relay does to one of the bytes that the memory node sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mischief {
    Change,
    Cut,
}

/// A relay before the memory node. Returns its address.
fn relay(to: String, place: usize, mischief: Mischief) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(to).unwrap();
        let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut into);
            let _ = into.shutdown(Shutdown::Write);
        });
        let (mut bytes, mut passed) = ([0; 4096], 0);
        while let Ok(count @ 1..) = server.read(&mut bytes) {
            let mut bytes = &mut bytes[..count];
            if let Some(byte) = place.checked_sub(passed).filter(|at| *at < count) {
                match mischief {
                    Mischief::Change => bytes[byte] ^= 1,
                    Mischief::Cut => bytes = &mut bytes[..byte],
                }
            }
            passed += count;
            if client.write_all(bytes).is_err() || bytes.len() < count {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    address
}

#[test]
fn what_was_altered_or_cut_on_its_way_counts_for_nothing() {
    let pair = Pair::new("altered", PLACES[0], AUTHOR, short());
    // In the handshake, at its end, in the stream, near its end.
    for place in [3, 100, 300, 600, 2_000, 100_000, 700_000, 1_000_000] {
        for mischief in [Mischief::Change, Mischief::Cut] {
            let address = relay(pair.peer.address.clone(), place, mischief);
            let relayed = MemoryPeer { address, ..pair.peer.clone() };
            let fetched = pair.fetch_as(RUNNER, &relayed, "counter");
            assert!(fetched.is_err(), "{mischief:?} at {place}");
            pair.assert_nothing_came();
        }
    }
}

#[test]
fn silence_over_quic_ends_in_time_on_both_sides() {
    let pair = Pair::new("mute", PLACES[1], AUTHOR, short());
    // One that says nothing, one that is not there, and one that is nonsense.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("quic://{}", silent.local_addr().unwrap());
    let peer = MemoryPeer { address, ..pair.peer.clone() };
    let error = pair.fetch_as(RUNNER, &peer, "counter").unwrap_err();
    assert!(matches!(error, NodeError::Io { .. }), "{error}");
    assert!(error.to_string().contains("silent for too long"), "{error}");
    drop(silent);
    let error = pair.fetch_as(RUNNER, &peer, "counter").unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    let node = pair.peer.address.strip_prefix("quic://").unwrap();
    let nonsense = UdpSocket::bind("127.0.0.1:0").unwrap();
    for byte in 0..=255 {
        nonsense.send_to(&[byte; 1200], node).unwrap();
    }
    // A client that is gone in the middle costs the memory node a place for a time, and nobody else any.
    let network = Datagrams::good(&pair.peer.address);
    network.is_held.store(true, Ordering::SeqCst);
    let gone = MemoryPeer { address: network.address.clone(), ..pair.peer.clone() };
    pair.fetch_as(RUNNER, &gone, "counter").unwrap_err();
    pair.fetch("counter").unwrap();
    let mut events = std::iter::from_fn(|| pair.events.recv_timeout(Duration::from_secs(20)).ok());
    let sent = format!("sent {}", pair.tip);
    let (mut is_sent, mut is_left) = (false, false);
    while !(is_sent && is_left) {
        let event = events.next().expect("both are said");
        is_sent |= event == sent;
        is_left |= event.contains("get to know who connects");
    }
}

#[test]
fn an_image_comes_right_over_a_network_that_loses_doubles_and_changes_datagrams() {
    let pair = Pair::new("bad", PLACES[1], AUTHOR, NodeTimes::default());
    let network = Datagrams::bad(&pair.peer.address, 20);
    let peer = MemoryPeer { address: network.address, ..pair.peer.clone() };
    let image = pair.fetch_as(RUNNER, &peer, "counter").unwrap();
    assert_eq!(image.hash(), pair.tip);
    image.chain().verify().unwrap();
}
