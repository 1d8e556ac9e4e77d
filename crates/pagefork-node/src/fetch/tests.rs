//! Memory nodes that have the right key and lie.

use std::io::{Read, Write};

use pagefork_image::{ImageDraft, Manifest, PageRuns};

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
