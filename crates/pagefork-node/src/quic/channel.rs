//! A connection over QUIC whose reads and writes wait, and end in time: on the stream that both sides have.

use std::io::{self, ErrorKind, Read, Write};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pagefork_image::PublicKey;
use pagefork_postcopy::Lane;
use rustls::ClientConfig;

use crate::base::NodeTimes;
use crate::identity::{AgreedProtocol, Protocol};
use crate::poll::{again, overdue};

use super::config;
use super::link::QuicLink;
use super::listener::QuicCaller;

/// Such a connection.
pub(crate) struct QuicChannel {
    link: QuicLink,
    /// When all must be done, for the time being.
    deadline: Option<Instant>,
    idle: Duration,
}

impl QuicChannel {
    /// Connects with the node at `place`, a host and a port.
    ///
    /// # Errors
    /// As of [`QuicLink::connect`].
    pub(crate) fn connect(
        place: &str,
        tls: ClientConfig,
        protocol: Protocol,
        deadline: Instant,
        times: &NodeTimes,
    ) -> io::Result<Self> {
        let config = config::client(tls, protocol, times)?;
        let mut failed = io::Error::new(ErrorKind::NotFound, "the host has no address");
        let places: Vec<_> = place.to_socket_addrs()?.collect();
        for (number, place) in places.iter().enumerate() {
            // Who is not there may say nothing: there is time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (places.len() - number) as u32;
            match QuicLink::connect(*place, config.clone(), Instant::now() + share) {
                Ok(link) => return Ok(Self { link, deadline: Some(deadline), idle: times.idle }),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Lets in who connects.
    ///
    /// # Errors
    /// If the peer is not let in, or silent for too long.
    pub(crate) fn answer(
        caller: QuicCaller,
        deadline: Instant,
        times: &NodeTimes,
    ) -> io::Result<Self> {
        let link = QuicLink::answer(caller, deadline)?;
        Ok(Self { link, deadline: Some(deadline), idle: times.idle })
    }

    /// What both sides speak.
    pub(crate) fn protocol(&self) -> Option<AgreedProtocol> {
        self.link.protocol()
    }

    /// The key of the other side.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        self.link.peer()
    }

    /// From now on only silence ends it.
    pub(crate) fn lift_deadline(&mut self) {
        self.deadline = None;
    }

    /// From now on it ends then, too.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Says that nothing follows, and waits until the peer has all.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.link.finish();
        self.until(|link| Ok(link.is_delivered().then_some(())))
    }

    pub(super) fn into_link(self) -> QuicLink {
        self.link
    }

    /// Waits for something, as long as that may take.
    fn until<T>(
        &mut self,
        mut attempt: impl FnMut(&mut QuicLink) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        let silent = Instant::now() + self.idle;
        let until = self.deadline.map_or(silent, |deadline| deadline.min(silent));
        loop {
            self.link.drive();
            if let Some(done) = attempt(&mut self.link)? {
                return Ok(done);
            }
            match self.link.lost() {
                Some(lost) => return Err(again(lost)),
                None if Instant::now() >= until => return Err(overdue()),
                None => self.link.wait(&[], Some(until))?,
            }
        }
    }
}

impl Read for QuicChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size_max = into.len();
        let bytes = self.until(|link| {
            let mut bytes = Vec::new();
            let is_over = link.read(Lane::Control, size_max, &mut bytes)?;
            Ok((is_over || !bytes.is_empty()).then_some(bytes))
        })?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl Write for QuicChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut message = Bytes::copy_from_slice(bytes);
        if message.is_empty() {
            return Ok(0);
        }
        let written = self.until(|link| {
            let written = link.write(Lane::Control, &mut message)?;
            Ok((written > 0).then_some(written))
        })?;
        self.link.drive();
        Ok(written)
    }

    /// The connection sends what it has taken whenever it is driven.
    fn flush(&mut self) -> io::Result<()> {
        self.link.drive();
        Ok(())
    }
}
