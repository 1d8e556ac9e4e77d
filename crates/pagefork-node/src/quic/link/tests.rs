//! A node that was started anew tells its peers that their connections are gone.

use std::io::ErrorKind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pagefork_image::SecretKey;

use super::*;
use crate::base::NodeTimes;
use crate::identity::Protocol;
use crate::quic::listener::QuicListener;

const TIMES: NodeTimes =
    NodeTimes { handshake: Duration::from_secs(20), idle: Duration::from_secs(3) };

fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

fn listen(address: SocketAddr, seed: u8) -> QuicListener {
    let tls = Arc::new(identity::server_config(&key(seed), Arc::new(|_| true)).unwrap());
    QuicListener::bind(address, &key(seed), tls, 8, &TIMES).unwrap()
}

fn connect(to: SocketAddr, seed: u8) -> io::Result<QuicLink> {
    let tls = identity::client_config(&key(9), key(seed).public(), Protocol::Images).unwrap();
    let config = config::client(tls, Protocol::Images, &TIMES)?;
    QuicLink::connect(to, config, Instant::now() + TIMES.handshake)
}

/// Why a connection with the node `first` is lost after that has ended without a word and the node
/// `second` has come into its place.
fn lost_when_replaced(first: u8, second: u8) -> ErrorKind {
    let listener = listen("127.0.0.1:0".parse().unwrap(), first);
    let address = listener.address().unwrap();
    let serves = thread::spawn(move || {
        let caller = listener.accept().unwrap();
        let answers = thread::spawn(move || {
            QuicLink::answer(caller, Instant::now() + TIMES.handshake).unwrap()
        });
        // It gives out datagrams until somebody else calls, who is refused.
        drop(listener.accept().unwrap());
        let mut link = answers.join().unwrap();
        // Whatever its end would say goes nowhere.
        let socket = QuicSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Box::new(Endpoint::new(config::endpoint(None), None, true, None));
        link.port = QuicPort::Own { socket, endpoint, buffers: DatagramBuffers::default() };
    });
    let mut link = connect(address, first).unwrap();
    connect(address, first).map(drop).unwrap_err();
    serves.join().unwrap();

    let listener = listen(address, second);
    // As its thread lives as long as the test, so does its socket, which no other test has.
    thread::spawn(move || listener.accept().map(drop));
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        link.drive();
        match link.lost() {
            Some(lost) => return lost.kind(),
            None => assert!(Instant::now() < until, "it is still believed to be there"),
        }
        link.wait(&[], Some(until)).unwrap();
    }
}

#[test]
fn a_node_that_was_started_anew_says_that_its_connections_are_gone_and_no_other_can() {
    assert_eq!(lost_when_replaced(1, 1), ErrorKind::ConnectionReset);
    // What has another key is not believed: then silence ends it.
    assert_eq!(lost_when_replaced(1, 2), ErrorKind::TimedOut);
}
