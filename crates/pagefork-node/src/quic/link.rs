//! A connection over QUIC, driven by the thread that has it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pagefork_image::PublicKey;
use pagefork_postcopy::Lane;
use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{
    Connection, ConnectionError, ConnectionEvent, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointEvent, Event, ReadError, StreamEvent, StreamId, Transmit, TransportErrorCode, VarInt,
    WriteError,
};
use rustix::event::{PollFd, PollFlags};
use rustls::pki_types::CertificateDer;

use crate::identity::{self, AgreedProtocol};
use crate::poll::{again, overdue, wait_at_most};

use super::config;
use super::listener::{Inbound, QuicCaller, QuicShared};
use super::socket::{DatagramBuffers, QuicSocket};

/// Bytes beyond those on their way that are taken of what is to be sent: others can be overtaken.
const UNSENT: u64 = 64 << 10;

/// Bytes more that are taken of what is waited for.
const WAITED_FOR: u64 = 1 << 20;

/// The lanes of which each has a stream of its own from a memory node, in the order of these.
const GROUP_LANES: [Lane; 3] = [Lane::Urgent, Lane::Planned, Lane::Background];

/// Such a connection.
pub(super) struct QuicLink {
    connection: Connection,
    handle: ConnectionHandle,
    port: QuicPort,
    is_connected: bool,
    /// Why it is over. What the peer has said before is given out first.
    lost: Option<io::Error>,
    /// The endpoint knows that it is over.
    is_forgotten: bool,
    /// By [`Lane::place`]: the stream on which it sends, or receives.
    outgoing: [Option<StreamId>; 4],
    incoming: [Option<StreamId>; 4],
    /// The peer has ended [`Lane::Control`].
    is_over: bool,
    /// Something may have come since it was looked for.
    pub(super) has_news: bool,
    /// Counts what has happened, so that nothing of it is waited for.
    happened: u64,
    /// Streams that were ended, of which the peer does not have all.
    undelivered: usize,
    packets: Vec<u8>,
    /// What is in `packets` and was not taken.
    unsent: Option<Transmit>,
    /// Bytes up to the end of the handshake: sent, received.
    shaken: (u64, u64),
}

/// Where datagrams come from and go to.
enum QuicPort {
    /// Of who connects.
    Own { socket: QuicSocket, endpoint: Box<Endpoint>, buffers: DatagramBuffers },
    /// Of a listener.
    Shared { shared: Arc<QuicShared>, inbound: Arc<Inbound> },
}

/// The number of a lane here.
fn place(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Urgent => 1,
        Lane::Planned => 2,
        Lane::Background => 3,
    }
}

/// What goes first when there is a choice: the larger, the earlier.
fn urgency(lane: Lane) -> i32 {
    match lane {
        Lane::Urgent => 3,
        Lane::Control => 2,
        Lane::Planned => 1,
        Lane::Background => 0,
    }
}

impl QuicLink {
    fn new(connection: Connection, handle: ConnectionHandle, port: QuicPort) -> Self {
        Self {
            connection,
            handle,
            port,
            is_connected: false,
            lost: None,
            is_forgotten: false,
            outgoing: [None; 4],
            incoming: [None; 4],
            is_over: false,
            has_news: false,
            happened: 0,
            undelivered: 0,
            packets: Vec::new(),
            unsent: None,
            shaken: (0, 0),
        }
    }

    /// Connects, and is connected when it returns.
    ///
    /// # Errors
    /// Of kind `TimedOut` or `ConnectionRefused` if nobody is there, else if one of the two does not know
    /// the other.
    pub(super) fn connect(
        peer: SocketAddr,
        config: quinn_proto::ClientConfig,
        deadline: Instant,
    ) -> io::Result<Self> {
        let any = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = QuicSocket::bind(any)?;
        socket.connect(peer)?;
        let finds_mtu = !socket.may_fragment();
        let mut endpoint = Box::new(Endpoint::new(config::endpoint(None), None, finds_mtu, None));
        let connected = endpoint.connect(Instant::now(), config, peer, "node.invalid");
        let (handle, connection) = connected.map_err(io::Error::other)?;
        let buffers = DatagramBuffers::default();
        let mut link = Self::new(connection, handle, QuicPort::Own { socket, endpoint, buffers });
        link.shake_hands(deadline)?;
        // The peer learns of it with what is sent first.
        let control = link.connection.streams().open(Dir::Bi);
        let control = control.ok_or_else(|| io::Error::other("the peer takes no stream"))?;
        link.incoming[place(Lane::Control)] = Some(control);
        link.use_stream(Lane::Control, control);
        Ok(link)
    }

