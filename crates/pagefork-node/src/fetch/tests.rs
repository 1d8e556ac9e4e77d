//! Memory nodes that have the right key and lie.

use std::io::{Read, Write};
use std::time::Duration;

use pagefork_image::{ImageDraft, Manifest, PageRuns, SavedInstance};

use super::*;
use crate::strangers::{TRANSPORTS, stranger};

/// What a memory node with the right key answers, whatever it is asked: bytes, and bytes after the
/// wish.
fn liar(transport: Transport, key: &SecretKey, answer: Vec<u8>, stream: Vec<u8>) -> MemoryPeer {
    stranger(transport, key, move |mut channel| {
        message::read_text(&mut channel).unwrap();
        channel.write_all(&answer).unwrap();
        channel.flush().unwrap();
        // Whoever does not believe the answer goes.
        if channel.read_exact(&mut [0]).is_ok() {
            let _ = channel.write_all(&stream).and_then(|()| channel.flush());
            let _ = channel.end();
        }
    })
}

#[test]
fn who_has_the_right_key_and_lies_is_noticed() {
    TRANSPORTS.into_iter().for_each(lie);
}

fn lie(transport: Transport) {
    let path = std::env::temp_dir().join(format!("pagefork-liars-{}", std::process::id()));
    let open = |name: &str| ImageStore::open(path.join(name)).unwrap();
    let (here, there) = (open("here"), open("there"));
    let [node, own, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
    let draft = |wasi: u8| {
        let manifest = Manifest { wasi: vec![wasi], ..Manifest::default() };
        let pages = PageRuns::default();
        there
            .save(ImageDraft::new(manifest, &pages).sign_with(std::slice::from_ref(&author)))
            .unwrap()
            .hash()
    };
    let (image, other) = (draft(1), draft(2));
    let stream = |hash| there.export(&[hash], Vec::new(), 1).unwrap();
    let has = |hash: ContentHash| [&[0], &hash.as_bytes()[..]].concat();
    let signers = TrustedKeys::from_iter([author.public()]);
    let fetch = |answer: Vec<u8>, stream: Vec<u8>, name: &str| {
        let peer = liar(transport, &node, answer, stream);
        fetch_image(&peer, &own, name, &here, &signers, &NodeTimes::default())
    };
    let name = image.to_string();
    let lies = [
        ("another image than was asked for", fetch(has(other), stream(other), &name)),
        ("another image than was announced", fetch(has(image), stream(other), "counter")),
        ("no answer", fetch(vec![7; 100], Vec::new(), "counter")),
        ("half an answer", fetch(vec![0; 9], Vec::new(), "counter")),
        ("no stream", fetch(has(image), b"HTTP/1.1 200 OK\r\n".to_vec(), "counter")),
        ("an empty stream", fetch(has(image), Vec::new(), "counter")),
        ("a longer stream", fetch(has(image), [stream(image), vec![0]].concat(), "counter")),
    ];
    for (lie, fetched) in lies {
        assert!(fetched.is_err(), "{lie}");
    }
    assert!(here.load(image).is_err(), "nothing came that was asked for");
    assert_eq!(fetch(has(image), stream(image), "counter").unwrap().hash(), image);
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn a_stream_that_drips_is_left_though_it_is_never_silent() {
    TRANSPORTS.into_iter().for_each(drip);
}

fn drip(transport: Transport) {
    let path = std::env::temp_dir().join(format!("pagefork-drips-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let open = |name: &str| ImageStore::open(path.join(name)).unwrap();
    let (here, there) = (open("here"), open("there"));
    let [node, own, author] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]));
    let extents = std::iter::once(0..1 << 20).collect();
    let instance = SavedInstance { extents, ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let noise = (0..1_u32 << 18).flat_map(|at| at.wrapping_mul(0x9e37_79b9).to_le_bytes());
    let pages = PageRuns::new(vec![vec![(0, noise.collect())]]);
    let draft = ImageDraft::new(manifest, &pages).sign_with(std::slice::from_ref(&author));
    let image = there.save(draft).unwrap().hash();
    let stream = there.export(&[image], Vec::new(), 1).unwrap();
    let has = [&[0], &image.as_bytes()[..]].concat();
    let peer = stranger(transport, &node, move |mut channel| {
        message::read_text(&mut channel).unwrap();
        channel.write_all(&has).and_then(|()| channel.flush()).unwrap();
        channel.read_exact(&mut [0]).unwrap();
        let (first, rest) = stream.split_at(100);
        let mut sent = channel.write_all(first).and_then(|()| channel.flush());
        // Each of them is a right one. All of them would take hours.
        for byte in &rest[..1000] {
            std::thread::sleep(Duration::from_millis(20));
            sent = sent.and_then(|()| channel.write_all(&[*byte])).and_then(|()| channel.flush());
        }
        let _ = channel.end();
    });
    // It may be behind by a second.
    let times = NodeTimes { idle: Duration::from_millis(333), ..NodeTimes::default() };
    let signers = TrustedKeys::from_iter([author.public()]);
    let error = fetch_image(&peer, &own, "any", &here, &signers, &times).unwrap_err();
    let NodeError::Io { error: why, .. } = &error else { panic!("{error:?}") };
    assert_eq!(why.kind(), ErrorKind::TimedOut, "{error}");
    // So that the next one is asked.
    assert!(error.is_of_peer());
    assert_eq!(here.images().unwrap(), []);
    std::fs::remove_dir_all(path).unwrap();
}

/// Needs all modules of an image.
struct NeedsModules;

impl HeadCheck for NeedsModules {
    fn needed_modules(
        &self,
        _: ContentHash,
        manifest: &Manifest,
        _: bool,
    ) -> Result<NeededModules, NodeError> {
        let missing = manifest.modules().into_iter().collect();
        Ok(NeededModules { held: Vec::new(), missing })
    }

    fn refused(&self, image: ContentHash, _: &Manifest, module: ContentHash) -> NodeError {
        let why = "it is missing".to_owned();
        NodeError::CodeRefused { image, why, module: Some(module) }
    }
}

#[test]
fn nothing_is_kept_for_a_module_that_has_another_hash() {
    TRANSPORTS.into_iter().for_each(send_other_modules);
}

fn send_other_modules(transport: Transport) {
    let path = std::env::temp_dir().join(format!("pagefork-modules-{}", std::process::id()));
    let images = ImageStore::open(&path).unwrap();
    let [node, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
    let module = ContentHash::of(b"module");
    let instance = SavedInstance { module, ..SavedInstance::default() };
    let manifest = Manifest { instances: vec![instance], ..Manifest::default() };
    let pages = PageRuns::new(vec![Vec::new()]);
    let saved = images.save(ImageDraft::new(manifest, &pages)).unwrap();
    let head = ImageHead::read(saved.chain().tip()).unwrap();
    let times = NodeTimes { handshake: Duration::from_secs(1), ..NodeTimes::default() };
    let fetch = |stream: Vec<u8>, trickles: bool| {
        let has = [&[0], &head.hash().as_bytes()[..]].concat();
        let peer = stranger(transport, &node, move |mut channel| {
            message::read_text(&mut channel).unwrap();
            channel.write_all(&has).and_then(|()| channel.flush()).unwrap();
            channel.read_exact(&mut [0]).unwrap();
            let mut sent = channel.write_all(&stream).and_then(|()| channel.flush());
            // Never silent for long, and never done.
            while trickles && sent.is_ok() {
                std::thread::sleep(Duration::from_millis(20));
                sent = channel.write_all(&[7]).and_then(|()| channel.flush());
            }
            let _ = channel.end();
        });
        let needed = NeedsModules.needed_modules(head.hash(), head.manifest(), false).unwrap();
        fetch_modules(&peer, &own, &head, &images, &times, needed, &NeedsModules)
    };
    let blob = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
    let other = fetch(blob(b"another module"), false).unwrap_err();
    assert!(matches!(other, NodeError::OtherImage { wanted, .. } if wanted == module), "{other}");
    let none = fetch(blob(b""), false).unwrap_err();
    assert!(matches!(none, NodeError::CodeRefused { .. }), "{none}");
    let large = fetch(u64::MAX.to_le_bytes().to_vec(), false).unwrap_err();
    assert!(matches!(large, NodeError::Io { .. }), "{large}");
    let half = fetch(blob(b"module")[..10].to_vec(), false).unwrap_err();
    assert!(matches!(half, NodeError::Io { .. }), "{half}");
    // It is never silent, and would take minutes.
    let slow = fetch(10_000_u64.to_le_bytes().to_vec(), true).unwrap_err();
    let NodeError::Io { error, .. } = &slow else { panic!("{slow:?}") };
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(images.codes().unwrap().is_empty());
    let held = fetch(blob(b"module"), false).unwrap();
    images.collect().unwrap();
    assert_eq!((held.len(), images.codes().unwrap()), (1, vec![module]));
    drop((held, saved));
    std::fs::remove_dir_all(path).unwrap();
}
