//! A connection over TLS whose reads and writes end in time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pagefork_image::PublicKey;
use rustls::Connection;

use crate::base::NodeTimes;
use crate::identity::{self, AgreedProtocol};
use crate::poll::overdue;

/// A socket whose every wait is limited.
pub(crate) struct TimedSocket {
    socket: TcpStream,
    /// When all must be done, for the time being.
    deadline: Option<Instant>,
    idle: Duration,
}

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

    /// From now on it ends then, too.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
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

/// Such a connection: reading and writing waits, as long as its socket lets it.
pub(crate) struct TlsChannel {
    connection: Connection,
    socket: TimedSocket,
}

impl TlsChannel {
    /// One whose handshake is to come.
    pub(crate) fn new(connection: Connection, socket: TimedSocket) -> Self {
        Self { connection, socket }
    }

    /// Finishes the handshake: afterwards this side knows the other one.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        while self.connection.is_handshaking() {
            self.connection.complete_io(&mut self.socket)?;
        }
        Ok(())
    }

    /// What both sides speak.
    pub(crate) fn protocol(&self) -> Option<AgreedProtocol> {
        AgreedProtocol::of_name(self.connection.alpn_protocol())
    }

    /// The key of the other side.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        identity::peer_key(self.connection.peer_certificates())
    }

    /// From now on only silence ends it.
    pub(crate) fn lift_deadline(&mut self) {
        self.socket.lift_deadline();
    }

    /// From now on it ends then, too.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.socket.set_deadline(deadline);
    }

    /// Says that nothing follows, so that the peer can tell the end from a cut.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.connection.send_close_notify();
        self.send_all()
    }

    /// The parts, of which the caller limits the waits.
    pub(super) fn into_parts(self) -> (Connection, TcpStream) {
        (self.connection, self.socket.into_inner())
    }

    fn send_all(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for TlsChannel {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            // What both sides have to say first, and what was written here and waits.
            self.send_all()?;
            match self.connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Without a byte more, TLS knows what that means: an end, or a cut.
            self.connection.read_tls(&mut self.socket)?;
            if let Err(error) = self.connection.process_new_packets() {
                // The peer is told why, if that is possible.
                let _ = self.send_all();
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
    }
}

impl Write for TlsChannel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send_all()?;
        let count = self.connection.writer().write(bytes)?;
        self.send_all()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_all()?;
        self.socket.flush()
    }
}