    /// Lets in who connects: both know each other when it returns.
    ///
    /// # Errors
    /// If the peer is not let in, or silent for too long.
    pub(super) fn answer(caller: QuicCaller, deadline: Instant) -> io::Result<Self> {
        let (connection, handle, shared, inbound) = caller.begin()?;
        let mut link = Self::new(connection, handle, QuicPort::Shared { shared, inbound });
        link.shake_hands(deadline)?;
        Ok(link)
    }

    fn shake_hands(&mut self, deadline: Instant) -> io::Result<()> {
        loop {
            self.drive();
            match &self.lost {
                Some(lost) => return Err(again(lost)),
                None if self.is_connected => break,
                None if Instant::now() >= deadline => return Err(overdue()),
                None => self.wait(&[], Some(deadline))?,
            }
        }
        self.shaken = (self.sent(), self.received());
        Ok(())
    }

    /// Takes more of the peer before it was read.
    pub(super) fn take_in_bulk(&mut self) {
        // Who connects takes more than that already.
        if let QuicPort::Shared { inbound, .. } = &self.port {
            inbound.hold_more();
            // The peer learns of it with what is sent next.
            self.connection.set_receive_window(VarInt::from_u32(config::BULK));
        }
    }

    /// What both sides speak.
    pub(super) fn protocol(&self) -> Option<AgreedProtocol> {
        let data = self.connection.crypto_session().handshake_data()?;
        let data = data.downcast::<HandshakeData>().ok()?;
        AgreedProtocol::of_name(data.protocol.as_deref())
    }

    /// The key of the other side.
    pub(super) fn peer(&self) -> Option<PublicKey> {
        let identity = self.connection.crypto_session().peer_identity()?;
        let identity = identity.downcast::<Vec<CertificateDer<'static>>>().ok()?;
        identity::peer_key(Some(&identity))
    }

    /// Why it is lost, if it is.
    pub(super) fn lost(&self) -> Option<&io::Error> {
        self.lost.as_ref()
    }

    /// Bytes that were sent, after the handshake.
    pub(super) fn sent(&self) -> u64 {
        self.connection.stats().udp_tx.bytes - self.shaken.0
    }

    /// Bytes that have come, after the handshake.
    pub(super) fn received(&self) -> u64 {
        self.connection.stats().udp_rx.bytes - self.shaken.1
    }

    /// Takes what has come and sends what is to be sent, as far as that is possible without waiting.
    pub(super) fn drive(&mut self) {
        loop {
            let now = Instant::now();
            self.take_datagrams(now);
            let is_due =
                |link: &mut Self| link.connection.poll_timeout().is_some_and(|at| at <= now);
            if is_due(self) {
                self.connection.handle_timeout(now);
            }
            self.tell_endpoint();
            self.take_events();
            self.transmit(now);
            if !is_due(self) {
                break;
            }
        }
    }

