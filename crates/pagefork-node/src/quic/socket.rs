//! A socket of UDP, from which many datagrams come at once.

use std::fmt;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::BytesMut;
use quinn_proto::EcnCodepoint;
use quinn_udp::{RecvMeta, UdpSocketState};

/// Bytes that the system keeps of either way, if it may.
const KEPT: usize = 2 << 20;

/// Buffers that are filled at once.
const BUFFERS: usize = 4;

/// Bytes of a buffer. The system joins datagrams of a peer as far as so many.
const BUFFER: usize = 64 << 10;

/// Bytes of all datagrams that are sent at once.
const SENT_AT_ONCE: usize = 65_507;

/// Such a socket. No call of it waits.
pub(super) struct QuicSocket {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// Where datagrams come into.
pub(super) struct DatagramBuffers(Vec<u8>);

impl Default for DatagramBuffers {
    fn default() -> Self {
        Self(vec![0; BUFFERS * BUFFER])
    }
}

/// A datagram that has come.
pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    /// The address of this machine that it was sent to.
    pub(super) to: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) bytes: BytesMut,
}

impl fmt::Debug for QuicSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuicSocket").field(&self.socket).finish()
    }
}

impl QuicSocket {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let state = UdpSocketState::new((&socket).into())?;
        // What does not fit is lost, and comes again.
        let _ = state.set_send_buffer_size((&socket).into(), KEPT);
        let _ = state.set_recv_buffer_size((&socket).into(), KEPT);
        Ok(Self { socket, state })
    }

    /// From now on datagrams come from there alone, and the system says if nobody listens.
    pub(super) fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether the network may split datagrams: then how large they can be is not found out.
    pub(super) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// How many datagrams of a size are sent at once.
    pub(super) fn sent_at_once(&self, size: u16) -> usize {
        // Of more, the system takes none.
        (SENT_AT_ONCE / usize::from(size).max(1)).clamp(1, self.state.max_gso_segments().max(1))
    }

    /// Takes what has come. Returns whether that is anything.
    ///
    /// # Errors
    /// If the system says that nobody listens where datagrams were sent to.
    pub(super) fn receive(
        &self,
        buffers: &mut DatagramBuffers,
        mut take: impl FnMut(Datagram),
    ) -> io::Result<bool> {
        let mut found = [RecvMeta::default(); BUFFERS];
        let count = {
            let mut slices = buffers.0.chunks_mut(BUFFER).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| slices.next().expect("there are as many"));
            match self.state.recv((&self.socket).into(), &mut slices, &mut found) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
                Err(error) => return Err(error),
            }
        };
        for (buffer, meta) in buffers.0.chunks(BUFFER).zip(&found[..count]) {
            for bytes in buffer[..meta.len].chunks(meta.stride.max(1)) {
                take(Datagram {
                    from: meta.addr,
                    to: meta.dst_ip,
                    ecn: meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
                    bytes: BytesMut::from(bytes),
                });
            }
        }
        Ok(true)
    }

    /// Sends datagrams. Returns whether the system has taken them; if not, it may later.
    ///
    /// # Errors
    /// If the system says that nobody listens there.
    pub(super) fn send(
        &self,
        transmit: &quinn_proto::Transmit,
        contents: &[u8],
    ) -> io::Result<bool> {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &contents[..transmit.size],
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Err(error),
            // Such as one that is too large, which is how their size is found out. What is not sent
            // is sent again.
            Ok(()) | Err(_) => Ok(true),
        }
    }
}

impl AsFd for QuicSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
