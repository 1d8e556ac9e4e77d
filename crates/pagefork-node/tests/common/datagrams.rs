//! A network that datagrams go over, in which they are lost, doubled, changed and held up.

#![allow(dead_code, reason = "not every test needs everything")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// What tests of nodes run over.
pub(crate) const PLACES: [&str; 2] = ["127.0.0.1:0", "quic://127.0.0.1:0"];

/// What becomes of a datagram: how often it arrives, changed or not.
pub(crate) type Fate = Box<dyn FnMut(&mut Vec<u8>) -> usize + Send>;

/// Such a network between a node that connects and one that listens.
pub(crate) struct Datagrams {
    /// Where to connect with, in place of the node.
    pub(crate) address: String,
    /// Whether nothing arrives.
    pub(crate) is_cut: Arc<AtomicBool>,
    /// Whether what comes from the node that listens waits.
    pub(crate) is_held: Arc<AtomicBool>,
}

impl Datagrams {
    /// To the node at `to`, a `quic://` address.
    pub(crate) fn new(to: &str, fate: Fate) -> Self {
        let to: SocketAddr = to.strip_prefix("quic://").unwrap().parse().unwrap();
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = format!("quic://{}", near.local_addr().unwrap());
        let [is_cut, is_held] = [false; 2].map(|is| Arc::new(AtomicBool::new(is)));
        let (cut, held) = (Arc::clone(&is_cut), Arc::clone(&is_held));
        let fate = Arc::new(Mutex::new(fate));
        thread::spawn(move || {
            let mut ways = HashMap::<SocketAddr, Arc<UdpSocket>>::new();
            let mut bytes = vec![0; 1 << 16];
            while let Ok((count, from)) = near.recv_from(&mut bytes) {
                let far = Arc::clone(ways.entry(from).or_insert_with(|| {
                    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
                    far.connect(to).unwrap();
                    let (back, far_end, fate) =
                        (Arc::clone(&near), Arc::clone(&far), Arc::clone(&fate));
                    let (cut, held) = (Arc::clone(&cut), Arc::clone(&held));
                    thread::spawn(move || {
                        let mut bytes = vec![0; 1 << 16];
                        loop {
                            // Nobody listening any more is for QUIC to notice.
                            let Ok(count) = far_end.recv(&mut bytes) else { continue };
                            while held.load(Ordering::SeqCst) {
                                thread::sleep(Duration::from_millis(1));
                            }
                            let mut datagram = bytes[..count].to_vec();
                            let copies = (fate.lock().unwrap())(&mut datagram);
                            for _ in 0..if cut.load(Ordering::SeqCst) { 0 } else { copies } {
                                let _ = back.send_to(&datagram, from);
                            }
                        }
                    });
                    far
                }));
                let mut datagram = bytes[..count].to_vec();
                let copies = (fate.lock().unwrap())(&mut datagram);
                for _ in 0..if cut.load(Ordering::SeqCst) { 0 } else { copies } {
                    let _ = far.send(&datagram);
                }
            }
        });
        Self { address, is_cut, is_held }
    }

    /// A network that carries all, as long as it is not cut.
    pub(crate) fn good(to: &str) -> Self {
        Self::new(to, Box::new(|_| 1))
    }

    /// One of `rate` datagrams is lost, one comes twice, and one has a bit changed.
    pub(crate) fn bad(to: &str, rate: u64) -> Self {
        let mut state = 88_172_645_463_325_252_u64;
        Self::new(
            to,
            Box::new(move |datagram| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                match state % rate {
                    0 => 0,
                    1 => 2,
                    2 => {
                        let at = (state >> 32) as usize % datagram.len();
                        datagram[at] ^= 1;
                        1
                    }
                    _ => 1,
                }
            }),
        )
    }
}

/// A network on which nothing of who connects with the node at `to` arrives any more as soon as so many
/// bytes of the node's first answer have passed: what follows them, the node has sent without having heard
/// that any of it came. Returns where to connect with.
pub(crate) fn deaf_after(answered: usize, to: &str) -> String {
    match to.strip_prefix("quic://") {
        Some(to) => deaf_to_datagrams(answered, to.parse().unwrap()),
        None => deaf_to_stream(answered, to.parse().unwrap()),
    }
}

fn deaf_to_datagrams(answered: usize, to: SocketAddr) -> String {
    /// Bytes of the largest datagram that is no attempt at a larger one.
    const USUAL: usize = 1500;
    /// What stands in the first byte of those that belong to a handshake.
    const HANDSHAKE: u8 = 0x80;
    let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let address = format!("quic://{}", near.local_addr().unwrap());
    far.connect(to).unwrap();
    let passed = Arc::new(AtomicUsize::new(0));
    let (back, far_end, counted) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&passed));
    let (sender, receiver) = mpsc::channel::<SocketAddr>();
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let Ok(from) = receiver.recv() else { return };
        loop {
            let Ok(count) = far_end.recv(&mut bytes) else { continue };
            if count <= USUAL && bytes[0] & HANDSHAKE == 0 {
                counted.fetch_add(count, Ordering::SeqCst);
            }
            let _ = back.send_to(&bytes[..count], from);
        }
    });
    thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok((count, from)) = near.recv_from(&mut bytes) {
            let _ = sender.send(from);
            if passed.load(Ordering::SeqCst) < answered {
                let _ = far.send(&bytes[..count]);
            }
        }
    });
    address
}

fn deaf_to_stream(answered: usize, to: SocketAddr) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(to).unwrap();
        let passed = Arc::new(AtomicUsize::new(0));
        let (mut back, mut far_end) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let counted = Arc::clone(&passed);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = far_end.read(&mut bytes) {
                counted.fetch_add(count, Ordering::SeqCst);
                if back.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
        });
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count @ 1..) = near.read(&mut bytes) {
            if passed.load(Ordering::SeqCst) < answered {
                far.write_all(&bytes[..count]).unwrap();
            }
        }
    });
    address
}
