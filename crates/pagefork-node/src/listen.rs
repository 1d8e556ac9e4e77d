//! Who connects with a node, whatever carries the bytes.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use pagefork_image::SecretKey;
use rustls::{Connection, ServerConfig, ServerConnection};

use crate::address::{NodeAddress, Transport};
use crate::base::NodeTimes;
use crate::channel::Channel;
use crate::quic::channel::QuicChannel;
use crate::quic::listener::{QuicCaller, QuicListener};
use crate::tls::channel::{TimedSocket, TlsChannel};
use crate::tls::early;

/// A place where a node listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Tls(TcpListener, Arc<ServerConfig>),
    Quic(QuicListener),
}

/// Who connects, and is not known yet.
pub(crate) enum UnknownPeer {
    Tls(TcpStream, Arc<ServerConfig>),
    Quic(Box<QuicCaller>),
}

impl Listener {
    /// Listens at `address`, with port 0 at a free one, for some `connections_max` at once.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn bind(
        address: &NodeAddress,
        key: &SecretKey,
        config: &Arc<ServerConfig>,
        connections_max: usize,
        times: &NodeTimes,
    ) -> io::Result<Self> {
        let config = Arc::clone(config);
        match address.transport {
            Transport::Tls => {
                let listener = TcpListener::bind(address.socket)?;
                early::accept_early(&listener, connections_max / 2);
                Ok(Self::Tls(listener, config))
            }
            Transport::Quic => {
                let listener =
                    QuicListener::bind(address.socket, key, config, connections_max, times);
                listener.map(Self::Quic)
            }
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn address(&self) -> io::Result<NodeAddress> {
        let (transport, socket) = match self {
            Self::Tls(listener, _) => (Transport::Tls, listener.local_addr()?),
            Self::Quic(listener) => (Transport::Quic, listener.address()?),
        };
        Ok(NodeAddress { transport, socket })
    }

    /// Waits for who connects. Connections over QUIC get their datagrams only while one thread is in here.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn accept(&self) -> io::Result<(UnknownPeer, SocketAddr)> {
        match self {
            Self::Tls(listener, config) => {
                let (socket, address) = listener.accept()?;
                Ok((UnknownPeer::Tls(socket, Arc::clone(config)), address))
            }
            Self::Quic(listener) => {
                let caller = listener.accept()?;
                let address = caller.address();
                Ok((UnknownPeer::Quic(Box::new(caller)), address))
            }
        }
    }
}

impl UnknownPeer {
    /// Finishes the handshake: afterwards both sides know each other. All that comes first has to be done
    /// in as much time.
    ///
    /// # Errors
    /// If the peer is not let in, or silent for too long.
    pub(crate) fn shake_hands(self, times: &NodeTimes) -> io::Result<Channel> {
        let deadline = Instant::now() + times.handshake;
        match self {
            Self::Tls(socket, config) => {
                let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                let socket = TimedSocket::new(socket, deadline, times)?;
                let mut channel = TlsChannel::new(Connection::Server(connection), socket);
                channel.shake_hands()?;
                Ok(Channel::Tls(Box::new(channel)))
            }
            Self::Quic(caller) => {
                let channel = QuicChannel::answer(*caller, deadline, times)?;
                Ok(Channel::Quic(Box::new(channel)))
            }
        }
    }
}
