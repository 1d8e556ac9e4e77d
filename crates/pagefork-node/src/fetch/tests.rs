//! Memory nodes that have the right key and lie.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use pagefork_image::{ImageDraft, Manifest, PageRuns};
use rustls::ServerConnection;

use super::*;
use crate::channel;

/// What a memory node with the right key answers, whatever it is asked: bytes, and bytes after the
/// wish.
fn liar(key: &SecretKey, answer: Vec<u8>, stream: Vec<u8>) -> MemoryPeer {
    let config = identity::server_config(key, Arc::new(|_| true)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let times = NodeTimes::default();
        let socket = TimedSocket::new(socket, Instant::now() + times.handshake, &times).unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut channel = StreamOwned::new(connection, socket);
        shake_hands(&mut channel).unwrap();
        message::read_text(&mut channel).unwrap();
        channel.write_all(&answer).unwrap();
        channel.flush().unwrap();
        // Whoever does not believe the answer goes.
        if channel.read_exact(&mut [0]).is_ok() {
            let _ = channel.write_all(&stream).and_then(|()| channel.flush());
            let _ = channel::end(&mut channel);
        }
    });
    MemoryPeer { address, key: key.public() }
}

#[test]
fn who_has_the_right_key_and_lies_is_noticed() {
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
        let peer = liar(&node, answer, stream);
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
