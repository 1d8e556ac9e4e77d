//! Connections over TCP whose first bytes go along with TCP's own handshake ([RFC 7413]), where both systems agree:
//! that is a round trip less.
//!
//! What goes early is the first message of a TLS handshake and nothing else. The network can have it arrive
//! twice: then a handshake begins that nobody ends.
//!
//! [RFC 7413]: https://www.rfc-editor.org/rfc/rfc7413

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SetBool, SetUsize};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::poll::overdue;

/// Connections at once that have brought bytes along and whose handshake is not over: of more, bytes come after it.
const EARLY_MAX: usize = 64;

/// How many connections of a listener may bring bytes along.
#[derive(Clone)]
struct TcpFastOpen;

/// Whether a connection may bring bytes along.
#[derive(Clone)]
struct TcpFastOpenConnect;

nix::setsockopt_impl!(
    TcpFastOpenConnect,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN_CONNECT,
    bool,
    SetBool
);
nix::setsockopt_impl!(TcpFastOpen, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, usize, SetUsize);

/// Has connections bring bytes along, where the system lets it (`net.ipv4.tcp_fastopen`).
pub(crate) fn accept_early(listener: &TcpListener) {
    // Where it does not, they come a round trip later.
    let _ = setsockopt(listener, TcpFastOpen, &EARLY_MAX);
}

/// Connects, and says `first`: when it returns the system there has taken the connection.
///
/// # Errors
/// If nobody takes it until `deadline`.
pub(crate) fn connect_saying(
    place: SocketAddr,
    first: &[u8],
    deadline: Instant,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(place), Type::STREAM, Some(Protocol::TCP))?;
    // Where the system refuses, or does not know the other one, it shakes hands first.
    let _ = setsockopt(&socket, TcpFastOpenConnect, &true);
    socket.set_tcp_nodelay(true)?;
    // Where the system knows the other one, it does nothing before there is something to be said.
    socket.connect_timeout(&place.into(), time_left(deadline)?)?;
    let mut socket = TcpStream::from(socket);
    let mut left = first;
    while !left.is_empty() {
        socket.set_write_timeout(Some(time_left(deadline)?))?;
        match socket.write(left) {
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The one of a connection, the other of one that is being made.
            Err(error)
                if error.kind() == ErrorKind::WouldBlock
                    || Errno::from_io_error(&error) == Some(Errno::INPROGRESS) =>
            {
                return Err(overdue());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(socket)
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}
