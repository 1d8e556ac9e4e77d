//! How many are served at once.

use std::sync::mpsc;
use std::time::Instant;

use super::*;
use crate::address::Transport;
use crate::fetch::{MemoryPeer, reach};
use crate::strangers::{TRANSPORTS, free};

#[test]
fn no_more_connections_than_there_may_be_are_served_at_once() {
    TRANSPORTS.into_iter().for_each(crowd);
}

fn crowd(transport: Transport) {
    let name = format!("pagefork-crowd-{transport:?}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let [node, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
    let mut options = ServeOptions::new(node.clone());
    options.access = Arc::new(|_| true);
    // Over QUIC each address is checked then, too.
    options.connections_max = 1;
    let (sender, events) = mpsc::channel();
    options.observe = Arc::new(move |event| drop(sender.send(format!("{event:?}"))));
    let images = ImageStore::open(&path).unwrap();
    let server = MemoryServer::bind(free(transport), images, options).unwrap();
    let peer = MemoryPeer { address: server.address().to_string(), key: node.public() };
    thread::spawn(move || server.run());
    let connect = || reach(&peer, &own, Protocol::Images, &NodeTimes::default());
    let first = connect().unwrap();
    assert!(connect().is_err());
    assert!(events.recv().unwrap().starts_with("TooMany"));
    drop(first);
    let begun = Instant::now();
    while connect().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the place is not given back");
        thread::sleep(Duration::from_millis(10));
    }
    std::fs::remove_dir_all(path).unwrap();
}
