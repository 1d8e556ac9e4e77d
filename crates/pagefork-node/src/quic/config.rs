//! What peers may do over QUIC, and for how long.

use std::io;
use std::sync::Arc;

use pagefork_image::SecretKey;
use quinn_proto::congestion::CubicConfig;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::crypto::{CryptoError, HmacKey};
use quinn_proto::{
    ClientConfig, EndpointConfig, HashedConnectionIdGenerator, IdleTimeout, MtuDiscoveryConfig,
    ServerConfig, TransportConfig, VarInt,
};

use crate::base::NodeTimes;
use crate::identity::Protocol;

/// Bytes of the largest datagram that is tried: what jumbo frames carry.
const DATAGRAM_MAX: u16 = 9000 - 40 - 8;

/// Bytes that who connects takes before it has read them: as many as are on their way over a fast line.
const FETCHED: u32 = 16 << 20;

/// Bytes that a node takes of who connects: messages, and modules in parts.
const ASKED: u32 = 1 << 20;

/// Bytes that it takes of who has programs here: the last changes of one that moves, as a rule.
pub(super) const BULK: u32 = 5 << 20;

/// Bytes that wait for a connection that is not accepted yet, and of all such.
const UNACCEPTED: (u64, u64) = (64 << 10, 4 << 20);

/// Bytes that a connection may have on its way before the peer has said that any of them came: a head and
/// the groups without which no guest begins, so that they take no round trip more. A peer is known by then:
/// until a server knows an address, it sends it three times as much as came from there, at most.
const FIRST_SENT: u64 = 64 << 10;

/// Streams on which a memory node sends groups.
const GROUP_STREAMS: u32 = 3;

/// How a node listens that has this key.
pub(super) fn server(
    tls: Arc<rustls::ServerConfig>,
    connections_max: usize,
    times: &NodeTimes,
) -> io::Result<Arc<ServerConfig>> {
    let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(transport((ASKED, BULK), 1, 0, times)?));
    config.max_incoming(connections_max);
    config.incoming_buffer_size(UNACCEPTED.0).incoming_buffer_size_total(UNACCEPTED.1);
    Ok(Arc::new(config))
}

/// How a node connects that wants to speak this.
pub(super) fn client(
    tls: rustls::ClientConfig,
    protocol: Protocol,
    times: &NodeTimes,
) -> io::Result<ClientConfig> {
    let tls = QuicClientConfig::try_from(tls).map_err(io::Error::other)?;
    let mut config = ClientConfig::new(Arc::new(tls));
    let streams = if protocol == Protocol::Pages { GROUP_STREAMS } else { 0 };
    config.transport_config(Arc::new(transport((FETCHED, FETCHED), 0, streams, times)?));
    Ok(config)
}

/// What a peer may do: it may send so many bytes that were not read, of all streams and of one, and open so
/// many streams of either kind.
fn transport(
    (window, of_stream): (u32, u32),
    both_ways: u32,
    one_way: u32,
    times: &NodeTimes,
) -> io::Result<TransportConfig> {
    let idle = IdleTimeout::try_from(times.idle).map_err(io::Error::other)?;
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.upper_bound(DATAGRAM_MAX);
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_SENT);
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(Arc::new(congestion))
        .max_concurrent_bidi_streams(VarInt::from_u32(both_ways))
        .max_concurrent_uni_streams(VarInt::from_u32(one_way))
        .stream_receive_window(VarInt::from_u32(of_stream))
        .receive_window(VarInt::from_u32(window))
        .max_idle_timeout(Some(idle))
        // Whether a peer still says what it has to say is looked at above.
        .keep_alive_interval(Some(times.idle / 3))
        .mtu_discovery_config(Some(mtu))
        // Datagrams beside streams are not used.
        .datagram_receive_buffer_size(None);
    Ok(config)
}

/// How datagrams find their connections at a node that listens with this key, or at one that connects.
pub(super) fn endpoint(listens: Option<&SecretKey>) -> Arc<EndpointConfig> {
    let mut config = match listens {
        None => EndpointConfig::default(),
        Some(key) => {
            // The same after the node was started anew: so it can tell its peers that their
            // connections are gone.
            let reset = blake3::derive_key("pagefork-node 2026 QUIC stateless reset", &key.seed());
            let ids = blake3::derive_key("pagefork-node 2026 QUIC connections", &key.seed());
            let ids = u64::from_le_bytes(*ids.first_chunk().expect("a key is longer"));
            let mut config = EndpointConfig::new(Arc::new(ResetKey(reset)));
            config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
            config
        }
    };
    let size = config.max_udp_payload_size(DATAGRAM_MAX);
    size.expect("so large a datagram is possible");
    Arc::new(config)
}

/// Makes what tells a peer that its connection is gone, and nobody else can.
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], out: &mut [u8]) {
        out.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        blake3::OUT_LEN
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        // It is compared in constant time.
        match blake3::keyed_hash(&self.0, data) == *signature {
            true => Ok(()),
            false => Err(CryptoError),
        }
    }
}
