//! Where nodes are, and by what they are reached there.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// What stands before an address at which QUIC is spoken.
const QUIC: &str = "quic://";

/// What carries the bytes between two nodes. Both encrypt them by TLS 1.3, and authenticate both nodes by
/// their keys.
///
/// # Examples
///
/// ```
/// use pagefork_node::Transport;
///
/// assert_eq!(Transport::of("edge.example:7410"), (Transport::Tls, "edge.example:7410"));
/// assert_eq!(Transport::of("quic://[::1]:7410"), (Transport::Quic, "[::1]:7410"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Transport {
    /// TLS over TCP: quicker where nothing is lost.
    Tls,
    /// QUIC, over UDP: what is lost of some pages delays no others.
    Quic,
}

impl Transport {
    /// The transport that an address names, and the host and port in it.
    ///
    /// # Examples
    ///
    /// See [`Transport`].
    pub fn of(address: &str) -> (Self, &str) {
        match address.strip_prefix(QUIC) {
            Some(place) => (Self::Quic, place),
            None => (Self::Tls, address),
        }
    }
}

/// Where a node listens: `ADDRESS:PORT` for TLS over TCP, `quic://ADDRESS:PORT` for QUIC.
///
/// # Examples
///
/// ```
/// use pagefork_node::{NodeAddress, Transport};
///
/// let address: NodeAddress = "quic://127.0.0.1:7410".parse()?;
/// assert_eq!((address.transport, address.socket.port()), (Transport::Quic, 7410));
/// assert_eq!(address.to_string(), "quic://127.0.0.1:7410");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeAddress {
    /// By what it is reached.
    pub transport: Transport,
    /// Its address and port: of TCP or UDP.
    pub socket: SocketAddr,
}

impl NodeAddress {
    /// The first place that an address with a host name means.
    pub(crate) fn resolve(address: &str) -> io::Result<Self> {
        let (transport, place) = Transport::of(address);
        let none = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        let socket = place.to_socket_addrs()?.next().ok_or_else(none)?;
        Ok(Self { transport, socket })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.transport {
            Transport::Tls => "",
            Transport::Quic => QUIC,
        };
        write!(f, "{scheme}{}", self.socket)
    }
}

impl FromStr for NodeAddress {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (transport, place) = Transport::of(text);
        Ok(Self { transport, socket: place.parse()? })
    }
}
