//! Nodes of different versions: neither does what it does not understand, and both say which versions they
//! speak.

use std::sync::mpsc;
use std::thread;

use pagefork::Engine;
use pagefork_postcopy::Lane;

use super::*;
use crate::address::Transport;
use crate::duplex::Duplex;
use crate::programs::{ProgramClient, ProgramNode, ProgramNodeOptions};
use crate::serve::{MemoryServer, ServeEvent, ServeOptions};
use crate::strangers::{AnyPeer, TRANSPORTS, free, stranger_of};

/// What a node of the first version offers.
const OLD: [&[u8]; 3] = [b"pagefork-images/1", b"pagefork-pages/1", b"pagefork-programs/1"];

/// A node, the keys of which are its own and those of who connects, and what it tells of that.
fn node(transport: Transport) -> (MemoryPeer, SecretKey, mpsc::Receiver<String>) {
    let name = format!("pagefork-versions-{transport:?}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let images = ImageStore::open(path.join("images")).unwrap();
    let [key, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
    let programs = ProgramNodeOptions::new(
        Engine::default(),
        images.clone(),
        key.clone(),
        Arc::new(AnyPeer),
        &path,
    );
    let mut options = ServeOptions::new(key.clone());
    options.access = Arc::new(|_| true);
    options.programs = Some(ProgramNode::new(programs).unwrap());
    let (sender, events) = mpsc::channel();
    options.observe = Arc::new(move |event| {
        if let ServeEvent::Failed { error, .. } = event {
            let _ = sender.send(error.to_string());
        }
    });
    let server = MemoryServer::bind(free(transport), images, options).unwrap();
    let peer = MemoryPeer { address: server.address().to_string(), key: key.public() };
    thread::spawn(move || server.run());
    let _ = std::fs::remove_dir_all(path);
    (peer, own, events)
}

/// Connects as a node of the first version does.
fn reach_as_old(peer: &MemoryPeer, own: &SecretKey, protocol: Protocol) -> Channel {
    let times = NodeTimes::default();
    let deadline = Instant::now() + times.handshake;
    let mut config = identity::client_config(own, peer.key, protocol).unwrap();
    config.alpn_protocols = vec![format!("{}/1", protocol.name()).into()];
    match Transport::of(&peer.address) {
        (Transport::Tls, place) => reach_by_tls(peer, place, config, deadline, &times).unwrap(),
        (Transport::Quic, place) => {
            let reached = QuicChannel::connect(place, config, protocol, deadline, &times);
            Channel::Quic(Box::new(reached.unwrap()))
        }
    }
}

fn names_both(said: &str, protocol: Protocol) -> bool {
    let versions = ["version 1".to_owned(), format!("version {}", protocol.version())];
    protocol.version() > 1
        && said.contains(protocol.name())
        && versions.iter().all(|version| said.contains(version))
}

/// The first answer to these bytes.
fn answer(peer: &MemoryPeer, own: &SecretKey, request: &[u8]) -> Vec<u8> {
    let mut duplex = Duplex::new(reach_as_old(peer, own, Protocol::Programs)).unwrap();
    duplex.push(Lane::Control, request.to_vec());
    let (mut answer, begun) = (Vec::new(), Instant::now());
    loop {
        duplex.send().unwrap();
        let arrived = duplex.receive().unwrap();
        answer.extend(arrived.bytes);
        if arrived.is_over {
            return answer;
        }
        assert!(begun.elapsed().as_secs() < 60, "it says nothing");
        duplex.wait(&[], Some(begun + NodeTimes::default().idle)).unwrap();
    }
}

#[test]
fn an_older_peer_is_refused_by_an_error_that_names_both_versions() {
    for transport in TRANSPORTS {
        let (peer, own, events) = node(transport);
        // A greeting, a move as it was, and what means nothing.
        for request in [&[1, 0, 0, 0, 0][..], &[4, 0, 0, 0, 9, 1, 97, 0], &[1, 0, 0, 0, 77]] {
            let answer = answer(&peer, &own, request);
            // The kind, and a text: that was so in the first version.
            assert_eq!(answer[4], 0, "{answer:?}");
            let text = String::from_utf8_lossy(&answer[5..]);
            assert!(names_both(&text, Protocol::Programs), "{text}");
            let said = events.recv().unwrap();
            assert!(names_both(&said, Protocol::Programs), "{said}");
        }
        let mut channel = reach_as_old(&peer, &own, Protocol::Images);
        message::write_text(&mut channel, "ready").and_then(|()| channel.flush()).unwrap();
        let Answer::Refuses(text) = Answer::read(&mut channel).unwrap() else {
            panic!("it is refused")
        };
        assert!(names_both(&text, Protocol::Images), "{text}");
        // Until it is gone the node waits for it to say that it has heard that.
        drop(channel);
        let said = events.recv().unwrap();
        assert!(names_both(&said, Protocol::Images), "{said}");
        // One of this version is served all the same.
        ProgramClient::connect(&peer, &own, &NodeTimes::default()).unwrap();
    }
}

#[test]
fn an_older_node_is_left_with_an_error_that_names_both_versions() {
    for transport in TRANSPORTS {
        let key = SecretKey::from_seed([1; 32]);
        let old = |config: &mut rustls::ServerConfig| {
            config.alpn_protocols = OLD.map(<[u8]>::to_vec).into();
        };
        let peer = stranger_of(transport, &key, old, |mut channel| {
            // What is said to it is not what it understands.
            let mut byte = [0];
            assert!(!matches!(io::Read::read(&mut channel, &mut byte), Ok(1)));
        });
        let own = SecretKey::from_seed([2; 32]);
        let path = std::env::temp_dir().join(format!("pagefork-older-{}", std::process::id()));
        let images = ImageStore::open(&path).unwrap();
        let (signers, times) = (TrustedKeys::default(), NodeTimes::default());
        let errors = [
            ProgramClient::connect(&peer, &own, &times).map(drop).unwrap_err(),
            fetch_image(&peer, &own, "ready", &images, &signers, &times).map(drop).unwrap_err(),
        ];
        for (error, protocol) in errors.iter().zip([Protocol::Programs, Protocol::Images]) {
            assert!(names_both(&error.to_string(), protocol), "{error}");
            assert!(error.to_string().contains(&peer.address), "{error}");
        }
        let _ = std::fs::remove_dir_all(path);
    }
}

#[test]
fn what_has_never_been_a_version_is_not_agreed_on() {
    assert_eq!(identity::AgreedProtocol::of_name(None), None);
    for name in ["", "pagefork-images", "pagefork-images/", "pagefork-images/x", "other/1"] {
        assert_eq!(identity::AgreedProtocol::of_name(Some(name.as_bytes())), None, "{name}");
    }
}
