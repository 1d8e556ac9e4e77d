//! What the system can do is tried while the network is waited for.

use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use pagefork::IncompleteImage;
use pagefork_image::{ImageStore, SecretKey, TrustedKeys};
use pagefork_node::{MemoryPeer, NodeTimes, PageTimes, StartOptions, start_image};

/// Alone in its process: what is tried once is tried by nobody else.
#[test]
fn what_the_system_can_do_is_known_before_a_head_has_come() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("prepared");
    let images = ImageStore::open(&path).unwrap();
    let [node, own] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]));
    // The system takes connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let peer = MemoryPeer { address, key: node.public() };
    let handshake = Duration::from_secs(20);
    let node = NodeTimes { handshake, ..NodeTimes::default() };
    let times = PageTimes { node, ..PageTimes::default() };
    let options = StartOptions { times, ..StartOptions::default() };
    assert!(!IncompleteImage::is_prepared());
    let (began, keys) = (Instant::now(), TrustedKeys::default());
    thread::spawn(move || start_image(&peer, &own, "any", &images, &keys, &options).map(drop));
    while !IncompleteImage::is_prepared() {
        assert!(began.elapsed() < handshake, "it waits for the network first");
        thread::sleep(Duration::from_millis(1));
    }
}
