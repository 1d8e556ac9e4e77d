//! A connection with another node on which both sides speak whenever they want to, served by one thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use pagefork_postcopy::Lane;

use crate::channel::Channel;
use crate::poll::Arrived;
use crate::quic::duplex::QuicDuplex;
use crate::tls::duplex::TlsDuplex;

/// Such a connection. No call of it waits but [`Duplex::wait`], [`Duplex::wait_to_send`] and those that
/// end it.
pub(crate) enum Duplex {
    Tls(Box<TlsDuplex>),
    Quic(Box<QuicDuplex>),
}

impl Duplex {
    /// After the handshake.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn new(channel: Channel) -> io::Result<Self> {
        Ok(match channel {
            Channel::Tls(channel) => Self::Tls(Box::new(TlsDuplex::new(*channel)?)),
            Channel::Quic(channel) => Self::Quic(Box::new(QuicDuplex::new(*channel))),
        })
    }

    /// Gives the network more at once, and takes more of it: of a connection on which nothing overtakes what was
    /// said before.
    pub(crate) fn in_bulk(&mut self) {
        match self {
            Self::Tls(duplex) => duplex.in_bulk(),
            Self::Quic(duplex) => duplex.in_bulk(),
        }
    }

    /// Whether the connection is known to be lost, though the peer may have said more before.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Tls(duplex) => duplex.is_lost(),
            Self::Quic(duplex) => duplex.is_lost(),
        }
    }

    /// Bytes that this side has sent, as the network had them, after the handshake.
    pub(crate) fn sent(&self) -> u64 {
        match self {
            Self::Tls(duplex) => duplex.sent,
            Self::Quic(duplex) => duplex.sent(),
        }
    }

    /// Bytes that have come.
    pub(crate) fn received(&self) -> u64 {
        match self {
            Self::Tls(duplex) => duplex.received,
            Self::Quic(duplex) => duplex.received(),
        }
    }

    /// Has a message sent, behind those of the same lane.
    pub(crate) fn push(&mut self, lane: Lane, message: Vec<u8>) {
        match self {
            Self::Tls(duplex) => duplex.push(lane, message),
            Self::Quic(duplex) => duplex.push(lane, message),
        }
    }

    /// Sends what the network takes. Returns how many of the bytes that were pushed are gone: taken by
    /// it, or dropped, because the connection is lost. [`Duplex::receive`] says so, after what the
    /// peer has said: it may have refused what was being sent.
    ///
    /// # Errors
    /// If the system or TLS refuses.
    pub(crate) fn send(&mut self) -> io::Result<usize> {
        match self {
            Self::Tls(duplex) => duplex.send(),
            Self::Quic(duplex) => duplex.send(),
        }
    }

    /// Takes what has come, if anything has.
    ///
    /// # Errors
    /// If the connection is lost, or was cut: then its end was not said.
    pub(crate) fn receive(&mut self) -> io::Result<Arrived> {
        match self {
            Self::Tls(duplex) => duplex.receive(),
            Self::Quic(duplex) => duplex.receive(),
        }
    }

    /// Waits until the network gives or takes something, one of the other descriptors is ready for
    /// reading, or the time has come.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn wait(
        &mut self,
        also: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> io::Result<()> {
        match self {
            Self::Tls(duplex) => duplex.wait(also, until, true),
            Self::Quic(duplex) => duplex.wait(also, until, true),
        }
    }

    /// As [`Duplex::wait`], and what has come stays where it is.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn wait_to_send(
        &mut self,
        also: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> io::Result<()> {
        match self {
            Self::Tls(duplex) => duplex.wait(also, until, false),
            Self::Quic(duplex) => duplex.wait(also, until, false),
        }
    }

    /// Sends the rest and says that nothing follows, for a second at most.
    ///
    /// # Errors
    /// If the system or TLS refuses.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        match self {
            Self::Tls(duplex) => duplex.end(),
            Self::Quic(duplex) => duplex.end(),
        }
    }

    /// As [`Duplex::end`], towards a peer that may be sending: whatever it does, it can read what it was
    /// told last, if it does so until that time.
    ///
    /// # Errors
    /// If the system or TLS refuses.
    pub(crate) fn end_and_drain(self, until: Instant) -> io::Result<()> {
        match self {
            Self::Tls(duplex) => duplex.end_and_drain(until),
            Self::Quic(duplex) => duplex.end_and_drain(until),
        }
    }
}
