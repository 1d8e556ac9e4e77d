//! A connection with another node whose reads and writes wait, and end in time.

use std::io::{self, Read, Write};
use std::time::Instant;

use pagefork_image::PublicKey;

use crate::identity::AgreedProtocol;
use crate::quic::channel::QuicChannel;
use crate::tls::channel::TlsChannel;

/// Such a connection. After the handshake both sides know each other.
pub(crate) enum Channel {
    Tls(Box<TlsChannel>),
    Quic(Box<QuicChannel>),
}

impl Channel {
    /// What both sides speak.
    ///
    /// # Errors
    /// If they have agreed on nothing.
    pub(crate) fn protocol(&self) -> io::Result<AgreedProtocol> {
        let protocol = match self {
            Self::Tls(channel) => channel.protocol(),
            Self::Quic(channel) => channel.protocol(),
        };
        protocol.ok_or_else(|| io::Error::other("the peer speaks another protocol"))
    }

    /// The key of the other side.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        match self {
            Self::Tls(channel) => channel.peer(),
            Self::Quic(channel) => channel.peer(),
        }
    }

    /// From now on only silence ends it.
    pub(crate) fn lift_deadline(&mut self) {
        match self {
            Self::Tls(channel) => channel.lift_deadline(),
            Self::Quic(channel) => channel.lift_deadline(),
        }
    }

    /// From now on it ends then, too, however much comes or goes.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        match self {
            Self::Tls(channel) => channel.set_deadline(deadline),
            Self::Quic(channel) => channel.set_deadline(deadline),
        }
    }

    /// Says that nothing follows, so that the peer can tell the end from a cut.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(channel) => channel.end(),
            Self::Quic(channel) => channel.end(),
        }
    }
}

impl Read for Channel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tls(channel) => channel.read(into),
            Self::Quic(channel) => channel.read(into),
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tls(channel) => channel.write(bytes),
            Self::Quic(channel) => channel.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(channel) => channel.flush(),
            Self::Quic(channel) => channel.flush(),
        }
    }
}