    fn take_datagrams(&mut self, now: Instant) {
        match &mut self.port {
            QuicPort::Shared { inbound, .. } => {
                for event in inbound.take() {
                    self.happened += 1;
                    self.connection.handle_event(event);
                }
            }
            QuicPort::Own { socket, endpoint, buffers } => {
                let (connection, happened) = (&mut self.connection, &mut self.happened);
                loop {
                    let received = socket.receive(buffers, |datagram| {
                        let (from, to, ecn) = (datagram.from, datagram.to, datagram.ecn);
                        let mut answer = Vec::new();
                        match endpoint.handle(now, from, to, ecn, datagram.bytes, &mut answer) {
                            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                                *happened += 1;
                                connection.handle_event(event);
                            }
                            Some(DatagramEvent::Response(transmit)) => {
                                let _ = socket.send(&transmit, &answer);
                            }
                            Some(DatagramEvent::NewConnection(incoming)) => {
                                endpoint.ignore(incoming);
                            }
                            None => {}
                        }
                    });
                    match received {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(error) => {
                            self.lost.get_or_insert(error);
                            self.has_news = true;
                            *happened += 1;
                            break;
                        }
                    }
                }
            }
        }
    }

    fn tell_endpoint(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            self.is_forgotten |= event.is_drained();
            if let Some(event) = self.port.tell(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll() {
            self.happened += 1;
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => {
                    self.lost.get_or_insert(lost_by(reason));
                    self.has_news = true;
                }
                Event::Stream(StreamEvent::Opened { dir }) => {
                    while let Some(id) = self.connection.streams().accept(dir) {
                        self.take_stream(dir, id);
                    }
                    self.has_news = true;
                }
                Event::Stream(StreamEvent::Readable { .. }) => self.has_news = true,
                Event::Stream(StreamEvent::Finished { .. }) => {
                    self.undelivered = self.undelivered.saturating_sub(1);
                }
                Event::Stream(StreamEvent::Stopped { .. }) => {
                    let why = "the peer does not take what is sent";
                    self.lost.get_or_insert(io::Error::new(ErrorKind::ConnectionAborted, why));
                    self.has_news = true;
                }
                Event::Stream(StreamEvent::Writable { .. } | StreamEvent::Available { .. })
                | Event::HandshakeDataReady
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
    }

    /// The peer has opened a stream, of those that it may.
    fn take_stream(&mut self, dir: Dir, id: StreamId) {
        match dir {
            Dir::Bi => {
                self.incoming[place(Lane::Control)] = Some(id);
                self.use_stream(Lane::Control, id);
            }
            Dir::Uni => {
                if let Some(lane) = GROUP_LANES.get(id.index() as usize) {
                    self.incoming[place(*lane)] = Some(id);
                }
            }
        }
    }

    fn use_stream(&mut self, lane: Lane, id: StreamId) {
        // It is open, so it has a priority.
        let _ = self.connection.send_stream(id).set_priority(urgency(lane));
        self.outgoing[place(lane)] = Some(id);
    }

    fn transmit(&mut self, now: Instant) {
        loop {
            if self.unsent.is_none() {
                self.packets.clear();
                let count = self.port.socket().sent_at_once(self.connection.current_mtu());
                self.unsent = self.connection.poll_transmit(now, count, &mut self.packets);
            }
            let Some(transmit) = &self.unsent else { return };
            match self.port.socket().send(transmit, &self.packets) {
                Ok(true) => self.unsent = None,
                Ok(false) => return,
                Err(error) => {
                    self.unsent = None;
                    self.lost.get_or_insert(error);
                    self.has_news = true;
                    self.happened += 1;
                    return;
                }
            }
        }
    }

    /// Takes what has come on a lane. Returns whether nothing follows.
    ///
    /// # Errors
    /// If the peer has broken it off.
    pub(super) fn read(
        &mut self,
        lane: Lane,
        size_max: usize,
        into: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let is_control = lane == Lane::Control;
        if is_control && self.is_over {
            return Ok(true);
        }
        let Some(id) = self.incoming[place(lane)] else { return Ok(false) };
        let mut stream = self.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Ok(true) };
        let end = into.len().saturating_add(size_max);
        let is_over = loop {
            match chunks.next(end - into.len()) {
                _ if into.len() == end => break false,
                Ok(Some(chunk)) => into.extend_from_slice(&chunk.bytes),
                Ok(None) => break true,
                Err(ReadError::Blocked) => break false,
                Err(ReadError::Reset(_)) => return Err(ErrorKind::ConnectionReset.into()),
            }
        };
        // What that lets the peer send, it is told with what is sent next.
        let _ = chunks.finalize();
        self.is_over |= is_control && is_over;
        Ok(is_over)
    }

    /// Sends the beginning of a message. What was taken is no longer in `message`.
    ///
    /// # Errors
    /// If the peer takes no such stream.
    pub(super) fn write(&mut self, lane: Lane, message: &mut Bytes) -> io::Result<usize> {
        let Some(id) = self.stream_to(lane)? else { return Ok(0) };
        let waited_for = match lane {
            Lane::Urgent | Lane::Control => WAITED_FOR,
            Lane::Planned | Lane::Background => 0,
        };
        // As much again as is on its way, since what is lost of that keeps what is behind it.
        let window = self.connection.congestion_state().window() * 2 + UNSENT + waited_for;
        self.connection.set_send_window(window);
        let mut stream = self.connection.send_stream(id);
        match stream.write_chunks(std::slice::from_mut(message)) {
            Ok(written) => Ok(written.bytes),
            // What is over is seen where the connection is.
            Err(WriteError::Blocked | WriteError::Stopped(_) | WriteError::ClosedStream) => Ok(0),
        }
    }

    /// The stream of a lane; none as long as who connects has not opened it.
    fn stream_to(&mut self, lane: Lane) -> io::Result<Option<StreamId>> {
        if lane != Lane::Control && self.outgoing[place(lane)].is_none() {
            // Which is which shows by their order.
            for lane in GROUP_LANES {
                let Some(id) = self.connection.streams().open(Dir::Uni) else {
                    return Err(io::Error::other("the peer takes no streams of groups"));
                };
                self.use_stream(lane, id);
            }
        }
        Ok(self.outgoing[place(lane)])
    }

    /// Says that nothing follows, on all streams.
    pub(super) fn finish(&mut self) {
        for id in self.outgoing.into_iter().flatten() {
            if self.connection.send_stream(id).finish().is_ok() {
                self.undelivered += 1;
            }
        }
    }

    /// Whether the peer has all of what was ended.
    pub(super) fn is_delivered(&self) -> bool {
        self.undelivered == 0
    }

    /// How long a peer that is there takes to say that it has something, at the very most.
    pub(super) fn patience(&self) -> Duration {
        (self.connection.rtt() * 4 + Duration::from_millis(100)).min(Duration::from_secs(1))
    }

    /// Waits until something has come that may be of interest, one of the others is ready for reading, the
    /// connection has to be driven, or the time has come.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn wait(
        &mut self,
        also: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> io::Result<()> {
        let happened = self.happened;
        self.drive();
        if self.happened != happened {
            return Ok(());
        }
        let until = until.map(|until| until + Duration::from_millis(1));
        let until = match (self.connection.poll_timeout(), until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        let mut all = vec![PollFd::from_borrowed_fd(self.port.as_fd(), PollFlags::IN)];
        if self.unsent.is_some() {
            let socket = self.port.socket().as_fd();
            all.push(PollFd::from_borrowed_fd(socket, PollFlags::OUT));
        }
        all.extend(also.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
        wait_at_most(&mut all, until)
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        let now = Instant::now();
        // What it had to say was said before; if this is lost, the peer notices otherwise.
        self.connection.close(now, VarInt::from_u32(0), Bytes::new());
        self.transmit(now);
        self.tell_endpoint();
        if !self.is_forgotten {
            self.port.tell(self.handle, EndpointEvent::drained());
        }
    }
}

impl QuicPort {
    fn socket(&self) -> &QuicSocket {
        match self {
            Self::Own { socket, .. } => socket,
            Self::Shared { shared, .. } => &shared.socket,
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own { socket, .. } => socket.as_fd(),
            Self::Shared { inbound, .. } => inbound.as_fd(),
        }
    }

    fn tell(&mut self, handle: ConnectionHandle, event: EndpointEvent) -> Option<ConnectionEvent> {
        match self {
            Self::Own { endpoint, .. } => endpoint.handle_event(handle, event),
            Self::Shared { shared, .. } => shared.tell(handle, event),
        }
    }
}

/// Alerts of TLS are told apart by their kind, as those of a connection over TCP.
fn lost_by(reason: ConnectionError) -> io::Error {
    let is_alert = |code: TransportErrorCode| (0x100..0x200).contains(&u64::from(code));
    match &reason {
        ConnectionError::TransportError(error) if is_alert(error.code) => {
            io::Error::new(ErrorKind::InvalidData, reason)
        }
        ConnectionError::ConnectionClosed(close) if is_alert(close.error_code) => {
            io::Error::new(ErrorKind::InvalidData, reason)
        }
        ConnectionError::TimedOut => overdue(),
        _ => reason.into(),
    }
}

#[cfg(test)]
mod tests;
