//! Memory nodes of tests, that have the right key and do what they like.

use std::sync::Arc;
use std::thread;

use pagefork_image::{PublicKey, SecretKey, TrustedKeys};
use rustls::ServerConfig;

use crate::address::{NodeAddress, Transport};
use crate::base::NodeTimes;
use crate::channel::Channel;
use crate::fetch::MemoryPeer;
use crate::identity;
use crate::listen::Listener;
use crate::programs::KnownPeers;

/// What tests of the protocol run on.
pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Tls, Transport::Quic];

/// A free place.
pub(crate) fn free(transport: Transport) -> NodeAddress {
    NodeAddress { transport, socket: ([127, 0, 0, 1], 0).into() }
}

/// A node with this key that lets everybody in, and does so with each, on a thread of its own.
pub(crate) fn stranger(
    transport: Transport,
    key: &SecretKey,
    act: impl Fn(Channel) + Send + Sync + 'static,
) -> MemoryPeer {
    stranger_of(transport, key, |_| (), act)
}

/// As [`stranger`], and `set` changes what it speaks.
pub(crate) fn stranger_of(
    transport: Transport,
    key: &SecretKey,
    set: impl FnOnce(&mut ServerConfig),
    act: impl Fn(Channel) + Send + Sync + 'static,
) -> MemoryPeer {
    let mut config = identity::server_config(key, Arc::new(|_| true)).unwrap();
    set(&mut config);
    let config = Arc::new(config);
    let times = NodeTimes::default();
    let listener = Listener::bind(&free(transport), key, &config, 64, &times).unwrap();
    let address = listener.address().unwrap().to_string();
    let act = Arc::new(act);
    thread::spawn(move || {
        while let Ok((caller, _)) = listener.accept() {
            let act = Arc::clone(&act);
            thread::spawn(move || {
                caller.shake_hands(&NodeTimes::default()).map(|channel| act(channel))
            });
        }
    });
    MemoryPeer { address, key: key.public() }
}

/// What a node knows that runs programs of anybody.
#[derive(Debug)]
pub(crate) struct AnyPeer;

impl KnownPeers for AnyPeer {
    fn may_run(&self, _: &PublicKey) -> bool {
        true
    }

    fn named(&self, _: &str) -> Option<MemoryPeer> {
        None
    }

    fn with_key(&self, _: &PublicKey) -> Option<MemoryPeer> {
        None
    }

    fn signers(&self) -> Result<TrustedKeys, String> {
        Ok(TrustedKeys::default())
    }
}
