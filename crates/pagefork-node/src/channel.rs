//! A connection over TLS whose reads and writes end in time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, ConnectionCommon, ServerConnection, StreamOwned};

use crate::base::NodeTimes;
use crate::identity::Protocol;

/// A socket whose every wait is limited.
pub(crate) struct TimedSocket {
    socket: TcpStream,
    /// When all must be done, for the time being.
    deadline: Option<Instant>,
    idle: Duration,
}

/// The side of a memory node.
pub(crate) type ServerChannel = StreamOwned<ServerConnection, TimedSocket>;

/// The side of a node that connects.
pub(crate) type ClientChannel = StreamOwned<ClientConnection, TimedSocket>;

impl TimedSocket {
    /// One on which what comes first must be done until `deadline`.
    pub(crate) fn new(socket: TcpStream, deadline: Instant, times: &NodeTimes) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self { socket, deadline: Some(deadline), idle: times.idle })
    }

    /// The socket itself, whose waits the caller limits from now on.
    pub(crate) fn into_inner(self) -> TcpStream {
        self.socket
    }

    /// From now on only silence ends it.
    pub(crate) fn lift_deadline(&mut self) {
        self.deadline = None;
    }

    fn time_left(&self) -> io::Result<Duration> {
        let Some(deadline) = self.deadline else { return Ok(self.idle) };
        match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(overdue()),
            left => Ok(left.min(self.idle)),
        }
    }
}

impl Read for TimedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.time_left()?))?;
        self.socket.read(into).map_err(timed)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.time_left()?))?;
        self.socket.write(bytes).map_err(timed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Sockets say of a wait that has ended that they would have to wait.
fn timed(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => overdue(),
        _ => error,
    }
}

fn overdue() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "the peer has been silent for too long")
}

/// Finishes the handshake: afterwards both sides know each other, and what they speak.
pub(crate) fn shake_hands<C, D>(channel: &mut StreamOwned<C, TimedSocket>) -> io::Result<Protocol>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: rustls::SideData,
{
    while channel.conn.is_handshaking() {
        channel.conn.complete_io(&mut channel.sock)?;
    }
    let protocol = Protocol::negotiated(channel.conn.alpn_protocol());
    protocol.ok_or_else(|| io::Error::other("the peer speaks another protocol"))
}

/// Says that nothing follows, so that the peer can tell the end from a cut.
pub(crate) fn end(channel: &mut ServerChannel) -> io::Result<()> {
    channel.conn.send_close_notify();
    while channel.conn.wants_write() {
        channel.conn.write_tls(&mut channel.sock)?;
    }
    Ok(())
}
